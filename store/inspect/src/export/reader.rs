//! Live records of segments: all of them, or, to salvage, those that are sound.
//!
//! What it keeps true: nothing is given unverified, nor where it is not known what is live; what is
//! passed over is told.

use std::cell::RefCell;

use alluvium_pagestore::{
    Error, FooterEntry, ImageInfo, RecordBytes, Result, SegmentInfo, WholeSegment,
};

use crate::checkpoints::{SegmentAt, StateAt};
use crate::directory::ClosedDirectory;
use crate::map_unsafe::Mapped;
use crate::verify::Damage;

/// Reads the segments of a directory.
#[derive(Debug)]
pub struct DirectoryReader<'d> {
    directory: &'d ClosedDirectory,
    /// What was passed over; `None` if the first damage is an error.
    damage: Option<RefCell<Vec<Damage>>>,
}

/// How much damage may be passed over when what is sound is salvaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Passing {
    /// None: what is read tells what is live.
    Nothing,
    /// Of single records: their number counts.
    Records,
    /// Also of the rest of a segment.
    Segments,
    /// Also of images, between others that are read.
    Images,
}

/// What is called with each live record, or `None` for one that is passed over, until it says that
/// it has enough.
pub type VisitLiveRecord<'v> =
    &'v mut dyn FnMut(&FooterEntry, Option<RecordBytes<'_>>) -> Result<bool>;

impl<'d> DirectoryReader<'d> {
    /// Of this directory, to salvage or not.
    pub fn new(directory: &'d ClosedDirectory, salvage: bool) -> Self {
        Self { directory, damage: salvage.then(RefCell::default) }
    }

    /// Notes what is not exported.
    pub fn tell(&self, error: &Error, state: Option<&str>) {
        if let Some(damage) = &self.damage {
            damage.borrow_mut().push(Damage::of(error, state));
        }
    }

    /// All that was not exported, each once.
    pub fn into_damage(self) -> Vec<Damage> {
        let mut damage = self.damage.map(RefCell::into_inner).unwrap_or_default();
        damage.sort();
        damage.dedup();
        damage
    }

    /// Calls `visit` with each live record of a segment, in file order, until it says that it has
    /// enough. Gives whether it had.
    pub fn for_each(
        &self,
        state: StateAt<'_>,
        segment: SegmentAt<'_>,
        passing: Passing,
        visit: VisitLiveRecord<'_>,
    ) -> Result<bool> {
        let walked = self.walk(state, segment, passing, &mut |whole, image, entry| {
            let record = match whole.record(image, entry) {
                Ok(record) => Some(record),
                Err(error) => {
                    self.pass((state, segment), error, passing >= Passing::Records)?;
                    None
                }
            };
            visit(entry, record)
        })?;
        Ok(walked == WalkOutcome::Enough)
    }

    /// Calls `visit` with what footers tell of each live record of a segment. Says whether that was
    /// all of them: damage may hide some.
    pub fn for_each_entry(
        &self,
        state: StateAt<'_>,
        segment: SegmentAt<'_>,
        visit: &mut dyn FnMut(&FooterEntry),
    ) -> Result<bool> {
        let mut is_all = true;
        let walked = self.walk(state, segment, Passing::Images, &mut |whole, image, entry| {
            // Without a footer, only the record says what hash it has.
            if image.bare_len > 0
                && let Err(error) = whole.record(image, entry)
            {
                is_all = false;
                self.pass((state, segment), error, true)?;
                return Ok(false);
            }
            visit(entry);
            Ok(false)
        })?;
        Ok(is_all && walked == WalkOutcome::All)
    }

    /// Tells an error of a segment if it may be passed over, else gives it back.
    fn pass(
        &self,
        (state, segment): (StateAt<'_>, SegmentAt<'_>),
        error: Error,
        may_pass: bool,
    ) -> Result<()> {
        // Not all errors of readers know where they are.
        let error = match error.context("file") {
            None => error.with("file", segment.file_name()),
            Some(_) => error,
        };
        self.pass_over(error, state, may_pass)
    }

    /// Tells an error of a state if it may be passed over, else gives it back.
    pub fn pass_over(&self, error: Error, state: StateAt<'_>, may_pass: bool) -> Result<()> {
        match self.damage.is_some() && may_pass {
            true => {
                self.tell(&error, Some(state.name()));
                Ok(())
            }
            false => Err(error),
        }
    }

    /// Opens a segment, whatever is in it.
    pub fn open_unchecked(&self, segment: SegmentAt<'_>) -> Result<SegmentInfo> {
        segment.open_unchecked(self.directory)
    }

    /// Maps a file of the directory.
    pub fn map(&self, name: &str) -> Result<Mapped> {
        self.directory.map(name)
    }

    fn walk(
        &self,
        state: StateAt<'_>,
        segment: SegmentAt<'_>,
        passing: Passing,
        visit: VisitEntry<'_>,
    ) -> Result<WalkOutcome> {
        let pass = |error| self.pass((state, segment), error, passing >= Passing::Segments);
        let opened = segment.live().and_then(|live| {
            let info = segment.open_unchecked(self.directory)?;
            Ok((live, info, self.directory.map(&segment.file_name())?))
        });
        let (live, info, bytes) = match opened {
            Ok(opened) => opened,
            Err(error) => return pass(error).map(|()| WalkOutcome::Some),
        };
        let mut whole = WholeSegment::open(&info, state.fingerprint(), &bytes);
        let damage = whole.take_damage();
        if damage.is_empty() {
            // Whole, it may be another one than the checkpoint means.
            if let Err(error) = segment.open(self.directory) {
                return pass(error).map(|()| WalkOutcome::Some);
            }
        }
        let mut walked = if damage.is_empty() { WalkOutcome::All } else { WalkOutcome::Some };
        for error in damage {
            pass(error)?;
        }
        if walked == WalkOutcome::Some && passing < Passing::Images {
            return Ok(walked);
        }
        let images: Vec<ImageInfo> = whole.images().to_vec();
        for image in &images {
            let entries = match whole.footer(image) {
                Ok(entries) => entries,
                Err(error) => {
                    pass(error)?;
                    walked = WalkOutcome::Some;
                    if passing < Passing::Images {
                        return Ok(walked);
                    }
                    continue;
                }
            };
            for entry in entries.iter().filter(|entry| live.contains(entry.grain)) {
                if visit(&whole, image, entry)? {
                    return Ok(WalkOutcome::Enough);
                }
            }
        }
        Ok(walked)
    }
}

/// What is called with what a footer tells of each live record.
type VisitEntry<'v> =
    &'v mut dyn FnMut(&WholeSegment<'_>, &ImageInfo, &FooterEntry) -> Result<bool>;

/// What was shown of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkOutcome {
    All,
    /// Damage was passed over.
    Some,
    /// Who looked at it had enough.
    Enough,
}
