//! Which stored records have died between two checkpoints: two lists, one on each side of the last
//! barrier, in memory that is booked before it is used.
//!
//! What it keeps true: of all parts, of both lists and of none, two are the log's from when it was opened, and
//! the others are booked.

use std::rc::Rc;

use alluvium_pagestore::{Account, Death, MemoryKind};

use crate::checkpoint::DeadList;

/// Records that have died since the last checkpoint. What there is no room for is not noted: the
/// segment's numbers do not add up then, and the next checkpoint looks at it in full.
#[derive(Debug)]
pub struct Deaths {
    /// Since the last barrier.
    pub now: DeadList<Death>,
    /// Before it, of the checkpoint being taken or not decided yet.
    pub before: DeadList<Death>,
    /// Parts that no list has, booked, for those that need one next: to give the memory of a long list back
    /// takes milliseconds.
    spare: Vec<Vec<Death>>,
    /// How many parts are booked.
    booked: usize,
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

impl Deaths {
    pub fn new(account: Rc<Account>, part: usize, floor_bytes: u64) -> Self {
        let list = || {
            let mut list = DeadList::default();
            list.add(Vec::with_capacity(part));
            list
        };
        Self {
            now: list(),
            before: list(),
            spare: Vec::new(),
            booked: 0,
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
        list.push(death) || self.note_in_new(before, death)
    }

    /// Whether so many that die now, a part's at most, can be noted.
    pub fn has_room(&self, deaths: usize) -> bool {
        let may_begin = self.is_asked && self.part >= PART_MIN && self.now.parts() < PARTS_MAX;
        let is_free = || self.account.available() >= self.part_bytes() + self.floor_bytes;
        deaths <= self.now.room() || may_begin && (!self.spare.is_empty() || is_free())
    }

    #[cold]
    fn note_in_new(&mut self, before: bool, death: Death) -> bool {
        let bytes = self.part_bytes();
        let list = if before { &self.before } else { &self.now };
        if !self.is_asked || self.part < PART_MIN || list.parts() >= PARTS_MAX {
            return false;
        }
        let room = self.spare.pop().or_else(|| {
            let is_free = self.account.available() >= bytes + self.floor_bytes
                && self.account.try_reserve(MemoryKind::Tables, bytes);
            self.booked += usize::from(is_free);
            is_free.then(|| Vec::with_capacity(self.part))
        });
        let Some(mut part) = room else { return false };
        part.push(death);
        let list = if before { &mut self.before } else { &mut self.now };
        list.add(part);
        true
    }

    /// Empties the list of what was before the barrier. Cost: its parts, whatever is in them.
    pub fn clear_before(&mut self) {
        self.spare.extend(self.before.clear());
        self.share_spare();
    }

    /// A list without a part gets one that the other has no use for.
    fn share_spare(&mut self) {
        for list in [&mut self.now, &mut self.before] {
            if list.parts() == 0 {
                self.spare.pop().into_iter().for_each(|part| list.add(part));
            }
        }
    }

    /// The deaths before the barrier are of the next checkpoint as well, but for those that are `lost` as there is no room.
    /// Cost: the parts, if they are long, whose places change; else what is in them. No list may have one of its
    /// own after it until there is a spare one, or room.
    pub fn carry_over(&mut self, mut lost: impl FnMut(Death)) {
        if self.part >= PART_MIN {
            let parts = self.before.take_parts().into_iter();
            let (some, none): (Vec<_>, Vec<_>) = parts.partition(|part| !part.is_empty());
            self.now.give_back(some);
            self.spare.extend(none);
        } else {
            if self.now.parts() == 0 {
                self.before.pop_part().into_iter().for_each(|part| self.now.add(part));
            }
            for mut part in self.before.take_parts() {
                for death in part.drain(..) {
                    if !self.note(false, death) {
                        lost(death);
                    }
                }
                self.spare.push(part);
            }
        }
        self.share_spare();
    }

    /// Empties the list of what was since.
    pub fn clear_now(&mut self) {
        self.spare.extend(self.now.clear());
    }

    /// Gives the memory of a part back that no list has, and says how much that is.
    pub fn give_spare_up(&mut self) -> u64 {
        if self.booked == 0 || self.spare.pop().is_none() {
            return 0;
        }
        self.booked -= 1;
        self.account.release(MemoryKind::Tables, self.part_bytes());
        self.part_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::DeadListPosition;
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
        deaths.carry_over(|death| panic!("{death:?} has no room"));
        let (mut found, mut at, mut calls) = (Vec::new(), DeadListPosition::default(), 0);
        while at != deaths.now.end() {
            let (some, next) = deaths.now.some(at, deaths.now.end(), 1000);
            assert!(next != at && some.len() <= 1000, "{at:?} of {:?}", deaths.now.end());
            found.extend(some.iter().map(|death| death.grain() as usize));
            (at, calls) = (next, calls + 1);
        }
        found.sort_unstable();
        assert!(found.iter().copied().eq(0..2 * PART_MIN), "{}", found.len());
        assert!(calls < 25, "{calls}");
    }

    /// However often checkpoints are given up, confirmed, or their list comes late: no death is lost where parts are
    /// long, and all parts but two are booked.
    #[test]
    fn what_is_carried_over_is_all_there_and_no_part_is_booked_twice() {
        for part in [40, PART_MIN] {
            let account = Account::root(64 * MIB);
            let mut deaths = Deaths::new(account.clone(), part, 0);
            deaths.is_asked = true;
            let (mut expected, mut grain, mut lent) = (0, 0, None);
            for round in 0..60usize {
                for _ in 0..[part / 2, 0, 2 * part + 3, 5][round % 4] {
                    grain += 1;
                    expected += usize::from(deaths.note(false, death(grain)));
                }
                // A barrier; the last list comes back before it, or after it, or after the end.
                std::mem::swap(&mut deaths.now, &mut deaths.before);
                for _ in 0..round % 3 * 7 {
                    grain += 1;
                    expected += usize::from(deaths.note(false, death(grain)));
                }
                lent.take().into_iter().for_each(|parts| deaths.before.give_back(parts));
                match round % 5 {
                    0 => {
                        expected -= deaths.before.len() as usize;
                        deaths.clear_before();
                    }
                    1 => lent = Some(deaths.before.take_parts()),
                    _ => deaths.carry_over(|_| expected -= 1),
                }
                while round % 4 == 3 && deaths.give_spare_up() > 0 {}
                let (mut parts, mut all) = (0, 0);
                for list in [&deaths.now, &deaths.before] {
                    (parts, all) = (parts + list.parts(), all + list.len() as usize);
                }
                for list in [&deaths.spare].into_iter().chain(&lent) {
                    parts += list.len();
                    all += list.iter().map(Vec::len).sum::<usize>();
                }
                assert_eq!(all, expected, "round {round} of parts of {part}");
                assert_eq!(parts, 2 + deaths.booked, "round {round} of parts of {part}");
                assert_eq!(account.used(), deaths.booked as u64 * deaths.part_bytes());
            }
            assert!(expected > 0 || part < PART_MIN);
        }
    }

    #[test]
    fn there_is_room_exactly_while_deaths_can_be_noted() {
        let account = Account::root(4 * PART_MIN as u64 * 8);
        let mut deaths = Deaths::new(account.clone(), PART_MIN, 1000);
        deaths.is_asked = true;
        let mut noted = 0;
        while deaths.has_room(1) {
            assert!(deaths.note(false, death(noted)));
            noted += 1;
        }
        assert!(!deaths.note(false, death(noted)) && noted >= 3 * PART_MIN, "{noted}");
        // Of a short part there is one.
        let mut deaths = Deaths::new(account, 100, 0);
        deaths.is_asked = true;
        assert!(deaths.has_room(100) && !deaths.has_room(101));
        assert!(deaths.note(false, death(0)) && !deaths.has_room(100) && deaths.has_room(99));
    }

    #[test]
    fn parts_serve_again_and_are_booked_until_they_are_given_up() {
        let account = Account::root(64 * MIB);
        let mut deaths = Deaths::new(account.clone(), PART_MIN, 0);
        deaths.is_asked = true;
        for round in 0..3 {
            assert!(deaths.has_room(PART_MIN));
            (0..3 * PART_MIN).for_each(|grain| assert!(deaths.note(true, death(grain))));
            assert_eq!(account.used(), 2 * deaths.part_bytes(), "round {round}");
            deaths.clear_before();
            assert_eq!((deaths.before.parts(), deaths.before.len()), (1, 0));
            assert_eq!(account.used(), 2 * deaths.part_bytes(), "round {round}");
        }
        for left in [1, 0] {
            assert_eq!(deaths.give_spare_up(), deaths.part_bytes());
            assert_eq!(account.used(), left * deaths.part_bytes());
        }
        assert_eq!(deaths.give_spare_up(), 0);
    }
}
