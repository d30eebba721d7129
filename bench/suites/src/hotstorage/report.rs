//! The report of the suite: a table and curves for each experiment, beside what the paper says.

use alluvium_reports::{Axis, Line, digits, lines, logarithmic, short};

use super::{
    AGAIN, AWARE, ENGINES, HEAP, KEPT_SHARE, MONOLITHIC, Options, Published, QUERIES, QUESTIONS,
    STORES, TYPED, is_kept, is_swept, swept, wanted_rate, window_row,
};
use crate::cell::Outcome;
use crate::medians::Outcomes;
use crate::programs::NOT_BUILT;
use crate::report::{Part, Report, Table};

pub(super) fn report(options: &Options, outcomes: &[Outcome]) -> Report {
    let all = Outcomes(outcomes);
    let mut report = Report::new("HotStorage'20: COUNT, RANK, and Nexmark q3 to q8");
    let Options { seconds, query_seconds, slower, memory, rounds, .. } = options;
    report.text(format!(
        "{seconds} s a run of COUNT and RANK, {query_seconds} s of Nexmark; rates are the published ones{}, \
         {memory} for each store, {rounds} rounds in turns: medians, and the least to the most in brackets. {} cells are done.",
        if *slower > 1 { format!(" divided by {slower}") } else { String::new() },
        outcomes.len()
    ));
    report.text(
        "Open loop: a record is due at its time, and its latency counts from then, however late it is \
         taken. A rate is not kept if the last record is done more than a second late; a run that takes \
         half as long again is cut, and its figures are those of the records until then.",
    );
    window_part(&mut report, all);
    query_part(&mut report, all);
    store_part(&mut report, all);
    rate_part(&mut report, all);
    let differences = all.differences("checksum");
    report.text(match differences.is_empty() {
        true => "All answers are equal.".to_owned(),
        false => format!("Answers differ: {}.", differences.join("; ")),
    });
    report.add(Part::Heading("Commands".to_owned()));
    let first = outcomes.iter().filter(|outcome| outcome.round == 1);
    report.add(Part::Lines(first.map(|outcome| outcome.command.clone()).collect()));
    report
}

const P99: &str = "latency_ns.p99";
const P99_9: &str = "latency_ns.p99_9";

fn shown(value: Option<f64>) -> String {
    value.map_or(String::new(), digits)
}

fn window_part(report: &mut Report, all: Outcomes<'_>) {
    report.add(Part::Heading("COUNT and RANK (Fig. 3)".to_owned()));
    report.text(
        "Published: COUNT has 100 times less p99 on FASTER than on RocksDB with merge; RANK has orders of \
         magnitude less on RocksDB with merge than on FASTER.",
    );
    let mut rows = all.rows();
    // The published windows come first.
    let published =
        QUESTIONS.map(|(question, _, (length, slide))| window_row(question, length, slide));
    rows.sort_by_key(|row| !published.iter().any(|published| published == row));
    for row in rows.into_iter().filter(|row| row.starts_with("COUNT") || row.starts_with("RANK")) {
        let mut table = Table::new([
            (row, ""),
            ("rate", "/s"),
            ("p50", ""),
            ("p99", ""),
            ("p99.9", ""),
            ("most", ""),
            ("a firing, p99", ""),
            ("memory", "MiB"),
            ("kept", ""),
        ]);
        let mut curves = Vec::new();
        for (engine, _) in ENGINES {
            let Some(outcome) = all.of(row, engine).next() else { continue };
            let at = |path: &str| all.latency(row, engine, path);
            let kept = match (&outcome.why, outcome.says("is_cut"), outcome.says("is_kept")) {
                (Some(why), ..) if why == NOT_BUILT => "not built".to_owned(),
                (Some(why), ..) => why.clone(),
                (None, true, _) => "no, cut *".to_owned(),
                (None, false, false) => "no".to_owned(),
                (None, false, true) => "yes".to_owned(),
            };
            let memory = all.median(row, engine, "memory_max").map(|b| b / f64::from(1 << 20));
            table.row(vec![
                engine.to_owned(),
                all.median(row, engine, "ops_per_s").map_or(String::new(), short),
                at("latencies.event.p50"),
                at("latencies.event.p99"),
                at("latencies.event.p99_9"),
                at("latencies.event.max"),
                at("latencies.firing.p99"),
                shown(memory),
                kept,
            ]);
            let points = outcome.curve("latencies.event.ccdf");
            curves.push(Line { name: engine, points });
        }
        report.add(Part::Table(table));
        report.add(Part::Plot(ccdf(&format!("{row}: latency"), &curves)));
    }
    if all.0.iter().any(|outcome| outcome.why.as_deref() == Some(NOT_BUILT)) {
        report.text(format!("Not built: {NOT_BUILT}."));
    }
}

fn ccdf(title: &str, curves: &[Line<'_>]) -> String {
    logarithmic(title, ["latency, ms", "share of records that took at least as long"], curves)
}

fn query_part(report: &mut Report, all: Outcomes<'_>) {
    report.add(Part::Heading("Nexmark q3 to q8 (Table 1, Fig. 4)".to_owned()));
    report.text(
        "Monolithic: one store with one layout, a hybrid log whose values are bytes, and one memory pool for \
         all states. One log, typed: all states in hybrid logs that share the memory, with native values. \
         Workload-aware: the layout that fits each state, in the same memory. Speed-up is p99 of \
         monolithic over p99 of workload-aware; equal runs differ by the column before it. An event is \
         done when the watermark has passed its millisecond, so each latency has up to 1 ms of waiting in it. \
         Codecs: share of the monolithic process's processor time that encodes and decodes; the paper cites \
         20 %.",
    );
    let mut table = Table::new([
        ("query", ""),
        ("rate", "/s"),
        ("p99, heap", ""),
        ("p99, one log, typed", ""),
        ("p99, monolithic", ""),
        ("p99, aware", ""),
        ("aware again of aware", ""),
        ("speed-up", ""),
        ("speed-up at p99.9", ""),
        ("published", ""),
        ("codecs", "%"),
    ]);
    let mut plots = Vec::new();
    for Published { query, speed_up, .. } in QUERIES {
        if all.of(query, MONOLITHIC).next().is_none() {
            continue;
        }
        let speed_up_at = |path| ratio(all, query, [MONOLITHIC, AWARE], path);
        let latency = |column| all.latency(query, column, P99);
        table.row(vec![
            query.to_owned(),
            all.median(query, AWARE, "ops_per_s").map_or(String::new(), short),
            latency(HEAP),
            latency(TYPED),
            latency(MONOLITHIC),
            latency(AWARE),
            ratio(all, query, [AGAIN, AWARE], P99),
            speed_up_at(P99),
            speed_up_at(P99_9),
            speed_up.to_owned(),
            shown(codecs(all, query, MONOLITHIC)),
        ]);
        let curves = [HEAP, TYPED, MONOLITHIC, AWARE].map(|column| {
            let points = all.of(query, column).next().map(|outcome| outcome.curve("ccdf_ns"));
            Line { name: column, points: points.unwrap_or_default() }
        });
        plots.push(Part::Plot(ccdf(&format!("{query}: latency"), &curves)));
    }
    report.add(Part::Table(table));
    plots.into_iter().for_each(|plot| report.add(plot));
}

/// How many times a number of the second column that of the first is.
fn ratio(all: Outcomes<'_>, row: &str, columns: [&str; 2], path: &str) -> String {
    match columns.map(|column| all.median(row, column, path)) {
        [Some(one), Some(other)] if other > 0.0 => format!("{:.2}x", one / other),
        _ => String::new(),
    }
}

/// The share of the processor time of a run that codecs took, in percent.
fn codecs(all: Outcomes<'_>, row: &str, column: &str) -> Option<f64> {
    let seconds = |path| all.median(row, column, path);
    Some(100.0 * seconds("codec_s")? / seconds("processor_s")?.max(1e-9))
}

fn store_part(report: &mut Report, all: Outcomes<'_>) {
    report.add(Part::Heading("The same operators on the published stores".to_owned()));
    report.text(
        "States are in a layout over the store: monolithic on one store for all states of a worker, \
         workload-aware on one for each, with the memory divided as in Table 2. FASTER takes at least \
         256 MiB for each.",
    );
    let mut table = Table::new([
        ("query", ""),
        ("store", ""),
        ("rate", "/s"),
        ("p99, monolithic", ""),
        ("p99, aware", ""),
        ("p99, ours aware", ""),
        ("speed-up", ""),
        ("published", ""),
        ("p99.9, monolithic", ""),
        ("p99.9, aware", ""),
        ("p99.9, ours aware", ""),
        ("codecs", "%"),
        ("result", ""),
    ]);
    for Published { query, speed_up, .. } in QUERIES {
        for (store, [monolithic, aware]) in STORES {
            if all.of(query, aware).next().is_none() {
                continue;
            }
            let p99 = |column| all.latency(query, column, P99);
            let p99_9 = |column| all.latency(query, column, P99_9);
            let published = if store == "faster" { speed_up } else { "" };
            table.row(vec![
                query.to_owned(),
                store.to_owned(),
                all.median(query, aware, "ops_per_s").map_or(String::new(), short),
                p99(monolithic),
                p99(aware),
                p99(AWARE),
                ratio(all, query, [monolithic, aware], P99),
                published.to_owned(),
                p99_9(monolithic),
                p99_9(aware),
                p99_9(AWARE),
                shown(codecs(all, query, aware)),
                all.why(query, aware).or(all.why(query, monolithic)).unwrap_or("done").to_owned(),
            ]);
        }
    }
    report.add(Part::Table(table));
}

fn rate_part(report: &mut Report, all: Outcomes<'_>) {
    report.add(Part::Heading("Rates and workers (Fig. 5)".to_owned()));
    report.text(format!(
        "Median latency. *: less than {:.0} % of the rate was reached; higher rates are not tried then. \
         Published: q7 sustains 2 M records/s with a median of 1.3 ms, monolithic 1 M.",
        100.0 * KEPT_SHARE
    ));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut table = Table::new([("run", "")].into_iter().chain(swept().map(|name| (name, ""))));
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in all.rows() {
        let of_workers = row.split_once(" on ").and_then(|(_, rest)| rest.strip_suffix(" workers"));
        let is_rate = row.contains(" at ");
        if !is_rate && of_workers.is_none() {
            continue;
        }
        let is_more = of_workers.and_then(|n| n.parse::<usize>().ok()).is_some_and(|n| n > cores);
        let name = format!("{row}{}", if is_more { ", more than cores" } else { "" });
        let cells = swept().map(|column| median_cell(all, row, column));
        table.row([name].into_iter().chain(cells).collect());
        if is_rate {
            add_points(&mut curves, all, row);
        }
    }
    report.add(Part::Table(table));
    report.add(Part::Table(sustained(all)));
    let curves = curves.iter().map(|(name, points)| Line { name, points: points.clone() });
    let curves: Vec<_> = curves.collect();
    let axes = [Axis::Logarithmic("rate, K/s"), Axis::Logarithmic("median latency, ms")];
    report.add(Part::Plot(lines("Median latency by rate (Fig. 5a)", axes, &curves)));
}

fn median_cell(all: Outcomes<'_>, row: &str, column: &str) -> String {
    let median = all.latency(row, column, "latency_ns.p50");
    match (median.is_empty(), is_kept(all, row, column)) {
        (false, Some(true)) => median,
        (false, _) => format!("{median} *"),
        (true, _) => match all.why(row, column) {
            Some(why) if why == NOT_BUILT => "not built".to_owned(),
            Some(why) => why.to_owned(),
            None => String::new(),
        },
    }
}

/// Adds a row's medians to the curves of their columns.
fn add_points(curves: &mut Vec<(String, Vec<(f64, f64)>)>, all: Outcomes<'_>, row: &str) {
    let query = row.split(' ').next().unwrap_or(row);
    for column in swept() {
        let name = format!("{query}, {column}");
        let wanted = all.of(row, column).next().and_then(|o| wanted_rate(&o.command));
        let median = all.median(row, column, "latency_ns.p50").map(|ns| ns / 1e6);
        let (Some(rate), Some(median)) = (wanted, median) else { continue };
        match curves.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((rate / 1e3, median)),
            None => curves.push((name, vec![(rate / 1e3, median)])),
        }
    }
}

/// The highest rate that each column has kept.
fn sustained(all: Outcomes<'_>) -> Table {
    let columns = [("sustained", "")].into_iter().chain(swept().map(|name| (name, "/s")));
    let mut table = Table::new(columns);
    for Published { query, .. } in QUERIES.iter().filter(|p| is_swept(p.query)) {
        let most = |column| {
            let of_query = |row: &&str| row.starts_with(&format!("{query} at "));
            let kept = all.rows().into_iter().filter(of_query);
            let kept = kept.filter(|row| is_kept(all, row, column) == Some(true));
            let rates = kept.filter_map(|row| wanted_rate(&all.of(row, column).next()?.command));
            rates.max_by(f64::total_cmp).map_or(String::new(), short)
        };
        let cells = swept().map(most);
        table.row([(*query).to_owned()].into_iter().chain(cells).collect());
    }
    table
}
