//! Figures and plots of traces as one HTML file that needs nothing else.

use std::fmt::Write;

use super::Characterization;
use alluvium_reports::page::{self as html_page, escaped};
use alluvium_reports::{Line, logarithmic};

/// A page with the figures of some traces, each with its table and plots.
pub fn page(title: &str, traces: &[Characterization]) -> String {
    let mut html = html_page::begin(title);
    for figures in traces {
        let _ = writeln!(html, "<h2>{}</h2><table>", escaped(&figures.name));
        for (name, value) in figures.rows() {
            let (name, value) = (escaped(&name), escaped(&value));
            let _ = writeln!(html, "<tr><td>{name}</td><td>{value}</td></tr>");
        }
        let _ = writeln!(html, "</table>{}", plots(figures));
    }
    html + html_page::end()
}

fn plots(figures: &Characterization) -> String {
    let ratios = |of: fn(&(u64, f64, f64)) -> f64| {
        figures.stack.miss_ratios.iter().map(|point| (point.0 as f64, of(point))).collect()
    };
    let lines = [
        Line { name: "exact", points: ratios(|point| point.1) },
        Line { name: "SHARDS", points: ratios(|point| point.2) },
    ];
    let name = escaped(&figures.name);
    let mut svg = logarithmic(
        &format!("{name}: cache misses"),
        ["keys of an LRU cache", "miss ratio"],
        &lines,
    );
    let counts = |counts: &[u64]| {
        counts.iter().zip(1..).map(|(count, length)| (f64::from(length), *count as f64)).collect()
    };
    let lines = [
        Line { name: "the trace", points: counts(&figures.sequences) },
        Line { name: "shuffled", points: counts(&figures.sequences_shuffled) },
    ];
    svg += &logarithmic(
        &format!("{name}: different sequences"),
        ["length of a sequence", "sequences"],
        &lines,
    );
    let curve = figures.working_set.curve.iter();
    let points = curve.map(|(number, keys)| (*number as f64, *keys as f64)).collect();
    svg += &logarithmic(
        &format!("{name}: working set"),
        ["accesses so far", "keys that live"],
        &[Line { name: "keys", points }],
    );
    svg
}
