//! Where changes go: into the checksum, and from all workers to files on the first.
//!
//! If there are to be checkpoints the first worker also keeps all changes in a [`Ledger`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use alluvium::Time;
use alluvium_timely::{Changes, WorkerState};
use timely::dataflow::operators::{Exchange, Probe};
use timely::dataflow::{ProbeHandle, StreamVec};

use super::ledger::Ledger;
use super::partitions::Partitions;
use crate::args::NexmarkArgs;
use crate::queries::row_by_row::RowByRow;
use crate::queries::{Fields, Row};
use crate::report::ResultsWriter;
use crate::{Error, Result};

/// Changes as text, on their way to the first worker.
pub(super) type Line = (Fields, i64, i64);

/// The end of the dataflow on one worker.
pub(super) struct Output {
    /// Sum of the digests of this worker's changes.
    pub(super) checksum: Rc<Cell<u64>>,
    /// Behind everything.
    pub(super) probe: ProbeHandle<i64>,
    gathered: Rc<RefCell<Gathered>>,
    /// Of a query that has partitions.
    partitions: Option<Rc<RefCell<Partitions>>>,
}

/// What the files need; empty on workers but the first.
#[derive(Default)]
struct Gathered {
    /// The result so far, if it is to be written.
    result: Option<HashMap<Fields, i64>>,
    changes: Option<ResultsWriter>,
    /// The changes again, if a later run is to go on from a checkpoint.
    ledger: Option<Ledger>,
}

/// What a checkpoint says in place of the length of a ledger if there is none.
pub(super) const NO_LEDGER: u64 = u64::MAX;

impl Output {
    /// Attaches the outputs that `args` asks for to `changes`; `ledger_bytes` are those of the
    /// checkpoint that the run goes on from, or 0.
    pub(super) fn attach<R: Row>(
        changes: Changes<'_, i64, R>,
        args: &NexmarkArgs,
        state: &WorkerState,
        ledger_bytes: u64,
    ) -> Result<Self> {
        let index = changes.scope().index();
        let gathered = Gathered::open(args, index == 0, R::COLUMNS, ledger_bytes)?;
        let gathered = Rc::new(RefCell::new(gathered));
        let (checksum, probe) = (Rc::new(Cell::new(0u64)), ProbeHandle::new());
        let partitions = args.partitions.as_deref().map(|root| {
            Rc::new(RefCell::new(Partitions::new(root, index, R::COLUMNS, R::PARTITION_COLUMNS)))
        });
        let (sum, parts, job) = (checksum.clone(), partitions.clone(), state.clone());
        let counted = changes.inspect(move |(row, _, diff)| {
            let digest = row.digest().wrapping_mul(diff.cast_unsigned());
            sum.set(sum.get().wrapping_add(digest));
            if let (Some(parts), Some(partition)) = (&parts, row.partition())
                && let Err(error) = parts.borrow_mut().add(partition, &row.fields(), *diff)
            {
                job.end_run(error.into());
            }
        });
        if args.results.is_none() && args.changes.is_none() {
            counted.probe_with(&probe);
        } else {
            let lines = counted.map(|(row, time, diff)| (row.fields(), time, diff));
            gather(lines, gathered.clone(), state.clone(), &probe);
        }
        Ok(Self { checksum, probe, gathered, partitions })
    }

    /// Finishes the files of partitions that get no further row.
    pub(super) fn finish_partitions(&self) -> Result<()> {
        let Some(partitions) = &self.partitions else { return Ok(()) };
        let watermark = self.probe.with_frontier(|frontier| frontier.first().copied());
        partitions.borrow_mut().finish_before(watermark.map_or(Time::MAX, Time))
    }

    /// Bytes of the finished files of partitions.
    pub(super) fn partition_bytes(&self) -> u64 {
        self.partitions.as_ref().map_or(0, |partitions| partitions.borrow().bytes())
    }

    /// Makes the ledger durable, and gives its length.
    pub(super) fn sync_ledger(&self) -> Result<u64> {
        self.gathered.borrow_mut().ledger.as_mut().map_or(Ok(NO_LEDGER), Ledger::sync)
    }

    /// Writes what is still to be written.
    pub(super) fn finish(&self, args: &NexmarkArgs, columns: &[&str]) -> Result<()> {
        let Gathered { result, changes, ledger: _ } = self.gathered.take();
        changes.map_or(Ok(()), ResultsWriter::finish)?;
        let (Some(result), Some(path)) = (result, &args.results) else { return Ok(()) };
        let mut writer = ResultsWriter::create(path, columns)?;
        for (row, times) in result {
            for _ in 0..times {
                writer.row(row.iter().map(Option::as_deref))?;
            }
        }
        writer.finish()
    }
}

/// Adds the changes of all workers to what the first one gathers.
fn gather(
    lines: StreamVec<'_, i64, Line>,
    sink: Rc<RefCell<Gathered>>,
    state: WorkerState,
    probe: &ProbeHandle<i64>,
) {
    lines
        .exchange(|_: &Line| 0)
        .inspect(move |line| {
            if let Err(error) = sink.borrow_mut().add(line) {
                state.end_run(error.into());
            }
        })
        .probe_with(probe);
}

impl Gathered {
    /// Opens the files that `args` asks for, of rows with these columns.
    fn open(
        args: &NexmarkArgs,
        is_first: bool,
        columns: &[&str],
        ledger_bytes: u64,
    ) -> Result<Self> {
        let columns: Vec<&str> = ["time", "diff"].iter().chain(columns).copied().collect();
        let writer = args.changes.as_deref().filter(|_| is_first);
        let mut gathered = Self {
            result: args.results.as_ref().filter(|_| is_first).map(|_| HashMap::new()),
            changes: writer.map(|path| ResultsWriter::create(path, &columns)).transpose()?,
            ledger: None,
        };
        gathered.ledger = match args.directory() {
            Some(directory) if is_first && args.keeps_changes(ledger_bytes > 0) => {
                if ledger_bytes == NO_LEDGER {
                    let message = "the runs before this one kept no changes; give --results or \
                                   --changes from the first run on";
                    return Err(Error::Usage(message.to_owned()));
                }
                Some(Ledger::open(directory, ledger_bytes, &mut |line| gathered.add(line))?)
            }
            _ => None,
        };
        Ok(gathered)
    }

    fn add(&mut self, line: &Line) -> Result<()> {
        let (row, time, diff) = line;
        if let Some(ledger) = &mut self.ledger {
            ledger.add(line)?;
        }
        if let Some(changes) = &mut self.changes {
            let at = [Time(*time).as_ms().to_string(), diff.to_string()];
            let at = at.iter().map(|field| Some(field.as_str()));
            changes.row(at.chain(row.iter().map(Option::as_deref)))?;
        }
        if let Some(result) = &mut self.result {
            let times = result.entry(row.clone()).or_default();
            *times += diff;
            if *times == 0 {
                result.remove(row);
            }
        }
        Ok(())
    }
}
