//! A report of a suite: sections of text, tables and plots, as Markdown and as one HTML file.

use std::fmt::Write;
use std::path::Path;

use alluvium_reports::{Environment, page};

use crate::Result;
use crate::runner;

/// A table: each column with its name and unit, the first one text.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<(String, &'static str)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<N: Into<String>>(columns: impl IntoIterator<Item = (N, &'static str)>) -> Self {
        let columns = columns.into_iter().map(|(name, unit)| (name.into(), unit)).collect();
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has not one cell a column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "cells of a row");
        self.rows.push(cells);
    }

    fn markdown(&self) -> String {
        let head = self.columns.iter().map(|(name, unit)| match *unit {
            "" => name.clone(),
            unit => format!("{name}, {unit}"),
        });
        let mut text = line(head);
        text.push_str(&line(
            self.columns.iter().enumerate().map(|(n, _)| if n == 0 { "---" } else { "---:" }),
        ));
        for row in &self.rows {
            text.push_str(&line(row.iter().map(|cell| cell.replace('|', "\\|"))));
        }
        text
    }

    fn html(&self) -> String {
        let mut html = String::from("<table><tr>");
        for (name, unit) in &self.columns {
            let (name, unit) = (page::escaped(name), page::escaped(unit));
            let _ = write!(html, "<th>{name}<br><small>{unit}</small></th>");
        }
        html.push_str("</tr>\n");
        for row in &self.rows {
            let cells = row.iter().map(|cell| format!("<td>{}</td>", page::escaped(cell)));
            let _ = writeln!(html, "<tr>{}</tr>", cells.collect::<String>());
        }
        html + "</table>\n"
    }
}

fn line<T: AsRef<str>>(cells: impl Iterator<Item = T>) -> String {
    let mut text = String::from("|");
    for cell in cells {
        let _ = write!(text, " {} |", cell.as_ref());
    }
    text.push('\n');
    text
}

/// What a report is made of.
#[derive(Clone, Debug)]
pub enum Part {
    /// A heading.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// Lines that are read one by one, such as commands.
    Lines(Vec<String>),
    /// A table.
    Table(Table),
    /// A plot as SVG, in the HTML file only.
    Plot(String),
}

/// A report.
#[derive(Clone, Debug)]
pub struct Report {
    title: String,
    parts: Vec<Part>,
}

impl Report {
    /// An empty report.
    pub fn new(title: impl Into<String>) -> Self {
        Report { title: title.into(), parts: Vec::new() }
    }

    /// Adds a part.
    pub fn add(&mut self, part: Part) {
        self.parts.push(part);
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: impl Into<String>) {
        self.add(Part::Text(text.into()));
    }

    /// Writes `report.md` and `report.html`.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, out: &Path, machine: &Environment) -> Result<()> {
        runner::write(out, "report.md", &self.markdown(machine))?;
        runner::write(out, "report.html", &self.html(machine))
    }

    fn markdown(&self, machine: &Environment) -> String {
        let mut text = format!("# {}\n\n", self.title);
        let _ = writeln!(
            text,
            "{} UTC, commit {}, {}, {} cores, {} MiB, Linux {}, {}, {}; load at the start {}.",
            machine.date,
            machine.commit,
            machine.processor,
            machine.cores,
            machine.memory_mib,
            machine.kernel,
            machine.file_system,
            machine.compiler,
            machine.load
        );
        for part in &self.parts {
            text.push('\n');
            match part {
                Part::Heading(heading) => text.push_str(&format!("## {heading}\n")),
                Part::Text(words) => text.push_str(&format!("{words}\n")),
                Part::Lines(lines) => {
                    lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
                }
                Part::Table(table) => text.push_str(&table.markdown()),
                Part::Plot(_) => text.push_str("A plot is in `report.html`.\n"),
            }
        }
        text
    }

    fn html(&self, machine: &Environment) -> String {
        let mut html = page::begin(&self.title) + &page::machine(machine);
        for part in &self.parts {
            match part {
                Part::Heading(heading) => {
                    let _ = writeln!(html, "<h2>{}</h2>", page::escaped(heading));
                }
                Part::Text(words) => {
                    let _ = writeln!(html, "<p>{}</p>", page::escaped(words));
                }
                Part::Lines(lines) => {
                    let _ = writeln!(html, "<pre>{}</pre>", page::escaped(&lines.join("\n")));
                }
                Part::Table(table) => html.push_str(&table.html()),
                Part::Plot(svg) => html.push_str(svg),
            }
        }
        html + page::end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_its_parts_in_both_forms() {
        let mut table = Table::new([("query", ""), ("rate", "K/s")]);
        table.row(vec!["q1 <a|b>".to_owned(), "7".to_owned()]);
        let mut report = Report::new("A suite");
        report.add(Part::Heading("Figures".to_owned()));
        report.add(Part::Table(table));
        report.add(Part::Plot("<svg></svg>".to_owned()));
        report.text("Words.");
        let dir = tempfile::tempdir().unwrap();
        report.write(dir.path(), &Environment::default()).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let (markdown, html) = (read("report.md"), read("report.html"));
        let rows = "| query | rate, K/s |\n| --- | ---: |\n| q1 <a\\|b> | 7 |\n";
        assert!(markdown.contains(rows) && markdown.contains("## Figures"), "{markdown}");
        assert!(html.contains("<td>q1 &lt;a|b&gt;</td>") && html.contains("<svg>"), "{html}");
    }
}
