//! Look-ups in an external table by an operator whose key groups move, and with them the parts of the table.
//!
//! What it keeps true: a key is asked for by one worker at a time. A group leaves a worker when all rows
//! before the move have come out, so that nothing of it is asked there any more. Where it comes to, its rows
//! and told changes wait, in order and with their times, until the table's part of it has followed. The move's
//! time is held until then: no later move of the group begins before.
//!
//! Where groups are is part of checkpoints, as a state without entries. The truth of the table is with its
//! owner: a run begins by having the parts of all groups follow that are here.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium::moving::{KeyGroup, Mover, Standing};
use alluvium::types::HeapSize;
use alluvium::{Error, ErrorKind, Heap, Key, Map, Result};
use timely::ExchangeData;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::{Operator, empty};

use super::progress::{MigrationProgress, observe};
use super::{GroupChunk, Migratable, Routed, router};
use crate::Changes;
use crate::event_time::EventTime;
use crate::external::asking::{
    ExternalJoin, GiveRow, GroupStays, JoinedRows, PreparedJoin, is_passing,
};
use crate::external::{External, ExternalTable, LookupExternal, Told};
use crate::intake::fault;
use crate::operators::key_by::{Builder, Keyed};
use crate::operators::merged::{Arrival, merged};
use crate::operators::spec::{OperatorState, Spec};

/// How long it takes until something is tried again.
const DELAY: Duration = Duration::from_millis(5);

/// Rows and changes go to the worker that has their key group at their time. With a group goes its part of
/// the table, if the [table](ExternalTable::follow) has parts. What was cached of a group stays behind.
impl<'scope, T, K, D, F> LookupExternal<'scope, T, K, D> for Migratable<'scope, T, D, F>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    fn lookup_external<V, R>(
        self,
        table: impl ExternalTable<K, V>,
        external: External,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        V: HeapSize + 'static,
        R: Clone + 'static,
    {
        let key = |(): &()| -> K { unreachable!("the stream is empty") };
        let stream = empty(self.keyed.stream.scope());
        let nothing = Keyed { stream, state: self.keyed.state.clone(), key: Rc::new(key) };
        self.lookup_external_told(nothing, table, external, |()| Told::Changed, pair)
    }

    fn lookup_external_told<U, G, V, R>(
        self,
        changes: Keyed<'scope, T, U, G>,
        table: impl ExternalTable<K, V>,
        external: External,
        told: impl Fn(&U) -> Told<V> + 'static,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        U: ExchangeData,
        G: Fn(&U) -> K + 'static,
        V: HeapSize + 'static,
        R: Clone + 'static,
    {
        let Migratable { keyed, control } = self;
        let (state, name) = (keyed.state.clone(), external.id().to_owned());
        let opener = OperatorState::moving(&state, Spec::new(&name).layout(Heap::new()))?;
        let groups = opener.map::<u64, u64>("groups")?;
        let mover = opener.mover().expect("a moving operator has one").clone();
        let prepared = PreparedJoin::new::<T, K, D, V>(&state, external, opener.registered())?;
        let Keyed { stream, key, .. } = merged(keyed, changes, &name);
        let (scope, progress) = (stream.scope(), MigrationProgress::new());
        let unit = (&*name, mover.clone());
        let (routed, chunks) =
            router::route(stream, control, key.clone(), &state, unit, &progress, false)?;
        let rows_pact = Exchange::new(|row: &Routed<Arrival<D, U>>| u64::from(row.0));
        let chunks_pact = Exchange::new(|chunk: &GroupChunk| u64::from(chunk.to));
        let seen = progress.clone();
        let out = routed.binary::<_, Builder<(R, T, i64)>, _, _, _, _>(
            chunks,
            rows_pact,
            chunks_pact,
            &name,
            |first, info| {
                let join = prepared.start::<T, K, D, V>(scope, &info, Box::new(table));
                let mut at = LookUpPart::new((mover, groups), progress, join, told);
                let mut given = Vec::new();
                let mut first = Some(first);
                move |rows, chunks, output| {
                    let mut out = JoinedRows::new(&pair, output, &mut given);
                    at.join.rearm();
                    if let Some(first) = first.take() {
                        at.begin(&first, &mut out);
                    }
                    chunks.for_each(|right, batch| {
                        at.chunks.extend(batch.drain(..).map(|chunk| (right.retain(0), chunk)));
                    });
                    at.go_on(&mut out);
                    at.join.take_answers(&mut out);
                    at.join.take_staged(&mut out);
                    rows.for_each(|right, batch| {
                        at.sort(&right.retain(0), batch.drain(..), &*key, &mut out);
                    });
                    out.flush();
                    at.join.ask();
                }
            },
        );
        Ok(observe(out, &name, seen))
    }
}

/// A group whose part of the table is on its way here.
struct Following<T: EventTime> {
    /// Holds the time of the move that has brought the group, or that of the begin of the run.
    _right: Capability<T>,
    moves: u32,
    since: Instant,
    /// When it is tried again, after an error.
    again_at: Option<Instant>,
    /// The last error.
    error: Option<String>,
}

/// Rows and changes of one time, with their keys.
type TimedBatch<T, K, D, U> = (Capability<T>, Vec<(K, Arrival<D, U>)>);

/// What waits for a group, by how often that will have moved.
type WaitingByGroup<T, K, D, U> = BTreeMap<(u16, u32), Vec<TimedBatch<T, K, D, U>>>;

/// One worker's part of the operator.
struct LookUpPart<T: EventTime, K: Key, D, U, V, C> {
    join: ExternalJoin<T, K, D, V>,
    told: C,
    mover: Mover,
    progress: Rc<MigrationProgress<T>>,
    /// Moves that are not noted in the state yet.
    chunks: VecDeque<(Capability<T>, GroupChunk)>,
    following: BTreeMap<u16, Following<T>>,
    waiting: WaitingByGroup<T, K, D, U>,
    followed: Vec<(KeyGroup, Result<()>)>,
    taken: Vec<(K, D)>,
    /// Without entries: what the store's checkpoints say of it is where the groups are.
    _groups: Map<u64, u64, Heap>,
}

impl<T, K, D, U, V, C> LookUpPart<T, K, D, U, V, C>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    V: HeapSize + 'static,
    C: Fn(&U) -> Told<V>,
{
    fn new(
        (mover, groups): (Mover, Map<u64, u64, Heap>),
        progress: Rc<MigrationProgress<T>>,
        mut join: ExternalJoin<T, K, D, V>,
        told: C,
    ) -> Self {
        join.stays = GroupStays::none_of(join.worker.key_groups());
        Self {
            join,
            told,
            mover,
            progress,
            chunks: VecDeque::new(),
            following: BTreeMap::new(),
            waiting: BTreeMap::new(),
            followed: Vec::new(),
            taken: Vec::new(),
            _groups: groups,
        }
    }

    /// Has the parts of all groups follow that the run begins with.
    fn begin(&mut self, first: &Capability<T>, out: &mut impl GiveRow<T, K, D, V>) {
        for group in (0..self.join.stays.groups()).map(KeyGroup) {
            if self.mover.standing(group).is_ok_and(|at| at == Standing::Here) {
                self.follow(group, first.clone(), 0, out);
            }
        }
    }

    /// Takes in groups that come, and goes on with what waits for them.
    fn go_on(&mut self, out: &mut impl GiveRow<T, K, D, V>) {
        while !self.join.has_failed {
            let Some((right, chunk)) = self.chunks.pop_front() else { break };
            match self.mover.install(&chunk.bytes) {
                Ok((group, is_here)) => {
                    self.progress.install(chunk.from, chunk.bytes.len() as u64);
                    if is_here {
                        self.follow(group, right, chunk.moves, out);
                    }
                    continue;
                }
                // What was here before is being removed, or there is no memory at the moment.
                Err(error)
                    if error.kind() == ErrorKind::InUse || fault::is_passing(error.kind()) =>
                {
                    self.join.activator.activate_after(DELAY);
                }
                Err(error) => self.join.fail(error),
            }
            self.chunks.push_front((right, chunk));
            break;
        }
        if !self.following.is_empty() && !self.join.has_failed {
            self.hear(out);
        }
    }

    /// Has the table's part of a group follow that is here now.
    fn follow(
        &mut self,
        group: KeyGroup,
        right: Capability<T>,
        moves: u32,
        out: &mut impl GiveRow<T, K, D, V>,
    ) {
        if !self.join.table.follow(group, self.join.stays.groups()) {
            return self.group_arrived(group, moves, out);
        }
        if let Some(patience) = self.patience() {
            self.join.activator.activate_after(patience);
        }
        let following =
            Following { _right: right, moves, since: Instant::now(), again_at: None, error: None };
        self.following.insert(group.0, following);
    }

    /// The group and its part of the table are here: what has waited for that is applied.
    fn group_arrived(&mut self, group: KeyGroup, moves: u32, out: &mut impl GiveRow<T, K, D, V>) {
        self.join.stays.set(group, moves);
        for (right, mut rows) in self.waiting.remove(&(group.0, moves)).into_iter().flatten() {
            self.apply(&right, rows.drain(..), out);
        }
    }

    /// Zero patience ends the run at the first error, and not for want of an answer.
    fn patience(&self) -> Option<Duration> {
        self.join.external.patience_max().map(|most| most.max(Duration::from_secs(1)))
    }

    /// Hears which parts have followed, and has those tried again that could not.
    fn hear(&mut self, out: &mut impl GiveRow<T, K, D, V>) {
        let mut followed = std::mem::take(&mut self.followed);
        self.join.table.followed(&mut followed);
        for (group, done) in followed.drain(..) {
            match (self.following.remove(&group.0), done) {
                (Some(of), Ok(())) => self.group_arrived(group, of.moves, out),
                (Some(of), Err(error)) => self.wait_or_fail(group, of, error),
                (None, _) => self.join.fail(not_on_its_way(group)),
            }
        }
        self.followed = followed;
        self.look_at_the_clock(out);
        if self.following.is_empty() {
            self.join.worker.set_waiting(&self.waiting_name(), None);
        }
    }

    fn wait_or_fail(&mut self, group: KeyGroup, mut of: Following<T>, error: Error) {
        let most = self.join.external.patience_max();
        if is_passing(error.kind()) && most.is_none_or(|most| of.since.elapsed() < most) {
            of.error = Some(error.to_string());
            self.join.worker.set_waiting(&self.waiting_name(), Some(error));
            of.again_at = Some(Instant::now() + DELAY);
            self.join.activator.activate_after(DELAY);
        } else {
            self.join.fail(error);
        }
        self.following.insert(group.0, of);
    }

    fn look_at_the_clock(&mut self, out: &mut impl GiveRow<T, K, D, V>) {
        let (now, patience) = (Instant::now(), self.patience());
        let is_late = |of: &Following<T>| patience.is_some_and(|most| now - of.since >= most);
        if let Some((group, of)) = self.following.iter().find(|(_, of)| is_late(of)) {
            let message = format!(
                "the external table's part of key group {group} has not followed for {:?}: {}",
                of.since.elapsed(),
                of.error.as_deref().unwrap_or("no answer")
            );
            return self.join.fail(Error::new(ErrorKind::Io, message));
        }
        let is_due = |of: &Following<T>| of.again_at.is_some_and(|at| at <= now);
        let due = self.following.iter().filter(|(_, of)| is_due(of)).map(|(group, _)| *group);
        for group in due.collect::<Vec<_>>() {
            let Some(mut of) = self.following.remove(&group) else { continue };
            match self.join.table.follow(KeyGroup(group), self.join.stays.groups()) {
                true => {
                    of.again_at = None;
                    self.following.insert(group, of);
                }
                false => self.group_arrived(KeyGroup(group), of.moves, out),
            }
        }
    }

    /// What the worker shows as waiting.
    fn waiting_name(&self) -> String {
        format!("{}: key groups", self.join.external.id())
    }

    /// Applies what is of groups that are here, and keeps the rest with its time.
    fn sort(
        &mut self,
        right: &Capability<T>,
        routed: impl Iterator<Item = Routed<Arrival<D, U>>>,
        key: &impl Fn(&Arrival<D, U>) -> K,
        out: &mut impl GiveRow<T, K, D, V>,
    ) {
        let mut here = Vec::new();
        for (_, moves, arrival) in routed {
            let key = key(&arrival);
            let group = KeyGroup::of(key.key_hash(), self.join.stays.groups());
            if self.join.stays.is_here(group, moves) {
                here.push((key, arrival));
                continue;
            }
            let batches = self.waiting.entry((group.0, moves)).or_default();
            match batches.last_mut() {
                Some((last, rows)) if last.time() == right.time() => rows.push((key, arrival)),
                _ => batches.push((right.clone(), vec![(key, arrival)])),
            }
        }
        self.apply(right, here.into_iter(), out);
    }

    /// Takes changes and rows in, in their order.
    fn apply(
        &mut self,
        right: &Capability<T>,
        arrivals: impl Iterator<Item = (K, Arrival<D, U>)>,
        out: &mut impl GiveRow<T, K, D, V>,
    ) {
        for (key, arrival) in arrivals {
            match arrival {
                Arrival::Row(row) => self.taken.push((key, row)),
                Arrival::Change(change) => {
                    self.give(right, out);
                    self.join.told(key, (self.told)(&change));
                }
            }
        }
        self.give(right, out);
    }

    fn give(&mut self, right: &Capability<T>, out: &mut impl GiveRow<T, K, D, V>) {
        if !self.taken.is_empty() {
            self.join.offer(right.clone(), &mut self.taken, out);
        }
    }
}

fn not_on_its_way(group: KeyGroup) -> Error {
    let message = format!("the external table says that key group {} has followed", group.0);
    Error::new(ErrorKind::Input, message)
}
