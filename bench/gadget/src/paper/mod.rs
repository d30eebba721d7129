//! The tables and figures of the Gadget paper, each with what the paper says and the data used.
//!
//! The paper's traces are of Flink on data that is not to be had. Here the operators of this crate
//! run on Borg's jobs and a Borg-like stream of tasks, if they are given, or on a generated stream;
//! traces that `bench/flink` makes of the same stream stand beside them, if they are given.

mod figures;
mod flink;
mod stores;
mod tables;
mod text;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use crate::characterize::Characterization;
use crate::engine::{BTree, Kind};
use crate::event::{Batch, END, Stream, Watermarks};
use crate::generator::Generator;
use crate::operator::{Name, Options};
use crate::random::Amount;
use crate::rows::{Columns, Names, Row, stream_of};
use crate::trace::{Recording, record};
use crate::{Error, Result};

/// Operators that stand for all in sections 3.2.3, 4 and 6 of the paper.
const THREE: [Name; 3] = [Name::Aggregation, Name::TumblingIncremental, Name::SlidingJoin];

/// What the report is made of.
#[derive(Clone, Debug)]
pub struct Paper {
    /// Events of one stream, and the left stream's and right stream's of a join.
    pub tasks: Option<Columns>,
    /// The left stream of joins.
    pub jobs: Option<Columns>,
    /// Events at most.
    pub events: usize,
    /// Accesses of a replay at most.
    pub accesses: usize,
    /// Engines by name; empty for all that are there.
    pub engines: Vec<String>,
    /// Their memory.
    pub memory_bytes: u64,
    /// The time limit of a replay in seconds.
    pub seconds: f64,
    /// Where traces of Flink are, if there are some.
    pub flink: Option<PathBuf>,
    /// Rows that were read.
    pub rows: OnceCell<(Vec<Row>, Vec<Row>)>,
}

/// A table or figure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// Its name in the paper and what it shows.
    pub title: String,
    /// What the paper says.
    pub paper: String,
    /// The data used here.
    pub data: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
    /// Plots as SVG.
    pub plots: String,
}

impl Section {
    fn new(title: &str, paper: &str, data: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        let [title, paper, data] = [title, paper, data].map(str::to_owned);
        Section { title, paper, data, columns, ..Section::default() }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl Paper {
    /// A report of a generated stream of so many events, and as many accesses of each replay.
    pub fn generated_only(events: usize) -> Self {
        Paper {
            tasks: None,
            jobs: None,
            events,
            accesses: events,
            engines: Vec::new(),
            memory_bytes: 256 << 20,
            seconds: 60.0,
            flink: None,
            rows: OnceCell::new(),
        }
    }

    /// Makes all sections and writes `paper.md` and `paper.html` into `out`.
    ///
    /// # Errors
    /// The input, an engine or a file fails.
    pub fn write(&self, out: &Path, kinds: &[Kind]) -> Result<()> {
        std::fs::create_dir_all(out).map_err(|error| Error::io(out, "create", error))?;
        let mut sections = Vec::new();
        let mut done = |section: Section| -> Result<()> {
            eprintln!("{}", section.title);
            sections.push(section);
            text::write(out, &sections)
        };
        let figures = self.characterized()?;
        for section in tables::sections(self, &figures) {
            done(section)?;
        }
        drop(figures);
        for section in [figures::deletes, figures::slides, figures::watermarks] {
            done(section(self)?)?;
        }
        for section in figures::ycsb(self)? {
            done(section)?;
        }
        done(figures::original(self)?)?;
        for section in [stores::three, stores::core, stores::all] {
            done(section(self, kinds)?)?;
        }
        if let Some(directory) = &self.flink {
            done(flink::section(self, directory)?)?;
        }
        done(text::missing(self.flink.is_some()))
    }

    /// The figures of all operators.
    fn characterized(&self) -> Result<Vec<Characterization>> {
        let of = |name: Name| {
            let stream = self.stream(name, Watermarks::Events(100))?;
            let recording = recording(name, &Options::default(), &stream)?;
            Ok(Characterization::of(name.text(), &recording, Some(&stream)))
        };
        Name::ALL.into_iter().map(of).collect()
    }

    /// The input of an operator.
    fn stream(&self, name: Name, watermarks: Watermarks) -> Result<Stream> {
        let Some(tasks) = &self.tasks else { return self.generated(name, watermarks) };
        if self.jobs.is_none() && name.joins() {
            return self.generated(name, watermarks);
        }
        let (jobs, tasks) = self.rows(tasks)?;
        let stream = match name.joins() {
            true => stream_of(jobs, tasks, watermarks, 16),
            false => stream_of(&tasks[..self.events.min(tasks.len())], &[], watermarks, 16),
        };
        Ok(first(stream, self.events))
    }

    /// The rows of jobs and tasks, read once.
    fn rows(&self, tasks: &Columns) -> Result<&(Vec<Row>, Vec<Row>)> {
        if let Some(rows) = self.rows.get() {
            return Ok(rows);
        }
        let mut names = Names::default();
        let mut read = |columns: &Columns| columns.read(1_000_000, &mut names);
        let jobs = self.jobs.as_ref().map(&mut read).transpose()?.unwrap_or_default();
        let rows = (jobs, read(tasks)?);
        Ok(self.rows.get_or_init(|| rows))
    }

    fn generated(&self, name: Name, watermarks: Watermarks) -> Result<Stream> {
        let generator = Generator {
            events: self.events,
            // Borg's tasks: 28 a second.
            gap: Amount::Exponential(1.0 / 28.0),
            keys: 9000,
            watermarks,
            right_percent: if name.joins() { 97.0 } else { 0.0 },
            ..Generator::default()
        };
        generator.stream()
    }

    /// What the input is, in words.
    fn data(&self, joins: bool) -> String {
        let generated = "a generated stream: 9,000 keys, Zipf 0.99, 28 events a second";
        match (&self.tasks, &self.jobs) {
            (None, _) => generated.to_owned(),
            (Some(_), None) if joins => generated.to_owned(),
            (Some(tasks), jobs) => {
                let name = |columns: &Columns| {
                    let name = columns.path.file_name().unwrap_or_default();
                    name.to_string_lossy().into_owned()
                };
                let joined = jobs.as_ref().filter(|_| joins).map(name);
                let joined = joined.map_or(String::new(), |jobs| format!("{jobs} joined with "));
                format!("{joined}{}, at most {} events", name(tasks), self.events)
            }
        }
    }
}

/// The first events of a stream.
fn first(mut stream: Stream, events: usize) -> Stream {
    if stream.events.len() > events {
        stream.events.truncate(events);
        stream.batches.retain(|batch| batch.end < events && batch.watermark < END);
        stream.batches.push(Batch { end: events, watermark: END });
    }
    stream
}

/// The accesses of an operator.
pub(crate) fn recording(name: Name, options: &Options, stream: &Stream) -> Result<Recording> {
    let mut recording = Recording::default();
    let mut machine = name.operator(options);
    record(&mut *machine, stream, &mut BTree::default(), &mut |line| {
        recording.push(*line, 0);
        Ok(())
    })?;
    Ok(recording)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::built_in;

    #[test]
    fn the_report_has_each_table_and_figure_with_the_papers_word_and_the_data() {
        let dir = tempfile::tempdir().unwrap();
        let engines = vec!["btree".to_owned(), "ours-heap".to_owned()];
        let memory_bytes = 16 << 20;
        let paper = Paper { engines, memory_bytes, ..Paper::generated_only(3000) };
        paper.write(dir.path(), &built_in()).unwrap();
        let text = std::fs::read_to_string(dir.path().join("paper.md")).unwrap();
        for number in 1..=3 {
            assert!(text.contains(&format!("## Table {number}")), "{text}");
        }
        for number in [2, 3, 4, 5, 6, 7, 10, 11, 12, 13] {
            assert!(text.contains(&format!("## Figure {number}")), "{number}: {text}");
        }
        let sections = text.matches("\n## ").count();
        assert!(text.matches("Paper: ").count() >= sections - 1, "{text}");
        assert!(text.contains("Azure") && text.contains("a generated stream"));
        assert!(text.contains("| interval-join, Taxi | cannot be had |"), "{text}");
        assert!(!text.contains("Traces of Flink cannot"), "{text}");
        let html = std::fs::read_to_string(dir.path().join("paper.html")).unwrap();
        assert!(html.contains("<svg") && !html.contains("src=\"http"));
    }

    #[test]
    fn a_stream_is_cut_with_its_watermarks() {
        let generator = Generator { events: 500, ..Generator::default() };
        let stream = first(generator.stream().unwrap(), 120);
        assert_eq!(stream.events.len(), 120);
        assert_eq!(stream.batches.last(), Some(&Batch { end: 120, watermark: END }));
        assert_eq!(stream.batches().map(|(_, events, _)| events.len()).sum::<usize>(), 120);
    }
}
