//! Figures 11, 12 and 13: traces on engines.

use super::{Paper, Section, THREE, recording};
use crate::engine::{Kind, Open};
use crate::event::Watermarks;
use crate::measure::{Stopwatch, Timing};
use crate::operator::{Name, Options};
use crate::trace::{Played, Player, Recording, expect, stand_in};
use crate::ycsb::{Requests, Workload, fitted};
use crate::{Error, Result};
use alluvium_reports::{short, time};

use std::time::Duration;

/// What a cell says of an engine that does not run a trace.
const REFUSED: &str = "does not run it";

/// Figure 11.
pub(super) fn three(paper: &Paper, kinds: &[Kind]) -> Result<Section> {
    let title = "Figure 11: throughput and tail with traces and with YCSB";
    let says = "Gadget's traces give what Flink's give; YCSB's give up to 7 times less throughput \
                (BerkeleyDB) and 80 times the tail (FASTER, latest)";
    let data = format!(
        "{}; joins: {}; {} accesses; each cell: accesses a second, p99.9 of the \
                        slowest operation",
        paper.data(false),
        paper.data(true),
        paper.accesses
    );
    let (mut section, kinds) = paper.section(title, says, &data, &["operator", "trace"], kinds);
    for name in THREE {
        let stream = paper.stream(name, Watermarks::Events(100))?;
        let of_trace = recording(name, &Options::default(), &stream)?;
        section.row(paper.cells([name.text(), "trace"], &of_trace, &kinds)?);
        for requests in [Requests::Sequential, Requests::Hotspot, Requests::Latest] {
            let workload = fitted(&of_trace, requests).recording(true)?;
            section.row(paper.cells([name.text(), requests.text()], &workload, &kinds)?);
        }
    }
    Ok(section)
}

/// Figure 12.
pub(super) fn core(paper: &Paper, kinds: &[Kind]) -> Result<Section> {
    let title = "Figure 12: YCSB's core workloads";
    let says = "FASTER has the highest throughput, and a long tail on D; RocksDB and Lethe beat \
                BerkeleyDB on D and lose on A and F";
    let data = format!(
        "1,000 keys of 8 bytes, values of 256, zipfian (D: latest), {} requests; \
                        each cell: accesses a second, p99.9 of the slowest operation",
        paper.accesses
    );
    let (mut section, kinds) = paper.section(title, says, &data, &["workload", ""], kinds);
    for letter in ["A", "D", "F"] {
        let operations = paper.accesses as u64;
        let workload = Workload { operations, ..Workload::core(letter)? };
        section.row(paper.cells([letter, ""], &workload.recording(true)?, &kinds)?);
    }
    Ok(section)
}

/// Figure 13.
pub(super) fn all(paper: &Paper, kinds: &[Kind]) -> Result<Section> {
    let title = "Figure 13: eleven operators";
    let says = "FASTER and BerkeleyDB beat RocksDB on 6 of 11, by up to 10 times; RocksDB and Lethe \
                win the holistic ones but for sessions, and have a p99.9 of at most 100 us";
    let data = format!(
        "{}; joins: {}; {} accesses; each cell: accesses a second, p99.9 of the \
                        slowest operation",
        paper.data(false),
        paper.data(true),
        paper.accesses
    );
    let (mut section, kinds) = paper.section(title, says, &data, &["operator", ""], kinds);
    for name in Name::ALL {
        let stream = paper.stream(name, Watermarks::Events(100))?;
        let recording = recording(name, &Options::default(), &stream)?;
        section.row(paper.cells([name.text(), ""], &recording, &kinds)?);
    }
    Ok(section)
}

impl Paper {
    /// A section with a column for each engine that is there, and those engines.
    fn section<'a>(
        &self,
        title: &str,
        says: &str,
        data: &str,
        first: &[&str],
        kinds: &'a [Kind],
    ) -> (Section, Vec<&'a Kind>) {
        let is_asked = |kind: &&Kind| {
            self.engines.is_empty() || self.engines.iter().any(|name| name == kind.name)
        };
        let is_there = |kind: &&Kind| kind.open.is_ok() && kind.memory_min <= self.memory_bytes;
        let kinds: Vec<_> = kinds.iter().filter(is_asked).filter(is_there).collect();
        let names = kinds.iter().map(|kind| kind.name);
        let columns: Vec<_> = first.iter().copied().chain(names).collect();
        (Section::new(title, says, data, &columns), kinds)
    }

    /// A row: a trace on each engine.
    fn cells(&self, first: [&str; 2], all: &Recording, kinds: &[&Kind]) -> Result<Vec<String>> {
        let recording = all.first(self.accesses);
        let mut cells = first.map(str::to_owned).to_vec();
        for kind in kinds {
            cells.push(self.cell(&recording, kind)?);
        }
        Ok(cells)
    }

    fn cell(&self, recording: &Recording, kind: &Kind) -> Result<String> {
        let Some((played, watch)) = self.play(recording, kind)? else {
            return Ok(REFUSED.to_owned());
        };
        let figures = watch.figures();
        let tail = figures.values().map(|figures| figures.p99_9).max().unwrap_or(0);
        let star = if played.is_complete { "" } else { "*" };
        let rate = played.accesses as f64 / played.seconds.max(1e-9);
        Ok(format!("{}{star}, {}", short(rate), time(tail as f64)))
    }

    /// Replays on an engine, if it runs the trace.
    pub(crate) fn play(
        &self,
        recording: &Recording,
        kind: &Kind,
    ) -> Result<Option<(Played, Stopwatch)>> {
        let made = tempfile::Builder::new().prefix("gadget-").tempdir();
        let temporary = std::env::temp_dir();
        let made = made.map_err(|error| Error::io(&temporary, "make a directory in", error))?;
        let (operator, options) = stand_in(recording);
        if kind.check(operator, &options, self.memory_bytes).is_err() {
            return Ok(None);
        }
        let (directory, memory_bytes) = (made.path().to_owned(), self.memory_bytes);
        let events = recording.keys().len();
        let open = Open { directory, memory_bytes, operator, options, events };
        let expected = expect(recording)?;
        let mut engine = kind.open(&open)?;
        let (most, sample) = (Duration::from_secs_f64(self.seconds), 31);
        let mut watch = Stopwatch::start(Timing { most, sample, rate: None, warm_up: 0 });
        let played = Player::play(recording, &expected, &mut *engine, None, &mut watch)?;
        Ok(Some((played, watch)))
    }
}
