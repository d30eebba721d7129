//! Which records of segments die, and what checkpoints know of that.
//!
//! Of each death is noted where the record was; a checkpoint writes the notes of before its barrier. What has no room
//! as a note is told to the sets of live records that the checkpoint makes, or spilled for them.
//!
//! What it keeps true: of a segment's records as many count as known to be dead as notes and checkpoints tell of. One with
//! others is looked at by the next checkpoint, record by record.

use alluvium_pagestore::{BlobRef, Death, ErrorKind, SegmentId, SegmentImage};

use super::{LiveSegment, SegmentBefore, StoredSegments};
use crate::checkpoint::{DeadListPosition, SegmentCounts};
use crate::hybrid_log::address::StoredAt;
use crate::hybrid_log::deaths::Deaths;

impl StoredSegments {
    /// A record is not live any more.
    #[inline]
    pub fn record_died(&mut self, at: StoredAt) {
        self.live_records -= 1;
        let epoch = self.epoch;
        let segment = self.segment_mut(at.segment);
        segment.counts.since(epoch).die();
        let death = Death::of(segment.info.id, at.grain);
        if !self.deaths.note(false, death) {
            self.segment_mut(at.segment).counts.lose_one();
            self.was_live(at);
        }
    }

    /// A record that was live at the barrier has died, and is not noted.
    #[cold]
    fn was_live(&mut self, at: StoredAt) {
        if !self.sets.as_mut().is_some_and(|sets| sets.insert(at.segment, at.grain))
            && self.is_asked_of(at.segment)
        {
            self.spill.push(Death::of(self.info(at.segment).id, at.grain));
        }
    }

    /// Whether there is room to note so many deaths.
    pub fn has_room_to_note(&self, deaths: u32) -> bool {
        self.deaths.has_room(deaths as usize)
    }

    /// Whether the checkpoint being taken may have to know which records of a segment die.
    fn is_asked_of(&self, number: u32) -> bool {
        let segment = self.segments[number as usize].as_ref().expect("a numbered segment");
        self.spill.is_wanted() && segment.settled_in != self.epoch
    }

    /// Records of a segment have died, and nobody knows which.
    fn lose(&mut self, number: u32) {
        if self.is_asked_of(number) {
            let why = "nobody knows which records have died meanwhile; begin it again";
            self.spill.lose(ErrorKind::Overtaken, why);
        }
    }

    /// The checkpoint being taken has the set of a segment, or needs none.
    pub fn settle(&mut self, number: u32) {
        self.segment_mut(number).settled_in = self.epoch;
    }

    /// The checkpoint being taken makes sets of no segments but these, some of them already.
    pub fn settle_others(&mut self, makes_one: impl Fn(SegmentId) -> bool) {
        let epoch = self.epoch;
        self.is_looked_over = true;
        for (&id, &number) in &self.by_id {
            let segment = self.segments[number as usize].as_mut().expect("a numbered segment");
            segment.settled_in = if makes_one(id) { segment.settled_in } else { epoch };
        }
    }

    /// Records of one segment are not live any more: their grains, and whether they had died before
    /// the last barrier, for whose checkpoint they were written after it.
    pub fn records_died_in(&mut self, number: u32, deaths: impl Iterator<Item = (u32, bool)>) {
        let epoch = self.epoch;
        let id = self.info(number).id;
        // Since the barrier, and before it: how many, and how many of them are noted.
        let (mut died, mut noted) = ([0; 2], [0; 2]);
        for (grain, before) in deaths {
            died[usize::from(before)] += 1;
            let is_noted = self.deaths.note(before, Death::of(id, grain));
            noted[usize::from(before)] += u32::from(is_noted);
            if !is_noted && !before {
                self.was_live(StoredAt { segment: number, grain });
            }
        }
        let all: u32 = died.iter().sum();
        self.live_records -= u64::from(all);
        let counts = &mut self.segment_mut(number).counts;
        counts.died_before(died[1], noted[1], epoch);
        let count = counts.since(epoch);
        (count.live, count.known_dead) = (count.live - died[0], count.known_dead + noted[0]);
    }

    /// A copy of a record that nothing refers to.
    pub fn copy_is_dead(&mut self, at: StoredAt) {
        self.record_lives(at.segment);
        self.record_died(at);
    }

    /// So many records of a segment are not live any more; which ones is not noted.
    pub fn records_died(&mut self, number: u32, records: u64) {
        self.live_records -= records;
        self.lose(number);
        let epoch = self.epoch;
        self.segment_mut(number).counts.since(epoch).live -= records as u32;
    }

    /// No record of a segment is live any more.
    pub fn all_died(&mut self, number: u32) {
        self.lose(number);
        let epoch = self.epoch;
        let died = std::mem::take(&mut self.segment_mut(number).counts.since(epoch).live);
        self.live_records -= u64::from(died);
    }

    /// Records are live in another segment than before.
    pub fn record_lives(&mut self, number: u32) {
        self.live_records += 1;
        let epoch = self.epoch;
        self.segment_mut(number).counts.since(epoch).live += 1;
    }

    #[inline]
    fn segment_mut(&mut self, number: u32) -> &mut LiveSegment {
        self.segments[number as usize].as_mut().expect("a numbered segment")
    }

    /// A checkpoint begins: what dies from now on is of the next one.
    pub fn barrier(&mut self) {
        self.is_looked_over = false;
        let decided = self.deaths.before.is_empty();
        assert!(decided, "the last checkpoint is not decided");
        self.epoch += 1;
        std::mem::swap(&mut self.deaths.now, &mut self.deaths.before);
        self.deaths.is_asked = true;
    }

    /// All segments, as they were at the barrier.
    pub fn segments_before(&self) -> Vec<SegmentBefore> {
        let before = |(&id, &number): (&SegmentId, &u32)| {
            let segment = self.segments[number as usize].as_ref().expect("numbered");
            debug_assert_eq!(segment.info.id, id);
            let before = segment.counts.before(self.epoch);
            let live_records = before.live.into();
            // All are live without a set.
            let base = segment.base.as_deref().filter(|_| live_records < segment.info.records);
            let live = base.copied();
            let image = SegmentImage { live_records, live, ..segment.info.all_live() };
            SegmentBefore {
                number,
                image,
                was_sealed: segment.info.sealed,
                is_known: before.is_all_of(segment.info.records),
                has_dead: before.known_dead > 0,
            }
        };
        self.by_id.iter().map(before).filter(|before| before.image.live_records > 0).collect()
    }

    /// The deaths before the barrier, to be written; [`give_back`](StoredSegments::give_back) them.
    pub fn lend_deaths(&mut self) -> Vec<Vec<Death>> {
        self.has_lent = true;
        self.deaths.before.take_parts()
    }

    /// The list that was lent.
    pub fn give_back(&mut self, deaths: Vec<Vec<Death>>) {
        self.has_lent = false;
        self.deaths.before.give_back(deaths);
    }

    /// How many deaths since the barrier are noted.
    #[cfg(test)]
    pub fn count_since(&self) -> u64 {
        self.deaths.now.len()
    }

    /// Behind the last of the deaths since the barrier that are noted.
    pub fn end_since(&self) -> DeadListPosition {
        self.deaths.now.end()
    }

    /// How many deaths before the barrier are noted.
    pub fn count_before(&self) -> u64 {
        self.deaths.before.len()
    }

    /// Adds to the sets some of the deaths since the barrier that are noted, from one place on and before
    /// another, so many at most. Says how many it added and at which to go on.
    pub fn add_again(
        &mut self,
        from: DeadListPosition,
        to: DeadListPosition,
        most: usize,
    ) -> (u64, DeadListPosition) {
        let (deaths, next) = self.deaths.now.some(from, to, most);
        let sets = self.sets.as_mut().expect("sets are being made");
        sets.insert_again(deaths);
        (deaths.len() as u64, next)
    }

    /// The checkpoint is one that can be restored: it knows of the deaths before its barrier, and
    /// has made these sets of live records.
    pub fn deaths_are_known(&mut self, sets: impl Iterator<Item = (SegmentId, Option<BlobRef>)>) {
        self.deaths.clear_before();
        for (id, base) in sets {
            let Some(&number) = self.by_id.get(&id) else { continue };
            let segment = self.segments[number as usize].as_mut().expect("numbered");
            // What the set leaves out is known; what has died since and was not noted is not.
            segment.counts.know_before(segment.info.records, self.epoch);
            segment.base = base.map(Box::new);
        }
    }

    /// Gives up room for notes that no list has, some of it, and says how many bytes.
    pub fn give_spare_notes_up(&mut self) -> u64 {
        self.deaths.give_spare_up()
    }

    /// Gives up what is noted beyond the room that is always there, for memory that is needed more,
    /// and says how many bytes are free for it now, of a part; 0 while a checkpoint needs it. The next checkpoint looks at
    /// every segment.
    pub fn give_notes_up(&mut self) -> u64 {
        let is_needed = !self.deaths.before.is_empty();
        if is_needed || self.has_lent || self.deaths.now.parts() < 2 {
            return 0;
        }
        self.deaths.clear_now();
        self.segments.iter_mut().flatten().for_each(|segment| segment.counts.lose_all());
        self.deaths.give_spare_up()
    }

    /// What was noted is lost: every segment is looked at by the next checkpoint.
    pub fn forget_deaths(&mut self) {
        self.segments.iter_mut().flatten().for_each(|segment| segment.counts.lose_all());
        self.deaths.clear_now();
        while self.deaths.give_spare_up() > 0 {}
        // What the helper has lost may not be gone: it stays booked.
        let (account, part) = (self.deaths.account.clone(), self.deaths.part);
        self.deaths = Deaths::new(account, part, self.deaths.floor_bytes);
        self.deaths.is_asked = true;
        self.has_lent = false;
    }

    /// The checkpoint is given up: its deaths are of the next one.
    pub fn deaths_are_unknown(&mut self) {
        let Self { deaths, by_id, segments, .. } = self;
        deaths.carry_over(|death| {
            if let Some(&number) = by_id.get(&death.segment()) {
                segments[number as usize].as_mut().expect("numbered").counts.lose_one();
            }
        });
    }

    /// A segment was restored from a checkpoint, which knew of all of its dead records.
    pub fn restored(&mut self, number: u32, base: Option<BlobRef>) {
        let segment = self.segment_mut(number);
        segment.named.committed = true;
        segment.counts =
            SegmentCounts::restored(segment.info.records, segment.counts.now().live.into());
        segment.base = base.map(Box::new);
    }
}
