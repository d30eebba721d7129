//! What a log was before it was cleared, kept beside it until it is dropped, which it is in parts, and no sooner than a
//! checkpoint has read it; and how that gives memory up.
//!
//! Nobody asks for its records, which are dropped or soon on storage, so that its pages leave memory before those of the
//! log that goes on.
//!
//! What it keeps true: each of them has its own account, those beside below the log's.

use std::rc::Rc;
use std::time::Instant;

use alluvium_pagestore::{Account, MEMORY_KINDS, MemoryKind, Result};

use super::{Log, QUANTUM};

/// What is booked, by kind.
pub type Bookings = [(MemoryKind, u64); MEMORY_KINDS.len()];

/// Who stands beside a log, on an account below the log's.
pub trait LogNeighbor {
    /// Gives the memory of a page up, waiting for storage if it must; says whether it could.
    ///
    /// # Errors
    /// Those of storage.
    fn give_one(&mut self) -> Result<bool>;

    /// Gives memory up at any price, as there is no other for the stream: a checkpoint that needs more of it is lost. Says
    /// whether it could. Waits for the few pages that the helper has.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`](alluvium_pagestore::ErrorKind::Backpressure) if storage does not take these.
    fn force_one(&mut self) -> Result<bool>;

    /// A bounded share of the work that gives memory up; says whether there is more to give.
    fn relieve(&mut self) -> bool;

    /// Drops some of what nobody needs; says whether there is more of it.
    fn drop_step(&mut self) -> bool;

    /// Bytes of pages and values.
    fn elastic_bytes(&self) -> u64;

    /// Bytes that are booked for a kind.
    fn bytes_for(&self, kind: MemoryKind) -> u64;
}

impl Log {
    /// Pages and values, which can be given up.
    pub fn elastic_bytes(&self) -> u64 {
        let beside = self.beside.as_ref().map_or(0, |beside| beside.borrow().elastic_bytes());
        self.booked_for_pages() - beside
    }

    /// Bytes that are booked for a kind, without those of what stands beside it.
    pub fn own_bytes_for(&self, kind: MemoryKind) -> u64 {
        let beside = self.beside.as_ref().map_or(0, |beside| beside.borrow().bytes_for(kind));
        self.account.used_for(kind) - beside
    }

    /// Bytes of what stands beside it, which is dropped or leaves memory.
    pub fn bytes_beside(&self) -> u64 {
        let bytes_of =
            |beside: &dyn LogNeighbor| MEMORY_KINDS.map(|kind| beside.bytes_for(kind)).iter().sum();
        self.beside.as_ref().map_or(0, |beside| bytes_of(&*beside.borrow()))
    }

    /// What is booked for pages and values, here and beside it.
    pub fn booked_for_pages(&self) -> u64 {
        self.account.used_for(MemoryKind::Pages) + self.account.used_for(MemoryKind::Values)
    }

    /// Has what stands beside it give a page up; says whether it did.
    pub(super) fn free_one_beside(&mut self) -> Result<bool> {
        let Some(beside) = &self.beside else { return Ok(false) };
        match beside.borrow_mut().give_one() {
            // What is on its way out here may need no storage any more.
            Err(_) if self.eviction.under_way().is_some() || self.first_clean().is_some() => {
                Ok(false)
            }
            given => given,
        }
    }

    /// Has what stands beside it give memory up at any price, as there is nothing else; says whether it had some.
    pub(super) fn force_one_beside(&mut self) -> Result<bool> {
        self.beside.as_ref().map_or(Ok(false), |beside| beside.borrow_mut().force_one())
    }

    /// Has some of what stands beside it dropped, if nobody needs it.
    pub(super) fn drop_some_beside(&mut self) {
        if let Some(beside) = &self.beside {
            beside.borrow_mut().drop_step();
        }
    }

    /// While memory is short: has what stands beside it leave first; says whether there is more of it.
    pub(super) fn relieve_beside(&mut self) -> bool {
        self.beside.as_ref().is_some_and(|beside| beside.borrow_mut().relieve())
    }

    /// Whether so many bytes of pages can be given up, and what the log needs to work is left.
    pub fn can_give(&self, bytes: u64) -> bool {
        self.elastic_bytes() >= self.floor_bytes() + bytes
    }

    /// Gives a page up for the log that this one stands beside.
    pub fn give_one(&mut self) -> Result<bool> {
        if self.give_room_for_notes_up() || self.drop_spare() {
            return Ok(true);
        }
        if !self.has_more_than_it_needs() {
            return Ok(false);
        }
        self.free_a_frame(self.needed_for_others())?;
        // Not for a page of its own.
        self.drop_spare();
        Ok(true)
    }

    /// Has the next records of pages leave for the log that this one stands beside; says whether there are more.
    pub fn leave_step(&mut self) -> bool {
        // What storage says is told by the checkpoint.
        let _ = self.poll();
        self.send_some_out();
        self.drop_spare();
        self.has_more_than_it_needs()
    }

    /// Frees so many bytes without waiting for anything, if that can be; says whether they are free.
    pub fn free_at_once(&mut self, bytes: u64) -> bool {
        while self.account.available() < bytes {
            let gave = self.give_room_for_notes_up() || self.drop_spare();
            if !gave && self.eviction.under_way().is_none() && self.first_clean().is_none() {
                return false;
            }
            if !gave {
                self.evict(u32::MAX);
            }
        }
        true
    }

    /// Whether there is so little that a call may drop it: no more than it would of what stands beside a log.
    pub fn is_little(&self) -> bool {
        let few = QUANTUM as usize;
        let files = self.stored.as_ref().map_or(0, |stored| stored.numbers().len());
        let pages = self.ring.len() + self.copies.len();
        self.pending() == 0 && pages <= few && self.index.segments() <= few && files <= few
    }

    /// Drops the next part of what is in memory, of a log that is over and of which the helper has no page: a segment of the
    /// index, or a page. Says whether there was one.
    pub fn drop_part(&mut self) -> bool {
        self.eviction.end();
        // A value that panics while it is dropped panics for nobody: there is no call that it belongs to.
        let is_dropped =
            self.index.drop_one() || self.end_stale_copies() || self.drop_oldest().is_some();
        self.drop_spare() || is_dropped
    }

    /// Has segments removed of which only the helper knows, of a log that is over and that no checkpoint is of which is
    /// not decided: begun for a copy or a page that nobody was told of. Says whether it does that now.
    pub fn abandon_strays(&mut self) -> bool {
        let Some(flusher) = self.flusher.as_mut().filter(|_| !self.is_abandoned) else {
            return false;
        };
        flusher.abandon();
        self.is_abandoned = true;
        true
    }

    /// Waits for the pages that the helper has.
    pub fn wait_for_all(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.eviction.frozen() > 0 || self.pending() > 0 {
            self.wait()?;
            self.check_patience(start)?;
        }
        Ok(())
    }

    /// Moves so much of what is booked to another account, and books there from now on.
    pub fn book_on(&mut self, account: &Rc<Account>, booked: Bookings) {
        for (kind, bytes) in booked {
            self.account.release(kind, bytes);
            account.charge(kind, bytes);
        }
        self.account = account.clone();
        self.index.book_on(account);
        self.pool.book_on(account);
        self.stored.iter_mut().for_each(|stored| stored.book_on(account));
    }
}
