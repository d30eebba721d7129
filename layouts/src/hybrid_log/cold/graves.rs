//! Tombstones in memory: copies of records of runs whose keys were deleted.
//!
//! They are few, and go to the next level. Memory for a full list of them stays booked, so that keys can be deleted where
//! no memory is left for anything else.

use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::{Account, Error, ErrorKind, MemoryKind, Result};

use super::{ColdPresence, ColdTier, IsIt, PAYLOAD_MAX, known_by};
use crate::support::booked::Booked;

/// A tombstone.
#[derive(Clone, Debug)]
pub struct Grave {
    pub hash: u64,
    pub payload: Arc<AlignedVec>,
}

/// Those of equal hashes stay in their order. Not inlined: compiled once.
#[inline(never)]
pub(super) fn sort(graves: &mut [Grave]) {
    graves.sort_by_key(|grave| grave.hash);
}

impl Grave {
    /// Bytes of one whose payload has this length.
    pub fn memory_bytes(payload: usize) -> u64 {
        // The block's counts, and where the bytes are.
        (payload + 2 * size_of::<usize>() + size_of::<AlignedVec>()) as u64
    }

    /// Bytes of this one, beside its place in a list.
    pub fn bytes(&self) -> u64 {
        Self::memory_bytes(self.payload.len())
    }

    /// A copy of a record.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if memory has no room for it.
    pub fn dug(hash: u64, payload: &[u8], memory: &mut GraveMemory) -> Result<Self> {
        memory.take(Self::memory_bytes(payload.len()), "a tombstone")?;
        let mut copy = AlignedVec::with_capacity(payload.len());
        copy.extend_from_slice(payload);
        Ok(Self { hash, payload: Arc::new(copy) })
    }
}

/// The tombstones of a hash, of a list in the order of hashes.
pub fn of_hash(graves: &[Grave], hash: u64) -> &[Grave] {
    let start = graves.partition_point(|other| other.hash < hash);
    let end = graves.partition_point(|other| other.hash <= hash);
    &graves[start..end]
}

/// What tombstones and their lists take: at least so much stays booked.
#[derive(Debug)]
pub struct GraveMemory {
    booked: Booked,
    used: u64,
    least: u64,
}

impl GraveMemory {
    /// Nothing is booked.
    pub fn new(account: Rc<Account>) -> Self {
        Self { booked: Booked::none(account, MemoryKind::Tables), used: 0, least: 0 }
    }

    /// Bytes that are booked.
    pub fn bytes(&self) -> u64 {
        self.booked.bytes()
    }

    /// Books more, which is free, and keeps all that is booked then.
    pub fn keep(&mut self, more: u64) {
        if more > 0 {
            self.booked.charge(more);
            self.least = self.booked.bytes();
        }
    }

    /// Takes so many bytes, of what is booked or of what is free.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) if neither has room.
    pub fn take(&mut self, bytes: u64, what: &'static str) -> Result<()> {
        let lacking = (self.used + bytes).saturating_sub(self.booked.bytes());
        if lacking > 0 {
            self.booked.reserve_more(lacking, what)?;
        }
        self.used += bytes;
        Ok(())
    }

    /// Gives bytes back that were taken.
    pub fn give(&mut self, bytes: u64) {
        self.used -= bytes;
        let kept = self.used.max(self.least);
        self.booked.give_some_back(self.booked.bytes() - kept);
    }

    /// Gives all back.
    pub fn give_back(&mut self) {
        self.booked.give_back();
        (self.used, self.least) = (0, 0);
    }
}

impl ColdTier {
    /// Bytes that a look-up may need to be free which makes a tombstone.
    pub fn burial_bytes(&self) -> u64 {
        let longest =
            if self.record_type.is_plain() { self.grave_bytes } else { PAYLOAD_MAX as u64 };
        let lists = if self.buried.capacity() == 0 { self.grave_lists_bytes() } else { 0 };
        self.read_bytes() + longest + lists
    }

    /// Buries a key, if levels have a copy of it that is not, or one that is being written will. Says what was known
    /// before, and reads the copy. The key's entry in the index is about to go if it `has_entry`.
    ///
    /// # Errors
    /// As for [`find`](ColdTier::find); also if there is no memory for a tombstone. Nothing has changed then.
    pub fn bury(&mut self, hash: u64, has_entry: bool, is_it: IsIt<'_>) -> Result<ColdPresence> {
        let buried = self.bury_newest(hash, has_entry, is_it);
        self.levels.was_looked_up(hash);
        buried
    }

    fn bury_newest(&mut self, hash: u64, has_entry: bool, is_it: IsIt<'_>) -> Result<ColdPresence> {
        for grave in of_hash(&self.buried, hash) {
            if is_it(&grave.payload)? {
                return Ok(ColdPresence::Buried);
            }
        }
        let mut no_room = self.book_graves()?;
        // What is written now is newer than the tombstones that are written with it. Of a key that has no entry it may
        // have what was deleted before it was written.
        let mut written = None;
        let moving = self.moving.iter().filter(|_| has_entry);
        for payload in moving.flat_map(|moving| moving.written(hash)) {
            if is_it(payload)? {
                no_room.take().map_or(Ok(()), Err)?;
                written = Some(Grave::dug(hash, payload, &mut self.grave_memory)?);
                break;
            }
        }
        if let Some(grave) = written {
            self.put_grave(grave);
            return Ok(ColdPresence::There);
        }
        for grave in of_hash(&self.going, hash) {
            if is_it(&grave.payload)? {
                return Ok(ColdPresence::Buried);
            }
        }
        let (mut known, mut dug) = (ColdPresence::Absent, None);
        self.find_in_levels(hash, &mut |record, grave_memory| {
            let found = is_it(record.payload)?;
            if found {
                known = known_by(&record);
                if known == ColdPresence::There {
                    no_room.take().map_or(Ok(()), Err)?;
                    dug = Some(Grave::dug(hash, record.payload, grave_memory)?);
                }
            }
            Ok(found)
        })?;
        dug.into_iter().for_each(|grave| self.put_grave(grave));
        Ok(known)
    }

    fn put_grave(&mut self, grave: Grave) {
        let at = self.buried.partition_point(|other| other.hash < grave.hash);
        self.buried.insert(at, grave);
    }

    /// Bytes of the lists of tombstones.
    fn grave_lists_bytes(&self) -> u64 {
        2 * (self.buried_max * size_of::<Grave>()) as u64
    }

    /// Bytes of lists that are full, of so many tombstones.
    fn full_lists_bytes(&self, graves: usize) -> u64 {
        (graves * 2 * size_of::<Grave>()) as u64 + graves as u64 * self.grave_bytes
    }

    /// Makes the lists as long as the memory of this state allows, while they are empty. What they take stays booked.
    pub(super) fn fit_graves(&mut self) {
        let (has, most) = (self.buried_max, self.wanted.graves_max());
        let is_empty = self.buried.is_empty() && self.going.is_empty();
        // Each change makes them anew.
        if !is_empty || most < 2 * has && has < 4 * most {
            return;
        }
        if self.grave_memory.bytes() == 0 {
            self.buried_max = most;
            return;
        }
        let (before, after) = (self.grave_memory.bytes(), self.full_lists_bytes(most));
        if after.saturating_sub(before) <= self.account.available() {
            (self.buried, self.going) = (Vec::new(), Vec::new());
            self.grave_memory.give_back();
            self.buried_max = most;
            self.grave_memory.keep(after);
        }
    }

    /// Bytes that are not booked yet of those that lists full of tombstones take, as a rule. They are booked before the
    /// first record moves: so keys can be deleted where no memory is left for new ones.
    pub(super) fn graves_lacking(&self) -> u64 {
        self.full_lists_bytes(self.buried_max).saturating_sub(self.grave_memory.bytes())
    }

    /// Makes the lists of tombstones, once. Gives the error for one more, if they are full.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] without memory for the lists.
    fn book_graves(&mut self) -> Result<Option<Error>> {
        if self.buried.capacity() == 0 {
            self.grave_memory.take(self.grave_lists_bytes(), "the lists of tombstones")?;
            self.buried.reserve_exact(self.buried_max);
            self.going.reserve_exact(self.buried_max);
        }
        let full = || Error::new(ErrorKind::OverBudget, "the list of tombstones is full");
        Ok(self.is_full_of_burials().then(full))
    }

    /// Whether tombstones are to move before more keys are buried.
    pub fn is_full_of_burials(&self) -> bool {
        self.buried.len() + self.going.len() >= self.buried_max
    }

    /// Whether tombstones are many enough to move.
    pub(super) fn wants_to_bury(&self) -> bool {
        2 * (self.buried.len() + self.going.len()) >= self.buried_max
    }

    /// The tombstones of a level are in it.
    pub(super) fn forget_graves(&mut self) {
        let bytes: u64 = self.going.iter().map(Grave::bytes).sum();
        self.going.clear();
        self.grave_memory.give(bytes);
    }

    /// No level has a copy of what was buried.
    pub(super) fn forget_buried(&mut self) {
        let bytes: u64 = self.buried.iter().map(Grave::bytes).sum();
        self.buried.clear();
        self.grave_memory.give(bytes);
    }

    /// A level was not written: its tombstones are to go to the next.
    pub(super) fn take_graves_back(&mut self) {
        self.buried.append(&mut self.going);
        sort(&mut self.buried);
    }
}
