//! Recorded streams: arrivals at two services, and the jobs of a cluster.
//!
//! - `AzureLLMInferenceTrace_*.csv` (`TIMESTAMP,ContextTokens,GeneratedTokens`, times to 100 ns, in
//!   order): one key, the generated tokens as values.
//! - The job events of the Borg cell of 2011, as Gadget reshaped them (no header; job, microseconds,
//!   event, user, two names, class): the job as key, the number of the event's kind as value. They
//!   arrive up to 982 us behind the latest time; the watermark is held back by 1 ms.
//!
//! A row that is behind the watermark is an error: nothing is late here.

use std::io::Read;
use std::path::{Path, PathBuf};

use alluvium::Time;
use csv::StringRecord;

use super::{Event, EventStream};
use crate::input::{compressed, timestamp};
use crate::{Error, Result};

const AZURE_COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

/// Kinds of job events, by number as Google gave them.
const BORG_EVENTS: [&str; 7] = ["SUBMIT", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST"];
const BORG_COLUMNS: usize = 7;
const BORG_HOLD_BACK_NS: i64 = 1_000_000;

/// A recorded stream.
pub struct Trace {
    path: PathBuf,
    rows: csv::Reader<Box<dyn Read + Send>>,
    row: StringRecord,
    format: Format,
    /// How far the watermark is behind the latest time.
    hold_back: i64,
    watermark: Time,
}

#[derive(Clone, Copy)]
enum Format {
    Azure,
    Borg,
}

impl Trace {
    /// The arrivals of an Azure LLM inference trace.
    ///
    /// # Errors
    /// The file cannot be read or has another header.
    pub fn azure(path: &Path) -> Result<Self> {
        let mut trace = Self::open(path, Format::Azure)?;
        match trace.rows.headers() {
            Ok(header) if *header == AZURE_COLUMNS[..] => Ok(trace),
            Ok(_) => {
                let message = format!("the header is not {}", AZURE_COLUMNS.join(","));
                Err(Error::in_column(path, 1, None, message))
            }
            Err(error) => Err(trace.broken_row(error)),
        }
    }

    /// The job events of the Borg trace.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn borg(path: &Path) -> Result<Self> {
        Self::open(path, Format::Borg)
    }

    fn open(path: &Path, format: Format) -> Result<Self> {
        let is_azure = matches!(format, Format::Azure);
        let input = compressed::open(path)?;
        Ok(Trace {
            path: path.to_owned(),
            rows: csv::ReaderBuilder::new().has_headers(is_azure).from_reader(input),
            row: StringRecord::new(),
            format,
            hold_back: if is_azure { 0 } else { BORG_HOLD_BACK_NS },
            watermark: Time::MIN,
        })
    }

    fn azure_event(&self) -> Result<Event> {
        let time = timestamp::parse_time(&self.row[0]).map_err(|message| self.fault(0, message))?;
        self.number::<u64>(1)?;
        Ok(Event { time, key: 0, value: self.number(2)? })
    }

    fn borg_event(&self) -> Result<Event> {
        if self.row.len() != BORG_COLUMNS {
            let message = format!("{} fields where {BORG_COLUMNS} are due", self.row.len());
            return Err(Error::in_column(&self.path, self.line(), None, message));
        }
        let micros: i64 = self.number(1)?;
        let nanos = micros.checked_mul(1_000);
        let time = nanos.ok_or_else(|| self.fault(1, format!("{micros} us are too many")))?;
        let kind = BORG_EVENTS.iter().position(|name| *name == &self.row[2]);
        let kind = kind.ok_or_else(|| {
            let message = format!("{:?} is none of {}", &self.row[2], BORG_EVENTS.join(", "));
            self.fault(2, message)
        })?;
        Ok(Event { time: Time(time), key: self.number(0)?, value: kind as i64 })
    }

    fn number<N: std::str::FromStr>(&self, column: usize) -> Result<N> {
        let text = &self.row[column];
        text.parse().map_err(|_| self.fault(column, format!("{text:?} is not a whole number")))
    }

    fn line(&self) -> u64 {
        self.row.position().map_or(0, csv::Position::line)
    }

    fn fault(&self, column: usize, message: String) -> Error {
        let names = match self.format {
            Format::Azure => &AZURE_COLUMNS[..],
            Format::Borg => &["job", "time", "event"],
        };
        Error::in_column(&self.path, self.line(), names.get(column).copied(), message)
    }

    fn broken_row(&self, error: csv::Error) -> Error {
        let line = error.position().map_or(1, csv::Position::line);
        match error.into_kind() {
            csv::ErrorKind::Io(source) => Error::io(&self.path, "read", source),
            kind => Error::in_column(&self.path, line, None, format!("malformed row: {kind:?}")),
        }
    }
}

impl EventStream for Trace {
    fn next_event(&mut self) -> Result<Option<Event>> {
        match self.rows.read_record(&mut self.row) {
            Ok(true) => {}
            Ok(false) => {
                self.watermark = Time::MAX;
                return Ok(None);
            }
            Err(error) => return Err(self.broken_row(error)),
        }
        let event = match self.format {
            Format::Azure => self.azure_event()?,
            Format::Borg => self.borg_event()?,
        };
        if event.time < self.watermark {
            let behind = self.watermark.0 - event.time.0;
            return Err(self.fault(
                usize::from(matches!(self.format, Format::Borg)),
                format!("{behind} ns behind the watermark"),
            ));
        }
        let held_back = Time(event.time.0.saturating_sub(self.hold_back));
        self.watermark = self.watermark.max(held_back);
        Ok(Some(event))
    }

    fn watermark(&self) -> Time {
        self.watermark
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::input::shared_dir;

    fn all(mut trace: Trace) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while let Some(event) = trace.next_event()? {
            events.push(event);
        }
        assert_eq!(trace.watermark(), Time::MAX);
        Ok(events)
    }

    fn written(text: &str, open: fn(&Path) -> Result<Trace>) -> Result<Vec<Event>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.csv");
        std::fs::write(&path, text).unwrap();
        all(open(&path)?)
    }

    #[test]
    fn rows_are_events() {
        let header = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";
        let text = format!("{header}1970-01-01 00:00:01.0000001,3,44\r\n1970-01-01 00:00:02,4,5");
        let events = written(&text, Trace::azure).unwrap();
        let event = |time, key, value| Event { time: Time(time), key, value };
        assert_eq!(events, [event(1_000_000_100, 0, 44), event(2_000_000_000, 0, 5)]);
        let text = "7,2000,KILL,u,j,l,0\n8,1001,SUBMIT,u,j,l,1\n";
        let events = written(text, Trace::borg).unwrap();
        assert_eq!(events, [event(2_000_000, 7, 5), event(1_001_000, 8, 0)]);
    }

    #[test]
    fn what_is_no_event_is_named_by_line_and_column() {
        let azure: fn(&Path) -> Result<Trace> = Trace::azure;
        let header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        for (text, open, expected) in [
            ("a,b,c\n".to_owned(), azure, "line 1: the header is not"),
            (format!("{header}yesterday,1,2\n"), azure, "line 2, column TIMESTAMP"),
            (format!("{header}1970-01-01 00:00:01,1,x\n"), azure, "line 2, column Generated"),
            (
                format!("{header}1970-01-01 00:00:01,1,2\n1970-01-01 00:00:00,1,2\n"),
                azure,
                "line 3, column TIMESTAMP: 1000000000 ns behind",
            ),
            ("1,2,SUBMIT\n".to_owned(), Trace::borg, "line 1: 3 fields where 7"),
            ("1,2,SLEEP,u,j,l,0\n".to_owned(), Trace::borg, "line 1, column event"),
            (
                "7,2000,KILL,u,j,l,0\n8,999,KILL,u,j,l,1\n".to_owned(),
                Trace::borg,
                "line 2, column time: 1000 ns behind",
            ),
        ] {
            let message = written(&text, open).unwrap_err().to_string();
            assert!(message.contains("t.csv") && message.contains(expected), "{message}");
        }
    }

    #[test]
    fn the_shared_traces_are_read_to_their_ends() {
        let Some(shared) = shared_dir("the_shared_traces_are_read_to_their_ends") else { return };
        for (name, rows) in [("conv", 19_366), ("code", 8_819)] {
            let path = format!("data/azure-llm-2023/AzureLLMInferenceTrace_{name}.csv.xz");
            let events = all(Trace::azure(&shared.join(path)).unwrap()).unwrap();
            assert_eq!(events.len(), rows);
        }
        let events = all(Trace::borg(&shared.join("data/borg/jobs.csv.zst")).unwrap()).unwrap();
        let jobs: BTreeSet<u64> = events.iter().map(|event| event.key).collect();
        assert_eq!((events.len(), jobs.len()), (26_250, 9_365));
        let of = |kind: usize| events.iter().filter(|event| event.value == kind as i64).count();
        assert_eq!([0, 1, 2, 3, 4, 5].map(of), [8_709, 8_705, 3, 160, 4_738, 3_935]);
    }
}
