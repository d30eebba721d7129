//! The JSON report: one object per run, the same fields for every workload.
//!
//! Fields are only ever added. What a workload does not have is zero, or null where zero would be
//! a claim. The checksum is text, because 64-bit numbers do not survive every JSON reader.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use super::beside::BesideCheckpoints;
use super::latency::{Latencies, Percentiles};
use crate::{Error, Result};

/// Figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was run, such as `nexmark-q4`.
    pub workload: String,
    /// On what, such as `heap`.
    pub layout: String,
    /// Timely workers, or 1.
    pub workers: usize,
    /// Records or operations done.
    pub ops: u64,
    /// Wall time of those.
    pub seconds: f64,
    /// `ops / seconds`.
    pub ops_per_s: f64,
    /// Time per operation, or from an event's due time in an open loop; null if not measured.
    pub latency_ns: Option<Percentiles>,
    /// What an idle loop saw on this machine, beside which tails are to be read.
    pub noise_floor_ns: Option<Percentiles>,
    /// Latencies of an open loop and the share of events that took at least as long, thinned for plots.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ccdf_ns: Vec<(u64, f64)>,
    /// Memory of the run.
    pub memory: Memory,
    /// Storage traffic of the run.
    pub io: Io,
    /// Values encoded or decoded.
    pub codec_calls: u64,
    /// Seconds of encoding and decoding values, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codec_s: Option<f64>,
    /// Seconds of processor time of the process, where that of codecs is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor_s: Option<f64>,
    /// The states with their layouts, if the workload has named states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<StateFigures>,
    /// 16 hex digits that are equal for equal answers.
    pub checksum: String,
    /// Checkpoints of the run, if it was to make any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Pauses>,
    /// Rates of the stream without checkpoints and beside them, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside_checkpoints: Option<BesideCheckpoints>,
    /// The same work on something else, if there was such a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vs: Option<Versus>,
    /// All latencies, for plots; not in the file.
    #[serde(skip)]
    pub latencies: Option<Latencies>,
}

/// A state of a run, over all workers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StateFigures {
    /// Its name.
    pub name: String,
    /// Its layout.
    pub layout: String,
    /// Live keys at the end.
    pub live_keys: u64,
    /// Live bytes at the end.
    pub live_bytes: u64,
}

/// Memory, in bytes where not said otherwise.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Memory {
    /// What state was allowed.
    pub budget: u64,
    /// The most that was accounted to state at a time.
    pub peak_tracked: u64,
    /// The most memory the process had resident.
    pub peak_rss: u64,
    /// Live state at the end.
    pub live_bytes: u64,
    /// Live keys at the end, a count.
    pub live_keys: u64,
}

/// Checkpoints, and how long the input stood still for them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Pauses {
    /// How many were committed.
    pub committed: u64,
    /// How many were given up.
    pub abandoned: u64,
    /// The longest pause of any worker.
    pub pause_max_ns: u64,
    /// All pauses of the worker that stood still longest, added up.
    pub pause_sum_ns: u64,
}

impl Pauses {
    /// Adds those of another worker.
    pub fn merge(&mut self, other: Pauses) {
        self.committed = self.committed.max(other.committed);
        self.abandoned = self.abandoned.max(other.abandoned);
        self.pause_max_ns = self.pause_max_ns.max(other.pause_max_ns);
        self.pause_sum_ns = self.pause_sum_ns.max(other.pause_sum_ns);
    }
}

/// Storage traffic.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Io {
    /// Bytes written.
    pub bytes_written: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Read requests.
    pub reads: u64,
    /// Pages flushed.
    pub flushes: u64,
    /// Bytes of state read back before they were asked for.
    pub bytes_prefetched: u64,
    /// Of these, bytes that were dropped without having been used.
    pub bytes_prefetched_in_vain: u64,
    /// Bytes per second of what was spilled, in the time that calls took.
    pub spilled_per_s: f64,
    /// Bytes per second of as much written to the same directory, and nothing else.
    pub sequential_per_s: f64,
}

/// A peer's figures for the same work.
#[derive(Clone, Debug, Serialize)]
pub struct Versus {
    /// Which peer.
    pub name: String,
    /// Its rate.
    pub ops_per_s: f64,
    /// Our rate over its rate.
    pub ratio: f64,
    /// Its latencies.
    pub latency_ns: Option<Percentiles>,
    /// All of them, for plots; not in the file.
    #[serde(skip)]
    pub latencies: Option<Latencies>,
}

impl Report {
    /// A report with the rate computed and everything else still empty.
    pub fn new(workload: impl Into<String>, layout: impl Into<String>) -> Self {
        Report {
            workload: workload.into(),
            layout: layout.into(),
            workers: 1,
            ops: 0,
            seconds: 0.0,
            ops_per_s: 0.0,
            latency_ns: None,
            noise_floor_ns: None,
            ccdf_ns: Vec::new(),
            memory: Memory::default(),
            io: Io::default(),
            codec_calls: 0,
            codec_s: None,
            processor_s: None,
            states: Vec::new(),
            checksum: checksum_text(0),
            checkpoints: None,
            beside_checkpoints: None,
            vs: None,
            latencies: None,
        }
    }

    /// Sets operations, time and rate.
    pub fn set_rate(&mut self, ops: u64, seconds: f64) {
        (self.ops, self.seconds, self.ops_per_s) = (ops, seconds, rate(ops, seconds));
    }

    /// Sets the checksum.
    pub fn set_checksum(&mut self, checksum: u64) {
        self.checksum = checksum_text(checksum);
    }

    /// Adds the figures of a peer that did the same operations. Needs [`Report::set_rate`] before.
    pub fn set_versus(
        &mut self,
        name: impl Into<String>,
        ops_per_s: f64,
        latency_ns: Option<Percentiles>,
    ) {
        let ratio = if ops_per_s > 0.0 { self.ops_per_s / ops_per_s } else { 0.0 };
        self.vs = Some(Versus { name: name.into(), ops_per_s, ratio, latency_ns, latencies: None });
    }

    /// Writes the report to `path`, replacing what was there.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let failed = |source| Error::io(path, "write", source);
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        serde_json::to_writer_pretty(&mut file, self).map_err(|error| failed(error.into()))?;
        file.write_all(b"\n").and_then(|()| file.flush()).map_err(failed)
    }
}

/// A rate that is finite, as JSON needs it, also when no time passed.
fn rate(ops: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { ops as f64 / seconds } else { 0.0 }
}

fn checksum_text(checksum: u64) -> String {
    format!("{checksum:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_the_promised_fields() {
        let mut report = Report::new("rmw", "heap");
        report.set_rate(10, 0.5);
        report.set_checksum(0xab);
        report.latency_ns = Some(Percentiles { p50: 7, ..Percentiles::default() });
        report.set_versus("hashbrown", 40.0, None);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        report.write_json(&path).unwrap();
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(json["ops_per_s"], 20.0);
        assert_eq!(json["latency_ns"]["p50"], 7);
        assert_eq!(json["checksum"], "00000000000000ab");
        assert_eq!(json["vs"]["ratio"], 0.5);
        for (outer, inner) in [
            ("latency_ns", &["p50", "p99", "p99_9", "p99_99", "max"] as &[_]),
            ("memory", &["budget", "peak_tracked", "peak_rss", "live_bytes", "live_keys"]),
            ("io", &["bytes_written", "bytes_read", "reads", "flushes"]),
            ("io", &["bytes_prefetched", "bytes_prefetched_in_vain"]),
        ] {
            assert!(inner.iter().all(|name| json[outer][*name].is_u64()), "{outer}");
        }
    }

    #[test]
    fn a_report_that_cannot_be_written_names_its_file() {
        let message = Report::new("rmw", "heap").write_json(Path::new("/nowhere/at/all.json"));
        assert!(message.unwrap_err().to_string().contains("/nowhere/at/all.json"));
    }
}
