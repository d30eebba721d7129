//! What the main job shows: tables of at most 100 columns, and the same with plots as HTML.

use std::fmt::Write;
use std::path::Path;

use alluvium_reports::page::{self, escaped};
use alluvium_reports::{Bar, Environment, Line, Table, bars, digits, logarithmic};

use super::Done;
use super::queries::QueryRuns;
use super::questions::{Answered, Questions};
use super::runs::Runs;
use crate::Result;
use crate::report::{Curve, Latencies, Percentiles, write_ccdf_csv};

const TITLE: &str = "Alluvium: Nexmark and windows";
const RATE: &str = "K events/s";
const LATENCY: [&str; 2] = ["latency, ms", "share of calls that take at least as long"];

/// All that was measured.
pub(super) struct Shown<'a> {
    pub(super) queries: &'a [QueryRuns],
    pub(super) questions: &'a Questions,
    pub(super) done: Done,
}

impl Shown<'_> {
    /// The tables for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for query in self.queries {
            let (heading, table) = (heading(query), query_table(query).text());
            let _ = write!(text, "\n{heading}\n{table}{}\n", equal_rows(query));
        }
        let (heading, table) = (self.window_heading(), window_table(self.questions).text());
        let _ = write!(text, "\n{heading}\n{table}\n");
        for sentence in self.reading() {
            let _ = writeln!(text, "{sentence}");
        }
        text + "\n"
    }

    /// The report as one file.
    pub(super) fn html(&self, machine: &Environment) -> String {
        let mut html = page::begin(TITLE) + &page::machine(machine);
        let _ = writeln!(html, "<p>{}</p><ul>", escaped(&self.conclusion()));
        for sentence in self.reading() {
            let _ = writeln!(html, "<li>{}</li>", escaped(&sentence));
        }
        let _ = writeln!(html, "</ul>");
        for query in self.queries {
            let _ = writeln!(html, "<h2>{}</h2>", escaped(&heading(query)));
            html += &query_table(query).html();
            let _ = writeln!(html, "<p>{}</p>", escaped(&equal_rows(query)));
            html += &rates(query);
            html += &curves(&format!("{}: latency of batches", query.query), query_curves(query));
        }
        let _ = writeln!(html, "<h2>{}</h2>", escaped(&self.window_heading()));
        html += &window_table(self.questions).html();
        html += &window_rates(self.questions);
        html += &curves("Windows: latency of calls that answer", window_curves(self.questions));
        html + page::end()
    }

    /// One line on what was shown.
    pub(super) fn conclusion(&self) -> String {
        let ratios: Vec<_> = self.questions.answered.iter().map(Answered::ratio).collect();
        let ratios: Vec<_> = ratios.into_iter().map(|ratio| digits(ratio) + "x").collect();
        format!(
            "Equal results in memory, at 4x the memory and after a kill; windows at {} of hashbrown",
            ratios.join(", ")
        )
    }

    /// Writes the points of all latency plots as CSV.
    pub(super) fn write_points(&self, path: &Path) -> Result<()> {
        let named = |query: &'static str, curves: Vec<(String, Latencies)>| {
            curves.into_iter().map(move |(name, all)| (format!("{query} {name}"), all))
        };
        let of_queries =
            self.queries.iter().flat_map(|query| named(query.query, query_curves(query)));
        let all: Vec<_> = of_queries.chain(window_curves(self.questions)).collect();
        let curves: Vec<_> =
            all.iter().map(|(name, latencies)| Curve { name, latencies }).collect();
        write_ccdf_csv(path, &curves)
    }

    fn window_heading(&self) -> String {
        let events = digits(self.questions.events as f64);
        format!("Windows of 30 s beside hashbrown maps, {events} events")
    }

    /// Sentences on how to read the tables.
    fn reading(&self) -> Vec<String> {
        let Done { rounds, wanted, elapsed, limit } = self.done;
        let mut sentences = vec![format!(
            "{rounds} of {wanted} rounds in {} s; a row is the round of median rate, spread is that of all.",
            elapsed.as_secs()
        )];
        if let Some(limit) = limit.filter(|_| rounds < wanted) {
            sentences.push(format!(
                "Fewer rounds than {wanted}: this machine takes {:.0} s for one, and all may take {} s.",
                elapsed.as_secs_f64() / f64::from(rounds),
                limit.as_secs()
            ));
        }
        if let Some(noise) = self.noise() {
            sentences.push(format!(
                "An idle loop on this machine stood still for {} ms at p99.9, {} ms at most.",
                ms(noise.p99_9),
                ms(noise.max)
            ));
        }
        let killed =
            "The run `killed, restored` has the events after its checkpoint, in one round.";
        sentences.push(killed.to_owned());
        sentences
    }

    /// What an idle loop saw in the last round.
    fn noise(&self) -> Option<Percentiles> {
        self.questions.answered.last()?.ours.median().noise_floor_ns
    }
}

fn ms(ns: u64) -> String {
    digits(ns as f64 / 1e6)
}

fn mib(bytes: u64) -> String {
    digits(bytes as f64 / (1 << 20) as f64)
}

/// A whole number; its digits are all shown.
fn count(number: u64) -> String {
    if number < 100 { number.to_string() } else { digits(number as f64) }
}

fn thousands_per_s(rate: f64) -> String {
    digits(rate / 1e3)
}

fn percent(spread: Option<f64>) -> String {
    spread.map_or("-".to_owned(), digits)
}

fn times(latency: Option<Percentiles>) -> [String; 4] {
    let latency = latency.unwrap_or_default();
    [latency.p50, latency.p99, latency.p99_9, latency.max].map(ms)
}

fn heading(query: &QueryRuns) -> String {
    let events = digits(query.events as f64);
    format!("Nexmark {}, {}, {events} events", query.query, query.title)
}

fn equal_rows(query: &QueryRuns) -> String {
    let rows = count(query.rows as u64);
    format!("Every run ended with the same {rows} rows, checksum {}.", query.checksum())
}

fn query_table(query: &QueryRuns) -> Table {
    let mut table = Table::new(&[
        ("run", ""),
        ("memory", "MiB"),
        ("state", "MiB"),
        ("events", "K/s"),
        ("spread", "%"),
        ("p50", "ms"),
        ("p99", "ms"),
        ("p99.9", "ms"),
        ("longest", "ms"),
        ("written", "MiB"),
        ("reads", ""),
    ]);
    for runs in &query.runs {
        let report = runs.median();
        let mut cells = vec![
            runs.name.to_owned(),
            mib(report.memory.budget),
            mib(report.memory.live_bytes),
            thousands_per_s(report.ops_per_s),
            percent(runs.spread_percent()),
        ];
        cells.extend(times(report.latency_ns));
        cells.extend([mib(report.io.bytes_written), count(report.io.reads)]);
        table.row(cells);
    }
    table
}

fn window_table(questions: &Questions) -> Table {
    let mut table = Table::new(&[
        ("question", ""),
        ("answered by", ""),
        ("events", "K/s"),
        ("spread", "%"),
        ("ratio", ""),
        ("p50", "ms"),
        ("p99", "ms"),
        ("p99.9", "ms"),
        ("longest", "ms"),
        ("memory", "MiB"),
    ]);
    for answered in &questions.answered {
        let report = answered.ours.median();
        let first = |by: &str, rate: f64, spread: Option<f64>, ratio: f64| {
            let words = [answered.title.to_owned(), by.to_owned(), thousands_per_s(rate)];
            words.into_iter().chain([percent(spread), digits(ratio)])
        };
        let spread = answered.ours.spread_percent();
        let ours = first(answered.layout, report.ops_per_s, spread, answered.ratio());
        let memory = mib(report.memory.peak_tracked);
        table.row(ours.chain(times(report.latency_ns)).chain([memory]).collect());
        let (least, median, most) = answered.their_rates();
        let spread = spread.map(|_| 100.0 * (most - least) / median);
        let latency = report.vs.as_ref().and_then(|vs| vs.latency_ns);
        let theirs = first("hashbrown", median, spread, 1.0).chain(times(latency));
        table.row(theirs.chain(["-".to_owned()]).collect());
    }
    table
}

fn bar<'a>(name: &'a str, rate: f64, (least, most): (f64, f64)) -> Bar<'a> {
    Bar { name, value: rate / 1e3, spread: (least / 1e3, most / 1e3) }
}

fn rates(query: &QueryRuns) -> String {
    let of = |runs: &'_ Runs| (runs.name, runs.median().ops_per_s, runs.extremes());
    let all: Vec<_> = query.runs.iter().map(of).collect();
    let all: Vec<_> = all.iter().map(|(name, rate, ends)| bar(name, *rate, *ends)).collect();
    bars(&format!("{}: rate", query.query), RATE, &all)
}

fn window_rates(questions: &Questions) -> String {
    let both = |answered: &Answered| {
        let (least, median, most) = answered.their_rates();
        let ours = &answered.ours;
        let title = short_title(answered);
        [
            (format!("{title}, {}", answered.layout), ours.median().ops_per_s, ours.extremes()),
            (format!("{title}, hashbrown"), median, (least, most)),
        ]
    };
    let all: Vec<_> = questions.answered.iter().flat_map(both).collect();
    let all: Vec<_> = all.iter().map(|(name, rate, ends)| bar(name, *rate, *ends)).collect();
    bars("Windows: rate", RATE, &all)
}

/// What fits beside a plot.
fn short_title(answered: &Answered) -> &'static str {
    answered.title.split(' ').next().unwrap_or_default()
}

fn query_curves(query: &QueryRuns) -> Vec<(String, Latencies)> {
    let named = |runs: &Runs| Some((runs.name.to_owned(), runs.median().latencies.clone()?));
    query.runs.iter().filter_map(named).collect()
}

fn window_curves(questions: &Questions) -> Vec<(String, Latencies)> {
    let both = |answered: &Answered| {
        let report = answered.ours.median();
        let theirs = report.vs.as_ref().and_then(|vs| vs.latencies.clone());
        let title = short_title(answered);
        let ours =
            report.latencies.clone().map(|all| (format!("{title}, {}", answered.layout), all));
        ours.into_iter().chain(theirs.map(|all| (format!("{title}, hashbrown"), all)))
    };
    questions.answered.iter().flat_map(both).collect()
}

fn curves(title: &str, all: Vec<(String, Latencies)>) -> String {
    let line = |(name, latencies): &'_ (String, Latencies)| {
        let points = latencies.ccdf().into_iter();
        (name.clone(), points.map(|(ns, share)| (ns.max(1) as f64 / 1e6, share)).collect())
    };
    let points: Vec<(String, Vec<(f64, f64)>)> = all.iter().map(line).collect();
    let lines: Vec<_> = points.into_iter().map(|(name, points)| (name, thinned(points))).collect();
    let lines: Vec<_> =
        lines.iter().map(|(name, points)| Line { name, points: points.clone() }).collect();
    logarithmic(title, LATENCY, &lines)
}

/// Leaves points out that a plot would draw onto each other.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let last = points.len().saturating_sub(1);
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for (number, point) in points.into_iter().enumerate() {
        let is_far =
            kept.last().is_none_or(|before| (point.0 / before.0).max(before.1 / point.1) > 1.02);
        if is_far || number == last {
            kept.push(point);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::Report;

    fn report(name: &str) -> Report {
        let mut report = Report::new(name, "heap");
        report.set_rate(12_345_678, 1.0);
        report.memory.budget = 99_999 << 20;
        report.memory.peak_tracked = 99_999 << 20;
        report.memory.live_bytes = 99_999 << 20;
        report.io.bytes_written = 99_999 << 20;
        report.io.reads = 99_999;
        let mut latencies = Latencies::new();
        [1_000, 99_900_000, 99_900_000_000].iter().for_each(|ns| latencies.record(*ns));
        report.latency_ns = Some(latencies.percentiles());
        report.noise_floor_ns = report.latency_ns;
        report.set_versus("hashbrown", 1e6, report.latency_ns);
        report.vs.as_mut().unwrap().latencies = Some(latencies.clone());
        report.latencies = Some(latencies);
        report
    }

    #[test]
    fn tables_of_large_numbers_fit_and_the_page_loads_nothing() {
        let out = Path::new("out");
        let mut query = QueryRuns::new(out, ("q4", "average price of a category"), 4_000_000, None);
        query.runs.iter_mut().for_each(|runs| runs.reports.extend([report("q4"), report("q4")]));
        let mut questions = Questions::new(out, 1_000_000, 10_000);
        let all = questions.answered.iter_mut();
        all.for_each(|answered| answered.ours.reports.extend([report("w"), report("w")]));
        let (elapsed, limit) = (Duration::from_secs(99), Some(Duration::from_secs(60)));
        let done = Done { rounds: 2, wanted: 3, elapsed, limit };
        let shown = Shown { queries: &[query], questions: &questions, done };
        let text = shown.text();
        for line in text.lines().chain(shown.conclusion().lines()) {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        assert!(text.contains("K/s") && text.contains("Fewer rounds than 3"), "{text}");
        let html = shown.html(&Environment::default());
        for outside in ["http", "src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert_eq!(html.matches("<svg ").count(), 4);
        for axis in ["K events/s", "latency, ms, logarithmic", "share of calls"] {
            assert!(html.contains(axis), "{axis}");
        }
    }
}
