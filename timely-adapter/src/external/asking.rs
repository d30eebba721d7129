//! What an operator does that looks rows up in an external table: it answers from the cache, parks rows,
//! asks for their keys and gives them out with the answers.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium::config::Reservation;
use alluvium::io::Waker;
use alluvium::moving::KeyGroup;
use alluvium::types::HeapSize;
use alluvium::{Error, ErrorKind, Key, Result};
use timely::dataflow::Scope;
use timely::dataflow::operators::generic::{OperatorInfo, OutputBuilderSession};
use timely::dataflow::operators::{Capability, CapabilitySet};
use timely::progress::Timestamp;
use timely::scheduling::Activator;

use super::cache::Cache;
use super::waiting::{WaitingByKey, unasked};
use super::{Answer, External, ExternalTable, LookupCounts, Question, Told};
use crate::intake::staged::Staged;
use crate::job::worker::{Parked, Registered, WorkerState};
use crate::operators::key_by::Builder;

/// Where joined rows go, in one piece as long as their time is the same.
pub(crate) struct JoinedRows<'a, 'o, T: Timestamp, P, R: Clone + 'static> {
    pair: &'a P,
    output: &'a mut OutputBuilderSession<'o, T, Builder<(R, T, i64)>>,
    rows: &'a mut Vec<(R, T, i64)>,
    right: Option<Capability<T>>,
}

impl<'a, 'o, T: Timestamp, P, R: Clone + 'static> JoinedRows<'a, 'o, T, P, R> {
    /// `rows` is empty before and after.
    pub(crate) fn new(
        pair: &'a P,
        output: &'a mut OutputBuilderSession<'o, T, Builder<(R, T, i64)>>,
        rows: &'a mut Vec<(R, T, i64)>,
    ) -> Self {
        Self { pair, output, rows, right: None }
    }

    pub(crate) fn flush(&mut self) {
        if let Some(right) = self.right.take() {
            self.output.session(&right).give_iterator(self.rows.drain(..));
        }
    }
}

/// Gives a joined row, if there is one, with the time it came with.
pub(crate) trait GiveRow<T: Timestamp, K, D, V> {
    fn give(&mut self, capability: &Capability<T>, key: &K, row: &D, value: Option<&V>);
}

impl<T, K, D, V, P, R> GiveRow<T, K, D, V> for JoinedRows<'_, '_, T, P, R>
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
pub(crate) struct PreparedJoin {
    worker: WorkerState,
    external: External,
    memory: Reservation,
    registered: Rc<Registered>,
}

impl PreparedJoin {
    /// For the operator whose id is `registered`.
    ///
    /// # Errors
    /// What waits and is cached does not fit into memory.
    pub(crate) fn new<T: Timestamp, K: Key, D, V: HeapSize>(
        worker: &WorkerState,
        external: External,
        registered: Rc<Registered>,
    ) -> Result<Self> {
        let capability = size_of::<Capability<T>>() + 2 * size_of::<usize>() + size_of::<T>() + 64;
        let row = WaitingByKey::<K, (D, Rc<Capability<T>>)>::bytes_each() + capability;
        // The answer of each question may stand with the operator and with the table.
        let question = WaitingByKey::<K, D>::bytes_a_question()
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

    pub(crate) fn external(&self) -> &External {
        &self.external
    }

    /// The look-ups of the operator `info`.
    pub(crate) fn start<T: Timestamp, K: Key, D, V: HeapSize + 'static>(
        self,
        scope: Scope<'_, T>,
        info: &OperatorInfo,
        mut table: Box<dyn ExternalTable<K, V>>,
    ) -> ExternalJoin<T, K, D, V> {
        let activator = scope.activator_for(info.address.clone());
        let sync = scope.worker().sync_activator_for(info.address.to_vec());
        // An operator that is gone needs no waking.
        let waker = Arc::new(Waker::new(move || {
            let _ = sync.activate();
        }));
        table.wake_with(waker.clone());
        let cache = self.external.cache.map(|(bytes, ttl)| Cache::new(bytes as usize, ttl));
        ExternalJoin {
            parked: self.worker.gauge(&self.external.id),
            waiting: WaitingByKey::new(self.external.parked_max),
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
            stays: GroupStays::default(),
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
type HeldRow<T, D> = (D, Rc<Capability<T>>);

/// By key group how often it had moved when it came here last, of an operator whose key groups move. What is
/// cached is of one stay: the group's keys may have changed while others had it.
#[derive(Debug, Default)]
pub(crate) struct GroupStays(Vec<u32>);

/// Of a group that has not been here.
const NEVER: u32 = u32::MAX;

impl GroupStays {
    /// No group is here.
    pub(crate) fn none_of(groups: u16) -> Self {
        Self(vec![NEVER; usize::from(groups)])
    }

    pub(crate) fn groups(&self) -> u16 {
        self.0.len() as u16
    }

    pub(crate) fn set(&mut self, group: KeyGroup, moves: u32) {
        self.0[usize::from(group.0)] = moves;
    }

    /// Whether the group is here that had moved so often.
    pub(crate) fn is_here(&self, group: KeyGroup, moves: u32) -> bool {
        self.0[usize::from(group.0)] == moves
    }

    /// The stay of a key's group.
    fn of(&self, key: &impl Key) -> u32 {
        match self.0.is_empty() {
            true => 0,
            false => self.0[usize::from(KeyGroup::of(key.key_hash(), self.groups()).0)],
        }
    }
}

/// One operator.
pub(crate) struct ExternalJoin<T: Timestamp, K: Key, D, V> {
    pub(crate) worker: WorkerState,
    pub(crate) external: External,
    pub(crate) table: Box<dyn ExternalTable<K, V>>,
    pub(crate) activator: Activator,
    pub(crate) stays: GroupStays,
    cache: Option<Cache<K, V>>,
    waiting: WaitingByKey<K, HeldRow<T, D>>,
    staged: Staged<T, (K, D)>,
    parked: Rc<Cell<Parked>>,
    waker: Arc<Waker>,
    /// Until when nothing is asked, as the table could not be reached.
    pause: Option<Instant>,
    delay: Duration,
    /// When the operator is scheduled next to look at how long questions have waited.
    alarm: Option<Instant>,
    questions: Vec<Question<K>>,
    answers: Vec<Answer<V>>,
    /// Times not finished by a failed operator.
    failed: CapabilitySet<T>,
    pub(crate) has_failed: bool,
    _memory: Reservation,
    /// The operator's id is taken as long as it is there.
    _registered: Rc<Registered>,
}

impl<T: Timestamp, K: Key, D, V: HeapSize + 'static> ExternalJoin<T, K, D, V> {
    /// What is answered from now on wakes the operator again.
    pub(crate) fn rearm(&self) {
        self.waker.rearm();
    }

    fn count(&self, change: impl FnOnce(&mut LookupCounts)) {
        let mut counts = self.external.counts.get();
        change(&mut counts);
        self.external.counts.set(counts);
    }

    /// A change of `key` was told.
    pub(crate) fn told(&mut self, key: K, told: Told<V>) {
        self.waiting.changed(&key);
        let stay = self.stays.of(&key);
        let Some(cache) = &mut self.cache else { return };
        match told {
            Told::Changed => cache.remove(&key),
            Told::Is(value) => cache.put((key, stay), value, Instant::now()),
        }
    }

    /// Takes rows in: gives out or parks as many as it may, and stages the others. Leaves `rows` empty.
    pub(crate) fn offer(
        &mut self,
        capability: Capability<T>,
        rows: &mut Vec<(K, D)>,
        out: &mut impl GiveRow<T, K, D, V>,
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
        out: &mut impl GiveRow<T, K, D, V>,
    ) {
        let (now, capability) = (Instant::now(), Rc::new(capability));
        let (mut given, mut rows) = (0, rows.drain(..));
        while let Some((key, row)) = rows.next() {
            if !self.waiting.waits(&key) {
                let (cache, stays) = (&mut self.cache, &self.stays);
                let cached = cache.as_mut().and_then(|cache| cache.get(&key, stays.of(&key), now));
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

    pub(crate) fn take_staged(&mut self, out: &mut impl GiveRow<T, K, D, V>) {
        while !self.has_failed && !self.waiting.is_full() {
            let Some((capability, mut rows)) = self.staged.pop_front() else { break };
            self.take(capability, &mut rows, out);
        }
        self.staged.settle();
    }

    pub(crate) fn take_answers(&mut self, out: &mut impl GiveRow<T, K, D, V>) {
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

    fn answer(&mut self, answer: Answer<V>, out: &mut impl GiveRow<T, K, D, V>) -> Result<()> {
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
        let stay = self.stays.of(&due.key);
        if let Some(cache) = &mut self.cache {
            if due.is_current {
                cache.put((due.key.clone(), stay), value, now);
            } else if let Some(value) = cache.get(&due.key, stay, now) {
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
    pub(crate) fn ask(&mut self) {
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
    pub(crate) fn fail(&mut self, error: Error) {
        let failed = &mut self.failed;
        self.has_failed = true;
        self.staged.clear(|right| failed.insert(right));
        self.waiting.clear(|(_, capability)| failed.insert((*capability).clone()));
        self.worker.fail(error.with("operator", self.external.id.clone()));
    }
}

/// Whether a table that gave this error may give an answer later.
pub(crate) fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Io | ErrorKind::Backpressure | ErrorKind::PeerLost)
}
