//! Which records of segments belong to a checkpoint: a bit per grain of a segment, and lists of the
//! records that have died since those bits were written. Few deaths are only listed.

use std::collections::BTreeMap;

use super::format::GRAIN_BYTES;
use super::packed::{GRAIN_BITS, PackedGrains, pack, packed_len};
use super::{ImagePart, SegmentId, SegmentImage};
use crate::blob::{BlobReader, BlobRef, BlobWriter};
use crate::{Error, ErrorKind, Result, SortedSet};

/// A set of record offsets, in grains, within one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSet(Vec<u8>);

impl LiveSet {
    /// Creates an empty set for a segment of `segment_bytes`.
    pub fn new(segment_bytes: u64) -> Self {
        Self(vec![0; Self::memory_bytes(segment_bytes) as usize])
    }

    /// Returns the bytes of memory of a set for a segment of `segment_bytes`.
    pub fn memory_bytes(segment_bytes: u64) -> u64 {
        (segment_bytes / GRAIN_BYTES).div_ceil(8)
    }

    /// Adds a record and returns whether it was new.
    pub fn insert(&mut self, grain: u32) -> bool {
        let (byte, bit) = (&mut self.0[grain as usize / 8], 1 << (grain % 8));
        let is_new = *byte & bit == 0;
        *byte |= bit;
        is_new
    }

    /// Returns the address that [`insert`](LiveSet::insert) will load, for a prefetch.
    pub fn hint(&self, grain: u32) -> *const u8 {
        self.0.as_ptr().wrapping_add(grain as usize / 8)
    }

    /// Returns whether the set contains the record.
    pub fn contains(&self, grain: u32) -> bool {
        self.0.get(grain as usize / 8).is_some_and(|byte| byte >> (grain % 8) & 1 == 1)
    }

    /// Returns the number of records in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    /// Appends the set to a checkpoint file.
    pub fn write(&self, blobs: &BlobWriter) -> Result<BlobRef> {
        blobs.append(&self.0)
    }

    fn remove(&mut self, grain: u32) -> bool {
        let there = self.contains(grain);
        if there {
            self.0[grain as usize / 8] &= !(1 << (grain % 8));
        }
        there
    }
}

/// A record that has died, noted until a checkpoint writes it: segment and grain in one word.
/// Sorting brings the deaths of a segment together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Death(u64);

impl Death {
    /// Creates the death of the record at `grain` of a segment.
    #[inline]
    pub fn of(segment: SegmentId, grain: u32) -> Self {
        debug_assert!(grain < 1 << GRAIN_BITS && segment.0 < 1 << (64 - GRAIN_BITS));
        Self(segment.0 << GRAIN_BITS | u64::from(grain))
    }

    /// Returns the record's segment.
    pub fn segment(self) -> SegmentId {
        SegmentId(self.0 >> GRAIN_BITS)
    }

    /// Returns the record's offset in its segment, in grains.
    pub fn grain(self) -> u32 {
        (self.0 & ((1 << GRAIN_BITS) - 1)) as u32
    }

    /// Returns the death as bytes.
    pub fn to_le_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Reads the bytes of [`to_le_bytes`](Death::to_le_bytes).
    pub fn from_le_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    /// Sorts `deaths` and appends those of the `wanted` segments to a checkpoint file: for each
    /// segment its id, their number, and their grains. Returns `None` if there are none. Takes at
    /// most 16 bytes of memory per segment and 3 per death beside the list.
    pub fn write(
        deaths: &mut [Death],
        wanted: impl Fn(SegmentId) -> bool,
        blobs: &BlobWriter,
    ) -> Result<Option<BlobRef>> {
        // Of most there is nothing to be said if sets were made anew.
        let mut count = 0;
        for at in 0..deaths.len() {
            if wanted(deaths[at].segment()) {
                deaths.swap(count, at);
                count += 1;
            }
        }
        let deaths = &mut deaths[..count];
        deaths.sort_unstable();
        let mut bytes = Vec::new();
        for group in deaths.chunk_by(|a, b| a.segment() == b.segment()) {
            let grains = || group.iter().map(|death| death.grain());
            let packed = packed_len(grains());
            bytes.reserve_exact(LIST_HEAD_BYTES + 4 + packed);
            bytes.extend_from_slice(&group[0].segment().0.to_le_bytes());
            bytes.extend_from_slice(&(PACKED | group.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&(packed as u32).to_le_bytes());
            pack(grains(), &mut bytes);
        }
        if bytes.is_empty() { Ok(None) } else { blobs.append(&bytes).map(Some) }
    }
}

/// Bytes before a segment's deaths in a list: its id, and how many they are.
const LIST_HEAD_BYTES: usize = 12;
/// Beside how many they are: their bytes are told next, and are packed. Lists from before have
/// words instead.
const PACKED: u32 = 1 << 31;

/// What a list says of its first segment, and what follows it.
struct ListedSegment<'a> {
    segment: SegmentId,
    count: u32,
    grains: &'a [u8],
    rest: &'a [u8],
}

impl<'a> ListedSegment<'a> {
    /// `None` if there is no whole one.
    fn first_of(list: &'a [u8]) -> Option<Self> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four"));
        let (head, rest) = list.split_at_checked(LIST_HEAD_BYTES)?;
        let segment = SegmentId(u64::from_le_bytes(head[..8].try_into().expect("eight")));
        let count = word(&head[8..]);
        let (grains, rest) = if count & PACKED == 0 {
            rest.split_at_checked(4 * count as usize)?
        } else {
            let (len, rest) = rest.split_at_checked(4)?;
            rest.split_at_checked(word(len) as usize)?
        };
        Some(Self { segment, count, grains, rest })
    }

    /// Adds the deaths to those of before, and says whether they are any.
    fn add_to(&self, dead: &mut PackedGrains) -> bool {
        match self.count & PACKED {
            0 => dead.add_words(self.grains),
            _ => dead.add(self.grains, self.count & !PACKED),
        }
    }
}

/// Which records of a part of a state belong to a checkpoint: the live set of each segment when it
/// was last examined whole, and the records that have died since.
#[derive(Debug)]
pub struct Liveness {
    blobs: Option<BlobReader>,
    dead: BTreeMap<SegmentId, PackedGrains>,
}

impl Liveness {
    /// Returns the bytes of memory for the dead records, while they are loaded and while they are
    /// kept.
    pub fn memory_bytes(part: &ImagePart) -> u64 {
        let longest = part.deaths.iter().map(|blob| blob.len).max().unwrap_or(0);
        2 * part.deaths.iter().map(|blob| blob.len).sum::<u64>() + 2 * longest
    }

    /// Reads the dead records.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::Missing`], which name the file.
    pub fn load(part: &ImagePart, blobs: Option<&BlobReader>) -> Result<Self> {
        let mut dead: BTreeMap<SegmentId, PackedGrains> = BTreeMap::new();
        let named = SortedSet::of(part.segments.iter().map(|segment| segment.id));
        for blob in &part.deaths {
            let bytes = blobs.ok_or_else(lost)?.read(blob)?;
            let mut rest = &bytes[..];
            while let Some(listed) = ListedSegment::first_of(rest) {
                let id = listed.segment;
                if named.contains(&id) && !listed.add_to(dead.entry(id).or_default()) {
                    break;
                }
                rest = listed.rest;
            }
            if !rest.is_empty() {
                let what = "a list of dead records is not one";
                let name = crate::blob::blobs_name(blob.file);
                return Err(Error::new(ErrorKind::Corrupt, what).with("file", name));
            }
        }
        Ok(Self { blobs: blobs.cloned(), dead })
    }

    /// Returns the segment's records that belong to the checkpoint; `None` if all do.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if their number differs from the checkpoint's.
    pub fn of(&self, image: &SegmentImage) -> Result<Option<LiveSet>> {
        let mut set = match &image.live {
            Some(blob) => LiveSet(self.blobs.as_ref().ok_or_else(lost)?.read(blob)?),
            None if !self.dead.contains_key(&image.id) => LiveSet::default(),
            None => LiveSet(vec![u8::MAX; LiveSet::memory_bytes(image.bytes) as usize]),
        };
        let all = if image.live.is_some() { set.len() } else { image.records };
        let dead = self.dead.get(&image.id);
        let grains = dead.into_iter().flat_map(PackedGrains::iter);
        let died = grains.filter(|&grain| set.remove(grain)).count() as u64;
        if died > all || all - died != image.live_records {
            let found = all.saturating_sub(died);
            let what = format!("{found} live records, {} expected", image.live_records);
            return Err(Error::new(ErrorKind::Corrupt, what).with("file", image.id.file_name()));
        }
        Ok((image.live.is_some() || dead.is_some()).then_some(set))
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Missing, "the checkpoint has no file of live records")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::RECORDS;
    use crate::io::{Faults, Simulated};

    fn segment(id: u64, live_records: u64) -> SegmentImage {
        let (bytes, records) = (64 * GRAIN_BYTES, 64);
        let (max_record_bytes, digest, latest, live) = (GRAIN_BYTES, None, None, None);
        let id = SegmentId(id);
        SegmentImage { id, bytes, records, max_record_bytes, live_records, digest, latest, live }
    }

    #[test]
    fn a_list_from_before_is_read_beside_one_that_is_packed() {
        let device = Arc::new(Simulated::new(1, Faults::none()));
        let blobs = BlobWriter::new(device.clone(), 1, 4096);
        let list_of = |id: u64, grains: &[u32]| {
            let head = [id.to_le_bytes().to_vec(), (grains.len() as u32).to_le_bytes().to_vec()];
            [head.concat(), grains.iter().flat_map(|grain| grain.to_le_bytes()).collect()].concat()
        };
        let before = [list_of(1, &[0, 5, 63]), list_of(2, &[7]), list_of(9, &[1, 2])].concat();
        let before = blobs.append(&before).unwrap();
        let mut now = [Death::of(SegmentId(2), 40), Death::of(SegmentId(1), 6)];
        let now = Death::write(&mut now, |_| true, &blobs).unwrap().unwrap();

        let segments = vec![segment(1, 60), segment(2, 62), segment(3, 64)];
        let part = ImagePart::new(RECORDS, segments, vec![before, now]);
        let reader = BlobReader::new(device.clone());
        let read = Liveness::load(&part, Some(&reader)).unwrap();
        let dead = |at: usize| {
            let set = read.of(&part.segments[at]).unwrap();
            let lives = |grain: &u32| set.as_ref().is_none_or(|set| set.contains(*grain));
            (0..64).filter(|grain| !lives(grain)).collect::<Vec<_>>()
        };
        assert_eq!((dead(0), dead(1), dead(2)), (vec![0, 5, 6, 63], vec![7, 40], vec![]));

        let not_in_order = blobs.append(&list_of(1, &[5, 0])).unwrap();
        let part = ImagePart { deaths: vec![not_in_order], ..part };
        let error = Liveness::load(&part, Some(&reader)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}
