//! What every keyed operator does around applying its rows: it parks what needs a read, goes on
//! when the read has ended, stops taking input when too much is parked, waits when storage lets
//! nobody write for a while, and stops for good, holding on to its times, when a call fails.
//!
//! Rows of a key are applied in the order in which they arrived, at the times they arrived with.
//! Input that cannot be taken yet is staged, in order; as a staged row has left Timely's count of
//! what is under way, the right to emit at its time is kept with it, and [`Intake::horizon`] says how
//! far the operator's own time may go. What is applied meanwhile learns the least time of what waits
//! ([`EmitRight::least_waiting`]), so that no row sees time pass while it waits.

pub(crate) mod admission;
pub(crate) mod fault;
pub(crate) mod gated_source;
pub(crate) mod parking;
pub(crate) mod staged;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium::config::Reservation;
use alluvium::io::Waker;
use alluvium::{Error, Key, Result, Time};
use hashbrown::HashTable;
use timely::communication::Pull;
use timely::dataflow::Scope;
use timely::dataflow::channels::Message;
use timely::dataflow::operators::generic::InputHandleCore;
use timely::dataflow::operators::generic::OperatorInfo;
use timely::dataflow::operators::{Capability, CapabilitySet, CapabilityTrait, InputCapability};
use timely::progress::Timestamp;
use timely::scheduling::Activator;

use crate::intake::fault::is_passing;
use crate::intake::parking::{Fetchers, Parking};
use crate::intake::staged::Staged;
use crate::job::worker::{Parked, Registered, WorkerState};
use crate::operators::spec::OperatorState;

/// A row with its key, or that a timer of a key is due, which stays among the timers: rows that wait
/// before it may set others, or withdraw it.
enum IntakeItem<D> {
    Row(D),
    Timer,
}

/// What is to be applied. What was not, because of an error, is left in it.
pub(crate) enum IntakeWork<'a, K, D> {
    Rows(&'a mut Vec<(K, D)>),
    Timers(&'a mut Vec<(Time, K)>),
}

/// The right to emit at the time of what is applied, and what waits meanwhile.
pub(crate) struct EmitRight<'a, T: Timestamp> {
    kind: RightKind<'a, T>,
    least_waiting: Option<T>,
}

enum RightKind<'a, T: Timestamp> {
    Input(&'a InputCapability<T>),
    Held(&'a Capability<T>),
}

impl<T: Timestamp> Clone for RightKind<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Timestamp> Copy for RightKind<'_, T> {}

impl<'a, T: Timestamp> EmitRight<'a, T> {
    fn input(capability: &'a InputCapability<T>) -> Self {
        Self { kind: RightKind::Input(capability), least_waiting: None }
    }

    pub(crate) fn held(capability: &'a Capability<T>) -> Self {
        Self { kind: RightKind::Held(capability), least_waiting: None }
    }

    pub(crate) fn time(&self) -> &T {
        match self.kind {
            RightKind::Input(capability) => capability.time(),
            RightKind::Held(capability) => capability.time(),
        }
    }

    /// The least time of the rows that wait, for a read or to be taken.
    pub(crate) fn least_waiting(&self) -> Option<&T> {
        self.least_waiting.as_ref()
    }

    pub(crate) fn delayed(&self, time: &T) -> Capability<T> {
        match self.kind {
            RightKind::Input(capability) => capability.delayed(time, 0),
            RightKind::Held(capability) => capability.delayed(time),
        }
    }

    fn keep(&self) -> Capability<T> {
        self.delayed(self.time())
    }
}

impl<T: Timestamp> CapabilityTrait<T> for EmitRight<'_, T> {
    fn time(&self) -> &T {
        EmitRight::time(self)
    }

    fn valid_for_output(
        &self,
        query_buffer: &Rc<std::cell::RefCell<timely::progress::ChangeBatch<T>>>,
        port: usize,
    ) -> bool {
        match self.kind {
            RightKind::Input(capability) => capability.valid_for_output(query_buffer, port),
            RightKind::Held(capability) => capability.valid_for_output(query_buffer, port),
        }
    }
}

/// An intake whose memory is booked, of an operator that is being built.
pub(crate) struct PreparedIntake<K: Key> {
    worker: WorkerState,
    operator: String,
    fetchers: Fetchers<K>,
    limit: usize,
    memory: Option<Reservation>,
    registered: Rc<Registered>,
}

impl<K: Key> PreparedIntake<K> {
    /// For the operator whose states `states` has opened and whose rows are `D`.
    ///
    /// # Errors
    /// Its parked records do not fit into memory.
    pub(crate) fn new<T: Timestamp, D>(
        worker: &WorkerState,
        states: &OperatorState<'_, impl Clone>,
    ) -> Result<Self> {
        let mut fetchers = states.fetchers::<K>();
        fetchers.retain(|fetcher| fetcher.has_storage());
        let each = Parking::<T, K, IntakeItem<D>>::bytes_each();
        let limit = if fetchers.is_empty() { 0 } else { states.parked_max(each) };
        let mut memory = None;
        if limit > 0 {
            let what = format!("room for {limit} parked records of operator {}", states.id());
            memory = Some(worker.store().reserve(limit as u64 * each, &what)?);
        }
        let operator = states.id().to_owned();
        let (worker, registered) = (worker.clone(), states.registered());
        Ok(Self { worker, operator, fetchers, limit, memory, registered })
    }

    /// The intake of the operator `info`.
    pub(crate) fn start<T: Timestamp, D>(
        self,
        scope: Scope<'_, T>,
        info: &OperatorInfo,
    ) -> Intake<T, K, D> {
        let activator = scope.activator_for(info.address.clone());
        let sync = scope.worker().sync_activator_for(info.address.to_vec());
        // An operator that is gone needs no waking.
        let waker = Arc::new(Waker::new(move || {
            let _ = sync.activate();
        }));
        for fetcher in &self.fetchers {
            fetcher.wake_with(waker.clone()).expect("nobody uses a state that was just opened");
        }
        let waited = HashTable::with_capacity(self.limit);
        let parking = (self.limit > 0).then(|| Parking::new(self.fetchers, self.limit));
        Intake {
            worker: self.worker.clone(),
            parked: self.worker.gauge(&self.operator),
            operator: self.operator,
            parking,
            staged: Staged::new(),
            waker,
            activator,
            is_blocked: false,
            waiting: None,
            failed: CapabilitySet::new(),
            rows: Vec::new(),
            waited,
            _memory: self.memory,
            _registered: self.registered,
        }
    }
}

/// One operator's intake.
pub(crate) struct Intake<T: Timestamp, K: Key, D> {
    worker: WorkerState,
    operator: String,
    /// `None` if no state of the operator can be on storage.
    parking: Option<Parking<T, K, IntakeItem<D>>>,
    /// What the worker shows of the parking.
    parked: Rc<Cell<Parked>>,
    staged: Staged<T, (K, D)>,
    waker: Arc<Waker>,
    activator: Activator,
    /// Storage took no writes when it was last tried.
    is_blocked: bool,
    /// Since when that is so.
    waiting: Option<Blocked>,
    /// Times not finished by a failed operator.
    failed: CapabilitySet<T>,
    rows: Vec<(K, D)>,
    /// Keys whose timers have waited as long as they had to, until the operator is scheduled again.
    waited: HashTable<K>,
    _memory: Option<Reservation>,
    /// The operator's id is taken as long as it is there.
    _registered: Rc<Registered>,
}

/// Storage lets nobody write for a while.
struct Blocked {
    since: Instant,
    delay: Duration,
}

/// The first delay until a call that storage could not take is tried again, and the longest.
const DELAY_MIN: Duration = Duration::from_millis(1);
const DELAY_MAX: Duration = Duration::from_millis(100);

/// Rows of one time that are applied together, at most.
pub(crate) const BATCH: usize = 1024;

/// What an operator does with rows, or with timers that are due.
pub(crate) type Apply<'a, T, K, D> =
    &'a mut dyn FnMut(&EmitRight<'_, T>, IntakeWork<'_, K, D>) -> Result<()>;

// Closures come as they are, and go on without their types: all else is compiled once per type of row.
impl<T: Timestamp, K: Key, D> Intake<T, K, D> {
    /// Whether the operator has failed and applies nothing any more.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Whether timers may be applied: the operator has not failed, and storage takes writes.
    pub(crate) fn takes_timers(&self) -> bool {
        !self.has_failed()
            && !self.is_blocked
            && !self.parking.as_ref().is_some_and(Parking::is_full)
    }

    /// The least time of staged input, if there is any: the operator's own time must not pass it.
    pub(crate) fn horizon(&self) -> Option<&T> {
        self.staged.least()
    }

    /// `right` with the least time of what waits.
    fn among_waiting<'r>(&self, right: &EmitRight<'r, T>) -> EmitRight<'r, T> {
        let parked = self.parking.as_ref().and_then(Parking::least_time);
        let waiting = self.staged.least().into_iter().chain(parked);
        EmitRight { kind: right.kind, least_waiting: waiting.min().cloned() }
    }

    /// Takes all that has come, batch by batch: to group it by time would not keep the order in which it
    /// has come.
    pub(crate) fn take_in<R, P: Pull<Message<T, Vec<R>>>>(
        &mut self,
        input: &mut InputHandleCore<T, Vec<R>, P>,
        mut keyed: impl FnMut(R) -> (K, D),
        mut apply: impl FnMut(&EmitRight<'_, T>, IntakeWork<'_, K, D>) -> Result<()>,
    ) {
        let mut rows = Vec::new();
        input.for_each(|capability, batch| {
            rows.extend(batch.drain(..).map(&mut keyed));
            self.offer_rows(&capability, &mut rows, &mut apply);
        });
    }

    /// Goes on with what was put aside; called first whenever the operator is scheduled.
    pub(crate) fn resume(
        &mut self,
        mut apply: impl FnMut(&EmitRight<'_, T>, IntakeWork<'_, K, D>) -> Result<()>,
    ) {
        self.resume_with(&mut apply);
    }

    fn resume_with(&mut self, apply: Apply<'_, T, K, D>) {
        if self.has_failed() {
            return;
        }
        // Whatever it waited for is tried anew.
        self.is_blocked = false;
        self.waited.clear();
        self.waker.rearm();
        if self.parking.as_ref().is_some_and(|parking| parking.len() > 0) {
            self.apply_parked(apply);
        }
        while !self.is_closed() {
            if self.parking.as_ref().is_some_and(Parking::is_full) {
                break;
            }
            let Some((capability, mut rows)) = self.staged.pop_front() else { break };
            self.take(&EmitRight::held(&capability), &mut rows, apply);
        }
        self.staged.settle();
        self.show();
    }

    /// Nothing may be applied now.
    pub(crate) fn is_closed(&self) -> bool {
        self.has_failed() || self.is_blocked
    }

    /// Takes input: applies it, parks it, stages it, or, if the operator has failed, drops it and
    /// holds its time. Leaves `rows` empty.
    pub(crate) fn offer(
        &mut self,
        capability: &InputCapability<T>,
        rows: &mut Vec<(K, D)>,
        mut apply: impl FnMut(&EmitRight<'_, T>, IntakeWork<'_, K, D>) -> Result<()>,
    ) {
        self.offer_rows(capability, rows, &mut apply);
    }

    fn offer_rows(
        &mut self,
        capability: &InputCapability<T>,
        rows: &mut Vec<(K, D)>,
        apply: Apply<'_, T, K, D>,
    ) {
        if self.has_failed() {
            self.failed.insert(capability.retain(0));
            rows.clear();
        } else if self.is_closed() || !self.staged.is_empty() {
            self.staged.push_back(capability.retain(0), std::mem::take(rows));
            self.show();
        } else {
            self.take(&EmitRight::input(capability), rows, apply);
            self.show();
        }
    }

    /// [`offer`](Intake::offer) of rows that have waited, with the right to emit at their time.
    pub(crate) fn give(
        &mut self,
        capability: &Capability<T>,
        rows: &mut Vec<(K, D)>,
        apply: Apply<'_, T, K, D>,
    ) {
        if self.has_failed() {
            self.failed.insert(capability.clone());
            rows.clear();
        } else if self.is_closed() || !self.staged.is_empty() {
            self.staged.push_back(capability.clone(), std::mem::take(rows));
            self.show();
        } else {
            self.take(&EmitRight::held(capability), rows, apply);
            self.show();
        }
    }

    /// Shows what is parked and staged, and asks to be scheduled again if no read will do so. To be
    /// called after whatever parks: rows do so here, timers in `Closures::fire`.
    pub(crate) fn show(&self) {
        let mut parked = Parked { staged: self.staged.len(), ..Parked::default() };
        if let Some(parking) = &self.parking {
            if !self.is_closed() && parking.needs_poll() {
                self.activator.activate();
            }
            (parked.now, parked.most) = (parking.len(), parking.peak());
        }
        self.parked.set(parked);
    }

    /// Applies or parks rows, and stages those that can be neither.
    fn take(
        &mut self,
        right: &EmitRight<'_, T>,
        rows: &mut Vec<(K, D)>,
        apply: Apply<'_, T, K, D>,
    ) {
        let mut done = Ok(());
        let mut later = Vec::new();
        let idle = self.parking.as_ref().map_or(Ok(true), Parking::is_idle);
        match idle {
            Ok(true) => {}
            Ok(false) => match self.park_what_waits(right, rows) {
                Ok(rest) => later = rest,
                Err(error) => done = Err(error),
            },
            Err(error) => done = Err(error),
        }
        if done.is_ok() && !rows.is_empty() {
            done = apply(&self.among_waiting(right), IntakeWork::Rows(rows));
        }
        match done {
            Ok(()) => {
                self.applied();
                rows.clear();
            }
            Err(error) => self.stop(right, error),
        }
        rows.append(&mut later);
        if !rows.is_empty() && !self.has_failed() {
            self.staged.push_front(right.keep(), std::mem::take(rows));
        }
        rows.clear();
    }

    /// Parks the rows whose keys wait or need a read; from the first that finds no place on, rows
    /// are given back to be taken later.
    fn park_what_waits(
        &mut self,
        right: &EmitRight<'_, T>,
        rows: &mut Vec<(K, D)>,
    ) -> Result<Vec<(K, D)>> {
        let Some(parking) = &mut self.parking else { return Ok(Vec::new()) };
        let mut shared: Option<Rc<Capability<T>>> = None;
        let mut now = std::mem::take(&mut self.rows);
        let mut failed = Ok(());
        let mut taken = rows.drain(..);
        let mut later = Vec::new();
        for (key, row) in taken.by_ref() {
            if parking.is_full() {
                later.push((key, row));
                break;
            }
            match parking.must_wait(&key) {
                Ok(false) => now.push((key, row)),
                Ok(true) => {
                    let capability = shared.get_or_insert_with(|| Rc::new(right.keep()));
                    // There is a place: it was looked at.
                    let _ = parking.park(&key, IntakeItem::Row(row), capability);
                }
                Err(error) => {
                    later.push((key, row));
                    failed = Err(error);
                    break;
                }
            }
        }
        later.extend(taken);
        rows.append(&mut now);
        self.rows = now;
        if failed.is_err() {
            rows.append(&mut later);
        }
        failed.map(|()| later)
    }

    /// Applies what was parked and waits no more.
    fn apply_parked(&mut self, apply: Apply<'_, T, K, D>) {
        let polled = match &mut self.parking {
            Some(parking) => parking.poll(),
            None => return,
        };
        if let Err(error) = polled {
            // The state is in use by someone else: nothing can be told of it.
            return self.fail_parked(error);
        }
        let mut rows = std::mem::take(&mut self.rows);
        let mut held: Option<Rc<Capability<T>>> = None;
        while !self.is_closed() {
            let next = self.parking.as_mut().and_then(Parking::next);
            let goes_along = match (&held, &next) {
                (Some(held), Some((capability, _, _))) => {
                    rows.len() < BATCH && held.time() == capability.time()
                }
                _ => held.is_none(),
            };
            if !goes_along {
                if let Some(capability) = held.take() {
                    self.apply_ready(&capability, &mut rows, apply);
                }
            }
            let Some((capability, key, item)) = next else { break };
            if self.is_closed() {
                let parking = self.parking.as_mut().expect("an item came from it");
                parking.put_back(key, item, &capability);
                break;
            }
            match item {
                IntakeItem::Row(row) => {
                    held.get_or_insert(capability);
                    rows.push((key, row));
                }
                // Its timers fire with the others.
                IntakeItem::Timer => {
                    self.waited.insert_unique(key.key_hash(), key, K::key_hash);
                }
            }
        }
        self.rows = rows;
    }

    /// Applies parked rows of one time; what an error leaves is parked again where it was.
    fn apply_ready(
        &mut self,
        capability: &Rc<Capability<T>>,
        rows: &mut Vec<(K, D)>,
        apply: Apply<'_, T, K, D>,
    ) {
        let right = self.among_waiting(&EmitRight::held(capability));
        if let Err(error) = apply(&right, IntakeWork::Rows(rows)) {
            if let Some(parking) = &mut self.parking {
                // Back to the front, the last first.
                for (key, row) in rows.drain(..).rev() {
                    parking.put_back(key, IntakeItem::Row(row), capability);
                }
            }
            self.stop(&right, error);
        } else {
            self.applied();
        }
        rows.clear();
    }

    /// Whether the timers of `key` that are due have to wait, for what is parked for their key or for a
    /// read. If nothing else of the key waits, that is parked, with the right to emit that `capability`
    /// makes: the operator is scheduled when the read has ended.
    pub(crate) fn parks_timer(
        &mut self,
        key: &K,
        capability: impl FnOnce() -> Capability<T>,
    ) -> Result<bool> {
        let Some(parking) = &mut self.parking else { return Ok(false) };
        if parking.is_idle()? {
            return Ok(false);
        }
        if parking.waits(key) {
            return Ok(true);
        }
        if self.waited.find(key.key_hash(), |waited| waited == key).is_some() {
            return Ok(false);
        }
        Ok(parking.must_wait(key)?
            && parking.park(key, IntakeItem::Timer, &Rc::new(capability())).is_ok())
    }

    /// Applies timers that are due; what an error leaves of them is left in `timers`.
    pub(crate) fn fire(
        &mut self,
        capability: &Capability<T>,
        timers: &mut Vec<(Time, K)>,
        mut apply: impl FnMut(&EmitRight<'_, T>, IntakeWork<'_, K, D>) -> Result<()>,
    ) {
        let right = self.among_waiting(&EmitRight::held(capability));
        match apply(&right, IntakeWork::Timers(timers)) {
            Ok(()) => {
                self.applied();
                timers.clear();
            }
            Err(error) => self.stop(&right, error),
        }
    }

    /// Does something that is neither a row's nor a timer's: firing windows.
    pub(crate) fn attempt(
        &mut self,
        capability: &Capability<T>,
        call: impl FnOnce() -> Result<()>,
    ) {
        match call() {
            Ok(()) => self.applied(),
            Err(error) => self.stop(&EmitRight::held(capability), error),
        }
    }

    /// A call succeeded: nothing is waited for.
    #[inline]
    fn applied(&mut self) {
        if self.waiting.take().is_some() {
            self.worker.set_waiting(&self.operator, None);
        }
    }

    /// A call failed: waits if that passes, else stops for good.
    pub(crate) fn stop(&mut self, right: &EmitRight<'_, T>, error: Error) {
        let first = Blocked { since: Instant::now(), delay: DELAY_MIN / 2 };
        let waiting = self.waiting.get_or_insert(first);
        if is_passing(error.kind()) && self.worker.fault_policy().waits(waiting.since.elapsed()) {
            waiting.delay = (waiting.delay * 2).min(DELAY_MAX);
            self.activator.activate_after(waiting.delay);
            self.is_blocked = true;
            self.worker.set_waiting(&self.operator, Some(error));
            return;
        }
        self.failed.insert(right.keep());
        self.fail(error);
    }

    fn fail_parked(&mut self, error: Error) {
        if let Some(parking) = &mut self.parking {
            let failed = &mut self.failed;
            parking.clear(|capability| failed.insert(capability.clone()));
        }
        self.fail(error);
    }

    /// Notes the error, and holds on to the times of all that will not be applied.
    fn fail(&mut self, error: Error) {
        let failed = &mut self.failed;
        self.staged.clear(|right| failed.insert(right));
        if let Some(parking) = &mut self.parking {
            let failed = &mut self.failed;
            parking.clear(|capability| failed.insert(capability.clone()));
        }
        self.worker.fail(error.with("operator", self.operator.clone()));
    }
}
