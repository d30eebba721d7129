//! Latency curves as CSV: for each latency, the share of operations that took at least as long.

use std::fs::File;
use std::path::Path;

use super::latency::Latencies;
use crate::{Error, Result};

/// A named set of latencies.
#[derive(Clone, Copy, Debug)]
pub struct Curve<'a> {
    /// Its label.
    pub name: &'a str,
    /// Its latencies.
    pub latencies: &'a Latencies,
}

/// Writes the points of `curves` as `name,latency_ns,share_at_least`.
pub fn write_ccdf_csv(path: &Path, curves: &[Curve<'_>]) -> Result<()> {
    let failed = |error: csv::Error| Error::io(path, "write", error.into());
    let file = File::create(path).map_err(|source| Error::io(path, "create", source))?;
    let mut writer = csv::Writer::from_writer(file);
    writer.write_record(["name", "latency_ns", "share_at_least"]).map_err(failed)?;
    for curve in curves {
        for (ns, share) in curve.latencies.ccdf() {
            let row = [curve.name.to_owned(), ns.to_string(), share.to_string()];
            writer.write_record(row).map_err(failed)?;
        }
    }
    writer.flush().map_err(|source| Error::io(path, "write", source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_written_as_csv() {
        let dir = tempfile::tempdir().unwrap();
        let mut latencies = Latencies::new();
        (1..10_000u64).for_each(|ns| latencies.record(ns * ns));
        let empty = Latencies::new();
        let curves = [
            Curve { name: "heap", latencies: &latencies },
            Curve { name: "nothing", latencies: &empty },
        ];
        let csv = dir.path().join("c.csv");
        write_ccdf_csv(&csv, &curves).unwrap();
        let text = std::fs::read_to_string(csv).unwrap();
        assert!(text.starts_with("name,latency_ns,share_at_least\nheap,1,1\n"), "{}", &text[..60]);
        assert!(text.lines().skip(1).all(|line| line.starts_with("heap,")));
    }
}
