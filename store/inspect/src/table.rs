//! Tables for people.

use std::fmt;

use alluvium_pagestore::{GIB, KIB, MIB};

/// Writes rows in columns: the first `left` to the left, numbers to the right.
pub fn write_aligned(f: &mut fmt::Formatter<'_>, left: usize, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let between = if column == 0 { "" } else { "  " };
            line += &match column < left {
                true => format!("{between}{cell:width$}"),
                false => format!("{between}{cell:>width$}"),
            };
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Bytes with a decimal and the largest unit of which there is one.
pub struct Short(pub u64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if self.0 >= unit {
                return write!(f, "{:.1}{name}", self.0 as f64 / unit as f64);
            }
        }
        write!(f, "{}B", self.0)
    }
}
