//! Where each key group of a moving unit is, as this store knows.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::{Range, RangeInclusive};

use alluvium_pagestore::{Error, ErrorKind, KeyGroup, KeyGroups, Result};

/// Where a key group is, seen from one store; see [`Mover`](crate::moving::Mover).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Here: its keys can be read and written.
    Here,
    /// Here and being given away: its keys can be read, and nothing of it changes.
    Leaving,
    /// Given away; its remaining entries here are being removed.
    Going,
    /// Elsewhere.
    Away,
    /// Elsewhere still; some of it is here.
    Arriving,
}

/// A standing, with what tells chunks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupState {
    /// With the last move that brought it.
    Here(Option<ExtractionId>),
    Leaving(ExtractionId),
    /// Removed as far as this.
    Going,
    Away,
    /// By this move, as far as this chunk.
    Arriving(ExtractionId, u32),
}

/// One extraction of a group. Two of one move differ in `attempt` only: nothing of the group has changed
/// in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExtractionId {
    /// Random: no other unit has it, of this store or another, and no other run.
    pub run: u128,
    /// How often the unit has begun to give a group away in this run.
    pub freeze: u64,
    pub attempt: u32,
}

impl ExtractionId {
    /// Whether both are extractions of one move.
    pub fn is_of(self, other: Self) -> bool {
        (self.run, self.freeze) == (other.run, other.freeze)
    }
}

/// 128 random bits: the standard library takes new keys from the operating system for each thread, and
/// a keyed hash of nothing tells keys apart.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

/// The key groups of the states that move together.
#[derive(Debug)]
pub(crate) struct Groups {
    name: String,
    parts: RefCell<Vec<GroupState>>,
    begun_with: RefCell<GroupStock>,
    /// Whether a checkpoint has told what it was begun with.
    is_restored: Cell<bool>,
    /// See [`ExtractionId::run`].
    run: u128,
    freezes: Cell<u64>,
    /// How often a group has come or gone.
    changes: Cell<u64>,
    /// How often a group has begun, or ceased, to be one whose keys may be changed.
    settlements: Cell<u64>,
}

/// What a store has of the key groups of a unit, between moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupStock {
    /// Here, in full.
    pub(crate) here: KeyGroups,
    /// Elsewhere; what is left of them here is to be removed.
    pub(crate) going: KeyGroups,
}

impl GroupStock {
    pub(crate) fn of(here: KeyGroups) -> Self {
        Self { here, going: KeyGroups::default() }
    }

    fn part(&self, group: KeyGroup) -> GroupState {
        match (self.here.contains(group), self.going.contains(group)) {
            (true, _) => GroupState::Here(None),
            (false, true) => GroupState::Going,
            (false, false) => GroupState::Away,
        }
    }
}

impl Groups {
    /// A unit of a store whose checkpoint says that the unit had `restored`, if it does.
    pub(super) fn new(
        name: &str,
        restored: Option<GroupStock>,
        owned: Range<u16>,
        groups: u16,
    ) -> Self {
        let is_restored = Cell::new(restored.is_some());
        let begun_with = restored.unwrap_or_else(|| GroupStock::of(owned.into()));
        let part = |group| begun_with.part(KeyGroup(group));
        Self {
            name: name.into(),
            parts: RefCell::new((0..groups).map(part).collect()),
            begun_with: RefCell::new(begun_with),
            is_restored,
            run: random(),
            freezes: Cell::new(0),
            changes: Cell::new(0),
            settlements: Cell::new(0),
        }
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name == name
    }

    pub(crate) fn count(&self) -> u16 {
        self.parts.borrow().len() as u16
    }

    /// The hashes of a key group; all, if none moves.
    pub(crate) fn hashes_of(groups: Option<&Self>, group: KeyGroup) -> RangeInclusive<u64> {
        group.hashes(groups.map_or(1, Self::count))
    }

    pub(crate) fn group_of(&self, hash: u64) -> u16 {
        KeyGroup::of(hash, self.count()).0
    }

    pub(super) fn part(&self, group: KeyGroup) -> Result<GroupState> {
        let (parts, groups) = (self.parts.borrow(), self.count());
        parts.get(usize::from(group.0)).copied().ok_or_else(|| {
            let message = format!("there is no key group {} of {groups}", group.0);
            Error::new(ErrorKind::Config, message).with("unit", &self.name)
        })
    }

    pub(super) fn set(&self, group: KeyGroup, part: GroupState) {
        let had = self.has(group.0);
        let before = std::mem::replace(&mut self.parts.borrow_mut()[usize::from(group.0)], part);
        let is_settled = |part: &GroupState| matches!(part, GroupState::Here(_));
        let has_settled = is_settled(&before) != is_settled(&part);
        self.settlements.set(self.settlements.get() + u64::from(has_settled));
        self.changes.set(self.changes.get() + u64::from(had != self.has(group.0)));
    }

    /// A number that is another when a group has come or gone.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// A number that is another when a group has begun, or ceased, to be one whose keys may be
    /// [changed](Groups::check).
    pub(crate) fn settlements(&self) -> u64 {
        self.settlements.get()
    }

    /// Whether keys of this hash are here, as far as their state counts here.
    pub(crate) fn has_hash(&self, hash: u64) -> bool {
        self.has(self.group_of(hash))
    }

    /// Refuses what a store must not do while a group is being given away or has come in part.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`], naming the first such group.
    pub(crate) fn check_none_under_way(&self, what: &str) -> Result<()> {
        match self.first_under_way() {
            None => Ok(()),
            Some(group) => {
                let message = format!("key group {group} is on its way: {what}");
                Err(self.error(ErrorKind::InUse, &message))
            }
        }
    }

    /// Whether a group is being given away or has come in part.
    pub(crate) fn is_any_under_way(&self) -> bool {
        self.first_under_way().is_some()
    }

    fn first_under_way(&self) -> Option<usize> {
        let is_under_way =
            |part: &GroupState| matches!(part, GroupState::Leaving(_) | GroupState::Arriving(..));
        self.parts.borrow().iter().position(is_under_way)
    }

    /// The move of a group that is frozen now.
    pub(super) fn freeze(&self) -> ExtractionId {
        self.freezes.set(self.freezes.get() + 1);
        ExtractionId { run: self.run, freeze: self.freezes.get(), attempt: 1 }
    }

    pub(super) fn standing(&self, group: KeyGroup) -> Result<Standing> {
        Ok(match self.part(group)? {
            GroupState::Here(_) => Standing::Here,
            GroupState::Leaving(_) => Standing::Leaving,
            GroupState::Going => Standing::Going,
            GroupState::Away => Standing::Away,
            GroupState::Arriving(..) => Standing::Arriving,
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
            GroupState::Here(_) => Ok(()),
            part => Err(self.refuse(group, part)),
        }
    }

    #[cold]
    fn refuse(&self, group: u16, part: GroupState) -> Error {
        let (kind, what) = match part {
            GroupState::Away => (ErrorKind::Mismatch, "is not in this store"),
            _ => (ErrorKind::InUse, "is moving and cannot change now"),
        };
        self.error(kind, &format!("key group {group} {what}"))
    }

    /// The group is here, or being given away.
    pub(crate) fn has(&self, group: u16) -> bool {
        matches!(
            self.parts.borrow()[usize::from(group)],
            GroupState::Here(_) | GroupState::Leaving(_)
        )
    }

    /// What the unit is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What the store has, for a checkpoint.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`], naming the first group that is on its way: which of two stores has it is
    /// not known here.
    pub(crate) fn stock(&self) -> Result<GroupStock> {
        self.check_none_under_way(
            "a checkpoint is taken before it is begun to be given away, or when the other store has \
             it and this one has begun to forget it",
        )?;
        let parts = self.parts.borrow();
        let those = |is_one: fn(&GroupState) -> bool| {
            let all = (0..).zip(&*parts).filter(|(_, part)| is_one(part));
            all.map(|(group, _)| KeyGroup(group)).collect()
        };
        Ok(GroupStock {
            here: those(|part| matches!(part, GroupState::Here(_))),
            going: those(|part| matches!(part, GroupState::Going)),
        })
    }

    /// Lets a state join, of which a checkpoint of this store says that it had `restored` if there is
    /// one; gives the groups whose part is another because of that. `written` is a state that joined
    /// before and has entries, if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if a group has moved since the unit was made, as that would be without
    /// this state; [`ErrorKind::Mismatch`] if a state that joined before had others, or has taken entries
    /// of groups that are elsewhere.
    pub(super) fn join(
        &self,
        restored: Option<GroupStock>,
        written: impl FnOnce() -> Option<String>,
    ) -> Result<Vec<KeyGroup>> {
        let mut begun_with = self.begun_with.borrow_mut();
        for (group, part) in (0..).map(KeyGroup).zip(&*self.parts.borrow()) {
            // What was left of a group may be gone by now.
            let then = begun_with.part(group);
            let is_as_then = match part {
                GroupState::Here(_) => then == GroupState::Here(None),
                GroupState::Away => matches!(then, GroupState::Away | GroupState::Going),
                GroupState::Going => then == GroupState::Going,
                GroupState::Leaving(_) | GroupState::Arriving(..) => false,
            };
            if !is_as_then {
                let message = format!(
                    "key group {} has moved since the first of the states was opened: no other can \
                     move with them now",
                    group.0
                );
                return Err(self.error(ErrorKind::Unsupported, &message));
            }
        }
        let Some(restored) = restored else { return Ok(Vec::new()) };
        if *begun_with == restored {
            self.is_restored.set(true);
            // What other states had of these is gone; this one may have some.
            for (group, part) in (0..).map(KeyGroup).zip(&mut *self.parts.borrow_mut()) {
                if restored.part(group) == GroupState::Going {
                    *part = GroupState::Going;
                }
            }
            return Ok(Vec::new());
        }
        if self.is_restored.replace(true) {
            let message = format!(
                "the checkpoint has key groups {} of this state, and {} of one that is to move with \
                 it: it was not open when they moved; restore_from takes each from the stores that \
                 have them",
                restored.here, begun_with.here
            );
            return Err(self.error(ErrorKind::Mismatch, &message));
        }
        if let Some(written) = written() {
            let message = format!(
                "the checkpoint has key groups {} of this state, and {written} was written to before \
                 this was known; open first what the checkpoint has",
                restored.here
            );
            return Err(self.error(ErrorKind::Mismatch, &message));
        }
        let mut changed = Vec::new();
        for (group, part) in (0..).map(KeyGroup).zip(&mut *self.parts.borrow_mut()) {
            if *part != restored.part(group) {
                *part = restored.part(group);
                changed.push(group);
            }
        }
        *begun_with = restored;
        Ok(changed)
    }

    /// Whether no group moves and none has.
    pub(crate) fn are_settled(&self) -> Result<()> {
        let moves = |part: &GroupState| {
            matches!(part, GroupState::Leaving(_) | GroupState::Going | GroupState::Arriving(..))
        };
        match self.parts.borrow().iter().position(moves) {
            None => Ok(()),
            Some(group) => {
                let message = format!("key group {group} is moving and cannot change now");
                Err(self.error(ErrorKind::InUse, &message))
            }
        }
    }

    pub(super) fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, message).with("unit", &self.name)
    }
}
