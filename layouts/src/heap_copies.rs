//! Entries of a heap table on their way to a checkpoint: copies, in chunks that the helper encodes and writes.
//!
//! A short entry that owns no heap is copied as it is, long before it is written, so that few entries have to be kept for a
//! checkpoint because they change before it has them. The helper writes a chunk at a time and gives it back with the
//! place of each record, which the table learns then.
//!
//! What it keeps true: a chunk is booked before it is made, and until it is gone. There is one at least, and others as far
//! as memory is not short and an eighth of it has room for them. Each has pages of its own, which the helper gives back
//! when they are not needed any more.

use std::collections::VecDeque;
use std::rc::Rc;

use alluvium_pagestore::mailbox::{Mailbox, mailbox};
use alluvium_pagestore::{Account, Error, ErrorKind, Key, MemoryKind, PlacedAt, Result, State};

use crate::checkpoint::FREE_BYTES;
use crate::checkpoint::{Paced, Sink};
use crate::full_image::name_large;
use crate::own_pages_unsafe::OwnPages;

/// A chunk has such a part of the memory, between so many entries. Each has to wake the helper.
const CHUNK_SHARE: u64 = 64;
const CHUNK_MIN: usize = 256;
const CHUNK_MAX: usize = 4096;
/// Copies have such a part of the memory.
const MEMORY_SHARE: u64 = 8;
/// So much of it is left to others.
const FREE_SHARE: u64 = 16;
/// The bucket of an entry that is to be looked for.
const NOWHERE: usize = usize::MAX;

/// An entry as it was at the barrier.
#[derive(Debug)]
pub struct Copied<K, V> {
    /// Where it stood.
    bucket: usize,
    /// Where its record is, once it is written.
    pub at: PlacedAt,
    pub key: K,
    pub value: V,
}

/// Some of them.
#[derive(Debug)]
pub struct Chunk<K, V> {
    pub entries: OwnPages<Copied<K, V>>,
    /// How often entries had moved when they were copied; `None` if they did meanwhile.
    moved: Option<u64>,
}

impl<K, V> Chunk<K, V> {
    /// Where an entry of it stood, if that says anything now.
    pub fn bucket_of(&self, copied: &Copied<K, V>, moved: u64) -> Option<usize> {
        (self.moved == Some(moved) && copied.bucket != NOWHERE).then_some(copied.bucket)
    }
}

/// All of a checkpoint.
#[derive(Debug)]
pub struct Copies<K, V> {
    account: Rc<Account>,
    /// Entries of a chunk.
    chunk: usize,
    filling: Option<Chunk<K, V>>,
    /// To be written, in order.
    full: VecDeque<Chunk<K, V>>,
    spare: Vec<Chunk<K, V>>,
    /// The one that the helper has, if it has one to write.
    answer: Option<Mailbox<Option<Chunk<K, V>>>>,
    /// What is booked for chunks, and of that for those that the helper drops.
    booked: u64,
    leaving: u64,
    /// Whether memory had no room for another one when it was last asked for.
    is_full: bool,
}

impl<K, V> Copies<K, V> {
    /// None yet, of so many entries.
    pub fn new(account: Rc<Account>, all: u64) -> Self {
        let (full, spare) = (VecDeque::new(), Vec::new());
        let entries = account.limit() / CHUNK_SHARE / size_of::<Copied<K, V>>() as u64;
        let chunk = entries.min(all).clamp(CHUNK_MIN as u64, CHUNK_MAX as u64) as usize;
        let (filling, answer, booked, leaving) = (None, None, 0, 0);
        Self { account, chunk, filling, full, spare, answer, booked, leaving, is_full: false }
    }

    fn bytes_of(entries: usize) -> u64 {
        (OwnPages::<Copied<K, V>>::memory_bytes(entries) + 64) as u64
    }

    /// Whether there is room for so many more entries of a table that has `moved` so often.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if memory has no room for one chunk.
    pub fn has_room(&mut self, count: usize, moved: u64) -> Result<bool> {
        if !self.has_chunk_for(count, moved) {
            self.filling = self.new_chunk(moved)?;
            self.is_full = self.filling.is_none();
        }
        Ok(!self.is_full)
    }

    /// The same for one entry that the stream is about to change, which neither asks others for memory nor takes the last
    /// of it.
    pub fn has_room_left(&mut self, moved: u64) -> bool {
        let chunk = Self::bytes_of(self.chunk);
        self.has_chunk_for(1, moved) || {
            let may = !self.spare.is_empty() || self.account.available() >= chunk + FREE_BYTES;
            may && matches!(self.has_room(1, moved), Ok(true))
        }
    }

    /// Whether the chunk that is being filled has room.
    fn has_chunk_for(&mut self, count: usize, moved: u64) -> bool {
        if let Some(filling) = &mut self.filling {
            if filling.entries.len() + count <= self.chunk {
                if filling.moved != Some(moved) {
                    filling.moved = None;
                }
                return true;
            }
            self.full.extend(self.filling.take());
        }
        false
    }

    fn new_chunk(&mut self, moved: u64) -> Result<Option<Chunk<K, V>>> {
        if let Some(mut spare) = self.spare.pop() {
            spare.moved = Some(moved);
            return Ok(Some(spare));
        }
        let (bytes, account) = (Self::bytes_of(self.chunk), &self.account);
        if self.booked == 0 {
            account.reserve(MemoryKind::Buffers, bytes, "copies for a checkpoint")?;
        } else {
            let limit = account.limit();
            let may = self.booked + bytes <= limit / MEMORY_SHARE
                && account.available() >= limit / FREE_SHARE + bytes;
            if !may || !account.try_reserve(MemoryKind::Buffers, bytes) {
                return Ok(None);
            }
        }
        self.booked += bytes;
        Ok(Some(Chunk { entries: OwnPages::with_capacity(self.chunk), moved: Some(moved) }))
    }

    /// Adds a copy of the entry in a bucket, or of one that is to be looked for. There is
    /// [room](Copies::has_room).
    pub fn push(&mut self, bucket: Option<usize>, key: K, value: V) {
        let filling = self.filling.as_mut().expect("there is room");
        let bucket = bucket.unwrap_or(NOWHERE);
        let at = PlacedAt { segment: 0, grain: 0 };
        if filling.entries.len() == filling.entries.capacity() {
            // More were kept with one hash than chunks are long.
            let before = filling.entries.capacity();
            let more = Self::bytes_of(before + self.chunk) - Self::bytes_of(before);
            self.account.charge(MemoryKind::Buffers, more);
            self.booked += more;
            filling.entries.grow(self.chunk);
        }
        filling.entries.push(Copied { bucket, at, key, value });
    }

    /// Nothing more is copied.
    pub fn end(&mut self) {
        let last = self.filling.take().filter(|chunk| !chunk.entries.is_empty());
        self.full.extend(last);
    }

    /// Entries of a chunk.
    pub fn chunk(&self) -> u64 {
        self.chunk as u64
    }

    /// Whether memory has no room for more copies, so that those that there are should go.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Records of the chunk that is to be written next.
    pub fn next_len(&self) -> Option<u64> {
        self.full.front().map(|chunk| chunk.entries.len() as u64)
    }

    /// Whether nothing is to be written any more, and nothing is with the helper.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty() && self.filling.is_none() && self.answer.is_none()
    }

    /// Whether there are chunks for nothing: the helper is to [have](Copies::submit) them.
    pub fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }

    /// The chunk that the helper has written. It is [given back](Copies::give_back).
    ///
    /// # Errors
    /// If it was lost.
    pub fn take_written(&mut self) -> Result<Option<Chunk<K, V>>>
    where
        K: 'static,
        V: 'static,
    {
        let Some(answer) = self.answer.take() else { return Ok(None) };
        let lost = |_| Error::new(ErrorKind::Io, "the helper lost a part of a checkpoint");
        let written = answer.try_recv().map_err(lost)?;
        let left = std::mem::take(&mut self.leaving);
        self.booked -= left;
        self.account.release(MemoryKind::Buffers, left);
        Ok(written)
    }

    /// Drops a chunk, or what the helper has; says whether there was something.
    pub fn drop_one(&mut self) -> bool {
        // What the helper has goes with its answer.
        let is_some = self.answer.take().is_some() || self.filling.take().is_some();
        is_some || self.full.pop_front().is_some() || self.spare.pop().is_some()
    }

    /// The places of a chunk's records are known.
    pub fn give_back(&mut self, mut chunk: Chunk<K, V>) {
        chunk.entries.clear();
        self.is_full = false;
        self.spare.push(chunk);
    }
}

impl<K: Key, V: State> Copies<K, V> {
    /// Has the helper encode and write the next chunk, and drop those that are spare but for one; all if there is none to
    /// be written. What it had before was [taken](Copies::take_written).
    pub fn submit(&mut self, own: &mut Paced) {
        let kept = self.spare.len().min(usize::from(!self.full.is_empty()));
        let (mut chunk, gone) = (self.full.pop_front(), self.spare.split_off(kept));
        if chunk.is_none() && gone.is_empty() {
            return;
        }
        self.leaving = gone.iter().map(|chunk| Self::bytes_of(chunk.entries.capacity())).sum();
        let (reply, answer) = mailbox();
        self.answer = Some(answer);
        own.submit_job(move |sink: &mut Sink<'_>| {
            drop(gone);
            for copied in chunk.iter_mut().flat_map(|chunk| chunk.entries.iter_mut()) {
                copied.at = sink
                    .push(copied.key.key_hash(), &copied.key, &copied.value)
                    .map_err(|error| name_large(error, &copied.key))?;
            }
            // If the checkpoint was given up nobody minds the answer.
            reply.send(chunk);
            Ok(())
        });
    }
}

impl<K, V> Drop for Copies<K, V> {
    fn drop(&mut self) {
        (self.filling, self.answer) = (None, None);
        (self.full, self.spare) = (VecDeque::new(), Vec::new());
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}
