//! One of those that answer, and what was measured of it.

use std::path::Path;
use std::time::{Duration, Instant};

use alluvium::Time;

use super::held::Held;
use crate::args::WindowArgs;
use crate::report::{Latencies, Percentiles, Report, ResultsWriter, spread};
use crate::run::clock_unsafe::thread_time;
use crate::window::{Answer, Engine, Event, EventStream, Question, digest_of};
use crate::{Error, Result};

/// Events between two watermarks.
const BATCH: usize = 1_024;
/// Batches read at a time.
const STRETCH: usize = 64;
/// What no call should work for.
pub(super) const LONG: Duration = Duration::from_millis(1);

/// What was measured, over all rounds.
pub(super) struct Side {
    pub(super) name: String,
    /// Of one round.
    pub(super) events: u64,
    /// Of one round.
    pub(super) answers: u64,
    checksum: Option<u64>,
    /// Events per second of each round.
    rates: Vec<f64>,
    /// Of each call that takes a batch.
    pushing: Latencies,
    /// Of each call that answers, or does a part of what an answer needs. Those that find nothing
    /// to do are not among them.
    answering: Latencies,
    /// Calls that took longer than [`LONG`], those of them that had the processor for longer, and
    /// the longest that any had it.
    long: (u64, u64, Duration),
    /// The first round: time in calls, and all of it.
    first: Option<(Duration, Duration)>,
}

impl Side {
    pub(super) fn new(name: &str) -> Self {
        Side {
            name: name.to_owned(),
            events: 0,
            answers: 0,
            checksum: None,
            rates: Vec::new(),
            pushing: Latencies::new(),
            answering: Latencies::new(),
            long: (0, 0, Duration::ZERO),
            first: None,
        }
    }

    /// Runs a call and says how long it took.
    fn timed<R>(&mut self, call: impl FnOnce() -> Result<R>) -> Result<(R, Duration)> {
        let worked = thread_time();
        let begin = Instant::now();
        let result = call()?;
        let took = begin.elapsed();
        if took > LONG {
            let worked = thread_time() - worked;
            self.long.0 += 1;
            self.long.1 += u64::from(worked > LONG);
            self.long.2 = self.long.2.max(worked);
        }
        Ok((result, took))
    }

    /// The whole stream on an empty engine; answers go to `results` as well, and what is held
    /// meanwhile to `held`.
    pub(super) fn round(
        &mut self,
        args: &WindowArgs,
        stream: &mut dyn EventStream,
        engine: &mut dyn Engine,
        results: Option<&Path>,
        mut held: Option<Held<'_>>,
    ) -> Result<()> {
        let mut round = Round::new(args.query, results)?;
        let begin = Instant::now();
        loop {
            let batches = read(stream)?;
            let is_last = batches.last().is_none_or(|batch| batch.watermark == Time::MAX);
            for batch in batches {
                round.push(self, engine, &batch.events)?;
                held.as_mut().map_or(Ok(()), |held| held.before(batch.watermark))?;
                round.advance(self, engine, batch.watermark)?;
                held.as_mut().map_or(Ok(()), |held| held.after(batch.watermark))?;
            }
            if is_last {
                break;
            }
        }
        round.results.map_or(Ok(()), ResultsWriter::finish)?;
        held.map_or(Ok(()), Held::finish)?;
        if let Some(before) = self.checksum.filter(|before| *before != round.checksum) {
            let (name, sum) = (&self.name, round.checksum);
            let message = format!("{name} answers {sum:016x} and before that {before:016x}");
            return Err(Error::Wrong(message));
        }
        self.first.get_or_insert((round.time, begin.elapsed()));
        (self.events, self.answers) = (round.events, round.answers);
        self.checksum = Some(round.checksum);
        let seconds = round.time.as_secs_f64().max(1e-9);
        self.rates.push(round.events as f64 / seconds);
        Ok(())
    }

    /// Refuses answers that are not the other's.
    pub(super) fn agrees_with(&self, other: &Side) -> Result<()> {
        let what = |side: &Side| (side.checksum, side.answers);
        if what(self) == what(other) {
            return Ok(());
        }
        let say = |side: &Side| {
            let (sum, answers) = (side.checksum.unwrap_or(0), side.answers);
            format!("{} has {answers} of checksum {sum:016x}", side.name)
        };
        Err(Error::Wrong(format!("the answers differ: {}, {}", say(self), say(other))))
    }

    /// The least, the median and the most events per second.
    pub(super) fn rate(&self) -> (f64, f64, f64) {
        spread(self.rates.iter().copied())
    }

    /// Our rates over those of the other, in the same rounds.
    pub(super) fn ratio_to(&self, other: &Side) -> (f64, f64, f64) {
        spread(self.rates.iter().zip(&other.rates).map(|(our, their)| our / their))
    }

    pub(super) fn pushing(&self) -> Percentiles {
        self.pushing.percentiles()
    }

    pub(super) fn answering(&self) -> Percentiles {
        self.answering.percentiles()
    }

    /// Long calls, those of them that worked long, and the longest that one worked.
    pub(super) fn long(&self) -> (u64, u64, Duration) {
        self.long
    }

    /// Time in calls, and all time, of the first round.
    pub(super) fn first(&self) -> (Duration, Duration) {
        self.first.unwrap_or_default()
    }

    /// Calls that answered, over all rounds.
    pub(super) fn calls(&self) -> u64 {
        self.answering.count()
    }

    pub(super) fn report(&self, report: &mut Report) {
        report.set_rate(self.events, self.events as f64 / self.rate().1);
        report.set_checksum(self.checksum.unwrap_or(0));
        report.latency_ns = Some(self.answering());
        report.latencies = Some(self.answering.clone());
    }

    /// Adds it as the other that did the same.
    pub(super) fn report_versus(&self, report: &mut Report) {
        report.set_versus(&self.name, self.rate().1, Some(self.answering()));
        if let Some(versus) = &mut report.vs {
            versus.latencies = Some(self.answering.clone());
        }
    }
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

/// What came of one round so far.
struct Round {
    question: Question,
    events: u64,
    answers: u64,
    checksum: u64,
    time: Duration,
    results: Option<ResultsWriter>,
    told: Vec<Answer>,
}

impl Round {
    fn new(question: Question, results: Option<&Path>) -> Result<Self> {
        let columns = [&Answer::COLUMNS[..], question.columns()].concat();
        let results = results.map(|path| ResultsWriter::create(path, &columns)).transpose()?;
        let (time, told) = (Duration::ZERO, Vec::new());
        Ok(Round { question, events: 0, answers: 0, checksum: 0, time, results, told })
    }

    fn push(&mut self, side: &mut Side, engine: &mut dyn Engine, events: &[Event]) -> Result<()> {
        let ((), took) = side.timed(|| engine.push(events))?;
        side.pushing.record(nanos(took));
        self.time += took;
        self.events += events.len() as u64;
        Ok(())
    }

    fn advance(&mut self, side: &mut Side, engine: &mut dyn Engine, to: Time) -> Result<()> {
        let (mut is_done, mut goes_on) = (false, false);
        while !is_done {
            let told = &mut self.told;
            let took;
            (is_done, took) = side.timed(|| engine.advance(to, &mut |answer| told.push(answer)))?;
            self.time += took;
            if goes_on || !is_done || !self.told.is_empty() {
                side.answering.record(nanos(took));
            }
            goes_on = true;
            self.take_answers()?;
        }
        Ok(())
    }

    fn take_answers(&mut self) -> Result<()> {
        self.answers += self.told.len() as u64;
        self.checksum = self.checksum.wrapping_add(digest_of(&self.told));
        for answer in self.told.drain(..) {
            if let Some(results) = &mut self.results {
                results.row(answer.fields(self.question).into_iter().map(Some))?;
            }
        }
        Ok(())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
