//! The statistics of a worker's store as events of a Timely log stream.
//!
//! Like Timely's own streams it is bound by name in the worker's registry, so that whatever reads
//! those (a replay into a dataflow, a socket) reads this one too. Nobody reading costs nothing.

use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

use alluvium::Store;
use alluvium::stats::StoreStats;
use serde::{Deserialize, Serialize};
use timely::container::CapacityContainerBuilder;
use timely::logging_core::Logger;
use timely::worker::Worker;

use crate::job::worker::WorkerState;

/// Name of the log stream in Timely's registry.
pub const STORE_LOG: &str = "store";

/// The container builder that the stream is bound with.
pub type StoreEventBuilder = CapacityContainerBuilder<Vec<(Duration, StoreEvent)>>;

/// Statistics of a worker's store at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreEvent {
    /// The worker's index.
    pub worker: usize,
    /// Whether this is the last event of the worker: its state is gone.
    pub end: bool,
    /// The statistics; counters are since the store was opened.
    pub stats: StoreStats,
}

impl WorkerState {
    /// From now on logs the store's statistics to the stream [`STORE_LOG`]: every `interval`, as
    /// far as [`log_stats_if_due`](WorkerState::log_stats_if_due) is called, and once more when
    /// the state is dropped with its last operator. Says whether the stream is bound; if not,
    /// nothing is logged.
    ///
    /// ```
    /// use std::time::Duration;
    /// use alluvium_timely::{NodeConfig, STORE_LOG, StoreEventBuilder, WorkerState, install};
    ///
    /// let mut config = timely::Config::process(1);
    /// install(&mut config, NodeConfig::default())?;
    /// timely::execute(config, |worker| {
    ///     if let Some(mut register) = worker.log_register() {
    ///         register.insert::<StoreEventBuilder, _>(STORE_LOG, |_, events| {
    ///             for (at, event) in events.iter().flatten() {
    ///                 println!("{at:?}, worker {}:\n{}", event.worker, event.stats);
    ///             }
    ///         });
    ///     }
    ///     let state = WorkerState::new(worker, Default::default()).unwrap();
    ///     assert!(state.log_stats_every(worker, Duration::from_secs(1)));
    ///     while worker.has_dataflows() {
    ///         worker.step();
    ///         state.log_stats_if_due();
    ///     }
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log_stats_every(&self, worker: &Worker, interval: Duration) -> bool {
        let logger = worker.logger_for::<StoreEventBuilder>(STORE_LOG);
        let bound = logger.is_some();
        self.stats_log().start(logger, interval);
        bound
    }

    /// Logs the statistics if the interval has passed, and returns whether it did. Cost: one
    /// reading of the clock, or that of [`Store::stats`] if they are logged.
    pub fn log_stats_if_due(&self) -> bool {
        self.stats_log().is_due() && self.log_stats()
    }

    /// Logs the statistics now, and returns whether it did: not if nobody reads the stream, nor
    /// while a value is borrowed.
    pub fn log_stats(&self) -> bool {
        self.stats_log().log(self.store(), self.index(), false)
    }
}

/// Where a worker logs its statistics, and when the next time.
#[derive(Default)]
pub(crate) struct StatsLog(RefCell<Option<StatsLogger>>);

struct StatsLogger {
    logger: Logger<StoreEventBuilder>,
    interval: Duration,
    next: Instant,
}

impl StatsLog {
    fn start(&self, logger: Option<Logger<StoreEventBuilder>>, interval: Duration) {
        let next = Instant::now() + interval;
        self.0.replace(logger.map(|logger| StatsLogger { logger, interval, next }));
    }

    fn is_due(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(|running| Instant::now() >= running.next)
    }

    fn log(&self, store: &Store, worker: usize, end: bool) -> bool {
        let mut running = self.0.borrow_mut();
        let (Some(running), Ok(stats)) = (&mut *running, store.stats()) else { return false };
        running.logger.log(StoreEvent { worker, end, stats });
        running.next = Instant::now() + running.interval;
        true
    }

    /// Logs the last statistics of a worker.
    pub(crate) fn end(&self, store: &Store, worker: usize) {
        // The reader may be what panics.
        if !std::thread::panicking() {
            self.log(store, worker, true);
        }
    }
}

impl fmt::Debug for StatsLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interval = self.0.borrow().as_ref().map(|running| running.interval);
        f.debug_struct("StatsLog").field("interval", &interval).finish_non_exhaustive()
    }
}
