//! Traces of Flink beside ours: the same operators on the same events, which `bench/flink` runs with a
//! state backend that logs each access.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Paper, Section, recording, tables};
use crate::characterize::{Distance, between, counts};
use crate::event::{END, Side, Stream, Watermarks};
use crate::operator::{Name, Options};
use crate::trace::{Op, Reading, Recording};
use crate::{Error, Result};

/// The file of events of an operator, for Flink.
fn events_file(name: Name) -> &'static str {
    if name.joins() { "joined.events" } else { "one.events" }
}

impl Paper {
    /// Writes the events of both kinds of operators for `bench/flink`.
    ///
    /// # Errors
    /// The input's and the files'.
    pub fn write_events(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)
            .map_err(|error| Error::io(directory, "create", error))?;
        for name in [Name::Aggregation, Name::TumblingJoin] {
            let path = directory.join(events_file(name));
            let stream = self.stream(name, Watermarks::Events(100))?;
            std::fs::write(&path, text_of(&stream))
                .map_err(|error| Error::io(&path, "write", error))?;
        }
        Ok(())
    }
}

/// A line for each event: key, time, amount, side, whether it finishes, and the watermark after it.
fn text_of(stream: &Stream) -> Vec<u8> {
    let mut text = Vec::new();
    for (_, events, watermark) in stream.batches() {
        for (place, event) in events.iter().enumerate() {
            let side = if event.side == Side::Left { "left" } else { "right" };
            let finishes = if event.finishes { "FINISH" } else { "-" };
            let is_last = place + 1 == events.len() && watermark < END;
            let watermark = if is_last { watermark.to_string() } else { "-".to_owned() };
            let (key, time, amount) = (event.key, event.time, event.amount);
            // Writing to a vector cannot fail.
            let _ = writeln!(text, "{key} {time} {amount} {side} {finishes} {watermark}");
        }
    }
    text
}

/// The trace of an operator, if there is one.
fn trace_of(directory: &Path, name: Name) -> Option<PathBuf> {
    let files = ["trace", "trace.zst"].map(|end| directory.join(format!("{name}.{end}")));
    files.into_iter().find(|file| file.is_file())
}

/// Flink's trace of an operator, if it is among those in the directory.
///
/// # Errors
/// The file's.
pub(super) fn read(directory: &Path, name: Name) -> Result<Option<Recording>> {
    let file = trace_of(directory, name);
    file.map(|file| Recording::read(&file, &Reading::default())).transpose()
}

/// What a trace's accesses are, in one cell.
fn mix(recording: &Recording) -> String {
    let entries = recording.entries();
    let share = |ops: &[Op]| {
        let count = entries.iter().filter(|entry| ops.contains(&entry.op())).count();
        format!("{:.3}", count as f64 / entries.len().max(1) as f64)
    };
    let ops = [&[Op::Get][..], &[Op::Put], &[Op::Merge], &[Op::Delete], &[Op::Seek, Op::Next]];
    ops.map(share).join(" / ")
}

fn distance(one: &Recording, two: &Recording) -> Distance {
    let of = |recording: &Recording| counts(recording.entries().iter().map(|entry| entry.key));
    between(&of(one), &of(two))
}

/// The comparison, with the traces in a directory.
pub(super) fn section(paper: &Paper, directory: &Path) -> Result<Section> {
    let title = "Traces of Flink: operators side by side";
    let says = "shares of get, put, merge and delete on Borg, measured in Flink with RocksDB (its \
                table 1); stack distances and sequences of Gadget are near those of Flink (its figure 10)";
    let data = format!(
        "{}; joins: {}; Flink 2.3, the same events and watermarks, one subtask, accesses as its \
         RocksDB backend makes them",
        paper.data(false),
        paper.data(true)
    );
    let columns = [
        "operator",
        "Flink: get / put / merge / delete / seek and next",
        "ours",
        "paper",
        "accesses per event: Flink, ours",
        "keys: Flink, ours",
        "mean stack distance: Flink, ours",
        "D of keys",
    ];
    let mut section = Section::new(title, says, &data, &columns);
    for name in Name::ALL {
        let said = tables::shares_of(name).unwrap_or_else(|| "none".to_owned());
        let Some(flink) = read(directory, name)? else {
            let why = format!("no {name}.trace in {}", directory.display());
            let rest = std::iter::repeat_n(String::new(), columns.len() - 2);
            section.row([name.to_string(), why].into_iter().chain(rest));
            continue;
        };
        let stream = paper.stream(name, Watermarks::Events(100))?;
        let ours = recording(name, &Options::default(), &stream)?;
        let both = |of: &dyn Fn(&Recording) -> String| format!("{}, {}", of(&flink), of(&ours));
        let per_event = |recording: &Recording| {
            format!("{:.2}", recording.entries().len() as f64 / stream.events.len().max(1) as f64)
        };
        let stack = |recording: &Recording| {
            let keys = recording.entries().iter().map(|entry| entry.key);
            format!("{:.1}", crate::characterize::Distances::of(keys).mean())
        };
        section.row([
            name.to_string(),
            mix(&flink),
            mix(&ours),
            said,
            both(&per_event),
            both(&|recording| recording.keys().len().to_string()),
            both(&stack),
            format!("{:.3}", distance(&flink, &ours).ks),
        ]);
    }
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Batch, Event};

    fn event(key: u64, time: i64, side: Side) -> Event {
        Event { key, time, amount: 5, bytes: 16, side, finishes: side == Side::Left }
    }

    #[test]
    fn events_have_the_watermark_of_their_batch() {
        let events =
            vec![event(1, 2, Side::Left), event(3, 4, Side::Right), event(1, 5, Side::Right)];
        let batches = vec![Batch { end: 2, watermark: 4 }, Batch { end: 3, watermark: END }];
        let text = String::from_utf8(text_of(&Stream { events, batches })).unwrap();
        assert_eq!(text, "1 2 5 left FINISH -\n3 4 5 right - 4\n1 5 5 right - -\n");
    }

    #[test]
    fn traces_that_are_there_are_compared_and_others_named() {
        let dir = tempfile::tempdir().unwrap();
        let trace = "1 get 7 0\n1 put 7 16\n2 get 8 0\n2 put 8 16\n";
        std::fs::write(dir.path().join("aggregation.trace"), trace).unwrap();
        let paper = Paper::generated_only(300);
        paper.write_events(dir.path()).unwrap();
        let one = std::fs::read_to_string(dir.path().join("one.events")).unwrap();
        assert_eq!(one.lines().count(), 300);
        assert!(dir.path().join("joined.events").is_file());
        let section = section(&paper, dir.path()).unwrap();
        assert_eq!(section.rows.len(), Name::ALL.len());
        let of = |name: Name| {
            let row = section.rows.iter().find(|row| row[0] == name.text()).unwrap();
            assert_eq!(row.len(), section.columns.len());
            row
        };
        let row = of(Name::Aggregation);
        assert_eq!(row[1], "0.500 / 0.500 / 0.000 / 0.000 / 0.000");
        assert_eq!((row[2].as_str(), row[3].as_str()), (row[1].as_str(), "0.5 / 0.5 / 0 / 0"));
        assert!(row[5].starts_with("2, ") && row[4].ends_with("2.00"), "{row:?}");
        assert!(of(Name::IntervalJoin)[1].starts_with("no interval-join.trace"));

        // Figure 10 has the traces that are there.
        let paper = Paper { flink: Some(dir.path().to_owned()), ..paper };
        let figure = super::super::figures::original(&paper).unwrap();
        let rows: Vec<_> = figure.rows.iter().map(|row| [&row[0][..], &row[1], &row[2]]).collect();
        assert!(rows.contains(&["aggregation", "Flink 2.3", "4"]), "{rows:?}");
        assert!(rows.contains(&["aggregation", "ours, watermarks as in Flink", "600"]), "{rows:?}");
        assert!(!rows.iter().any(|row| row[0] == "sliding-join" && row[1] == "Flink 2.3"));
    }
}
