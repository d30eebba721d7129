//! What checkpoints say: the one place of this crate that knows manifests, checkpoint files, sets
//! of live records and lists of dead ones. All else sees checkpoints with states, states with
//! segments, and of a segment which grains are live.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::io::Device;
use alluvium_pagestore::{
    BlobReader, CheckpointImage, Error, ErrorKind, ImagePart, LiveSet, Liveness, MANIFEST,
    MANIFEST_NEW, Manifest, RUNS, Result, RunId, RunInfo, SegmentId, SegmentImage, SegmentInfo,
    StateManifest, checkpoint_name, checkpoint_of_file, fingerprint,
};

use crate::directory::ClosedDirectory;

/// The checkpoints that a directory's manifest lists.
#[derive(Debug)]
pub struct ListedCheckpoints {
    /// Those that can be read, the one that an open goes on from first, then from new to old. If
    /// the manifest is damaged, those of all files of checkpoints.
    pub all: Vec<RestorableCheckpoint>,
    /// What is damaged of the manifest and of the files of checkpoints.
    pub damage: Vec<Error>,
    /// Numbers of those that are listed, in the same order.
    listed: Vec<u64>,
}

/// A checkpoint that can be restored.
#[derive(Debug)]
pub struct RestorableCheckpoint {
    image: CheckpointImage,
    blobs: BlobReader,
    /// Which records live, of the parts of states that were asked for.
    liveness: RefCell<BTreeMap<(String, usize), Rc<Liveness>>>,
}

/// A state as a checkpoint has it.
#[derive(Clone, Copy, Debug)]
pub struct StateAt<'a> {
    checkpoint: &'a RestorableCheckpoint,
    manifest: &'a StateManifest,
}

/// A segment as a checkpoint has it.
#[derive(Clone, Copy, Debug)]
pub struct SegmentAt<'a> {
    checkpoint: &'a RestorableCheckpoint,
    state: &'a StateManifest,
    /// Number of the state's part that names it.
    part: usize,
    image: &'a SegmentImage,
}

/// Which records of a segment are live.
#[derive(Debug)]
pub struct Live(Option<LiveSet>);

impl ListedCheckpoints {
    /// Reads the manifest and the files of the checkpoints that it lists. What is damaged or cannot
    /// be read is told, not an error.
    pub fn read(directory: &ClosedDirectory) -> Self {
        let device = directory.device();
        let mut found = Self { all: Vec::new(), damage: Vec::new(), listed: Vec::new() };
        let manifest = match Manifest::load(&**device) {
            Ok(manifest) => manifest.unwrap_or_default(),
            Err(error) => {
                found.damage.push(error);
                found.add_others(device);
                return found;
            }
        };
        for file in manifest.checkpoints.iter().rev() {
            found.listed.push(file.number);
            match CheckpointImage::load(&**device, file.number, Some(file.crc)) {
                Ok((image, _)) => {
                    found.all.push(RestorableCheckpoint::new(image, device));
                }
                Err(error) => found.damage.push(error),
            }
        }
        found
    }

    /// Adds the checkpoints that are not listed and whose files can be read.
    fn add_others(&mut self, device: &Arc<dyn Device>) {
        let names = device.list().unwrap_or_default();
        let mut numbers: Vec<u64> = names.iter().filter_map(|n| checkpoint_of_file(n)).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        for number in numbers.into_iter().filter(|number| !self.listed.contains(number)) {
            match CheckpointImage::load(&**device, number, None) {
                Ok((image, _)) => self.all.push(RestorableCheckpoint::new(image, device)),
                Err(error) => self.damage.push(error),
            }
        }
    }

    /// The checkpoint to salvage, and all that is damaged of manifest and checkpoint files: the one
    /// with this number, listed or not, or the newest listed one that can be read. Without a
    /// manifest that can be read, the newest whose file can be.
    ///
    /// # Errors
    /// There is none.
    pub fn salvage(
        mut self,
        number: Option<u64>,
        directory: &ClosedDirectory,
    ) -> Result<(RestorableCheckpoint, Vec<Error>)> {
        let is_wanted =
            |found: &RestorableCheckpoint| number.is_none_or(|number| found.number() == number);
        if !self.all.iter().any(is_wanted) {
            self.add_others(directory.device());
        }
        match self.all.iter().position(is_wanted) {
            Some(at) => Ok((self.all.swap_remove(at), self.damage)),
            None if number.is_some() => self.choose(number, directory).map(|one| (one, Vec::new())),
            None => Err(self.none(directory)),
        }
    }

    /// The checkpoint with this number, or the one that an open goes on from.
    ///
    /// # Errors
    /// If that one is damaged, the damage: another one is not what was asked for.
    pub fn choose(
        self,
        number: Option<u64>,
        directory: &ClosedDirectory,
    ) -> Result<RestorableCheckpoint> {
        let Some(number) = number.or(self.listed.first().copied()) else {
            let others: Vec<_> = self.all.iter().map(|one| one.number().to_string()).collect();
            return Err(match others.is_empty() {
                true => self.none(directory),
                false => self.none(directory).with("checkpoints there", others.join(", ")),
            });
        };
        let mut all = self.all.into_iter();
        if let Some(found) = all.find(|checkpoint| checkpoint.number() == number) {
            return Ok(found);
        }
        if self.listed.contains(&number) {
            let of_it = |error: &Error| {
                error.context("file").is_some_and(|file| file.ends_with(&checkpoint_name(number)))
            };
            if let Some(error) = self.damage.into_iter().find(of_it) {
                return Err(error);
            }
        }
        let listed: Vec<_> = self.listed.iter().map(u64::to_string).collect();
        let what = format!("no checkpoint {number}; there are: {}", listed.join(", "));
        Err(Error::new(ErrorKind::Missing, what).with("directory", directory.path().display()))
    }

    /// The error for a directory without a checkpoint that can be read.
    pub fn none(self, directory: &ClosedDirectory) -> Error {
        self.damage.into_iter().next().unwrap_or_else(|| {
            let what = "there is no checkpoint in this directory";
            Error::new(ErrorKind::Missing, what).with("directory", directory.path().display())
        })
    }

    /// What a file is that none of these needs, and what becomes of it when the store opens; `None`
    /// if it has its place all the same.
    pub fn meaning_of_other_file(&self, name: &str) -> Option<String> {
        let listed = |number: &u64| self.listed.contains(number);
        let what = if name == MANIFEST {
            return None;
        } else if SegmentId::of_file(name).is_some() {
            "a segment that no checkpoint needs"
        } else if RunId::of_file(name).is_some() {
            "a sorted run that no checkpoint needs"
        } else if checkpoint_of_file(name).as_ref().is_some_and(listed) {
            return Some("a checkpoint that cannot be read".into());
        } else if checkpoint_of_file(name).is_some() {
            "a checkpoint that was sealed and not confirmed"
        } else if name.starts_with("live-") {
            "live records of no checkpoint"
        } else if name == MANIFEST_NEW {
            "a manifest that was being written"
        } else {
            return Some("not a file of a store; left alone".into());
        };
        // What a checkpoint needs that cannot be read, nobody knows.
        let fate = match self.damage.is_empty() {
            true => "removed when the store opens",
            false => "kept, as the damaged checkpoint may need it",
        };
        Some(format!("{what}; {fate}"))
    }
}

impl RestorableCheckpoint {
    fn new(image: CheckpointImage, device: &Arc<dyn Device>) -> Self {
        let (blobs, liveness) = (BlobReader::new(device.clone()), RefCell::default());
        Self { image, blobs, liveness }
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.image.number
    }

    /// The caller's position.
    pub fn position(&self) -> u64 {
        self.image.position
    }

    /// First key group of the store, the one after its last, and how many the job has.
    pub fn key_groups(&self) -> (u16, u16, u16) {
        let (start, end) = self.image.owned;
        (start, end, self.image.key_groups)
    }

    /// Its states, by name.
    pub fn states(&self) -> impl Iterator<Item = StateAt<'_>> {
        let mut states: Vec<_> = self.image.states.iter().collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        states.into_iter().map(|manifest| StateAt { checkpoint: self, manifest })
    }

    /// All files that it needs, but for the manifest.
    pub fn files(&self) -> BTreeSet<String> {
        self.image.files().chain([checkpoint_name(self.number())]).collect()
    }
}

impl<'a> StateAt<'a> {
    /// Its name.
    pub fn name(&self) -> &'a str {
        &self.manifest.name
    }

    /// The primitive it is the state of.
    pub fn primitive(&self) -> &'a str {
        &self.manifest.primitive
    }

    /// The layout that wrote it.
    pub fn layout(&self) -> &'a str {
        &self.manifest.layout
    }

    /// Description of the key's type.
    pub fn key(&self) -> &'a str {
        &self.manifest.key
    }

    /// Description of the value's type.
    pub fn value(&self) -> &'a str {
        &self.manifest.value
    }

    /// Keys, or elements of lists.
    pub fn entries(&self) -> u64 {
        self.manifest.image.entries
    }

    /// What its segments are marked with.
    pub fn fingerprint(&self) -> u64 {
        fingerprint(&self.manifest.name)
    }

    /// Its segments, part after part, in the order in which the layout gave them.
    pub fn segments(&self) -> impl Iterator<Item = SegmentAt<'a>> + use<'a> {
        let (checkpoint, state) = (self.checkpoint, self.manifest);
        state.image.parts.iter().enumerate().flat_map(move |(part, of)| {
            of.segments.iter().map(move |image| SegmentAt { checkpoint, state, part, image })
        })
    }

    /// Its sorted runs.
    pub fn runs(&self) -> impl Iterator<Item = &'a RunInfo> + use<'a> {
        self.manifest.image.runs()
    }

    /// Its parts whose records are in sorted runs.
    pub fn parts_of_runs(&self) -> impl Iterator<Item = &'a ImagePart> + use<'a> {
        self.manifest.image.parts.iter().filter(|part| part.layout == RUNS)
    }

    /// Whether all of it that is not in sorted runs is laid out in one way.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if a part is not.
    pub fn is_laid_out_as(&self, layout: &str) -> Result<()> {
        let parts = &self.manifest.image.parts;
        match parts.iter().find(|part| part.layout != layout && part.layout != RUNS) {
            Some(other) => {
                let what =
                    format!("it is laid out as \"{}\", which is not known here", other.layout);
                Err(Error::new(ErrorKind::Unsupported, what).with("state", self.name()))
            }
            None => Ok(()),
        }
    }
}

impl SegmentAt<'_> {
    /// Which it is.
    pub fn id(&self) -> SegmentId {
        self.image.id
    }

    /// Name of its file.
    pub fn file_name(&self) -> String {
        self.image.id.file_name()
    }

    /// Bytes of its file.
    pub fn bytes(&self) -> u64 {
        self.image.bytes
    }

    /// Records in it.
    pub fn records(&self) -> u64 {
        self.image.records
    }

    /// Records in it that belong to the checkpoint.
    pub fn live_records(&self) -> u64 {
        self.image.live_records
    }

    /// Whether all of its records belong to the checkpoint.
    pub fn is_live_in_full(&self) -> bool {
        self.image.live.is_none() && self.image.live_records == self.image.records
    }

    /// Opens its file, for messages and readers.
    pub fn open(&self, directory: &ClosedDirectory) -> Result<SegmentInfo> {
        self.image.open(&directory.segments())
    }

    /// Opens its file, whatever is in it.
    pub fn open_unchecked(&self, directory: &ClosedDirectory) -> Result<SegmentInfo> {
        self.image.open_unchecked(&directory.segments())
    }

    /// Reads which of its records are live.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] or [`ErrorKind::Missing`] if that is not known any more.
    pub fn live(&self) -> Result<Live> {
        if self.is_live_in_full() {
            return Ok(Live(None));
        }
        let (checkpoint, state) = (self.checkpoint, self.state);
        let part = (state.name.clone(), self.part);
        let known = checkpoint.liveness.borrow().get(&part).cloned();
        let liveness = match known {
            Some(liveness) => liveness,
            None => {
                let read = Rc::new(Liveness::load(
                    &state.image.parts[self.part],
                    Some(&checkpoint.blobs),
                )?);
                checkpoint.liveness.borrow_mut().insert(part, read.clone());
                read
            }
        };
        liveness.of(self.image).map(Live)
    }
}

impl Live {
    /// Whether the record that starts at this grain is live.
    pub fn contains(&self, grain: u32) -> bool {
        self.0.as_ref().is_none_or(|set| set.contains(grain))
    }
}
