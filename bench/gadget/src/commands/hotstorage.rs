//! COUNT and RANK on one engine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::print;
use crate::args::bytes;
use crate::engine::{Kind, Open};
use crate::hotstorage::{
    ByKey, Job, OURS, Played, Question, Windows, check_answers, open_ours, play,
};
use crate::measure::{LatencyFigures, System};
use crate::operator::Options;
use crate::run::{no_such_engine, place};
use crate::{Error, Result};

/// A rate is kept if the last record is done so long after it was due, at most.
const BEHIND_SECONDS_MAX: f64 = 1.0;

/// A job and an engine.
#[derive(Args, Debug)]
pub struct HotStorageArgs {
    /// count or rank
    #[arg(long)]
    question: Question,
    /// The engine; ours-native has windows as windows
    #[arg(long)]
    engine: String,
    /// Milliseconds of a window
    #[arg(long, value_name = "MS", default_value_t = 30_000,
          value_parser = clap::value_parser!(i64).range(1..=86_400_000))]
    length: i64,
    /// Milliseconds between the starts of two windows
    #[arg(long, value_name = "MS", default_value_t = 1_000,
          value_parser = clap::value_parser!(i64).range(1..=86_400_000))]
    slide: i64,
    /// Records a second
    #[arg(long, value_name = "R")]
    rate: u64,
    /// Seconds of the stream; a run that takes half as long again is cut
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    seconds: f64,
    /// Memory of the engine: data, caches and indexes
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: String,
    /// Chooses the values
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Directory for engines that write to storage (that of temporary files unless given)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What a run showed.
#[derive(Debug, Serialize)]
struct Figures {
    question: Question,
    engine: String,
    version: String,
    note: &'static str,
    length_ms: i64,
    slide_ms: i64,
    rate: u64,
    ops: u64,
    seconds: f64,
    ops_per_s: f64,
    /// The rate was kept to the end.
    is_kept: bool,
    is_cut: bool,
    windows: usize,
    /// Of all answers; none of a run that was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
    latencies: BTreeMap<String, LatencyFigures>,
    processor_s: f64,
    memory_max: u64,
    device_written: u64,
}

pub(super) fn hotstorage(args: &HotStorageArgs, kinds: &[Kind]) -> Result<()> {
    let job = args.job()?;
    let kind = kinds.iter().find(|kind| kind.name == args.engine);
    if kind.is_none() && args.engine != OURS {
        return Err(no_such_engine(&args.engine, kinds));
    }
    let (directory, _removed) = place(args.dir.as_deref())?;
    let open = Open {
        directory,
        memory_bytes: bytes("--memory", &args.memory)?,
        operator: job.operator(),
        options: Options::default(),
        // A window is one key.
        events: 1 << 16,
    };
    let before = System::from_here();
    let mut windows: Box<dyn Windows> = match kind {
        Some(kind) => by_key(&job, kind, &open)?,
        None => open_ours(&job, &open)?,
    };
    let played = play(&job, &mut *windows, Duration::from_secs_f64(args.seconds * 1.5))?;
    let after = System::now();
    check_answers(&job, &played)?;
    print(&args.figures(kind, &played, (before, after)))
}

/// Opens an engine. COUNT is merged where the engine's merges add.
fn by_key(job: &Job, kind: &Kind, open: &Open) -> Result<Box<dyn Windows>> {
    let adds = kind.adds.filter(|_| job.question == Question::Count);
    let engine = match adds {
        Some(opens) => {
            kind.check(open.operator, &open.options, open.memory_bytes)?;
            opens(open)?
        }
        None => kind.open(open)?,
    };
    Ok(Box::new(ByKey::new(*job, engine, adds.is_some())))
}

impl HotStorageArgs {
    fn job(&self) -> Result<Job> {
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            let message = format!("--seconds {}: must be above 0, 86400 at most", self.seconds);
            return Err(Error::Usage(message));
        }
        let job = Job {
            question: self.question,
            length: self.length * 1_000_000,
            slide: self.slide * 1_000_000,
            rate: self.rate,
            records: (self.seconds * self.rate as f64).ceil() as u64,
            seed: self.seed,
        };
        job.check()?;
        Ok(job)
    }

    fn figures(
        &self,
        kind: Option<&Kind>,
        played: &Played,
        (before, after): (System, System),
    ) -> Figures {
        let Played { answers, records, seconds, is_cut, figures } = played;
        let due = *records as f64 / self.rate as f64;
        let mut sorted = answers.clone();
        sorted.sort_unstable();
        let digest = sorted.iter().fold(0, |digest, (start, answer)| {
            let window = alluvium::types::hash_word(start.cast_unsigned());
            alluvium::types::combine(alluvium::types::combine(digest, window), *answer)
        });
        let own = env!("CARGO_PKG_VERSION");
        Figures {
            question: self.question,
            engine: self.engine.clone(),
            version: kind.map_or(own, |kind| &kind.version[..]).to_owned(),
            note: kind.map_or("windows as windows: each record kept once", |kind| kind.note),
            length_ms: self.length,
            slide_ms: self.slide,
            rate: self.rate,
            ops: *records,
            seconds: *seconds,
            ops_per_s: *records as f64 / seconds.max(1e-9),
            is_kept: !is_cut && *seconds <= due + BEHIND_SECONDS_MAX,
            is_cut: *is_cut,
            windows: answers.len(),
            checksum: (!is_cut).then(|| format!("{digest:016x}")),
            latencies: figures.clone(),
            processor_s: after.processor.saturating_sub(before.processor).as_secs_f64(),
            memory_max: after.resident_bytes_max,
            device_written: after.device_written - before.device_written,
        }
    }
}
