//! Key groups on the move: out of one open store, into another.
//!
//! What it keeps true:
//! - A group that is being given away does not change: writes to its keys are refused by name, so that
//!   what was sent stays what there is and nothing has to be sent again. Whoever drives the store
//!   holds the records of the group back.
//! - It is readable where it was until its store is told to forget it.
//! - A chunk that is installed twice, or again after the mover was lost, changes nothing, also if the
//!   group has been written to since.
//! - A checkpoint says of each state that moves which key groups its store has of it, and which of it
//!   may be left that others have. None is taken while a group is on its way: whether it counts here or
//!   there is decided when the old store is told to forget it.
//!
//! Who owns what, and when, is not known here.

mod chunk;
mod groups;

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use alluvium_layouts::Cursor;
use alluvium_pagestore::{
    Account, Error, ErrorKind, KeyGroup, KeyGroups, MemoryKind, Result, StateManifest, Time,
    combine, hash_bytes,
};

use crate::state_cell::Hooks;
use crate::store::Store;
use chunk::{ChunkReader, ChunkWriter, Head};
pub use groups::Standing;
pub(crate) use groups::{Groups, Stock};
use groups::{Move, Part};

/// Looks at a state that one chunk takes at most.
const STEPS_MAX: usize = 32;
/// Entries that one look takes at most, and at first.
const STEP_ENTRIES_MAX: usize = 256;
const STEP_ENTRIES_FIRST: usize = 16;

/// States whose key groups move together, from one store to another, while both are in use.
///
/// The states of an operator form a unit: a group moves with its entries in all of them. Make one with
/// [`Store::mover`] in each store, open the same states in it in the same order
/// ([`StateBuilder::moved_by`](crate::StateBuilder::moved_by), [`Store::timers_moved_by`]), and no other
/// than these of the unit's keys. At first each store has the groups it
/// [owns](crate::StoreBuilder::owned_groups), or those that its checkpoint has of the states, once
/// one of these is open. Cheap to clone.
///
/// ```
/// use alluvium::{KeyGroup, Standing, Store};
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
pub struct Mover(Rc<Inner>);

struct Inner {
    groups: Rc<Groups>,
    states: RefCell<Vec<Rc<dyn Hooks>>>,
    names: RefCell<Vec<String>>,
    /// Of the names and types of the states, in their order.
    unit: RefCell<u64>,
    root: Rc<Account>,
    max_value_bytes: u64,
    /// How far groups are removed: the state, and the place in it.
    going: RefCell<BTreeMap<u16, (usize, Place)>>,
    /// Chunks that are installed in part, by their groups.
    half: RefCell<BTreeMap<u16, Half>>,
}

/// How much of a chunk is installed, which did not fit.
struct Half {
    by: Move,
    number: u32,
    entries: usize,
    arriving: Arriving,
}

/// How an entry comes of a group that arrives.
#[derive(Clone, Copy, Default)]
pub(crate) struct Arriving {
    /// The group has come before, in part, and comes anew: what is there of an entry is of that.
    pub(crate) is_anew: bool,
    /// How much of the entry is there, of one that is not put as a whole.
    pub(crate) done: usize,
}

/// How far a state's entries of a group were visited.
#[derive(Clone, Default)]
pub(crate) struct Place {
    pub(crate) cursor: Cursor,
    /// The slice or bucket that the cursor is in, for states that have such.
    pub(crate) within: Option<Time>,
    /// The last entry visited, for states without a cursor.
    pub(crate) after: Option<Rc<dyn Any>>,
}

/// A key group being read, to be sent away; made by [`Mover::begin`].
pub struct Extraction {
    group: KeyGroup,
    by: Move,
    state: usize,
    place: Place,
    number: u32,
    ended: bool,
    /// Bytes of an entry, as far as was seen.
    entry_bytes: usize,
}

impl Extraction {
    /// Its key group.
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
    /// A new unit of states whose key groups move together; `name` names it in errors.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if the store has a unit of this name.
    pub fn mover(&self, name: &str) -> Result<Mover> {
        let inner = &*self.0;
        let mut units = inner.units.borrow_mut();
        if units.iter().any(|unit| unit.is_named(name)) {
            let message = "states that move together have this name already";
            return Err(Error::new(ErrorKind::InUse, message).with("unit", name));
        }
        let groups = Groups::new(name, inner.owned.clone(), inner.config.key_groups);
        let groups = Rc::new(groups);
        units.push(groups.clone());
        Ok(Mover(Rc::new(Inner {
            groups,
            states: RefCell::default(),
            names: RefCell::default(),
            unit: RefCell::new(hash_bytes(name.as_bytes())),
            root: self.root().clone(),
            max_value_bytes: inner.config.max_value_bytes(),
            going: RefCell::default(),
            half: RefCell::default(),
        })))
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
                moved.push((unit.name().to_owned(), here));
            }
        }
        Ok(moved)
    }
}

impl Mover {
    /// The groups, for a state of this store that is being opened, and of which the store's checkpoint
    /// says that it had `restored`.
    pub(crate) fn groups_for(
        &self,
        root: &Rc<Account>,
        restored: Option<Stock>,
    ) -> Result<Rc<Groups>> {
        if !Rc::ptr_eq(root, &self.0.root) {
            let message = "the state is of another store than the unit it is to move with";
            return Err(Error::new(ErrorKind::Config, message));
        }
        let groups = &self.0.groups;
        for group in groups.join(restored)? {
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
        self.0.states.borrow_mut().push(hooks);
        self.0.names.borrow_mut().push(name.clone());
    }

    /// Where a key group is, as far as this store knows.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there is no such group.
    pub fn standing(&self, group: KeyGroup) -> Result<Standing> {
        self.0.groups.standing(group)
    }

    /// Begins to give a key group away, or begins anew: from now on nothing of it may change here.
    /// Cost: O(1).
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the group is not here; [`ErrorKind::Poisoned`] if a closure panicked
    /// in one of the states; [`ErrorKind::InUse`] if windows are being fired, or are due: advance them.
    pub fn begin(&self, group: KeyGroup) -> Result<Extraction> {
        let Inner { groups, states, names, .. } = &*self.0;
        for (state, name) in states.borrow().iter().zip(&*names.borrow()) {
            if state.poisoned() {
                let message = "a closure panicked in this state; clear the poison or restore";
                return Err(Error::new(ErrorKind::Poisoned, message).with("state", name));
            }
            state.may_move()?;
        }
        let by = match groups.part(group)? {
            Part::Here(_) => groups.freeze(),
            Part::Leaving(by) => Move { attempt: by.attempt + 1, ..by },
            _ => return Err(self.refuse(group, "is not here to be given away")),
        };
        groups.set(group, Part::Leaving(by));
        self.wake(group, false);
        let (place, entry_bytes) = (Place::default(), 0);
        Ok(Extraction { group, by, state: 0, place, number: 0, ended: false, entry_bytes })
    }

    /// The next of a group's entries, as bytes for [`install`](Mover::install) of the other store's
    /// unit; `None` after the last chunk. A chunk is no longer than `bytes`, unless one entry is (or
    /// several with nearly the same hash); it may be shorter, and without entries. What is on storage
    /// is read. The chunk's memory is the caller's; while it is made it is booked.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the group is not being given away any more, or was begun anew;
    /// [`ErrorKind::OverBudget`]; those of reading. Ask again, or [`keep`](Mover::keep) the group.
    pub fn next_chunk(&self, rest: &mut Extraction, bytes: usize) -> Result<Option<Vec<u8>>> {
        let Inner { groups, root, max_value_bytes, .. } = &*self.0;
        if groups.part(rest.group)? != Part::Leaving(rest.by) {
            return Err(self.refuse(rest.group, "is not being given away by this any more"));
        }
        if rest.ended {
            return Ok(None);
        }
        // The chunk, one entry more in it, and one that is encoded beside it; each may be being moved.
        let memory = bytes as u64 + 3 * max_value_bytes;
        root.reserve(MemoryKind::Buffers, memory, "a piece of a key group that moves")?;
        let written = self.write_chunk(rest, bytes);
        root.release(MemoryKind::Buffers, memory);
        written.map(Some)
    }

    fn write_chunk(&self, rest: &mut Extraction, bytes: usize) -> Result<Vec<u8>> {
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
                writer.push(number, entry);
                Ok(())
            });
            rest.entry_bytes = writer.entry_bytes().unwrap_or(rest.entry_bytes);
            match step {
                Ok(()) if place.cursor.done => (state, place) = (state + 1, Place::default()),
                Ok(()) => {}
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
        let head = Head {
            group: rest.group,
            last,
            states: states.len() as u8,
            unit: *self.0.unit.borrow(),
            by: rest.by,
            number: rest.number,
        };
        (rest.state, rest.place) = (state, place);
        (rest.number, rest.ended) = (rest.number + 1, last);
        Ok(writer.finish(&head))
    }

    /// Keeps a group that was being given away: it may change here again. Whoever has installed some of
    /// it must forget that.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if it is not being given away.
    pub fn keep(&self, group: KeyGroup) -> Result<()> {
        let Part::Leaving(_) = self.0.groups.part(group)? else {
            return Err(self.refuse(group, "is not being given away"));
        };
        self.0.groups.set(group, Part::Here(None));
        self.wake(group, true);
        Ok(())
    }

    /// Installs a chunk of another store's unit, and says which group it is of and whether that is here
    /// now, in full. Chunks come in order; one that was installed before changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for damaged bytes; [`ErrorKind::Mismatch`] if the unit has other states,
    /// if the group is here by other means, or if chunks before this one are missing;
    /// [`ErrorKind::InUse`] while what was here of the group before is not
    /// [forgotten](Mover::forget) in full, or while windows are being fired; those of writing. After these, some of the chunk may be here:
    /// install it again.
    pub fn install(&self, chunk: &[u8]) -> Result<(KeyGroup, bool)> {
        let Inner { groups, states, names, root, .. } = &*self.0;
        let mut reader = ChunkReader::new(chunk)?;
        let head = reader.head;
        let (group, states) = (head.group, states.borrow());
        if (head.unit, usize::from(head.states)) != (*self.0.unit.borrow(), states.len()) {
            return Err(self.refuse(group, "comes from a unit of other states"));
        }
        match groups.part(group)? {
            Part::Here(Some(by)) if by.freeze == head.by.freeze => return Ok((group, true)),
            Part::Here(_) => return Err(self.refuse(group, "is here already")),
            Part::Leaving(_) | Part::Going => {
                let message =
                    format!("what was here of key group {} is not forgotten yet", group.0);
                return Err(groups.error(ErrorKind::InUse, &message));
            }
            Part::Away if head.number == 0 => {}
            Part::Arriving(by, _) if by.freeze != head.by.freeze => {
                return Err(self.refuse(group, "is half here by another move: forget that first"));
            }
            Part::Arriving(by, next) if (head.by.attempt, head.number) < (by.attempt, next) => {
                return Ok((group, false));
            }
            Part::Arriving(by, next) if (head.by.attempt, head.number) == (by.attempt, next) => {}
            Part::Arriving(..) if head.number == 0 => {}
            Part::Away | Part::Arriving(..) => {
                let what = format!("lacks chunks before number {}", head.number);
                return Err(self.refuse(group, &what));
            }
        }
        states.iter().try_for_each(|state| state.may_move())?;
        let memory = chunk.len() as u64;
        root.reserve(MemoryKind::Buffers, memory, "a piece of a key group that arrives")?;
        groups.set(group, Part::Arriving(head.by, head.number));
        self.wake(group, false);
        let half = self.0.half.borrow_mut().remove(&group.0);
        let half = half.filter(|half| (half.by, half.number) == (head.by, head.number));
        let anew = Arriving { is_anew: head.by.attempt > 1, done: 0 };
        let (passed, mut arriving) = half.map_or((0, anew), |half| (half.entries, half.arriving));
        let mut entries = 0;
        let mut install = || -> Result<()> {
            while let Some((state, entry)) = reader.next()? {
                if entries < passed {
                    entries += 1;
                    continue;
                }
                let Some(hooks) = states.get(state as usize) else {
                    return Err(self.refuse(group, "has an entry of no state"));
                };
                if groups.group_of(entry.hash) != group.0 {
                    return Err(self.refuse(group, "has a key of another one"));
                }
                let name = &names.borrow()[state as usize];
                hooks.install(entry, &mut arriving).map_err(|error| error.with("state", name))?;
                (entries, arriving) = (entries + 1, anew);
            }
            Ok(())
        };
        let installed = install();
        root.release(MemoryKind::Buffers, memory);
        if let Err(error) = installed {
            let (by, number) = (head.by, head.number);
            self.0.half.borrow_mut().insert(group.0, Half { by, number, entries, arriving });
            return Err(error);
        }
        if head.last {
            groups.set(group, Part::Here(Some(head.by)));
            self.wake(group, true);
        } else {
            groups.set(group, Part::Arriving(head.by, head.number + 1));
        }
        Ok((group, head.last))
    }

    /// Says that the other store has a group in full which was being given away: it counts there from now
    /// on, also in checkpoints, and what is left of it here is to be [forgotten](Mover::forget), which
    /// says the same. Cost: O(1).
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the group is here and not being given away; [`ErrorKind::InUse`] while
    /// windows are being fired.
    pub fn leave(&self, group: KeyGroup) -> Result<()> {
        let groups = &self.0.groups;
        match groups.part(group)? {
            Part::Here(_) => Err(self.refuse(group, "is here, and not being given away")),
            part @ (Part::Leaving(_) | Part::Arriving(..)) => {
                if let Part::Leaving(_) = part {
                    self.0.states.borrow().iter().try_for_each(|state| state.may_move())?;
                }
                groups.set(group, Part::Going);
                self.0.half.borrow_mut().remove(&group.0);
                Ok(())
            }
            Part::Going | Part::Away => Ok(()),
        }
    }

    /// Removes about `fuel` entries of a group that was given away, once whoever installed it has said
    /// that it is there in full; or of one that has arrived in part and is given up. Says whether nothing
    /// is left. Reads nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the group is here and not being given away.
    pub fn forget(&self, group: KeyGroup, fuel: usize) -> Result<bool> {
        let Inner { groups, states, names, going, .. } = &*self.0;
        self.leave(group)?;
        if groups.part(group)? == Part::Away {
            return Ok(true);
        }
        let (states, mut going) = (states.borrow(), going.borrow_mut());
        let (state, place) = going.entry(group.0).or_default();
        if let Some(hooks) = states.get(*state) {
            let name = &names.borrow()[*state];
            hooks.forget(group, place, fuel).map_err(|error| error.with("state", name))?;
            if place.cursor.done {
                (*state, *place) = (*state + 1, Place::default());
            }
        }
        if *state < states.len() {
            return Ok(false);
        }
        going.remove(&group.0);
        groups.set(group, Part::Away);
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
