//! Reads of runs that are under way together: those of a batch of look-ups.
//!
//! [`Levels::read_ahead`](super::Levels::read_ahead) says what each of many hashes needs first, and all of it is read at
//! once. A look-up takes from here what was read, and reads by itself what was not.
//!
//! What it keeps true: buffers are booked until the device is done with them. Reads that are left because the device does
//! nothing keep their memory, and nothing is read ahead until they have ended.

use std::rc::Rc;

use alluvium_pagestore::channel::{Receiver, Sender};

use alluvium_pagestore::io::{
    Completion, FileHandle, IoBuffer, Operation, Patience, Request, next_completion,
};
use alluvium_pagestore::{Account, MemoryKind, RunId, SegmentStore};

use super::AT_ONCE;
use crate::support::booked::Booked;

/// What is to be read: whole blocks at an offset of a run.
#[derive(Clone, Debug)]
pub(super) struct WantedBlocks {
    pub run: RunId,
    pub file: FileHandle,
    pub offset: u64,
    pub bytes: usize,
}

/// What was read ahead, and what is being read.
#[derive(Debug)]
pub(super) struct ReadAhead {
    wanted: Vec<WantedBlocks>,
    /// What was read of each of these, if it was.
    read: Vec<Option<IoBuffer>>,
    /// Hashes whose reads these are, each with the number of the first level that may have it.
    firsts: [(u64, u64); AT_ONCE],
    known: usize,
    /// The number of the last level that had come then.
    last_level: u64,
    under_way: usize,
    memory: Booked,
    reply: Sender<Completion>,
    completions: Receiver<Completion>,
}

impl ReadAhead {
    /// Nothing is read.
    pub fn new(account: Rc<Account>) -> Self {
        let (reply, completions) = alluvium_pagestore::channel::unbounded();
        let memory = Booked::none(account, MemoryKind::Buffers);
        Self {
            wanted: Vec::new(),
            read: Vec::new(),
            firsts: [(0, 0); AT_ONCE],
            known: 0,
            last_level: 0,
            under_way: 0,
            memory,
            reply,
            completions,
        }
    }

    /// Bytes that are booked.
    #[cfg(test)]
    pub fn booked(&self) -> u64 {
        self.memory.bytes()
    }

    /// Whether reads that were left have not ended, also when the device is given a chance to end them.
    pub fn is_behind_on(&mut self, store: &SegmentStore) -> bool {
        if self.under_way > 0 {
            store.device().drive();
        }
        self.is_behind()
    }

    fn is_behind(&mut self) -> bool {
        while self.under_way > 0 && self.completions.try_recv().is_ok() {
            self.under_way -= 1;
        }
        self.under_way > 0
    }

    /// Reads all of it, as far as memory has room when so many bytes stay free. A single read is not worth it. What was
    /// read before has to be [forgotten](ReadAhead::forget).
    pub fn read(&mut self, store: &SegmentStore, mut wanted: Vec<WantedBlocks>, keep_free: u64) {
        wanted.sort_unstable_by_key(|one| (one.run.0, one.offset));
        wanted.dedup_by_key(|one| (one.run.0, one.offset));
        let mut room = self.memory.account().available().saturating_sub(keep_free) as usize;
        let fits = |one: &&WantedBlocks| {
            let fits = one.bytes <= room;
            room = room.saturating_sub(one.bytes);
            fits
        };
        let count = wanted.iter().take_while(fits).count();
        wanted.truncate(count);
        let bytes: usize = wanted.iter().map(|one| one.bytes).sum();
        if count < 2 || !self.memory.try_reserve_more(bytes as u64) {
            return;
        }
        let requests = wanted.iter().enumerate().map(|(nth, one)| Request {
            file: one.file.clone(),
            operation: Operation::Read { offset: one.offset },
            buffer: IoBuffer::zeroed(one.bytes),
            token: nth as u64,
            reply: self.reply.clone().into(),
        });
        requests.for_each(|request| store.device().submit_own(request));
        self.under_way = count;
        self.read.resize_with(count, || None);
        self.wanted = wanted;
        self.wait(store);
    }

    /// Waits for all, unless the device does nothing.
    fn wait(&mut self, store: &SegmentStore) {
        let device = store.device();
        let mut patience = store.patience().map(|most| Patience::new(most, device));
        while self.under_way > 0 {
            let Some(done) = next_completion(device, &self.completions) else {
                if patience.as_mut().is_some_and(|patience| patience.is_over(device)) {
                    break;
                }
                continue;
            };
            self.under_way -= 1;
            if done.result.is_ok() {
                // Who needs what could not be read reads it again, and meets the error.
                self.read[done.token as usize] = Some(done.buffer);
            }
        }
    }

    /// Notes the number of the first level that may have a hash, where `last_level` is the last that has come.
    pub fn first_level_is(&mut self, hash: u64, level: u64, last_level: u64) {
        if self.last_level != last_level {
            (self.known, self.last_level) = (0, last_level);
        }
        if let Some(first) = self.firsts.get_mut(self.known) {
            *first = (hash, level);
            self.known += 1;
        }
    }

    /// The number of the first level that may have a hash, if it was noted and no level has come since.
    pub fn first_level(&self, hash: u64, last_level: u64) -> Option<u64> {
        let known = &self.firsts[..if self.last_level == last_level { self.known } else { 0 }];
        known.iter().find(|first| first.0 == hash).map(|first| first.1)
    }

    /// What was read of a run at an offset, if it is at least so long.
    pub fn find(&self, run: RunId, offset: u64, bytes: usize) -> Option<&[u8]> {
        let place = (run.0, offset);
        let nth = self.wanted.binary_search_by_key(&place, |one| (one.run.0, one.offset)).ok()?;
        self.read[nth].as_ref()?.as_slice().get(..bytes)
    }

    /// Forgets what was read, and says how many bytes are free by that. Those of reads under way are not.
    pub fn forget(&mut self) -> u64 {
        self.known = 0;
        if self.wanted.is_empty() || self.is_behind() {
            return 0;
        }
        self.wanted.clear();
        self.read.clear();
        let given = self.memory.bytes();
        self.memory.give_back();
        given
    }
}
