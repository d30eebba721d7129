//! Inputs that know what was sent, so that a checkpoint takes its time from that.
//!
//! What it keeps true: the time at which all workers stop is after every row that was sent, also when
//! rows have equal times, and nothing is sent that belongs on the other side of a checkpoint. It leaves
//! to the driver which rows there are.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use alluvium::{Error, ErrorKind, Result, Time};
use timely::dataflow::InputHandleVec;

use super::Turn;
use crate::event_time::EventTime;

/// What the inputs of one worker have sent, and what they may send until its next turn.
#[derive(Debug)]
pub(crate) struct Sent {
    /// After every row that was sent, and no input is past it.
    reached: Cell<Time>,
    /// Rows have to be before this.
    rows_before: Cell<Time>,
    /// Inputs must not be advanced past this.
    advance_max: Cell<Time>,
}

impl Sent {
    /// Inputs that go on at `begin`.
    pub(super) fn from(begin: Time) -> Rc<Self> {
        let (rows_before, advance_max) = (Cell::new(Time::MAX), Cell::new(Time::MAX));
        Rc::new(Self { reached: Cell::new(begin), rows_before, advance_max })
    }

    pub(super) fn reached(&self) -> Time {
        self.reached.get()
    }

    /// From now on allows what `turn` says.
    pub(super) fn allow(&self, turn: Turn) {
        let (rows_before, advance_max) = match turn {
            Turn::Go => (Time::MAX, Time::MAX),
            Turn::Until(until) => (until, until),
            Turn::Seal { .. } | Turn::Wait => (Time::MIN, self.reached()),
            Turn::End(latest) => (Time::MIN, latest),
        };
        self.rows_before.set(rows_before);
        self.advance_max.set(advance_max);
    }

    /// Notes a row at `at`.
    pub(crate) fn note_row(&self, at: Time) -> Result<()> {
        if at >= self.rows_before.get() {
            return Err(self.refused("a row at", at, self.rows_before.get()));
        }
        self.reached.set(self.reached().max(at.plus(1)));
        Ok(())
    }

    /// Notes that an input is at `to`.
    pub(crate) fn note_advance(&self, to: Time) -> Result<()> {
        if to > self.advance_max.get() {
            return Err(self.refused("an advance to", to, self.advance_max.get()));
        }
        self.reached.set(self.reached().max(to));
        Ok(())
    }

    /// How far inputs may be advanced now.
    pub(crate) fn advance_max(&self) -> Time {
        self.advance_max.get()
    }

    fn refused(&self, what: &str, at: Time, bound: Time) -> Error {
        let why = match bound {
            Time::MAX => "no time is after it".to_owned(),
            Time::MIN => "the worker's turn lets it send nothing".to_owned(),
            bound => format!("the worker's turn lets it go to {}", bound.0),
        };
        Error::new(ErrorKind::Input, format!("{what} {} is refused: {why}", at.0))
    }
}

/// An input of a job with checkpoints; made by [`JobCheckpoints::input`].
///
/// It records the time of each row, so that the checkpoint in progress ends after everything sent.
/// It refuses what the worker's [`Turn`] does not allow: a restart could lose or repeat that.
/// Dropping it closes the input.
///
/// [`JobCheckpoints::input`]: crate::JobCheckpoints::input
pub struct JobInput<T: EventTime, D: Clone + 'static> {
    input: InputHandleVec<T, D>,
    sent: Rc<Sent>,
}

impl<T: EventTime, D: Clone + 'static> fmt::Debug for JobInput<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobInput({:?})", self.input.time())
    }
}

impl<T: EventTime, D: Clone + 'static> JobInput<T, D> {
    pub(super) fn new(mut input: InputHandleVec<T, D>, sent: Rc<Sent>, begin: Time) -> Self {
        let time = T::from_time(begin);
        if time > *input.time() {
            input.advance_to(time);
        }
        Self { input, sent }
    }

    /// Returns the timestamp of rows sent now.
    pub fn time(&self) -> &T {
        self.input.time()
    }

    /// Sends a row of event time `at` with the input's timestamp. The row is late if `at` is before
    /// that.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] if the worker's [`Turn`] does not allow a row at this time, and for a
    /// row at [`Time::MAX`], since no checkpoint could end after it. The row is not sent.
    pub fn send(&mut self, at: Time, row: D) -> Result<()> {
        self.pass(at)?;
        self.input.send(row);
        Ok(())
    }

    /// Records a row at `at` that the source has read and does not send: a checkpoint whose
    /// position is after the row ends after its time too.
    ///
    /// # Errors
    /// As [`send`](JobInput::send).
    pub fn pass(&mut self, at: Time) -> Result<()> {
        self.sent.note_row(at.max(self.input.time().time()))
    }

    /// Advances the input to `time`: nothing is sent with an earlier timestamp any more. Does
    /// nothing if the input is there or past it.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] if the worker's [`Turn`] does not allow it.
    pub fn advance_to(&mut self, time: Time) -> Result<()> {
        let to = T::from_time(time);
        if to > *self.input.time() {
            self.sent.note_advance(to.time())?;
            self.input.advance_to(to);
        }
        Ok(())
    }

    /// Closes the input: its watermark is the end of time.
    pub fn close(self) {
        self.input.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_bounds_what_is_sent_and_rows_of_one_time_are_on_one_side() {
        let sent = Sent::from(Time(3));
        assert_eq!(sent.reached(), Time(3));
        for _ in 0..2 {
            sent.note_row(Time(7)).unwrap();
            assert_eq!(sent.reached(), Time(8), "after all rows of this time");
        }
        sent.note_row(Time(5)).unwrap();
        assert_eq!(sent.reached(), Time(8));
        assert_eq!(sent.note_row(Time::MAX).unwrap_err().kind(), ErrorKind::Input);
        sent.allow(Turn::Until(Time(10)));
        sent.note_row(Time(9)).unwrap();
        let error = sent.note_row(Time(10)).unwrap_err().to_string();
        assert!(error.contains("a row at 10 is refused") && error.contains("to 10"), "{error}");
        sent.note_advance(Time(10)).unwrap();
        let error = sent.note_advance(Time(11)).unwrap_err().to_string();
        assert!(error.contains("an advance to 11 is refused"), "{error}");
        for turn in [Turn::Seal { number: 1, until: Time(10) }, Turn::Wait] {
            sent.allow(turn);
            assert!(sent.note_row(Time(4)).is_err() && sent.note_advance(Time(11)).is_err());
            sent.note_advance(Time(10)).unwrap();
        }
        sent.allow(Turn::End(Time(12)));
        assert!(sent.note_row(Time(11)).is_err() && sent.note_advance(Time(13)).is_err());
        sent.note_advance(Time(12)).unwrap();
        sent.allow(Turn::Go);
        sent.note_row(Time(90)).unwrap();
        assert_eq!(sent.reached(), Time(91));
    }
}
