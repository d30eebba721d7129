//! Key groups on their way to a worker, and the rows that wait for them.
//!
//! What it keeps true: rows are given on when their group is here by the move that their router knew last
//! before their time, in the order in which they came. A chunk that is not installed holds the time of
//! its move, and so do rows that wait theirs. What it costs to take a row in or to give it on, and to know the
//! least of these times, does not grow with what waits, but for a logarithm.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use alluvium::moving::{KeyGroup, Mover, Standing};
use alluvium::{ErrorKind, Key, Result, Time};
use timely::dataflow::operators::Capability;
use timely::scheduling::Activator;

use super::progress::MigrationProgress;
use super::{GroupChunk, Routed};
use crate::event_time::EventTime;
use crate::intake::staged::Times;
use crate::intake::{BATCH, EmitRight, Intake, IntakeWork};

/// Chunks installed per schedule.
const INSTALLED: usize = 4;
/// Of a group that has not been here.
const NEVER: u32 = u32::MAX;

/// The operator that groups arrive at.
pub(super) trait ArrivalHost<T: EventTime, K, D> {
    /// A group is here in full, at the time of this right.
    fn group_arrived(&mut self, right: &Capability<T>);

    /// Applies rows of groups that are here.
    fn apply(&mut self, right: &EmitRight<'_, T>, work: IntakeWork<'_, K, D>) -> Result<()>;
}

/// Groups on their way here, and what waits for them.
pub(super) struct Arrivals<T: EventTime, K, D> {
    mover: Mover,
    /// How often each group had moved when it came here last.
    moves: Vec<u32>,
    chunks: VecDeque<(Capability<T>, GroupChunk)>,
    progress: Rc<MigrationProgress<T>>,
    waiting: BTreeMap<GroupStay, Vec<RowsOfStay<T, K, D>>>,
    /// Of the chunks, and of the rows.
    times: Times<T>,
    activator: Activator,
}

/// A stay of a group: how often it will have moved.
type GroupStay = (u16, u32);

/// Rows of one stay.
struct RowsOfStay<T: EventTime, K, D> {
    right: Capability<T>,
    rows: Vec<(K, D)>,
}

impl<T: EventTime, K: Key, D> Arrivals<T, K, D> {
    /// At first the groups are here that the mover has.
    pub(super) fn new(
        mover: Mover,
        groups: u16,
        progress: Rc<MigrationProgress<T>>,
        activator: Activator,
    ) -> Self {
        let moves = (0..groups).map(|group| {
            // What is elsewhere has never been here.
            let is_here = |at| at == Standing::Here;
            if mover.standing(KeyGroup(group)).is_ok_and(is_here) { 0 } else { NEVER }
        });
        let (moves, chunks, waiting) = (moves.collect(), VecDeque::new(), BTreeMap::new());
        Self { mover, moves, chunks, progress, waiting, times: Times::new(), activator }
    }

    /// Takes a chunk in, to be installed.
    pub(super) fn take(&mut self, right: Capability<T>, chunk: GroupChunk) {
        self.times.add(right.time());
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
        self.times.least().map_or(Time::MAX, T::time)
    }

    /// Keeps a row for a group that is on its way.
    fn put_aside(
        &mut self,
        group: u16,
        moves: u32,
        right: impl Fn() -> Capability<T>,
        row: (K, D),
    ) {
        let waiting = self.waiting.entry((group, moves)).or_default();
        let right = right();
        match waiting.last_mut() {
            Some(last) if last.right.time() == right.time() => last.rows.push(row),
            _ => {
                self.times.add(right.time());
                waiting.push(RowsOfStay { right, rows: vec![row] });
            }
        }
    }

    /// Installs some chunks, and gives the rows on that waited for a group that is here then.
    pub(super) fn install(
        &mut self,
        intake: &mut Intake<T, K, D>,
        host: &mut impl ArrivalHost<T, K, D>,
    ) {
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
                Some((_, false)) => self.times.remove(right.time()),
                Some((group, true)) => {
                    self.times.remove(right.time());
                    self.moves[usize::from(group.0)] = chunk.moves;
                    host.group_arrived(&right);
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

    /// Gives the rows on that waited for a group that is here now, in batches.
    fn release(
        &mut self,
        group: u16,
        intake: &mut Intake<T, K, D>,
        host: &mut impl ArrivalHost<T, K, D>,
    ) {
        let now = self.moves[usize::from(group)];
        let mut batch = Vec::new();
        for RowsOfStay { right, rows } in self.waiting.remove(&(group, now)).into_iter().flatten() {
            self.times.remove(right.time());
            let mut rows = rows.into_iter();
            loop {
                batch.extend(rows.by_ref().take(BATCH));
                if batch.is_empty() {
                    break;
                }
                intake.give(&right, &mut batch, &mut |right, work| host.apply(right, work));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use alluvium::{KeyHash, Store};
    use serde::{Deserialize, Serialize};
    use timely::container::CapacityContainerBuilder;
    use timely::dataflow::operators::generic::source;
    use timely::order::{PartialOrder, TotalOrder};
    use timely::progress::timestamp::{PathSummary, Refines, Timestamp};

    use super::*;

    thread_local! {
        /// How often a time was looked at.
        static LOOKS: Cell<u64> = const { Cell::new(0) };
    }

    fn look() {
        LOOKS.set(LOOKS.get() + 1);
    }

    /// A time that counts how often it is looked at.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    struct Counted(i64);

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            look();
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrder for Counted {
        fn less_equal(&self, other: &Self) -> bool {
            self.0 <= other.0
        }
    }

    impl TotalOrder for Counted {}

    impl Refines<()> for Counted {
        fn to_inner(_: ()) -> Self {
            Self(0)
        }

        fn to_outer(self) {}

        fn summarize(_: <Self as Timestamp>::Summary) {}
    }

    impl PathSummary<Counted> for i64 {
        fn results_in(&self, src: &Counted) -> Option<Counted> {
            src.0.checked_add(*self).map(Counted)
        }

        fn followed_by(&self, other: &Self) -> Option<Self> {
            self.checked_add(*other)
        }
    }

    impl Timestamp for Counted {
        type Summary = i64;

        fn minimum() -> Self {
            Self(0)
        }
    }

    impl EventTime for Counted {
        fn from_time(time: Time) -> Self {
            Self(time.0)
        }

        fn time(&self) -> Time {
            look();
            Time(self.0)
        }
    }

    /// Looks at times that a row costs where so many wait, each at a time of its own.
    fn looks_per_row(rows: i64) -> u64 {
        timely::execute_directly(move |worker| {
            let counted = Rc::new(Cell::new(0));
            let told = counted.clone();
            let store = Store::in_memory().key_groups(2).owned_groups(0..1).open().unwrap();
            let mover = store.mover("unit").unwrap();
            let away = (0..).find(|key: &u64| KeyGroup::of(key.key_hash(), 2).0 == 1).unwrap();
            worker.dataflow::<Counted, _, _>(|scope| {
                source::<_, CapacityContainerBuilder<Vec<()>>, _, _>(
                    scope,
                    "rows",
                    |first, info| {
                        let activator = scope.activator_for(info.address);
                        let mut arrivals = Arrivals::<Counted, u64, u64>::new(
                            mover,
                            2,
                            MigrationProgress::new(),
                            activator,
                        );
                        let mut least = i64::MAX;
                        LOOKS.set(0);
                        for n in 0..rows {
                            let at = n * 7_919 % rows;
                            let right = || first.delayed(&Counted(at));
                            // By a move that has not come.
                            let row = std::iter::once((0, 1, away));
                            arrivals.sort(row, |key| *key, right, &mut Vec::new());
                            least = least.min(at);
                            assert_eq!(arrivals.limit(), Time(least));
                        }
                        told.set(LOOKS.get() / rows as u64);
                        |_| ()
                    },
                );
            });
            counted.get()
        })
    }

    #[test]
    fn a_row_costs_the_same_however_many_wait() {
        let (few, many) = (looks_per_row(500), looks_per_row(16_000));
        // A logarithm, and no more.
        assert!(few > 0 && many < 3 * few, "{few} looks a row with 500 rows, {many} with 16,000");
    }
}
