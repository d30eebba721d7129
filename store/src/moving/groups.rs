//! Where each key group of a moving unit is, as this store knows.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use alluvium_pagestore::{Error, ErrorKind, KeyGroup, Result};

/// Where a key group is, for one store; see [`Mover`](crate::Mover).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Here: its keys are read and written.
    Here,
    /// Here, and being given away: its keys are read, and nothing of it changes.
    Leaving,
    /// Given away; what is left of it here is being removed.
    Going,
    /// Elsewhere.
    Away,
    /// Elsewhere still; some of it is here.
    Arriving,
}

/// A standing, with what tells chunks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// With the last move that brought it.
    Here(Option<Move>),
    Leaving(Move),
    /// Removed as far as this.
    Going,
    Away,
    /// By this move, as far as this chunk.
    Arriving(Move, u32),
}

/// One extraction of a group. `freeze` counts how often the group was frozen: nothing of it has changed
/// between two extractions of one freeze.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Move {
    pub freeze: u64,
    pub attempt: u32,
}

/// The key groups of the states that move together.
#[derive(Debug)]
pub(crate) struct Groups {
    name: String,
    home: Range<u16>,
    parts: RefCell<Vec<Part>>,
    freezes: Cell<u64>,
}

impl Groups {
    pub(super) fn new(name: &str, home: Range<u16>, groups: u16) -> Self {
        let part = |group| if home.contains(&group) { Part::Here(None) } else { Part::Away };
        let parts = RefCell::new((0..groups).map(part).collect());
        Self { name: name.into(), home, parts, freezes: Cell::new(0) }
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name == name
    }

    pub(crate) fn count(&self) -> u16 {
        self.parts.borrow().len() as u16
    }

    pub(crate) fn group_of(&self, hash: u64) -> u16 {
        KeyGroup::of(hash, self.count()).0
    }

    pub(super) fn part(&self, group: KeyGroup) -> Result<Part> {
        let (parts, groups) = (self.parts.borrow(), self.count());
        parts.get(usize::from(group.0)).copied().ok_or_else(|| {
            let message = format!("there is no key group {} of {groups}", group.0);
            Error::new(ErrorKind::Config, message).with("unit", &self.name)
        })
    }

    pub(super) fn set(&self, group: KeyGroup, part: Part) {
        self.parts.borrow_mut()[usize::from(group.0)] = part;
    }

    /// The move of a group that is frozen now.
    pub(super) fn freeze(&self) -> Move {
        self.freezes.set(self.freezes.get() + 1);
        Move { freeze: self.freezes.get(), attempt: 1 }
    }

    pub(super) fn standing(&self, group: KeyGroup) -> Result<Standing> {
        Ok(match self.part(group)? {
            Part::Here(_) => Standing::Here,
            Part::Leaving(_) => Standing::Leaving,
            Part::Going => Standing::Going,
            Part::Away => Standing::Away,
            Part::Arriving(..) => Standing::Arriving,
        })
    }

    /// Whether keys of this hash may be changed.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while the group moves, [`ErrorKind::Mismatch`] if it is elsewhere.
    #[inline]
    pub(crate) fn check(&self, hash: u64) -> Result<()> {
        let group = self.group_of(hash);
        match self.parts.borrow()[usize::from(group)] {
            Part::Here(_) => Ok(()),
            part => Err(self.refuse(group, part)),
        }
    }

    #[cold]
    fn refuse(&self, group: u16, part: Part) -> Error {
        let (kind, what) = match part {
            Part::Away => (ErrorKind::Mismatch, "is not in this store"),
            _ => (ErrorKind::InUse, "is being moved: nothing of it may change"),
        };
        self.error(kind, &format!("key group {group} {what}"))
    }

    /// Whether all groups that the store was opened with, and no others, are here.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], naming the first group that is not where it was.
    pub(crate) fn check_at_home(&self) -> Result<()> {
        for (group, part) in (0..).zip(&*self.parts.borrow()) {
            let away = match (self.home.contains(&group), part) {
                (true, Part::Here(_)) | (false, Part::Away) => continue,
                (true, _) => "is not, or not alone, in the store it belongs to",
                (false, _) => "is here from another store",
            };
            let message = format!(
                "key group {group} {away}: no checkpoint is taken before it is moved back to where \
                 it was when the stores were opened"
            );
            return Err(self.error(ErrorKind::Unsupported, &message));
        }
        Ok(())
    }

    /// Whether no group moves and none has.
    pub(crate) fn are_settled(&self) -> Result<()> {
        let moves =
            |part: &Part| matches!(part, Part::Leaving(_) | Part::Going | Part::Arriving(..));
        match self.parts.borrow().iter().position(moves) {
            None => Ok(()),
            Some(group) => {
                let message = format!("key group {group} is being moved: nothing of it may change");
                Err(self.error(ErrorKind::InUse, &message))
            }
        }
    }

    pub(super) fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, message).with("unit", &self.name)
    }
}
