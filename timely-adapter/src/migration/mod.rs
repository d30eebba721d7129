//! Operators whose key groups move between workers while they run, in the manner of Megaphone.
//!
//! Such an operator is two: a [router](router) and, behind it, the operator itself. Moves come on a
//! control stream, at times. A row goes to the worker that has its key group at the row's time; when all
//! workers are done with what comes before the time of a move, the router reads the group in chunks, on
//! the worker that has it, and sends it to the one that is to have it. Rows of the group that are at or
//! after that time wait there until it is installed in full, timers too; rows of other groups go on.
//!
//! What it keeps true: a row is applied to the one state that has what came before it, and to no
//! other. Chunks are sent at the time of the move, so that nobody downstream sees that time finished
//! before the group has arrived.
//!
//! What it leaves to others: which groups should be where.

mod arrivals;
mod barrier;
mod look_ups;
mod operator;
mod progress;
mod router;
mod routes;

use std::fmt;

use alluvium::moving::KeyGroup;
use alluvium::{Aggregate, Key, Layout, Map, Result};
use serde::{Deserialize, Serialize};
use timely::ExchangeData;
use timely::dataflow::StreamVec;

use crate::Changes;
use crate::event_time::EventTime;
use crate::operators::key_by::Keyed;
use crate::operators::rolling::{PART, Rolling};
use crate::operators::spec::Spec;
use crate::operators::stateful::{Context, Stateful};
pub(crate) use barrier::MoveBarrier;
pub(crate) use operator::moving;

/// Moves a key group to a worker, at the time of the record that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MoveGroup {
    /// The group.
    pub group: KeyGroup,
    /// The worker that has it from then on.
    pub to: u32,
}

/// A row, where it goes, and how often its group had moved before.
type Routed<D> = (u32, u32, D);

/// A piece of a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct GroupChunk {
    /// The worker that it goes to, and the one it comes from.
    to: u32,
    from: u32,
    /// How often the group has moved with this move.
    moves: u32,
    bytes: Vec<u8>,
}

/// A keyed stream for an operator whose key groups move; made by [`Keyed::migratable`]. Continue
/// with [`Stateful`], [`Rolling`], [`Join`](crate::Join), [`IntervalJoin`](crate::IntervalJoin),
/// [windows](crate::Windowing), [`LookupJoin`](crate::LookupJoin) or
/// [`LookupExternal`](crate::LookupExternal). Maps (expiring ones too), counters, lists, time-ordered
/// maps and the operator's timers move with their key groups. A value has no key and stays with its
/// worker. Other states are refused. Both sides of a join move.
pub struct Migratable<'scope, T: EventTime, D, F> {
    pub(crate) keyed: Keyed<'scope, T, D, F>,
    pub(crate) control: StreamVec<'scope, T, MoveGroup>,
}

impl<T: EventTime, D, F> fmt::Debug for Migratable<'_, T, D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Migratable").field("keyed", &self.keyed).finish_non_exhaustive()
    }
}

impl<'scope, T: EventTime, D, F> Keyed<'scope, T, D, F> {
    /// Lets key groups of the next operator move between workers, as `control` requests. At first
    /// each group is at its [owner](crate::WorkerState::owner), or where an earlier run has left
    /// it.
    ///
    /// The operator applies a row only after the control stream has passed its time: advance that
    /// stream with the input, or close it. Any worker may request moves. Of several moves of one
    /// group at one time, the one to the worker with the highest index counts. A move to a worker
    /// that does not exist, or of a group that does not exist, ends the run. Rows that wait for the
    /// control stream are applied in the order of their timestamps, and within one timestamp in
    /// order of arrival.
    ///
    /// Moving a group costs reading, encoding and putting its entries. Between two schedules the
    /// operator sends one chunk: a 64th of the store's memory, and at most 64 KiB. At most four
    /// chunks of a worker are in flight until the receiver reports them as installed; their memory
    /// is reserved when the operator is built, but not what an entry has more than that. The number
    /// of rows that wait for a group is not bounded. The old worker keeps the group until all workers have passed the time of the move,
    /// and then removes it in steps.
    ///
    /// [Checkpoints](crate::JobCheckpoints) record where each group is. A run with the same number
    /// of workers finds it there; another number divides the groups anew. Request moves at or after
    /// the checkpoint's time again: they begin after it. The control stream is an input like
    /// others: advance it exactly to the time of a checkpoint, or close it.
    pub fn migratable(
        self,
        control: StreamVec<'scope, T, MoveGroup>,
    ) -> Migratable<'scope, T, D, F> {
        Migratable { keyed: self, control }
    }
}

impl<'scope, T, K, D, F> Rolling<'scope, T, K, D> for Migratable<'scope, T, D, F>
where
    T: EventTime,
    K: Key + Ord,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn rolling<A: Aggregate<D>, L: Layout<K, A::Acc>>(
        self,
        spec: Spec<L>,
        aggregate: A,
    ) -> Result<Changes<'scope, T, (K, A::Out)>> {
        let rows = move |groups: &mut Map<K, A::Acc, L>,
                         rows: &mut Vec<(K, D)>,
                         context: &mut Context<'_, T, K, (K, A::Out)>| {
            while !rows.is_empty() {
                let part = rows.len().min(PART);
                let change = |(key, row): &(K, D), acc: &mut A::Acc| {
                    aggregate.fold(acc, row, |out, diff| context.emit((key.clone(), out), diff));
                };
                let init = |_: &(K, D)| aggregate.init();
                match groups.update_batch(&rows[..part], |row| &row.0, init, change) {
                    Ok(()) => drop(rows.drain(..part)),
                    Err(error) => return Err(error.leave_rest(rows)),
                }
            }
            Ok(())
        };
        // They are written by the rows' own keys.
        self.stateful(spec.any_keys(), |states| states.map("groups"), rows, |_, _, _| Ok(()))
    }
}
