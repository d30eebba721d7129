//! Unpacking a slice: its lists come back to its bucket, as if they had never left memory. So whatever clears or moves
//! lists knows nothing of packed ones. A slice that has no room in memory [becomes a run](super::moving) of its bucket.

use alluvium_pagestore::{ErrorKind, MemoryKind, Result, Time};

use super::PackedSlice;
use super::loading::SliceRecords;
use crate::append_log::block::ListBlock;
use crate::append_log::bucket::AppendBucket;
use crate::append_log::core::ListsCore;
use crate::append_log::key_unsafe::{KeyRef, OwnedKey};

/// Times that slices are unpacked, and memory is made free, for one call.
const ROUNDS_MAX: usize = 16;
/// A slice that may take more than one part in so many of the memory becomes a run of its own instead.
const UNPACKED_SHARE: u64 = 2;
/// What a list takes beside its elements: a head, an early part, and the growth of their tables.
const LIST_BYTES: u64 = 512;

impl ListsCore {
    /// Unpacks slices, and sees to it that so many bytes are free after that.
    ///
    /// # Errors
    /// Those of reading, and if there is no memory. What is packed stays so then.
    pub(in crate::append_log) fn unpack_for(
        &mut self,
        times: &[Time],
        bytes: u64,
        what: &str,
    ) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let packed = times.iter().find(|time| self.is_packed(**time)).copied();
            match packed {
                Some(time) => self.unpack(time)?,
                None if bytes == 0 || self.account.available() >= bytes => return Ok(()),
                // Making room may pack what was frozen.
                None => self.make_room(bytes, what)?,
            }
        }
        Err(self.account.over_budget(bytes, "lists that are packed again and again"))
    }

    fn unpack(&mut self, time: Time) -> Result<()> {
        self.leave_fold();
        let packed = self.packed.as_ref().expect("a slice is packed");
        let Some(slice) = packed.directory.get(time) else { return Ok(()) };
        let lists = (slice.bytes / 64).min(slice.elements).max(1) * LIST_BYTES;
        let chunks = slice.elements * self.pieces.elements.layout().size() as u64;
        let more = 4 * slice.bytes + 2 * chunks + lists + 2 * self.sizes.piece_bytes as u64;
        let is_large = more > self.account.limit() / UNPACKED_SHARE
            || self.sizes.reads_in_parts && !self.is_loaded_whole(slice);
        if is_large {
            return self.move_out(time, slice);
        }
        let read = match self.read_packed(&[(time, slice)], more, None) {
            Err(error) if error.kind() == ErrorKind::OverBudget => {
                return self.move_out(time, slice);
            }
            read => read?,
        };
        let Some((_, records)) = read.and_then(|mut all| all.pop()) else { return Ok(()) };
        let booked = records.bytes;
        self.account.charge(MemoryKind::Buffers, booked);
        let poured = self.pour_all((time, slice), records);
        self.account.release(MemoryKind::Buffers, booked);
        if poured.is_err() {
            self.drop_if_vacant(time);
            return poured;
        }
        self.kept = None;
        let packed = self.packed.as_mut().expect("a slice is packed");
        packed.directory.remove(time);
        packed.book_directory();
        Ok(())
    }

    /// Has all lists of some records come to their bucket, or none of them.
    fn pour_all(
        &mut self,
        (time, slice): (Time, PackedSlice),
        records: SliceRecords,
    ) -> Result<()> {
        let mut blocks = Vec::with_capacity(records.payloads.len());
        for payload in records.payloads {
            blocks.push(self.list_type.decode(&payload)?);
        }
        if !self.buckets.contains_key(&time) {
            let bucket = self.new_bucket((time, slice.since))?;
            self.add_bucket(bucket);
        }
        let bucket = self.buckets.get_mut(&time).expect("there or made");
        // What is in memory alone stands behind all that is packed.
        let is_alone = bucket.runs.is_empty() && bucket.notes() == 0 && bucket.early.is_empty();
        let entries =
            || blocks.iter().flat_map(|block| (0..block.len()).map(move |at| (block, at)));
        for (block, at) in entries() {
            let (key, rank) = (block.key(at), block.rank(at));
            match is_alone {
                true => bucket.ensure_head(key.key_hash(), key)?,
                false => bucket.ensure_early(key.key_hash(), &key.to_owned(), rank)?,
            }
        }
        for block in blocks.iter_mut().rev() {
            for at in (0..block.len()).rev() {
                pour(bucket, &mut **block, at, is_alone);
            }
        }
        Ok(())
    }
}

/// Puts the elements of an entry before what the bucket has of its list.
fn pour(bucket: &mut AppendBucket, block: &mut dyn ListBlock, at: usize, is_alone: bool) {
    let (key, rank): (OwnedKey, i64) = (block.key(at).to_owned(), block.rank(at));
    let AppendBucket { arena, account, .. } = &mut *bucket;
    let element = arena.elements().layout();
    let chain = block.pour(at, &mut |chain| AppendBucket::grow(element, arena, account, chain));
    let values = chain.heap_bytes();
    bucket.account.charge(MemoryKind::Values, values);
    bucket.values += values;
    bucket.elements += chain.len();
    let (hash, key): (u64, KeyRef<'_>) = (key.get().key_hash(), key.get());
    if is_alone {
        bucket.live.chain_mut(hash, key).expect("a head was made").prepend(chain);
    } else {
        let is_it = |early: &crate::append_log::frozen::EarlyElements| {
            early.rank == rank && early.key.get() == key
        };
        bucket.early.find_mut(hash, is_it).expect("an early part was made").chain.prepend(chain);
    }
}
