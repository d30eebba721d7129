//! How far an input may run ahead of what is done.
//!
//! Timely's queues are unbounded. A [`Gate`] bounds what is between an input and a probe behind
//! the dataflow, in event time and in bytes, and so the memory that a slow operator can pile up.

use std::collections::VecDeque;

use alluvium::Time;
use timely::dataflow::ProbeHandle;

use crate::event_time::EventTime;

/// Bounds what an input has sent and the dataflow has not done yet.
///
/// Ask [`admits`](Gate::admits) before sending at a time, and say afterwards what was
/// [`sent`](Gate::sent). A gate with nothing under way always admits, so that a bound which is
/// smaller than one batch slows a dataflow down but never stops it.
///
/// Latency in an open loop still counts from the time a record was due: the gate makes records
/// wait where they wait for nothing else, at their source.
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
    /// A gate before the dataflow that `probe` is behind of. Default bounds: any time ahead, and
    /// [`IN_FLIGHT_BYTES_MAX`].
    pub fn new(probe: ProbeHandle<T>) -> Self {
        let under_way = VecDeque::new();
        Self { probe, ahead_max: None, bytes_max: IN_FLIGHT_BYTES_MAX, under_way, bytes: 0 }
    }

    /// Admits nothing more than `nanos` after the earliest time that is not done.
    #[must_use]
    pub fn ahead_max(mut self, nanos: i64) -> Self {
        self.ahead_max = Some(nanos);
        self
    }

    /// Admits nothing while so many bytes or more are under way. More let more work overlap, less
    /// takes less memory.
    #[must_use]
    pub fn bytes_max(mut self, bytes: u64) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// Whether more may be sent at `time`. Cost: a look at the probe for each time that is done.
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

    /// Notes `bytes` that were sent at `time`, which is not before any time sent at.
    pub fn sent(&mut self, time: &T, bytes: u64) {
        self.bytes += bytes;
        match self.under_way.back_mut() {
            Some((last, sum)) if last == time => *sum += bytes,
            _ => self.under_way.push_back((time.clone(), bytes)),
        }
    }

    /// Bytes under way, as of the last call of [`admits`](Gate::admits).
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
