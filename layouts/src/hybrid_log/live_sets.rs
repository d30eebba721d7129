//! Sets of the live records of segments that a checkpoint looks at in full.
//!
//! What dies while they are made was live at the barrier: it is added when it dies, or from the list of
//! deaths at the end.

use alluvium_pagestore::{Death, LiveSet, SegmentId};

use super::address::StoredAt;
use super::stored::SegmentBefore;
use crate::prefetch_unsafe::prefetch;

/// Sets of a group of segments, by their ids.
#[derive(Debug)]
pub struct LiveSets {
    sets: Vec<Counted>,
    /// Which of them is that of a segment, by its number.
    places: Vec<u32>,
    /// And by the last bits of its id.
    likely: Vec<u32>,
    /// Booked for them.
    pub bytes: u64,
}

/// Deaths that are looked for together.
const AT_ONCE: usize = 32;

/// The place of a segment that none of the sets is of.
const NO_PLACE: u32 = u32::MAX;

/// A set and how many are in it, so that no call counts them all.
#[derive(Debug)]
pub struct Counted {
    pub id: SegmentId,
    pub number: u32,
    pub set: LiveSet,
    pub live: u64,
}

/// Entries of a table of likely places of so many sets.
fn likely_places(sets: usize) -> usize {
    sets.max(1).next_power_of_two()
}

impl LiveSets {
    /// No sets yet of segments with numbers below `numbers`, in memory that is booked.
    pub fn none(numbers: u32, sets: usize, bytes: u64) -> Self {
        let places = vec![NO_PLACE; numbers as usize];
        let likely = vec![NO_PLACE; likely_places(sets)];
        Self { sets: Vec::with_capacity(sets), places, likely, bytes }
    }

    /// What the table of places takes for numbers below `numbers`.
    pub fn places_bytes(numbers: u32) -> u64 {
        u64::from(numbers) * size_of::<u32>() as u64
    }

    /// What a set for a segment takes.
    pub fn bytes_of(segment: &SegmentBefore) -> u64 {
        LiveSet::memory_bytes(segment.image.bytes) + 64 + 2 * size_of::<u32>() as u64
    }

    /// Begins a set for a segment, whose id is greater than those of the others.
    pub fn add(&mut self, segment: &SegmentBefore) {
        let SegmentBefore { number, image, .. } = segment;
        debug_assert!(self.sets.last().is_none_or(|last| last.id < image.id));
        self.places[*number as usize] = self.sets.len() as u32;
        let likely = image.id.0 as usize & (self.likely.len() - 1);
        self.likely[likely] = self.sets.len() as u32;
        let set = LiveSet::new(image.bytes);
        self.sets.push(Counted { id: image.id, number: *number, set, live: 0 });
    }

    /// A record is live, or was at the barrier; says whether its segment is one of these.
    pub fn insert(&mut self, at: StoredAt) -> bool {
        let place = self.places.get(at.segment as usize).copied().unwrap_or(NO_PLACE);
        // Most are of others where few are looked at.
        let Some(counted) = self.sets.get_mut(place as usize) else { return false };
        counted.live += u64::from(counted.set.insert(at.grain));
        true
    }

    /// Records were live at the barrier.
    pub fn insert_again(&mut self, deaths: &[Death]) {
        // Sets are larger than caches, and deaths in no order: some are loaded while others are found.
        for some in deaths.chunks(AT_ONCE) {
            let mut places = [NO_PLACE; AT_ONCE];
            for (place, death) in places.iter_mut().zip(some) {
                *place = self.place_of(death.segment());
                if let Some(counted) = self.sets.get(*place as usize) {
                    prefetch(counted.set.hint(death.grain()));
                }
            }
            for (place, death) in places.iter().zip(some) {
                if let Some(counted) = self.sets.get_mut(*place as usize) {
                    counted.live += u64::from(counted.set.insert(death.grain()));
                }
            }
        }
    }

    /// The place of the set of a segment: ids are mostly one after the other.
    fn place_of(&self, id: SegmentId) -> u32 {
        let likely = self.likely[id.0 as usize & (self.likely.len() - 1)];
        if self.sets.get(likely as usize).is_some_and(|set| set.id == id) {
            return likely;
        }
        let found = self.sets.binary_search_by_key(&id, |set| set.id);
        found.map_or(NO_PLACE, |place| place as u32)
    }

    /// Whether there is one for a segment.
    pub fn has(&self, id: SegmentId) -> bool {
        self.place_of(id) != NO_PLACE
    }

    /// All of them.
    pub fn into_sets(self) -> Vec<Counted> {
        self.sets
    }
}
