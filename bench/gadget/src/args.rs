//! The command line: what is generated or read, the operator's numbers, memory and time.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::event::{Side, Stream, Watermarks};
use crate::generator::Generator;
use crate::operator::{Name, Options};
use crate::random::{Amount, KeyShape};
use crate::rows::{Columns, Names, Row, stream_of};
use crate::{Error, Result};

/// Where events come from.
#[derive(Args, Clone, Debug)]
pub struct InputArgs {
    /// Events in all
    #[arg(long, default_value_t = 100_000)]
    pub events: usize,
    /// Distinct keys
    #[arg(long, default_value_t = 1000)]
    pub keys: u64,
    /// How often each key comes: uniform, zipf:S, hotspot:KEYS:EVENTS, exponential, latest,
    /// sequential, empirical:FILE
    #[arg(long, default_value = "zipf:0.99")]
    pub dist: KeyShape,
    /// Units of event time between two events: constant:X, uniform:FROM:TO, exponential:MEAN,
    /// normal:MEAN:DEVIATION
    #[arg(long, default_value = "exponential:0.1")]
    pub gap: String,
    /// Bytes of an event in lists, 16 at least: as for --gap
    #[arg(long, default_value = "constant:16")]
    pub size: String,
    /// Percentage of events that are delayed
    #[arg(long, default_value_t = 0.0)]
    pub late: f64,
    /// A delayed event arrives at most so many units late
    #[arg(long, default_value_t = 3)]
    pub delay: i64,
    /// A watermark every so many units of time, or events: 1, 100events
    #[arg(long, default_value = "1", value_parser = watermarks)]
    pub watermark: Watermarks,
    /// Generators beside each other
    #[arg(long, default_value_t = 1)]
    pub generators: usize,
    /// Percentage of events of the right stream, for joins
    #[arg(long, default_value_t = 50.0)]
    pub right: f64,
    /// Percentage of left events that finish their key, for the continuous join
    #[arg(long, default_value_t = 10.0)]
    pub finish: f64,
    /// Seed of the generator
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Read events from `FILE:KEY:TIME` or `FILE:KEY:TIME:TYPE` instead, columns counted from 0, times in microseconds
    #[arg(long, value_parser = columns)]
    pub input: Option<Columns>,
    /// The right stream of a join, likewise
    #[arg(long, value_parser = columns, requires = "input")]
    pub input_right: Option<Columns>,
    /// Microseconds of a unit of time, for --input
    #[arg(long, default_value_t = 1_000_000)]
    pub unit_us: i64,
}

/// The operator's numbers, in units of event time.
#[derive(Args, Clone, Copy, Debug)]
pub struct OperatorArgs {
    /// Length of a window
    #[arg(long, default_value_t = 5)]
    pub length: i64,
    /// Distance of two sliding windows
    #[arg(long, default_value_t = 1)]
    pub slide: i64,
    /// Gap of a session
    #[arg(long, default_value_t = 120)]
    pub session_gap: i64,
    /// Lower bound of the interval join
    #[arg(long, default_value_t = -120, allow_hyphen_values = true)]
    pub lower: i64,
    /// Upper bound of the interval join
    #[arg(long, default_value_t = 180, allow_hyphen_values = true)]
    pub upper: i64,
    /// How long windows wait for late events
    #[arg(long, default_value_t = 0)]
    pub allowed_lateness: i64,
    /// Scan and purge all windows that are over by their prefix, instead of a get and a delete each
    #[arg(long)]
    pub purge: bool,
}

/// How an engine is run.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// Memory of the engine: data, caches and indexes
    #[arg(long, default_value = "256MiB")]
    pub memory: String,
    /// Seconds after which a run is cut
    #[arg(long, default_value_t = 15.0)]
    pub seconds: f64,
    /// Time one access of so many; 0 chooses by the engine
    #[arg(long, default_value_t = 0)]
    pub sample: u32,
    /// Bound the page cache: a memory cgroup of the engine's memory and so much more (needs root)
    #[arg(long)]
    pub bound: Option<String>,
    /// Directory for engines that write to storage; default: the system's for temporary files
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

impl InputArgs {
    /// The stream for an operator, of both streams if it joins them.
    ///
    /// # Errors
    /// Options and files that make no sense.
    pub fn stream(&self, operator: Name) -> Result<Stream> {
        let Some(input) = &self.input else {
            return self.generator(operator)?.stream();
        };
        if self.unit_us < 1 {
            return Err(Error::Usage("--unit-us: 1 is the least".to_owned()));
        }
        let mut names = Names::default();
        let left = input.read(self.unit_us, &mut names)?;
        let right = match &self.input_right {
            Some(right) if operator.joins() => right.read(self.unit_us, &mut names)?,
            None if operator.joins() => {
                return Err(Error::Usage(format!(
                    "{operator} joins two: --input-right is missing"
                )));
            }
            _ => Vec::new(),
        };
        // The size of generated elements is the size of these, if it is a constant.
        let bytes = match self.size.parse()? {
            Amount::Constant(bytes) => bytes.clamp(16.0, 65_535.0) as u16,
            _ => return Err(Error::Usage("--size: only constant:X with --input".to_owned())),
        };
        Ok(stream_of(&left, &right, self.watermark, bytes))
    }

    /// The rows of both streams for an operator, and the names of their keys.
    ///
    /// # Errors
    /// As [`stream`](Self::stream).
    pub fn rows(&self, operator: Name) -> Result<(Vec<Row>, Vec<Row>, Names)> {
        let mut names = Names::default();
        if let Some(input) = &self.input {
            let left = input.read(self.unit_us, &mut names)?;
            let right = self.input_right.iter().filter(|_| operator.joins());
            let right = right.map(|right| right.read(self.unit_us, &mut names)).next();
            return Ok((left, right.transpose()?.unwrap_or_default(), names));
        }
        let rows = |side| -> Result<Vec<Row>> {
            let of_side = |event: &&crate::event::Event| event.side == side;
            let stream = self.stream(operator)?;
            let row = |event: &crate::event::Event| Row {
                key: event.key,
                time: event.time,
                finishes: event.finishes,
            };
            Ok(stream.events.iter().filter(of_side).map(row).collect())
        };
        Ok((rows(Side::Left)?, rows(Side::Right)?, names))
    }

    /// The generator for an operator.
    ///
    /// # Errors
    /// Options that make no sense.
    pub fn generator(&self, operator: Name) -> Result<Generator> {
        let generator = Generator {
            events: self.events,
            keys: self.keys,
            shape: self.dist.clone(),
            gap: self.gap.parse()?,
            size: self.size.parse()?,
            delayed_percent: self.late,
            delay: self.delay,
            watermarks: self.watermark,
            generators: self.generators,
            right_percent: if operator.joins() { self.right } else { 0.0 },
            finish_percent: self.finish,
            seed: self.seed,
        };
        generator.check()?;
        Ok(generator)
    }

    /// The options as they were, but for the number of events.
    pub fn words(&self, events: usize) -> Vec<String> {
        let watermark = match self.watermark {
            Watermarks::Every(units) => units.to_string(),
            Watermarks::Events(events) => format!("{events}events"),
        };
        let mut words = Vec::new();
        let mut add = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        add("watermark", watermark);
        add("size", self.size.clone());
        if let Some(input) = &self.input {
            add("input", input.to_string());
            add("unit-us", self.unit_us.to_string());
            self.input_right.iter().for_each(|right| add("input-right", right.to_string()));
            return words;
        }
        add("events", events.to_string());
        add("keys", self.keys.to_string());
        add("dist", self.dist.to_string());
        add("gap", self.gap.clone());
        add("late", self.late.to_string());
        add("delay", self.delay.to_string());
        add("generators", self.generators.to_string());
        add("right", self.right.to_string());
        add("finish", self.finish.to_string());
        add("seed", self.seed.to_string());
        words
    }
}

impl OperatorArgs {
    /// As the operators take them.
    pub fn options(&self) -> Options {
        let OperatorArgs { length, slide, lower, upper, purge, .. } = *self;
        let (gap, allowed) = (self.session_gap, self.allowed_lateness);
        Options { length, slide, gap, lower, upper, allowed, purge }
    }

    /// The options as words.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let numbers = [
            ("length", self.length),
            ("slide", self.slide),
            ("session-gap", self.session_gap),
            ("lower", self.lower),
            ("upper", self.upper),
            ("allowed-lateness", self.allowed_lateness),
        ];
        for (name, value) in numbers {
            words.extend([format!("--{name}"), value.to_string()]);
        }
        words.extend(self.purge.then(|| "--purge".to_owned()));
        words
    }
}

impl EngineArgs {
    /// The memory in bytes.
    ///
    /// # Errors
    /// A size that cannot be read.
    pub fn memory_bytes(&self) -> Result<u64> {
        bytes("--memory", &self.memory)
    }

    /// What a cgroup around the engine has beyond its memory, if there is to be one.
    ///
    /// # Errors
    /// A size that cannot be read.
    pub fn bound_bytes(&self) -> Result<Option<u64>> {
        self.bound.as_deref().map(|more| bytes("--bound", more)).transpose()
    }

    /// The time limit.
    ///
    /// # Errors
    /// Not above 0.
    pub fn most(&self) -> Result<Duration> {
        match self.seconds > 0.0 && self.seconds < 1e6 {
            true => Ok(Duration::from_secs_f64(self.seconds)),
            false => Err(Error::Usage(format!("--seconds {}: must be above 0", self.seconds))),
        }
    }

    /// The options as words.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["--memory".to_owned(), self.memory.clone()];
        words.extend(["--seconds".to_owned(), self.seconds.to_string()]);
        words.extend(["--sample".to_owned(), self.sample.to_string()]);
        if let Some(more) = &self.bound {
            words.extend(["--bound".to_owned(), more.clone()]);
        }
        if let Some(dir) = &self.dir {
            words.extend(["--dir".to_owned(), dir.display().to_string()]);
        }
        words
    }
}

/// A size: bytes, or a number with KiB, MiB or GiB.
///
/// # Errors
/// [`Error::Usage`], naming the option.
pub fn bytes(option: &str, text: &str) -> Result<u64> {
    let units = [("KiB", 1u64 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)];
    let (digits, unit) = units
        .iter()
        .find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)))
        .unwrap_or((text, 1));
    let found = digits.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    found.ok_or_else(|| {
        Error::Usage(format!("{option} {text:?}: expected bytes, or a number with KiB, MiB, GiB"))
    })
}

fn watermarks(text: &str) -> Result<Watermarks> {
    let refuse = || Error::Usage(format!("watermark {text:?}: expected units of time or Nevents"));
    match text.strip_suffix("events") {
        Some(events) => {
            let (digits, thousands) = match events.strip_suffix('K') {
                Some(digits) => (digits, 1000),
                None => (events, 1),
            };
            let events = digits.parse::<usize>().map_err(|_| refuse())?;
            Ok(Watermarks::Events(events * thousands))
        }
        None => Ok(Watermarks::Every(text.parse().map_err(|_| refuse())?)),
    }
}

/// `FILE:KEY:TIME` or `FILE:KEY:TIME:TYPE`.
pub(crate) fn columns(text: &str) -> Result<Columns> {
    let refuse =
        || Error::Usage(format!("input {text:?}: expected FILE:KEY:TIME or FILE:KEY:TIME:TYPE"));
    let mut parts: Vec<&str> = text.split(':').collect();
    let mut numbers = Vec::new();
    while let Some(number) = parts.last().and_then(|part| part.parse::<usize>().ok()) {
        numbers.insert(0, number);
        parts.pop();
    }
    let path = PathBuf::from(parts.join(":"));
    match (&numbers[..], parts.is_empty()) {
        (&[key, time], false) => Ok(Columns { path, key, time, kind: None }),
        (&[key, time, kind], false) => Ok(Columns { path, key, time, kind: Some(kind) }),
        _ => Err(refuse()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_watermarks_and_columns_are_read_or_refused_by_name() {
        assert_eq!(bytes("--memory", "64MiB").unwrap(), 64 << 20);
        assert_eq!(bytes("--memory", "4096").unwrap(), 4096);
        assert!(bytes("--memory", "64MB").unwrap_err().to_string().contains("--memory \"64MB\""));
        assert_eq!(watermarks("3").unwrap(), Watermarks::Every(3));
        assert_eq!(watermarks("1Kevents").unwrap(), Watermarks::Events(1000));
        assert!(watermarks("x").is_err() && watermarks("xevents").is_err());
        let found = columns("/a:b/jobs.csv.zst:0:1:2").unwrap();
        assert_eq!(found.to_string(), "/a:b/jobs.csv.zst:0:1:2");
        assert_eq!((found.key, found.time, found.kind), (0, 1, Some(2)));
        assert!(columns("jobs.csv").is_err() && columns("0:1").is_err());
    }
}
