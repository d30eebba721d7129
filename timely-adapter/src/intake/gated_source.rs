//! Inputs that know when to wait and that can stand aside.
//!
//! Every input of a Timely dataflow, on every worker, holds back the watermark until it moves on.
//! An input that has nothing to send for a while says so and is then carried along by the others:
//! their times are told to all workers of all processes by a dataflow of its own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium::{Result, Time};
use timely::ExchangeData;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Inspect;
use timely::dataflow::operators::generic::source;
use timely::dataflow::operators::vec::{Broadcast, Input};
use timely::dataflow::{InputHandleVec, Scope, StreamVec};
use timely::scheduling::Activator;
use timely::worker::Worker;

use crate::event_time::EventTime;
use crate::intake::admission::Gate;
use crate::job::checkpoints::Sent;

/// How often a worker tells the others where its inputs are, at most.
const TELL_EVERY: Duration = Duration::from_millis(5);

/// The times of all inputs of all workers, as far as this worker has heard. Cheap to clone. Make
/// one per worker for all its [`GatedSource`]s, at the same place of the program on every worker.
#[derive(Clone)]
pub struct Watermarks(Rc<SourceGate>);

struct SourceGate {
    worker: usize,
    sources: Cell<usize>,
    news: Rc<WatermarkNews>,
    activator: Activator,
    times: Rc<RefCell<BTreeMap<u64, InputStand>>>,
}

/// Where an input is, and whether it is neither idle nor closed.
type InputStand = (i64, bool);

/// What this worker has not told the others yet.
#[derive(Default)]
struct WatermarkNews {
    /// By input.
    stands: RefCell<BTreeMap<u64, InputStand>>,
    is_urgent: Cell<bool>,
    told: Cell<Option<Instant>>,
    /// No input is left.
    is_over: Cell<bool>,
}

impl WatermarkNews {
    /// How long they have to wait.
    fn wait(&self) -> Duration {
        let wait = |told: Instant| TELL_EVERY.saturating_sub(told.elapsed());
        self.told.get().filter(|_| !self.is_urgent.get()).map_or(Duration::ZERO, wait)
    }
}

impl fmt::Debug for Watermarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watermarks({:?})", self.0.times.borrow())
    }
}

impl Watermarks {
    /// Builds the dataflow that exchanges the times.
    pub fn new(worker: &mut Worker) -> Self {
        let times: Rc<RefCell<BTreeMap<u64, InputStand>>> = Rc::default();
        let (heard, news) = (times.clone(), Rc::<WatermarkNews>::default());
        let untold = news.clone();
        let activator = worker.dataflow_named("watermarks", |scope| {
            let mut made = None;
            let told = source::<u64, CapacityContainerBuilder<Vec<(u64, InputStand)>>, _, _>(
                scope,
                "watermarks",
                |capability, info| {
                    let activator = scope.activator_for(info.address.clone());
                    made = Some(scope.activator_for(info.address));
                    let mut capability = Some(capability);
                    move |output| {
                        let Some(held) = &mut capability else { return };
                        let wait = if news.is_over.get() { Duration::ZERO } else { news.wait() };
                        if wait > Duration::ZERO {
                            // Told when the wait is over, whatever this worker does by then.
                            activator.activate_after(wait);
                            return;
                        }
                        let stands = std::mem::take(&mut *news.stands.borrow_mut());
                        if !stands.is_empty() {
                            output.session(&*held).give_iterator(stands.into_iter());
                            held.downgrade(&(*held.time() + 1));
                            news.told.set(Some(Instant::now()));
                            news.is_urgent.set(false);
                        }
                        if news.is_over.get() {
                            capability = None;
                        }
                    }
                },
            );
            told.broadcast().inspect(move |&(source, stand)| {
                heard.borrow_mut().insert(source, stand);
            });
            made.expect("the operator was built")
        });
        let (worker, sources) = (worker.index(), Cell::new(0));
        Self(Rc::new(SourceGate { worker, sources, news: untold, activator, times }))
    }

    /// Numbers an input of this worker.
    fn number(&self) -> u64 {
        self.0.sources.set(self.0.sources.get() + 1);
        (self.0.worker as u64) << 32 | self.0.sources.get() as u64
    }

    /// Has the others told where an input is: soon, or as soon as the worker steps.
    fn tell(&self, source: u64, stand: InputStand, is_urgent: bool) {
        let news = &self.0.news;
        news.stands.borrow_mut().insert(source, stand);
        news.is_urgent.set(news.is_urgent.get() || is_urgent);
        self.0.activator.activate();
    }

    /// How far an idle input may go: to the least of the inputs that are neither idle nor closed,
    /// but for `source`; if there are none, to where the last of them has been.
    fn of_others(&self, source: u64) -> Option<i64> {
        let times = self.0.times.borrow();
        let others =
            || times.iter().filter(|(other, _)| **other != source).map(|(_, stand)| *stand);
        let active = others().filter(|(_, is_active)| *is_active).map(|(time, _)| time).min();
        active.or_else(|| others().map(|(time, _)| time).max())
    }
}

impl Drop for SourceGate {
    fn drop(&mut self) {
        self.news.is_over.set(true);
        self.activator.activate();
    }
}

/// An input with a bound on its lead, which can be declared idle.
///
/// Rows have the input's time. [`advance_to`](GatedSource::advance_to) moves it, and the watermark
/// follows once all inputs that are not idle have moved. Dropping a source closes it: its watermark
/// is the end of time. In a job with checkpoints, [`follow`](crate::JobCheckpoints::follow) it.
pub struct GatedSource<T: EventTime, D: ExchangeData + Clone> {
    input: InputHandleVec<T, D>,
    gate: Gate<T>,
    watermarks: Watermarks,
    number: u64,
    is_idle: bool,
    /// What the checkpoints of the job know.
    sent: Option<Rc<Sent>>,
}

impl<T: EventTime, D: ExchangeData + Clone> fmt::Debug for GatedSource<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (time, is_idle) = (self.input.time(), self.is_idle);
        write!(f, "GatedSource({}, {time:?}, idle: {is_idle})", self.number)
    }
}

impl<T: EventTime + timely::progress::timestamp::Refines<()>, D: ExchangeData + Clone>
    GatedSource<T, D>
{
    /// Makes a source and the stream of its rows. `gate` bounds the dataflow that it feeds.
    pub fn new<'scope>(
        scope: Scope<'scope, T>,
        watermarks: &Watermarks,
        gate: Gate<T>,
    ) -> (Self, StreamVec<'scope, T, D>) {
        let (input, rows) = scope.new_input::<D>();
        let (watermarks, number) = (watermarks.clone(), watermarks.number());
        let source = Self { input, gate, watermarks, number, is_idle: false, sent: None };
        source.tell(true);
        (source, rows)
    }
}

impl<T: EventTime, D: ExchangeData + Clone> GatedSource<T, D> {
    /// Returns the time of rows sent now.
    pub fn time(&self) -> &T {
        self.input.time()
    }

    /// Returns whether more may be sent now; if not, step the worker. See [`Gate`].
    pub fn admits(&mut self) -> bool {
        self.gate.admits(self.input.time())
    }

    /// Lets the job's checkpoints know what is sent, and moves the input to where the run begins.
    pub(crate) fn be_followed(&mut self, sent: Rc<Sent>, begin: Time) {
        self.go_to(T::from_time(begin));
        self.sent = Some(sent);
    }

    /// Sends a row; `bytes` is its size with what it owns. An idle source becomes active, and its
    /// rows may be late by then.
    ///
    /// # Errors
    /// [`ErrorKind::Input`](alluvium::ErrorKind::Input) if checkpoints follow it and the worker's
    /// [`Turn`](crate::Turn) does not allow a row at the input's time. The row is not sent.
    pub fn send(&mut self, row: D, bytes: u64) -> Result<()> {
        if let Some(sent) = &self.sent {
            sent.note_row(self.input.time().time())?;
        }
        if self.is_idle {
            self.is_idle = false;
            self.tell(true);
        }
        self.gate.sent(self.input.time(), bytes);
        self.input.send(row);
        Ok(())
    }

    /// Advances the input to `time`: no earlier row will come from here. Does nothing if the input
    /// is there or past it, as an idle source may be.
    ///
    /// # Errors
    /// [`ErrorKind::Input`](alluvium::ErrorKind::Input) if checkpoints follow it and the worker's
    /// [`Turn`](crate::Turn) does not allow it.
    pub fn advance_to(&mut self, time: Time) -> Result<()> {
        let time = T::from_time(time);
        if time > *self.input.time() {
            if let Some(sent) = &self.sent {
                sent.note_advance(time.time())?;
            }
            self.go_to(time);
        }
        Ok(())
    }

    fn go_to(&mut self, time: T) {
        if time > *self.input.time() {
            self.input.advance_to(time);
            self.tell(false);
        }
    }

    /// Declares that nothing will come for a while. From now on [`keep_up`](GatedSource::keep_up)
    /// moves the input along with the others, until something is sent.
    pub fn declare_idle(&mut self) {
        if !self.is_idle {
            self.is_idle = true;
            self.tell(true);
        }
        self.keep_up();
    }

    /// Returns whether the source is idle.
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Moves an idle input to the least known time of the inputs that are neither idle nor closed;
    /// if none is left, to where the last of them was. Does nothing to an active input. Call it
    /// after the worker has stepped.
    pub fn keep_up(&mut self) {
        let Some(time) = self.watermarks.of_others(self.number).filter(|_| self.is_idle) else {
            return;
        };
        let bound = self.sent.as_ref().map_or(Time::MAX, |sent| sent.advance_max());
        // It is within what the turn allows.
        let _ = self.advance_to(Time(time).min(bound));
    }

    fn tell(&self, is_urgent: bool) {
        let Time(time) = self.input.time().time();
        self.watermarks.tell(self.number, (time, !self.is_idle), is_urgent);
    }
}

impl<T: EventTime, D: ExchangeData + Clone> Drop for GatedSource<T, D> {
    fn drop(&mut self) {
        let Time(time) = self.input.time().time();
        self.watermarks.tell(self.number, (time, false), true);
    }
}
