//! The segments of a heap table's checkpoints, and which of their records are not live any more.
//!
//! A checkpoint writes the entries that have changed into segments of its own, and names those of
//! earlier ones again with a list of the records that have died since. Which records are live is told
//! as the hybrid log tells it, so that who reads checkpoints need not know which of the two it was.
//!
//! What it keeps true:
//! - A segment that is named has live records, and its count of them is exact.
//! - Dead records are not more than live ones, and segments not more than a few dozen small ones beside
//!   those of full size: what is mostly dead, or small, is written [anew](CheckpointPlan::anew).
//! - Lists of the dead do not add up: now and then sets of what is live take their place.
//! - Nothing of a checkpoint counts before it is confirmed.

use std::rc::Rc;

use alluvium_pagestore::{
    Account, BlobRef, ImagePart, MemoryKind, RECORDS, SegmentImage, SegmentInfo, StateImage,
    sort_rarely,
};

use super::counts::SegmentCounts;
use super::dead::{DeadList, DeadListPosition, DeadPlaces};
use super::live_sets::LiveSets;
use crate::heap::record_position::RecordPosition;
use crate::support::booked::Booked;

/// Records on storage for each that is live, at most: above, segments are written anew.
const SPACE_AMPLIFICATION_MAX: u64 = 2;
/// Of so many tenths of all entries all of them are written, and the segments of before can go.
const FULL_TENTHS: u64 = 7;
/// Segments beside those of full size: so many, and one more for each so many entries.
const SMALL_MIN: u64 = 4;
const ENTRIES_PER_SMALL: u64 = 256;
const SMALL_MAX: u64 = 36;
/// Lists of records that have died, and the least that they have in all, before sets take their place.
const LISTS_MAX: usize = 32;
const LISTED_MIN: u64 = 256;
/// Slots that are booked at a time.
const SLOTS: usize = 16;
/// The dead that are added to sets at a time.
pub(crate) const ADDED: usize = 4096;

/// A segment, by the number that [places](RecordPosition) name it with.
#[derive(Debug)]
enum SegmentSlot {
    Free,
    /// Of the checkpoint that was confirmed.
    Stored(ConfirmedSegment),
    /// Being written, and how many of its records are dead already.
    New(u64),
    /// It was of a checkpoint that was given up. Entries that were written there are to be written anew.
    Gone,
}

/// A segment of the checkpoint that was confirmed.
#[derive(Debug)]
struct ConfirmedSegment {
    image: SegmentImage,
    counts: SegmentCounts,
    /// What is live there is written anew, by each checkpoint until one is confirmed. Which of its records are dead is not
    /// noted any more.
    goes: bool,
}

/// The segments that checkpoints name.
#[derive(Debug)]
pub(crate) struct HeapFiles {
    account: Rc<Account>,
    slots: Vec<SegmentSlot>,
    /// For slots.
    booked: Booked,
    lists: Vec<BlobRef>,
    /// Since the last barrier.
    dead: DeadPlaces,
    /// How many barriers there were.
    epoch: u32,
    /// Whether one was not noted, or has no slot: the next checkpoint is full.
    is_broken: bool,
    /// Entries that checkpoints have written which were given up, at most. They are to be written again, and count as
    /// changed only if they have changed since.
    again: u64,
}

/// What a checkpoint is going to do with segments of before.
#[derive(Debug, Default)]
pub(crate) struct CheckpointPlan {
    /// By slot: whether what is live there is written anew.
    pub anew: Vec<bool>,
    /// Records to be written at most.
    pub records: u64,
    /// Records of before that have newer ones then, at most.
    pub outdated: u64,
    /// Whether sets of what is live take the place of lists.
    pub makes_sets: bool,
    /// Whether all is written anew. Then no deaths are noted.
    pub is_full: bool,
}

/// What a checkpoint names, until it is decided.
#[derive(Debug)]
pub(crate) struct NamedSegments {
    entries: u64,
    pub part: ImagePart,
    /// Of each segment, if it has one.
    pub slots: Vec<Option<usize>>,
}

impl NamedSegments {
    /// All of the state is in the part.
    pub fn image(&self) -> StateImage {
        StateImage::of(self.entries, self.part.clone())
    }
}

impl HeapFiles {
    pub fn new(account: Rc<Account>) -> Self {
        let dead = DeadPlaces::new(account.clone());
        let booked = Booked::none(account.clone(), MemoryKind::Tables);
        let (slots, lists, is_broken) = (Vec::new(), Vec::new(), false);
        Self { account, slots, booked, lists, dead, epoch: 0, is_broken, again: 0 }
    }

    /// Forgets all: the next checkpoint is full.
    pub fn clear(&mut self) {
        *self = Self::new(self.account.clone());
    }

    /// Whether something could not be noted.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Something is not noted: the next checkpoint is full.
    pub fn break_off(&mut self) {
        self.is_broken = true;
        self.dead = DeadPlaces::new(self.account.clone());
    }

    /// The table is restored from this: its `nth` segment has slot `nth`. Says whether there is room.
    pub fn restored(&mut self, image: &StateImage) -> bool {
        for (nth, segment) in image.segments().enumerate() {
            if self.new_slot().is_none() {
                self.clear();
                return false;
            }
            let counts = SegmentCounts::restored(segment.records, segment.live_records);
            let (image, goes) = (segment.clone(), false);
            self.slots[nth] = SegmentSlot::Stored(ConfirmedSegment { image, counts, goes });
        }
        self.lists = image.deaths().copied().collect();
        true
    }

    /// A slot for a segment that is being written.
    pub fn new_slot(&mut self) -> Option<u32> {
        let slot = match self.slots.iter().position(|slot| matches!(slot, SegmentSlot::Free)) {
            Some(free) => free,
            None => {
                self.add_slots()?;
                self.slots.push(SegmentSlot::Free);
                self.slots.len() - 1
            }
        };
        self.slots[slot] = SegmentSlot::New(0);
        Some(slot as u32)
    }

    /// Sees to it that there is room for another slot.
    fn add_slots(&mut self) -> Option<()> {
        if self.slots.len() == self.slots.capacity() {
            let bytes = (SLOTS * size_of::<SegmentSlot>()) as u64;
            let fits = self.slots.len() < RecordPosition::SLOTS_MAX;
            if !fits || !self.booked.try_reserve_more(bytes) {
                self.is_broken = true;
                return None;
            }
            self.slots.reserve_exact(SLOTS);
        }
        Some(())
    }

    /// The record at a place is not live any more: its entry was removed, or has a newer one. If the next checkpoint writes
    /// all, nobody has to know.
    pub fn note_dead(&mut self, place: RecordPosition) {
        if self.is_broken {
            return;
        }
        match self.slots.get_mut(place.slot()) {
            _ if place == RecordPosition::NONE => return,
            Some(SegmentSlot::Stored(ConfirmedSegment { counts, goes, .. })) => {
                counts.since(self.epoch).die();
                if *goes {
                    return;
                }
            }
            Some(SegmentSlot::New(died)) => *died += 1,
            Some(SegmentSlot::Gone | SegmentSlot::Free) | None => return,
        }
        self.is_broken |= !self.dead.push(place);
    }

    /// What a checkpoint of so many entries, of which so many have changed, should do. Cost: in the number of segments.
    pub fn plan(&self, entries: u64, changed: u64, segment_bytes: u64) -> CheckpointPlan {
        let goes = |slot: &SegmentSlot| {
            matches!(
                slot,
                SegmentSlot::Gone | SegmentSlot::Stored(ConfirmedSegment { goes: true, .. })
            )
        };
        let mut anew: Vec<bool> = self.slots.iter().map(goes).collect();
        // Those with the smallest share of live records first.
        let stored = self.stored();
        let mut by_share: Vec<_> = stored.clone().collect();
        sort_rarely(&mut by_share, |(slot, image, live)| {
            ((live << 20) / image.records.max(1), *slot)
        });
        // What was written by a checkpoint that was given up is written again, changed or not.
        let live = stored.clone().map(|(.., live)| live).sum::<u64>();
        let without = entries.saturating_sub(live);
        let (mut records, mut written) = (changed, changed.max(without));
        // Of these some may have changed since, or be counted twice: that decides nothing.
        let more = (changed + self.again.min(without)).saturating_sub(written);
        records += stored.clone().map(|(_, image, _)| image.records).sum::<u64>();
        for (slot, image, live) in by_share {
            if anew[slot] {
                written += live;
                records = records + live - image.records;
                continue;
            }
            if records <= SPACE_AMPLIFICATION_MAX * entries {
                break;
            }
            anew[slot] = true;
            written += live;
            records = records + live - image.records;
        }
        // Then the smallest, a quarter of those that may be there, so that this is not each time.
        let mut left: Vec<_> = stored.filter(|(slot, ..)| !anew[*slot]).collect();
        let bytes: u64 = left.iter().map(|(_, image, _)| image.bytes).sum();
        let small_max = (SMALL_MIN + entries / ENTRIES_PER_SMALL).min(SMALL_MAX);
        let count_max = (2 * bytes / segment_bytes + small_max) as usize;
        if left.len() >= count_max {
            sort_rarely(&mut left, |(slot, _, live)| (*live, *slot));
            let spare = left.len() - count_max + 1 + small_max as usize / 4;
            for (slot, _, live) in &left[..spare.min(left.len())] {
                anew[*slot] = true;
                written += live;
            }
        }
        if written * 10 >= entries * FULL_TENTHS {
            return self.plan_all(entries);
        }
        let listed: u64 = self.lists.iter().map(|list| list.len / 4).sum();
        let all_dead = listed + self.dead.list().len() + written;
        let makes_sets = self.lists.len() >= LISTS_MAX || all_dead > (entries / 2).max(LISTED_MIN);
        let records = (written + more).min(entries);
        CheckpointPlan { anew, records, outdated: written, makes_sets, is_full: false }
    }

    /// Writing all of so many entries, after which no segment of before is needed.
    pub fn plan_all(&self, entries: u64) -> CheckpointPlan {
        let anew = self
            .slots
            .iter()
            .map(|slot| matches!(slot, SegmentSlot::Gone | SegmentSlot::Stored(_)));
        let anew = anew.collect();
        CheckpointPlan { anew, records: entries, outdated: 0, makes_sets: false, is_full: true }
    }

    /// Slots of the confirmed checkpoint, with the records that are live there.
    fn stored(&self) -> impl Iterator<Item = (usize, &SegmentImage, u64)> + Clone {
        self.slots.iter().enumerate().filter_map(|(slot, of)| match of {
            SegmentSlot::Stored(ConfirmedSegment { image, counts, .. }) => {
                Some((slot, image, counts.now().live.into()))
            }
            _ => None,
        })
    }

    /// Empty sets of what is live in each segment that is not written anew.
    pub fn empty_sets(&self, plan: &CheckpointPlan) -> LiveSets {
        let left = || self.stored().filter(|(slot, ..)| !plan.anew[*slot]);
        let mut sets = LiveSets::none(self.slots.len() as u32, left().count(), 0);
        left().for_each(|(slot, image, _)| sets.add(slot as u32, image.id, image.bytes));
        sets
    }

    /// Memory that those take.
    pub fn sets_bytes(&self, plan: &CheckpointPlan) -> u64 {
        let stored = self.stored().filter(|(slot, ..)| !plan.anew[*slot]);
        let sets: u64 = stored.map(|(_, image, _)| LiveSets::bytes_of(image.bytes)).sum();
        sets + LiveSets::places_bytes(self.slots.len() as u32)
    }

    /// Memory that reading the lists of what has died takes, of a checkpoint that does as planned; see
    /// [`Liveness`](alluvium_pagestore::Liveness).
    pub fn reading_bytes(&self, plan: &CheckpointPlan) -> u64 {
        if plan.makes_sets || plan.is_full {
            return 0;
        }
        let new = size_of::<u32>() as u64 * (self.dead.list().len() + 4 * self.slots.len() as u64);
        let longest = self.lists.iter().map(|list| list.len).fold(new, u64::max);
        2 * (self.lists.iter().map(|list| list.len).sum::<u64>() + new + longest)
    }

    /// A checkpoint does as planned: what has died before the barrier, and room to note as many more as it may write;
    /// `None` if there is none, and then nothing has changed.
    pub fn follow(&mut self, plan: &CheckpointPlan) -> Option<DeadPlaces> {
        let noted = plan.outdated;
        // What a checkpoint that was given up has left may have room enough.
        let lacking = if (self.dead.list().room() as u64) < noted { noted } else { 0 };
        let room = DeadPlaces::with_room(self.account.clone(), lacking)?;
        let mut places = std::mem::replace(&mut self.dead, DeadPlaces::new(self.account.clone()));
        places.append(room);
        self.epoch += 1;
        for (slot, anew) in self.slots.iter_mut().zip(&plan.anew) {
            if let SegmentSlot::Stored(ConfirmedSegment { goes, .. }) = slot {
                *goes |= *anew;
            }
        }
        Some(places)
    }

    /// A checkpoint has a newer record than that at a place, or keeps it to write it. Says whether there was room to
    /// note it; if not, the next checkpoint is full.
    #[inline]
    pub fn outdate(&mut self, place: RecordPosition, dead: &mut DeadPlaces) -> bool {
        let Some(SegmentSlot::Stored(ConfirmedSegment { counts, goes, .. })) =
            self.slots.get_mut(place.slot())
        else {
            return true;
        };
        if place == RecordPosition::NONE {
            return true;
        }
        counts.died_before(1, 1, self.epoch);
        let is_noted = *goes || dead.push(place);
        self.is_broken |= !is_noted;
        is_noted
    }

    /// Records that have died since the last barrier.
    pub fn dead(&self) -> &DeadList<RecordPosition> {
        self.dead.list()
    }

    /// What a checkpoint names that has written these segments into these slots, or without. Its lists
    /// are those of before.
    ///
    /// # Panics
    /// If it does not have as many live records as entries.
    pub fn name(&self, entries: u64, sealed: &[SegmentInfo], new_slots: &[u32]) -> NamedSegments {
        let mut part = ImagePart::new(RECORDS, Vec::new(), self.lists.clone());
        let mut slots = Vec::new();
        for (slot, stored, live) in self.left() {
            part.segments.push(SegmentImage { live_records: live, ..stored.clone() });
            slots.push(Some(slot));
        }
        if slots.is_empty() {
            // Nothing that they tell of is named.
            part.deaths.clear();
        }
        for (nth, segment) in sealed.iter().enumerate() {
            part.segments.push(segment.all_live());
            slots.push(new_slots.get(nth).map(|slot| *slot as usize));
        }
        assert_eq!(part.live_records(), entries, "every key has one live record");
        NamedSegments { entries, part, slots }
    }

    /// Segments that have live records still, the oldest first: of a list the records come in that order.
    fn left(&self) -> impl Iterator<Item = (usize, &SegmentImage, u64)> {
        let before = self.slots.iter().enumerate().filter_map(|(slot, of)| match of {
            SegmentSlot::Stored(ConfirmedSegment { image, counts, .. }) => {
                Some((slot, image, counts.before(self.epoch).live.into()))
            }
            _ => None,
        });
        let mut left: Vec<_> = before.filter(|(.., live)| *live > 0).collect();
        sort_rarely(&mut left, |(_, image, _)| image.id);
        left.into_iter()
    }

    /// Live records of a checkpoint that has written these segments, if nobody else counts them.
    pub fn count_live(&self, sealed: &[SegmentInfo]) -> u64 {
        let written: u64 = sealed.iter().map(|segment| segment.all_live().records).sum();
        written + self.left().map(|(.., live)| live).sum::<u64>()
    }

    /// Live records of the checkpoint that was confirmed.
    pub fn live_records(&self) -> u64 {
        self.stored().map(|(.., live)| live).sum()
    }

    /// Adds to the sets some of the records that have died since the barrier, from a place of their list on and before
    /// another; says at which to go on.
    pub fn add_dead(
        &self,
        sets: &mut LiveSets,
        from: DeadListPosition,
        to: DeadListPosition,
    ) -> DeadListPosition {
        let (some, next) = self.dead.list().some(from, to, ADDED);
        some.iter().for_each(|place| sets.insert_at(*place));
        next
    }

    /// By slot, the segments that are named and stored.
    pub fn by_slot<'n>(&self, named: &'n NamedSegments) -> Vec<Option<&'n SegmentImage>> {
        let mut by_slot = vec![None; self.slots.len()];
        for (slot, segment) in named.slots.iter().zip(&named.part.segments) {
            if let Some(slot) = slot
                && matches!(self.slots[*slot], SegmentSlot::Stored(_))
            {
                by_slot[*slot] = Some(segment);
            }
        }
        by_slot
    }

    /// The checkpoint was confirmed: the next one goes on from it.
    pub fn confirmed(&mut self, named: NamedSegments) {
        let NamedSegments { part, slots, .. } = named;
        let mut is_named = vec![false; self.slots.len()];
        for (slot, image) in slots.into_iter().zip(part.segments) {
            let slot = slot.expect("nothing is broken");
            let counts = match &self.slots[slot] {
                SegmentSlot::Stored(ConfirmedSegment { counts, .. }) => *counts,
                SegmentSlot::New(died) => SegmentCounts::written(image.records, *died, self.epoch),
                SegmentSlot::Free | SegmentSlot::Gone => unreachable!("{image:?} has slot {slot}"),
            };
            self.slots[slot] = SegmentSlot::Stored(ConfirmedSegment { image, counts, goes: false });
            is_named[slot] = true;
        }
        let others = self.slots.iter_mut().zip(is_named).filter(|(_, is_named)| !is_named);
        others.for_each(|(slot, _)| *slot = SegmentSlot::Free);
        self.lists = part.deaths;
        self.again = 0;
    }

    /// A checkpoint was given up: so many entries that it has written are not there. What has died of that stays in the list of the dead, as
    /// it would take looking at all of them to find it; who writes the list leaves it out. Cost: in the number of
    /// segments and of parts of lists.
    pub fn given_up(&mut self, dead: DeadPlaces, written: u64) {
        self.again += written;
        let new = self.slots.iter_mut().filter(|slot| matches!(slot, SegmentSlot::New(_)));
        new.for_each(|slot| *slot = SegmentSlot::Gone);
        let since = std::mem::replace(&mut self.dead, dead);
        self.dead.append(since);
    }

    /// Parts come back that were lent for a checkpoint that was given up since.
    pub fn give_back(&mut self, parts: Vec<Vec<RecordPosition>>) {
        self.dead.give_back(parts);
    }

    /// Bytes of records that are dead, about.
    pub fn dead_bytes(&self) -> u64 {
        let dead = |(_, image, live): (usize, &SegmentImage, u64)| {
            image.bytes / image.records.max(1) * (image.records - live)
        };
        self.stored().map(dead).sum()
    }
}

#[cfg(test)]
mod tests {
    use alluvium_pagestore::SegmentId;

    use super::*;

    const SEGMENT_BYTES: u64 = 1 << 20;

    /// Of a state of so many entries, which are all in one segment.
    fn files(entries: u64) -> HeapFiles {
        let mut files = HeapFiles::new(Account::root(1 << 20));
        let segment = SegmentImage {
            id: SegmentId(1),
            bytes: 100 * entries,
            records: entries,
            max_record_bytes: 100,
            live_records: entries,
            digest: None,
            latest: None,
            live: None,
        };
        let image = StateImage::of(entries, ImagePart::new(RECORDS, vec![segment], Vec::new()));
        assert!(files.restored(&image));
        files
    }

    #[test]
    fn what_was_written_for_nothing_is_written_beside_what_changes() {
        let mut files = files(1000);
        let plan = files.plan(1000, 30, SEGMENT_BYTES);
        assert_eq!((plan.records, plan.is_full), (30, false));
        let mut dead = files.follow(&plan).unwrap();
        files.new_slot().unwrap();
        (1..=30).for_each(|grain| assert!(files.outdate(RecordPosition::of(0, grain), &mut dead)));
        files.given_up(dead, 30);
        // Others have changed since.
        assert_eq!(files.plan(1000, 20, SEGMENT_BYTES).records, 50);
        // Those that are new have changed, too.
        assert_eq!(files.plan(1020, 20, SEGMENT_BYTES).records, 50);
    }

    #[test]
    fn what_dies_after_a_barrier_is_live_in_its_checkpoint_and_dead_in_the_next_one() {
        let mut files = files(100);
        let mut dead = files.follow(&files.plan(100, 10, SEGMENT_BYTES)).unwrap();
        (1..=10).for_each(|grain| assert!(files.outdate(RecordPosition::of(0, grain), &mut dead)));
        (11..=15).for_each(|grain| files.note_dead(RecordPosition::of(0, grain)));
        assert_eq!((files.count_live(&[]), files.live_records()), (90, 85));
        // What has newer records there stays dead: they are written again.
        files.given_up(dead, 10);
        assert_eq!((files.live_records(), files.dead().len()), (85, 15));
        files.follow(&files.plan(95, 0, SEGMENT_BYTES)).unwrap();
        files.note_dead(RecordPosition::of(0, 16));
        assert_eq!((files.count_live(&[]), files.live_records()), (85, 84));
    }

    #[test]
    fn what_died_while_its_segment_was_written_is_dead_in_the_next_checkpoint() {
        let mut files = files(100);
        let mut dead = files.follow(&files.plan(100, 10, SEGMENT_BYTES)).unwrap();
        (1..=10).for_each(|grain| assert!(files.outdate(RecordPosition::of(0, grain), &mut dead)));
        let new = files.new_slot().unwrap();
        (1..=3).for_each(|grain| files.note_dead(RecordPosition::of(new, grain)));
        let mut segments: Vec<_> = files.stored().map(|(_, image, _)| image.clone()).collect();
        segments.push(SegmentImage { id: SegmentId(2), ..segments[0].clone() });
        (segments[0].live_records, segments[1].records, segments[1].live_records) = (90, 10, 10);
        let part = ImagePart::new(RECORDS, segments, Vec::new());
        files.confirmed(NamedSegments {
            entries: 100,
            part,
            slots: vec![Some(0), Some(new as usize)],
        });
        assert_eq!((files.live_records(), files.dead().len()), (97, 3));
        files.note_dead(RecordPosition::of(new, 4));
        files.follow(&files.plan(96, 0, SEGMENT_BYTES)).unwrap();
        files.note_dead(RecordPosition::of(new, 5));
        assert_eq!((files.count_live(&[]), files.live_records()), (96, 95));
        // A slot that is not named any more serves again.
        let part = ImagePart::new(RECORDS, Vec::new(), Vec::new());
        files.confirmed(NamedSegments { entries: 0, part, slots: Vec::new() });
        assert_eq!((files.new_slot(), files.live_records()), (Some(0), 0));
    }

    #[test]
    fn new_entries_are_written_once() {
        let plan = files(1000).plan(1400, 400, SEGMENT_BYTES);
        assert_eq!((plan.records, plan.is_full), (400, false));
    }
}
