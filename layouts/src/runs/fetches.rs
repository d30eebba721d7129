//! Reads of runs that run ahead of the look-ups which need them, a [`Ticket`] each.
//!
//! A slot is what is read for one hash: a guide first, if memory does not have it, then chunks. A read that has ended is
//! told; who asks again has the next one started, in the same slot, until the look-up has all that it needs. The look-up
//! takes from here what was read, and leaves the slot vacant.
//!
//! What it keeps true: what a slot has read, or is reading, is booked. Only the end of a read leaves a slot that is reading,
//! so that a buffer which the device has is never given back before.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::channel::Receiver;

use alluvium_pagestore::io::{
    CLOSING_MAX, Completion, IoBuffer, Operation, Patience, Reply, Request, Waker,
};
use alluvium_pagestore::{Account, MemoryKind, RunId, SegmentStore};

use super::ahead::WantedBlocks;
use crate::contract::fetch::{Fetch, Ticket};
use crate::support::booked::Booked;

/// The bit of tickets for reads of runs.
const OF_RUNS: u64 = 1 << 63;
/// Generations leave it free.
const GENERATIONS: u32 = u32::MAX >> 1;

/// What was read: whole blocks at an offset of a run.
#[derive(Debug)]
struct RunRead {
    run: RunId,
    offset: u64,
    buffer: IoBuffer,
}

impl RunRead {
    fn has(&self, run: RunId, offset: u64, bytes: usize) -> Option<&[u8]> {
        ((self.run, self.offset) == (run, offset)).then(|| self.buffer.as_slice().get(..bytes))?
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunFetchState {
    Vacant,
    Reading,
    /// Nobody wants the read that has not ended.
    GivenUp,
    Ended,
    /// It has ended, and its ticket was told.
    Told,
}

#[derive(Debug)]
struct RunFetch {
    /// Tells the tickets of its uses apart.
    generation: u32,
    hash: u64,
    state: RunFetchState,
    /// Where the read goes that has not ended.
    reads_at: (RunId, u64),
    reads: Vec<RunRead>,
    /// A read has failed: who needs it reads again, and meets the error.
    has_failed: bool,
    /// The look-up is over already: the slot is vacant once its read was told.
    is_over: bool,
    memory: Booked,
}

/// The reads under way and those that wait to be used.
#[derive(Debug)]
pub(super) struct RunFetches {
    account: Rc<Account>,
    slots: Vec<RunFetch>,
    slots_max: usize,
    /// What the list of slots takes.
    list: Booked,
    /// Slots that are not vacant, and reads that have not ended.
    used: usize,
    reading: usize,
    started: u64,
    reply: Reply,
    completions: Receiver<Completion>,
}

/// How far what a slot reads is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RunReadProgress {
    /// A read has not ended.
    Reading(Ticket),
    /// What was read so far has ended: a slot has it.
    Read(usize),
    /// No slot reads for the hash, and one is free, or memory for one more.
    Nothing,
    /// No slot is free.
    Full,
    /// There are none.
    None,
}

impl RunFetches {
    /// No reads.
    pub fn new(account: Rc<Account>) -> Self {
        let (reply, completions) = alluvium_pagestore::channel::unbounded();
        let (slots, reply) = (Vec::new(), reply.into());
        let list = Booked::none(account.clone(), MemoryKind::Buffers);
        let (slots_max, used, reading, started) = (0, 0, 0, 0);
        Self { account, slots, slots_max, list, used, reading, started, reply, completions }
    }

    /// So many slots at most.
    pub fn set_slots(&mut self, slots: usize) {
        self.slots_max = slots;
    }

    /// Bytes of a slot's list of reads.
    const fn slot_bytes() -> u64 {
        (4 * size_of::<RunRead>()) as u64
    }

    /// Whether all slots are vacant.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Reads that were started so far.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Bytes that are booked.
    pub fn booked(&self) -> u64 {
        self.list.bytes() + self.slots.iter().map(|slot| slot.memory.bytes()).sum::<u64>()
    }

    /// Wakes somebody at the end of each read that is started from now on.
    pub fn wake_with(&mut self, waker: Arc<Waker>) {
        self.reply = self.reply.clone().waking(waker);
    }

    /// How far the reads for a hash are.
    pub fn known(&self, hash: u64) -> RunReadProgress {
        let of_hash = |slot: &RunFetch| {
            slot.hash == hash
                && !matches!(slot.state, RunFetchState::Vacant | RunFetchState::GivenUp)
        };
        match self.slots.iter().position(of_hash) {
            Some(nth) if self.slots[nth].state == RunFetchState::Reading => {
                RunReadProgress::Reading(ticket(nth, &self.slots[nth]))
            }
            Some(nth) => RunReadProgress::Read(nth),
            None if self.slots_max == 0 => RunReadProgress::None,
            None if self.used < self.slots_max => RunReadProgress::Nothing,
            None => RunReadProgress::Full,
        }
    }

    /// What a slot has read at a place. None also if a read has failed.
    pub fn read_by(&self, nth: usize, run: RunId, offset: u64, bytes: usize) -> Option<&[u8]> {
        self.slots[nth].reads.iter().find_map(|read| read.has(run, offset, bytes))
    }

    /// Whether a read of a slot has failed.
    pub fn has_failed(&self, nth: usize) -> bool {
        self.slots[nth].has_failed
    }

    /// What any slot has read at a place.
    pub fn find(&self, run: RunId, offset: u64, bytes: usize) -> Option<&[u8]> {
        if self.is_empty() {
            return None;
        }
        let reads = self.slots.iter().flat_map(|slot| &slot.reads);
        reads.into_iter().find_map(|read| read.has(run, offset, bytes))
    }

    /// Starts a read for a hash, in the slot that it has, or in a vacant one. None: memory has no room while so many bytes
    /// stay free.
    pub fn start(
        &mut self,
        store: &SegmentStore,
        hash: u64,
        nth: Option<usize>,
        wanted: WantedBlocks,
        keep_free: u64,
    ) -> Option<Ticket> {
        let WantedBlocks { run, file, offset, bytes } = wanted;
        if self.account.available() < keep_free + bytes as u64 + Self::slot_bytes() {
            return None;
        }
        let nth = nth.or_else(|| self.take_vacant())?;
        let slot = &mut self.slots[nth];
        if !slot.memory.try_reserve_more(bytes as u64) {
            self.vacate(nth);
            return None;
        }
        let generation = (slot.generation + 1) & GENERATIONS;
        (slot.generation, slot.hash, slot.state) = (generation, hash, RunFetchState::Reading);
        (slot.reads_at, slot.is_over) = ((run, offset), false);
        self.reading += 1;
        self.started += 1;
        let ticket = ticket(nth, slot);
        store.device().submit(Request {
            file,
            operation: Operation::Read { offset },
            buffer: IoBuffer::zeroed(bytes),
            token: ticket.0,
            reply: self.reply.clone(),
        });
        Some(ticket)
    }

    /// Takes a vacant slot, or makes one.
    fn take_vacant(&mut self) -> Option<usize> {
        if self.slots.capacity() == 0 {
            let bytes = (self.slots_max * size_of::<RunFetch>()) as u64;
            if !self.list.try_reserve_more(bytes) {
                return None;
            }
            self.slots.reserve_exact(self.slots_max);
        }
        let vacant = self.slots.iter().position(|slot| slot.state == RunFetchState::Vacant);
        let nth = vacant.unwrap_or(self.slots.len());
        if vacant.is_none() {
            let memory = Booked::none(self.account.clone(), MemoryKind::Buffers);
            self.slots.push(RunFetch {
                generation: 0,
                hash: 0,
                state: RunFetchState::Vacant,
                reads_at: (RunId(0), 0),
                reads: Vec::new(),
                has_failed: false,
                is_over: false,
                memory,
            });
        }
        self.used += 1;
        if !self.slots[nth].memory.try_reserve_more(Self::slot_bytes()) {
            self.vacate(nth);
            return None;
        }
        Some(nth)
    }

    /// Nobody needs a slot any more, which has no read under way.
    fn vacate(&mut self, nth: usize) {
        let slot = &mut self.slots[nth];
        (slot.state, slot.has_failed) = (RunFetchState::Vacant, false);
        slot.reads = Vec::new();
        slot.memory.give_back();
        self.used -= 1;
    }

    /// Takes the ends of reads.
    fn poll(&mut self) {
        while let Ok(done) = self.completions.try_recv() {
            self.end(done);
        }
    }

    fn end(&mut self, done: Completion) {
        self.reading -= 1;
        let nth = slot_of(Ticket(done.token));
        let slot = &mut self.slots[nth];
        if slot.state == RunFetchState::GivenUp {
            self.vacate(nth);
            return;
        }
        slot.state = RunFetchState::Ended;
        let (run, offset) = slot.reads_at;
        match done.result {
            Ok(()) => slot.reads.push(RunRead { run, offset, buffer: done.buffer }),
            Err(_) => slot.has_failed = true,
        }
    }

    /// Tells the tickets whose reads have ended, each once.
    pub fn tell(&mut self, store: &SegmentStore, tell: &mut dyn FnMut(Ticket)) {
        if self.is_empty() {
            return;
        }
        store.device().drive();
        self.poll();
        for nth in 0..self.slots.len() {
            let slot = &mut self.slots[nth];
            if slot.state == RunFetchState::Ended {
                slot.state = RunFetchState::Told;
                let told = ticket(nth, slot);
                if slot.is_over {
                    self.vacate(nth);
                }
                tell(told);
            }
        }
    }

    /// A look-up of a hash is over: what was read for it was used. A read that has not ended is told, and forgotten then.
    pub fn was_looked_up(&mut self, hash: u64) {
        if self.is_empty() {
            return;
        }
        match self.known(hash) {
            RunReadProgress::Read(nth) => self.vacate(nth),
            RunReadProgress::Reading(ticket) => self.slots[slot_of(ticket)].is_over = true,
            RunReadProgress::Nothing | RunReadProgress::Full | RunReadProgress::None => {}
        }
    }

    /// Nobody wants a read any more. Says whether the ticket is of a read of runs.
    pub fn release(&mut self, ticket: Ticket) -> bool {
        if ticket.0 & OF_RUNS == 0 {
            return false;
        }
        let nth = slot_of(ticket);
        let generation = (ticket.0 >> 32) as u32 & GENERATIONS;
        let state = match self.slots.get(nth).filter(|slot| slot.generation == generation) {
            Some(slot) => slot.state,
            None => RunFetchState::Vacant,
        };
        match state {
            RunFetchState::Vacant | RunFetchState::GivenUp => {}
            RunFetchState::Reading => self.slots[nth].state = RunFetchState::GivenUp,
            RunFetchState::Ended | RunFetchState::Told => self.vacate(nth),
        }
        true
    }

    /// Nobody wants any of the reads.
    pub fn release_all(&mut self) {
        self.poll();
        for nth in 0..self.slots.len() {
            match self.slots[nth].state {
                RunFetchState::Vacant | RunFetchState::GivenUp => {}
                RunFetchState::Reading => self.slots[nth].state = RunFetchState::GivenUp,
                RunFetchState::Ended | RunFetchState::Told => self.vacate(nth),
            }
        }
    }

    /// Waits for what is being read, no longer than for a device that does nothing.
    pub fn close(&mut self, store: &SegmentStore) {
        let mut patience = Patience::new(CLOSING_MAX, store.device());
        while self.reading > 0 {
            store.device().drive();
            match self.completions.recv_timeout(Duration::from_millis(1)) {
                Ok(done) => self.end(done),
                Err(_) if patience.is_over(store.device()) => break,
                Err(_) => {}
            }
        }
    }
}

fn ticket(nth: usize, slot: &RunFetch) -> Ticket {
    Ticket(OF_RUNS | u64::from(slot.generation) << 32 | nth as u64)
}

fn slot_of(ticket: Ticket) -> usize {
    (ticket.0 & u64::from(u32::MAX)) as usize
}

/// What a look-up that asks for a read is told, as far as the slots know.
pub(super) fn told(known: &RunReadProgress, is_empty: bool) -> Option<Fetch> {
    match known {
        RunReadProgress::Reading(ticket) => Some(Fetch::Pending(*ticket)),
        // With no slot there is none to read ahead with.
        RunReadProgress::None => Some(Fetch::Ready),
        RunReadProgress::Full if is_empty => Some(Fetch::Ready),
        RunReadProgress::Full => Some(Fetch::Busy),
        RunReadProgress::Read(_) | RunReadProgress::Nothing => None,
    }
}
