//! A checkpoint of what is all in memory, taken in steps: its writer, and the order of steps.
//!
//! Whoever is read gives part after part. A step reads as many as go into a batch, which the helper
//! writes; behind the last batch goes the order to make all of it durable. What is read when, and what
//! is kept of what changes meanwhile, is left to others.

use alluvium_pagestore::{Error, ErrorKind, MemoryKind, Result, SegmentInfo, fingerprint};

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

/// The steps of a checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointSteps {
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
    pub fn with_room(context: &StateContext, kept: u64) -> Result<Self> {
        context.segment_store()?;
        let booked = Booked::none(context.account.clone(), MemoryKind::Buffers);
        let (was_refused, is_ending, is_lost, is_empty) = (false, false, false, false);
        Ok(Self { own: None, booked, kept, was_refused, is_ending, is_lost, is_empty })
    }

    /// There is nothing to read, nor to write.
    pub fn write_nothing(&mut self) {
        self.is_empty = true;
    }

    /// Does a bounded share: `give` gives the helper the next batch. What was written, at the end.
    ///
    /// # Errors
    /// Those of `give` and of writing; the checkpoint has to be begun again.
    pub fn step(
        &mut self,
        context: &StateContext,
        sizes: WriterSizes,
        give: impl FnOnce(&mut BatchWriter) -> Result<GivenBatches>,
    ) -> Result<Option<Vec<SegmentInfo>>> {
        self.check()?;
        if self.is_empty {
            return Ok(Some(Vec::new()));
        }
        self.make_writer(context, sizes)?;
        let Self { own, is_ending, is_lost, .. } = self;
        let own = own.as_mut().expect("made above");
        if !own.is_ready()? {
            return Ok(None);
        }
        if *is_ending {
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
    pub fn read_rest(
        &mut self,
        context: &StateContext,
        sizes: WriterSizes,
        mut read: impl FnMut(&mut BatchWriter) -> Result<bool>,
    ) {
        if self.is_empty {
            return;
        }
        let was_lost = std::mem::replace(&mut self.is_lost, true);
        self.was_refused = true;
        let mut all = || -> Result<()> {
            self.make_writer(context, sizes)?;
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

    fn make_writer(&mut self, context: &StateContext, sizes: WriterSizes) -> Result<()> {
        if self.own.is_some() {
            return Ok(());
        }
        let store = context.segment_store()?.clone();
        let may_be_scant = std::mem::replace(&mut self.was_refused, true);
        let sizes = sizes.first_with_room(may_be_scant, |sizes| self.book(sizes))?;
        let state = fingerprint(&context.name);
        let who = (context.helper.clone(), context.account.clone());
        self.own = Some(BatchWriter::new(who, store, state, sizes));
        Ok(())
    }

    /// Books what a writer with these sizes takes.
    fn book(&mut self, sizes: &WriterSizes) -> Result<()> {
        let more = sizes.memory_bytes().saturating_sub(self.kept);
        self.booked.reserve_more(more, "a checkpoint's buffer")
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
