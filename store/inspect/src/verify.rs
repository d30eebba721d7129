//! Verifies all checksums of all files that checkpoints name.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use alluvium_layouts::verify_run;
use alluvium_pagestore::{
    Error, ErrorKind, Framed, MANIFEST, Result, RunInfo, WholeSegment, checkpoint_of_file,
};
use serde::Serialize;

use crate::checkpoints::{ListedCheckpoints, SegmentAt, StateAt};
use crate::directory::ClosedDirectory;
use crate::table::Short;

/// What is told of changed padding.
const PADDING: &str = "padding is not as it was written; nothing reads it";

/// The result of [`verify`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Checkpoints read.
    pub checkpoints: u64,
    /// Files that they name and that exist.
    pub files: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Segments among the files.
    pub segments: u64,
    /// Page images in them.
    pub images: u64,
    /// Sorted runs among the files. Each of their records was found by its filter and fence.
    pub runs: u64,
    /// Sound records of segments and runs, live or not.
    pub records: u64,
    /// Sound live sets.
    pub live_sets: u64,
    /// All damage.
    pub damage: Vec<Damage>,
    /// Changed padding. Nothing reads it, and no state is affected. Its cause may change other
    /// bytes too.
    pub padding: Vec<Damage>,
}

/// Bytes that differ from what was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Damage {
    /// The file, if it is known.
    pub file: Option<String>,
    /// Byte offset in the file.
    pub offset: Option<u64>,
    /// The state that the bytes belong to.
    pub state: Option<String>,
    /// A description of the damage.
    pub what: String,
}

/// Reads every checksummed byte of every file that a checkpoint names, and the padding of segments,
/// manifest and checkpoint files. Damage is reported in the result, not as an error. Everything
/// that can be found beside it is still checked. If the manifest is damaged, reads all checkpoint
/// files.
///
/// # Errors
/// If there is neither a checkpoint nor a damaged one, or the directory cannot be listed.
pub fn verify(directory: &ClosedDirectory) -> Result<Verified> {
    let mut found = ListedCheckpoints::read(directory);
    let mut verified = Verified::default();
    verified.take_all(found.damage.drain(..), None);
    if found.all.is_empty() && verified.damage.is_empty() {
        return Err(found.none(directory));
    }
    let mut files = BTreeSet::from([MANIFEST.to_owned()]);
    let (mut segments, mut runs) = (BTreeSet::new(), BTreeSet::new());
    for checkpoint in &found.all {
        verified.checkpoints += 1;
        files.extend(checkpoint.files());
        for state in checkpoint.states() {
            for segment in state.segments() {
                // A segment that several checkpoints name is read once, its live records for each.
                let first = segments.insert(segment.id());
                verified.segment(directory, state, segment, first);
            }
            for run in state.runs().filter(|run| runs.insert(run.id)) {
                verified.run(directory, state, run);
            }
        }
    }
    for (name, bytes) in directory.files()? {
        if files.contains(&name) {
            verified.files += 1;
            verified.bytes += bytes;
            verified.framed_padding(directory, &name);
        }
    }
    verified.padding.sort();
    verified.damage.sort();
    verified.damage.dedup();
    Ok(verified)
}

impl Verified {
    /// Returns whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }

    fn segment(
        &mut self,
        directory: &ClosedDirectory,
        state: StateAt<'_>,
        segment: SegmentAt<'_>,
        first: bool,
    ) {
        if let Err(error) = self.read_segment(directory, state, segment, first) {
            // Not all errors of readers know where they are.
            let file = segment.file_name();
            let error =
                if error.context("file").is_none() { error.with("file", file) } else { error };
            self.take_all([error], Some(state.name()));
        }
    }

    fn read_segment(
        &mut self,
        directory: &ClosedDirectory,
        state: StateAt<'_>,
        segment: SegmentAt<'_>,
        first: bool,
    ) -> Result<()> {
        let name = Some(state.name());
        let live = match segment.live() {
            Ok(live) => Some(live),
            Err(error) => {
                self.take_all([error], name);
                None
            }
        };
        self.live_sets += u64::from(live.is_some() && !segment.is_live_in_full());
        let info = segment.open_unchecked(directory)?;
        let bytes = directory.map(&segment.file_name())?;
        let mut whole = WholeSegment::open(&info, state.fingerprint(), &bytes);
        let mut damage = whole.take_damage();
        if damage.is_empty() {
            // Whole, it may be another one than the checkpoint means.
            segment.open(directory)?;
        }
        let (mut records, mut live_records, mut all) = (0, 0, damage.is_empty());
        for image in whole.images() {
            let entries = match whole.footer(image) {
                Ok(entries) => entries,
                Err(error) => {
                    damage.push(error);
                    all = false;
                    continue;
                }
            };
            for entry in &entries {
                live_records += u64::from(live.as_ref().is_some_and(|l| l.contains(entry.grain)));
                match whole.record(image, entry) {
                    Ok(_) => records += 1,
                    Err(error) => damage.push(error),
                }
            }
        }
        if first && damage.is_empty() {
            self.padding.extend(whole.changed_padding().into_iter().map(|offset| Damage {
                file: Some(segment.file_name()),
                offset: Some(offset),
                state: Some(state.name().into()),
                what: PADDING.into(),
            }));
        }
        if first {
            self.segments += 1;
            self.images += whole.images().len() as u64;
            self.records += records;
            self.take_all(damage, name);
        }
        if all && live.is_some() && live_records != segment.live_records() {
            let expected = segment.live_records();
            let what = format!("{live_records} of its records are live, {expected} expected");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Ok(())
    }

    fn run(&mut self, directory: &ClosedDirectory, state: StateAt<'_>, run: &RunInfo) {
        match verify_run(&directory.segments(), run) {
            Ok(records) => {
                self.runs += 1;
                self.records += records;
            }
            Err(error) => self.take_all([error], Some(state.name())),
        }
    }

    /// Looks at what stands behind the body of a manifest or of a checkpoint's file.
    fn framed_padding(&mut self, directory: &ClosedDirectory, name: &str) {
        let is_framed = name == MANIFEST || checkpoint_of_file(name).is_some();
        let is_damaged = |damage: &Damage| damage.file.as_deref() == Some(name);
        if !is_framed || self.damage.iter().any(is_damaged) {
            return;
        }
        let Ok(bytes) = directory.map(name) else { return };
        let Some(end) = Framed::end_of(&bytes) else { return };
        if let Some(place) = bytes[end..].iter().position(|byte| *byte != 0) {
            let offset = Some((end + place) as u64);
            let file = Some(name.to_owned());
            self.padding.push(Damage { file, offset, state: None, what: PADDING.into() });
        }
    }

    fn take_all(&mut self, errors: impl IntoIterator<Item = Error>, state: Option<&str>) {
        self.damage.extend(errors.into_iter().map(|error| Damage::of(&error, state)));
    }
}

impl Damage {
    /// What an error tells, of this state.
    pub(crate) fn of(error: &Error, state: Option<&str>) -> Self {
        Self {
            // The operating system's errors have whole paths.
            file: error.context("file").map(|file| match Path::new(file).file_name() {
                Some(name) => name.to_string_lossy().into_owned(),
                None => file.into(),
            }),
            offset: error.context("offset").and_then(|offset| offset.parse().ok()),
            state: state.map(String::from),
            what: std::error::Error::source(error).map_or(error.message().to_owned(), |cause| {
                format!("{}: {cause}", error.message())
            }),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file.as_deref().unwrap_or("the directory"))?;
        if let Some(offset) = self.offset {
            write!(f, ", offset {offset}")?;
        }
        if let Some(state) = &self.state {
            write!(f, ", state {state}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for damage in self.damage.iter().chain(&self.padding) {
            writeln!(f, "{damage}")?;
        }
        let Self { checkpoints, files, segments, images, records, live_sets, .. } = self;
        let runs = match self.runs {
            0 => String::new(),
            runs => format!("{runs} sorted runs, "),
        };
        writeln!(
            f,
            "read: {checkpoints} checkpoints, {files} files of {}, {segments} segments, \
             {images} images, {runs}{records} sound records, {live_sets} sets of live records",
            Short(self.bytes)
        )?;
        match (self.damage.len(), self.padding.len()) {
            (0, 0) => writeln!(f, "all is as it was written"),
            (0, 1) => {
                writeln!(f, "all that is read is as it was written, 1 place of padding is not")
            }
            (0, places) => writeln!(
                f,
                "all that is read is as it was written, {places} places of padding are not"
            ),
            (1, _) => writeln!(f, "1 place is damaged"),
            (places, _) => writeln!(f, "{places} places are damaged"),
        }
    }
}
