//! How far an input may run ahead of what is done.
//!
//! Timely's queues are unbounded. A [`Gate`] bounds what is between an input and a probe behind
//! the dataflow, in event time and in bytes, and so the memory that a slow operator can pile up.

use std::collections::VecDeque;

use alluvium::Time;
use timely::dataflow::ProbeHandle;

use crate::event_time::EventTime;

/// Bounds the records that an input has sent and the dataflow has not finished.
///
/// Ask [`admits`](Gate::admits) before sending at a time, then report the bytes with
/// [`sent`](Gate::sent). A gate with nothing in flight always admits, so a bound smaller than a
/// batch slows a dataflow down but never stops it.
///
/// Send, advance the input, then step: Timely 0.31 keeps rows in the sender's buffers if the worker
/// steps between the last `send` and the `advance_to` (or `close`) that leaves their time. `flush`
/// does not help.
///
/// ```
/// use alluvium_timely::{Counting, Gate, KeyBy, NodeConfig, Rolling, Spec, execute};
/// use timely::dataflow::ProbeHandle;
/// use timely::dataflow::operators::Probe;
/// use timely::dataflow::operators::vec::Input;
///
/// execute(timely::Config::process(1), NodeConfig::default(), |worker, state| {
///     let probe = ProbeHandle::new();
///     let mut input = worker.dataflow::<i64, _, _>(|scope| {
///         let (input, rows) = scope.new_input::<u64>();
///         rows.key_by(state, |row| row % 10)
///             .rolling(Spec::new("counts"), Counting)?
///             .probe_with(&probe);
///         alluvium::Result::Ok(input)
///     })?;
///     let mut gate = Gate::new(probe.clone()).bytes_max(1 << 10);
///     for row in 0..1_000u64 {
///         let time = *input.time();
///         while !gate.admits(&time) {
///             state.step(worker)?;
///         }
///         input.send(row);
///         gate.sent(&time, 8);
///         input.advance_to(time + 1);
///     }
///     input.close();
///     state.run_until(worker, || probe.done())
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Debug)]
pub struct Gate<T: EventTime> {
    probe: ProbeHandle<T>,
    ahead_max: Option<i64>,
    bytes_max: u64,
    /// Times sent at, least first, and bytes sent at each.
    under_way: VecDeque<(T, u64)>,
    bytes: u64,
}

/// Default of [`Gate::bytes_max`].
pub const IN_FLIGHT_BYTES_MAX: u64 = 8 << 20;

impl<T: EventTime> Gate<T> {
    /// Makes a gate for a dataflow whose end `probe` watches. Defaults: any time ahead, and
    /// [`IN_FLIGHT_BYTES_MAX`].
    pub fn new(probe: ProbeHandle<T>) -> Self {
        let under_way = VecDeque::new();
        Self { probe, ahead_max: None, bytes_max: IN_FLIGHT_BYTES_MAX, under_way, bytes: 0 }
    }

    /// Admits nothing more than `nanos` after the earliest unfinished time.
    #[must_use]
    pub fn ahead_max(mut self, nanos: i64) -> Self {
        self.ahead_max = Some(nanos);
        self
    }

    /// Admits nothing while this many bytes or more are in flight. More bytes let more work
    /// overlap; fewer take less memory.
    #[must_use]
    pub fn bytes_max(mut self, bytes: u64) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// Returns whether more may be sent at `time`. Cost: one look at the probe for each finished
    /// time.
    pub fn admits(&mut self, time: &T) -> bool {
        while self.under_way.front().is_some_and(|(time, _)| !self.probe.less_equal(time)) {
            let Some((_, bytes)) = self.under_way.pop_front() else { break };
            self.bytes -= bytes;
        }
        let Some((first, _)) = self.under_way.front() else { return true };
        let (Time(first), Time(time)) = (first.time(), time.time());
        let ahead = time.saturating_sub(first);
        self.bytes < self.bytes_max && self.ahead_max.is_none_or(|most| ahead <= most)
    }

    /// Records `bytes` sent at `time`. Times must not fall.
    pub fn sent(&mut self, time: &T, bytes: u64) {
        self.bytes += bytes;
        match self.under_way.back_mut() {
            Some((last, sum)) if last == time => *sum += bytes,
            _ => self.under_way.push_back((time.clone(), bytes)),
        }
    }

    /// Returns the bytes in flight as of the last call of [`admits`](Gate::admits).
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
