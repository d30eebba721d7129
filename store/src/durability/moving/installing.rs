//! Installing chunks: what a store takes in of a key group that another has given away.
//!
//! What it keeps true: a chunk counts once. One that came before is passed over, and of one that failed half
//! way it is known how many entries are in, and how much of the entry at hand, so that it goes on there.

use alluvium_pagestore::{ErrorKind, KeyGroup, MemoryKind, Result};

use super::chunk::ChunkReader;
use super::groups::{ExtractionId, GroupState};
use super::{Mover, MoverCore};

/// How much of a chunk is installed, which did not fit.
pub(super) struct PartialChunk {
    by: ExtractionId,
    number: u32,
    entries: usize,
    arriving: EntryArrival,
}

/// How an entry comes of a group that arrives.
#[derive(Clone, Copy, Default)]
pub(crate) struct EntryArrival {
    /// The group has come before, in part, and comes anew: what is there of an entry is of that.
    pub(crate) is_anew: bool,
    /// How much of the entry is there, of one that is not put as a whole.
    pub(crate) done: usize,
}

impl Mover {
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
        let MoverCore { groups, states, names, root, .. } = &*self.0;
        let mut reader = ChunkReader::new(chunk)?;
        let head = reader.head;
        let (group, states) = (head.group, states.borrow());
        if (head.unit, usize::from(head.states)) != (*self.0.unit.borrow(), states.len()) {
            return Err(
                self.refuse(group, "comes from a unit of other states, or of other definitions")
            );
        }
        match groups.part(group)? {
            GroupState::Here(Some(by)) if by.is_of(head.by) => return Ok((group, true)),
            GroupState::Here(_) => return Err(self.refuse(group, "is here already")),
            GroupState::Leaving(_) | GroupState::Going => {
                let message =
                    format!("forget key group {} first: entries of it are left here", group.0);
                return Err(groups.error(ErrorKind::InUse, &message));
            }
            GroupState::Away if head.number == 0 => {}
            GroupState::Arriving(by, _) if !by.is_of(head.by) => {
                return Err(
                    self.refuse(group, "has arrived in part by another move: forget that first")
                );
            }
            GroupState::Arriving(by, next)
                if (head.by.attempt, head.number) < (by.attempt, next) =>
            {
                return Ok((group, false));
            }
            GroupState::Arriving(by, next)
                if (head.by.attempt, head.number) == (by.attempt, next) => {}
            GroupState::Arriving(..) if head.number == 0 => {}
            GroupState::Away | GroupState::Arriving(..) => {
                let what = format!("lacks chunks before number {}", head.number);
                return Err(self.refuse(group, &what));
            }
        }
        states.iter().try_for_each(|state| state.may_move())?;
        let memory = chunk.len() as u64;
        let _lenient = root.lend_left_free();
        root.reserve(MemoryKind::Buffers, memory, "a piece of a key group that arrives")?;
        groups.set(group, GroupState::Arriving(head.by, head.number));
        self.wake(group, false);
        let half = self.0.half.borrow_mut().remove(&group.0);
        let half = half.filter(|half| (half.by, half.number) == (head.by, head.number));
        let anew = EntryArrival { is_anew: head.by.attempt > 1, done: 0 };
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
            self.0
                .half
                .borrow_mut()
                .insert(group.0, PartialChunk { by, number, entries, arriving });
            return Err(error);
        }
        if head.last {
            groups.set(group, GroupState::Here(Some(head.by)));
            self.wake(group, true);
        } else {
            groups.set(group, GroupState::Arriving(head.by, head.number + 1));
        }
        Ok((group, head.last))
    }
}
