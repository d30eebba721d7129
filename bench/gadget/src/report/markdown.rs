//! The report as Markdown.

use std::fmt::Write;

use super::table::{Compared, Spread};
use super::{Row, Rows, short, time};
use crate::cell::Figures;
use crate::run::About;

/// Latencies that the tables have, as cells name them.
const LATENCIES: [(&str, &str); 8] = [
    ("event", "all accesses of an event"),
    ("firing", "all that a watermark fires"),
    ("get", "get"),
    ("put", "put, or update"),
    ("merge", "merge"),
    ("delete", "delete"),
    ("range", "range"),
    ("purge", "scan and purge"),
];

pub(super) fn text(about: &About, rows: &Rows<'_>) -> String {
    let mut text = String::from("# State stores on eleven streaming operators\n\n");
    head(&mut text, about, rows);
    summary(&mut text, rows);
    for operator in rows.operators() {
        let _ = writeln!(text, "\n## {operator}\n");
        let of_operator = rows.of_operator(operator);
        throughput(&mut text, &of_operator);
        costs(&mut text, &of_operator);
        remarks(&mut text, &of_operator);
        latencies(&mut text, &of_operator);
        open_loops(&mut text, &of_operator);
    }
    pairs(&mut text, rows);
    commands(&mut text, rows);
    text
}

/// What the last columns of the summary are.
pub(super) const WITH_OPERATOR: &str = "Native rows work out windows, sessions, timers and what is due within their time. For \
    the others that was done when the accesses were made, before the clock started. The last two columns add the time of \
    that to the best other's; it has the storing of the accesses too.";

/// Sentences on how the figures are to be read; the HTML has them too.
pub(super) fn reading(about: &About) -> Vec<String> {
    vec![
        format!("Memory of each engine: {}. Page cache: {}.", about.memory, about.page_cache),
        "Accesses are generated before the clock starts; the time has the replay, the check of each \
         value that is read (a hash of its bytes) and the folding of answers, the same for all \
         engines."
            .to_owned(),
        "Rates are medians of the rounds, with the least and the most in brackets. Engines run in \
         turns, each cell in a process of its own. `*`: the time limit cut the run; its rate is \
         that of the part that was done."
            .to_owned(),
        "Steady rates leave out the first quarter of the events. CPU is that of all threads. \
         Memory is the peak of resident bytes beyond those before the engine was opened. \
         Native rows make no accesses: for them accesses/s counts the accesses of the other engines \
         for the same events."
            .to_owned(),
        "Latencies are sampled, one access of 61 in memory and of 7 otherwise, firings all; they \
         include two readings of the clock. Native rows take up to 256 events at once, and each is \
         said to have taken as long as all of them."
            .to_owned(),
    ]
}

fn head(text: &mut String, about: &About, rows: &Rows<'_>) {
    let machine = &about.environment;
    let cells: usize =
        rows.0.iter().map(|row| row.runs.len() + row.again.len() + row.open.len()).sum();
    let _ = writeln!(
        text,
        "{} UTC, commit {}, {}, {} cores, {} MiB, Linux {}, {}, {}; load at the start {}. {} cells of {}.\n",
        machine.date,
        machine.commit,
        machine.processor,
        machine.cores,
        machine.memory_mib,
        machine.kernel,
        machine.file_system,
        machine.compiler,
        machine.load,
        cells,
        about.cells,
    );
    let _ = writeln!(text, "Options: `{}`\n", about.options.join(" "));
    for sentence in reading(about) {
        let _ = writeln!(text, "- {sentence}");
    }
    let _ = writeln!(text, "\n| engine | version | what runs |\n|---|---|---|");
    for (name, version, note) in &about.engines {
        let _ = writeln!(text, "| {name} | {version} | {note} |");
    }
}

/// Ours beside the best of the others, in sentences where it is behind.
pub(super) fn losses(rows: &Rows<'_>) -> Vec<String> {
    let mut sentences = Vec::new();
    for operator in rows.operators() {
        let Some((ours, best)) = rows.ours_and_best(operator) else { continue };
        let rate = |row: &Row<'_>| row.median(|figures| figures.events_per_s).unwrap_or(0.0);
        if rate(ours) < rate(best) {
            let times = rate(best) / rate(ours);
            sentences.push(format!(
                "{operator}: ours-native is behind {}, which does {times:.2} times as many events per second",
                best.engine
            ));
        }
    }
    sentences
}

fn summary(text: &mut String, rows: &Rows<'_>) {
    let _ = writeln!(text, "\n## Ours natively and the best other engine\n");
    let _ = writeln!(
        text,
        "| operator | ours-native, events/s | best other | its events/s | ours / best | with its operator's work | ours / that |"
    );
    let _ = writeln!(text, "|---|---|---|---|---|---|---|");
    for operator in rows.operators() {
        let Some((ours, best)) = rows.ours_and_best(operator) else { continue };
        let Compared { ours, best: rate, with_operator, ratios } = Compared::of(ours, best);
        let _ = writeln!(
            text,
            "| {operator} | {ours} | {} | {rate} | {:.2} | {with_operator} | {:.2} |",
            best.engine, ratios[0], ratios[1]
        );
    }
    let _ = writeln!(text, "\n{WITH_OPERATOR}");
    let losses = losses(rows);
    let _ = match losses.is_empty() {
        true => writeln!(text, "\nNo other engine of this run is ahead of ours-native."),
        false => writeln!(text, "\nWhere we lose:\n\n- {}", losses.join("\n- ")),
    };
}

/// A rate with its spread, marked if it was cut.
pub(super) fn rate(row: &Row<'_>, figure: impl Fn(&Figures) -> f64) -> String {
    let Some(Spread { least, median, most }) = row.spread(figure) else {
        return String::new();
    };
    let star = if row.is_cut { "*" } else { "" };
    format!("{}{star} [{}, {}]", short(median), short(least), short(most))
}

/// What a row without figures says.
pub(super) fn instead(row: &Row<'_>) -> Option<String> {
    match (row.failed, row.refused) {
        (Some(why), _) => Some(format!("FAILED: {why}")),
        (None, Some(why)) if row.runs.is_empty() => Some(format!("not run: {why}")),
        _ => None,
    }
}

fn throughput(text: &mut String, rows: &[&Row<'_>]) {
    let _ =
        writeln!(text, "| engine | events/s | accesses/s | steady events/s | answers | digest |");
    let _ = writeln!(text, "|---|---|---|---|---|---|");
    for row in rows {
        if let Some(instead) = instead(row) {
            let _ = writeln!(
                text,
                "| {} | {} | | | | |",
                row.engine,
                instead.replace(['|', '\n'], " ")
            );
            continue;
        }
        let digest = row.runs.first().map(|run| format!("{:016x}", run.answers_digest));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            row.engine,
            rate(row, |figures| figures.events_per_s),
            rate(row, |figures| figures.accesses_per_s),
            rate(row, |figures| figures.steady_events_per_s),
            row.runs.first().map_or(0, |run| run.answers),
            digest.unwrap_or_default()
        );
    }
}

/// A size in MiB.
pub(super) fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

fn costs(text: &mut String, rows: &[&Row<'_>]) {
    let _ = writeln!(
        text,
        "\n| engine | CPU ns/access | memory MiB | device written MiB | device read MiB | files MiB | live MiB at most | written per byte put | checkpoint | opened again |"
    );
    let _ = writeln!(text, "|---|---|---|---|---|---|---|---|---|---|");
    for row in rows.iter().filter(|row| !row.runs.is_empty()) {
        let median = |figure: fn(&Figures) -> f64| row.median(figure).unwrap_or(0.0);
        let logical = median(|figures| figures.logical_written as f64);
        let amplified = match logical > 0.0 {
            true => format!("{:.2}", median(|figures| figures.device_written as f64) / logical),
            false => String::new(),
        };
        let seconds = |figure: fn(&Figures) -> Option<f64>| {
            let spread = Spread::of(row.runs.iter().filter_map(|figures| figure(figures)));
            spread.map_or(String::new(), |spread| time(spread.median * 1e9))
        };
        let _ = writeln!(
            text,
            "| {} | {:.0} | {} | {} | {} | {} | {} | {amplified} | {} | {} |",
            row.engine,
            median(|figures| figures.cpu_ns_per_access),
            mib(median(|figures| figures.resident_bytes_max as f64)),
            mib(median(|figures| figures.device_written as f64)),
            mib(median(|figures| figures.device_read as f64)),
            mib(median(|figures| figures.file_bytes as f64)),
            mib(median(|figures| figures.live_bytes_max as f64)),
            seconds(|figures| figures.checkpoint_s),
            seconds(|figures| figures.recovery_s)
        );
    }
}

/// What engines say of their last runs.
fn remarks(text: &mut String, rows: &[&Row<'_>]) {
    for row in rows {
        if let Some(remark) = row.runs.last().and_then(|run| run.remark.as_ref()) {
            let _ = writeln!(text, "\n{}: {remark}.", row.engine);
        }
    }
}

fn latencies(text: &mut String, rows: &[&Row<'_>]) {
    let _ = writeln!(text, "\n| latency | engine | p50 | p99 | p99.9 | p99.99 | max | samples |");
    let _ = writeln!(text, "|---|---|---|---|---|---|---|---|");
    for (name, what) in LATENCIES {
        for row in rows {
            let Some(found) = row.latencies(name) else { continue };
            let ns = |ns: u64| time(ns as f64);
            let _ = writeln!(
                text,
                "| {what} | {} | {} | {} | {} | {} | {} | {} |",
                row.engine,
                ns(found.p50),
                ns(found.p99),
                ns(found.p99_9),
                ns(found.p99_99),
                ns(found.max),
                found.count
            );
        }
    }
    let clock = rows.iter().flat_map(|row| &row.runs).map(|run| run.clock_ns).min();
    if let Some(clock) = clock {
        let _ = writeln!(text, "\nReading the clock twice: {clock} ns.");
    }
}

fn open_loops(text: &mut String, rows: &[&Row<'_>]) {
    if rows.iter().all(|row| row.open.is_empty()) {
        return;
    }
    let _ = writeln!(text, "\n| due events/s | engine | done events/s | p50 | p99 | p99.9 | max |");
    let _ = writeln!(text, "|---|---|---|---|---|---|---|");
    for row in rows {
        for (rate, figures) in &row.open {
            let Some(event) = figures.latencies.get("event") else { continue };
            let ns = |ns: u64| time(ns as f64);
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} |",
                short(*rate),
                row.engine,
                short(figures.events_per_s),
                ns(event.p50),
                ns(event.p99),
                ns(event.p99_9),
                ns(event.max)
            );
        }
    }
    let _ = writeln!(text, "\nIn an open loop a latency counts from when its event was due.");
}

/// Pairs of one engine with itself, as ratios of medians.
pub(super) fn pair_ratios<'a>(rows: &'a Rows<'_>) -> Vec<(&'a str, &'a str, f64)> {
    let paired = rows.0.iter().filter(|row| !row.again.is_empty());
    let ratio = |row: &'a Row<'_>| {
        let again = Spread::of(row.again.iter().map(|figures| figures.events_per_s))?;
        let once = row.median(|figures| figures.events_per_s)?;
        Some((row.operator, row.engine, again.median / once))
    };
    paired.filter_map(ratio).collect()
}

fn pairs(text: &mut String, rows: &Rows<'_>) {
    let pairs = pair_ratios(rows);
    if pairs.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n## The same engine twice\n\nOne engine runs twice in each round. The ratio of both medians is the noise: \
         a ratio nearer to 1 says nothing.\n\n| operator | engine | again / once |\n|---|---|---|"
    );
    for (operator, engine, ratio) in pairs {
        let _ = writeln!(text, "| {operator} | {engine} | {ratio:.2} |");
    }
}

fn commands(text: &mut String, rows: &Rows<'_>) {
    let _ = writeln!(text, "\n## Commands\n\nOf the first round of each cell:\n\n```sh");
    for row in &rows.0 {
        let _ = writeln!(text, "{}", row.command);
    }
    let _ = writeln!(text, "```");
}
