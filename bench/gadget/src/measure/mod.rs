//! Clocks around a replay: latencies by kind of access and by phase, due times, warm-up, processor
//! time, memory, and what the device saw.

mod bound;
mod clock_unsafe;
mod latencies;
mod system;
mod trim_unsafe;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quanta::Clock;

use crate::access::{Kind, Phase};
use crate::replay::Watch;
use latencies::Latencies;

pub use bound::Bound;
pub use clock_unsafe::fenced;
pub use latencies::LatencyFigures;
pub use system::{System, thread_time};

/// The first part of a run counts as its warm-up.
pub const WARM_UP_SHARE: f64 = 0.25;
/// Steps between two looks at the clock for the time limit.
const STEPS_A_LOOK: usize = 64;

/// How a run is timed.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// It ends after so long.
    pub most: Duration,
    /// One access of so many is timed.
    pub sample: u32,
    /// Events a second, each due at its time; `None` runs them back to back.
    pub rate: Option<f64>,
    /// Steps, or events where there are no steps, after which the warm-up is over.
    pub warm_up: usize,
}

/// Clocks for one run.
#[derive(Debug)]
pub struct Stopwatch {
    timing: Timing,
    clock: Clock,
    started: Instant,
    start: u64,
    kinds: BTreeMap<&'static str, Latencies>,
    countdown: u32,
    steps_to_sample: u32,
    access_began: u64,
    step_began: Option<u64>,
    events: u64,
    warm: Option<Duration>,
    has_ended: bool,
}

impl Stopwatch {
    /// Starts.
    pub fn start(timing: Timing) -> Self {
        let clock = Clock::new();
        let names = ["get", "put", "merge", "delete", "range", "purge", "event", "firing", "due"];
        let kinds = names.into_iter().map(|name| (name, Latencies::new())).collect();
        Stopwatch {
            timing,
            start: clock.raw(),
            clock,
            started: Instant::now(),
            kinds,
            countdown: 1,
            steps_to_sample: 1,
            access_began: 0,
            step_began: None,
            events: 0,
            warm: None,
            has_ended: false,
        }
    }

    /// One access of so many is timed.
    pub fn sample(&self) -> u32 {
        self.timing.sample
    }

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// How long the warm-up took, if it is over.
    pub fn warm_up(&self) -> Option<Duration> {
        self.warm
    }

    /// Whether the time limit ended the run.
    pub fn is_cut(&self) -> bool {
        self.has_ended
    }

    /// The figures by kind of access and by phase; those without any are left out.
    pub fn figures(&self) -> BTreeMap<String, LatencyFigures> {
        let named = |(name, latencies): (&&'static str, &Latencies)| {
            latencies.figures().map(|figures| ((*name).to_owned(), figures))
        };
        self.kinds.iter().filter_map(named).collect()
    }

    fn record(&mut self, name: &'static str, ns: u64, times: u64) {
        if let Some(latencies) = self.kinds.get_mut(name) {
            latencies.record(ns, times);
        }
    }

    /// Notes that the next steps or events begin; `false` when time is over.
    pub fn looks(&mut self, done: usize) -> bool {
        if self.warm.is_none() && done >= self.timing.warm_up {
            self.warm = Some(self.started.elapsed());
        }
        self.has_ended = self.started.elapsed() >= self.timing.most;
        !self.has_ended
    }

    /// How many of `events` events from the `from`-th on are due; waits for the first.
    pub fn due(&self, from: u64, events: usize) -> usize {
        let Some(rate) = self.timing.rate else { return events };
        loop {
            let now = self.clock.delta(self.start, self.clock.raw()).as_secs_f64();
            let due = (now * rate) as u64 + 1;
            match due.checked_sub(from) {
                Some(more @ 1..) => return events.min(more as usize),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Notes how long events from the `from`-th on took that ran at once: each as long as all, or
    /// since it was due.
    pub fn ran(&mut self, from: u64, events: usize, began: u64) {
        let now = fenced(&self.clock);
        match self.timing.rate {
            None => self.record("event", self.clock.delta_as_nanos(began, now), events as u64),
            Some(rate) => {
                let done = self.clock.delta_as_nanos(self.start, now);
                for event in from..from + events as u64 {
                    let due = (event as f64 / rate * 1e9) as u64;
                    self.record("event", done.saturating_sub(due), 1);
                }
            }
        }
    }

    /// Notes how long a watermark took.
    pub fn fired(&mut self, began: u64) {
        let now = fenced(&self.clock);
        self.record("firing", self.clock.delta_as_nanos(began, now), 1);
    }

    /// Notes how long an access took since it was due.
    pub fn took(&mut self, ns: u64) {
        self.record("due", ns, 1);
    }

    /// The clock.
    pub fn now(&self) -> u64 {
        fenced(&self.clock)
    }

    /// What two readings of the clock cost, in nanoseconds: the median of some thousand.
    pub fn clock_ns(&self) -> u64 {
        let mut gaps = Latencies::new();
        for _ in 0..10_000 {
            let began = fenced(&self.clock);
            let ended = fenced(&self.clock);
            gaps.record(self.clock.delta_as_nanos(began, ended), 1);
        }
        gaps.figures().map_or(0, |figures| figures.p50)
    }
}

impl Watch for Stopwatch {
    #[inline]
    fn step(&mut self, number: usize, phase: Phase) -> bool {
        if number % STEPS_A_LOOK == 0 && !self.looks(number) {
            return false;
        }
        self.step_began = None;
        if phase == Phase::Event {
            if self.timing.rate.is_some() {
                self.due(self.events, 1);
            }
            self.events += 1;
        }
        self.steps_to_sample -= 1;
        if self.steps_to_sample == 0 || phase == Phase::Firing || self.timing.rate.is_some() {
            self.steps_to_sample = self.steps_to_sample.max(1);
            if self.steps_to_sample == 1 {
                self.steps_to_sample = self.timing.sample;
            }
            self.step_began = Some(fenced(&self.clock));
        }
        true
    }

    #[inline]
    fn stepped(&mut self, phase: Phase) {
        let Some(began) = self.step_began else { return };
        match phase {
            Phase::Firing => self.fired(began),
            Phase::Event => self.ran(self.events - 1, 1, began),
        }
    }

    #[inline]
    fn samples(&mut self) -> bool {
        self.countdown -= 1;
        if self.countdown == 0 {
            self.countdown = self.timing.sample;
            return true;
        }
        false
    }

    #[inline]
    fn begins(&mut self) {
        self.access_began = fenced(&self.clock);
    }

    #[inline]
    fn ended(&mut self, kind: Kind) {
        let ns = self.clock.delta_as_nanos(self.access_began, fenced(&self.clock));
        let name = match kind {
            Kind::Get => "get",
            Kind::Put => "put",
            Kind::Merge => "merge",
            Kind::Delete => "delete",
            Kind::Range => "range",
            Kind::Purge => "purge",
        };
        self.record(name, ns, 1);
    }
}
