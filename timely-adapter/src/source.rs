//! Inputs that know when to wait and that can stand aside.
//!
//! Every input of a Timely dataflow, on every worker, holds back the watermark until it moves on.
//! An input that has nothing to send for a while says so and is then carried along by the others:
//! their times are told to all workers of all processes by a dataflow of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium::Time;
use timely::ExchangeData;
use timely::dataflow::operators::Inspect;
use timely::dataflow::operators::vec::{Broadcast, Input};
use timely::dataflow::{InputHandleVec, Scope, StreamVec};
use timely::worker::Worker;

use crate::admission::Gate;
use crate::event_time::EventTime;

/// How often an input's time is told to the others, at most.
const TELL_EVERY: Duration = Duration::from_millis(5);

/// The times of all inputs of all workers, as far as this worker has heard. Cheap to clone; a
/// worker makes one for all its [`Source`]s, in the same place of the program as all others.
#[derive(Clone)]
pub struct Watermarks(Rc<Shared>);

struct Shared {
    worker: usize,
    sources: RefCell<usize>,
    tell: RefCell<InputHandleVec<u64, (u64, Option<i64>)>>,
    /// By input; `None` if it is idle or closed.
    times: Rc<RefCell<BTreeMap<u64, Option<i64>>>>,
}

impl fmt::Debug for Watermarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watermarks({:?})", self.0.times.borrow())
    }
}

impl Watermarks {
    /// Builds the dataflow that tells them.
    pub fn new(worker: &mut Worker) -> Self {
        let times: Rc<RefCell<BTreeMap<u64, Option<i64>>>> = Rc::default();
        let heard = times.clone();
        let tell = worker.dataflow_named("watermarks", |scope| {
            let (input, told) = scope.new_input::<(u64, Option<i64>)>();
            told.broadcast().inspect(move |&(source, time)| {
                heard.borrow_mut().insert(source, time);
            });
            input
        });
        let (sources, tell) = (RefCell::new(0), RefCell::new(tell));
        Self(Rc::new(Shared { worker: worker.index(), sources, tell, times }))
    }

    /// Numbers an input of this worker.
    fn number(&self) -> u64 {
        let mut sources = self.0.sources.borrow_mut();
        *sources += 1;
        (self.0.worker as u64) << 32 | *sources as u64
    }

    fn tell(&self, source: u64, time: Option<i64>) {
        let mut tell = self.0.tell.borrow_mut();
        let next = *tell.time() + 1;
        tell.send((source, time));
        tell.advance_to(next);
    }

    /// The least time of the inputs that are not idle, but for `source`.
    fn of_others(&self, source: u64) -> Option<i64> {
        let times = self.0.times.borrow();
        times.iter().filter(|(other, _)| **other != source).filter_map(|(_, time)| *time).min()
    }
}

/// An input that bounds how far it is ahead and may be declared idle.
///
/// Rows are sent at the input's time; [`advance_to`](Source::advance_to) moves it on, and with it
/// the watermark, once all inputs that are not idle have. Dropping a source closes it: its
/// watermark is the end of time.
pub struct Source<T: EventTime, D: ExchangeData + Clone> {
    input: InputHandleVec<T, D>,
    gate: Gate<T>,
    watermarks: Watermarks,
    number: u64,
    is_idle: bool,
    told: Option<Instant>,
}

impl<T: EventTime, D: ExchangeData + Clone> fmt::Debug for Source<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (time, is_idle) = (self.input.time(), self.is_idle);
        write!(f, "Source({}, {time:?}, idle: {is_idle})", self.number)
    }
}

impl<T: EventTime + timely::progress::timestamp::Refines<()>, D: ExchangeData + Clone>
    Source<T, D>
{
    /// A source, and the stream of its rows. `gate` is the one for the dataflow it feeds.
    pub fn new<'scope>(
        scope: Scope<'scope, T>,
        watermarks: &Watermarks,
        gate: Gate<T>,
    ) -> (Self, StreamVec<'scope, T, D>) {
        let (input, rows) = scope.new_input::<D>();
        let (watermarks, number) = (watermarks.clone(), watermarks.number());
        let mut source = Self { input, gate, watermarks, number, is_idle: false, told: None };
        source.tell();
        (source, rows)
    }
}

impl<T: EventTime, D: ExchangeData + Clone> Source<T, D> {
    /// The time of rows that are sent now.
    pub fn time(&self) -> &T {
        self.input.time()
    }

    /// Whether more may be sent now; if not, step the worker. See [`Gate`].
    pub fn admits(&mut self) -> bool {
        self.gate.admits(self.input.time())
    }

    /// Sends a row, of so many bytes with what it owns. An idle source is idle no more; what it
    /// sends may be late by then.
    pub fn send(&mut self, row: D, bytes: u64) {
        if self.is_idle {
            self.is_idle = false;
            self.tell();
        }
        self.gate.sent(self.input.time(), bytes);
        self.input.send(row);
    }

    /// Moves the input on to `time`: no row before it will come from here. Nothing happens if it is
    /// there or past it, as an idle source may be.
    pub fn advance_to(&mut self, time: Time) {
        let time = T::from_time(time);
        if time > *self.input.time() {
            self.input.advance_to(time);
            if !self.is_idle && self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
                self.tell();
            }
        }
    }

    /// Declares that nothing will come for a while. From now on [`keep_up`](Source::keep_up) moves
    /// the input along with the others, until something is sent.
    pub fn declare_idle(&mut self) {
        if !self.is_idle {
            self.is_idle = true;
            self.tell();
        }
        self.keep_up();
    }

    /// Whether the source is idle.
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Moves an idle input on to where the least of the others is known to be; does nothing to one
    /// that is not idle, or if all are. Call it when the worker has stepped.
    pub fn keep_up(&mut self) {
        if self.is_idle {
            if let Some(time) = self.watermarks.of_others(self.number) {
                self.advance_to(Time(time));
            }
        }
    }

    fn tell(&mut self) {
        let Time(time) = self.input.time().time();
        self.watermarks.tell(self.number, (!self.is_idle).then_some(time));
        self.told = Some(Instant::now());
    }
}

impl<T: EventTime, D: ExchangeData + Clone> Drop for Source<T, D> {
    fn drop(&mut self) {
        self.watermarks.tell(self.number, None);
    }
}
