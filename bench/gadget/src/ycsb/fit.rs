//! Workloads of YCSB as near to a trace as its parameters allow, after section 4 of the paper: as
//! many operations and keys, the same share of reads and updates, or of read-modify-writes, no
//! inserts and no deletes.

use serde::{Deserialize, Serialize};

use super::{Requests, Workload};
use crate::Result;
use crate::characterize::{Distance, Distances, Lifetimes, between, counts, unique};
use crate::trace::{Op, Recording};

/// Requests are read-modify-writes if so many of the writes follow a read of their key.
const MODIFIES: f64 = 0.9;

/// The workload with these requests that is nearest to a trace.
pub fn fitted(recording: &Recording, requests: Requests) -> Workload {
    let entries = recording.entries();
    let count = |op| entries.iter().filter(|entry| entry.op() == op).count() as f64;
    let writes = count(Op::Put) + count(Op::Merge);
    let reads = count(Op::Get) + count(Op::Seek) + count(Op::Next);
    let pairs = entries.windows(2).filter(|pair| {
        let writes = matches!(pair[1].op(), Op::Put | Op::Merge);
        pair[0].op() == Op::Get && writes && pair[0].key == pair[1].key
    });
    let pairs = pairs.count() as f64;
    let modifies = pairs >= MODIFIES * writes && writes > 0.0;
    let lone_reads = if modifies { (reads - writes).max(0.0) } else { reads };
    let total = lone_reads + writes;
    let bytes: u64 = entries.iter().map(|entry| u64::from(entry.bytes())).sum();
    let keys = recording.keys();
    let key_bytes: usize = (0..keys.len() as u32).map(|key| keys.get(key).len()).sum();
    Workload {
        reads: lone_reads / total.max(1.0),
        updates: if modifies { 0.0 } else { writes / total.max(1.0) },
        inserts: 0.0,
        modifies: if modifies { writes / total.max(1.0) } else { 0.0 },
        requests,
        records: keys.len().max(1) as u64,
        operations: total as u64,
        key_bytes: key_bytes.div_ceil(keys.len().max(1)).max(8),
        value_bytes: (bytes as f64 / writes.max(1.0)).round() as u32,
        seed: 42,
    }
}

/// How a trace and workloads fitted to it compare.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fitted {
    /// `trace`, or the requests.
    pub name: String,
    /// The distance of the distributions of keys to the trace's.
    pub distance: Distance,
    /// The mean stack distance.
    pub stack_mean: f64,
    /// Different sequences of 10 keys.
    pub sequences: u64,
    /// The same of the accesses in random order.
    pub sequences_shuffled: u64,
    /// Steps from the first to the last access of a key: p50, p90, p99.9 and the most.
    pub lifetimes: [u64; 4],
    /// The share of keys that are accessed once.
    pub once: f64,
}

/// A trace, and the six workloads that are fitted to it.
pub type Fit = Vec<Fitted>;

/// Compares a trace with the workloads of all requests.
///
/// # Errors
/// Numbers of the trace that no workload can have.
pub fn closest(recording: &Recording) -> Result<Fit> {
    let of_trace = counts(recording.entries().iter().map(|entry| entry.key));
    let mut rows = vec![of("trace", recording, &of_trace)];
    for requests in Requests::ALL {
        let workload = fitted(recording, requests).recording(false)?;
        rows.push(of(requests.text(), &workload, &of_trace));
    }
    Ok(rows)
}

fn of(name: &str, recording: &Recording, of_trace: &[u64]) -> Fitted {
    let mut keys: Vec<u32> = recording.entries().iter().map(|entry| entry.key).collect();
    let lifetimes = Lifetimes::of(keys.iter().copied(), recording.keys().len());
    let stack_mean = Distances::of(keys.iter().copied()).mean();
    let longest = |keys: &[u32]| unique(keys, 10).last().copied().unwrap_or(0);
    let sequences = longest(&keys);
    crate::characterize::shuffle(&mut keys);
    Fitted {
        name: name.to_owned(),
        distance: between(of_trace, &counts(recording.entries().iter().map(|entry| entry.key))),
        stack_mean,
        sequences,
        sequences_shuffled: longest(&keys),
        lifetimes: [0.5, 0.9, 0.999, 1.0].map(|share| lifetimes.at(share)),
        once: lifetimes.once(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Line;

    #[test]
    fn a_fitted_workload_has_the_traces_numbers() {
        let mut recording = Recording::default();
        for number in 0..3000u32 {
            let key = format!("{:010}", number % 50);
            for op in [Op::Get, Op::Put] {
                let line = Line { time: Some(0), op, key: key.as_bytes(), bytes: Some(16) };
                recording.push(line, 0);
            }
        }
        let workload = fitted(&recording, Requests::Sequential);
        assert_eq!((workload.modifies, workload.reads, workload.updates), (1.0, 0.0, 0.0));
        assert_eq!((workload.records, workload.operations), (50, 3000));
        assert_eq!((workload.key_bytes, workload.value_bytes), (10, 16));
        let rows = closest(&recording).unwrap();
        assert_eq!(rows.len(), 7);
        // The sequential one is the trace.
        assert_eq!((rows[4].name.as_str(), rows[4].distance.ks), ("sequential", 0.0));
        assert_eq!(rows[4].stack_mean, rows[0].stack_mean);
        assert!(rows[2].distance.ks > 0.1, "{:?}", rows[2]);
    }

    #[test]
    fn appends_without_reads_are_updates() {
        let mut recording = Recording::default();
        for op in [Op::Merge, Op::Merge, Op::Merge, Op::Get, Op::Delete] {
            recording.push(Line { time: Some(0), op, key: b"k", bytes: Some(10) }, 0);
        }
        let workload = fitted(&recording, Requests::Uniform);
        assert_eq!((workload.reads, workload.updates, workload.operations), (0.25, 0.75, 4));
    }
}
