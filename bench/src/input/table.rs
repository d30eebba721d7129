//! One CSV file of a table, row by row.
//!
//! The header may order its columns as it likes and have more of them; each that is needed must
//! be there once. Rows must be in order of time. Whatever is wrong is reported with file, line
//! and, where one is to blame, column, and ends the reading: no row after it is looked at.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use csv::{ErrorKind, ReaderBuilder, StringRecord};

use super::columns::{self, Malformed, Table};
use crate::nexmark::Event;
use alluvium::Time;

use crate::{Error, Result};

/// The rows of one file.
pub(super) struct TableReader {
    path: PathBuf,
    table: Table,
    rows: csv::Reader<QuoteParity<File>>,
    quote_open: Arc<AtomicBool>,
    /// Where the file has the columns of [`Table::columns`].
    places: Vec<usize>,
    row: StringRecord,
    last_time: Time,
}

impl TableReader {
    /// Opens the file and reads its header.
    pub(super) fn open(path: PathBuf, table: Table) -> Result<Self> {
        let file = File::open(&path).map_err(|source| Error::io(&path, "open", source))?;
        let quote_open = Arc::new(AtomicBool::new(false));
        let input = QuoteParity { input: file, odd: false, at_end: quote_open.clone() };
        let rows = ReaderBuilder::new().buffer_capacity(1 << 18).from_reader(input);
        let row = StringRecord::new();
        let last_time = Time::MIN;
        let mut reader =
            TableReader { path, table, rows, quote_open, places: Vec::new(), row, last_time };
        reader.places = reader.read_header()?;
        Ok(reader)
    }

    fn read_header(&mut self) -> Result<Vec<usize>> {
        let header = match self.rows.headers() {
            Ok(header) => header.clone(),
            Err(error) => return Err(self.broken_row(error)),
        };
        let place_of = |&name: &&str| {
            let mut places = (0..header.len()).filter(|&place| &header[place] == name);
            match (places.next(), places.next()) {
                (Some(place), None) => Ok(place),
                (None, _) => Err(self.fault(1, Some(name), "the header has no such column")),
                _ => Err(self.fault(1, Some(name), "the header has this column twice")),
            }
        };
        self.table.columns().iter().map(place_of).collect()
    }

    /// The next row, `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<Event>> {
        match self.rows.read_record(&mut self.row) {
            Ok(true) => {}
            Ok(false) if self.quote_open.load(Ordering::Relaxed) => {
                let line = self.rows.position().line();
                return Err(self.fault(line, None, "the file ends inside a quoted field"));
            }
            Ok(false) => return Ok(None),
            Err(error) => return Err(self.broken_row(error)),
        }
        let field = |column: usize| &self.row[self.places[column]];
        let event =
            columns::event(self.table, field).map_err(|Malformed { column, message }| {
                self.fault(self.line(), Some(self.table.columns()[column]), message)
            })?;
        self.check_order(event.time())?;
        Ok(Some(event))
    }

    fn check_order(&mut self, time: Time) -> Result<()> {
        if time < self.last_time {
            let (found, before) = (time.as_ms(), self.last_time.as_ms());
            let message = format!(
                "{found} is before {before} of an earlier row: rows must be sorted by time"
            );
            return Err(self.fault(self.line(), Some("date_time_ms"), message));
        }
        self.last_time = time;
        Ok(())
    }

    /// The line where the current row begins.
    fn line(&self) -> u64 {
        self.row.position().map_or(0, csv::Position::line)
    }

    fn broken_row(&self, error: csv::Error) -> Error {
        let line = error.position().map_or(1, csv::Position::line);
        match error.into_kind() {
            ErrorKind::Io(source) => Error::io(&self.path, "read", source),
            ErrorKind::Utf8 { err, .. } => {
                let column = (0..self.places.len())
                    .find(|&column| self.places[column] == err.field())
                    .map(|column| self.table.columns()[column]);
                self.fault(line, column, "not UTF-8")
            }
            ErrorKind::UnequalLengths { expected_len, len, .. } => {
                self.fault(line, None, format!("{len} fields, the header has {expected_len}"))
            }
            kind => self.fault(line, None, format!("malformed row: {kind:?}")),
        }
    }

    fn fault(&self, line: u64, column: Option<&str>, message: impl Into<String>) -> Error {
        Error::in_column(&self.path, line, column, message)
    }
}

/// Counts quotes on the way: in a well-formed file they are even, so an odd number at the end
/// means that the file was cut off inside a field, which the CSV reader itself accepts.
struct QuoteParity<R> {
    input: R,
    odd: bool,
    at_end: Arc<AtomicBool>,
}

impl<R: Read> Read for QuoteParity<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        let quotes = buffer[..count].iter().filter(|&&byte| byte == b'"').count();
        self.odd ^= quotes % 2 == 1;
        if count == 0 {
            self.at_end.store(self.odd, Ordering::Relaxed);
        }
        Ok(count)
    }
}
