//! A job is told to go back to a checkpoint that its record lists, and a job that has none begins anew, whatever
//! checkpoints somebody has taken of its stores.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use alluvium::config::ByteSize;
use alluvium::{Error, ErrorKind, MIB, Result, Time};
use alluvium_timely::{Counting, JobCheckpoints, KeyBy, Rolling, Spec, Turn, WorkerState, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::worker::Worker;

use crate::checker::committed;
use crate::job::{Accident, End, Job, expected, node, run_in, together, work};

/// Goes back to a checkpoint, with the number of workers that there were or another.
fn go_back(
    directory: &Path,
    workers: usize,
    job: Job,
    number: u64,
    accident: Accident,
) -> Result<Vec<End>> {
    let mut node = node().restore(number);
    node.store.directory = Some(directory.to_owned());
    node.store.memory = ByteSize(8 * MIB * workers as u64);
    execute(timely::Config::process(workers), node, move |worker, state| {
        work(job, worker, state, &accident)
    })
}

#[test]
fn a_job_goes_back_to_a_checkpoint_that_its_record_lists() {
    for workers in [2, 3] {
        let directory = tempfile::tempdir().unwrap();
        let job = Job { numbers: 400, every: 50, batch: 1, ties: 1 };
        run_in(directory.path(), 2, job, Accident::default()).unwrap();
        let before = committed(directory.path());
        let [older, last] = &before[..] else { panic!("{before:?}") };
        let unknown = go_back(directory.path(), workers, job, 99, Accident::default()).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Missing, "{unknown}");
        let words = format!("it can to: {}, {}", older.number, last.number);
        assert!(unknown.to_string().contains(&words), "{unknown}");
        assert_eq!(committed(directory.path()), before, "nothing was changed");
        // The run ends before it has a checkpoint of its own: the next goes on from where this one went back to.
        let job = Job { numbers: 600, ..job };
        go_back(directory.path(), workers, job, older.number, Accident::after(20)).unwrap_err();
        assert_eq!(committed(directory.path()), before[..1]);
        let ends = run_in(directory.path(), workers, job, Accident::default()).unwrap();
        assert!(ends.iter().all(|end| end.restored == older.number), "{ends:?}");
        assert_eq!(together(&ends), expected(job));
        // And so it does that went back itself, to the last one too.
        let newest = committed(directory.path()).pop().unwrap();
        let job = Job { numbers: 700, ..job };
        let ends = go_back(directory.path(), workers, job, newest.number, Accident::default());
        let ends = ends.unwrap();
        assert!(ends.iter().all(|end| end.restored == newest.number), "{ends:?}");
        assert_eq!(together(&ends), expected(job));
    }
}

/// Counts 60 numbers by key. If `dies`, takes a checkpoint of each store by itself, and ends by an error before
/// the job has one.
fn count(worker: &mut Worker, state: &WorkerState, dies: bool) -> Result<BTreeMap<u64, i64>> {
    let (probe, counts) = (ProbeHandle::new(), Rc::new(RefCell::new(BTreeMap::new())));
    let sink = counts.clone();
    let input = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input::<u64>();
        rows.key_by(state, |row| row % 5)
            .rolling(Spec::new("counts"), Counting)?
            .inspect(move |((key, count), _, diff)| {
                if *diff > 0 {
                    sink.borrow_mut().insert(*key, *count);
                }
            })
            .probe_with(&probe);
        Ok::<_, Error>(input)
    })?;
    let mut job = JobCheckpoints::new(state, probe.clone())?;
    let mut input = job.input(input);
    assert!(state.restored().is_none());
    let (index, peers) = (worker.index() as u64, worker.peers());
    (index..60).step_by(peers).try_for_each(|row| input.send(Time(1), row))?;
    input.advance_to(Time(2))?;
    state.run_until(worker, || !probe.less_than(&2))?;
    if dies {
        state.store().checkpoint(1)?;
        // All have one.
        state.meet(worker, 0)?;
        return Err(Error::new(ErrorKind::Input, "an accident"));
    }
    loop {
        match job.turn(true)? {
            Turn::Until(until) => input.advance_to(until)?,
            Turn::Seal { .. } => job.seal(&[])?,
            Turn::End(_) => break,
            Turn::Go | Turn::Wait => {}
        }
        state.step(worker)?;
    }
    Ok(counts.take())
}

#[test]
fn a_stores_own_checkpoint_before_the_jobs_first_is_not_gone_on_from() {
    for workers in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        let run = |dies| {
            let mut node = node();
            node.store.directory = Some(directory.path().to_owned());
            execute(timely::Config::process(workers), node, move |worker, state| {
                count(worker, state, dies)
            })
        };
        for _ in 0..2 {
            let error = run(true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        }
        let counts: BTreeMap<u64, i64> = run(false).unwrap().into_iter().flatten().collect();
        assert_eq!(counts, (0..5).map(|key| (key, 12)).collect());
    }
}
