//! Plays the records of a job at their times.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Answer, Job};
use crate::Result;
use crate::measure::{LatencyFigures, Stopwatch, Timing};

/// Records between two looks at the time limit.
const RECORDS_A_LOOK: u64 = 16;

/// What keeps the windows of a job.
pub trait Windows {
    /// Takes a record; times never fall.
    ///
    /// # Errors
    /// The store's, as of all calls.
    fn add(&mut self, at: i64, value: u64) -> Result<()>;

    /// When the next window is over.
    fn next_end(&self) -> i64;

    /// Tells of the windows that end before or at a time, and forgets them.
    ///
    /// # Errors
    /// The store's.
    fn advance(&mut self, at: i64, told: &mut Vec<Answer>) -> Result<()>;
}

/// What a run showed.
#[derive(Clone, Debug)]
pub struct Played {
    /// The answers.
    pub answers: Vec<Answer>,
    /// Records that were taken.
    pub records: u64,
    /// How long that took.
    pub seconds: f64,
    /// The time limit ended the run.
    pub is_cut: bool,
    /// `event`: from when a record is due until it is in its windows. `firing`: from when windows are
    /// over until they are told.
    pub figures: BTreeMap<String, LatencyFigures>,
}

/// Plays a job. A record is due at its time; windows that are over by then are told before it, and it
/// waits for that.
///
/// # Errors
/// The store's.
pub fn play(job: &Job, windows: &mut dyn Windows, most: Duration) -> Result<Played> {
    let rate = Some(job.rate as f64);
    let mut watch = Stopwatch::start(Timing { most, sample: 1, rate, warm_up: 0 });
    let (mut answers, mut number) = (Vec::new(), 0);
    while number < job.records {
        if number % RECORDS_A_LOOK == 0 && !watch.looks(number as usize) {
            break;
        }
        watch.due(number, 1);
        let (at, began) = (job.at(number), watch.now());
        if windows.next_end() <= at {
            windows.advance(at, &mut answers)?;
            watch.fired(began);
        }
        windows.add(at, job.value(number))?;
        watch.ran(number, 1, began);
        number += 1;
    }
    let (seconds, is_cut) = (watch.elapsed().as_secs_f64(), number < job.records);
    if !is_cut && number > 0 {
        // All windows of the last record.
        windows.advance(job.at(number - 1) + job.length, &mut answers)?;
    }
    let figures = watch.figures();
    Ok(Played { answers, records: number, seconds, is_cut, figures })
}
