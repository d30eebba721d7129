//! Reads of single records that run ahead of the call which needs them, a [`Ticket`] each.
//!
//! A slot per read buffer but one, which is left for calls that read while they wait. A slot is
//! vacant, reading, done or given up (its ticket was released while the read was under way); only
//! the end of a read leaves `reading` and `given up`, so a buffer that the kernel owns is never
//! reused. A read is used for the place it was started for, in the segment that had the place's
//! number then, or not at all: a record that moved meanwhile is read again.

use alluvium_pagestore::SegmentId;

use crate::contract::fetch::Ticket;
use crate::hybrid_log::address::StoredAt;
use crate::hybrid_log::stored::RecordRead;

/// The reads under way and those that wait to be used.
#[derive(Debug)]
pub struct RecordFetches {
    slots: Box<[RecordFetch]>,
    /// Reads that have not ended.
    reading: usize,
    /// Slots that are not vacant.
    used: usize,
    /// Reads that were started.
    started: u64,
}

#[derive(Debug)]
struct RecordFetch {
    /// Tells the tickets of a slot's uses apart.
    generation: u32,
    at: StoredAt,
    id: SegmentId,
    state: RecordFetchState,
}

#[derive(Debug)]
enum RecordFetchState {
    Vacant,
    Reading,
    GivenUp,
    Done(RecordRead),
    /// Done, and the ticket was told to have ended.
    Told(RecordRead),
}

/// Generations, and so tickets, leave the top bit of a token to others.
const GENERATIONS: u32 = u32::MAX >> 1;

/// What is known of a place.
#[derive(Debug, PartialEq, Eq)]
pub enum RecordReadProgress {
    /// It was read.
    Read,
    /// It is being read.
    Reading(Ticket),
    /// Nothing, and a slot is free to read it with.
    Nothing,
    /// Nothing, and no slot is free.
    Full,
}

impl RecordFetches {
    /// Vacant slots.
    pub fn new(slots: usize) -> Self {
        let nowhere = StoredAt { segment: 0, grain: 0 };
        let vacant = || RecordFetch {
            generation: 0,
            at: nowhere,
            id: SegmentId(0),
            state: RecordFetchState::Vacant,
        };
        Self { slots: (0..slots).map(|_| vacant()).collect(), reading: 0, used: 0, started: 0 }
    }

    /// Bytes of so many slots.
    pub fn memory_bytes(slots: usize) -> u64 {
        (slots * size_of::<RecordFetch>()) as u64
    }

    /// Whether all slots are vacant.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Reads that have not ended.
    pub fn reading(&self) -> usize {
        self.reading
    }

    /// Reads that were started so far.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// How far the read of a place is.
    pub fn known(&self, at: StoredAt, id: SegmentId) -> RecordReadProgress {
        for (number, slot) in self.slots.iter().enumerate() {
            if (slot.at, slot.id) == (at, id) {
                match slot.state {
                    RecordFetchState::Done(_) | RecordFetchState::Told(_) => {
                        return RecordReadProgress::Read;
                    }
                    RecordFetchState::Reading => {
                        return RecordReadProgress::Reading(ticket(number, slot));
                    }
                    RecordFetchState::Vacant | RecordFetchState::GivenUp => {}
                }
            }
        }
        if self.used < self.slots.len() {
            RecordReadProgress::Nothing
        } else {
            RecordReadProgress::Full
        }
    }

    /// Takes a vacant slot for a read that is about to start.
    pub fn begin(&mut self, at: StoredAt, id: SegmentId) -> Ticket {
        let vacant =
            self.slots.iter().position(|slot| matches!(slot.state, RecordFetchState::Vacant));
        let number = vacant.expect("a slot is vacant");
        let slot = &mut self.slots[number];
        let generation = (slot.generation + 1) & GENERATIONS;
        *slot = RecordFetch { generation, at, id, state: RecordFetchState::Reading };
        (self.reading, self.used) = (self.reading + 1, self.used + 1);
        self.started += 1;
        ticket(number, slot)
    }

    /// The read could not be started.
    pub fn cancel(&mut self, ticket: Ticket) {
        let slot = self.slot_of(ticket).expect("a slot that was just taken");
        slot.state = RecordFetchState::Vacant;
        (self.reading, self.used) = (self.reading - 1, self.used - 1);
    }

    /// Where the read of a ticket was started.
    pub fn place(&mut self, ticket: Ticket) -> StoredAt {
        self.slot_of(ticket).expect("the slot of a read under way").at
    }

    /// A read has ended. Gives it back if nobody wants it any more.
    pub fn end(&mut self, ticket: Ticket, read: RecordRead) -> Option<RecordRead> {
        self.reading -= 1;
        let slot = self.slot_of(ticket).expect("the slot of a read under way");
        if matches!(slot.state, RecordFetchState::Reading) {
            slot.state = RecordFetchState::Done(read);
            return None;
        }
        slot.state = RecordFetchState::Vacant;
        self.used -= 1;
        Some(read)
    }

    /// Tells the tickets whose reads have ended, each once.
    pub fn tell(&mut self, tell: &mut dyn FnMut(Ticket)) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            match std::mem::replace(&mut slot.state, RecordFetchState::Vacant) {
                RecordFetchState::Done(read) => {
                    slot.state = RecordFetchState::Told(read);
                    tell(ticket(number, slot));
                }
                other => slot.state = other,
            }
        }
    }

    /// Takes the read of a place to use it.
    pub fn take(&mut self, at: StoredAt, id: SegmentId) -> Option<RecordRead> {
        let slot = self.slots.iter_mut().find(|slot| {
            (slot.at, slot.id) == (at, id)
                && matches!(slot.state, RecordFetchState::Done(_) | RecordFetchState::Told(_))
        })?;
        self.used -= 1;
        match std::mem::replace(&mut slot.state, RecordFetchState::Vacant) {
            RecordFetchState::Done(read) | RecordFetchState::Told(read) => Some(read),
            _ => unreachable!("matched above"),
        }
    }

    /// Nobody wants the read any more; gives it back if it has ended.
    pub fn release(&mut self, ticket: Ticket) -> Option<RecordRead> {
        let slot = self.slot_of(ticket)?;
        match std::mem::replace(&mut slot.state, RecordFetchState::Vacant) {
            RecordFetchState::Reading | RecordFetchState::GivenUp => {
                slot.state = RecordFetchState::GivenUp
            }
            RecordFetchState::Vacant => {}
            RecordFetchState::Done(read) | RecordFetchState::Told(read) => {
                self.used -= 1;
                return Some(read);
            }
        }
        None
    }

    /// The slot that a ticket names, if the ticket is the slot's latest.
    fn slot_of(&mut self, ticket: Ticket) -> Option<&mut RecordFetch> {
        let slot = self.slots.get_mut((ticket.0 & u64::from(u32::MAX)) as usize)?;
        (u64::from(slot.generation) == ticket.0 >> 32).then_some(slot)
    }
}

fn ticket(number: usize, slot: &RecordFetch) -> Ticket {
    Ticket(u64::from(slot.generation) << 32 | number as u64)
}
