//! Moving a packed slice to a run of its own: where its lists are to be cleared or moved, and memory has no room for
//! [unpacking](super::unpacking) it.
//!
//! What it keeps true: the slice is in one place only. What fails leaves it packed.

use alluvium_pagestore::{MemoryKind, Result, Time};

use super::PackedSlice;
use crate::append_log::bucket::BUCKET_BYTES;
use crate::append_log::core::ListsCore;
use crate::append_log::jobs::MergedRun;
use crate::append_log::run::{ListRun, RUN_BYTES};
use crate::append_log::run_cursor::{Prepaid, RunCursor};
use crate::checkpoint::files_of;
use crate::support::booked::Booked;

/// What is known of a run takes less than this and one part in so many of its bytes.
const DESCRIBED_BYTES: u64 = 1024;
const DESCRIBED_SHARE: u64 = 64;

impl ListsCore {
    /// Has a packed slice become a run of its bucket, part by part. It stays packed if more of it is packed meanwhile.
    ///
    /// # Errors
    /// Those of reading and writing, and if there is no memory.
    pub(super) fn move_out(&mut self, time: Time, slice: PackedSlice) -> Result<()> {
        let packed = self.packed.as_ref().expect("a slice is packed");
        let expansion = if self.list_type.is_plain { 2 } else { 8 };
        let bytes = self.sizes.merge_bytes
            + packed.paged_bytes()
            + packed.paging_bytes()
            + expansion * packed.longest_chunk;
        let tables = BUCKET_BYTES + RUN_BYTES + DESCRIBED_BYTES + slice.bytes / DESCRIBED_SHARE;
        self.make_room_to_read(bytes + tables, "moving a packed slice to a run of its own")?;
        let packed = self.packed.as_ref().expect("looked at above");
        if packed.directory.get(time) != Some(slice) {
            return Ok(());
        }
        let Some(paged) = packed.paged_least(time) else { return Ok(()) };
        if let Some(reads) = &self.reads {
            let waited = reads.wait();
            self.book_left();
            waited?;
        }
        let _booked = Booked::buffers(self.account.clone(), bytes);
        if !self.buckets.contains_key(&time) {
            let bucket = self.new_bucket((time, slice.since))?;
            self.add_bucket(bucket);
        }
        let source = self.source.clone().expect("packed slices are on storage");
        let cursor = RunCursor::paged(source, Prepaid, (time, slice.since), paged);
        match self.copy_to_run(cursor, slice.elements) {
            Ok(copied) => {
                self.install_copy((time, slice), copied);
                Ok(())
            }
            Err(error) => {
                self.drop_if_vacant(time);
                Err(error)
            }
        }
    }

    /// A packed slice is in a run of its own: the oldest of its bucket.
    fn install_copy(&mut self, (time, slice): (Time, PackedSlice), copied: MergedRun) {
        let MergedRun { stored, elements, keys } = copied;
        self.stats.rewritten += elements;
        self.stats.flushed_bytes += stored.bytes();
        self.files.add(files_of(&stored.files));
        self.account.charge(MemoryKind::Tables, stored.memory_bytes() + RUN_BYTES);
        let run = ListRun::on_storage(slice.since, (elements, keys), stored);
        let bucket = self.buckets.get_mut(&time).expect("there or made");
        // A bucket that was made since then has none that are as old.
        bucket.first = bucket.first.min(run.number);
        let at = bucket.runs.partition_point(|other| other.number < run.number);
        bucket.runs.insert(at, run);
        self.kept = None;
        let packed = self.packed.as_mut().expect("a slice is packed");
        packed.directory.remove(time);
        packed.book_directory();
    }
}
