//! Key groups on their way to a worker, and the rows that wait for them.
//!
//! What it keeps true: rows are given on when their group is here by the move that their router knew last
//! before their time, in the order in which they came. A chunk that is not installed holds the time of
//! its move, and so do rows that wait theirs.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use alluvium::{ErrorKind, Key, KeyGroup, Mover, Result, Standing, Time};
use timely::dataflow::operators::Capability;
use timely::scheduling::Activator;

use super::progress::Progress;
use super::{Chunk, Routed};
use crate::event_time::EventTime;
use crate::intake::{Intake, Right, Work};

/// Chunks installed per schedule.
const INSTALLED: usize = 4;
/// Of a group that has not been here.
const NEVER: u32 = u32::MAX;

/// The operator that groups arrive at.
pub(super) trait Host<T: EventTime, K, D> {
    /// A group is here in full, at the time of this right.
    fn has_come(&mut self, right: &Capability<T>);

    /// Applies rows of groups that are here.
    fn apply(&mut self, right: &Right<'_, T>, work: Work<'_, K, D>) -> Result<()>;
}

/// Groups on their way here, and what waits for them.
pub(super) struct Arrivals<T: EventTime, K, D> {
    mover: Mover,
    /// How often each group had moved when it came here last.
    moves: Vec<u32>,
    chunks: VecDeque<(Capability<T>, Chunk)>,
    progress: Rc<Progress<T>>,
    /// Rows by group, with how often it will have moved.
    waiting: BTreeMap<u16, Vec<Waiting<T, K, D>>>,
    activator: Activator,
}

struct Waiting<T: EventTime, K, D> {
    moves: u32,
    right: Capability<T>,
    rows: Vec<(K, D)>,
}

impl<T: EventTime, K: Key, D> Arrivals<T, K, D> {
    /// At first the groups are here that the mover has.
    pub(super) fn new(
        mover: Mover,
        groups: u16,
        progress: Rc<Progress<T>>,
        activator: Activator,
    ) -> Self {
        let moves = (0..groups).map(|group| {
            // What is elsewhere has never been here.
            let is_here = |at| at == Standing::Here;
            if mover.standing(KeyGroup(group)).is_ok_and(is_here) { 0 } else { NEVER }
        });
        let (moves, chunks, waiting) = (moves.collect(), VecDeque::new(), BTreeMap::new());
        Self { mover, moves, chunks, progress, waiting, activator }
    }

    /// Takes a chunk in, to be installed.
    pub(super) fn take(&mut self, right: Capability<T>, chunk: Chunk) {
        self.chunks.push_back((right, chunk));
    }

    /// Gives those of some rows to `ready` that may be applied, and keeps the others, with their time.
    pub(super) fn sort(
        &mut self,
        rows: impl Iterator<Item = Routed<D>>,
        key: impl Fn(&D) -> K,
        right: impl Fn() -> Capability<T>,
        ready: &mut Vec<(K, D)>,
    ) {
        for (_, moves, row) in rows {
            let key = key(&row);
            let group = KeyGroup::of(key.key_hash(), self.moves.len() as u16).0;
            if self.is_here(group, moves) {
                ready.push((key, row));
            } else {
                self.put_aside(group, moves, &right, (key, row));
            }
        }
    }

    /// Whether rows may be applied whose group had moved so often.
    fn is_here(&self, group: u16, moves: u32) -> bool {
        self.moves[usize::from(group)] == moves
    }

    /// How far the operator's own time may go: not past what is not installed, or waits.
    pub(super) fn limit(&self) -> Time {
        let waiting = self.waiting.values().flatten().map(|one| &one.right);
        let rights = self.chunks.iter().map(|(right, _)| right).chain(waiting);
        rights.map(|right| right.time().time()).min().unwrap_or(Time::MAX)
    }

    /// Keeps a row for a group that is on its way.
    fn put_aside(
        &mut self,
        group: u16,
        moves: u32,
        right: impl Fn() -> Capability<T>,
        row: (K, D),
    ) {
        let waiting = self.waiting.entry(group).or_default();
        let time = right();
        match waiting.last_mut() {
            Some(last) if last.moves == moves && last.right.time() == time.time() => {
                last.rows.push(row);
            }
            _ => waiting.push(Waiting { moves, right: time, rows: vec![row] }),
        }
    }

    /// Installs some chunks, and gives the rows on that waited for a group that is here then.
    pub(super) fn install(&mut self, intake: &mut Intake<T, K, D>, host: &mut impl Host<T, K, D>) {
        for _ in 0..INSTALLED {
            if intake.is_closed() {
                return;
            }
            let Some((right, chunk)) = self.chunks.pop_front() else { return };
            let mut installed = None;
            intake.attempt(&right, || match self.mover.install(&chunk.bytes) {
                Ok(arrived) => {
                    installed = Some(arrived);
                    Ok(())
                }
                // What was here before is being removed: by the router, in its steps.
                Err(error) if error.kind() == ErrorKind::InUse => {
                    self.activator.activate();
                    Ok(())
                }
                Err(error) => Err(error),
            });
            if installed.is_some() {
                self.progress.install(chunk.from, chunk.bytes.len() as u64);
            }
            match installed {
                Some((_, false)) => {}
                Some((group, true)) => {
                    self.moves[usize::from(group.0)] = chunk.moves;
                    host.has_come(&right);
                    self.release(group.0, intake, host);
                }
                None => {
                    self.chunks.push_front((right, chunk));
                    return;
                }
            }
        }
        if !self.chunks.is_empty() {
            self.activator.activate();
        }
    }

    /// Gives the rows on that waited for a group that is here now.
    fn release(&mut self, group: u16, intake: &mut Intake<T, K, D>, host: &mut impl Host<T, K, D>) {
        let now = self.moves[usize::from(group)];
        let Some(all) = self.waiting.remove(&group) else { return };
        let (due, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.moves == now);
        if !later.is_empty() {
            self.waiting.insert(group, later);
        }
        for Waiting { right, mut rows, .. } in due {
            intake.give(&right, &mut rows, |right, work| host.apply(right, work));
        }
    }
}
