//! YCSB's workloads as traces: the core workloads A, D and F, and workloads fitted to a trace.
//!
//! The generators are written after YCSB's documentation: zipfian with 0.99 and scattered ranks,
//! latest as zipfian from the newest key back, a hotspot of a fifth of the keys with four fifths of
//! the requests, exponential with 95 % of the requests on six sevenths of the keys.

mod fit;

use std::fmt;
use std::str::FromStr;

use crate::access::digits;
use crate::random::{Random, Zipf, scattered};
use crate::trace::{Line, Op, Recording};
use crate::{Error, Result};

pub use fit::{Fit, Fitted, closest, fitted};

const ZIPFIAN: f64 = 0.99;
/// Keys of ten digits, and a factor that spreads numbers over them: no two get the same key.
const KEYS: u128 = 10_000_000_000;
const SPREAD: u128 = 7_654_321_237;

/// A distribution of requests over keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requests {
    /// Each key as often as any other.
    Uniform,
    /// A few keys get most requests.
    Zipfian,
    /// A fifth of the keys gets four fifths of the requests.
    Hotspot,
    /// One key after the other.
    Sequential,
    /// Fewer requests the higher the number of the key.
    Exponential,
    /// The keys that were inserted last get most requests.
    Latest,
}

impl Requests {
    /// All of them.
    pub const ALL: [Requests; 6] = [
        Requests::Uniform,
        Requests::Zipfian,
        Requests::Hotspot,
        Requests::Sequential,
        Requests::Exponential,
        Requests::Latest,
    ];

    /// As YCSB has it.
    pub fn text(self) -> &'static str {
        ["uniform", "zipfian", "hotspot", "sequential", "exponential", "latest"][self as usize]
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl FromStr for Requests {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Requests::ALL.into_iter().find(|requests| requests.text() == text).ok_or_else(|| {
            let known: Vec<_> = Requests::ALL.iter().map(|requests| requests.text()).collect();
            Error::Usage(format!("requests {text:?}: expected one of {}", known.join(", ")))
        })
    }
}

/// A workload: what is asked how often, of how many keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Share of reads.
    pub reads: f64,
    /// Share of updates.
    pub updates: f64,
    /// Share of inserts.
    pub inserts: f64,
    /// Share of read-modify-writes, which are a read and an update.
    pub modifies: f64,
    /// Which keys.
    pub requests: Requests,
    /// Keys that are there before.
    pub records: u64,
    /// Requests; a read-modify-write is one.
    pub operations: u64,
    /// Bytes of a key, 8 at least.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// The seed.
    pub seed: u64,
}

impl Workload {
    /// A core workload by its letter, as figure 12 has it: 1,000 keys of 8 bytes, values of 256.
    ///
    /// # Errors
    /// Another letter than A, B, C, D or F.
    pub fn core(letter: &str) -> Result<Self> {
        let usual = Workload {
            reads: 0.5,
            updates: 0.5,
            inserts: 0.0,
            modifies: 0.0,
            requests: Requests::Zipfian,
            records: 1000,
            operations: 2_000_000,
            key_bytes: 8,
            value_bytes: 256,
            seed: 42,
        };
        Ok(match letter {
            "A" | "a" => usual,
            "B" | "b" => Workload { reads: 0.95, updates: 0.05, ..usual },
            "C" | "c" => Workload { reads: 1.0, updates: 0.0, ..usual },
            "D" | "d" => {
                let (inserts, requests) = (0.05, Requests::Latest);
                Workload { reads: 0.95, updates: 0.0, inserts, requests, ..usual }
            }
            "F" | "f" => Workload { updates: 0.0, modifies: 0.5, ..usual },
            _ => {
                let message = format!("workload {letter:?}: expected A, B, C, D or F");
                return Err(Error::Usage(message));
            }
        })
    }

    /// Says which number makes no sense, if one does not.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the option.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: &str| Err(Error::Usage(message.to_owned()));
        match () {
            () if self.records == 0 => refuse("--records 0: there must be a key"),
            () if self.records + self.operations > u64::from(u32::MAX / 2) => {
                refuse("--records and --operations: at most 2 billion together")
            }
            () if self.value_bytes >= crate::trace::BYTES_MAX => {
                refuse("--value-bytes: 16777215 is the most")
            }
            () => Ok(()),
        }
    }

    /// Shows each access to `to`: the load, if `loads`, and the requests. The time of a request is
    /// its number.
    ///
    /// # Errors
    /// Those of [`check`](Self::check) and of `to`.
    pub fn run(&self, loads: bool, to: &mut dyn FnMut(&Line<'_>) -> Result<()>) -> Result<()> {
        self.check()?;
        let mut run = Run { workload: self, to, time: 0, key: Vec::new() };
        for record in 0..if loads { self.records } else { 0 } {
            run.line(Op::Put, record)?;
        }
        let mut draw = Draw::new(self.requests, self.records);
        let mut random = Random::new(self.seed);
        for _ in 0..self.operations {
            run.time += 1;
            let choice = random.unit();
            if choice < self.inserts {
                let key = draw.insert();
                run.line(Op::Put, key)?;
                continue;
            }
            let key = draw.next(&mut random);
            let choice = choice - self.inserts;
            if choice < self.modifies {
                run.line(Op::Get, key)?;
                run.line(Op::Put, key)?;
            } else if choice < self.modifies + self.updates {
                run.line(Op::Put, key)?;
            } else {
                run.line(Op::Get, key)?;
            }
        }
        Ok(())
    }

    /// The trace in memory.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub fn recording(&self, loads: bool) -> Result<Recording> {
        let mut recording = Recording::default();
        self.run(loads, &mut |line| {
            recording.push(*line, 0);
            Ok(())
        })?;
        Ok(recording)
    }
}

struct Run<'a, 'b> {
    workload: &'a Workload,
    to: &'b mut dyn FnMut(&Line<'_>) -> Result<()>,
    time: i64,
    key: Vec<u8>,
}

impl Run<'_, '_> {
    fn line(&mut self, op: Op, record: u64) -> Result<()> {
        // The order of inserts is not that of keys.
        let name = digits((u128::from(record) * SPREAD % KEYS) as u64);
        self.key.clear();
        self.key.resize(self.workload.key_bytes.saturating_sub(10), b'0');
        match self.workload.key_bytes {
            ..10 => self.key.extend_from_slice(&digits(record)[2..]),
            _ => self.key.extend_from_slice(&name),
        }
        let bytes = if op == Op::Put { self.workload.value_bytes } else { 0 };
        (self.to)(&Line { time: Some(self.time), op, key: &self.key, bytes: Some(bytes) })
    }
}

/// Draws keys.
struct Draw {
    requests: Requests,
    records: u64,
    zipf: Zipf,
    next: u64,
}

impl Draw {
    fn new(requests: Requests, records: u64) -> Self {
        Draw { requests, records, zipf: Zipf::new(records, ZIPFIAN), next: 0 }
    }

    fn insert(&mut self) -> u64 {
        self.records += 1;
        self.zipf = Zipf::new(self.records, ZIPFIAN);
        self.records - 1
    }

    fn next(&mut self, random: &mut Random) -> u64 {
        let records = self.records;
        match self.requests {
            Requests::Uniform => random.below(records),
            Requests::Zipfian => scattered(self.zipf.draw(random)) % records,
            Requests::Hotspot => {
                let hot = (records / 5).max(1);
                match random.unit() < 0.8 || hot == records {
                    true => random.below(hot),
                    false => hot + random.below(records - hot),
                }
            }
            Requests::Sequential => {
                let key = self.next % records;
                self.next = key + 1;
                key
            }
            Requests::Exponential => {
                let mean = records as f64 * (6.0 / 7.0) / 20f64.ln();
                loop {
                    let key = random.exponential(mean) as u64;
                    if key < records {
                        break key;
                    }
                }
            }
            Requests::Latest => records - self.zipf.draw(random).min(records),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(workload: &Workload) -> [f64; 2] {
        let recording = workload.recording(false).unwrap();
        let entries = recording.entries();
        let count = |op| entries.iter().filter(|entry| entry.op() == op).count() as f64;
        [count(Op::Get), count(Op::Put)].map(|count| count / entries.len() as f64)
    }

    #[test]
    fn core_workloads_have_their_mix() {
        for (letter, gets) in [("A", 0.5), ("B", 0.95), ("C", 1.0), ("D", 0.95), ("F", 2.0 / 3.0)] {
            let workload = Workload { operations: 50_000, ..Workload::core(letter).unwrap() };
            let [found, puts] = shares(&workload);
            assert!((found - gets).abs() < 0.01 && found + puts == 1.0, "{letter}: {found}");
        }
        assert!(Workload::core("E").unwrap_err().to_string().contains("\"E\""));
    }

    #[test]
    fn keys_are_as_long_as_asked_and_loaded_first() {
        let workload = Workload { operations: 1000, ..Workload::core("D").unwrap() };
        for key_bytes in [8, 10, 24] {
            let recording = Workload { key_bytes, ..workload }.recording(true).unwrap();
            assert!(recording.keys().get(0).len() == key_bytes);
            assert!(recording.entries()[..1000].iter().all(|entry| entry.op() == Op::Put));
            let keys = recording.keys().len();
            assert!((1020..1090).contains(&keys), "{keys}");
        }
        assert!(Workload { records: 0, ..workload }.recording(true).is_err());
    }

    #[test]
    fn requests_are_distributed_as_named() {
        let counts = |requests| {
            let (mut draw, mut random) = (Draw::new(requests, 1000), Random::new(1));
            let mut counts = vec![0u32; 1000];
            (0..100_000).for_each(|_| counts[draw.next(&mut random) as usize] += 1);
            counts
        };
        let sum = |counts: &[u32]| f64::from(counts.iter().sum::<u32>()) / 100_000.0;
        assert!((sum(&counts(Requests::Hotspot)[..200]) - 0.8).abs() < 0.01);
        assert!((sum(&counts(Requests::Exponential)[..857]) - 0.95).abs() < 0.03);
        assert!(counts(Requests::Sequential).iter().all(|count| *count == 100));
        assert!(counts(Requests::Uniform).iter().all(|count| count.abs_diff(100) < 60));
        let latest = counts(Requests::Latest);
        // The first of 1,000 ranks has 1 / 7.7 of the weight.
        assert!((sum(&latest[999..]) - 0.13).abs() < 0.01 && latest[999] > latest[998]);
        let mut zipfian = counts(Requests::Zipfian);
        zipfian.sort_unstable();
        assert!(sum(&zipfian[999..]) > 0.12);
        assert!("pareto".parse::<Requests>().is_err());
    }
}
