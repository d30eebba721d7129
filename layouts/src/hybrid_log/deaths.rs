//! Which stored records have died between two checkpoints: two lists, one on each side of the last
//! barrier, in memory that is booked before it is used.
//!
//! What it keeps true: of all parts, of both lists and of none, two are the log's from when it was opened, and
//! the others are booked.

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

/// Deaths in parts of so many, so that no call moves those that are there.
pub type DeathList = Vec<Vec<Death>>;

impl Deaths {
    pub fn new(account: Rc<Account>, part: usize, floor_bytes: u64) -> Self {
        let list = || vec![Vec::with_capacity(part)];
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
            self.booked += usize::from(is_free);
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
        self.share_spare();
    }

    /// A list without a part gets one that the other has no use for.
    fn share_spare(&mut self) {
        for list in [&mut self.now, &mut self.before] {
            if list.is_empty() {
                list.extend(self.spare.pop());
            }
        }
    }

    /// What the helper had of the deaths before the barrier is back.
    pub fn give_back(&mut self, mut parts: DeathList) {
        parts.append(&mut self.before);
        self.before = parts;
    }

    /// The deaths before the barrier are of the next checkpoint as well, but for those that are `lost` as there is no room.
    /// Cost: the parts, if they are long, whose places change; else what is in them. No list may have one of its
    /// own after it until there is a spare one, or room.
    pub fn carry_over(&mut self, mut lost: impl FnMut(Death)) {
        let mut parts = std::mem::take(&mut self.before);
        if self.part >= PART_MIN {
            let (some, none): (DeathList, _) = parts.into_iter().partition(|p| !p.is_empty());
            self.now.splice(0..0, some);
            self.spare.extend(none);
        } else {
            if self.now.is_empty() {
                self.now.extend(parts.pop());
            }
            for mut part in parts {
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
        clear(&mut self.now, &mut self.spare);
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
        deaths.carry_over(|death| panic!("{death:?} has no room"));
        let (mut found, mut at, mut calls) = (Vec::new(), 0, 0);
        while at < deaths.end() {
            let (some, next) = deaths.some(at, deaths.end().min(at + 1000));
            assert!(next > at && some.len() <= 1000, "{at} of {}", deaths.end());
            found.extend(some.iter().map(|death| death.grain() as usize));
            (at, calls) = (next, calls + 1);
        }
        found.sort_unstable();
        assert!(found.iter().copied().eq(0..2 * PART_MIN), "{}", found.len());
        assert!(calls < 20, "{calls}");
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
                lent.take().into_iter().for_each(|parts| deaths.give_back(parts));
                match round % 5 {
                    0 => {
                        let told: usize = deaths.before.iter().map(Vec::len).sum();
                        deaths.clear_before();
                        expected -= told;
                    }
                    1 => lent = Some(std::mem::take(&mut deaths.before)),
                    _ => deaths.carry_over(|_| expected -= 1),
                }
                while round % 4 == 3 && deaths.give_spare_up() > 0 {}
                let lists = [&deaths.now, &deaths.before, &deaths.spare].into_iter().chain(&lent);
                let (mut parts, mut all) = (0, 0);
                for list in lists {
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
