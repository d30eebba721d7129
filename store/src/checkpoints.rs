//! Checkpoints: sealed at a point between two operations, confirmed or aborted, retained, restored.
//!
//! What it keeps true:
//! - The manifest lists only checkpoints whose file, and every file that names, is durable.
//! - A file that a listed checkpoint names, or one that is being sealed, is not removed: it is
//!   pinned. Whoever owns a file removes it without regard to checkpoints.
//! - A number is given to one checkpoint only, also when that fails: its files may be half there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alluvium_layouts::{CheckpointOutcome, trace_event, trace_span};
use alluvium_pagestore::io::Device;
use alluvium_pagestore::{
    BlobWriter, CODEC, CheckpointFile, CheckpointImage, Error, ErrorKind, HASH_VERSION, MANIFEST,
    MANIFEST_NEW, Manifest, Result, SegmentId, SegmentStore, StateManifest, blobs_name,
    checkpoint_name, checkpoint_of_file,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, bounded};

use crate::aside::Aside;
use crate::config::StoreConfig;
use crate::sources::Sources;
use crate::state_cell::Hooks;
use crate::store::{BLOB_CHUNK_BYTES, Inner, Store};

/// Between two looks whether the helper has answered.
const MOMENT: Duration = Duration::from_micros(100);

/// What [`Store::checkpoint`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its number, from 1.
    pub number: u64,
    /// The position given by the caller.
    pub position: u64,
    /// Keys in it, over all states.
    pub entries: u64,
}

/// A checkpoint that can be restored, and what it keeps on storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedCheckpoint {
    /// What it is.
    pub checkpoint: Checkpoint,
    /// Bytes of the segments it names.
    pub bytes: u64,
    /// Of these, bytes of segments that no other retained checkpoint names. Those of the newest are
    /// mostly in use; those of an older one go with it.
    pub pinned_bytes: u64,
}

/// The checkpoints of a directory, and the one being sealed.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// Those that the manifest lists, the oldest first.
    retained: Vec<Retained>,
    /// What states that are opened are restored from.
    base: Option<Arc<CheckpointImage>>,
    /// No number up to this is given again.
    last: u64,
    sealing: Option<Sealing>,
}

struct Retained {
    file: CheckpointFile,
    image: Arc<CheckpointImage>,
}

struct Sealing {
    number: u64,
    position: u64,
    blobs: BlobWriter,
    /// The states of the checkpoint: those whose hooks are here have no image yet.
    parts: Vec<(StateManifest, Option<Rc<dyn Hooks>>)>,
    /// Files pinned so far.
    pinned: Vec<String>,
    /// What it says, from when all states have given their part.
    image: Option<Arc<CheckpointImage>>,
    /// The helper makes it durable.
    preparing: Option<Receiver<Result<CheckpointFile>>>,
    /// Durable, with its file.
    prepared: Option<Retained>,
}

/// A checkpoint under way; see [`Store::seal`]. Dropped without a decision, it is aborted, unless it
/// is to be [kept](Seal::keep).
#[must_use = "a checkpoint that is dropped is aborted"]
pub struct Seal {
    store: Store,
    number: u64,
    position: u64,
    kept: bool,
    decided: bool,
    /// Storage has done nothing for so long that nothing is waited for any more.
    stalled: bool,
    /// The helper replaces the manifest by this one.
    committing: Option<(Manifest, Aside<()>)>,
}

impl Seal {
    pub(crate) fn begin(store: &Store, position: u64) -> Result<Self> {
        let inner = &*store.0;
        let segments = inner.segments.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "a store without a directory takes no checkpoints")
        })?;
        inner.sources.as_ref().map_or(Ok(()), Sources::check_all_opened)?;
        inner.units.borrow().iter().try_for_each(|unit| unit.stock().map(drop))?;
        let states = inner.states.borrow();
        if let Some(state) = states.iter().find(|state| state.hooks.poisoned()) {
            let message = "a closure panicked in this state; clear the poison or restore";
            let name = &state.manifest.name;
            return Err(Error::new(ErrorKind::Poisoned, message).with("state", name));
        }
        let mut checkpoints = inner.checkpoints.borrow_mut();
        if let Some(sealing) = &checkpoints.sealing {
            let message = format!("checkpoint {} is still being sealed", sealing.number);
            return Err(Error::new(ErrorKind::InUse, message));
        }
        checkpoints.last += 1;
        let number = checkpoints.last;
        trace_span!(INFO, "seal", number = number, position = position);
        let device = segments.shared_device();
        let mut sealing = Sealing {
            number,
            position,
            blobs: BlobWriter::new(device, number, BLOB_CHUNK_BYTES),
            parts: Vec::new(),
            pinned: Vec::new(),
            image: None,
            preparing: None,
            prepared: None,
        };
        let mut begun = Ok(());
        for state in &*states {
            let name = &state.manifest.name;
            trace_span!(DEBUG, "state", state = name.as_str());
            let manifest = state.manifest_now()?;
            match state.hooks.begin_checkpoint(&mut sealing.blobs) {
                Ok(Some(image)) => {
                    sealing.add(StateManifest { image, ..manifest }, None, segments);
                }
                Ok(None) => sealing.add(manifest, Some(state.hooks.clone()), segments),
                Err(error) => {
                    begun = Err(error.with("state", name));
                    break;
                }
            }
        }
        let carried = checkpoints.base.iter().flat_map(|base| &base.states);
        for state in carried {
            if !states.iter().any(|open| open.manifest.name == state.name) {
                sealing.add(state.clone(), None, segments);
            }
        }
        checkpoints.sealing = Some(sealing);
        drop((checkpoints, states));
        // From here on, what is dropped is aborted.
        let store = store.clone();
        let (kept, decided, stalled) = (false, false, false);
        let seal = Self { store, number, position, kept, decided, stalled, committing: None };
        begun.map(|()| seal)
    }

    /// The checkpoint's number: what [`StoreBuilder::restore`](crate::StoreBuilder::restore) takes.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The position given by the caller.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Does a bounded share of the work, and says whether the checkpoint is durable: from then on it
    /// can be restored by its number, also before it is confirmed.
    ///
    /// # Errors
    /// Those of the device, such as [`ErrorKind::DiskFull`]; [`ErrorKind::InUse`] if a value is
    /// borrowed. Drop this and seal anew, or try again, which not every part can: the states are
    /// intact, and so are older checkpoints.
    pub fn advance(&mut self) -> Result<bool> {
        let inner = &*self.store.0;
        let segments = inner.segments.as_ref().expect("it was begun with a directory");
        let mut checkpoints = inner.checkpoints.borrow_mut();
        let after = checkpoints.base.as_ref().map_or(0, |base| base.number);
        let sealing = checkpoints.sealing.as_mut().expect("one that was begun is there");
        if sealing.prepared.is_some() {
            return Ok(true);
        }
        let Sealing { blobs, parts, pinned, .. } = sealing;
        if let (Some(image), Some(answer)) = (&sealing.image, &sealing.preparing) {
            inner.drive();
            let file = match answer.try_recv() {
                Err(TryRecvError::Empty) => return Ok(false),
                Ok(file) => file,
                Err(TryRecvError::Disconnected) => {
                    Err(Error::new(ErrorKind::Io, "the helper lost the checkpoint's file"))
                }
            };
            sealing.preparing = None;
            sealing.prepared = Some(Retained { file: file?, image: image.clone() });
            trace_event!(DEBUG, "checkpoint sealed", number = self.number);
            return Ok(true);
        }
        for (manifest, hooks) in parts.iter_mut() {
            let Some(working) = hooks else { continue };
            let image = working.continue_checkpoint(blobs);
            let Some(image) = image.map_err(|e| e.with("state", &manifest.name))? else {
                return Ok(false);
            };
            manifest.image = image;
            *hooks = None;
            pin(segments, manifest, pinned);
        }
        let image = Arc::new(CheckpointImage {
            number: sealing.number,
            next_segment: segments.peek_id(),
            hash_version: HASH_VERSION,
            codec: CODEC.into(),
            key_groups: inner.config.key_groups,
            owned: (inner.owned.start, inner.owned.end),
            after,
            position: sealing.position,
            states: sealing.parts.iter().map(|(manifest, _)| manifest.clone()).collect(),
        });
        let (reply, answer) = bounded(1);
        let (blobs, segments) = (sealing.blobs.clone(), segments.clone());
        sealing.image = Some(image.clone());
        sealing.preparing = Some(answer);
        inner.helper.submit(move || {
            let write = || {
                blobs.finish()?;
                // What an attempt before this one may have left.
                segments.remove_file(&checkpoint_name(image.number))?;
                image.write(segments.device())
            };
            // If the checkpoint was given up nobody minds the answer.
            let _ = reply.send(write());
        });
        inner.drive();
        Ok(false)
    }

    /// Has its files left in place from now on if it is dropped, or if it cannot be confirmed: for
    /// one of several stores whose checkpoints count together, once somebody else may have decided
    /// that they do. [`StoreBuilder::restore`](crate::StoreBuilder::restore) restores it by its
    /// number, until this store's next checkpoint is confirmed. Only [`abort`](Seal::abort) removes
    /// it. Without effect before it is durable.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// Makes it the checkpoint that an open restores, waiting until it is durable; older ones beyond
    /// [those retained](crate::StoreBuilder::retain) are dropped.
    ///
    /// # Errors
    /// Those of [`advance`](Seal::advance); [`ErrorKind::Backpressure`] if storage does nothing for as
    /// long as [`StoreConfig::patience_ms`] says. The last checkpoint stays what an open restores,
    /// except that after a device failure while the manifest is replaced it may be either.
    pub fn confirm(mut self) -> Result<Checkpoint> {
        let store = self.store.clone();
        let mut patience = store.0.patience();
        loop {
            if let Some(checkpoint) = self.confirm_some()? {
                return Ok(checkpoint);
            }
            if patience.is_over(store.0.device()) {
                self.stalled = true;
                return Err(patience.error(match &self.committing {
                    Some(_) => "the manifest may be replaced or not",
                    None => "the checkpoint is given up",
                }));
            }
            // What is under way needs its helpers, not this thread.
            std::thread::yield_now();
        }
    }

    /// Does a bounded share of [confirming](Seal::confirm) it: the helper writes. Gives the
    /// checkpoint once it is confirmed; call until then, between steps of the stream. From when it is
    /// durable on, it is not given up any more: who drops it waits for storage, as long as that does
    /// something.
    ///
    /// # Errors
    /// As [`confirm`](Seal::confirm); then it is decided. [`ErrorKind::Config`] if it was already.
    pub fn confirm_some(&mut self) -> Result<Option<Checkpoint>> {
        if self.decided {
            let message = "the checkpoint was confirmed, or could not be";
            return Err(Error::new(ErrorKind::Config, message));
        }
        let Some((_, replacing)) = &self.committing else {
            if self.advance()? {
                self.begin_commit();
            }
            return Ok(None);
        };
        let Some(committed) = replacing.poll() else { return Ok(None) };
        let (manifest, _) = self.committing.take().expect("looked at above");
        self.decided = true;
        self.conclude(&manifest, committed).map(Some)
    }

    /// Has the helper list it in the manifest.
    fn begin_commit(&mut self) {
        let inner = &*self.store.0;
        let segments = inner.segments.as_ref().expect("it was begun with a directory");
        let checkpoints = inner.checkpoints.borrow();
        let sealing = checkpoints.sealing.as_ref().expect("one that was begun is there");
        let files = checkpoints.retained.iter().map(|retained| retained.file);
        let new = sealing.prepared.as_ref().expect("advanced until it was").file;
        // Those that came after the one this store was opened from are not its past.
        let base = checkpoints.base.as_ref().map_or(0, |base| base.number);
        let mut listed: Vec<_> = files.filter(|file| file.number <= base).collect();
        listed.push(new);
        listed.drain(..listed.len().saturating_sub(inner.config.retain));
        let manifest = Manifest { checkpoints: listed };
        let (device, new) = (segments.shared_device(), manifest.clone());
        drop(checkpoints);
        let replacing = self.store.aside("the manifest", move || new.commit(&*device));
        self.committing = Some((manifest, replacing));
    }

    /// The manifest was replaced, or not.
    fn conclude(&self, manifest: &Manifest, committed: Result<()>) -> Result<Checkpoint> {
        let inner = &*self.store.0;
        let segments = inner.segments.as_ref().expect("it was begun with a directory");
        let mut checkpoints = inner.checkpoints.borrow_mut();
        let sealing = checkpoints.sealing.take().expect("one that was begun is there");
        let outcome = match &committed {
            Ok(()) => CheckpointOutcome::Committed,
            Err(_) if self.kept || is_committed(segments.device(), self.number) => {
                CheckpointOutcome::Unknown
            }
            Err(_) => CheckpointOutcome::Abandoned,
        };
        match &committed {
            Ok(()) => trace_event!(INFO, "checkpoint committed", number = self.number),
            Err(error) => {
                trace_event!(WARN, "checkpoint failed", error = error.to_string().as_str());
            }
        }
        match outcome {
            CheckpointOutcome::Abandoned => sealing.give_up(segments, inner, false),
            CheckpointOutcome::Committed | CheckpointOutcome::Unknown => {
                let Sealing { prepared, .. } = sealing;
                let prepared = prepared.expect("looked at above");
                // Nobody but checkpoints needs this file.
                let _ = segments.remove_file(&blobs_name(self.number));
                if outcome == CheckpointOutcome::Committed {
                    checkpoints.base = Some(prepared.image.clone());
                    checkpoints.drop_unlisted(manifest, segments);
                }
                checkpoints.retained.push(prepared);
            }
        }
        let entries = checkpoints.base().map_or(0, |base| entries_of(base));
        drop(checkpoints);
        self.tell(outcome);
        committed.map(|()| Checkpoint { number: self.number, position: self.position, entries })
    }

    /// Gives it up: what only it needs is removed.
    pub fn abort(mut self) {
        self.kept = false;
    }

    /// Tells the states what became of it.
    fn tell(&self, outcome: CheckpointOutcome) {
        for state in &*self.store.0.states.borrow() {
            state.hooks.checkpointed(outcome);
        }
    }
}

impl Drop for Seal {
    fn drop(&mut self) {
        let store = self.store.clone();
        let inner = &*store.0;
        let mut patience = inner.patience();
        // What is being confirmed is not given up.
        while self.committing.is_some() && matches!(self.confirm_some(), Ok(None)) {
            self.stalled |= patience.is_over(inner.device());
            if self.stalled {
                // Which of the two it is will be known when storage goes on.
                self.kept = true;
                break;
            }
            std::thread::sleep(MOMENT);
        }
        if self.decided {
            return;
        }
        let segments = inner.segments.as_ref().expect("it was begun with a directory");
        let sealing = inner.checkpoints.borrow_mut().sealing.take();
        match sealing {
            Some(Sealing { prepared: Some(prepared), .. }) if self.kept => {
                // Nobody but checkpoints needs this file.
                let _ = segments.remove_file(&blobs_name(self.number));
                inner.checkpoints.borrow_mut().retained.push(prepared);
                self.tell(CheckpointOutcome::Unknown);
            }
            sealing => {
                // First, so that no helper writes a file that was removed.
                self.tell(CheckpointOutcome::Abandoned);
                // What is given up may wait for the helper, which is told by others too.
                if let Some(sealing) = sealing {
                    sealing.give_up(segments, inner, self.stalled);
                }
            }
        }
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal({} at {})", self.number, self.position)
    }
}

impl Sealing {
    fn add(
        &mut self,
        manifest: StateManifest,
        hooks: Option<Rc<dyn Hooks>>,
        segments: &SegmentStore,
    ) {
        if hooks.is_none() {
            pin(segments, &manifest, &mut self.pinned);
        }
        self.parts.push((manifest, hooks));
    }

    /// Removes what was made: now, or by the helper when it is done with it, if storage does nothing.
    fn give_up(self, segments: &SegmentStore, inner: &Inner, mut is_stalled: bool) {
        let mut patience = inner.patience();
        if let Some(answer) = &self.preparing {
            while let Err(RecvTimeoutError::Timeout) = answer.recv_timeout(MOMENT) {
                inner.drive();
                is_stalled |= patience.is_over(inner.device());
                if is_stalled {
                    break;
                }
            }
        }
        segments.unpin(self.pinned.iter().map(String::as_str));
        let (blobs, number, store) = (self.blobs, self.number, segments.clone());
        let remove = move || {
            blobs.abandon();
            // One that cannot be removed now is removed at the next open.
            let _ = store.remove_file(&checkpoint_name(number));
        };
        match self.preparing {
            Some(_) if is_stalled => inner.helper.submit(remove),
            _ => remove(),
        }
    }
}

/// Pins the files of a state, and notes that it has.
fn pin(segments: &SegmentStore, state: &StateManifest, pinned: &mut Vec<String>) {
    let files: BTreeSet<_> = state.files().collect();
    segments.pin(files.iter().map(String::as_str));
    pinned.extend(files);
}

/// The same files as often as [`pin`] pins them.
fn pinned_by(image: &CheckpointImage) -> Vec<String> {
    image.states.iter().flat_map(|state| state.files().collect::<BTreeSet<_>>()).collect()
}

/// Whether the manifest is, as far as can be seen, one that lists checkpoint `number`.
fn is_committed(device: &dyn Device, number: u64) -> bool {
    // A device that cannot be read may have either.
    Manifest::load(device)
        .map_or(true, |m| m.is_some_and(|m| m.checkpoints.iter().any(|c| c.number == number)))
}

pub(crate) fn entries_of(image: &CheckpointImage) -> u64 {
    image.states.iter().map(|state| state.image.entries).sum()
}

impl Checkpoints {
    /// Reads the manifest and the checkpoints it lists, and removes files that none of them names;
    /// says how many.
    pub(crate) fn recover(
        device: Arc<dyn Device>,
        config: &StoreConfig,
        owned: &Range<u16>,
        restore: Option<u64>,
    ) -> Result<(Self, SegmentStore, u64)> {
        let mut manifest = match Manifest::load(&*device)? {
            Some(manifest) => manifest,
            None if restore.is_none() => {
                check_never_had_one(&*device)?;
                Manifest::default()
            }
            None => Manifest::default(),
        };
        let mut found = Self::default();
        let mut unreadable = Vec::new();
        for file in &manifest.checkpoints {
            match CheckpointImage::load(&*device, file.number, Some(file.crc)) {
                Ok((image, file)) => found.retained.push(Retained { file, image: Arc::new(image) }),
                Err(error) => unreadable.push((file.number, error)),
            }
        }
        let listed_before = manifest.checkpoints.len();
        found.base = found.choose(&mut manifest, &*device, unreadable.as_mut(), restore)?;
        let mut next_segment = 1;
        for Retained { image, .. } in &found.retained {
            next_segment = next_segment.max(image.next_segment);
            found.last = found.last.max(image.number);
        }
        found.last = unreadable.iter().fold(found.last, |last, (number, _)| last.max(*number));
        if let Some(base) = &found.base {
            check_groups(base, config, owned)?;
        }
        if manifest.checkpoints.len() > listed_before {
            // One that was sealed and not confirmed. It is what an open finds from now on, so that
            // it has to be whole.
            check_files(found.base.as_ref().expect("it was chosen"), &device.list()?)?;
            manifest.commit(&*device)?;
        }
        let needed: BTreeSet<String> =
            found.retained.iter().flat_map(|retained| retained.image.files()).collect();
        let mut leftovers = Vec::new();
        for name in device.list()?.into_iter().filter(|name| name != MANIFEST) {
            let id = SegmentId::of_file(&name).map(|id| id.0);
            let checkpoint = checkpoint_of_file(&name);
            next_segment = id.map_or(next_segment, |id| next_segment.max(id + 1));
            found.last = checkpoint.map_or(found.last, |number| found.last.max(number));
            let listed = |number| manifest.checkpoints.iter().any(|file| file.number == number);
            let ours = id.is_some() || checkpoint.is_some() || is_blobs(&name);
            if (ours || name == MANIFEST_NEW)
                && !needed.contains(&name)
                && !checkpoint.is_some_and(listed)
            {
                leftovers.push(name);
            }
        }
        // What a checkpoint names that cannot be read, nobody knows: then nothing is left over.
        let removed = if unreadable.is_empty() { leftovers.len() as u64 } else { 0 };
        if unreadable.is_empty() {
            leftovers.iter().try_for_each(|name| device.remove(name))?;
        }
        let segments = SegmentStore::new(device, next_segment);
        found.pin_all(&segments);
        Ok((found, segments, removed))
    }

    /// The checkpoint to restore: the newest, or the one asked for, which is added to those listed if
    /// it is not among them.
    fn choose(
        &mut self,
        manifest: &mut Manifest,
        device: &dyn Device,
        unreadable: &mut [(u64, Error)],
        restore: Option<u64>,
    ) -> Result<Option<Arc<CheckpointImage>>> {
        let newest = manifest.checkpoints.last().map(|file| file.number);
        let Some(number) = restore.or(newest) else { return Ok(None) };
        if let Some(found) = self.retained.iter().find(|r| r.file.number == number) {
            return Ok(Some(found.image.clone()));
        }
        let there: Vec<_> = self.retained.iter().map(|r| r.file.number.to_string()).collect();
        let there = if there.is_empty() { "no other".into() } else { there.join(", ") };
        if let Some((_, error)) = unreadable.iter_mut().find(|(damaged, _)| *damaged == number) {
            let error = std::mem::replace(error, Error::new(ErrorKind::Corrupt, "told"));
            return Err(error.with("checkpoint", number).with("can be restored", there));
        }
        // One that was sealed and not confirmed.
        let loaded = CheckpointImage::load(device, number, None);
        let (image, file) = loaded.map_err(|error| match error.kind() {
            ErrorKind::Missing => {
                let message = format!("checkpoint {number} is not in the directory");
                Error::new(ErrorKind::Missing, message).with("can be restored", there)
            }
            _ => error,
        })?;
        manifest.checkpoints.push(file);
        manifest.checkpoints.sort_by_key(|file| file.number);
        let image = Arc::new(image);
        self.retained.push(Retained { file, image: image.clone() });
        self.retained.sort_by_key(|retained| retained.file.number);
        Ok(Some(image))
    }

    /// Pins what the checkpoints name. What the one restored names belongs to its states; the rest
    /// is kept by its pins only.
    fn pin_all(&self, segments: &SegmentStore) {
        let base: BTreeSet<String> =
            self.base.iter().flat_map(|image| image.files()).filter(|n| !is_blobs(n)).collect();
        for Retained { image, .. } in &self.retained {
            let files = pinned_by(image);
            segments.pin(files.iter().map(String::as_str));
            for name in files.iter().filter(|name| !base.contains(*name)) {
                // It is pinned, so that nothing is removed that could fail.
                let _ = segments.remove_file(name);
            }
        }
    }

    /// Drops the checkpoints that the manifest does not list any more.
    fn drop_unlisted(&mut self, manifest: &Manifest, segments: &SegmentStore) {
        self.retained.retain(|Retained { file, image }| {
            let listed = manifest.checkpoints.contains(file);
            if !listed {
                segments.unpin(pinned_by(image).iter().map(String::as_str));
                // One that cannot be removed now is removed at the next open.
                let _ = segments.remove_file(&checkpoint_name(file.number));
            }
            listed
        });
    }

    /// What states that are opened are restored from: the last checkpoint.
    pub(crate) fn base(&self) -> Option<&Arc<CheckpointImage>> {
        self.base.as_ref()
    }

    /// What each retained checkpoint keeps on storage.
    pub(crate) fn describe(&self) -> Vec<RetainedCheckpoint> {
        let mut named: BTreeMap<SegmentId, u32> = BTreeMap::new();
        let segments = |image: &CheckpointImage| {
            let all = image.states.iter().flat_map(|state| &state.image.segments);
            all.map(|segment| (segment.id, segment.bytes)).collect::<Vec<_>>()
        };
        for Retained { image, .. } in &self.retained {
            segments(image).iter().for_each(|(id, _)| *named.entry(*id).or_default() += 1);
        }
        let describe = |Retained { image, .. }: &Retained| {
            let (number, position) = (image.number, image.position);
            let checkpoint = Checkpoint { number, position, entries: entries_of(image) };
            let all = segments(image);
            let only = all.iter().filter(|(id, _)| named[id] == 1);
            let pinned_bytes = only.map(|(_, bytes)| bytes).sum();
            let bytes = all.iter().map(|(_, bytes)| bytes).sum();
            RetainedCheckpoint { checkpoint, bytes, pinned_bytes }
        };
        self.retained.iter().map(describe).collect()
    }
}

/// Whether a directory without a manifest has never had one: else a checkpoint in it says that another
/// was confirmed before. Nothing of it is taken for left over then.
fn check_never_had_one(device: &dyn Device) -> Result<()> {
    let names = device.list()?;
    let numbers: BTreeSet<u64> = names.iter().filter_map(|name| checkpoint_of_file(name)).collect();
    // One that cannot be read tells nothing.
    let image = |number: &u64| CheckpointImage::load(device, *number, None).ok();
    if !numbers.iter().filter_map(image).any(|(image, _)| image.after > 0) {
        return Ok(());
    }
    let there: Vec<_> = numbers.iter().map(u64::to_string).collect();
    let message = "the directory has lost its manifest; a checkpoint can be restored by its number";
    let error = Error::new(ErrorKind::Missing, message).with("file", MANIFEST);
    Err(error.with("can be restored", there.join(", ")))
}

fn check_groups(image: &CheckpointImage, config: &StoreConfig, owned: &Range<u16>) -> Result<()> {
    if (image.key_groups, image.owned) == (config.key_groups, (owned.start, owned.end)) {
        return Ok(());
    }
    let message = format!(
        "the directory has key groups {}..{} of {}, asked for are {}..{} of {}",
        image.owned.0, image.owned.1, image.key_groups, owned.start, owned.end, config.key_groups
    );
    Err(Error::new(ErrorKind::Mismatch, message))
}

/// Whether every file is there that a checkpoint names.
fn check_files(image: &CheckpointImage, names: &[String]) -> Result<()> {
    let there: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    match image.files().find(|file| !there.contains(&**file)) {
        Some(file) => {
            let message = format!("checkpoint {} needs a file that is not there", image.number);
            Err(Error::new(ErrorKind::Missing, message).with("file", file))
        }
        None => Ok(()),
    }
}

/// Whether this is the name of a file of live records.
fn is_blobs(name: &str) -> bool {
    let number = name.strip_prefix("live-").and_then(|n| u64::from_str_radix(n, 16).ok());
    number.is_some_and(|number| blobs_name(number) == name)
}
