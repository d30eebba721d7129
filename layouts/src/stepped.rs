//! A full checkpoint of what is all in memory, taken in steps: its writer, and the order of steps.
//!
//! Whoever is read ([`InSteps`]) gives part after part. A step reads as many as go into a batch, which the helper
//! writes; behind the last batch goes the order to make all of it durable. What is read when, and what
//! is kept of what changes meanwhile, is left to others.

use std::rc::Rc;

use alluvium_pagestore::{
    Account, Error, ErrorKind, MemoryKind, Result, SegmentInfo, StateImage, fingerprint,
};

use crate::paced::{Pace, Paced};
use crate::table::StateContext;

/// Parts that a step reads at most: there may be nothing in many.
const PARTS_MAX: usize = 256;

/// What the helper was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// A batch, or nothing yet.
    Some,
    /// All batches: there are no more.
    All,
}

/// The steps of a checkpoint.
#[derive(Debug)]
pub(crate) struct Stepped {
    account: Rc<Account>,
    /// Made when it is needed.
    own: Option<Paced>,
    /// Booked for it.
    booked: u64,
    /// All was given to the helper.
    is_ending: bool,
    is_lost: bool,
}

impl Stepped {
    /// Nothing is read yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] in a store without a directory.
    pub fn new(context: &StateContext) -> Result<Self> {
        context.segment_store()?;
        let account = context.account.clone();
        Ok(Self { account, own: None, booked: 0, is_ending: false, is_lost: false })
    }

    /// Does a bounded share; what was written, at the end. `read` adds a part to the batch, and says
    /// whether there was one.
    ///
    /// # Errors
    /// Those of `read` and of writing; the checkpoint has to be begun again.
    pub fn step(
        &mut self,
        context: &StateContext,
        pace: Pace,
        mut read: impl FnMut(&mut Paced) -> Result<bool>,
    ) -> Result<Option<Vec<SegmentInfo>>> {
        self.check()?;
        let is_ending = self.is_ending;
        let own = self.writer(context, pace)?;
        if !own.is_ready()? {
            return Ok(None);
        }
        if is_ending {
            return Ok(Some(own.take_sealed()));
        }
        for _ in 0..PARTS_MAX {
            if !own.has_room() {
                own.submit();
                return Ok(None);
            }
            if !read(own)? {
                own.submit_end();
                self.is_ending = true;
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Does a bounded share of a checkpoint whose batches the helper encodes: `give` takes back the one before, and gives
    /// it the next. What was written, at the end.
    ///
    /// # Errors
    /// Those of `give` and of writing; the checkpoint has to be begun again.
    pub fn step_by_batches(
        &mut self,
        context: &StateContext,
        pace: Pace,
        give: impl FnOnce(&mut Paced) -> Result<Given>,
    ) -> Result<Option<Vec<SegmentInfo>>> {
        self.check()?;
        let is_ending = self.is_ending;
        let own = self.writer(context, pace)?;
        if !own.is_ready()? {
            return Ok(None);
        }
        if is_ending {
            return Ok(Some(own.take_sealed()));
        }
        if give(own)? == Given::All {
            own.submit_end();
            self.is_ending = true;
        }
        Ok(None)
    }

    /// Reads all that `read` gives and has it written, at once. If that fails, the checkpoint is lost.
    pub fn read_rest(
        &mut self,
        context: &StateContext,
        pace: Pace,
        mut read: impl FnMut(&mut Paced) -> Result<bool>,
    ) {
        let mut all = || -> Result<()> {
            let own = self.writer(context, pace)?;
            own.wait()?;
            while read(own)? {}
            Ok(())
        };
        if all().is_err() {
            self.is_lost = true;
        }
    }

    fn check(&self) -> Result<()> {
        if self.is_lost {
            let message = "a checkpoint had to be written at once, which failed; begin it again";
            return Err(Error::new(ErrorKind::OverBudget, message));
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
        self.own.iter_mut().for_each(Paced::pause);
    }

    fn writer(&mut self, context: &StateContext, pace: Pace) -> Result<&mut Paced> {
        if self.own.is_none() {
            let (bytes, store) = (pace.memory_bytes(), context.segment_store()?.clone());
            self.account.reserve(MemoryKind::Buffers, bytes, "a checkpoint's buffer")?;
            self.booked = bytes;
            let state = fingerprint(&context.name);
            self.own = Some(Paced::new(context.helper.clone(), store, state, pace));
        }
        Ok(self.own.as_mut().expect("made above"))
    }
}

/// A state of which all is in memory, and a checkpoint taken in [steps](Stepped).
pub(crate) trait InSteps {
    fn context(&self) -> &StateContext;

    /// All there is now is of the checkpoint.
    fn begin_capture(&mut self) -> Result<()>;

    /// The steps of the checkpoint that was begun.
    fn stepped(&mut self) -> Option<&mut Stepped>;

    /// Does a bounded share of the checkpoint that was begun; at the end what was written, and how many
    /// entries it has.
    fn share(&mut self) -> Result<Option<(Vec<SegmentInfo>, u64)>>;

    /// The checkpoint is taken or given up.
    fn end_capture(&mut self);

    /// Notes what was taken, with its number of calls of codecs.
    fn taken(&mut self, image: &StateImage);

    /// Does a bounded share; the image at the end.
    fn continue_capture(&mut self) -> Result<Option<StateImage>> {
        if self.stepped().is_none() {
            let error = Error::new(ErrorKind::Config, "no checkpoint was begun");
            return Err(error.with("state", &self.context().name));
        }
        let share = self.share();
        let done = share.map_err(|error| error.with("state", &self.context().name))?;
        let Some((sealed, entries)) = done else { return Ok(None) };
        let segments = sealed.iter().map(SegmentInfo::all_live).collect();
        let image = StateImage { entries, segments, ..StateImage::default() };
        self.end_capture();
        self.taken(&image);
        Ok(Some(image))
    }

    /// Takes a checkpoint in one call.
    fn take_at_once(&mut self) -> Result<StateImage> {
        self.begin_capture()?;
        loop {
            match self.continue_capture() {
                Ok(Some(image)) => return Ok(image),
                Ok(None) => self.stepped().into_iter().for_each(Stepped::pause),
                Err(error) => {
                    self.end_capture();
                    return Err(error);
                }
            }
        }
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        self.own = None;
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}
