//! The join of keyed rows with an external table.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium::io::Waker;
use alluvium::{Error, ErrorKind, HeapSize, Key, Reservation, Result};
use timely::ExchangeData;
use timely::dataflow::Scope;
use timely::dataflow::operators::generic::OperatorInfo;
use timely::dataflow::operators::generic::OutputBuilderSession;
use timely::dataflow::operators::generic::operator::{Operator, empty};
use timely::dataflow::operators::{Capability, CapabilitySet};
use timely::progress::Timestamp;
use timely::scheduling::Activator;

use super::cache::Cache;
use super::waiting::{Waiting, unasked};
use super::{Answer, External, ExternalTable, LookupCounts, Question, Told};
use crate::Changes;
use crate::intake::staged::Staged;
use crate::job::worker::{Parked, Registered, WorkerState};
use crate::operators::key_by::{Builder, Keyed, owner_pact};

/// Extension trait: look-ups of keyed rows in tables that lie outside of the job.
///
/// `pair` gets the key, the row and the value that the table has for the key, and says what comes out:
/// an inner join gives `None` where there is no value, a left outer join always gives a row. Rows go to
/// the owner of their key, which asks the table and lets the row wait for the answer, other rows passing
/// it; rows of a key stay in order. Rows come out with the timestamp they came with, and as changes by one.
///
/// # What holds when another program changes the table
///
/// A row sees a value that the table had at some moment between when the row arrived at its owner and
/// when it came out. If there is a [cache](External::cache), that moment may be the cache's time to live
/// earlier. More is not known: rows of two keys may see the table at different moments, in any order. Rows
/// of one key see its changes in order, each the same value as the one before it or a later one.
///
/// When a run goes on after a failure, rows after the last checkpoint are looked up again, and may see
/// another value than they saw before: results that were not [committed](crate::JobSink) then are not
/// shown twice, but are those of the later look-up.
///
/// # What holds when changes are told
///
/// If a program changes the table first and tells afterwards, by a row of `changes`, then rows that arrive
/// after the change's row see the change, with a cache or without, whatever its time to live: what is
/// cached is forgotten, and an answer that is still under way is used for rows that came before only. Once
/// a probe behind the join has passed the timestamp of the change's row, all rows sent from then on see
/// the change. Of what arrives together, changes come first.
///
/// # Errors at run time
///
/// As long as the table cannot be reached, rows wait, at most [`External::parked_max`] of them, and the
/// operator takes no further input; [`WorkerState::waiting`](crate::WorkerState::waiting) has the last
/// error. A [`Gate`](crate::Gate) at the source bounds what comes meanwhile. After
/// [`External::patience`] the run ends with the error.
pub trait LookupExternal<'scope, T: Timestamp, K: Key, D> {
    /// Looks rows up in a table of which no changes are told.
    ///
    /// # Errors
    /// What waits and is cached does not fit into memory; another operator has the id.
    fn lookup_external<V, R>(
        self,
        table: impl ExternalTable<K, V>,
        external: External,
        pair: impl Fn(&K, &D, Option<&V>) -> Option<R> + 'static,
    ) -> Result<Changes<'scope, T, R>>
    where
        V: HeapSize + 'static,
        R: Clone + 'static;

    /// Looks rows up in a table of which `changes` are told, to the owner of their key.
    ///
    /// # Errors
    /// As [`lookup_external`](LookupExternal::lookup_external).
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
        R: Clone + 'static;
}

impl<'scope, T, K, D, F> LookupExternal<'scope, T, K, D> for Keyed<'scope, T, D, F>
where
    T: Timestamp,
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
        let stream = empty(self.stream.scope());
        let nothing = Keyed { stream, state: self.state.clone(), key: Rc::new(key) };
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
        let prepared = Prepared::new::<T, K, D, V>(&self.state, external)?;
        let rows_pact = owner_pact(&self.state, &self.key);
        let changes_pact = owner_pact(&changes.state, &changes.key);
        let (row_key, change_key, scope) = (self.key, changes.key, self.stream.scope());
        let name = prepared.external.id.clone();
        let stream = self.stream.binary::<_, Builder<(R, T, i64)>, _, _, _, _>(
            changes.stream,
            rows_pact,
            changes_pact,
            &name,
            |_, info| {
                let mut join = prepared.start(scope, &info, Box::new(table));
                let (mut given, mut taken) = (Vec::new(), Vec::new());
                move |rows, changes, output| {
                    let mut out = Out { pair: &pair, output, rows: &mut given, right: None };
                    join.rearm();
                    changes.for_each(|_, batch| {
                        let told = batch.drain(..).map(|row| (change_key(&row), told(&row)));
                        told.for_each(|(key, told)| join.told(key, told));
                    });
                    join.take_answers(&mut out);
                    join.take_staged(&mut out);
                    rows.for_each(|capability, batch| {
                        let capability = capability.retain(0);
                        taken.extend(batch.drain(..).map(|row| (row_key(&row), row)));
                        join.offer(capability, &mut taken, &mut out);
                    });
                    out.flush();
                    join.ask();
                }
            },
        );
        Ok(stream)
    }
}

/// Where joined rows go, in one piece as long as their time is the same.
struct Out<'a, 'o, T: Timestamp, P, R: Clone + 'static> {
    pair: &'a P,
    output: &'a mut OutputBuilderSession<'o, T, Builder<(R, T, i64)>>,
    rows: &'a mut Vec<(R, T, i64)>,
    right: Option<Capability<T>>,
}

impl<T: Timestamp, P, R: Clone + 'static> Out<'_, '_, T, P, R> {
    fn flush(&mut self) {
        if let Some(right) = self.right.take() {
            self.output.session(&right).give_iterator(self.rows.drain(..));
        }
    }
}

/// Gives a joined row, if there is one, with the time it came with.
trait Give<T: Timestamp, K, D, V> {
    fn give(&mut self, capability: &Capability<T>, key: &K, row: &D, value: Option<&V>);
}

impl<T, K, D, V, P, R> Give<T, K, D, V> for Out<'_, '_, T, P, R>
where
    T: Timestamp,
    R: Clone + 'static,
    P: Fn(&K, &D, Option<&V>) -> Option<R>,
{
    fn give(&mut self, capability: &Capability<T>, key: &K, row: &D, value: Option<&V>) {
        let Some(row) = (self.pair)(key, row, value) else { return };
        let time = capability.time();
        if self.right.as_ref().is_none_or(|right| right.time() != time) {
            self.flush();
            self.right = Some(capability.clone());
        }
        self.rows.push((row, time.clone(), 1));
    }
}

/// A join whose memory is booked, of an operator that is being built.
struct Prepared {
    worker: WorkerState,
    external: External,
    memory: Reservation,
    registered: Rc<Registered>,
}

impl Prepared {
    fn new<T: Timestamp, K: Key, D, V: HeapSize>(
        worker: &WorkerState,
        external: External,
    ) -> Result<Self> {
        let registered = worker.register(&external.id)?;
        let capability = size_of::<Capability<T>>() + 2 * size_of::<usize>() + size_of::<T>() + 64;
        let row = Waiting::<K, (D, Rc<Capability<T>>)>::bytes_each() + capability;
        // The answer of each question may stand with the operator and with the table.
        let question = Waiting::<K, D>::bytes_a_question()
            + size_of::<Question<K>>()
            + 2 * size_of::<Answer<V>>()
            + if V::NO_HEAP { 0 } else { external.value_bytes_max };
        let cache = external.cache.map_or(0, |(bytes, _)| bytes);
        let bytes = external.parked_max * row + external.asked_max * question;
        let what = format!(
            "room for {} rows that wait, {} questions and {cache} bytes of cache of operator {}",
            external.parked_max, external.asked_max, external.id
        );
        let memory = worker.store().reserve(bytes as u64 + cache, &what)?;
        Ok(Self { worker: worker.clone(), external, memory, registered })
    }

    fn start<T: Timestamp, K: Key, D, V: HeapSize + 'static>(
        self,
        scope: Scope<'_, T>,
        info: &OperatorInfo,
        mut table: Box<dyn ExternalTable<K, V>>,
    ) -> Join<T, K, D, V> {
        let activator = scope.activator_for(info.address.clone());
        let sync = scope.worker().sync_activator_for(info.address.to_vec());
        // An operator that is gone needs no waking.
        let waker = Arc::new(Waker::new(move || {
            let _ = sync.activate();
        }));
        table.wake_with(waker.clone());
        let cache = self.external.cache.map(|(bytes, ttl)| Cache::new(bytes as usize, ttl));
        Join {
            parked: self.worker.gauge(&self.external.id),
            waiting: Waiting::new(self.external.parked_max),
            worker: self.worker,
            external: self.external,
            table,
            cache,
            staged: Staged::new(),
            waker,
            activator,
            pause: None,
            delay: DELAY_MIN,
            alarm: None,
            questions: Vec::new(),
            answers: Vec::new(),
            failed: CapabilitySet::new(),
            has_failed: false,
            _memory: self.memory,
            _registered: self.registered,
        }
    }
}

/// The first delay until a table that could not be asked is asked again, and the longest.
const DELAY_MIN: Duration = Duration::from_millis(1);
const DELAY_MAX: Duration = Duration::from_millis(100);

/// A row and the right to emit at its time.
type Item<T, D> = (D, Rc<Capability<T>>);

/// One operator.
struct Join<T: Timestamp, K: Key, D, V> {
    worker: WorkerState,
    external: External,
    table: Box<dyn ExternalTable<K, V>>,
    cache: Option<Cache<K, V>>,
    waiting: Waiting<K, Item<T, D>>,
    staged: Staged<T, (K, D)>,
    parked: Rc<std::cell::Cell<Parked>>,
    waker: Arc<Waker>,
    activator: Activator,
    /// Until when nothing is asked, as the table could not be reached.
    pause: Option<Instant>,
    delay: Duration,
    /// When the operator is scheduled next to look at how long questions have waited.
    alarm: Option<Instant>,
    questions: Vec<Question<K>>,
    answers: Vec<Answer<V>>,
    /// Times not finished by a failed operator.
    failed: CapabilitySet<T>,
    has_failed: bool,
    _memory: Reservation,
    /// The operator's id is taken as long as it is there.
    _registered: Rc<Registered>,
}

impl<T: Timestamp, K: Key, D, V: HeapSize + 'static> Join<T, K, D, V> {
    /// What is answered from now on wakes the operator again.
    fn rearm(&self) {
        self.waker.rearm();
    }

    fn count(&self, change: impl FnOnce(&mut LookupCounts)) {
        let mut counts = self.external.counts.get();
        change(&mut counts);
        self.external.counts.set(counts);
    }

    fn told(&mut self, key: K, told: Told<V>) {
        self.waiting.changed(&key);
        let Some(cache) = &mut self.cache else { return };
        match told {
            Told::Changed => cache.remove(&key),
            Told::Is(value) => cache.put(key, value, Instant::now()),
        }
    }

    /// Takes rows in: gives out or parks as many as it may, and stages the others. Leaves `rows` empty.
    fn offer(
        &mut self,
        capability: Capability<T>,
        rows: &mut Vec<(K, D)>,
        out: &mut impl Give<T, K, D, V>,
    ) {
        if self.has_failed {
            self.failed.insert(capability);
            rows.clear();
        } else if !self.staged.is_empty() {
            self.staged.push_back(capability, std::mem::take(rows));
        } else {
            self.take(capability, rows, out);
        }
    }

    fn take(
        &mut self,
        capability: Capability<T>,
        rows: &mut Vec<(K, D)>,
        out: &mut impl Give<T, K, D, V>,
    ) {
        let (now, capability) = (Instant::now(), Rc::new(capability));
        let (mut given, mut rows) = (0, rows.drain(..));
        while let Some((key, row)) = rows.next() {
            if !self.waiting.waits(&key) {
                let cached = self.cache.as_mut().and_then(|cache| cache.get(&key, now));
                if let Some(value) = cached {
                    out.give(&capability, &key, &row, value);
                    given += 1;
                    continue;
                }
            }
            if self.waiting.is_full() {
                let rest = std::iter::once((key, row)).chain(rows).collect();
                self.staged.push_front((*capability).clone(), rest);
                break;
            }
            self.waiting.push(&key, (row, capability.clone()));
        }
        self.count(|counts| {
            counts.rows += given;
            counts.cached += given;
        });
    }

    fn take_staged(&mut self, out: &mut impl Give<T, K, D, V>) {
        while !self.has_failed && !self.waiting.is_full() {
            let Some((capability, mut rows)) = self.staged.pop_front() else { break };
            self.take(capability, &mut rows, out);
        }
        self.staged.settle();
    }

    fn take_answers(&mut self, out: &mut impl Give<T, K, D, V>) {
        if self.has_failed {
            return;
        }
        let mut answers = std::mem::take(&mut self.answers);
        let mut done = self.table.answers(&mut answers);
        for answer in answers.drain(..) {
            done = done.and_then(|()| self.answer(answer, out));
        }
        self.answers = answers;
        match done.and_then(|()| self.look_at_the_clock()) {
            Ok(()) => {}
            Err(error) => self.fail(error),
        }
    }

    fn answer(&mut self, answer: Answer<V>, out: &mut impl Give<T, K, D, V>) -> Result<()> {
        let Answer { number, value } = answer;
        let due = self.waiting.answered(number).ok_or_else(|| unasked(number))?;
        let now = Instant::now();
        let value = match value {
            Ok(value) => value,
            Err(error) => {
                self.count(|counts| counts.failed += 1);
                let since = self.waiting.failed(due, now);
                return self.fail_or_wait(error, since, now);
            }
        };
        self.check_size(value.as_ref())?;
        let mut given = 0;
        while let Some((row, capability)) = self.waiting.next(&due) {
            out.give(&capability, &due.key, &row, value.as_ref());
            given += 1;
        }
        if let Some(cache) = &mut self.cache {
            if due.is_current {
                cache.put(due.key.clone(), value, now);
            } else if let Some(value) = cache.get(&due.key, now) {
                // Told after the question was asked.
                while let Some((row, capability)) = self.waiting.next_of(&due.key) {
                    out.give(&capability, &due.key, &row, value);
                    given += 1;
                }
            }
        }
        self.waiting.settle(due.key);
        self.count(|counts| counts.rows += given);
        if self.delay > DELAY_MIN {
            (self.delay, self.pause) = (DELAY_MIN, None);
            self.worker.set_waiting(&self.external.id, None);
        }
        Ok(())
    }

    fn check_size(&self, value: Option<&V>) -> Result<()> {
        let (bytes, most) = (value.map_or(0, V::heap_bytes), self.external.value_bytes_max);
        if bytes <= most {
            return Ok(());
        }
        let message = format!("an external table's value has {bytes} bytes, {most} are allowed");
        Err(Error::new(ErrorKind::ValueTooLarge, message))
    }

    /// Waits a little before the table is asked again, unless that is useless or was tried for too long.
    fn fail_or_wait(&mut self, error: Error, since: Instant, now: Instant) -> Result<()> {
        let lasted = now.saturating_duration_since(since);
        if !is_passing(error.kind()) || self.external.patience.is_some_and(|most| lasted >= most) {
            return Err(error);
        }
        if self.pause.is_none_or(|until| until <= now) {
            self.pause = Some(now + self.delay);
            self.activator.activate_after(self.delay);
            self.delay = (self.delay * 2).min(DELAY_MAX);
        }
        self.worker.set_waiting(&self.external.id, Some(error));
        Ok(())
    }

    /// Fails if the oldest question has waited for too long; else sees to it that this is looked at
    /// again in time.
    fn look_at_the_clock(&mut self) -> Result<()> {
        let (Some(patience), Some(oldest)) = (self.external.patience, self.waiting.oldest()) else {
            return Ok(());
        };
        let now = Instant::now();
        // Zero patience has answers that are errors end the run, and those that come late do not.
        let patience = patience.max(Duration::from_secs(1));
        let waited = now.saturating_duration_since(oldest);
        if waited >= patience {
            let message = format!("an external table has not answered for {waited:?}");
            return Err(Error::new(ErrorKind::Io, message));
        }
        if self.alarm.is_none_or(|at| at <= now) {
            let rest = patience - waited;
            self.alarm = Some(now + rest);
            self.activator.activate_after(rest);
        }
        Ok(())
    }

    /// Asks for what waits, as far as it may.
    fn ask(&mut self) {
        let now = Instant::now();
        if !self.has_failed && self.waiting.has_due() {
            if self.pause.is_none_or(|until| until <= now) {
                self.waiting.ask(self.external.asked_max, now, &mut self.questions);
                let asked = self.questions.len() as u64;
                self.count(|counts| counts.asked += asked);
                if asked > 0 {
                    self.table.ask(&mut self.questions);
                    self.questions.clear();
                }
            } else if self.waiting.under_way() == 0 {
                let rest = self.pause.map_or(DELAY_MIN, |until| until - now);
                self.activator.activate_after(rest);
            }
            if self.alarm.is_none_or(|at| at <= now) {
                if let Err(error) = self.look_at_the_clock() {
                    self.fail(error);
                }
            }
        }
        let (now, most) = (self.waiting.len(), self.waiting.peak());
        self.parked.set(Parked { now, most, staged: self.staged.len() });
    }

    /// Notes the error, and holds on to the times of all that will not come out.
    fn fail(&mut self, error: Error) {
        let failed = &mut self.failed;
        self.has_failed = true;
        self.staged.clear(|right| failed.insert(right));
        self.waiting.clear(|(_, capability)| failed.insert((*capability).clone()));
        self.worker.fail(error.with("operator", self.external.id.clone()));
    }
}

/// Whether a table that gave this error may give an answer later.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Io | ErrorKind::Backpressure | ErrorKind::PeerLost)
}
