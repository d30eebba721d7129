//! The sections as Markdown and as one HTML file that needs nothing else.

use std::fmt::Write;
use std::path::Path;

use super::Section;
use crate::{Error, Result};
use alluvium_reports::page::{self, escaped};

const TITLE: &str = "Tables and figures of the Gadget paper";

/// Writes both files.
pub(super) fn write(out: &Path, sections: &[Section]) -> Result<()> {
    for (name, text) in [("paper.md", markdown(sections)), ("paper.html", html(sections))] {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| Error::io(&path, "write", error))?;
    }
    Ok(())
}

fn markdown(sections: &[Section]) -> String {
    let mut text = format!("# {TITLE}\n");
    for section in sections {
        let Section { title, paper, data, columns, rows, .. } = section;
        let _ = writeln!(text, "\n## {title}\n\nPaper: {paper}.\n\nData: {data}.\n");
        let _ = writeln!(text, "| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
        for row in rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
    }
    text
}

fn html(sections: &[Section]) -> String {
    let mut html = page::begin(TITLE);
    for section in sections {
        let [title, paper, data] =
            [&section.title, &section.paper, &section.data].map(|text| escaped(text));
        let _ = writeln!(html, "<h2>{title}</h2><p>Paper: {paper}.</p><p>Data: {data}.</p><table>");
        let line = |cells: &[String], tag: &str| {
            let cell = |cell: &String| format!("<{tag}>{}</{tag}>", escaped(cell));
            format!("<tr>{}</tr>", cells.iter().map(cell).collect::<String>())
        };
        let _ = writeln!(html, "{}", line(&section.columns, "th"));
        for row in &section.rows {
            let _ = writeln!(html, "{}", line(row, "td"));
        }
        let _ = writeln!(html, "</table>{}", section.plots);
    }
    html + page::end()
}

/// The note where traces of Flink are given.
const HERE: &str = "the paper's own are not published; those above are of bench/flink";
/// The note where none are given.
const NOT_MADE: &str = "the paper's own are not published; bench/flink makes some (--flink)";

/// What of the paper is not here.
pub(super) fn missing(has_flink: bool) -> Section {
    let columns = ["data", "why", "instead"];
    let mut section = Section::new(
        "What cannot be had",
        "Borg with 2.5 million task events, Taxi, Azure's VMs, and traces of Flink with RocksDB",
        "none",
        &columns,
    );
    for row in [
        ["Borg's tasks", "listed by Gadget's repository; no copy at hand", "a Borg-like stream"],
        ["Taxi", "no copy at hand", "the same sweep on the stream above"],
        ["Azure's VMs", "no copy at hand", "the same sweep on the stream above"],
        [
            "traces of Flink",
            if has_flink { HERE } else { NOT_MADE },
            "Flink 2.3 on the stream above, and the operations of Gadget",
        ],
        ["Lethe", "closed source", "RocksDB with compaction by deletes, in bench/peers"],
    ] {
        section.row(row.map(str::to_owned));
    }
    section
}
