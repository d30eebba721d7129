//! The part of the main job that asks questions of windows, of ours and of hashbrown maps in turns.

use std::path::{Path, PathBuf};

use clap::Parser;

use super::runs::Runs;
use super::steps::Steps;
use crate::args::WindowArgs;
use crate::report::{Report, spread};
use crate::run::window::answered;
use crate::{Error, Result};

/// The questions of windows. Events a second over keys is 1 and 10: a window of `rank` has 300 events a
/// key.
const QUESTIONS: [Question; 2] = [
    Question {
        name: "count",
        title: "COUNT every 1 s",
        keys: |rate| rate,
        shape: &["--length", "30s", "--slide", "1s"],
        layout: "window-segments",
    },
    Question {
        name: "rank",
        title: "RANK every 30 s",
        keys: |rate| rate / 10,
        shape: &["--length", "30s"],
        layout: "append-log",
    },
];

struct Question {
    name: &'static str,
    title: &'static str,
    /// Keys at so many events a second.
    keys: fn(u64) -> u64,
    shape: &'static [&'static str],
    layout: &'static str,
}

#[derive(Parser)]
struct WindowLine {
    #[command(flatten)]
    args: WindowArgs,
}

/// A question that ours and hashbrown maps have answered alike, by rounds.
pub(super) struct Answered {
    pub(super) title: &'static str,
    pub(super) layout: &'static str,
    pub(super) ours: Runs,
}

impl Answered {
    /// Our rate over that of hashbrown maps: the median of the rounds.
    pub(super) fn ratio(&self) -> f64 {
        let ratios = self.ours.reports.iter().filter_map(|report| report.vs.as_ref());
        spread(ratios.map(|vs| vs.ratio)).1
    }

    /// The rates of hashbrown maps.
    pub(super) fn their_rates(&self) -> (f64, f64, f64) {
        let theirs = self.ours.reports.iter().filter_map(|report| report.vs.as_ref());
        spread(theirs.map(|vs| vs.ops_per_s))
    }
}

/// All questions.
pub(super) struct Questions {
    /// Events of each question in a round.
    pub(super) events: u64,
    /// Events a second of event time.
    rate: u64,
    out: PathBuf,
    pub(super) answered: Vec<Answered>,
}

impl Questions {
    pub(super) fn new(out: &Path, events: u64, rate: u64) -> Self {
        let answered = QUESTIONS.iter().map(|question| Answered {
            title: question.title,
            layout: question.layout,
            ours: Runs::new(question.name),
        });
        Questions { events, rate, out: out.to_owned(), answered: answered.collect() }
    }

    /// Has ours and hashbrown maps answer all questions once; fails if their answers differ.
    pub(super) fn round(&mut self, steps: &mut Steps) -> Result<()> {
        for (question, answered) in QUESTIONS.iter().zip(&mut self.answered) {
            let what = format!("windows: {}, ours and hashbrown", question.title);
            let report = steps.step(&what, || question.ask(self.events, self.rate))?;
            report.write_json(&self.out.join(format!("window-{}.json", question.name)))?;
            let earlier = answered.ours.reports.first();
            if earlier.is_some_and(|earlier| earlier.checksum != report.checksum) {
                let message = format!("{}: answers differ between rounds", question.title);
                return Err(Error::Wrong(message));
            }
            answered.ours.reports.push(report);
        }
        Ok(())
    }
}

impl Question {
    fn ask(&self, events: u64, rate: u64) -> Result<Report> {
        let numbers = [events, rate, (self.keys)(rate)].map(|number| number.to_string());
        let [events, rate, keys] = &numbers;
        let words = ["window", "--query", self.name, "--keys", keys, "--events", events];
        let rest = ["--rate", rate, "--layout", self.layout, "--vs", "hashbrown"];
        let words = words.into_iter().chain(self.shape.iter().copied()).chain(rest);
        let line = WindowLine::try_parse_from(words);
        let WindowLine { args } = line.map_err(|error| Error::Usage(error.to_string()))?;
        answered(&args)
    }
}
