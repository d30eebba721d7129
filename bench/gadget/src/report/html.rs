//! The report as one HTML file that needs nothing else.

use std::fmt::Write;

use alluvium_reports::page::{self, escaped};
use alluvium_reports::{Line, logarithmic};

use super::markdown::{WITH_OPERATOR, instead, losses, mib, pair_ratios, rate, reading};
use super::table::Compared;
use super::{Row, Rows, time};
use crate::run::About;

const TITLE: &str = "State stores on eleven streaming operators";

pub(super) fn text(about: &About, rows: &Rows<'_>) -> String {
    let mut html = page::begin(TITLE);
    head(&mut html, about);
    summary(&mut html, rows);
    for operator in rows.operators() {
        let of_operator = rows.of_operator(operator);
        let _ = writeln!(html, "<h2 id=\"{operator}\">{operator}</h2>");
        figures(&mut html, &of_operator);
        for (phase, what) in
            [("event", "all accesses of an event"), ("firing", "all that a watermark fires")]
        {
            html += &curves(operator, phase, what, &of_operator);
        }
        html += &open_loops(operator, &of_operator);
        commands(&mut html, &of_operator);
    }
    html + page::end()
}

fn head(html: &mut String, about: &About) {
    html.push_str(&page::machine(&about.environment));
    html.push_str("<ul>");
    for sentence in reading(about) {
        let _ = writeln!(html, "<li>{}</li>", escaped(&sentence));
    }
    let _ =
        writeln!(html, "</ul><table><tr><th>engine</th><th>version</th><th>what runs</th></tr>");
    for (name, version, note) in &about.engines {
        let (name, version, note) = (escaped(name), escaped(version), escaped(note));
        let _ = writeln!(
            html,
            "<tr><td>{name}</td><td>{version}</td><td class=\"text\">{note}</td></tr>"
        );
    }
    let _ = writeln!(html, "</table>");
}

fn summary(html: &mut String, rows: &Rows<'_>) {
    let _ = writeln!(
        html,
        "<h2>Ours natively and the best other engine</h2><table><tr><th>operator</th>\
         <th>ours-native, events/s</th><th>best other</th><th>its events/s</th><th>ours / best</th>\
         <th>with its operator's work</th><th>ours / that</th></tr>"
    );
    for operator in rows.operators() {
        let Some((ours, best)) = rows.ours_and_best(operator) else { continue };
        let Compared { ours, best: rate, with_operator, ratios } = Compared::of(ours, best);
        let _ = writeln!(
            html,
            "<tr><td><a href=\"#{operator}\">{operator}</a></td><td>{ours}</td><td>{}</td><td>{rate}</td>\
             <td>{:.2}</td><td>{with_operator}</td><td>{:.2}</td></tr>",
            escaped(best.engine),
            ratios[0],
            ratios[1]
        );
    }
    let _ = writeln!(html, "</table><p>{}</p>", escaped(WITH_OPERATOR));
    for sentence in losses(rows) {
        let _ = writeln!(html, "<p class=\"bad\">{}.</p>", escaped(&sentence));
    }
    let pairs = pair_ratios(rows);
    if !pairs.is_empty() {
        let _ = writeln!(html, "<details><summary>The same engine twice</summary><table>");
        for (operator, engine, ratio) in pairs {
            let _ = writeln!(
                html,
                "<tr><td>{operator}</td><td>{}</td><td>{ratio:.2}</td></tr>",
                escaped(engine)
            );
        }
        let _ = writeln!(html, "</table></details>");
    }
}

fn figures(html: &mut String, rows: &[&Row<'_>]) {
    let _ = writeln!(
        html,
        "<table><tr><th>engine</th><th>events/s</th><th>accesses/s</th><th>CPU ns/access</th>\
         <th>memory MiB</th><th>device written MiB</th><th>event p50</th><th>event p99.9</th>\
         <th>firing p99.9</th></tr>"
    );
    for row in rows {
        let class = if row.is_ours() { " class=\"ours\"" } else { "" };
        let name = escaped(row.engine);
        if let Some(instead) = instead(row) {
            let bad = if row.failed.is_some() { " bad" } else { "" };
            let _ = writeln!(
                html,
                "<tr{class}><td>{name}</td><td class=\"text{bad}\" colspan=\"8\">{}</td></tr>",
                escaped(&instead)
            );
            continue;
        }
        let latency = |name: &str, of: fn(&crate::measure::LatencyFigures) -> u64| {
            row.latencies(name).map_or(String::new(), |found| time(of(found) as f64))
        };
        let _ = writeln!(
            html,
            "<tr{class}><td>{name}</td><td>{}</td><td>{}</td><td>{:.0}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td></tr>",
            rate(row, |figures| figures.events_per_s),
            rate(row, |figures| figures.accesses_per_s),
            row.median(|figures| figures.cpu_ns_per_access).unwrap_or(0.0),
            mib(row.median(|figures| figures.resident_bytes_max as f64).unwrap_or(0.0)),
            mib(row.median(|figures| figures.device_written as f64).unwrap_or(0.0)),
            latency("event", |found| found.p50),
            latency("event", |found| found.p99_9),
            latency("firing", |found| found.p99_9),
        );
    }
    let _ = writeln!(html, "</table>");
}

fn curves(operator: &str, phase: &str, what: &str, rows: &[&Row<'_>]) -> String {
    let lines: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            let points = row.latencies(phase)?.ccdf.iter().map(|(ns, share)| (*ns as f64, *share));
            Some(Line { name: row.engine, points: points.collect() })
        })
        .collect();
    let title = format!("{operator}: {what}");
    logarithmic(&title, ["latency in ns", "share that takes at least as long"], &lines)
}

fn open_loops(operator: &str, rows: &[&Row<'_>]) -> String {
    let lines: Vec<_> = rows
        .iter()
        .map(|row| {
            let points = row.open.iter().filter_map(|(_, figures)| {
                Some((figures.events_per_s, figures.latencies.get("event")?.p99 as f64))
            });
            Line { name: row.engine, points: points.collect() }
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    let title = format!("{operator}: open loop");
    logarithmic(&title, ["events per second that were done", "p99 since due, in ns"], &lines)
}

fn commands(html: &mut String, rows: &[&Row<'_>]) {
    let _ = writeln!(html, "<details><summary>Commands</summary><pre>");
    for row in rows {
        let _ = writeln!(html, "{}", escaped(row.command));
    }
    let _ = writeln!(html, "</pre></details>");
}
