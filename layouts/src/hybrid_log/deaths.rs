//! Which stored records have died between two checkpoints: two lists, one on each side of the last
//! barrier, in memory that is booked before it is used.

use std::rc::Rc;

use alluvium_pagestore::{Account, Death, MemoryKind};

/// Records that have died since the last checkpoint. What there is no room for is not noted: the
/// segment's numbers do not add up then, and the next checkpoint looks at it in full.
#[derive(Debug)]
pub struct Deaths {
    /// Since the last barrier.
    pub now: DeathList,
    /// Before it, of the checkpoint being taken or not decided yet.
    pub before: DeathList,
    pub account: Rc<Account>,
    /// Deaths in a part of a list.
    pub part: usize,
    /// What further parts must leave free.
    pub floor_bytes: u64,
    /// Whether there was a barrier: without checkpoints nobody asks.
    pub is_asked: bool,
}

/// Parts of a list at most: an eighth of the memory.
const PARTS_MAX: usize = 32;
/// Shorter parts have no others after them: what a restore reads of lists has to fit beside the
/// index, and in little memory every part counts.
const PART_MIN: usize = 8192;

/// Deaths in parts of so many, so that no call moves those that are there. The memory of the first
/// part of each list is always there; the others are booked while they are.
pub type DeathList = Vec<Vec<Death>>;

impl Deaths {
    pub fn new(account: Rc<Account>, part: usize, floor_bytes: u64) -> Self {
        let list = || vec![Vec::with_capacity(part)];
        Self { now: list(), before: list(), account, part, floor_bytes, is_asked: false }
    }

    /// Bytes of a part beyond the first.
    pub fn part_bytes(&self) -> u64 {
        (self.part * size_of::<Death>() + 64) as u64
    }

    /// Notes a death in a list, if there is room; says whether.
    #[inline]
    pub fn note(&mut self, before: bool, death: Death) -> bool {
        let list = if before { &mut self.before } else { &mut self.now };
        match list.last_mut() {
            Some(part) if part.len() < self.part => part.push(death),
            _ => return self.note_in_new(before, death),
        }
        true
    }

    #[cold]
    fn note_in_new(&mut self, before: bool, death: Death) -> bool {
        let bytes = self.part_bytes();
        let parts = if before { self.before.len() } else { self.now.len() };
        let has_room = self.is_asked
            && self.part >= PART_MIN
            && parts < PARTS_MAX
            && self.account.available() >= bytes + self.floor_bytes
            && self.account.try_reserve(MemoryKind::Tables, bytes);
        if has_room {
            let mut part = Vec::with_capacity(self.part);
            part.push(death);
            if before { self.before.push(part) } else { self.now.push(part) }
        }
        has_room
    }

    /// Empties the list of what was before the barrier.
    pub fn clear_before(&mut self) {
        let more = self.before.len().saturating_sub(1) as u64;
        self.account.release(MemoryKind::Tables, more * self.part_bytes());
        self.before.truncate(1);
        match self.before.first_mut() {
            Some(first) => first.clear(),
            None => self.before.push(Vec::with_capacity(self.part)),
        }
    }
}
