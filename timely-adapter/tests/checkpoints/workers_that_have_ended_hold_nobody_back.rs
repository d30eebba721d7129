//! A worker that has sent all it has waits for the others with its input open, as a checkpoint may
//! still come. What the others send is done all the same, however little they may have under way.

use alluvium::{Error, Time};
use alluvium_timely::{Counting, Gate, JobCheckpoints, KeyBy, Rolling, Spec, Turn, WorkerState};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;
use timely::dataflow::operators::vec::Input;
use timely::worker::Worker;

use crate::job::run_processes;

/// So many numbers a worker has, each at its own time: the last one more than all others.
fn numbers(index: usize, peers: usize) -> i64 {
    if index + 1 == peers { 500 } else { 10 * index as i64 }
}

/// Sends a worker's numbers, of which two may be under way, with a checkpoint now and then; gives
/// how many were committed.
fn work(worker: &mut Worker, state: &WorkerState) -> alluvium::Result<u64> {
    let probe = ProbeHandle::new();
    let input = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input::<i64>();
        rows.key_by(state, |row| row % 7)
            .rolling(Spec::new("counts"), Counting)?
            .probe_with(&probe);
        Ok::<_, Error>(input)
    })?;
    let mut gate = Gate::new(probe.clone()).bytes_max(2);
    let mut job = JobCheckpoints::new(state, probe.clone())?;
    let mut input = job.input(input);
    let peers = worker.peers();
    let (mut next, end, mut shut) = (0, numbers(state.index(), peers), 0);
    loop {
        if next > 0 && next % 200 == 0 && !job.is_busy() {
            job.request();
        }
        let turn = job.turn(next >= end)?;
        match turn {
            Turn::Go if next < end && gate.admits(&next) => {
                (shut, next) = (0, next + 1);
                input.send(Time(next - 1), next - 1)?;
                gate.sent(&(next - 1), 1);
                input.advance_to(Time(next))?;
            }
            Turn::Go if next < end => {
                shut += 1;
                assert!(shut < 20_000, "worker {} stands at {next} for good", state.index());
            }
            Turn::Go | Turn::Wait => {}
            Turn::Until(Time(until)) => {
                assert!(until >= *input.time(), "it is sent back");
                while next < until.min(end) {
                    input.send(Time(next), next)?;
                    next += 1;
                }
                input.advance_to(Time(until))?;
            }
            Turn::Seal { .. } => job.seal(&[next as u64])?,
            Turn::End(Time(latest)) => {
                assert!(latest >= numbers(peers - 1, peers) && *input.time() <= latest);
                break;
            }
        }
        state.step_or_nap(worker, std::time::Duration::from_millis(1))?;
    }
    Ok(job.committed().map_or(0, |checkpoint| checkpoint.number))
}

#[test]
fn the_others_go_on_when_a_worker_has_ended() {
    for (processes, threads) in [(1, 3), (2, 1), (3, 1)] {
        let place = tempfile::tempdir().unwrap();
        for ends in run_processes(place.path(), processes, threads, work) {
            // The last takes them while it is alone.
            let committed = ends.unwrap();
            assert!(committed.iter().all(|committed| *committed > 0), "{committed:?}");
        }
    }
}
