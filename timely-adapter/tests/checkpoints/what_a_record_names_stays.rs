//! A store's own checkpoints, taken beside the job, remove nothing that the job's record names.

use alluvium::config::ByteSize;
use alluvium::{ErrorKind, MIB, Result};
use alluvium_timely::{JobCheckpoints, Turn, WorkerState, execute};
use timely::dataflow::ProbeHandle;
use timely::worker::Worker;

use crate::checker::{commit_only, committed, copy};
use crate::job::node;

/// What a run does, beside `own` checkpoints of each store before the job's, and after each of them.
#[derive(Clone, Copy)]
struct Run {
    checkpoints: u64,
    own: u64,
}

/// Gives the count that was found, and what the store lists in the end.
fn work(run: Run, worker: &mut Worker, state: &WorkerState) -> Result<(i64, Vec<u64>)> {
    let key = (0u64..).find(|key| state.owner(alluvium::KeyHash::key_hash(key)) == state.index());
    let key = key.expect("one of so many");
    let mut count = state.store().count::<u64>("beside").open()?;
    let found = count.get(&key)?;
    let mut own = || -> Result<()> {
        for _ in 0..run.own {
            count.add(&key, 1000)?;
            match state.store().checkpoint(7) {
                // The job's is under way.
                Err(error) if error.kind() == ErrorKind::InUse => {}
                taken => drop(taken?),
            }
        }
        count.add(&key, -1000 * run.own as i64)?;
        Ok(())
    };
    own()?;
    let mut job = JobCheckpoints::new(state, ProbeHandle::<i64>::new())?;
    let (mut taken, mut asked) = (0, 0);
    let mut before = job.committed().map_or(0, |all| all.number);
    loop {
        if asked == taken && taken < run.checkpoints {
            asked += 1;
            job.request();
        }
        let turn = job.turn(taken == run.checkpoints)?;
        let now = job.committed().map_or(0, |all| all.number);
        if now > before {
            (taken, before) = (taken + 1, now);
            own()?;
        }
        match turn {
            Turn::Seal { .. } => job.seal(&[1])?,
            Turn::End(_) => break,
            _ => state.step(worker)?,
        }
    }
    own()?;
    let listed = state.store().checkpoints();
    Ok((found, listed.iter().map(|all| all.checkpoint.number).collect()))
}

#[test]
fn checkpoints_of_a_store_beside_the_job_remove_none_of_the_jobs() {
    let directory = tempfile::tempdir().unwrap();
    let run_in = |place: &std::path::Path, run: Run| {
        let mut node = node();
        node.store.directory = Some(place.to_owned());
        node.store.memory = ByteSize(16 * MIB);
        execute(timely::Config::process(2), node, move |worker, state| work(run, worker, state))
    };
    for round in 0..4 {
        // Of a run that takes none itself, too.
        let checkpoints = if round == 2 { 0 } else { 3 };
        let ends =
            run_in(directory.path(), Run { checkpoints, own: if round == 0 { 0 } else { 5 } });
        let ends = ends.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        assert!(ends.iter().all(|(found, _)| *found == 0), "round {round}: {ends:?}");
        let named = committed(directory.path());
        assert_eq!(named.len(), 2, "round {round}");
        for checkpoint in &named {
            for (worker, (_, listed)) in checkpoint.workers.iter().zip(&ends) {
                let number = worker.number;
                assert!(listed.contains(&number), "round {round}: {number} of {listed:?}");
            }
            // Nothing is kept for ever.
            assert!(ends.iter().all(|(_, listed)| listed.len() <= 5), "round {round}: {ends:?}");
            let again = tempfile::tempdir().unwrap();
            copy(directory.path(), again.path());
            commit_only(again.path(), checkpoint);
            let ends = run_in(again.path(), Run { checkpoints: 1, own: 0 });
            let ends =
                ends.unwrap_or_else(|error| panic!("round {round}: {checkpoint:?}: {error:?}"));
            assert!(ends.iter().all(|(found, _)| *found == 0), "round {round}: {ends:?}");
        }
    }
}
