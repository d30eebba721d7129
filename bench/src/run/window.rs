//! `window`: a question of each window of a stream, answered by what others would use.
//!
//! Events are read ahead of what is timed, a stretch at a time, and pushed in batches; after each
//! batch the engine is told the watermark. The rate is of all events, the time of answering
//! included; of each call that answered something the time is noted as a latency.

use std::time::{Duration, Instant};

use alluvium::Time;

use crate::Result;
use crate::args::WindowArgs;
use crate::peers::Peer;
use crate::report::{Latencies, Progress, Report, ResultsWriter, noise_floor, peak_rss_bytes};
use crate::window::{Answer, ByHand, Engine, Event, EventStream, Synthetic, Trace};

/// Events between two watermarks.
const BATCH: usize = 1_024;
/// Batches read at a time.
const STRETCH: usize = 64;

/// Answers the question of all windows.
///
/// The checksum is that of all answers, whatever their order.
///
/// # Errors
/// The stream's, the engine's or of writing the answers.
pub fn window(args: &WindowArgs) -> Result<Report> {
    let windows = args.windows()?;
    match args.vs {
        Peer::Hashbrown => run(args, &mut ByHand::new(windows, args.query)),
        Peer::RocksDb => on_rocksdb(args),
    }
}

#[cfg(feature = "rocksdb")]
fn on_rocksdb(args: &WindowArgs) -> Result<Report> {
    let directory = super::state::temporary_dir()?;
    let (path, memory) = (directory.path().join("rocksdb"), args.memory.0);
    let opened = crate::window::RocksDbWindows::open(&path, memory, args.windows()?, args.query);
    run(args, &mut opened?)
}

#[cfg(not(feature = "rocksdb"))]
fn on_rocksdb(_: &WindowArgs) -> Result<Report> {
    let message = "this program was built without the feature rocksdb";
    Err(crate::Error::Usage(message.to_owned()))
}

fn stream(args: &WindowArgs) -> Result<Box<dyn EventStream>> {
    Ok(match (&args.azure, &args.borg) {
        (Some(path), _) => Box::new(Trace::azure(path)?),
        (None, Some(path)) => Box::new(Trace::borg(path)?),
        (None, None) => {
            let events = args.events.unwrap_or(0);
            Box::new(Synthetic::new(events, args.rate, args.keys, args.dist, args.seed)?)
        }
    })
}

/// Events, and the watermark behind them.
struct Batch {
    events: Vec<Event>,
    watermark: Time,
}

/// The next batches; the last of all has the last watermark, none follows.
fn read(stream: &mut dyn EventStream) -> Result<Vec<Batch>> {
    let mut batches = Vec::new();
    while batches.len() < STRETCH {
        let mut events = Vec::with_capacity(BATCH);
        while events.len() < BATCH {
            let Some(event) = stream.next_event()? else { break };
            events.push(event);
        }
        let is_last = events.len() < BATCH;
        batches.push(Batch { events, watermark: stream.watermark() });
        if is_last {
            break;
        }
    }
    Ok(batches)
}

fn run(args: &WindowArgs, engine: &mut dyn Engine) -> Result<Report> {
    let mut stream = stream(args)?;
    let mut outcome = Outcome::default();
    if let Some(path) = &args.results {
        let columns = [&Answer::COLUMNS[..], args.query.columns()].concat();
        outcome.results = Some(ResultsWriter::create(path, &columns)?);
    }
    let progress = Progress::new("window", args.events.unwrap_or(0));
    loop {
        let batches = read(&mut *stream)?;
        let is_last = batches.last().is_none_or(|batch| batch.watermark == Time::MAX);
        for batch in batches {
            outcome.batch(args, engine, &batch)?;
        }
        progress.set(outcome.events);
        if is_last {
            break;
        }
    }
    drop(progress);
    outcome.report(args)
}

/// What came of the run so far.
#[derive(Default)]
struct Outcome {
    events: u64,
    answers: u64,
    checksum: u64,
    time: Duration,
    firings: Latencies,
    results: Option<ResultsWriter>,
    told: Vec<Answer>,
}

impl Outcome {
    fn batch(&mut self, args: &WindowArgs, engine: &mut dyn Engine, batch: &Batch) -> Result<()> {
        let begin = Instant::now();
        for event in &batch.events {
            engine.push(*event)?;
        }
        let told = &mut self.told;
        let firing = Instant::now();
        engine.advance(batch.watermark, &mut |answer| told.push(answer))?;
        let end = Instant::now();
        self.time += end - begin;
        self.events += batch.events.len() as u64;
        self.answers += self.told.len() as u64;
        if !self.told.is_empty() {
            self.firings.record(u64::try_from((end - firing).as_nanos()).unwrap_or(u64::MAX));
        }
        self.checksum = self.checksum.wrapping_add(crate::window::digest_of(&self.told));
        for answer in self.told.drain(..) {
            if let Some(results) = &mut self.results {
                results.row(answer.fields(args.query).into_iter().map(Some))?;
            }
        }
        Ok(())
    }

    fn report(self, args: &WindowArgs) -> Result<Report> {
        self.results.map_or(Ok(()), ResultsWriter::finish)?;
        let mut report = Report::new(format!("window-{}", args.query), args.vs.to_string());
        report.set_rate(self.events, self.time.as_secs_f64());
        report.set_checksum(self.checksum);
        let firings = self.firings.percentiles();
        println!(
            "{} answers; of the calls that answered, median {:.1} us, longest {:.1} us",
            self.answers,
            firings.p50 as f64 / 1e3,
            firings.max as f64 / 1e3
        );
        report.latency_ns = Some(firings);
        report.noise_floor_ns = Some(noise_floor(Duration::from_millis(50)));
        report.memory.peak_rss = peak_rss_bytes();
        Ok(report)
    }
}
