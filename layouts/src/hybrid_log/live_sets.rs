//! Sets of the live records of segments that a checkpoint looks at in full.
//!
//! What dies while they are made was live at the barrier: it is added when it dies, or from the list of
//! deaths at the end.

use alluvium_pagestore::{Death, LiveSet, SegmentId};

use super::address::StoredAt;
use super::stored::SegmentBefore;

/// Sets of a group of segments, by their ids.
#[derive(Debug)]
pub struct LiveSets {
    sets: Vec<Counted>,
    /// Which of them is that of a segment, by its number.
    places: Vec<u32>,
    /// Booked for them.
    pub bytes: u64,
}

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

impl LiveSets {
    /// No sets yet of segments with numbers below `numbers`, in memory that is booked.
    pub fn none(numbers: u32, sets: usize, bytes: u64) -> Self {
        let places = vec![NO_PLACE; numbers as usize];
        Self { sets: Vec::with_capacity(sets), places, bytes }
    }

    /// What the table of places takes for numbers below `numbers`.
    pub fn places_bytes(numbers: u32) -> u64 {
        u64::from(numbers) * size_of::<u32>() as u64
    }

    /// What a set for a segment takes.
    pub fn bytes_of(segment: &SegmentBefore) -> u64 {
        LiveSet::memory_bytes(segment.image.bytes) + 64
    }

    /// Begins a set for a segment, whose id is greater than those of the others.
    pub fn add(&mut self, segment: &SegmentBefore) {
        let SegmentBefore { number, image, .. } = segment;
        debug_assert!(self.sets.last().is_none_or(|last| last.id < image.id));
        self.places[*number as usize] = self.sets.len() as u32;
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

    /// A record was live at the barrier.
    pub fn insert_again(&mut self, death: Death) {
        if let Ok(found) = self.sets.binary_search_by_key(&death.segment(), |set| set.id) {
            let counted = &mut self.sets[found];
            counted.live += u64::from(counted.set.insert(death.grain()));
        }
    }

    /// Whether there is one for a segment.
    pub fn has(&self, id: SegmentId) -> bool {
        self.sets.binary_search_by_key(&id, |set| set.id).is_ok()
    }

    /// All of them.
    pub fn into_sets(self) -> Vec<Counted> {
        self.sets
    }
}
