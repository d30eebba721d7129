//! The report of the suite: percentiles and curves of the first query, a row for each other one, and the
//! runs whose state is larger than memory beside more workers.

use alluvium_reports::{Line, digits, logarithmic, short};

use super::{FASTER, HEAP, LARGE, LARGER, LOG, OTHERS, Options, PLAIN, PLAIN_AGAIN, Q3, SMALL};
use crate::cell::Outcome;
use crate::medians::Outcomes;
use crate::report::{Part, Report, Table};

/// `small` is the memory of the run whose state is larger, as soon as it is known.
pub(super) fn report(options: &Options, small: Option<&str>, outcomes: &[Outcome]) -> Report {
    let all = Outcomes(outcomes);
    let mut report = Report::new("BIRTE'19: queries with managed state");
    let Options { seconds, rate, memory, rounds, workers, .. } = options;
    let total = rounds * (4 * (1 + OTHERS.len()) + 2 + 2 * workers.len());
    report.text(format!(
        "Nexmark q3 at {} events/s for {seconds} s, {memory} for state, {rounds} rounds in turns: \
         medians, and the least to the most in brackets. {} of {total} cells are done. Open loop: latency counts from when an event is due.",
        short(*rate as f64),
        outcomes.len()
    ));
    report.add(Part::Heading("Managed state against plain maps (Fig. 2a)".to_owned()));
    report.text("Published: FASTER costs 1.1x to p98, and 16x beyond.");
    report.add(Part::Table(overhead(all)));
    report.add(Part::Plot(curves(all, Q3, &[PLAIN, HEAP, LOG, FASTER])));
    if let Some(why) = all.why(Q3, FASTER) {
        report.text(format!("FASTER: {why}."));
    }
    report.add(Part::Heading("The demo's other queries in both forms".to_owned()));
    report.text(
        "In the testbed's form, on plain maps of the standard library and with managed state. q4, q5 and q6 \
         come at a fortieth of q3's rate. Nothing is published of them.",
    );
    report.add(Part::Table(others(all)));
    if let Some(small) = small {
        large_part(&mut report, options, small, all);
    }
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

fn large_part(report: &mut Report, options: &Options, small: &str, all: Outcomes<'_>) {
    let chosen = match options.small {
        Some(_) => String::new(),
        None => format!(", 1/{LARGER} of the state on the heap, but not less than two logs need"),
    };
    report.add(Part::Heading("Larger than memory, against more workers (Fig. 2b)".to_owned()));
    report.text(format!(
        "q3 on one worker has {small} for all state{chosen}; the table says how many times that its state \
         is. The others have all state in memory. Processes talk over the loopback; figures are those of the \
         first. In the paper one worker with 22 GB of state stands against 24 workers on four machines."
    ));
    let mut columns = vec![SMALL.to_owned()];
    for workers in &options.workers {
        columns.push(format!("{workers} workers in memory"));
        columns.push(format!("{workers} processes in memory"));
    }
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    report.add(Part::Table(scaled(all, &columns)));
    report.add(Part::Plot(curves(all, LARGE, &columns)));
}

const PERCENTILES: [(&str, &str); 5] =
    [("p50", "p50"), ("p99", "p99"), ("p99.9", "p99_9"), ("p99.99", "p99_99"), ("most", "max")];

/// How many times that on plain maps it is.
fn of_plain(all: Outcomes<'_>, query: &str, column: &str, path: &str) -> String {
    let at = |column| all.median(query, column, &format!("latency_ns.{path}"));
    match (at(column), at(PLAIN)) {
        (Some(one), Some(plain)) if plain > 0.0 => format!("{:.2}x", one / plain),
        _ => String::new(),
    }
}

fn overhead(all: Outcomes<'_>) -> Table {
    let columns = [
        ("percentile", ""),
        ("plain maps", ""),
        ("heap", ""),
        ("log", ""),
        ("FASTER", ""),
        ("heap of plain", ""),
        ("log of plain", ""),
        ("FASTER of plain", ""),
        ("plain again of plain", ""),
    ];
    let mut table = Table::new(columns);
    for (name, path) in PERCENTILES {
        let shown = |column| all.latency(Q3, column, &format!("latency_ns.{path}"));
        let mut cells = vec![name.to_owned(), shown(PLAIN), shown(HEAP), shown(LOG)];
        cells.push(shown(FASTER));
        cells
            .extend([HEAP, LOG, FASTER, PLAIN_AGAIN].map(|column| of_plain(all, Q3, column, path)));
        table.row(cells);
    }
    table
}

fn others(all: Outcomes<'_>) -> Table {
    let columns = [
        ("query", ""),
        ("rate", "/s"),
        ("plain, p50", ""),
        ("plain, p99", ""),
        ("heap of plain, p50", ""),
        ("heap of plain, p99", ""),
        ("log of plain, p50", ""),
        ("log of plain, p99", ""),
        ("plain again of plain, p99", ""),
        ("result", ""),
    ];
    let mut table = Table::new(columns);
    let done = OTHERS.iter().filter(|(query, _)| all.of(query, PLAIN).next().is_some());
    for (query, _) in done {
        let shown = |path| all.latency(query, PLAIN, &format!("latency_ns.{path}"));
        let rate = all.median(query, PLAIN, "ops_per_s").map_or(String::new(), short);
        let mut cells = vec![(*query).to_owned(), rate, shown("p50"), shown("p99")];
        for column in [HEAP, LOG] {
            cells.extend(["p50", "p99"].map(|path| of_plain(all, query, column, path)));
        }
        cells.push(of_plain(all, query, PLAIN_AGAIN, "p99"));
        let failed = [PLAIN, HEAP, LOG].into_iter().find_map(|column| all.why(query, column));
        cells.push(failed.unwrap_or("done").to_owned());
        table.row(cells);
    }
    table
}

fn scaled(all: Outcomes<'_>, columns: &[&str]) -> Table {
    let mut names = vec![("run", ""), ("rate", "/s")];
    names.extend(PERCENTILES.map(|(name, _)| (name, "")));
    names.extend([("state of its memory", ""), ("read", "MiB"), ("result", "")]);
    let mut table = Table::new(names);
    let mib = |bytes: Option<f64>| bytes.map_or(String::new(), |b| digits(b / f64::from(1 << 20)));
    for column in columns.iter().filter(|column| all.of(LARGE, column).next().is_some()) {
        let at = |path: &str| all.median(LARGE, column, path);
        let mut cells = vec![(*column).to_owned(), at("ops_per_s").map_or(String::new(), short)];
        for (_, path) in PERCENTILES {
            cells.push(all.latency(LARGE, column, &format!("latency_ns.{path}")));
        }
        let times = at("memory.live_bytes").zip(at("memory.budget").filter(|budget| *budget > 0.0));
        let times = times.map(|(live, budget)| live / budget);
        cells.push(times.map_or(String::new(), |times| format!("{times:.2}x")));
        cells.push(mib(at("io.bytes_read")));
        let fits = *column == SMALL && times.is_some_and(|times| times <= 1.0);
        let done = if fits { "fits: not larger than memory" } else { "done" };
        cells.push(all.why(LARGE, column).unwrap_or(done).to_owned());
        table.row(cells);
    }
    table
}

fn curves(all: Outcomes<'_>, row: &str, columns: &[&str]) -> String {
    let lines = columns.iter().map(|column| {
        let points = all.of(row, column).next().map(|outcome| outcome.curve("ccdf_ns"));
        Line { name: column, points: points.unwrap_or_default() }
    });
    let axes = ["latency, ms", "share of events that took at least as long"];
    let what = if row == LARGE { "q3, large state" } else { row };
    logarithmic(&format!("{what}: latency"), axes, &lines.collect::<Vec<_>>())
}
