//! One checkpoint under way: sealed, advanced in shares, confirmed or given up.
//!
//! What it keeps true:
//! - A checkpoint is listed only when all that it names is durable, and decided once: confirmed, given
//!   up, or left for the next open to find out.
//! - Shares do not wait for a device. [`Seal::confirm`] and dropping do, as long as it does something.

use std::fmt;
use std::sync::Arc;

use alluvium_layouts::{CheckpointOutcome, Pace, trace_event, trace_span};
use alluvium_pagestore::io::Device;
use alluvium_pagestore::{
    BlobWriter, CODEC, CheckpointImage, Error, ErrorKind, HASH_VERSION, Manifest, Result,
    StateManifest, Time, blobs_name,
};

use alluvium_pagestore::mailbox::{TryRecvError, mailbox};

use super::{
    Checkpoint, Checkpoints, MOMENT, Retained, SealedState, SealingCheckpoint, entries_of, pin,
};
use crate::cells::pacing::{Shares, Stream};
use crate::durability::sources::Sources;
use crate::store::aside::Aside;
use crate::store::{BLOB_CHUNK_BYTES, Store, StoreCore, kept};

/// A checkpoint in progress; see [`Store::seal`]. Dropping it aborts the checkpoint, unless you
/// have called [`keep`](Seal::keep).
///
/// ```
/// use alluvium::{MIB, Store};
///
/// # let place = tempfile::tempdir().unwrap();
/// # let directory = place.path();
/// let store = Store::builder(directory).memory(16 * MIB).open()?;
/// let mut words = store.count::<String>("words").open()?;
/// words.add("be", 1)?;
/// let mut seal = store.seal(1)?;
/// let checkpoint = loop {
///     words.add("not", 1)?; // the stream continues; this is not in the checkpoint
///     if let Some(checkpoint) = seal.confirm_step()? {
///         break checkpoint;
///     }
/// };
/// assert_eq!((checkpoint.position, checkpoint.entries), (1, 1));
/// # Ok::<(), alluvium::Error>(())
/// ```
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
    committing: Option<(Manifest, Aside<Committed>)>,
}

/// Memory is short if less than such a part is free: then states are taken one after the other.
const FREE_SHARE: u64 = 8;

/// How replacing the manifest went, and what became of the checkpoint.
type Committed = (Result<()>, CheckpointOutcome);

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
        inner.kept_back.lend();
        let _lenient = inner.root.lend_to_checkpoint();
        checkpoints.last += 1;
        let number = checkpoints.last;
        trace_span!(INFO, "seal", number = number, position = position);
        let device = segments.shared_device();
        let began = inner.clock.now();
        let before = checkpoints.sealed_at.replace(began).unwrap_or(began);
        let mut sealing = SealingCheckpoint {
            number,
            position,
            began,
            interval: nanos_between(before, began),
            blobs: BlobWriter::new(device, number, BLOB_CHUNK_BYTES),
            parts: Vec::new(),
            turn: 0,
            shares: Shares::none(calls_of(inner)),
            without: inner.dropped.borrow().clone(),
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
        let dropped = inner.dropped.borrow();
        for state in checkpoints.base.iter().flat_map(|base| kept(base, &dropped)) {
            if !states.iter().any(|open| open.manifest.name == state.name) {
                sealing.add(state.clone(), None, segments);
            }
        }
        drop(dropped);
        checkpoints.sealing = Some(sealing);
        inner.kept_back.seal();
        drop((checkpoints, states));
        // From here on, what is dropped is aborted.
        let store = store.clone();
        let (kept, decided, stalled) = (false, false, false);
        let seal = Self { store, number, position, kept, decided, stalled, committing: None };
        begun.map(|()| seal)
    }

    /// Returns the checkpoint's number, for
    /// [`StoreBuilder::restore`](crate::StoreBuilder::restore).
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the position that the caller gave.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Does a bounded step of the work. Returns whether the checkpoint is durable: then it can be
    /// restored by its number, also before it is confirmed.
    ///
    /// # Errors
    /// Those of the device, such as [`ErrorKind::DiskFull`]. [`ErrorKind::OverBudget`] if there is
    /// no memory for it. [`ErrorKind::InUse`] if a value is borrowed. Drop this and seal again. You
    /// may also call again, but not every part can continue; none can after
    /// [`ErrorKind::Overtaken`]. States and older checkpoints are intact.
    pub fn advance(&mut self) -> Result<bool> {
        let inner = &*self.store.0;
        let segments = inner.segments.as_ref().expect("it was begun with a directory");
        let _lenient = inner.root.lend_to_checkpoint();
        let mut checkpoints = inner.checkpoints.borrow_mut();
        let Checkpoints { sealing, base, .. } = &mut *checkpoints;
        let sealing = sealing.as_mut().expect("one that was begun is there");
        if sealing.shares.is_early() {
            return Ok(false);
        }
        if sealing.prepared.is_some() {
            return Ok(true);
        }
        if let (Some(image), Some(answer)) = (&sealing.image, &sealing.preparing) {
            inner.drive();
            let file = match answer.try_recv() {
                Err(TryRecvError::Empty) => {
                    sealing.shares.rest(calls_of(inner));
                    return Ok(false);
                }
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
        let root = self.store.root();
        let is_short = root.available() < root.limit() / FREE_SHARE;
        let Some(moves) = sealing.shares.next(calls_of(inner), is_short) else {
            return Ok(false);
        };
        let by_clock = match sealing.interval {
            0 => 0,
            interval => Pace::gone_of(nanos_between(sealing.began, inner.clock.now()), interval),
        };
        if let Some(at) = sealing.next_part(is_short) {
            let others = sealing.has_others(at);
            // Who waits until this one is whole has records changed before they are copied.
            let by_clock = if is_short && others { Pace::WHOLE } else { by_clock };
            let SealingCheckpoint { blobs, parts, .. } = sealing;
            let SealedState { manifest, taking, waits, was_refused, refusal } = &mut parts[at];
            let working = taking.as_ref().expect("it has the turn");
            let share = working.pace_checkpoint(Stream { by_clock, moves });
            let image = share.and_then(|()| working.continue_checkpoint(blobs));
            match image.map_err(|e| e.with("state", &manifest.name)) {
                Ok(None) => {
                    *refusal = None;
                    return Ok(false);
                }
                Ok(Some(image)) => {
                    manifest.image = image;
                    *taking = None;
                    pin(segments, manifest);
                    // Its memory is there for others.
                    parts.iter_mut().for_each(|part| part.waits = false);
                    if parts.iter().any(|part| part.taking.is_some()) {
                        return Ok(false);
                    }
                }
                Err(error)
                    if error.kind() == ErrorKind::OverBudget && (others || !*was_refused) =>
                {
                    (*waits, *was_refused, *refusal) = (true, true, Some(error));
                    return Ok(false);
                }
                // One that could not be tried again says why.
                Err(error) if error.kind() != ErrorKind::OverBudget => {
                    return Err(match refusal.take() {
                        Some(refusal) => refusal.caused_by(error),
                        None => error,
                    });
                }
                Err(error) => return Err(error),
            }
        }
        // If its file could not be written, it is there.
        let SealingCheckpoint { image, parts, number, position, .. } = sealing;
        let image = image.get_or_insert_with(|| {
            Arc::new(CheckpointImage {
                number: *number,
                next_segment: segments.peek_id(),
                hash_version: HASH_VERSION,
                codec: CODEC.into(),
                key_groups: inner.config.key_groups,
                owned: (inner.owned.start, inner.owned.end),
                after: base.as_ref().map_or(0, |base| base.number),
                position: *position,
                states: parts.drain(..).map(|part| part.manifest).collect(),
            })
        });
        let image = image.clone();
        let (reply, answer) = mailbox();
        let (blobs, segments) = (sealing.blobs.clone(), segments.clone());
        sealing.preparing = Some(answer);
        inner.helper.submit(move || {
            let write = || {
                blobs.finish()?;
                image.write(segments.device())
            };
            // If the checkpoint was given up nobody minds the answer.
            reply.send(write());
        });
        inner.drive();
        Ok(false)
    }

    /// Keeps the files when this is dropped or cannot be confirmed. Use it before another process
    /// may decide that this checkpoint counts, as with checkpoints of several stores.
    /// [`StoreBuilder::restore`](crate::StoreBuilder::restore) restores it by its number until this
    /// store confirms its next checkpoint, or longer if it is [held](Store::hold_checkpoint). Only
    /// [`abort`](Seal::abort) removes it. Does nothing before the checkpoint is durable.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// Waits until the checkpoint is durable and makes it the one that an open restores. Removes
    /// older checkpoints beyond [those retained](crate::StoreBuilder::retain).
    ///
    /// # Errors
    /// Those of [`advance`](Seal::advance). [`ErrorKind::Backpressure`] if the device hangs for
    /// [`StoreConfig::patience_ms`](crate::StoreConfig::patience_ms). An open still restores the
    /// last checkpoint. If the device fails while the manifest is replaced, it may restore either.
    pub fn confirm(mut self) -> Result<Checkpoint> {
        let store = self.store.clone();
        let mut patience = store.0.patience();
        loop {
            if let Some(checkpoint) = self.confirm_step()? {
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

    /// Does a bounded step of [confirming](Seal::confirm) while the helper writes. Returns the
    /// checkpoint once it is confirmed; call it between steps of the stream until then. Once
    /// durable, the checkpoint is no longer aborted: dropping this waits for storage, unless the
    /// device hangs.
    ///
    /// # Errors
    /// Those of [`confirm`](Seal::confirm); they are final. [`ErrorKind::Config`] if it was
    /// confirmed or aborted before.
    pub fn confirm_step(&mut self) -> Result<Option<Checkpoint>> {
        if self.decided {
            let message = "the checkpoint is decided: it was confirmed, or failed";
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
        let (committed, outcome) =
            committed.unwrap_or_else(|e| (Err(e), CheckpointOutcome::Unknown));
        self.conclude(&manifest, committed, outcome).map(Some)
    }

    /// Has the helper list it in the manifest.
    fn begin_commit(&mut self) {
        let inner = &*self.store.0;
        let segments = inner.segments.as_ref().expect("it was begun with a directory");
        let checkpoints = inner.checkpoints.borrow();
        let sealing = checkpoints.sealing.as_ref().expect("one that was begun is there");
        let new = sealing.prepared.as_ref().expect("advanced until it was").file;
        let manifest = checkpoints.list_with(new, inner.config.retain);
        let (device, new) = (segments.shared_device(), manifest.clone());
        drop(checkpoints);
        let number = self.number;
        let replacing = self.store.aside("the manifest", move || {
            let committed = new.commit(&*device);
            let outcome = match &committed {
                Ok(()) => CheckpointOutcome::Committed,
                Err(_) if is_committed(&*device, number) => CheckpointOutcome::Unknown,
                Err(_) => CheckpointOutcome::Abandoned,
            };
            Ok((committed, outcome))
        });
        self.committing = Some((manifest, replacing));
    }

    /// The manifest was replaced, or not.
    fn conclude(
        &self,
        manifest: &Manifest,
        committed: Result<()>,
        outcome: CheckpointOutcome,
    ) -> Result<Checkpoint> {
        let inner = &*self.store.0;
        let segments = inner.segments.as_ref().expect("it was begun with a directory");
        let mut checkpoints = inner.checkpoints.borrow_mut();
        let sealing = checkpoints.sealing.take().expect("one that was begun is there");
        let outcome = match outcome {
            CheckpointOutcome::Abandoned if self.kept => CheckpointOutcome::Unknown,
            outcome => outcome,
        };
        match &committed {
            Ok(()) => trace_event!(INFO, "checkpoint committed", number = self.number),
            Err(error) => {
                trace_event!(WARN, "checkpoint failed", error = error.to_string().as_str());
            }
        }
        match outcome {
            CheckpointOutcome::Abandoned => sealing.give_up(segments, inner),
            CheckpointOutcome::Committed | CheckpointOutcome::Unknown => {
                let SealingCheckpoint { prepared, blobs, without, .. } = sealing;
                let prepared = prepared.expect("looked at above");
                // Nobody but checkpoints needs this file.
                blobs.close();
                let _ = segments.remove_file(&blobs_name(self.number));
                if outcome == CheckpointOutcome::Committed {
                    checkpoints.base = Some(prepared.image.clone());
                    inner.dropped.borrow_mut().retain(|state| !without.contains(state));
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

    /// Aborts the checkpoint and removes the files that only it needs.
    pub fn abort(mut self) {
        self.kept = false;
    }

    /// Tells the states what became of it.
    fn tell(&self, outcome: CheckpointOutcome) {
        for state in &*self.store.0.states.borrow() {
            state.hooks.checkpointed(outcome);
        }
        self.store.0.root.end_checkpoint();
        self.store.0.kept_back.end_seal();
    }
}

impl Drop for Seal {
    fn drop(&mut self) {
        let store = self.store.clone();
        let inner = &*store.0;
        let mut patience = inner.patience();
        // What is being confirmed is not given up.
        while self.committing.is_some() && matches!(self.confirm_step(), Ok(None)) {
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
            Some(SealingCheckpoint { prepared: Some(prepared), blobs, .. }) if self.kept => {
                // Nobody but checkpoints needs this file.
                blobs.close();
                let _ = segments.remove_file(&blobs_name(self.number));
                inner.checkpoints.borrow_mut().retained.push(prepared);
                self.tell(CheckpointOutcome::Unknown);
            }
            sealing => {
                // First: what states still have under way for it ends soon, and nothing is waited for.
                sealing.iter().for_each(|sealing| sealing.blobs.close());
                self.tell(CheckpointOutcome::Abandoned);
                // The helper removes it, behind what it has.
                if let Some(sealing) = sealing {
                    sealing.give_up(segments, inner);
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

/// Calls of all states so far.
fn calls_of(inner: &StoreCore) -> u64 {
    inner.states.borrow().iter().map(|state| state.hooks.calls()).sum()
}

/// Nanoseconds from a time to a later one; none if the clock went backwards.
fn nanos_between(from: Time, to: Time) -> u64 {
    u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0)
}

/// Whether the manifest is, as far as can be seen, one that lists checkpoint `number`.
fn is_committed(device: &dyn Device, number: u64) -> bool {
    // A device that cannot be read may have either.
    Manifest::load(device)
        .map_or(true, |m| m.is_some_and(|m| m.checkpoints.iter().any(|c| c.number == number)))
}
