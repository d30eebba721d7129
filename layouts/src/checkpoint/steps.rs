//! Records that a checkpoint writes in steps: the writer, and the order of steps.
//!
//! Whoever is read gives part after part. A step reads as many as go into a batch, which the helper
//! writes; behind the last batch goes the order to make all of it durable. Then others may follow, in segments of their
//! own. What is read when, and what is kept of what changes meanwhile, is left to others.

use alluvium_pagestore::{
    Error, ErrorKind, Helper, MemoryKind, Result, SegmentInfo, SegmentStore, fingerprint,
};

use super::writer::{BatchWriter, WriterSizes};
use crate::contract::table::StateContext;
use crate::support::booked::Booked;

/// Why a checkpoint that is lost cannot be ended.
const LOST: &str = "what the checkpoint has to have of the state could be neither kept nor written; \
    begin it again";

/// The error of a checkpoint that is lost.
pub(crate) fn overtaken() -> Error {
    Error::new(ErrorKind::Overtaken, LOST)
}

/// What the helper was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenBatches {
    /// A batch, or nothing yet.
    Some,
    /// All batches: there are no more.
    All,
}

/// Has so many bytes made free.
type MakeRoom<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// The steps of a checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointSteps {
    store: SegmentStore,
    helper: Helper,
    /// The fingerprint of the state's name.
    state: u64,
    /// How it is written if there is memory for that.
    sizes: WriterSizes,
    /// Made when it is needed.
    own: Option<BatchWriter>,
    /// Booked for it, beside what the state has booked: so many bytes.
    booked: Booked,
    kept: u64,
    /// There was no memory for it when it was needed first. Others may have had that until they were written.
    was_refused: bool,
    /// All was given to the helper.
    is_ending: bool,
    is_lost: bool,
    /// There is nothing to write.
    is_empty: bool,
}

impl CheckpointSteps {
    /// Nothing is read yet, of a state that has booked so many bytes for it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] in a store without a directory.
    pub fn new(context: &StateContext, sizes: WriterSizes, kept: u64) -> Result<Self> {
        Ok(Self {
            store: context.segment_store()?.clone(),
            helper: context.helper.clone(),
            state: fingerprint(&context.name),
            sizes,
            own: None,
            booked: Booked::none(context.account.clone(), MemoryKind::Buffers),
            kept,
            was_refused: false,
            is_ending: false,
            is_lost: false,
            is_empty: false,
        })
    }

    /// Bytes after which a segment ends.
    pub fn segment_bytes(&self) -> u64 {
        self.sizes.segment_bytes
    }

    /// There is nothing to read, nor to write.
    pub fn write_nothing(&mut self) {
        self.is_empty = true;
    }

    /// Does a bounded share: `give` gives the helper the next batch. Once all of it is durable, what was written: the
    /// next step begins with others.
    ///
    /// # Errors
    /// Those of `give` and of writing; the checkpoint has to be begun again.
    pub fn step(
        &mut self,
        give: impl FnOnce(&mut BatchWriter) -> Result<GivenBatches>,
    ) -> Result<Option<Vec<SegmentInfo>>> {
        self.check()?;
        if self.is_empty {
            return Ok(Some(Vec::new()));
        }
        self.make_writer(&mut |_| Ok(()))?;
        let Self { own, is_ending, is_lost, .. } = self;
        let own = own.as_mut().expect("made above");
        if !own.is_ready()? {
            return Ok(None);
        }
        if std::mem::take(is_ending) {
            return Ok(Some(own.take_sealed()));
        }
        // Of what was read a part may be missing after an error or a panic.
        *is_lost = true;
        let given = give(own).map_err(lost_by)?;
        *is_lost = false;
        if given == GivenBatches::All {
            own.submit_end();
            *is_ending = true;
        }
        Ok(None)
    }

    /// Reads a part beside the writer. If that fails or panics, the checkpoint is lost.
    ///
    /// # Errors
    /// Those of `read`; the checkpoint has to be begun again.
    pub fn read_beside<R>(&mut self, read: impl FnOnce() -> Result<R>) -> Result<R> {
        let was_lost = std::mem::replace(&mut self.is_lost, true);
        let part = read().map_err(lost_by)?;
        self.is_lost = was_lost;
        Ok(part)
    }

    /// Reads all that `read` gives and has it written, at once. If that fails or panics, the checkpoint is lost.
    pub fn read_rest(&mut self, mut read: impl FnMut(&mut BatchWriter) -> Result<bool>) {
        if self.is_empty {
            return;
        }
        let was_lost = std::mem::replace(&mut self.is_lost, true);
        self.was_refused = true;
        let mut all = || -> Result<()> {
            self.make_writer(&mut |_| Ok(()))?;
            let own = self.own.as_mut().expect("made above");
            own.wait()?;
            while read(own)? {}
            Ok(())
        };
        if all().is_ok() {
            self.is_lost = was_lost;
        }
    }

    /// Whether it can be ended.
    ///
    /// # Errors
    /// [`ErrorKind::Overtaken`] if it is lost.
    pub fn check(&self) -> Result<()> {
        if self.is_lost {
            return Err(overtaken());
        }
        Ok(())
    }

    /// It cannot be ended: something could not be noted.
    pub fn lose(&mut self) {
        self.is_lost = true;
    }

    /// Whether it cannot be ended.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Waits a moment for the helper.
    pub fn pause(&mut self) {
        self.own.iter_mut().for_each(BatchWriter::pause);
    }

    /// Makes the writer, if there is none. [`step`](CheckpointSteps::step) does so too, with memory that is free.
    ///
    /// # Errors
    /// Those of `make_room`; [`ErrorKind::OverBudget`] if there is no room. It can be tried again.
    pub fn make_writer(&mut self, make_room: MakeRoom<'_>) -> Result<()> {
        if self.own.is_some() {
            return Ok(());
        }
        let may_be_scant = std::mem::replace(&mut self.was_refused, true);
        let Self { sizes, kept, booked, .. } = self;
        let sizes = sizes.first_with_room(may_be_scant, |sizes| {
            let more = sizes.memory_bytes().saturating_sub(*kept);
            make_room(more)?;
            booked.reserve_more(more, "a checkpoint's buffer")
        })?;
        let who = (self.helper.clone(), self.booked.account().clone());
        self.own = Some(BatchWriter::new(who, self.store.clone(), self.state, sizes));
        Ok(())
    }
}

/// Why a checkpoint is lost after this error: memory that is free later is of no use to it.
fn lost_by(error: Error) -> Error {
    match error.kind() {
        // One that names a key goes with that key alone.
        ErrorKind::OverBudget if error.context("key").is_none() => overtaken().caused_by(error),
        _ => error,
    }
}
