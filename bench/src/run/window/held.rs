//! What the store holds as windows pass: a row for each end of a window, before it fires and after.
//!
//! Looking is not among what is timed. After the last row nothing should be left but what an empty
//! store has. Beside the rows the same is drawn, as an SVG file.

use std::path::{Path, PathBuf};

use alluvium::{Store, Time};
use alluvium_reports::{Axis, Line, lines, standalone};

use crate::report::{ResultsWriter, resident_bytes};
use crate::window::Windows;
use crate::{Error, Result};

/// Writes the rows.
pub(super) struct Held<'a> {
    store: &'a Store,
    rows: ResultsWriter,
    /// How far apart rows are.
    step: i64,
    /// The end that the next row is of, once there was a watermark.
    next: Option<i64>,
    /// What there was before the windows fired that are firing.
    before: Option<Sample>,
    plot: PathBuf,
    /// Tracked, resident and disk, in MiB, by seconds of event time.
    drawn: [Vec<(f64, f64)>; 3],
}

/// Bytes at one moment.
struct Sample {
    tracked: u64,
    disk: u64,
    resident: u64,
}

impl Sample {
    fn take(store: &Store) -> Result<Self> {
        let stats = store.stats()?;
        let (tracked, disk) = (stats.memory.used, stats.total().disk_bytes);
        Ok(Sample { tracked, disk, resident: resident_bytes() })
    }

    fn drawn(&self) -> [u64; 3] {
        [self.tracked, self.resident, self.disk]
    }

    fn fields(&self) -> [String; 3] {
        [self.tracked, self.disk, self.resident].map(|bytes| bytes.to_string())
    }
}

impl<'a> Held<'a> {
    const COLUMNS: [&'static str; 7] = [
        "window_end_ms",
        "tracked_before",
        "disk_before",
        "resident_before",
        "tracked_after",
        "disk_after",
        "resident_after",
    ];

    /// Creates the file, or replaces it.
    pub(super) fn create(path: &Path, store: &'a Store, windows: Windows) -> Result<Self> {
        let step = match windows {
            Windows::Aligned { slide, .. } => slide,
            Windows::Sessions { gap } => gap,
        };
        let plot = path.with_extension("svg");
        if plot == path {
            let message =
                format!("{}: the rows are CSV; the plot beside them is SVG", path.display());
            return Err(Error::Usage(message));
        }
        let rows = ResultsWriter::create(path, &Self::COLUMNS)?;
        Ok(Held { store, rows, step, next: None, before: None, plot, drawn: Default::default() })
    }

    /// Before the windows fire that end at this watermark.
    pub(super) fn before(&mut self, watermark: Time) -> Result<()> {
        if self.next.is_some_and(|next| next <= watermark.0) {
            self.before = Some(Sample::take(self.store)?);
        }
        Ok(())
    }

    /// When they have fired.
    pub(super) fn after(&mut self, watermark: Time) -> Result<()> {
        if let (Some(end), Some(before)) = (self.next, self.before.take()) {
            let after = Sample::take(self.store)?;
            for sample in [&before, &after] {
                let at = end as f64 / 1e9;
                for (line, bytes) in self.drawn.iter_mut().zip(sample.drawn()) {
                    line.push((at, bytes as f64 / (1 << 20) as f64));
                }
            }
            let end = (end / 1_000_000).to_string();
            let fields = [end].into_iter().chain(before.fields()).chain(after.fields());
            self.rows.row(fields.map(Some))?;
        }
        let passed = watermark.0.div_euclid(self.step);
        self.next = Some(passed.saturating_add(1).saturating_mul(self.step));
        Ok(())
    }

    /// Writes what is still buffered, and the plot.
    pub(super) fn finish(self) -> Result<()> {
        self.rows.finish()?;
        let named = ["tracked", "resident", "disk"].into_iter().zip(self.drawn);
        let all: Vec<_> = named.map(|(name, points)| Line { name, points }).collect();
        let axes = [Axis::Linear("event time, s"), Axis::Linear("MiB")];
        let plot = lines("Held before and after windows fire", axes, &all);
        std::fs::write(&self.plot, standalone(&plot))
            .map_err(|source| Error::io(&self.plot, "write", source))
    }
}
