//! Says on the standard error what runs now, and how long it may take.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::Result;

/// The steps of a job.
pub(super) struct Steps {
    start: Instant,
    /// How long each step took the last time.
    took: HashMap<String, Duration>,
}

impl Steps {
    /// Starts the clock.
    pub(super) fn new() -> Self {
        Steps { start: Instant::now(), took: HashMap::new() }
    }

    /// Time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Says what is done next.
    pub(super) fn say(&self, what: &str) {
        eprintln!("[{:>3} s] {what}", self.elapsed().as_secs());
    }

    /// Announces a step with the time it took before, and does it.
    pub(super) fn step<R>(&mut self, what: &str, run: impl FnOnce() -> Result<R>) -> Result<R> {
        match self.took.get(what) {
            Some(before) => self.say(&format!("{what} ({:.1} s last time)", before.as_secs_f64())),
            None => self.say(what),
        }
        let begin = Instant::now();
        let result = run()?;
        self.took.insert(what.to_owned(), begin.elapsed());
        Ok(result)
    }
}
