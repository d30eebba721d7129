//! Starting reads of levels ahead of the look-ups that need them, and telling when they have ended.

use std::sync::Arc;

use alluvium_pagestore::SegmentStore;
use alluvium_pagestore::io::Waker;

use super::ahead::WantedBlocks;
use super::fetches::{RunReadProgress, told};
use super::levels::Levels;
use super::run::NextRead;
use crate::contract::fetch::{Fetch, Ticket};

impl Levels {
    /// So many look-ups have reads that run ahead, at most. None do at first.
    #[must_use]
    pub fn fetching(mut self, look_ups: usize) -> Self {
        self.buffer.fetches.set_slots(look_ups);
        self
    }

    /// Starts reading what a look-up of a hash needs, or what it needs next after what was read, while so many bytes stay
    /// free. What memory has no room for is left to the look-up.
    pub fn fetch(&mut self, hash: u64, keep_free: u64) -> Fetch {
        let known = self.buffer.fetches.known(hash);
        if let Some(told) = told(&known, self.buffer.fetches.is_empty()) {
            return told;
        }
        let nth = if let RunReadProgress::Read(nth) = known { Some(nth) } else { None };
        if nth.is_some_and(|nth| self.buffer.fetches.has_failed(nth)) {
            return Fetch::Ready;
        }
        let Some(wanted) = self.next_wanted(hash, nth) else { return Fetch::Ready };
        let store = self.store().clone();
        let started = self.buffer.fetches.start(&store, hash, nth, wanted, keep_free);
        started.map_or(Fetch::Ready, Fetch::Pending)
    }

    /// What a look-up of a hash reads next after what a slot has.
    fn next_wanted(&self, hash: u64, nth: Option<usize>) -> Option<WantedBlocks> {
        for level in self.runs_of(hash) {
            for run in level {
                let id = run.info().id;
                let read = |offset, bytes| {
                    nth.and_then(|nth| self.buffer.fetches.read_by(nth, id, offset, bytes))
                };
                match run.next_wanted(hash, &read) {
                    NextRead::Read(wanted) => return Some(wanted),
                    NextRead::Enough => return None,
                    NextRead::Elsewhere => {}
                }
            }
        }
        None
    }

    /// Tells the tickets of reads that have ended, each once.
    pub fn fetched(&mut self, tell: &mut dyn FnMut(Ticket)) {
        let store: &SegmentStore = &self.store().clone();
        self.buffer.fetches.tell(store, tell);
    }

    /// Nobody wants a read any more. Says whether the ticket is of one of these.
    pub fn release(&mut self, ticket: Ticket) -> bool {
        self.buffer.fetches.release(ticket)
    }

    /// Wakes somebody at the end of each read that is started ahead from now on.
    pub fn wake_with(&mut self, waker: Arc<Waker>) {
        self.buffer.fetches.wake_with(waker);
    }

    /// Reads that were started ahead of their look-ups so far.
    pub fn fetches(&self) -> u64 {
        self.buffer.fetches.started()
    }

    /// Bytes that are booked for them.
    pub fn fetch_bytes(&self) -> u64 {
        self.buffer.fetches.booked()
    }

    /// Whether reads are under way, or wait to be used.
    pub fn has_fetches(&self) -> bool {
        !self.buffer.fetches.is_empty()
    }

    /// A look-up of a hash is over, which may have read nothing of levels.
    pub fn was_looked_up(&mut self, hash: u64) {
        self.buffer.fetches.was_looked_up(hash);
    }

    /// Nobody wants any of these reads any more: waits for those under way, no longer than for a device that does nothing.
    pub fn close_fetches(&mut self) {
        self.buffer.fetches.release_all();
        let store = self.store().clone();
        self.buffer.fetches.close(&store);
    }
}
