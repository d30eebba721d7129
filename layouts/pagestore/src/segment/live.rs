//! Which records of segments belong to a checkpoint: for a segment a bit per grain, and for the
//! records that have died since that was written, or that are few, a list.

use std::collections::{BTreeMap, BTreeSet};

use super::format::{GRAIN_BYTES, SEGMENT_BYTES_MAX};
use super::{SegmentId, SegmentImage, StateImage};
use crate::blob::{BlobReader, BlobRef, BlobWriter};
use crate::{Error, ErrorKind, Result};

/// A set of record offsets, in grains, within one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSet(Vec<u8>);

impl LiveSet {
    /// An empty set for a segment of `segment_bytes`.
    pub fn new(segment_bytes: u64) -> Self {
        Self(vec![0; Self::memory_bytes(segment_bytes) as usize])
    }

    /// Memory that a set for a segment of `segment_bytes` takes.
    pub fn memory_bytes(segment_bytes: u64) -> u64 {
        (segment_bytes / GRAIN_BYTES).div_ceil(8)
    }

    /// Adds a record, and says whether it was not there.
    pub fn insert(&mut self, grain: u32) -> bool {
        let (byte, bit) = (&mut self.0[grain as usize / 8], 1 << (grain % 8));
        let is_new = *byte & bit == 0;
        *byte |= bit;
        is_new
    }

    /// What the processor has to load for [`insert`](LiveSet::insert), as a hint.
    pub fn hint(&self, grain: u32) -> *const u8 {
        self.0.as_ptr().wrapping_add(grain as usize / 8)
    }

    /// Whether the record is in the set.
    pub fn contains(&self, grain: u32) -> bool {
        self.0.get(grain as usize / 8).is_some_and(|byte| byte >> (grain % 8) & 1 == 1)
    }

    /// Records in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// Whether the set has no record.
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

/// A record that is not live any more, as it is noted until a checkpoint writes it: segment and
/// grain in one word, so that sorting brings those of a segment together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Death(u64);

const GRAIN_BITS: u32 = SEGMENT_BYTES_MAX.ilog2() - GRAIN_BYTES.ilog2();

impl Death {
    /// The death of the record at `grain` of a segment.
    #[inline]
    pub fn of(segment: SegmentId, grain: u32) -> Self {
        debug_assert!(grain < 1 << GRAIN_BITS && segment.0 < 1 << (64 - GRAIN_BITS));
        Self(segment.0 << GRAIN_BITS | u64::from(grain))
    }

    /// The segment.
    pub fn segment(self) -> SegmentId {
        SegmentId(self.0 >> GRAIN_BITS)
    }

    /// Where the record starts in it, in grains.
    pub fn grain(self) -> u32 {
        (self.0 & ((1 << GRAIN_BITS) - 1)) as u32
    }

    /// Its bytes, for who keeps some on storage for a while.
    pub fn to_le_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// What [`to_le_bytes`](Death::to_le_bytes) gave.
    pub fn from_le_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    /// Orders `deaths` anew and appends those of the segments that `wanted` to a checkpoint file: for each
    /// segment its id, how many, and their grains. `None` if there are none. Takes at most 12 bytes
    /// of memory per segment and 4 per death beside the list.
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
            bytes.reserve_exact(12 + 4 * group.len());
            bytes.extend_from_slice(&group[0].segment().0.to_le_bytes());
            bytes.extend_from_slice(&(group.len() as u32).to_le_bytes());
            group.iter().for_each(|d| bytes.extend_from_slice(&d.grain().to_le_bytes()));
        }
        if bytes.is_empty() { Ok(None) } else { blobs.append(&bytes).map(Some) }
    }
}

/// Which records of a state belong to a checkpoint: what is noted of each segment when it was last
/// looked at in full, and which records have died since.
#[derive(Debug)]
pub struct Liveness {
    blobs: Option<BlobReader>,
    dead: BTreeMap<SegmentId, Vec<u32>>,
}

impl Liveness {
    /// Memory that the records take that have died, while it is there and while it is read.
    pub fn memory_bytes(image: &StateImage) -> u64 {
        let longest = image.deaths.iter().map(|blob| blob.len).max().unwrap_or(0);
        2 * image.deaths.iter().map(|blob| blob.len).sum::<u64>() + 2 * longest
    }

    /// Reads which records have died.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::Missing`] with the file.
    pub fn load(image: &StateImage, blobs: Option<&BlobReader>) -> Result<Self> {
        let mut dead: BTreeMap<SegmentId, Vec<u32>> = BTreeMap::new();
        let named: BTreeSet<SegmentId> = image.segments.iter().map(|segment| segment.id).collect();
        for blob in &image.deaths {
            let bytes = blobs.ok_or_else(lost)?.read(blob)?;
            let mut rest = &bytes[..];
            while let Some((head, after)) = rest.split_at_checked(12) {
                let id = SegmentId(u64::from_le_bytes(head[..8].try_into().expect("eight")));
                let count = u32::from_le_bytes(head[8..].try_into().expect("four")) as usize;
                let Some((grains, after)) = after.split_at_checked(4 * count) else { break };
                if named.contains(&id) {
                    let grains = grains.chunks_exact(4);
                    let grains = grains.map(|g| u32::from_le_bytes(g.try_into().expect("four")));
                    dead.entry(id).or_default().extend(grains);
                }
                rest = after;
            }
            if !rest.is_empty() {
                let what = "a list of dead records is not one";
                let name = crate::blob::blobs_name(blob.file);
                return Err(Error::new(ErrorKind::Corrupt, what).with("file", name));
            }
        }
        Ok(Self { blobs: blobs.cloned(), dead })
    }

    /// The set of a segment's records that belong to the checkpoint; `None` if all do.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if they are not as many as the checkpoint says.
    pub fn of(&self, image: &SegmentImage) -> Result<Option<LiveSet>> {
        let mut set = match &image.live {
            Some(blob) => LiveSet(self.blobs.as_ref().ok_or_else(lost)?.read(blob)?),
            None if !self.dead.contains_key(&image.id) => LiveSet::default(),
            None => LiveSet(vec![u8::MAX; LiveSet::memory_bytes(image.bytes) as usize]),
        };
        let all = if image.live.is_some() { set.len() } else { image.records };
        let dead = self.dead.get(&image.id).map_or(&[][..], Vec::as_slice);
        let died = dead.iter().filter(|&&grain| set.remove(grain)).count() as u64;
        if died > all || all - died != image.live_records {
            let found = all.saturating_sub(died);
            let what = format!("{found} live records, {} expected", image.live_records);
            return Err(Error::new(ErrorKind::Corrupt, what).with("file", image.id.file_name()));
        }
        Ok((image.live.is_some() || !dead.is_empty()).then_some(set))
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Missing, "the checkpoint has no file of live records")
}
