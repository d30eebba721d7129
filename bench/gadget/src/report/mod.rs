//! The report of a run: the same tables as Markdown and as one HTML file with plots.

mod html;
mod markdown;
mod table;

use std::fs;
use std::path::Path;

use crate::cell::Cell;
use crate::run::About;
use crate::{Error, Result};

use alluvium_reports::{short, time};
use table::{Row, Rows};

/// Writes `report.md` and `report.html`, each in one piece: what was there stays until then.
///
/// # Errors
/// Those of the files.
pub fn write(out: &Path, about: &About, cells: &[Cell]) -> Result<()> {
    let rows = Rows::of(cells);
    let texts =
        [("report.md", markdown::text(about, &rows)), ("report.html", html::text(about, &rows))];
    for (name, text) in texts {
        let (path, part) = (out.join(name), out.join(format!("{name}.part")));
        fs::write(&part, text)
            .and_then(|()| fs::rename(&part, &path))
            .map_err(|error| Error::io(&path, "write", error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cell::{Figures, Outcome};
    use crate::measure::LatencyFigures;

    pub(super) fn cell(operator: &str, engine: &str, round: &str, rate: f64, cut: bool) -> Cell {
        let ccdf = vec![(100, 1.0), (1000, 0.1), (9000, 0.001)];
        let event = LatencyFigures {
            count: 9,
            p50: 150,
            p99: 1000,
            p99_9: 9000,
            p99_99: 9000,
            max: 9000,
            ccdf,
        };
        let figures = Figures {
            events: 10,
            accesses: 20,
            seconds: 1.0,
            events_per_s: rate,
            steady_events_per_s: rate,
            accesses_per_s: rate * 2.0,
            generated_per_s: 20.0,
            resident_bytes_max: 5 << 20,
            latencies: BTreeMap::from([("event".to_owned(), event)]),
            ..Figures::default()
        };
        Cell {
            operator: operator.to_owned(),
            engine: engine.to_owned(),
            version: "1".to_owned(),
            round: round.to_owned(),
            rate: None,
            outcome: if cut { Outcome::Cut } else { Outcome::Whole },
            figures: Some(figures),
            command: format!("alluvium-gadget cell --operator {operator} --engine {engine}"),
        }
    }

    fn cells() -> Vec<Cell> {
        let mut cells = vec![
            cell("aggregation", "ours-native", "1", 3e6, false),
            cell("aggregation", "fast", "1", 9e6, false),
            cell("aggregation", "ours-native", "1-again", 3.3e6, false),
            cell("aggregation", "ours-native", "2", 5e6, false),
            cell("aggregation", "fast", "2", 8e6, true),
        ];
        let missing = Outcome::Refused("not installed".to_owned());
        cells.push(Cell {
            outcome: missing,
            figures: None,
            ..cell("aggregation", "gone", "1", 0.0, false)
        });
        let failed = Outcome::Failed("access 7 <wrong>".to_owned());
        cells.push(Cell {
            outcome: failed,
            figures: None,
            ..cell("aggregation", "bad", "1", 0.0, false)
        });
        cells
    }

    #[test]
    fn a_report_tells_medians_cuts_losses_failures_and_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &About::default(), &cells()).unwrap();
        let markdown = fs::read_to_string(dir.path().join("report.md")).unwrap();
        // The median of 3 and 5 million; the pair of the first engine apart.
        assert!(markdown.contains("4.00M"), "{markdown}");
        assert!(markdown.contains("8.50M*"), "{markdown}");
        assert!(markdown.contains("not installed"));
        assert!(markdown.contains("access 7 <wrong>"));
        assert!(markdown.contains("behind") && markdown.contains("fast"));
        assert!(markdown.contains("--operator aggregation --engine fast"));
        // 10 events in a second, and their 20 accesses were made in another.
        assert!(markdown.contains("| fast | 8.50M* | 0.47 | 5.00* |"), "{markdown}");
        let html = fs::read_to_string(dir.path().join("report.html")).unwrap();
        assert!(html.contains("<svg") && html.contains("access 7 &lt;wrong&gt;"), "{html}");
        assert!(!html.contains("src=\"http") && !html.contains("href=\"http"));
        assert!(!dir.path().join("report.md.part").exists());
    }

    #[test]
    fn an_empty_run_has_a_report_too() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &About::default(), &[]).unwrap();
        assert!(dir.path().join("report.html").exists());
    }
}
