//! What the accesses of a trace look like: the figures of the Gadget paper's section 3.
//!
//! All of it takes some seconds for 10 million accesses, and at most 44 bytes an access and 60 a
//! key beside the trace itself.

mod distance;
mod html;
mod sequences;
mod shards;
mod stack;
mod working;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::event::Stream;
use crate::random::Random;
use crate::trace::{Op, Recording};

pub use distance::{Distance, between, counts};
pub use html::page;
pub use sequences::unique;
pub use shards::Shards;
pub use stack::{Distances, Stack};
pub use working::{Lifetimes, Working};

/// The longest sequences that are counted.
const LENGTHS: usize = 10;
/// Keys of the sampled estimate.
const SAMPLED_KEYS: usize = 8192;
/// Points of a curve.
const POINTS: usize = 200;

/// The figures of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Characterization {
    /// Name of the trace.
    pub name: String,
    /// How many accesses there are.
    pub accesses: u64,
    /// How many keys.
    pub keys: u64,
    /// Accesses of each operation.
    pub operations: BTreeMap<String, u64>,
    /// The input, where it is known.
    pub input: Option<Input>,
    /// Stack distances of the accesses, in their order and shuffled.
    pub stack: StackFigures,
    /// Different sequences of keys by their length, from 1.
    pub sequences: Vec<u64>,
    /// The same of the accesses in random order.
    pub sequences_shuffled: Vec<u64>,
    /// Keys that live.
    pub working_set: WorkingFigures,
    /// Steps from the first to the last access of a key.
    pub lifetimes: LifetimeFigures,
    /// The distance to another trace.
    pub other: Option<(String, Distance)>,
    /// How long it took to find out.
    pub seconds: f64,
}

/// How a trace stands to the events that it was made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// Events.
    pub events: u64,
    /// Their keys.
    pub keys: u64,
    /// Accesses per event.
    pub event_amplification: f64,
    /// State keys per key of an event.
    pub key_amplification: f64,
    /// The distance of the two distributions of keys.
    pub distance: Distance,
}

/// Figures of stack distances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StackFigures {
    /// Accesses that are the first of their key.
    pub first: u64,
    /// The mean.
    pub mean: f64,
    /// The mean of the accesses in random order.
    pub mean_shuffled: f64,
    /// The median.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// Keys of an LRU cache, the share of accesses that it does not have, exactly and estimated.
    pub miss_ratios: Vec<(u64, f64, f64)>,
    /// The largest difference of the two.
    pub estimate_error_max: f64,
    /// The mean difference.
    pub estimate_error_mean: f64,
    /// The share of keys that the estimate looked at.
    pub estimate_rate: f64,
    /// Bytes that the estimate took.
    pub estimate_bytes: u64,
    /// Bytes that the exact distances took.
    pub exact_bytes: u64,
}

/// Figures of the working set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkingFigures {
    /// The most keys at a time.
    pub keys_max: u64,
    /// The mean of samples at every hundredth access.
    pub keys_mean: f64,
    /// Keys at the end.
    pub keys_left: u64,
    /// The most bytes of values at a time.
    pub bytes_max: u64,
    /// Accesses so far and the most keys.
    pub curve: Vec<(u64, u64)>,
}

/// Figures of how long keys are used, in accesses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LifetimeFigures {
    /// The median.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99.9 %.
    pub p99_9: u64,
    /// The longest.
    pub max: u64,
    /// The share of keys that are accessed once.
    pub once: f64,
}

impl Characterization {
    /// Of a trace; `input` is what it was made of, if that is known.
    pub fn of(name: &str, recording: &Recording, input: Option<&Stream>) -> Self {
        let began = Instant::now();
        let entries = recording.entries();
        let mut keys: Vec<u32> = entries.iter().map(|entry| entry.key).collect();
        let mut figures = Characterization {
            name: name.to_owned(),
            accesses: entries.len() as u64,
            keys: recording.keys().len() as u64,
            operations: operations(recording),
            input: input.map(|stream| of_input(stream, &keys)),
            stack: of_stack(&keys),
            sequences: unique(&keys, LENGTHS),
            working_set: of_working(recording),
            lifetimes: of_lifetimes(&keys, recording.keys().len()),
            ..Characterization::default()
        };
        shuffle(&mut keys);
        figures.stack.mean_shuffled = Distances::of(keys.iter().copied()).mean();
        figures.sequences_shuffled = unique(&keys, LENGTHS);
        figures.seconds = began.elapsed().as_secs_f64();
        figures
    }

    /// Adds the distance to another trace.
    pub fn compare(&mut self, recording: &Recording, name: &str, other: &Recording) {
        let of = |recording: &Recording| counts(recording.entries().iter().map(|entry| entry.key));
        self.other = Some((name.to_owned(), between(&of(recording), &of(other))));
    }

    /// The share of an operation.
    pub fn share(&self, op: Op) -> f64 {
        let count = self.operations.get(op.text()).copied().unwrap_or(0);
        count as f64 / self.accesses.max(1) as f64
    }

    /// The figures as a table of names and values.
    pub fn rows(&self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
        row("accesses", self.accesses.to_string());
        row("keys", self.keys.to_string());
        for (op, count) in &self.operations {
            row(&format!("share of {op}"), format!("{:.3}", *count as f64 / self.accesses as f64));
        }
        if let Some(input) = &self.input {
            row("events, and their keys", format!("{}, {}", input.events, input.keys));
            row("accesses per event", format!("{:.2}", input.event_amplification));
            row("state keys per event key", format!("{:.2}", input.key_amplification));
            row("distance to the input", told(&input.distance));
        }
        if let Some((name, distance)) = &self.other {
            row(&format!("distance to {name}"), told(distance));
        }
        self.rows_of_locality(&mut row);
        row("seconds that this took", format!("{:.1}", self.seconds));
        rows
    }

    fn rows_of_locality(&self, row: &mut dyn FnMut(&str, String)) {
        let (stack, working, life) = (&self.stack, &self.working_set, &self.lifetimes);
        row("stack distance, mean", format!("{:.2}", stack.mean));
        row("the same shuffled", format!("{:.2}", stack.mean_shuffled));
        let StackFigures { p50, p90, p99, .. } = stack;
        row("stack distance, p50, p90, p99", format!("{p50}, {p90}, {p99}"));
        row(
            "miss ratios estimated by SHARDS",
            format!(
                "{:.4} off at most, {:.4} in the mean, from {:.2} % of the keys in {} KiB; exact ones in {} KiB",
                stack.estimate_error_max,
                stack.estimate_error_mean,
                stack.estimate_rate * 100.0,
                stack.estimate_bytes >> 10,
                stack.exact_bytes >> 10
            ),
        );
        let sequences = |counts: &[u64]| {
            let words: Vec<_> = counts.iter().map(u64::to_string).collect();
            words.join(", ")
        };
        row("different sequences of 1 to 10 keys", sequences(&self.sequences));
        row("the same shuffled", sequences(&self.sequences_shuffled));
        row(
            "working set in keys: most, mean, at the end",
            format!("{}, {:.0}, {}", working.keys_max, working.keys_mean, working.keys_left),
        );
        row("working set in bytes of values, most", working.bytes_max.to_string());
        row(
            "time to live in accesses: p50, p90, p99.9, most",
            format!("{}, {}, {}, {}", life.p50, life.p90, life.p99_9, life.max),
        );
        row("keys accessed once", format!("{:.1} %", life.once * 100.0));
    }

    /// The table as text.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.name);
        for (name, value) in self.rows() {
            let _ = writeln!(text, "  {name:48} {value}");
        }
        text
    }
}

fn told(distance: &Distance) -> String {
    let Distance { ks, p, wasserstein, n, m } = distance;
    format!("D {ks:.3}, p {p:.3}, Wasserstein {wasserstein:.1}, of {n} and {m}")
}

fn operations(recording: &Recording) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for entry in recording.entries() {
        *counts.entry(entry.op()).or_insert(0) += 1;
    }
    counts.into_iter().map(|(op, count)| (op.text().to_owned(), count)).collect()
}

fn of_input(stream: &Stream, keys: &[u32]) -> Input {
    let events = counts(stream.events.iter().map(|event| event.key));
    let states = counts(keys.iter());
    Input {
        events: stream.events.len() as u64,
        keys: events.len() as u64,
        event_amplification: keys.len() as f64 / stream.events.len().max(1) as f64,
        key_amplification: states.len() as f64 / events.len().max(1) as f64,
        distance: between(&events, &states),
    }
}

fn of_stack(keys: &[u32]) -> StackFigures {
    let (mut stack, mut distances) = (Stack::default(), Distances::default());
    keys.iter().for_each(|key| distances.add(stack.access(*key)));
    let mut shards = Shards::new(SAMPLED_KEYS);
    keys.iter().for_each(|key| shards.access(u64::from(*key)));
    let most = keys.iter().max().map_or(0, |key| u64::from(*key) + 1);
    let powers = (0..40).flat_map(|power| [1 << power, 3 << power >> 1]);
    let mut sizes: Vec<u64> = powers.take_while(|size| *size < most * 2).collect();
    sizes.dedup();
    let exact = distances.miss_ratios(&sizes);
    let estimate = shards.miss_ratios(&sizes);
    let errors = || exact.iter().zip(&estimate).map(|(one, two)| (one - two).abs());
    let curves = sizes.iter().zip(exact.iter().zip(&estimate));
    StackFigures {
        first: distances.first,
        mean: distances.mean(),
        mean_shuffled: 0.0,
        p50: distances.at(0.5),
        p90: distances.at(0.9),
        p99: distances.at(0.99),
        miss_ratios: curves.map(|(size, (one, two))| (*size, *one, *two)).collect(),
        estimate_error_max: errors().fold(0.0, f64::max),
        estimate_error_mean: errors().sum::<f64>() / sizes.len().max(1) as f64,
        estimate_rate: shards.rate(),
        estimate_bytes: shards.bytes(),
        exact_bytes: stack.bytes(),
    }
}

fn of_working(recording: &Recording) -> WorkingFigures {
    let working = Working::of(recording.entries(), recording.keys().len());
    WorkingFigures {
        keys_max: working.keys_max,
        keys_mean: working.mean(),
        keys_left: working.keys_left,
        bytes_max: working.bytes_max,
        curve: working.curve(POINTS),
    }
}

fn of_lifetimes(accessed: &[u32], keys: usize) -> LifetimeFigures {
    let lifetimes = Lifetimes::of(accessed.iter().copied(), keys);
    LifetimeFigures {
        p50: lifetimes.at(0.5),
        p90: lifetimes.at(0.9),
        p99_9: lifetimes.at(0.999),
        max: lifetimes.at(1.0),
        once: lifetimes.once(),
    }
}

/// Puts keys into a random order, the same each time.
pub(crate) fn shuffle(keys: &mut [u32]) {
    let mut random = Random::new(42);
    for at in (1..keys.len()).rev() {
        keys.swap(at, random.below(at as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Line;

    #[test]
    fn a_trace_of_a_few_lines_has_the_figures_computed_by_hand() {
        let mut recording = Recording::default();
        for (op, key) in
            [(Op::Get, "a"), (Op::Put, "a"), (Op::Get, "b"), (Op::Put, "b"), (Op::Get, "a")]
        {
            let line = Line { time: Some(0), op, key: key.as_bytes(), bytes: Some(8) };
            recording.push(line, 0);
        }
        recording.push(Line { time: Some(0), op: Op::Delete, key: b"a", bytes: Some(0) }, 0);
        let found = Characterization::of("small", &recording, None);
        assert_eq!((found.accesses, found.keys), (6, 2));
        assert_eq!(found.share(Op::Get), 0.5);
        // a: 0; b: 0; a again after b: 1; then 0.
        assert_eq!((found.stack.mean, found.stack.first), (0.25, 2));
        // aa, ab, bb, ba.
        assert_eq!(found.sequences[..3], [2, 4, 4]);
        let working = &found.working_set;
        assert_eq!((working.keys_max, working.keys_left, working.bytes_max), (2, 1, 16));
        assert_eq!((found.lifetimes.p50, found.lifetimes.max), (1, 5));
        assert!(found.text().contains("share of get"), "{}", found.text());
        let again: Characterization =
            serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(again.sequences, found.sequences);
    }
}
