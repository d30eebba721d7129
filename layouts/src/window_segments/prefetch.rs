//! Reading ahead: the images of slices that will be read soon, in the background.
//!
//! Only memory that is free anyway is used, and given up before any slice is written. A read that
//! fails is forgotten: the call that needs the image meets the error.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::channel::Receiver;
use alluvium_pagestore::io::{Completion, IoBuffer, Operation, Reply, Request};
use alluvium_pagestore::{MemoryKind, Time, rounded};

use super::core::SegmentsCore;
use super::run::SliceRun;
use super::slice::{CachedRun, ResidentImage};

/// Reads under way at once.
const READS_MAX: usize = 16;

/// What is being read ahead.
#[derive(Debug, Default)]
pub struct Prefetch {
    /// Slices before this are.
    until: Option<Time>,
    reads: Vec<ImageRead>,
    /// Numbers given to reads so far.
    tokens: u64,
    channel: Option<(Reply, Receiver<Completion>)>,
}

#[derive(Debug)]
struct ImageRead {
    token: u64,
    slot: usize,
    run: Arc<SliceRun>,
    image: usize,
}

impl SegmentsCore {
    /// Reads slices before `until`, as far as there is memory.
    pub(super) fn read_ahead(&mut self, until: Time) {
        self.settle();
        self.ahead.until = self.ahead.until.max(Some(until));
        self.go_on_reading();
    }

    /// Whether a read has not ended.
    pub(super) fn is_reading(&self) -> bool {
        !self.ahead.reads.is_empty()
    }

    /// Starts as many reads as are allowed at once.
    pub(super) fn go_on_reading(&mut self) {
        let Some(until) = self.ahead.until else { return };
        while self.ahead.reads.len() < READS_MAX {
            let next = self.by_time.range(..until).find_map(|(_, slot)| {
                let runs = &self.slice_at(*slot as usize).runs;
                let run = runs.iter().position(|s| s.next_ahead < s.run.images.len())?;
                Some((*slot as usize, run))
            });
            let Some((slot, run)) = next else {
                self.ahead.until = None;
                return;
            };
            if !self.start_read(slot, run) {
                return;
            }
        }
    }

    fn start_read(&mut self, slot: usize, run: usize) -> bool {
        let (account, low) = (&self.account, self.sizes.low_water_bytes);
        let stored = &mut self.slots[slot].as_mut().expect("a slice in use").runs[run];
        let (image, images) = (stored.next_ahead, stored.run.images.len());
        let at = stored.run.images[image];
        let table = if stored.resident.is_empty() { resident_bytes(images) } else { 0 };
        if account.available() < at.bytes() + table + low {
            return false;
        }
        account.charge(MemoryKind::Buffers, at.bytes());
        account.charge(MemoryKind::Tables, table);
        stored.resident.resize_with(images, || None);
        stored.next_ahead += 1;
        self.ahead.tokens += 1;
        let token = self.ahead.tokens;
        self.ahead.reads.push(ImageRead { token, slot, run: stored.run.clone(), image });
        let (reply, _) = self.ahead.channel.get_or_insert_with(|| {
            let (reply, completions) = alluvium_pagestore::channel::unbounded();
            (reply.into(), completions)
        });
        let request = Request {
            file: stored.run.segments[at.segment as usize].file.clone(),
            operation: Operation::Read { offset: at.offset() },
            buffer: IoBuffer::zeroed(at.bytes() as usize),
            token,
            reply: reply.clone(),
        };
        let storage = self.background.storage.as_ref().expect("a run on storage");
        storage.store.device().submit(request);
        true
    }

    /// Takes in the reads that have ended.
    #[inline]
    pub(super) fn settle_reads(&mut self) {
        if !self.ahead.reads.is_empty() {
            self.take_in_reads();
        }
    }

    fn take_in_reads(&mut self) {
        if let Some(storage) = &self.background.storage {
            storage.store.device().drive();
        }
        while let Some(done) = self.ahead.channel.as_ref().and_then(|(_, c)| c.try_recv().ok()) {
            let read = self.ahead.reads.iter().position(|read| read.token == done.token);
            let read = self.ahead.reads.swap_remove(read.expect("a read that was started"));
            let bytes = read.run.images[read.image].bytes();
            let image = done.result.and_then(|()| read.run.verify(read.image, done.buffer));
            let slice = self.slots[read.slot].as_mut();
            let stored = slice
                .and_then(|slice| slice.runs.iter_mut().find(|s| Arc::ptr_eq(&s.run, &read.run)));
            self.stats.prefetched_bytes += bytes;
            match (image, stored) {
                (Ok(image), Some(stored)) => {
                    let used = Cell::new(false);
                    stored.resident[read.image] =
                        Some(ResidentImage { image: Rc::new(image), used });
                }
                _ => {
                    self.stats.prefetch_wasted_bytes += bytes;
                    self.account.release(MemoryKind::Buffers, bytes);
                }
            }
        }
        self.go_on_reading();
    }

    /// Forgets what was read ahead of a run.
    pub(super) fn forget_read(&mut self, stored: &mut CachedRun) {
        if stored.resident.is_empty() {
            return;
        }
        let images = stored.run.images.len();
        for (image, resident) in stored.resident.drain(..).enumerate() {
            let Some(resident) = resident else { continue };
            let bytes = stored.run.images[image].bytes();
            self.account.release(MemoryKind::Buffers, bytes);
            if !resident.used.get() {
                self.stats.prefetch_wasted_bytes += bytes;
            }
        }
        stored.resident = Vec::new();
        stored.next_ahead = 0;
        self.account.release(MemoryKind::Tables, resident_bytes(images));
    }

    /// Gives up what a fold and reading ahead hold, the slices that are read last first, until
    /// `bytes` are free, and says whether there was any.
    pub(super) fn give_up_what_was_read(&mut self, bytes: u64) -> bool {
        if let Some(fold) = self.folding.take() {
            self.account.release(MemoryKind::Buffers, fold.bytes());
            return true;
        }
        let mut any = false;
        // Nothing is read again before somebody asks for it.
        self.ahead.until = None;
        let slots: Vec<u32> = match self.stats.prefetched_bytes {
            0 => return false,
            _ => self.by_time.values().rev().copied().collect(),
        };
        for slot in slots {
            let mut runs = std::mem::take(&mut self.slice_at_mut(slot as usize).runs);
            for stored in &mut runs {
                // What is still being read comes to a run that is read ahead.
                let reading = self.ahead.reads.iter().any(|r| Arc::ptr_eq(&r.run, &stored.run));
                if self.account.available() < bytes && !stored.resident.is_empty() && !reading {
                    self.forget_read(stored);
                    any = true;
                }
            }
            self.slice_at_mut(slot as usize).runs = runs;
        }
        any
    }
}

fn resident_bytes(images: usize) -> u64 {
    rounded(images * size_of::<Option<ResidentImage>>()) as u64
}
