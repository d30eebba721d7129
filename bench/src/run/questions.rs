//! The part of the main job that asks questions of windows, of ours and of hashbrown maps in turns.

use std::path::Path;

use clap::Parser;

use super::main_job::aligned;
use super::window::window;
use crate::args::WindowArgs;
use crate::report::{Curve, Latencies, Percentiles, Report, write_ccdf_csv, write_ccdf_svg};
use crate::{Error, Result};

/// The questions of windows: their names, keys, windows, and the layout of ours. A thousand keys have
/// 300 events each in a window.
const QUESTIONS: [(&str, &str, &[&str], &str); 2] = [
    ("count", "10000", &["--length", "30s", "--slide", "1s"], "window-segments"),
    ("rank", "1000", &["--length", "30s"], "append-log"),
];

#[derive(Parser)]
struct WindowLine {
    #[command(flatten)]
    args: WindowArgs,
}

/// A question that ours and a peer have answered alike.
pub(super) struct Answered {
    name: &'static str,
    report: Report,
}

impl Answered {
    /// Latencies of both.
    fn curves(&self) -> Vec<(String, &Latencies)> {
        let Report { layout, latencies, vs, .. } = &self.report;
        let ours = latencies.as_ref().map(|all| (format!("{}, {layout}", self.name), all));
        let theirs = vs
            .as_ref()
            .and_then(|vs| Some((format!("{}, {}", self.name, vs.name), vs.latencies.as_ref()?)));
        ours.into_iter().chain(theirs).collect()
    }
}

/// Has ours and hashbrown answer all questions; fails if they do not answer alike.
pub(super) fn questions(out: &Path, events: u64) -> Result<Vec<Answered>> {
    let answer = |(name, keys, shape, layout): (&'static str, &str, &[&str], &str)| {
        let events = events.to_string();
        let words = ["window", "--query", name, "--keys", keys, "--events", &events];
        let rest = ["--layout", layout, "--vs", "hashbrown", "--rounds", "2"];
        let words = words.into_iter().chain(shape.iter().copied()).chain(rest);
        let line = WindowLine::try_parse_from(words);
        let WindowLine { args } = line.map_err(|error| Error::Usage(error.to_string()))?;
        let report = window(&args)?;
        report.write_json(&out.join(format!("window-{name}.json")))?;
        Ok(Answered { name, report })
    };
    QUESTIONS.into_iter().map(answer).collect()
}

/// Draws the latencies of calls that answer, beside their points.
pub(super) fn draw(out: &Path, windows: &[Answered]) -> Result<()> {
    let curves: Vec<_> = windows.iter().flat_map(Answered::curves).collect();
    let curves: Vec<_> = curves.iter().map(|(name, latencies)| Curve { name, latencies }).collect();
    write_ccdf_csv(&out.join("window-latency.csv"), &curves)?;
    let title = "Latency of calls that answer windows";
    write_ccdf_svg(&out.join("window-latency.svg"), title, &curves)?;
    Ok(())
}

/// The questions of windows: ours beside the peer's, latencies of calls that answer.
pub(super) fn window_table(all: &[Answered]) -> String {
    let us = |ns: u64| format!("{:.0}", ns as f64 / 1e3);
    let columns = [
        "windows", "by", "events/s", "ratio", "p50 us", "p99 us", "max us", "peak MiB", "checksum",
    ];
    let mut lines = vec![columns.map(String::from).to_vec()];
    for Answered { name, report } in all {
        let line = |by: &str, rate: f64, ratio: f64, latency: Percentiles, peak: String| {
            let numbers = [format!("{rate:.0}"), format!("{ratio:.2}")];
            let times = [us(latency.p50), us(latency.p99), us(latency.max)];
            let words = [(*name).to_owned(), by.to_owned()].into_iter().chain(numbers);
            words.chain(times).chain([peak, report.checksum.clone()]).collect()
        };
        let peak = format!("{:.1}", report.memory.peak_tracked as f64 / (1 << 20) as f64);
        let ratio = report.vs.as_ref().map_or(1.0, |vs| vs.ratio);
        let latency = report.latency_ns.unwrap_or_default();
        lines.push(line(&report.layout, report.ops_per_s, ratio, latency, peak));
        if let Some(vs) = &report.vs {
            let latency = vs.latency_ns.unwrap_or_default();
            lines.push(line(&vs.name, vs.ops_per_s, 1.0, latency, "-".to_owned()));
        }
    }
    aligned(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_in_the_table_and_in_the_plot() {
        let dir = tempfile::tempdir().unwrap();
        let answered = questions(dir.path(), 20_000).unwrap();
        let table = window_table(&answered);
        assert_eq!(table.lines().count(), 5, "{table}");
        draw(dir.path(), &answered).unwrap();
        let image = std::fs::read_to_string(dir.path().join("window-latency.svg")).unwrap();
        let points = std::fs::read_to_string(dir.path().join("window-latency.csv")).unwrap();
        for name in ["count, window-segments", "rank, append-log", "count, hashbrown"] {
            assert!(image.contains(name) && points.contains(name), "{name} is not drawn");
        }
        assert!(dir.path().join("window-rank.json").exists());
    }
}
