//! Restoring by key groups: a new store takes its states from checkpoints of other stores.
//!
//! What it keeps true:
//! - The other stores' directories are read only, and kept from being opened while they are read;
//!   any number of stores may read one at the same time.
//! - Every key group that the new store owns is in exactly one source, of each state: groups of states
//!   that move may be in another store than the rest.
//! - Nothing is left out unasked: no checkpoint is taken while a state that the sources have is not
//!   open.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alluvium_layouts::{ForeignState, StateContext};
use alluvium_pagestore::io::{Device, IoOptions, Patient, ReadOnly, open_device_to_read};
use alluvium_pagestore::{
    Account, CheckpointImage, Error, ErrorKind, FileName, KeyGroups, Manifest, Result,
    SegmentStore, SortedSet, StateManifest, Time, sort_rarely,
};

use crate::durability::checkpoints::{Checkpoint, damaged_manifest, entries_of, whole_checkpoints};
use crate::store::config::StoreConfig;
use crate::store::definition;

/// A checkpoint of another store, for
/// [`StoreBuilder::restore_from`](crate::StoreBuilder::restore_from).
///
/// ```
/// use alluvium::{MIB, Store};
/// use alluvium::moving::Source;
///
/// # let place = tempfile::tempdir().unwrap();
/// let (old, new) = (place.path().join("old"), place.path().join("new"));
/// let store = Store::builder(&old).memory(16 * MIB).open()?;
/// store.count::<String>("words").open()?.add("be", 2)?;
/// let first = store.checkpoint(1)?.number;
/// drop(store);
///
/// let source = Source::directory(&old).checkpoint(first);
/// let store = Store::builder(&new).memory(16 * MIB).restore_from([source]).open()?;
/// assert_eq!(store.count::<String>("words").open()?.get("be")?, 2);
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Source {
    place: SourceLocation,
    checkpoint: Option<u64>,
}

#[derive(Clone, Debug)]
enum SourceLocation {
    Directory(PathBuf),
    Device(Arc<dyn Device>),
}

impl Source {
    /// Takes the checkpoint that an open of this directory would restore: the last that was
    /// confirmed, or the last [restored](crate::StoreBuilder::restore) by its number.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self { place: SourceLocation::Directory(path.into()), checkpoint: None }
    }

    /// Takes the same of the store on this device.
    pub fn device(device: Arc<dyn Device>) -> Self {
        Self { place: SourceLocation::Device(device), checkpoint: None }
    }

    /// Takes this checkpoint instead: one that is retained, or was completely sealed.
    #[must_use]
    pub fn checkpoint(mut self, number: u64) -> Self {
        self.checkpoint = Some(number);
        self
    }

    /// What messages call it, the `nth` of several.
    fn name(&self, nth: usize) -> String {
        match &self.place {
            SourceLocation::Directory(path) => path.display().to_string(),
            SourceLocation::Device(_) => format!("device {nth}"),
        }
    }
}

impl<P: Into<PathBuf>> From<(P, Option<u64>)> for Source {
    fn from((path, checkpoint): (P, Option<u64>)) -> Self {
        Self { place: SourceLocation::Directory(path.into()), checkpoint }
    }
}

/// A checkpoint that a store was restored from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredFrom {
    /// The directory.
    pub source: String,
    /// The checkpoint there.
    pub checkpoint: Checkpoint,
    /// Key groups that its store owned.
    pub owned: Range<u16>,
}

/// The checkpoints that a store is restored from.
pub(crate) struct Sources {
    /// Those that have key groups of the store, until all states are restored.
    opened: RefCell<Vec<Rc<OpenedSource>>>,
    pub(crate) restored_from: Vec<RestoredFrom>,
    /// States that have something and were not opened.
    unopened: RefCell<SortedSet<String>>,
}

struct OpenedSource {
    name: String,
    image: CheckpointImage,
    segments: SegmentStore,
    /// Declared last: the directory is free when nothing reads there any more.
    _lock: Box<dyn Send + Sync>,
}

impl OpenedSource {
    fn open(source: &Source, nth: usize, io: &IoOptions, patience: Duration) -> Result<Self> {
        let name = source.name(nth);
        let device: Arc<dyn Device> = match &source.place {
            SourceLocation::Directory(path) => open_device_to_read(path, io)?,
            SourceLocation::Device(device) => Arc::new(ReadOnly::new(device.clone())),
        };
        let device: Arc<dyn Device> = Arc::new(Patient::new(device, patience));
        let lock = device.lock_to_read()?;
        let manifest = match Manifest::load(&*device) {
            // The checkpoint that is asked for tells by itself whether it is sound.
            Err(error) if error.kind() == ErrorKind::Corrupt && source.checkpoint.is_some() => None,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Err(damaged_manifest(&whole_checkpoints(&*device)?, error));
            }
            manifest => manifest?,
        };
        let manifest = manifest.unwrap_or_default();
        let listed = |number| manifest.checkpoints.iter().find(|file| file.number == number);
        let last = manifest.checkpoints.last().map(|file| file.number);
        let Some(number) = source.checkpoint.or(last) else {
            return Err(Error::new(ErrorKind::Missing, "there is no checkpoint"));
        };
        let crc = listed(number).map(|file| file.crc);
        let (image, _) = CheckpointImage::load(&*device, number, crc).map_err(|error| {
            let there: Vec<_> = manifest.checkpoints.iter().map(|c| c.number.to_string()).collect();
            error.with("checkpoint", number).with("listed", there.join(", "))
        })?;
        Ok(Self {
            name,
            segments: SegmentStore::new(device, image.next_segment),
            image,
            _lock: lock,
        })
    }

    fn owned(&self) -> Range<u16> {
        self.image.owned.0..self.image.owned.1
    }

    /// The key groups that a state has here; of one that is not here, those it would have.
    fn groups_of(&self, state: &str) -> KeyGroups {
        let own = self.state(state).and_then(|state| state.groups.clone());
        own.unwrap_or_else(|| self.owned().into())
    }

    /// Whether some state has a key group of the range, or may have one.
    fn has_some_of(&self, range: &Range<u16>) -> bool {
        let moved = self.image.states.iter().filter_map(|state| state.groups.as_ref());
        let mut all = moved.cloned().chain([self.owned().into()]);
        all.any(|groups| groups.count_in(range) > 0)
    }

    fn check_files(&self) -> Result<()> {
        let there = self.segments.device().list()?;
        let there = SortedSet::of(there.iter().map(|name| FileName::from(&**name)));
        match self.image.file_names().find(|file| !there.contains(file)) {
            Some(file) => {
                let message = "a file that the checkpoint names is not there";
                Err(Error::new(ErrorKind::Missing, message).with("file", file.to_string()))
            }
            None => Ok(()),
        }
    }

    fn state(&self, name: &str) -> Option<&StateManifest> {
        self.image.states.iter().find(|state| state.name == name)
    }
}

impl Sources {
    /// Bytes that devices have of reads that were given up.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.opened.borrow().iter().map(|one| one.segments.left_bytes()).sum()
    }

    /// Opens the checkpoints and checks that they are what the store can be made of.
    pub(crate) fn open(
        sources: &[Source],
        config: &StoreConfig,
        owned: &Range<u16>,
    ) -> Result<Self> {
        let mut opened = Vec::new();
        for (nth, source) in sources.iter().enumerate() {
            let patience = Duration::from_millis(config.patience_ms);
            let one = OpenedSource::open(source, nth, &config.io, patience);
            let one = one.map_err(|error| error.with("source", source.name(nth)))?;
            if one.image.key_groups != config.key_groups {
                let (theirs, ours) = (one.image.key_groups, config.key_groups);
                let message = format!("the source has {theirs} key groups, this store has {ours}");
                return Err(Error::new(ErrorKind::Mismatch, message).with("source", one.name));
            }
            opened.push(Rc::new(one));
        }
        // What is wholly outside is not looked at any more.
        opened.retain(|one| one.has_some_of(owned));
        check_all_groups(&opened, owned)?;
        check_types(&opened)?;
        for one in &opened {
            one.check_files().map_err(|error| error.with("source", &one.name))?;
        }
        let restored_from = opened.iter().map(|one| {
            let CheckpointImage { number, position, .. } = one.image;
            let checkpoint = Checkpoint { number, position, entries: entries_of(&one.image) };
            RestoredFrom { source: one.name.clone(), checkpoint, owned: one.owned() }
        });
        let states = opened.iter().flat_map(|one| &one.image.states);
        let unopened = states.filter(|state| state.image.entries > 0);
        Ok(Self {
            restored_from: restored_from.collect(),
            unopened: RefCell::new(SortedSet::of(unopened.map(|state| state.name.clone()))),
            opened: RefCell::new(opened),
        })
    }

    /// The position of all of them, if they have the same.
    pub(crate) fn position(&self) -> Option<u64> {
        let mut positions = self.restored_from.iter().map(|from| from.checkpoint.position);
        let first = positions.next()?;
        positions.all(|position| position == first).then_some(first)
    }

    /// What some source says of a state: one that has its definition, if any has.
    pub(crate) fn state(&self, name: &str) -> Option<StateManifest> {
        let opened = self.opened.borrow();
        let mut states = opened.iter().filter_map(|one| one.state(name));
        let first = states.next()?;
        let defined = [first].into_iter().chain(states).find(|state| state.definition.is_some());
        Some(defined.unwrap_or(first).clone())
    }

    /// Entries of a state that were touched last before this are over in some source.
    pub(crate) fn over(&self, name: &str) -> Option<Time> {
        self.opened.borrow().iter().filter_map(|one| one.state(name)?.over).max()
    }

    /// What the sources say of their states, each state once.
    pub(crate) fn states(&self) -> Vec<StateManifest> {
        let opened = self.opened.borrow();
        let names = opened.iter().flat_map(|one| &one.image.states).map(|state| &*state.name);
        let names = SortedSet::of(names);
        names.as_slice().iter().filter_map(|name| self.state(name)).collect()
    }

    /// The parts of a state that is opened with this context; reading them books on `account`.
    pub(crate) fn parts(
        &self,
        asked: &StateManifest,
        context: &StateContext,
        account: &Rc<Account>,
    ) -> Vec<SourcePart> {
        let part = |one: &Rc<OpenedSource>| {
            let stored = one.state(&asked.name)?;
            let account = account.clone();
            let part = ForeignState {
                context: StateContext {
                    account,
                    segments: Some(one.segments.clone()),
                    // A table whose key groups move is for all of them.
                    owned: match &stored.groups {
                        Some(_) => 0..context.key_groups,
                        None => one.owned(),
                    },
                    movable: stored.groups.is_some(),
                    restored: None,
                    ..context.clone()
                },
                layout: stored.layout.clone(),
                image: stored.image.clone(),
                has: one.groups_of(&asked.name),
                going: stored.going.clone(),
                wanted: context.owned.clone(),
                // A value belongs to the store that owns the key group of `()`; others may have one.
                strict: !asked.primitive.starts_with("value"),
            };
            Some(SourcePart { part, source: one.name.clone() })
        };
        self.opened.borrow().iter().filter_map(part).collect()
    }

    /// A state is restored, or to be left out: when it was the last, the sources are let go.
    pub(crate) fn done_with(&self, state: &str) -> bool {
        let was_there = self.unopened.borrow_mut().remove(state);
        if self.unopened.borrow().is_empty() {
            self.opened.borrow_mut().clear();
        }
        was_there
    }

    /// Names of the states that are not open.
    pub(crate) fn unopened(&self) -> Vec<String> {
        self.unopened.borrow().as_slice().to_vec()
    }

    /// Refuses a checkpoint that would not have all that the sources have.
    pub(crate) fn check_all_opened(&self) -> Result<()> {
        let unopened = self.unopened();
        if unopened.is_empty() {
            return Ok(());
        }
        let message = "states of the checkpoints that this store is restored from are not open; open \
                       them, or leave them out";
        Err(Error::new(ErrorKind::Mismatch, message).with("states", unopened.join(", ")))
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.restored_from).finish()
    }
}

/// A part of a state, and where it is from.
pub(crate) struct SourcePart {
    pub(crate) part: ForeignState,
    pub(crate) source: String,
}

impl SourcePart {
    /// Runs `read`, whose errors name the source.
    pub(crate) fn read(&self, read: impl FnOnce(&ForeignState) -> Result<()>) -> Result<()> {
        read(&self.part).map_err(|error| error.with("source", &self.source))
    }
}

/// Each wanted key group is in exactly one source, also of each state whose key groups have moved.
fn check_all_groups(opened: &[Rc<OpenedSource>], owned: &Range<u16>) -> Result<()> {
    check_groups(opened, owned, |one| one.owned().into())?;
    let states = opened.iter().flat_map(|one| &one.image.states);
    let moving = states.filter(|state| state.groups.is_some());
    let moving = SortedSet::of(moving.map(|state| &*state.name));
    for name in moving {
        let checked = check_groups(opened, owned, |one| one.groups_of(name));
        checked.map_err(|error| error.with("state", name))?;
    }
    Ok(())
}

fn check_groups(
    opened: &[Rc<OpenedSource>],
    owned: &Range<u16>,
    groups_of: impl Fn(&OpenedSource) -> KeyGroups,
) -> Result<()> {
    let mut ranges: Vec<(Range<u16>, &String)> = Vec::new();
    for one in opened {
        ranges.extend(groups_of(one).within(owned).map(|range| (range, &one.name)));
    }
    sort_rarely(&mut ranges, |(range, name)| (range.start, range.end, *name));
    let mut next = owned.start;
    let missing = |from: u16, to: u16| {
        let message = format!("key groups {from}..{to} are in none of the checkpoints");
        Err(Error::new(ErrorKind::Mismatch, message))
    };
    for (nth, (range, name)) in ranges.iter().enumerate() {
        if range.start > next {
            return missing(next, range.start);
        }
        if nth > 0 && range.start < next {
            let (before, other) = &ranges[nth - 1];
            let (from, to) = (range.start, before.end.min(range.end));
            let message = format!("key groups {from}..{to} are in two of the checkpoints");
            let error = Error::new(ErrorKind::Mismatch, message);
            return Err(error.with("source", other).with("and source", name));
        }
        next = range.end;
    }
    if next < owned.end { missing(next, owned.end) } else { Ok(()) }
}

/// A state is of the same types in all sources.
fn check_types(opened: &[Rc<OpenedSource>]) -> Result<()> {
    for (nth, one) in opened.iter().enumerate() {
        for state in &one.image.states {
            for other in &opened[..nth] {
                let Some(known) = other.state(&state.name) else { continue };
                for (what, a, b) in [
                    ("primitive", &known.primitive, &state.primitive),
                    ("key type", &known.key, &state.key),
                    ("value type", &known.value, &state.value),
                ] {
                    if a != b {
                        let message = format!("the {what} is {a} in one source and {b} in another");
                        return Err(Error::new(ErrorKind::Mismatch, message)
                            .with("state", &state.name)
                            .with("source", &other.name)
                            .with("and source", &one.name));
                    }
                }
                let (a, b) = (known.definition.as_ref(), state.definition.as_ref());
                let (a, b) = ((a, "in one source"), (b, "in another"));
                definition::check_same(&state.name, a, b)
                    .map_err(|e| e.with("source", &other.name).with("and source", &one.name))?;
            }
        }
    }
    Ok(())
}
