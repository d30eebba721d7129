//! COUNT and RANK of the HotStorage'20 paper on any engine, in an open loop.
//!
//! Records come at a fixed rate and belong to overlapping windows. On an engine of bytes the key is
//! the start of a window and the value its content: a record is one read-modify-write for each of its
//! windows, and a window that is over is read once and deleted. Our own windows are a row of their
//! own: they keep each record once. Event time is the time at which a record is due, and a run
//! begins in the middle of a window. Every answer is compared with a recomputation.

mod by_key;
mod model;
mod ours;
mod play;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::operator::Name;
use crate::random::Random;
use crate::{Error, Result};

pub use by_key::ByKey;
pub use model::{digest, expected};
pub use ours::{OURS, open as open_ours};
pub use play::{Played, Windows, play};

/// Values lie below this, so that a window has ties.
const VALUES: u64 = 10_000;
/// Event time begins behind so many windows: none begins before 0.
const LENGTHS_BEFORE: i64 = 2;

/// The question that each window answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// How many records: one number a window.
    Count,
    /// The rank of each record by its value: all of a window's records.
    Rank,
}

impl FromStr for Question {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "count" => Ok(Question::Count),
            "rank" => Ok(Question::Rank),
            other => Err(Error::Usage(format!("there is no question {other:?}, but count, rank"))),
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Question::Count => "count",
            Question::Rank => "rank",
        })
    }
}

/// A stream and a question.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The question.
    pub question: Question,
    /// How long a window is, in nanoseconds.
    pub length: i64,
    /// How far apart windows begin.
    pub slide: i64,
    /// Records a second.
    pub rate: u64,
    /// Records.
    pub records: u64,
    /// Chooses the values.
    pub seed: u64,
}

impl Job {
    /// Refuses numbers that make no stream.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the number.
    pub fn check(&self) -> Result<()> {
        let Job { length, slide, rate, .. } = *self;
        let refuse = |what: String| Err(Error::Usage(what));
        if !(1..=1_000_000_000).contains(&rate) {
            return refuse(format!("rate {rate} is not in 1..=1000000000 records/s"));
        }
        if !(1..=length).contains(&slide) || length > i64::MAX / 16 {
            return refuse(format!(
                "windows of {length} ns every {slide} ns: 1 <= slide <= length"
            ));
        }
        if self.begin().checked_add_unsigned(self.nanos(self.records)).is_none() {
            return refuse(format!("{} records at {rate}/s end after all time", self.records));
        }
        Ok(())
    }

    fn begin(&self) -> i64 {
        LENGTHS_BEFORE * self.length + self.length / 2
    }

    /// Nanoseconds from the first record to another one.
    fn nanos(&self, number: u64) -> u64 {
        let nanos = u128::from(number) * 1_000_000_000 / u128::from(self.rate);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// The event time of a record.
    #[inline]
    pub fn at(&self, number: u64) -> i64 {
        self.begin().saturating_add_unsigned(self.nanos(number))
    }

    /// The value of a record.
    #[inline]
    pub fn value(&self, number: u64) -> u64 {
        Random::new(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).below(VALUES)
    }

    /// The starts of the windows that a time is in, the latest first.
    pub fn starts(&self, at: i64) -> impl Iterator<Item = i64> + use<> {
        let (length, slide) = (self.length, self.slide);
        let latest = at.div_euclid(slide) * slide;
        (0..).map(move |n| latest - n * slide).take_while(move |start| *start > at - length)
    }

    /// The end of the first window.
    fn first_end(&self) -> i64 {
        let earliest = self.starts(self.begin()).last();
        earliest.unwrap_or_else(|| self.begin()) + self.length
    }

    /// The operator that has the same accesses, for engines that want to know.
    pub fn operator(&self) -> Name {
        match (self.question, self.slide < self.length) {
            (Question::Count, true) => Name::SlidingIncremental,
            (Question::Count, false) => Name::TumblingIncremental,
            (Question::Rank, true) => Name::SlidingHolistic,
            (Question::Rank, false) => Name::TumblingHolistic,
        }
    }
}

/// The answer of a window: its start, and the count or a digest of the ranks.
pub type Answer = (i64, u64);

/// Compares the answers with a recomputation over the first `records`. A run that was cut has answers
/// for the windows that had ended by then.
///
/// # Errors
/// [`Error::Wrong`], naming the window.
pub fn check_answers(job: &Job, played: &Played) -> Result<()> {
    let mut wanted = expected(job, played.records);
    if played.is_cut {
        let told: Vec<i64> = played.answers.iter().map(|answer| answer.0).collect();
        wanted.retain(|(start, _)| told.contains(start));
    }
    let mut found = played.answers.clone();
    found.sort_unstable();
    match wanted.iter().zip(&found).find(|(wanted, found)| wanted != found) {
        Some(((start, wanted), found)) => {
            let message = format!("the window from {start} has {wanted}, the answer is {found:?}");
            Err(Error::Wrong(message))
        }
        None if wanted.len() != found.len() => {
            let (found, wanted) = (found.len(), wanted.len());
            Err(Error::Wrong(format!("{found} windows were told of {wanted}")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::faulty::{Fault, Faulty};
    use crate::engine::{BTree, Engine, Open, built_in};
    use crate::operator::Options;
    use std::path::Path;
    use std::time::Duration;

    const SECOND: i64 = 1_000_000_000;

    fn job(question: Question, slide: i64) -> Job {
        // Fast: 300 records in 0.3 ms, windows of 30 us.
        Job { question, length: 30_000, slide, rate: 1_000_000, records: 300, seed: 5 }
    }

    fn run_on(job: &Job, engine: Box<dyn Engine>, adds: bool) -> Result<Played> {
        let mut windows = ByKey::new(*job, engine, adds);
        let played = play(job, &mut windows, Duration::from_secs(60))?;
        check_answers(job, &played)?;
        Ok(played)
    }

    fn open(job: &Job, directory: &Path) -> Open {
        Open {
            directory: directory.to_owned(),
            memory_bytes: 64 << 20,
            operator: job.operator(),
            options: Options::default(),
            events: 300,
        }
    }

    #[test]
    fn every_engine_and_ours_give_the_recomputed_answers() {
        for question in [Question::Count, Question::Rank] {
            for slide in [30_000, 10_000, 7_000] {
                let job = job(question, slide);
                job.check().unwrap();
                let dir = tempfile::tempdir().unwrap();
                let mut told = Vec::new();
                for kind in built_in() {
                    let directory = dir.path().join(kind.name);
                    let engine = match kind.open(&open(&job, &directory)) {
                        // An append log keeps no counters.
                        Err(Error::Usage(_)) => continue,
                        engine => engine.unwrap(),
                    };
                    told.push(run_on(&job, engine, false).unwrap().answers);
                }
                let mut ours = open_ours(&job, &open(&job, &dir.path().join("native"))).unwrap();
                let played = play(&job, &mut *ours, Duration::from_secs(60)).unwrap();
                check_answers(&job, &played).unwrap();
                assert!(told.len() >= 4 && !played.answers.is_empty());
                assert!(played.figures["event"].count == 300, "{:?}", played.figures);
            }
        }
    }

    #[test]
    fn appended_sums_count_as_well() {
        let job = job(Question::Count, 10_000);
        run_on(&job, Box::<BTree>::default(), true).unwrap();
    }

    #[test]
    fn a_wrong_engine_is_caught() {
        for question in [Question::Count, Question::Rank] {
            let job = job(question, 10_000);
            // The value before the last one of a window that is over.
            let reads = if question == Question::Rank { 3 } else { 200 };
            let engine = Faulty::new(BTree::default(), Fault::StaleValue(reads));
            let error = run_on(&job, Box::new(engine), false).map(drop).unwrap_err();
            assert!(matches!(error, Error::Wrong(_)), "{question}: {error}");
        }
    }

    #[test]
    fn a_run_that_is_cut_says_so_and_is_right_so_far() {
        let job = Job { rate: 10, records: 1_000, ..job(Question::Count, 10_000) };
        let mut windows = ByKey::new(job, Box::<BTree>::default(), false);
        let played = play(&job, &mut windows, Duration::from_millis(250)).unwrap();
        assert!(played.is_cut && (1..1_000).contains(&played.records), "{}", played.records);
        check_answers(&job, &played).unwrap();
        assert!(!played.answers.is_empty());
    }

    /// One record a second, windows of 4 s every 2 s, from 10 s on.
    #[test]
    fn windows_are_those_worked_out_by_hand() {
        let (length, slide) = (4 * SECOND, 2 * SECOND);
        let job = Job { question: Question::Count, length, slide, rate: 1, records: 5, seed: 0 };
        assert_eq!(job.at(0), 10 * SECOND);
        let starts = |at: i64| job.starts(at * SECOND).map(|s| s / SECOND).collect::<Vec<_>>();
        assert_eq!((starts(10), starts(11)), (vec![10, 8], vec![10, 8]));
        assert_eq!(job.first_end(), 12 * SECOND);
        // 10 and 11 s are in the windows from 8 and 10, 12 and 13 s in those from 10 and 12,
        // 14 s in those from 12 and 14.
        let counts = [(8, 2), (10, 4), (12, 3), (14, 1)].map(|(s, n)| (s * SECOND, n));
        assert_eq!(expected(&job, 5), counts);
        let bad = |job: Job| job.check().unwrap_err().to_string();
        assert!(bad(Job { slide: length + 1, ..job }).contains("slide <= length"));
        assert!(bad(Job { rate: 0, ..job }).contains("rate 0"));
        assert!(bad(Job { records: u64::MAX, ..job }).contains("after all time"));
    }
}
