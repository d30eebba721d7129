//! A checkpoint's entry for the records of one state: the parts that contain them.
//!
//! Most states have one part. A state with records in two layouts has a part for each, with its own
//! files and lists of dead records.
//!
//! Invariants: no two parts name the same segment, and a part's lists name only its own segments.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{RunId, RunInfo, SegmentId, SegmentImage};
use crate::blob::BlobRef;
use crate::{Error, ErrorKind, Result, Time};

/// Layout of a part whose segments contain records of a key and a value. A key has one live record;
/// a key of lists may have several.
pub const RECORDS: &str = "records";

/// Layout of a part whose records are in levels of sorted runs.
pub const RUNS: &str = "runs";

/// The image of one state: where a checkpoint's records of it are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredParts")]
pub struct StateImage {
    /// Number of keys.
    pub entries: u64,
    /// The parts that contain the records. Empty if nothing is on storage.
    pub parts: Vec<ImagePart>,
}

/// One part of a state: the files of one layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePart {
    /// The layout of the files: [`RECORDS`], or a name that the layout gives.
    pub layout: String,
    /// The range of the state's records that it may contain.
    #[serde(default, skip_serializing_if = "PartRange::is_all")]
    pub range: PartRange,
    /// The segments that contain the records.
    pub segments: Vec<SegmentImage>,
    /// Lists of the records that have died since their segments were last examined whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deaths: Vec<BlobRef>,
    /// Levels of sorted runs, the newest first, each of runs in the order of their hashes. Among
    /// records of equal keys that of the newest level counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Vec<RunInfo>>,
    /// Number of keys that are in the levels and in no other part. Of an append log that is a part of window segments:
    /// the number of its elements.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub level_keys: u64,
    /// The same by key group, of state whose key groups move.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group_keys: Vec<u64>,
    /// The same by last touch, of state whose entries expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched: Option<TouchedKeys>,
}

/// Keys counted by the span of time in which they were touched last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchedKeys {
    /// Records of the levels that were touched last before this time have expired: they do not count.
    pub expired_before: Time,
    /// No key that counts was touched after this time.
    pub latest: Time,
    /// Logarithm of a span's nanoseconds.
    pub span_log: u32,
    /// The first span, in spans since the beginning of time, [`Time::MIN`]. Earlier touches count in it.
    pub first_span: u64,
    /// How many keys count in a span, where there are any. Each key group has 32 spans in a row, if
    /// groups move; else there are 32 in all.
    pub counts: Vec<(u32, u64)>,
}

fn is_zero(keys: &u64) -> bool {
    *keys == 0
}

/// The range of a state's records that a part may contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartRange {
    /// All records.
    #[default]
    All,
    /// Records whose keys have hashes from the first to the last.
    Hashes {
        /// The lowest hash.
        first: u64,
        /// The highest.
        last: u64,
    },
    /// Records of the slices from the first to the last.
    Slices {
        /// Start of the first slice.
        first: Time,
        /// Start of the last.
        last: Time,
    },
}

/// The form on storage. Builds up to format 4 wrote one part, without its layout.
#[derive(Deserialize)]
struct StoredParts {
    entries: u64,
    #[serde(default)]
    parts: Vec<ImagePart>,
    #[serde(default)]
    segments: Vec<SegmentImage>,
    #[serde(default)]
    deaths: Vec<BlobRef>,
}

impl From<StoredParts> for StateImage {
    fn from(written: StoredParts) -> Self {
        let StoredParts { entries, mut parts, segments, deaths } = written;
        let (layout, range) = (String::new(), PartRange::All);
        let part = ImagePart { layout, range, ..ImagePart::new("", segments, deaths) };
        parts.extend(part.if_any());
        Self { entries, parts }
    }
}

impl PartRange {
    fn is_all(&self) -> bool {
        *self == Self::All
    }

    fn is_one(&self) -> bool {
        match self {
            Self::All => true,
            Self::Hashes { first, last } => first <= last,
            Self::Slices { first, last } => first <= last,
        }
    }
}

impl ImagePart {
    /// Creates a part that may contain any of a state's records.
    pub fn new(layout: &str, segments: Vec<SegmentImage>, deaths: Vec<BlobRef>) -> Self {
        let (layout, range) = (layout.to_owned(), PartRange::All);
        let (levels, group_keys) = (Vec::new(), Vec::new());
        Self { layout, range, segments, deaths, levels, level_keys: 0, group_keys, touched: None }
    }

    /// Creates a part of levels of runs, the newest first, which alone contain `keys` keys.
    pub fn of_runs(levels: Vec<Vec<RunInfo>>, keys: u64) -> Self {
        Self { levels, level_keys: keys, ..Self::new(RUNS, Vec::new(), Vec::new()) }
    }

    /// The part, unless it names nothing.
    fn if_any(self) -> Option<Self> {
        let names_nothing =
            self.segments.is_empty() && self.deaths.is_empty() && self.levels.is_empty();
        (!names_nothing).then_some(self)
    }

    /// Returns the number of live records in its segments.
    pub fn live_records(&self) -> u64 {
        self.segments.iter().map(|segment| segment.live_records).sum()
    }
}

impl StateImage {
    /// Creates the image of a state with `entries` keys in one part.
    pub fn of(entries: u64, part: ImagePart) -> Self {
        Self { entries, parts: part.if_any().into_iter().collect() }
    }

    /// Returns the segments of all parts.
    pub fn segments(&self) -> impl Iterator<Item = &SegmentImage> + Clone {
        self.parts.iter().flat_map(|part| &part.segments)
    }

    /// Returns the runs of all parts.
    pub fn runs(&self) -> impl Iterator<Item = &RunInfo> + Clone {
        self.parts.iter().flat_map(|part| part.levels.iter().flatten())
    }

    /// Returns the image without its sorted runs, and the parts that have these. For a layout that
    /// takes what is in runs into memory.
    pub fn split_runs(&self) -> (Cow<'_, StateImage>, Vec<ImagePart>) {
        if self.parts.iter().all(|part| part.layout != RUNS) {
            return (Cow::Borrowed(self), Vec::new());
        }
        let (runs, parts): (Vec<_>, Vec<_>) =
            self.parts.iter().cloned().partition(|part| part.layout == RUNS);
        let keys = runs.iter().map(|part| part.level_keys).sum();
        let hot = Self { entries: self.entries.saturating_sub(keys), parts };
        (Cow::Owned(hot), runs)
    }

    /// Adds a part, unless it names nothing.
    #[must_use]
    pub fn with(mut self, part: ImagePart) -> Self {
        self.parts.extend(part.if_any());
        self
    }

    /// Returns the lists of dead records of all parts.
    pub fn deaths(&self) -> impl Iterator<Item = &BlobRef> + Clone {
        self.parts.iter().flat_map(|part| &part.deaths)
    }

    /// Returns the numbers of the checkpoints whose blobs the image refers to.
    pub fn blob_files(&self) -> impl Iterator<Item = u64> + '_ {
        let sets = self.segments().filter_map(|segment| segment.live);
        sets.chain(self.deaths().copied()).map(|blob| blob.file)
    }

    /// Returns all parts, for a layout that reads any number of parts of one kind.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if a part has another layout.
    pub fn parts_of(&self, layout: &str) -> Result<&[ImagePart]> {
        match self.parts.iter().find(|part| part.layout != layout) {
            Some(other) => Err(laid_out_otherwise(&other.layout, layout)),
            None => Ok(&self.parts),
        }
    }

    /// Returns the part, for a layout that keeps a state in one; `None` if nothing is on storage.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if it has another layout, or if there are several parts.
    pub fn only_part(&self, layout: &str) -> Result<Option<&ImagePart>> {
        match self.parts_of(layout)? {
            [] => Ok(None),
            [only] => Ok(Some(only)),
            several => {
                let count = several.len();
                let message = format!("the state lies in {count} parts; \"{layout}\" reads one");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    /// Gives parts of builds that did not tell it the layout of their files, which the layout of
    /// the state says.
    pub(crate) fn tell_layout(&mut self, state_layout: &str) {
        let own = matches!(state_layout, "append-log" | "window-segments");
        let layout = if own { state_layout } else { RECORDS };
        let untold = self.parts.iter_mut().filter(|part| part.layout.is_empty());
        untold.for_each(|part| part.layout = layout.to_owned());
    }

    /// Whether the parts can be those of one state.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check(&self) -> std::result::Result<(), &'static str> {
        let mut named: HashSet<SegmentId> = HashSet::new();
        if !self.segments().all(|segment| named.insert(segment.id)) {
            return Err("a segment is named twice");
        }
        let mut named: HashSet<RunId> = HashSet::new();
        if !self.runs().all(|run| named.insert(run.id)) {
            return Err("a run is named twice");
        }
        if !self.parts.iter().all(|part| part.range.is_one()) {
            return Err("the range of a part ends before it begins");
        }
        Ok(())
    }
}

fn laid_out_otherwise(found: &str, wanted: &str) -> Error {
    if found == RUNS {
        let message = "a part of the state is in sorted runs, which a hybrid log (see cold-runs) or an append \
                       log wrote; only that opens it, and an export of the open store has all keys";
        return Error::new(ErrorKind::Unsupported, message);
    }
    let message = format!("a part of the state is laid out as \"{found}\"; \"{wanted}\" is read");
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(id: u64) -> SegmentImage {
        SegmentImage {
            id: SegmentId(id),
            bytes: 8192,
            records: 2,
            max_record_bytes: 32,
            live_records: 2,
            digest: None,
            latest: None,
            live: None,
        }
    }

    fn run(id: u64) -> RunInfo {
        RunInfo {
            id: RunId(id),
            bytes: 16384,
            records: 3,
            marked: 1,
            first_hash: 1,
            last_hash: 9,
            partitions: 1,
            guide_bytes: 90,
            longest_guide: 90,
            longest_chunk: 4096,
            order_bytes: 0,
            digest: 7,
            cuts: Vec::new(),
        }
    }

    #[test]
    fn levels_of_runs_come_back_in_order() {
        let levels = vec![vec![run(7)], vec![run(5), run(6)]];
        let hot = ImagePart::new(RECORDS, vec![segment(1)], Vec::new());
        let image = StateImage::of(5, hot).with(ImagePart::of_runs(levels, 3));
        let text = serde_json::to_string(&image).unwrap();
        assert_eq!(serde_json::from_str::<StateImage>(&text).unwrap(), image);
        assert!(image.runs().map(|run| run.id.0).eq([7, 5, 6]));
        assert!(image.check().is_ok());
        assert!(image.parts_of(RECORDS).is_err(), "who knows no runs does not pass them over");
        let (hot, runs) = image.split_runs();
        assert_eq!((hot.entries, hot.parts.as_slice()), (2, &image.parts[..1]));
        assert_eq!(runs.as_slice(), &image.parts[1..]);
        assert!(hot.parts_of(RECORDS).is_ok());
        let none = ImagePart::of_runs(Vec::new(), 0);
        assert_eq!(StateImage::default().with(none), StateImage::default());
        let mut twice = image;
        twice.parts[1].levels.push(vec![run(5)]);
        assert_eq!(twice.check(), Err("a run is named twice"));
    }

    /// Two parts as a cold tier has them: files, dead and range of their own.
    fn two() -> StateImage {
        let blob = |file| BlobRef { file, offset: 0, len: 8, crc: 1 };
        let hot = ImagePart::new(RECORDS, vec![segment(1), segment(2)], vec![blob(4)]);
        let range = PartRange::Hashes { first: 0, last: u64::MAX >> 1 };
        let cold = ImagePart { range, ..ImagePart::new("runs", vec![segment(3)], vec![blob(5)]) };
        StateImage { entries: 6, parts: vec![hot, cold] }
    }

    #[test]
    fn parts_come_back_with_files_dead_and_range_of_their_own() {
        let image = two();
        let text = serde_json::to_string(&image).unwrap();
        assert_eq!(serde_json::from_str::<StateImage>(&text).unwrap(), image);
        assert!(image.segments().map(|segment| segment.id.0).eq([1, 2, 3]));
        assert!(image.blob_files().eq([4, 5]));
        assert!(image.check().is_ok());
        let error = image.parts_of(RECORDS).unwrap_err();
        assert!(error.to_string().contains("in sorted runs"), "{error}");
        assert!(image.only_part(RECORDS).is_err());
        let hot = StateImage { parts: vec![image.parts[0].clone(); 2], ..image };
        let error = hot.only_part(RECORDS).unwrap_err();
        assert!(error.to_string().contains("2 parts"), "{error}");
    }

    #[test]
    fn an_image_of_before_is_one_part_of_the_states_layout() {
        let two = two();
        let part = &two.parts[0];
        let (segments, deaths) = (&part.segments, &part.deaths);
        let text = serde_json::json!({ "entries": 4, "segments": segments, "deaths": deaths });
        let mut image: StateImage = serde_json::from_value(text).unwrap();
        image.tell_layout("hybrid-log");
        assert_eq!(image, StateImage::of(4, part.clone()));
        let text = serde_json::json!({ "entries": 4, "segments": segments, "deaths": [] });
        let mut image: StateImage = serde_json::from_value(text).unwrap();
        image.tell_layout("append-log");
        assert_eq!(image.only_part("append-log").unwrap().unwrap().segments, *segments);
        let text = serde_json::json!({ "entries": 0, "segments": [], "deaths": [] });
        assert_eq!(serde_json::from_value::<StateImage>(text).unwrap(), StateImage::default());
    }

    #[test]
    fn parts_that_cannot_be_of_one_state_are_told() {
        let mut image = two();
        image.parts[1].segments.push(segment(2));
        assert_eq!(image.check(), Err("a segment is named twice"));
        let mut image = two();
        image.parts[1].range = PartRange::Slices { first: Time(2), last: Time(1) };
        assert_eq!(image.check(), Err("the range of a part ends before it begins"));
    }
}
