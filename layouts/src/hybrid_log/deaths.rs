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
    /// Parts that no list has, booked, for those that need one next: to give the memory of a long list back
    /// takes milliseconds.
    spare: DeathList,
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
        Self {
            now: list(),
            before: list(),
            spare: Vec::new(),
            account,
            part,
            floor_bytes,
            is_asked: false,
        }
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
        if !self.is_asked || self.part < PART_MIN || parts >= PARTS_MAX {
            return false;
        }
        let room = self.spare.pop().or_else(|| {
            let is_free = self.account.available() >= bytes + self.floor_bytes
                && self.account.try_reserve(MemoryKind::Tables, bytes);
            is_free.then(|| Vec::with_capacity(self.part))
        });
        let Some(mut part) = room else { return false };
        part.push(death);
        if before {
            self.before.push(part)
        } else {
            self.now.push(part)
        }
        true
    }

    /// Empties the list of what was before the barrier. Cost: its parts, whatever is in them.
    pub fn clear_before(&mut self) {
        clear(&mut self.before, &mut self.spare);
        if self.before.is_empty() {
            self.before.push(Vec::with_capacity(self.part));
        }
    }

    /// Empties the list of what was since.
    pub fn clear_now(&mut self) {
        clear(&mut self.now, &mut self.spare);
    }

    /// Gives the memory of a part back that no list has, and says how much that is.
    pub fn give_spare_up(&mut self) -> u64 {
        let Some(part) = self.spare.pop() else { return 0 };
        drop(part);
        self.account.release(MemoryKind::Tables, self.part_bytes());
        self.part_bytes()
    }

    /// Before which place the last of those since the barrier is. Places of a part that is not full are
    /// nobody's.
    pub fn end(&self) -> usize {
        let others = self.now.len().saturating_sub(1) * self.part;
        others + self.now.last().map_or(0, Vec::len)
    }

    /// Those since the barrier at a place and behind it, up to another place and of one part; and the place
    /// to go on at.
    pub fn some(&self, from: usize, to: usize) -> (&[Death], usize) {
        let (number, at) = (from / self.part, from % self.part);
        let part = self.now.get(number).map_or(&[][..], Vec::as_slice);
        let end = (at + to.saturating_sub(from)).min(part.len());
        let deaths = &part[at.min(end)..end];
        let goes_on = number + 1 < self.now.len();
        (
            deaths,
            if goes_on && end == part.len() {
                (number + 1) * self.part
            } else {
                from + deaths.len()
            },
        )
    }
}

/// Empties a list but for its first part, whose memory it keeps.
fn clear(list: &mut DeathList, spare: &mut DeathList) {
    list.iter_mut().for_each(Vec::clear);
    spare.extend(list.drain(1.min(list.len())..));
}

#[cfg(test)]
mod tests {
    use super::*;
    use alluvium_pagestore::{MIB, SegmentId};

    fn death(grain: usize) -> Death {
        Death::of(SegmentId(1), grain as u32)
    }

    #[test]
    fn all_are_found_whatever_parts_are_full() {
        let mut deaths = Deaths::new(Account::root(64 * MIB), PART_MIN, 0);
        deaths.is_asked = true;
        // As a checkpoint leaves them that was given up.
        for grain in 0..PART_MIN + 7 {
            assert!(deaths.note(true, death(grain)));
        }
        for grain in PART_MIN + 7..2 * PART_MIN {
            assert!(deaths.note(false, death(grain)));
        }
        let further = deaths.before.split_off(1);
        deaths.now.splice(0..0, further);
        let (mut found, mut at, mut calls) = (Vec::new(), 0, 0);
        while at < deaths.end() {
            let (some, next) = deaths.some(at, deaths.end().min(at + 1000));
            assert!(next > at && some.len() <= 1000, "{at} of {}", deaths.end());
            found.extend(some.iter().map(|death| death.grain() as usize));
            (at, calls) = (next, calls + 1);
        }
        found.sort_unstable();
        assert!(found.iter().copied().eq(PART_MIN..2 * PART_MIN), "{}", found.len());
        assert!(calls < 20, "{calls}");
    }

    #[test]
    fn parts_serve_again_and_are_booked_until_they_are_given_up() {
        let account = Account::root(64 * MIB);
        let mut deaths = Deaths::new(account.clone(), PART_MIN, 0);
        deaths.is_asked = true;
        for round in 0..3 {
            (0..3 * PART_MIN).for_each(|grain| assert!(deaths.note(true, death(grain))));
            assert_eq!(account.used(), 2 * deaths.part_bytes(), "round {round}");
            deaths.clear_before();
            assert_eq!((deaths.before.len(), deaths.before[0].len()), (1, 0));
            assert_eq!(account.used(), 2 * deaths.part_bytes(), "round {round}");
        }
        for left in [1, 0] {
            assert_eq!(deaths.give_spare_up(), deaths.part_bytes());
            assert_eq!(account.used(), left * deaths.part_bytes());
        }
        assert_eq!(deaths.give_spare_up(), 0);
    }
}
