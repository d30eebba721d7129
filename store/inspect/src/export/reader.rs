//! Live records of segments: all of them, or, to salvage, those that are sound.
//!
//! What it keeps true: nothing is given unverified, nor where it is not known what is live; what is
//! passed over is told.

use std::cell::RefCell;

use alluvium_pagestore::{Error, FooterEntry, ImageInfo, RecordBytes, Result, WholeSegment};

use crate::checkpoints::{SegmentAt, StateAt};
use crate::directory::ClosedDirectory;
use crate::verify::Damage;

/// Reads the segments of a directory.
#[derive(Debug)]
pub struct Reader<'d> {
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
pub type Visit<'v> = &'v mut dyn FnMut(&FooterEntry, Option<RecordBytes<'_>>) -> Result<bool>;

impl<'d> Reader<'d> {
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
        visit: Visit<'_>,
    ) -> Result<bool> {
        // Tells the error, or gives it back.
        let pass = |error: Error, least: Passing| match self.damage.is_some() && passing >= least {
            true => {
                // Not all errors of readers know where they are.
                let error = match error.context("file") {
                    None => error.with("file", segment.file_name()),
                    Some(_) => error,
                };
                self.tell(&error, Some(state.name()));
                Ok(())
            }
            false => Err(error),
        };
        let opened = segment.live().and_then(|live| {
            let info = segment.open_unchecked(self.directory)?;
            Ok((live, info, self.directory.map(&segment.file_name())?))
        });
        let (live, info, bytes) = match opened {
            Ok(opened) => opened,
            Err(error) => return pass(error, Passing::Segments).map(|()| false),
        };
        let mut whole = WholeSegment::open(&info, state.fingerprint(), &bytes);
        let damage = whole.take_damage();
        if damage.is_empty() {
            // Whole, it may be another one than the checkpoint means.
            if let Err(error) = segment.open(self.directory) {
                return pass(error, Passing::Segments).map(|()| false);
            }
        }
        let is_over = !damage.is_empty() && passing < Passing::Images;
        for error in damage {
            pass(error, Passing::Segments)?;
        }
        if is_over {
            return Ok(false);
        }
        let images: Vec<ImageInfo> = whole.images().to_vec();
        for image in &images {
            let entries = match whole.footer(image) {
                Ok(entries) => entries,
                Err(error) => {
                    pass(error, Passing::Segments)?;
                    if passing < Passing::Images {
                        return Ok(false);
                    }
                    continue;
                }
            };
            for entry in entries.iter().filter(|entry| live.contains(entry.grain)) {
                let record = match whole.record(image, entry) {
                    Ok(record) => Some(record),
                    Err(error) => pass(error, Passing::Records).map(|()| None)?,
                };
                if visit(entry, record)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
