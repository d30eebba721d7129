//! The main job: Nexmark q3 and q4 on heap and on the hybrid log, with state that fits and with
//! four times the memory; the latter also killed in the middle and restored. Results must be equal.
//! Then two questions of windows, COUNT and RANK of 30 s, answered by ours and by hashbrown maps in
//! turns, with equal answers.
//!
//! It does rounds until its time is up and shows for each run the round of median rate. It leaves
//! `report.html`, results and figures in `target/alluvium-report/`.

mod queries;
mod questions;
mod runs;
mod shown;
mod steps;

use std::path::Path;
use std::time::Duration;

use alluvium_reports::environment;

use crate::{Error, Result};
use queries::QueryRuns;
use questions::Questions;
use shown::Shown;
use steps::Steps;

/// Where the report is left.
const OUT: &str = "target/alluvium-report";

/// How much work the job does.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Events of q3.
    pub q3_events: u64,
    /// Events of q4.
    pub q4_events: u64,
    /// Auctions open at a time in q4.
    pub in_flight: u64,
    /// Events of each question of windows.
    pub window_events: u64,
    /// Their events a second of event time.
    pub window_rate: u64,
    /// Rounds at most.
    pub rounds: u32,
    /// No round begins that would probably end later than this; the first always runs.
    pub time: Option<Duration>,
}

impl Scale {
    /// At most about a minute on two cores: a slower machine or device gets fewer rounds.
    pub const DEFAULT: Scale = Scale {
        q3_events: 1_000_000,
        q4_events: 1_000_000,
        in_flight: 120_000,
        window_events: 300_000,
        window_rate: 5_000,
        rounds: 5,
        time: Some(Duration::from_secs(60)),
    };
    /// All rounds in a size whose state is beyond the caches, however long that takes.
    pub const FULL: Scale = Scale {
        q3_events: 4_000_000,
        q4_events: 3_000_000,
        in_flight: 120_000,
        window_events: 1_000_000,
        window_rate: 10_000,
        rounds: 3,
        time: None,
    };
    /// A few seconds.
    pub const SMOKE: Scale = Scale {
        q3_events: 400_000,
        q4_events: 300_000,
        in_flight: 60_000,
        window_events: 100_000,
        window_rate: 2_500,
        rounds: 1,
        time: None,
    };

    fn introduction(&self) -> String {
        let time = match self.time {
            Some(time) => format!("about {} s on 2 cores", time.as_secs()),
            None => "without a limit of time".to_owned(),
        };
        format!(
            "Nexmark q3 and q4, and windows beside hashbrown maps: at most {} rounds, {time}.\n\
             All answers are compared; the job fails if two differ.",
            self.rounds
        )
    }

    /// Whether a further round fits, after so many in that time.
    fn has_time(&self, rounds: u32, elapsed: Duration) -> bool {
        rounds < self.rounds && self.time.is_none_or(|time| elapsed + elapsed / rounds <= time)
    }
}

/// How many rounds there were, and in what time.
#[derive(Clone, Copy, Debug)]
struct Done {
    rounds: u32,
    wanted: u32,
    elapsed: Duration,
    limit: Option<Duration>,
}

/// Runs the job, prints its tables and writes its report.
///
/// # Errors
/// Those of any run; [`Error::Wrong`] if results differ, or if state is smaller than it should be.
pub fn main_job(scale: Scale) -> Result<()> {
    let out = Path::new(OUT);
    std::fs::create_dir_all(out).map_err(|source| Error::io(out, "make", source))?;
    println!("{}", scale.introduction());
    let machine = environment(out);
    let mut queries = [
        QueryRuns::new(out, ("q3", "join of persons and auctions"), scale.q3_events, None),
        QueryRuns::new(
            out,
            ("q4", "average price of a category"),
            scale.q4_events,
            Some(scale.in_flight),
        ),
    ];
    let mut questions = Questions::new(out, scale.window_events, scale.window_rate);
    let done = rounds(scale, |steps| {
        queries.iter_mut().try_for_each(|query| query.round(steps))?;
        questions.round(steps)
    })?;
    let shown = Shown { queries: &queries, questions: &questions, done };
    print!("{}", shown.text());
    shown.write_points(&out.join("latency.csv"))?;
    let path = out.join("report.html");
    std::fs::write(&path, shown.html(&machine))
        .map_err(|source| Error::io(&path, "write", source))?;
    println!("{}\nReport: {}, one file with tables and plots", shown.conclusion(), path.display());
    Ok(())
}

/// Does rounds as long as there is time.
fn rounds(scale: Scale, mut round: impl FnMut(&mut Steps) -> Result<()>) -> Result<Done> {
    let mut steps = Steps::new();
    let mut rounds = 0;
    loop {
        steps.say(&format!("round {} of at most {}", rounds + 1, scale.rounds));
        round(&mut steps)?;
        rounds += 1;
        let elapsed = steps.elapsed();
        if !scale.has_time(rounds, elapsed) {
            return Ok(Done { rounds, wanted: scale.rounds, elapsed, limit: scale.time });
        }
        let all = elapsed.as_secs_f64() / f64::from(rounds) * f64::from(scale.rounds);
        steps.say(&format!("{} rounds take about {all:.0} s", scale.rounds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_machine_gets_fewer_rounds() {
        let seconds = Duration::from_secs;
        let scale = Scale { rounds: 3, time: Some(seconds(60)), ..Scale::SMOKE };
        assert!(scale.has_time(1, seconds(20)) && scale.has_time(2, seconds(40)));
        assert!(!scale.has_time(3, seconds(3)) && !scale.has_time(2, seconds(41)));
        assert!(!scale.has_time(1, seconds(31)));
        assert!(Scale { time: None, ..scale }.has_time(2, seconds(10_000)));
        let done = rounds(Scale { time: Some(Duration::ZERO), ..scale }, |_| Ok(())).unwrap();
        assert_eq!((done.rounds, done.wanted), (1, 3));
        assert_eq!(rounds(scale, |_| Ok(())).unwrap().rounds, 3);
    }
}
