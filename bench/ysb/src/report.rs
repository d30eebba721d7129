//! The report of a suite, as Markdown and as one HTML file.

use std::fmt::Write;

use crate::cell::{Cell, Outcome, TablePlace};
use crate::job::Figures;

/// Rows joined a second.
pub fn rows_a_second(figures: &Figures) -> f64 {
    figures.joined as f64 / figures.stream_seconds.max(1e-9)
}

/// GETs sent a second.
fn gets_a_second(figures: &Figures) -> f64 {
    figures.gets as f64 / figures.stream_seconds.max(1e-9)
}

/// One placement with the medians of its runs.
struct Row<'a> {
    cell: &'a Cell,
    runs: Vec<&'a Outcome>,
}

impl Row<'_> {
    fn of(outcomes: &[Outcome]) -> Vec<Row<'_>> {
        let mut rows: Vec<Row<'_>> = Vec::new();
        for outcome in outcomes {
            let command = outcome.cell.command();
            match rows.iter_mut().find(|row| row.cell.command() == command) {
                Some(row) => row.runs.push(outcome),
                None => rows.push(Row { cell: &outcome.cell, runs: vec![outcome] }),
            }
        }
        rows
    }

    fn values(&self, of: impl Fn(&Figures) -> f64) -> Vec<f64> {
        let mut values: Vec<f64> =
            self.runs.iter().filter_map(|run| run.figures.as_ref()).map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    fn median(&self, of: impl Fn(&Figures) -> f64) -> Option<f64> {
        let values = self.values(of);
        let (low, high) =
            (values.get((values.len().max(1) - 1) / 2)?, values.get(values.len() / 2)?);
        Some((low + high) / 2.0)
    }

    fn rate(&self) -> Option<f64> {
        self.median(rows_a_second)
    }

    /// Look-ups a second, where rows that share a question count once, as the poster's do not share.
    fn look_ups(&self) -> Option<f64> {
        match self.is_external() {
            true => self.median(gets_a_second),
            false => self.rate(),
        }
    }

    fn is_external(&self) -> bool {
        !matches!(self.cell.place, TablePlace::Shared | TablePlace::Partitioned)
    }

    fn is(&self, place: TablePlace, workers: usize, delay_us: u64, pipeline: usize) -> bool {
        let Cell { place: p, workers: w, delay_us: d, pipeline: n, cache_bytes, ads, .. } =
            self.cell;
        (*p, *w, *d, *n, *cache_bytes, *ads) == (place, workers, delay_us, pipeline, 0, 1_000)
            && !self.cell.again
            && !self.cell.skew
            && self.cell.moves_every == 0
            && self.cell.zipf == 0.0
    }

    /// The second of two runs of the same, if this is the first.
    fn twin<'r>(&self, rows: &'r [Row<'r>]) -> Option<&'r Row<'r>> {
        let again = Cell { again: true, ..self.cell.clone() }.command();
        let twin = rows.iter().find(|row| row.cell.command() == again);
        twin.filter(|_| !self.cell.again)
    }
}

fn name(cell: &Cell) -> String {
    let mut name = match cell.place {
        TablePlace::Shared => "in process, shared table".to_owned(),
        TablePlace::Partitioned => "in process, divided as the stream".to_owned(),
        TablePlace::Socket => "Redis, Unix socket".to_owned(),
        TablePlace::Loopback => "Redis, loopback".to_owned(),
        TablePlace::Delayed => format!("Redis behind {} us", cell.delay_us),
        TablePlace::Shards => format!("Redis, 3 shards behind {} us, keys anywhere", cell.delay_us),
        TablePlace::SlotShards => "Redis, 3 shards, stream divided by their slots".to_owned(),
        TablePlace::Replicas => "Redis, 3 replicas, each worker its own".to_owned(),
    };
    let in_redis = !matches!(cell.place, TablePlace::Shared | TablePlace::Partitioned);
    if in_redis {
        let how = if cell.pipeline == 1 { ", single GETs" } else { ", pipelined by 64" };
        name.push_str(how);
    }
    if cell.cache_bytes > 0 {
        let _ = write!(name, ", cache of {} KiB", cell.cache_bytes >> 10);
    }
    if cell.ads != 1_000 || cell.zipf != 0.0 {
        let _ = write!(name, ", {} ads, Zipf {}", cell.ads, cell.zipf);
    }
    if cell.skew {
        name.push_str(", times skewed, some late");
    }
    if let Some(moves) = cell.events.checked_div(cell.moves_every) {
        let _ = write!(name, ", {} key groups move meanwhile", moves.saturating_sub(1));
    }
    if cell.again {
        name.push_str(", the same again");
    }
    name
}

/// Three digits.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "K"),
        v => (v, ""),
    };
    match value {
        v if v >= 99.95 => format!("{v:.0}{unit}"),
        v if v >= 9.995 => format!("{v:.1}{unit}"),
        v => format!("{v:.2}{unit}"),
    }
}

/// The poster's comparisons: a name, its figure, and ours.
fn comparisons(rows: &[Row<'_>]) -> Vec<[String; 4]> {
    let rate = |place, workers, delay_us| {
        rows.iter().find(|row| row.is(place, workers, delay_us, 1)).and_then(Row::look_ups)
    };
    let mut found = Vec::new();
    let mut compare = |setup: &str, poster: &str, what: &str, pair: (Option<f64>, Option<f64>)| {
        let ours = match pair {
            (Some(near), Some(far)) if far > 0.0 => format!("{:.2}x", near / far),
            _ => "not measured".to_owned(),
        };
        found.push([setup.to_owned(), poster.to_owned(), what.to_owned(), ours]);
    };
    for (workers, poster) in [(1, "up to 1.77x"), (3, "up to 1.77x")] {
        let setup = format!("single-{workers}");
        let near = rate(TablePlace::Loopback, workers, 0);
        let far = rate(TablePlace::Delayed, workers, 100);
        compare(&setup, poster, "Redis on the loopback over Redis behind 100 us", (near, far));
        let inside = rate(TablePlace::Partitioned, workers, 0);
        compare(&setup, "", "in process, divided, over Redis on the loopback", (inside, near));
    }
    let far = rate(TablePlace::Shards, 3, 100);
    let replicas = rate(TablePlace::Replicas, 3, 0);
    let slots = rate(TablePlace::SlotShards, 3, 0);
    compare("multi-3", "1.66x", "3 local replicas over 3 shards behind 100 us", (replicas, far));
    compare("multi-3", "", "3 local shards by slots over 3 shards behind 100 us", (slots, far));
    found
}

/// The factor by which Redis on the loopback is faster than behind a delay, by delay in us.
fn curve(rows: &[Row<'_>], workers: usize) -> Vec<(f64, f64)> {
    let near =
        rows.iter().find(|row| row.is(TablePlace::Loopback, workers, 0, 1)).and_then(Row::look_ups);
    let Some(near) = near else { return Vec::new() };
    let delayed =
        rows.iter().filter(|row| row.is(TablePlace::Delayed, workers, row.cell.delay_us, 1));
    let points = delayed.filter_map(|row| Some((row.cell.delay_us as f64, near / row.look_ups()?)));
    points.collect()
}

/// The delay at which the curve is at `factor`, by a line between its points.
fn delay_at(curve: &[(f64, f64)], factor: f64) -> Option<f64> {
    curve.windows(2).find_map(|pair| {
        let [(low, before), (high, after)] = [pair[0], pair[1]];
        let is_between = before <= factor && factor <= after && after > before;
        is_between.then(|| low + (high - low) * (factor - before) / (after - before))
    })
}

fn where_it_lies(rows: &[Row<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for workers in [1, 3] {
        let curve = curve(rows, workers);
        let (Some(first), Some(last)) = (curve.first(), curve.last()) else { continue };
        let points = curve.iter().map(|(delay, factor)| format!("{delay:.0} us {factor:.2}x"));
        let points = points.collect::<Vec<_>>().join(", ");
        let place = match delay_at(&curve, 1.77) {
            Some(delay) => format!("1.77x lies at a delay of {delay:.0} us"),
            None if first.1 > 1.77 => {
                "the proxy alone, without a delay, costs more than 1.77x here".to_owned()
            }
            None => format!("1.77x is not reached up to {:.0} us", last.0),
        };
        found.push(format!("With {workers} workers {place} ({points})."));
    }
    found
}

/// By how much two runs of the same differ.
fn noise(rows: &[Row<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for row in rows {
        let twin = row.twin(rows).and_then(Row::rate);
        if let (Some(first), Some(second)) = (row.rate(), twin) {
            let factor = first.max(second) / first.min(second).max(1e-9);
            found.push(format!("The same twice differs by {factor:.2}x: {}.", name(row.cell)));
        }
    }
    found
}

const INTRODUCTION: &str = "The Yahoo streaming benchmark: filter views, project, join ads to campaigns, count by campaign and \
window of 10 s, write the counts to Redis with the last checkpoint. Every run's counts in Redis were compared with \
a recount by a separate loop. In place of Kafka and JSON the source makes records in the worker that sends them: the \
figures are of the join and the windows. All servers and proxies run on this machine; a delay is injected by a proxy, \
which costs something itself: see the row of 0 us. Rows of one ad that wait together share a GET (GETs/row), which the \
poster's do not: factors of Redis are of GETs, not of rows. Skewed times are the original's: up to 50 ms early or late, one \
event in 100,000 up to a minute late, which corrects its window. Skewed ads, and more of them, are an extension.";

fn table(rows: &[Row<'_>], cores: usize) -> Vec<[String; 9]> {
    let mut table = Vec::new();
    for row in rows {
        let is_external = row.is_external();
        // The worker, the thread that asks, the server; a proxy's four threads sleep mostly.
        let busy = row.cell.workers * if is_external { 2 } else { 1 } + usize::from(is_external);
        let mark = if busy > cores { " *" } else { "" };
        let us = |at: usize| row.median(|figures| figures.latency[at] as f64 / 1e3);
        let us = |at| us(at).map_or(String::new(), |us| format!("{us:.0}"));
        let failed = row.runs.iter().find_map(|run| run.why.clone());
        let rates = row.values(rows_a_second);
        let spread = match (rates.first(), rates.last()) {
            (Some(low), Some(high)) => format!("{} to {}", short(*low), short(*high)),
            _ => failed.clone().unwrap_or_default(),
        };
        let rate = row.rate().map_or("failed".to_owned(), short);
        let gets = row.median(gets_a_second);
        let share = row.median(|figures| figures.gets as f64 / figures.joined.max(1) as f64);
        let cached =
            row.median(|figures| figures.cached as f64 * 100.0 / figures.joined.max(1) as f64);
        table.push([
            format!("{}{mark}", name(row.cell)),
            row.cell.workers.to_string(),
            rate,
            spread,
            gets.filter(|_| is_external).map_or(String::new(), short),
            share.filter(|_| is_external).map_or(String::new(), |share| format!("{share:.2}")),
            cached
                .filter(|_| row.cell.cache_bytes > 0)
                .map_or(String::new(), |p| format!("{p:.1} %")),
            us(0),
            us(1),
        ]);
    }
    table
}

const COLUMNS: [&str; 9] = [
    "table of ads",
    "workers",
    "rows joined/s",
    "spread",
    "GETs/s",
    "GETs/row",
    "from the cache",
    "batch p50 us",
    "batch p99 us",
];

/// The report of these outcomes: Markdown and HTML.
///
/// `warning` goes behind what the figures are of.
pub fn texts(outcomes: &[Outcome], version: &str, warning: &str) -> (String, String) {
    let rows = Row::of(outcomes);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let about = format!(
        "Redis {version}, {cores} cores, {} runs each; medians. * more busy threads than cores.{warning}",
        rows.first().map_or(0, |row| row.runs.len()),
    );
    let (figures, compared) = (table(&rows, cores), comparisons(&rows));
    let mut places = where_it_lies(&rows);
    places.extend(noise(&rows));
    let commands: Vec<_> = rows.iter().map(|row| row.cell.command()).collect();
    let heads = ["setup", "poster", "compared here", "here"];
    let mut text =
        format!("# The streaming benchmark with external state\n\n{INTRODUCTION}\n\n{about}\n");
    markdown(&mut text, &COLUMNS, &figures);
    let _ = writeln!(text, "\n## Beside the poster\n\n{POSTER}");
    markdown(&mut text, &heads, &compared);
    places.iter().for_each(|place| text.push_str(&format!("\n{place}\n")));
    let _ = writeln!(text, "\n## Commands\n\n```\n{}\n```", commands.join("\n"));
    let mut page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Streaming benchmark, external state</title><style>{STYLE}</style>\
         <h1>The streaming benchmark with external state</h1><p>{INTRODUCTION}</p><p>{}</p>",
        escaped(&about)
    );
    html(&mut page, &COLUMNS, &figures);
    let _ = write!(page, "<h2>Beside the poster</h2><p>{POSTER}</p>");
    html(&mut page, &heads, &compared);
    places.iter().for_each(|place| page.push_str(&format!("<p>{}</p>", escaped(place))));
    page.push_str(&plot(&[("1 worker", curve(&rows, 1)), ("3 workers", curve(&rows, 3))]));
    let _ = write!(page, "<h2>Commands</h2><pre>{}</pre>", escaped(&commands.join("\n")));
    (text, page)
}

const POSTER: &str = "Papaioannou et al. measured Flink with a synchronous GET for each row, on servers with 8 cores of 1.7 GHz \
and 10 Gb/s Ethernet; its absolute rates stand in a figure only. A factor here says what this machine's proxy and loopback \
cost, and is context, no repetition.";

const STYLE: &str = "body{font:15px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}\
td,th{padding:.25em .6em;border-bottom:1px solid #ccc;text-align:right}td:first-child,th:first-child{text-align:left}\
pre{overflow:auto;background:#f4f4f4;padding:1em}";

fn markdown<const N: usize>(text: &mut String, heads: &[&str; N], rows: &[[String; N]]) {
    let _ = writeln!(text, "\n| {} |\n|{}", heads.join(" | "), " --- |".repeat(N));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

fn html<const N: usize>(page: &mut String, heads: &[&str; N], rows: &[[String; N]]) {
    let heads = heads.map(|head| format!("<th>{head}</th>")).concat();
    let _ = write!(page, "<table><tr>{heads}</tr>");
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        let _ = write!(page, "<tr>{cells}</tr>");
    }
    page.push_str("</table>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Factors over delays, both from 0 on.
fn plot(lines: &[(&str, Vec<(f64, f64)>)]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let right = points().map(|point| point.0).fold(1.0, f64::max);
    let top = points().map(|point| point.1).fold(2.0, f64::max);
    let (x, y) = (|v: f64| 60.0 + v / right * 500.0, |v: f64| 260.0 - v / top * 240.0);
    let mut svg = String::from(
        "<svg viewBox=\"0 0 640 300\" width=\"640\" role=\"img\"><title>loopback over delayed, by delay</title>",
    );
    let mut rule = |factor: f64, words: &str| {
        let at = y(factor);
        let _ = write!(
            svg,
            "<line x1=\"60\" x2=\"560\" y1=\"{at:.0}\" y2=\"{at:.0}\" stroke=\"#bbb\"/>\
             <text x=\"565\" y=\"{:.0}\" font-size=\"11\">{words}</text>",
            at + 4.0
        );
    };
    rule(0.0, "0");
    rule(1.0, "1x");
    rule(1.77, "1.77x, poster");
    rule(top, &format!("{top:.1}x"));
    for ((name, points), colour) in lines.iter().zip(["#06c", "#c60"]) {
        let line: Vec<_> = points
            .iter()
            .map(|(delay, factor)| format!("{:.0},{:.0}", x(*delay), y(*factor)))
            .collect();
        let Some((delay, factor)) = points.last() else { continue };
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" font-size=\"11\" fill=\"{colour}\" text-anchor=\"end\">{name}</text>",
            line.join(" "),
            x(*delay),
            y(*factor) - 6.0
        );
    }
    let _ = write!(
        svg,
        "<text x=\"60\" y=\"285\" font-size=\"11\">0 us</text>\
         <text x=\"560\" y=\"285\" font-size=\"11\" text-anchor=\"end\">{right:.0} us of delay a round trip</text></svg>"
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(place: TablePlace, workers: usize, delay_us: u64, joined: u64) -> Outcome {
        let cell = Cell { place, workers, delay_us, events: 9, ..Cell::default() };
        let figures = Figures { stream_seconds: 1.0, joined, gets: joined, ..Figures::default() };
        Outcome { cell, figures: Some(figures), served: 0, why: None }
    }

    #[test]
    fn factors_stand_beside_the_posters_and_the_delay_of_it_is_told() {
        let mut outcomes = vec![
            outcome(TablePlace::Loopback, 1, 0, 10_000),
            outcome(TablePlace::Loopback, 1, 0, 30_000),
            outcome(TablePlace::Delayed, 1, 0, 20_000),
            outcome(TablePlace::Delayed, 1, 100, 8_000),
            outcome(TablePlace::Replicas, 3, 0, 5_000),
            outcome(TablePlace::Shards, 3, 100, 2_500),
        ];
        let mut again = outcome(TablePlace::Replicas, 3, 0, 4_000);
        again.cell.again = true;
        outcomes.push(again);
        outcomes.push(Outcome {
            figures: None,
            why: Some("wrong <answer>".to_owned()),
            ..outcome(TablePlace::Socket, 1, 0, 0)
        });
        let (markdown, html) = texts(&outcomes, "7", "");
        // The median of 10 and 30 thousand over 8.
        assert!(markdown.contains("| single-1 | up to 1.77x |"), "{markdown}");
        assert!(markdown.contains("2.50x") && markdown.contains("| 2.00x |"), "{markdown}");
        // From 1 at 0 us to 2.5 at 100 us.
        assert!(markdown.contains("1.77x lies at a delay of 51 us"), "{markdown}");
        assert!(markdown.contains("wrong <answer>") && html.contains("wrong &lt;answer&gt;"));
        assert!(
            markdown.contains("The same twice differs by 1.25x: Redis, 3 replicas"),
            "{markdown}"
        );
        assert!(html.contains("<svg") && !html.contains("href") && !html.contains("src="));
        assert!(markdown.contains("alluvium-ysb cell --place delayed --delay-us 100 --events 9"));
    }
}
