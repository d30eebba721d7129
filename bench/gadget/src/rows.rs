//! Input from CSV files without a header, plain or zstd: the columns are told by their numbers.

use std::collections::HashMap;
use std::fmt;
use std::io::BufRead;
use std::path::PathBuf;

use crate::event::{Arrival, Event, Side, Stream, Watermarks};
use crate::random::scattered;
use crate::trace::open;
use crate::{Error, Result};

/// Which columns of a file have what, counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The file; one whose name ends in `.zst` is decompressed.
    pub path: PathBuf,
    /// The event's key.
    pub key: usize,
    /// Its time, in microseconds.
    pub time: usize,
    /// Its type, of which `FINISH` is the one that the continuous join knows.
    pub kind: Option<usize>,
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.path.display(), self.key, self.time)?;
        self.kind.map_or(Ok(()), |kind| write!(f, ":{kind}"))
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key's number, by order of appearance in all files that were read together.
    pub key: u64,
    /// The time in whole units, rounded down.
    pub time: i64,
    /// Whether the type is `FINISH`.
    pub finishes: bool,
}

/// Keys by name, numbered as they come.
#[derive(Clone, Debug, Default)]
pub struct Names {
    numbers: HashMap<String, u64>,
    names: Vec<String>,
}

impl Names {
    fn number(&mut self, name: &str) -> u64 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u64;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// The name of a key, if it has one.
    pub fn name(&self, key: u64) -> Option<&str> {
        self.names.get(key as usize).map(String::as_str)
    }
}

impl Columns {
    /// Reads a file; `unit_us` microseconds are a unit of time.
    ///
    /// # Errors
    /// Those of the file, and rows that do not have the columns: the message has the line.
    pub fn read(&self, unit_us: i64, names: &mut Names) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let mut reader = open(&self.path)?;
        let (mut line, mut number, mut width) = (Vec::new(), 0, 0);
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line);
            number += 1;
            match read.map_err(|error| Error::io(&self.path, "read", error))? {
                0 => return Ok(rows),
                _ => rows.push(self.row(&line, number, &mut width, unit_us, names)?),
            }
        }
    }

    fn row(
        &self,
        line: &[u8],
        number: u64,
        width: &mut usize,
        unit_us: i64,
        names: &mut Names,
    ) -> Result<Row> {
        let refuse = |message: String| Err(Error::input(&self.path, number, message));
        let Ok(text) = std::str::from_utf8(line) else {
            return refuse("not UTF-8".to_owned());
        };
        let fields: Vec<&str> = text.trim_end_matches(['\n', '\r']).split(',').collect();
        let last = self.key.max(self.time).max(self.kind.unwrap_or(0));
        if *width == 0 {
            *width = fields.len();
        }
        if fields.len() != *width || fields.len() <= last {
            let (found, wanted) = (fields.len(), (last + 1).max(*width));
            return refuse(format!("the row ends after {found} columns of {wanted}"));
        }
        let Ok(time) = fields[self.time].parse::<i64>() else {
            let (time, column) = (fields[self.time], self.time);
            return refuse(format!("column {column}: {time:?} is no time in microseconds"));
        };
        Ok(Row {
            key: names.number(fields[self.key]),
            time: time.div_euclid(unit_us),
            finishes: self.kind.is_some_and(|kind| fields[kind] == "FINISH"),
        })
    }
}

/// A stream of rows of one file or two. Rows arrive in the order of their file, never before what
/// stands above them; the two share one event time.
pub fn stream_of(left: &[Row], right: &[Row], watermarks: Watermarks, bytes: u16) -> Stream {
    let mut arrivals = Vec::with_capacity(left.len() + right.len());
    for (side, rows) in [(Side::Left, left), (Side::Right, right)] {
        let mut at = i64::MIN;
        for (place, row) in rows.iter().enumerate() {
            at = at.max(row.time);
            let amount = (scattered(place as u64) % 1000) as u32 + 1;
            let (key, time, finishes) = (row.key, row.time, row.finishes && side == Side::Left);
            arrivals
                .push(Arrival { at, event: Event { key, time, amount, bytes, side, finishes } });
        }
    }
    Stream::of(arrivals, watermarks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Row>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.csv");
        std::fs::write(&path, text).unwrap();
        let columns = Columns { path, key: 1, time: 0, kind: Some(2) };
        columns.read(1_000_000, &mut Names::default())
    }

    #[test]
    fn rows_are_read_and_keys_numbered() {
        let rows = read("1500000,b,SUBMIT\n2000000,a,FINISH\n2999999,b,X").unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.key, row.time, row.finishes)).collect();
        assert_eq!(found, [(0, 1, false), (1, 2, true), (0, 2, false)]);
        let stream = stream_of(&rows, &rows[..1], Watermarks::Every(1), 16);
        assert_eq!(stream.events.len(), 4);
        assert_eq!(stream.events[1].side, Side::Right);
    }

    #[test]
    fn all_frames_of_a_compressed_file_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.csv.zst");
        let frame = |text: &[u8]| {
            ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
        };
        std::fs::write(&path, [frame(b"0,a\n1,"), frame(b"b\n2,a\n")].concat()).unwrap();
        let columns = Columns { path, key: 1, time: 0, kind: None };
        assert_eq!(columns.read(1, &mut Names::default()).unwrap().len(), 3);
    }

    #[test]
    fn a_file_that_ends_within_a_row_is_refused_with_its_line() {
        let error = read("1,a,X\n2,b").unwrap_err().to_string();
        assert!(error.contains("rows.csv: line 2: the row ends after 2 columns of 3"), "{error}");
        let error = read("1,a,X\nz,b,X\n").unwrap_err().to_string();
        assert!(error.contains("line 2: column 0: \"z\""), "{error}");
    }
}
