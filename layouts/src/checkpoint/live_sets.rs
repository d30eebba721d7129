//! Sets of the live records of segments that a checkpoint looks at in full, or of all of them.
//!
//! What dies while they are made was live at the barrier: it is added when it dies, or from the list of
//! deaths at the end.

use alluvium_pagestore::{BlobRef, BlobWriter, Death, LiveSet, Result, SegmentId, SegmentImage};

use crate::heap::record_position::RecordPosition;
use crate::support::prefetch_unsafe::prefetch;

/// Sets of a group of segments.
#[derive(Debug, Default)]
pub(crate) struct LiveSets {
    sets: Vec<SetOf>,
    /// Which of them is that of a segment, by its number.
    places: Vec<u32>,
    /// And by the last bits of its id.
    likely: Vec<u32>,
    /// Booked for them by their owner.
    pub bytes: u64,
}

/// Deaths that are looked for together.
const AT_ONCE: usize = 32;

/// The place of a segment that none of the sets is of.
const NO_PLACE: u32 = u32::MAX;

/// The set of a segment and how many are in it, so that no call counts them all.
#[derive(Debug)]
struct SetOf {
    id: SegmentId,
    number: u32,
    live: u64,
    segment_bytes: u64,
    /// Made by itself, as all at once take a while.
    set: Option<LiveSet>,
}

impl SetOf {
    fn made(&mut self) -> &mut LiveSet {
        self.set.get_or_insert_with(|| LiveSet::new(self.segment_bytes))
    }

    fn insert(&mut self, grain: u32) {
        let is_new = self.made().insert(grain);
        self.live += u64::from(is_new);
    }

    fn into_set(mut self) -> LiveSet {
        self.made();
        self.set.expect("made above")
    }
}

/// Writes sets of segments. For a helper.
///
/// # Errors
/// Those of storage.
pub(crate) fn write_sets(
    sets: &[(SegmentId, LiveSet)],
    blobs: &BlobWriter,
) -> Result<Vec<(SegmentId, BlobRef)>> {
    sets.iter().map(|(id, set)| Ok((*id, set.write(blobs)?))).collect()
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

    /// What the set of a segment of so many bytes takes.
    pub fn bytes_of(segment_bytes: u64) -> u64 {
        LiveSet::memory_bytes(segment_bytes) + 64 + 2 * size_of::<u32>() as u64
    }

    /// Adds the set of a segment of so many bytes. It is made with its first record.
    pub fn add(&mut self, number: u32, id: SegmentId, segment_bytes: u64) {
        self.places[number as usize] = self.sets.len() as u32;
        let likely = id.0 as usize & (self.likely.len() - 1);
        self.likely[likely] = self.sets.len() as u32;
        self.sets.push(SetOf { id, number, live: 0, segment_bytes, set: None });
    }

    /// [`add`](LiveSets::add) of a set that is made now.
    pub fn add_made(&mut self, number: u32, id: SegmentId, segment_bytes: u64) {
        debug_assert!(self.sets.last().is_none_or(|last| last.id < id), "ids are searched for");
        self.add(number, id, segment_bytes);
        self.sets.last_mut().expect("added above").made();
    }

    /// Whether no set is made of any segment.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// A record is live, or was at the barrier; says whether its segment, which has this number, is one of these.
    #[inline]
    pub fn insert(&mut self, number: u32, grain: u32) -> bool {
        let place = self.places.get(number as usize).copied().unwrap_or(NO_PLACE);
        // Most are of others where few are looked at.
        let Some(set) = self.sets.get_mut(place as usize) else { return false };
        set.insert(grain);
        true
    }

    /// The same for a place, unless it is none.
    #[inline]
    pub fn insert_at(&mut self, place: RecordPosition) {
        if place != RecordPosition::NONE {
            self.insert(place.slot() as u32, place.grain());
        }
    }

    /// Records were live at the barrier, in segments whose sets were added in order of their ids.
    pub fn insert_again(&mut self, deaths: &[Death]) {
        // Sets are larger than caches, and deaths in no order: some are loaded while others are found.
        for some in deaths.chunks(AT_ONCE) {
            let mut places = [NO_PLACE; AT_ONCE];
            for (place, death) in places.iter_mut().zip(some) {
                *place = self.place_of(death.segment());
                if let Some(SetOf { set: Some(set), .. }) = self.sets.get(*place as usize) {
                    prefetch(set.hint(death.grain()));
                }
            }
            for (place, death) in places.iter().zip(some) {
                if let Some(set) = self.sets.get_mut(*place as usize) {
                    set.insert(death.grain());
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

    /// All are made: gives those of segments that have dead records. `image_of` gives the image of a segment by its
    /// number, if that is named.
    ///
    /// # Panics
    /// If a set does not have as many records as are live.
    pub fn into_whole<'a>(
        self,
        mut image_of: impl FnMut(u32) -> Option<&'a SegmentImage>,
    ) -> Vec<(SegmentId, LiveSet)> {
        let mut whole = Vec::new();
        for set in self.sets {
            let Some(image) = image_of(set.number) else { continue };
            assert_eq!(set.live, image.live_records, "every key has one live record: {image:?}");
            if image.live_records < image.records {
                whole.push((set.id, set.into_set()));
            }
        }
        whole
    }

    /// Drops one; says whether there was one.
    pub fn drop_one(&mut self) -> bool {
        let last = self.sets.pop();
        if let Some(SetOf { number, .. }) = &last {
            self.places[*number as usize] = NO_PLACE;
        }
        last.is_some()
    }
}
