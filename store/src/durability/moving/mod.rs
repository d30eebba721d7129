//! Key groups on the move: out of one open store, into another.
//!
//! What it keeps true:
//! - A group that is being given away does not change: writes to its keys are refused by name, so that
//!   what was sent stays what there is and nothing has to be sent again. Whoever drives the store
//!   holds the records of the group back.
//! - It is readable where it was until its store is told to forget it.
//! - A chunk that is installed twice, or again after the mover was lost, changes nothing, also if the
//!   group has been written to since. A move has an identity, of its unit in one run of its store: chunks
//!   of two moves are never taken for those of one.
//! - A unit has the groups that the store's checkpoint says from the first, also if a state that is new
//!   is opened before those of the checkpoint.
//! - A checkpoint says of each state that moves which key groups its store has of it, and which of it
//!   may be left that others have. None is taken while a group is on its way: whether it counts here or
//!   there is decided when the old store is told to forget it.
//!
//! Who owns what, and when, is not known here.

mod chunk;
mod groups;
mod installing;

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use alluvium_layouts::Cursor;
use alluvium_pagestore::{
    Account, Error, ErrorKind, KeyGroup, KeyGroups, Result, StateManifest, Time, combine,
    hash_bytes,
};

use crate::cells::cell_handle::{Claim, Claimed};
use crate::cells::state_cell::Hooks;
use crate::durability::export::Encoding;
use crate::store::Store;
use chunk::{ChunkHead, ChunkWriter};
pub use groups::Standing;
use groups::{ExtractionId, GroupState};
pub(crate) use groups::{GroupStock, Groups};
pub(crate) use installing::EntryArrival;
use installing::PartialChunk;

/// Looks at a state that one chunk takes at most.
const STEPS_MAX: usize = 32;
/// Entries that one look takes at most, and at first.
const STEP_ENTRIES_MAX: usize = 256;
const STEP_ENTRIES_FIRST: usize = 16;

/// States whose key groups move together, from one store to another, while both are in use.
///
/// The states of an operator form a unit: a group moves with its entries in all of them. Make one with
/// [`Store::mover`] in each store, open the same states in it in the same order
/// ([`StateBuilder::moved_by`](crate::states::StateBuilder::moved_by), [`Store::timers_moved_by`]), and no other
/// than these of the unit's keys. All state by key can move: maps, those too whose entries expire,
/// counters, lists, time-ordered maps, timers, and windows. A [`Value`](crate::Value) is the store's own.
/// At first each store has the groups it [owns](crate::StoreBuilder::owned_groups), or those that its
/// checkpoint says of the unit of this name. Cheap to clone.
///
/// ```
/// use alluvium::Store;
/// use alluvium::moving::{KeyGroup, Standing};
/// # fn main() -> alluvium::Result<()> {
/// let open = |owned| Store::in_memory().key_groups(8).owned_groups(owned).open();
/// let (left, right) = (open(0..4)?, open(4..8)?);
/// let (from, to) = (left.mover("words")?, right.mover("words")?);
/// let mut words = left.count::<String>("words").moved_by(&from).open()?;
/// let mut there = right.count::<String>("words").moved_by(&to).open()?;
/// let key = (0..).map(|n| n.to_string()).find(|key| words.add(key, 1).is_ok()).unwrap();
/// let group = KeyGroup::of(alluvium::KeyHash::key_hash(&key), 8);
///
/// let mut rest = from.begin(group)?;
/// while let Some(chunk) = from.next_chunk(&mut rest, 64 << 10)? {
///     to.install(&chunk)?;
/// }
/// assert_eq!(to.standing(group)?, Standing::Here);
/// while !from.forget(group, 1000)? {}
/// assert_eq!((there.get(&key)?, words.get(&key)?), (1, 0));
/// assert!(words.add(&key, 1).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mover(Rc<MoverCore>, #[allow(dead_code, reason = "held, not read")] Claim);

/// What a store knows of a unit, whether anybody has its [`Mover`] or not.
pub(crate) struct Unit {
    inner: Rc<MoverCore>,
    claimed: Claimed,
}

impl Unit {
    /// See [`Groups::stock`].
    pub(crate) fn stock(&self) -> Result<GroupStock> {
        self.inner.groups.stock()
    }
}

struct MoverCore {
    groups: Rc<Groups>,
    states: RefCell<Vec<Rc<dyn Hooks>>>,
    names: RefCell<Vec<String>>,
    /// Of the names and types of the states, in their order.
    unit: RefCell<u64>,
    root: Rc<Account>,
    max_value_bytes: u64,
    /// How far groups are removed: the state, and the place in it.
    going: RefCell<BTreeMap<u16, (usize, GroupCursor)>>,
    /// Chunks that are installed in part, by their groups.
    half: RefCell<BTreeMap<u16, PartialChunk>>,
}

/// How far a state's entries of a group were visited.
#[derive(Clone, Default)]
pub(crate) struct GroupCursor {
    pub(crate) cursor: Cursor,
    /// The slice or bucket that the cursor is in, for states that have such.
    pub(crate) within: Option<Time>,
    /// The last entry visited, for states without a cursor.
    pub(crate) after: Option<Rc<dyn Any>>,
    /// Whether this is right behind what was given also when a visit has failed.
    pub(crate) is_exact: bool,
}

/// What finds key groups in a state.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if nothing does.
pub(crate) fn in_order<B: ?Sized>(by_hash: Option<&mut B>) -> Result<&mut B> {
    by_hash.ok_or_else(|| {
        let message = "this layout keeps no order, so it cannot find a key group's entries";
        Error::new(ErrorKind::Unsupported, message)
    })
}

/// A key group that is being read to be sent away; made by [`Mover::begin`].
pub struct Extraction {
    group: KeyGroup,
    by: ExtractionId,
    state: usize,
    place: GroupCursor,
    number: u32,
    ended: bool,
    /// Bytes of an entry, as far as was seen.
    entry_bytes: usize,
}

impl Extraction {
    /// Returns its key group.
    pub fn group(&self) -> KeyGroup {
        self.group
    }
}

impl fmt::Debug for Extraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extraction({:?}, {} chunks, ended: {})", self.group, self.number, self.ended)
    }
}

impl fmt::Debug for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mover({:?})", self.0.names.borrow())
    }
}

impl Store {
    /// Makes a unit of states whose key groups move together. `name` identifies it in errors and
    /// checkpoints. A new mover of a unit that has none left continues it: its groups are where
    /// they were, and its states still belong to it.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if the unit of this name has a mover.
    pub fn mover(&self, name: &str) -> Result<Mover> {
        let inner = &*self.0;
        let mut units = inner.units.borrow_mut();
        if let Some(unit) = units.iter_mut().find(|unit| unit.inner.groups.is_named(name)) {
            if unit.claimed.is_held() {
                let message = "there is a unit of this name already";
                return Err(Error::new(ErrorKind::InUse, message).with("unit", name));
            }
            return Ok(Mover(unit.inner.clone(), unit.claimed.claim()));
        }
        let restored = inner.stock_of_unit(name);
        let groups = Groups::new(name, restored, inner.owned.clone(), inner.config.key_groups);
        let groups = Rc::new(groups);
        let inner = Rc::new(MoverCore {
            groups,
            states: RefCell::default(),
            names: RefCell::default(),
            unit: RefCell::new(hash_bytes(name.as_bytes())),
            root: self.root().clone(),
            max_value_bytes: inner.config.max_value_bytes(),
            going: RefCell::default(),
            half: RefCell::default(),
        });
        let mut claimed = Claimed::default();
        let claim = claimed.claim();
        units.push(Unit { inner: inner.clone(), claimed });
        Ok(Mover(inner, claim))
    }
}

impl Store {
    /// The units of states whose key groups are not those that the store owns, and the groups that are
    /// here: for whoever commits the checkpoints of several stores as one, and has to know which of them
    /// has a group.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while a group is on its way.
    pub fn moved_units(&self) -> Result<Vec<(String, KeyGroups)>> {
        let owned = KeyGroups::from(self.0.owned.clone());
        let mut moved = Vec::new();
        for unit in &*self.0.units.borrow() {
            let here = unit.stock()?.here;
            if here != owned {
                moved.push((unit.inner.groups.name().to_owned(), here));
            }
        }
        Ok(moved)
    }
}

impl Mover {
    /// The groups, for a state of this store that is being opened, and of which the store's checkpoint
    /// says that it had `restored`. `written` is another state of the unit that has entries.
    pub(crate) fn groups_for(
        &self,
        root: &Rc<Account>,
        restored: Option<GroupStock>,
        written: impl FnOnce() -> Option<String>,
    ) -> Result<Rc<Groups>> {
        if !Rc::ptr_eq(root, &self.0.root) {
            let message = "the state is of another store than the unit it is to move with";
            return Err(Error::new(ErrorKind::Config, message));
        }
        let groups = &self.0.groups;
        for group in groups.join(restored, written)? {
            self.wake(group, groups.has(group.0));
        }
        Ok(groups.clone())
    }

    /// Where its key groups are.
    pub(crate) fn groups(&self) -> &Rc<Groups> {
        &self.0.groups
    }

    pub(crate) fn add(&self, manifest: &StateManifest, hooks: Rc<dyn Hooks>) {
        let mut unit = self.0.unit.borrow_mut();
        let StateManifest { name, primitive, key, value, .. } = manifest;
        for part in [name, primitive, key, value] {
            *unit = combine(*unit, hash_bytes(part.as_bytes()));
        }
        // That of windows goes with their progress, whose message names both.
        if let Some(words) = manifest.definition.as_ref().and_then(|known| known.as_str()) {
            *unit = combine(*unit, hash_bytes(words.as_bytes()));
        }
        self.0.states.borrow_mut().push(hooks);
        self.0.names.borrow_mut().push(name.clone());
    }

    /// Returns where a key group is, as far as this store knows.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there is no such group.
    pub fn standing(&self, group: KeyGroup) -> Result<Standing> {
        self.0.groups.standing(group)
    }

    /// Starts to give a key group away, or starts again: from now on nothing of it may change here.
    /// Cost: O(1).
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the group is not here. [`ErrorKind::Poisoned`] if a closure has
    /// panicked in one of the states. [`ErrorKind::InUse`] if windows are firing or due: advance
    /// them.
    pub fn begin(&self, group: KeyGroup) -> Result<Extraction> {
        let MoverCore { groups, states, names, .. } = &*self.0;
        for (state, name) in states.borrow().iter().zip(&*names.borrow()) {
            if state.poisoned() {
                let message = "a closure panicked in this state; clear the poison or restore";
                return Err(Error::new(ErrorKind::Poisoned, message).with("state", name));
            }
            state.may_move()?;
        }
        let by = match groups.part(group)? {
            GroupState::Here(_) => groups.freeze(),
            GroupState::Leaving(by) => ExtractionId { attempt: by.attempt + 1, ..by },
            _ => return Err(self.refuse(group, "is not here")),
        };
        groups.set(group, GroupState::Leaving(by));
        self.wake(group, false);
        let (place, entry_bytes) = (GroupCursor::default(), 0);
        Ok(Extraction { group, by, state: 0, place, number: 0, ended: false, entry_bytes })
    }

    /// Returns the next entries of a group as bytes for [`install`](Mover::install) of the other
    /// store's unit, or `None` after the last chunk. A chunk has at most `bytes`, unless one entry
    /// is larger (or several with nearly equal hashes are). It may be shorter, or empty. Reads what
    /// is on storage. The chunk's memory is the caller's; it is reserved only while it is made.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the group is no longer being given away, or was begun again.
    /// [`ErrorKind::OverBudget`]. Those of reading. Ask again, or [`keep`](Mover::keep) the group.
    pub fn next_chunk(&self, rest: &mut Extraction, bytes: usize) -> Result<Option<Vec<u8>>> {
        let MoverCore { groups, root, max_value_bytes, .. } = &*self.0;
        if groups.part(rest.group)? != GroupState::Leaving(rest.by) {
            return Err(self.refuse(rest.group, "is no longer being given away by this extraction"));
        }
        if rest.ended {
            return Ok(None);
        }
        // The chunk, one entry more in it, and one that is encoded beside it; each may be being moved.
        let memory = bytes as u64 + 3 * max_value_bytes;
        let mut memory = Encoding::begin(root, memory, "a piece of a key group that moves")?;
        self.write_chunk(rest, bytes, &mut memory).map(Some)
    }

    fn write_chunk(
        &self,
        rest: &mut Extraction,
        bytes: usize,
        memory: &mut Encoding,
    ) -> Result<Vec<u8>> {
        let (states, names) = (self.0.states.borrow(), self.0.names.borrow());
        let mut writer = ChunkWriter::new(bytes);
        let (mut state, mut place) = (rest.state, rest.place.clone());
        let mut fuel_max = STEP_ENTRIES_MAX;
        for _ in 0..STEPS_MAX {
            if state == states.len() || writer.len() >= bytes {
                break;
            }
            let likely = match rest.entry_bytes {
                0 => STEP_ENTRIES_FIRST,
                each => (bytes - writer.len()) / each,
            };
            let (before, mark, mut is_full) = (place.clone(), writer.mark(), false);
            let fuel = likely.clamp(1, fuel_max);
            let number = u32::try_from(state).expect("a unit has few states");
            let step = states[state].extract(rest.group, &mut place, fuel, &mut |entry| {
                is_full = writer.would_be(&entry) > bytes && (fuel > 1 || mark.entries() > 0);
                if is_full {
                    return Err(Error::new(ErrorKind::Backpressure, "the chunk is full"));
                }
                // One that is longer than values are to be is there encoded, and in the chunk.
                let longer = 2 * (entry.key.len() + entry.value.len()) as u64;
                memory.is_for(
                    bytes as u64 + longer,
                    "moving a value that is larger than max_value",
                )?;
                writer.push(number, entry)
            });
            rest.entry_bytes = writer.entry_bytes().unwrap_or(rest.entry_bytes);
            match step {
                Ok(()) if place.cursor.done => (state, place) = (state + 1, GroupCursor::default()),
                Ok(()) => {}
                // A long list goes on where it was left, instead of being read again.
                Err(_) if is_full && place.is_exact && writer.mark().entries() > 0 => break,
                // What did not fit is for the next chunk, or for smaller steps.
                Err(_) if is_full => {
                    writer.back_to(mark);
                    place = before;
                    if mark.entries() > 0 {
                        break;
                    }
                    fuel_max = (fuel / 4).max(1);
                }
                Err(error) => return Err(error.with("state", &names[state])),
            }
        }
        let last = state == states.len();
        let Ok(count) = u8::try_from(states.len()) else {
            let message = format!("{} states cannot move together: 255 can", states.len());
            return Err(self.0.groups.error(ErrorKind::Unsupported, &message));
        };
        let head = ChunkHead {
            group: rest.group,
            last,
            states: count,
            unit: *self.0.unit.borrow(),
            by: rest.by,
            number: rest.number,
        };
        (rest.state, rest.place) = (state, place);
        (rest.number, rest.ended) = (rest.number + 1, last);
        Ok(writer.finish(&head))
    }

    /// Keeps a group that was being given away: it may change here again. A store that has
    /// installed parts of it must forget them.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if it is not being given away.
    pub fn keep(&self, group: KeyGroup) -> Result<()> {
        let GroupState::Leaving(_) = self.0.groups.part(group)? else {
            return Err(self.refuse(group, "is not being given away"));
        };
        self.0.groups.set(group, GroupState::Here(None));
        self.wake(group, true);
        Ok(())
    }

    /// Declares that the other store has the whole group: from now on it counts there, also in
    /// checkpoints. [`forget`](Mover::forget) removes what is left here, and declares the same.
    /// Cost: O(1).
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the group is here and not being given away. [`ErrorKind::InUse`]
    /// while windows fire.
    pub fn leave(&self, group: KeyGroup) -> Result<()> {
        let groups = &self.0.groups;
        match groups.part(group)? {
            GroupState::Here(_) => Err(self.refuse(group, "is here, and not being given away")),
            part @ (GroupState::Leaving(_) | GroupState::Arriving(..)) => {
                if let GroupState::Leaving(_) = part {
                    self.0.states.borrow().iter().try_for_each(|state| state.may_move())?;
                }
                groups.set(group, GroupState::Going);
                self.0.half.borrow_mut().remove(&group.0);
                Ok(())
            }
            GroupState::Going | GroupState::Away => Ok(()),
        }
    }

    /// Removes about `fuel` entries of a group that was given away, after the other store has
    /// reported the whole group; or of a group that has arrived in part and is given up. Returns
    /// whether nothing is left. Reads nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the group is here and not being given away.
    pub fn forget(&self, group: KeyGroup, fuel: usize) -> Result<bool> {
        let MoverCore { groups, states, names, going, .. } = &*self.0;
        self.leave(group)?;
        if groups.part(group)? == GroupState::Away {
            return Ok(true);
        }
        let (states, mut going) = (states.borrow(), going.borrow_mut());
        let (state, place) = going.entry(group.0).or_default();
        if let Some(hooks) = states.get(*state) {
            let name = &names.borrow()[*state];
            hooks.forget(group, place, fuel).map_err(|error| error.with("state", name))?;
            if place.cursor.done {
                (*state, *place) = (*state + 1, GroupCursor::default());
            }
        }
        if *state < states.len() {
            return Ok(false);
        }
        going.remove(&group.0);
        groups.set(group, GroupState::Away);
        Ok(true)
    }

    /// Tells the states whether the group's timers may fire.
    fn wake(&self, group: KeyGroup, awake: bool) {
        self.0.states.borrow().iter().for_each(|state| state.wake(group, awake));
    }

    fn refuse(&self, group: KeyGroup, what: &str) -> Error {
        let message = format!("key group {} {what}", group.0);
        self.0.groups.error(ErrorKind::Mismatch, &message)
    }
}
