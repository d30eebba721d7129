//! A table as text and as HTML. Its header has a line of names and a line of units.

use std::fmt::Write;

use crate::page::escaped;

/// Rows below named columns. The first column is text, the others are numbers.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, &'static str)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table from its columns' names and units.
    pub fn new(columns: &[(&'static str, &'static str)]) -> Self {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the row has not one cell a column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "cells of a row");
        self.rows.push(cells);
    }

    /// Writes the columns side by side, two spaces apart.
    pub fn text(&self) -> String {
        let names = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let units = self.columns.iter().map(|(_, unit)| (*unit).to_owned()).collect();
        let lines: Vec<&Vec<String>> = [&names, &units].into_iter().chain(&self.rows).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
        let widths: Vec<_> = (0..self.columns.len()).map(|n| width(n).unwrap_or(0)).collect();
        let mut text = String::new();
        for line in lines {
            let first = widths.first().copied().unwrap_or(0);
            let _ = write!(text, "{:<first$}", line[0]);
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                let _ = write!(text, "  {cell:>width$}");
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
        text
    }

    /// Writes an HTML table.
    pub fn html(&self) -> String {
        let mut html = String::from("<table><tr>");
        for (name, unit) in &self.columns {
            let (name, unit) = (escaped(name), escaped(unit));
            let _ = write!(html, "<th>{name}<br><small>{unit}</small></th>");
        }
        html.push_str("</tr>\n");
        for row in &self.rows {
            html.push_str("<tr>");
            for cell in row {
                let _ = write!(html, "<td>{}</td>", escaped(cell));
            }
            html.push_str("</tr>\n");
        }
        html + "</table>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_side_by_side_with_their_units() {
        let mut table = Table::new(&[("run", ""), ("rate", "K/s"), ("p50", "us")]);
        table.row(["heap", "1,234", "9"].map(String::from).into());
        table.row(["log <small>", "7", ""].map(String::from).into());
        let expected = "\
run           rate  p50
               K/s   us
heap         1,234    9
log <small>      7
";
        assert_eq!(table.text(), expected);
        let html = table.html();
        assert!(html.contains("<th>rate<br><small>K/s</small></th>"), "{html}");
        assert!(html.contains("<td>log &lt;small&gt;</td>"), "{html}");
    }
}
