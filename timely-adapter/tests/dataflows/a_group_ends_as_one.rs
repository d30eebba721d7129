//! A panic, an error or the absence of one worker ends the run on all workers of all processes
//! with its message, and what they held is released.

use std::cell::Cell;
use std::panic::panic_any;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use alluvium::config::ByteSize;
use alluvium::{AnyLayout, Error, ErrorKind, Heap, KIB, Result, StoreConfig};
use alluvium_timely::{Counting, KeyBy, NodeConfig, Rolling, Spec, WorkerState, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::worker::Worker;

use crate::processes::{cluster, free_addresses};

/// What goes wrong on worker 1 once it has counted a while.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Accident {
    Nothing,
    PanicInJob,
    PanicInOperator,
    PanicWithoutText,
    Error,
    State,
}

/// Counts 20 keys at 50 times; all workers are in it when the accident happens. Gives the number
/// of changes.
fn count(worker: &mut Worker, state: &WorkerState, accident: Accident) -> Result<u64> {
    let unlucky = worker.index() == 1;
    let (probe, changes) = (ProbeHandle::new(), Rc::new(Cell::new(0)));
    let counted = changes.clone();
    let mut input = worker.dataflow::<u64, _, _>(|scope| {
        let (input, rows) = scope.new_input::<u64>();
        rows.key_by(state, |row| *row)
            .rolling(Spec::new("counts"), Counting)?
            .inspect(move |(_, time, _)| {
                counted.set(counted.get() + 1);
                if accident == Accident::PanicInOperator && unlucky && *time == 25 {
                    panic!("an operator is out of order");
                }
            })
            .probe_with(&probe);
        Ok::<_, Error>(input)
    })?;
    for time in 0..50 {
        (0..20).for_each(|row| input.send(row));
        if accident == Accident::State {
            (0..1_000).for_each(|row| input.send(row + 1_000 * time));
        }
        input.advance_to(time + 1);
        state.run_until(worker, || !probe.less_equal(&time))?;
        match accident {
            Accident::PanicInJob if unlucky && time == 25 => panic!("the job is out of order"),
            Accident::PanicWithoutText if unlucky && time == 25 => panic_any(7),
            Accident::Error if unlucky && time == 25 => {
                return Err(Error::new(ErrorKind::Input, "line 26 is not good"));
            }
            _ => {}
        }
    }
    Ok(changes.get())
}

fn node(directory: &std::path::Path, accident: Accident) -> NodeConfig {
    let small = accident == Accident::State;
    let layout = if small { Heap::new().memory(128 * KIB) } else { Heap::new() };
    let (layout, directory) = (AnyLayout::from(layout), Some(directory.to_owned()));
    StoreConfig { layout, directory, ..StoreConfig::default() }.into()
}

fn expected(accident: Accident) -> (ErrorKind, &'static str) {
    match accident {
        Accident::Nothing => unreachable!("nothing is expected"),
        Accident::PanicInJob => (ErrorKind::Panicked, "worker 1 panicked: the job is out of order"),
        Accident::PanicInOperator => {
            (ErrorKind::Panicked, "worker 1 panicked: an operator is out of order")
        }
        Accident::PanicWithoutText => (ErrorKind::Panicked, "worker 1 panicked: it gave no text"),
        Accident::Error => (ErrorKind::Input, "line 26 is not good"),
        Accident::State => (ErrorKind::OverBudget, "state failed in an operator: "),
    }
}

const ACCIDENTS: [Accident; 5] = [
    Accident::PanicInJob,
    Accident::PanicInOperator,
    Accident::PanicWithoutText,
    Accident::Error,
    Accident::State,
];

#[test]
fn an_accident_on_one_worker_ends_all_workers_and_releases_what_they_hold() {
    let directory = tempfile::tempdir().unwrap();
    for accident in ACCIDENTS {
        let ended = Arc::new(AtomicUsize::new(0));
        let count_ended = ended.clone();
        let config = timely::Config::process(3);
        let outcome = execute(config, node(directory.path(), accident), move |worker, state| {
            let outcome = count(worker, state, accident);
            count_ended.fetch_add(1, Ordering::Relaxed);
            outcome
        });
        let error = outcome.unwrap_err();
        let (kind, message) = expected(accident);
        assert_eq!(error.kind(), kind, "{accident:?}: {error}");
        assert!(error.to_string().starts_with(message), "{accident:?}: {error}");
        let panics = kind == ErrorKind::Panicked;
        assert_eq!(ended.load(Ordering::Relaxed), if panics { 2 } else { 3 }, "{accident:?}");
        // The same directories are taken again at once.
        let config = timely::Config::process(3);
        let node = node(directory.path(), Accident::Nothing);
        let changes =
            execute(config, node, |worker, state| count(worker, state, Accident::Nothing));
        assert_eq!(changes.unwrap().iter().sum::<u64>(), 3 * 50 * 20 * 2 - 20, "{accident:?}");
    }
}

#[test]
fn a_worker_that_cannot_open_its_state_keeps_all_from_beginning() {
    let begun = Arc::new(AtomicUsize::new(0));
    let count_begun = begun.clone();
    let outcome = alluvium_timely::execute_with(
        timely::Config::process(3),
        NodeConfig::default(),
        |worker| alluvium_timely::WorkerOverrides {
            memory_bytes: Some(if worker == 2 { 1 } else { 1 << 20 }),
            ..Default::default()
        },
        move |_, _| {
            count_begun.fetch_add(1, Ordering::Relaxed);
            Ok(())
        },
    );
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("(worker 2)"), "{error}");
    assert_eq!(begun.load(Ordering::Relaxed), 0);
}

/// Runs a job as several processes, which are threads here, and gives what each returned.
fn run_cluster<R: Send + 'static>(
    threads: usize,
    nodes: Vec<NodeConfig>,
    job: impl Fn(&mut Worker, &WorkerState) -> Result<R> + Clone + Send + Sync + 'static,
) -> (Vec<String>, Vec<Result<Vec<R>>>) {
    let addresses = free_addresses(nodes.len());
    let start = |(process, node)| {
        let (config, job) = (cluster(threads, process, &addresses), job.clone());
        std::thread::spawn(move || execute(config, node, job))
    };
    let processes: Vec<_> = nodes.into_iter().enumerate().map(start).collect();
    let outcomes = processes.into_iter().map(|p| p.join().expect("no panic")).collect();
    (addresses, outcomes)
}

#[test]
fn processes_count_together_and_meet() {
    for (processes, threads) in [(2, 1), (2, 2), (3, 1)] {
        let directory = tempfile::tempdir().unwrap();
        let place = |process: usize| directory.path().join(process.to_string());
        let nodes: Vec<_> =
            (0..processes).map(|process| node(&place(process), Accident::Nothing)).collect();
        let share = StoreConfig::default().memory.0 / threads as u64;
        let (_, outcomes) = run_cluster(threads, nodes, move |worker, state| {
            let index = worker.index() as i64;
            for round in 0..20 {
                let met = state.meet(worker, index + round)?;
                let peers = worker.peers() as i64;
                assert_eq!(met.max, peers - 1 + round);
                assert_eq!(met.sum, peers * (peers - 1) / 2 + peers * round);
            }
            assert_eq!(state.store().stats()?.memory.limit, share);
            count(worker, state, Accident::Nothing)
        });
        let changes = outcomes.into_iter().flat_map(|changes| changes.unwrap());
        let workers = processes * threads;
        assert_eq!(changes.sum::<u64>(), workers as u64 * 50 * 20 * 2 - 20);
        for process in 0..processes {
            for worker in 0..workers {
                let is_there = place(process).join(format!("worker-{worker}")).is_dir();
                assert_eq!(is_there, worker / threads == process, "{worker} of {process}");
            }
        }
    }
}

#[test]
fn an_accident_in_one_process_ends_the_others_with_its_message_and_place() {
    for accident in ACCIDENTS {
        let directory = tempfile::tempdir().unwrap();
        let nodes = |accident| {
            let place = |process: usize| directory.path().join(process.to_string());
            (0..2).map(|process| node(&place(process), accident)).collect::<Vec<_>>()
        };
        let (addresses, outcomes) =
            run_cluster(1, nodes(accident), move |w, s| count(w, s, accident));
        let (kind, message) = expected(accident);
        let errors = outcomes.into_iter().map(|outcome| outcome.unwrap_err());
        for (process, error) in errors.enumerate() {
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{accident:?} in process {process}: {text}");
            assert!(text.starts_with(message), "{accident:?} in process {process}: {text}");
            if accident != Accident::State {
                let place = format!("(process 1 at {})", addresses[1]);
                assert_eq!(text.ends_with(&place), process == 0, "{text}");
            }
        }
        let (_, again) = run_cluster(1, nodes(Accident::Nothing), |_, _| Ok(()));
        again.into_iter().for_each(|outcome| drop(outcome.unwrap()));
    }
}

/// Tells a copy of this program which process it is, and where all of them are.
const CHILD: &str = "ALLUVIUM_TEST_CHILD";

/// The same with processes that have no memory in common.
#[test]
fn a_panic_in_another_program_is_heard() {
    let name = "a_group_ends_as_one::a_panic_in_another_program_is_heard";
    if let Ok(child) = std::env::var(CHILD) {
        let mut words = child.split(' ');
        let process: usize = words.next().expect("a number").parse().expect("a number");
        let addresses: Vec<_> = words.map(str::to_owned).collect();
        let config = cluster(1, process, &addresses);
        let accident = Accident::PanicInOperator;
        let outcome = execute(config, NodeConfig::default(), move |w, s| count(w, s, accident));
        eprintln!("the run ended: {}", outcome.unwrap_err());
        std::process::exit(7);
    }
    let addresses = free_addresses(2);
    let start = |process: usize| {
        let program = std::env::current_exe().expect("this program");
        let mut command = std::process::Command::new(program);
        command.args(["--exact", name, "--nocapture"]);
        command.env(CHILD, format!("{process} {}", addresses.join(" ")));
        command.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
        command.spawn().expect("it starts")
    };
    let children = [start(0), start(1)];
    let [first, second] = children.map(|child| child.wait_with_output().expect("it ends"));
    for (output, place) in
        [(first, format!(" (process 1 at {})", addresses[1])), (second, String::new())]
    {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{errors}");
        let (_, message) = expected(Accident::PanicInOperator);
        let line = format!("the run ended: {message}{place}");
        assert!(errors.lines().any(|found| found == line), "{line} is not in {errors}");
    }
}

#[test]
fn a_process_waits_with_its_results_for_the_failure_of_another() {
    let nodes = vec![NodeConfig::default(); 3];
    let (_, outcomes) = run_cluster(1, nodes, |worker, _| match worker.index() {
        2 => {
            std::thread::sleep(Duration::from_millis(300));
            Err(Error::new(ErrorKind::DiskFull, "no room for the result"))
        }
        _ => Ok(()),
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
    }
}

#[test]
fn a_process_that_does_not_come_is_named() {
    for absent in 0..2 {
        let addresses = free_addresses(2);
        let node = NodeConfig::default().connect_within(Duration::from_millis(200));
        let config = cluster(1, 1 - absent, &addresses);
        let error = execute(config, node, |_, _| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        let place =
            format!("process {absent} at {} did not connect within 0.2 s", addresses[absent]);
        assert!(error.to_string().starts_with(&place), "{error}");
    }
}

#[test]
fn processes_with_other_options_refuse_each_other() {
    let addresses = free_addresses(2);
    let at_once = Arc::new(Barrier::new(2));
    let start = |(process, threads): (usize, usize)| {
        let (config, at_once) = (cluster(threads, process, &addresses), at_once.clone());
        std::thread::spawn(move || {
            at_once.wait();
            execute(config, NodeConfig::default(), |_, _| Ok(())).unwrap_err()
        })
    };
    let threads = [start((0, 2)), start((1, 3))];
    let [here, there] = threads.map(|thread| thread.join().unwrap());
    for (error, text) in [
        (here, "has 2 processes of 3 workers, 256 key groups; here are 2 processes of 2 workers"),
        (there, "has 2 processes of 2 workers, 256 key groups; here are 2 processes of 3 workers"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn callers_who_are_no_process_are_passed_over() {
    let addresses = free_addresses(2);
    let (noise, run) = (addresses.clone(), addresses.clone());
    let first = std::thread::spawn(move || {
        execute(cluster(1, 0, &run), NodeConfig::default(), |_, state| Ok(state.index()))
    });
    let mut strangers = Vec::new();
    for text in ["GET / HTTP/1.1\r\n\r\n", "{}\n", ""] {
        let mut stranger = loop {
            match std::net::TcpStream::connect(&noise[0]) {
                Ok(stranger) => break stranger,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        std::io::Write::write_all(&mut stranger, text.as_bytes()).unwrap();
        let shut = stranger.shutdown(std::net::Shutdown::Write);
        shut.unwrap();
        strangers.push(stranger);
    }
    let config = cluster(1, 1, &addresses);
    let second = execute(config, NodeConfig::default(), |_, state| Ok(state.index()));
    assert_eq!((first.join().unwrap().unwrap(), second.unwrap()), (vec![0], vec![1]));
}

#[test]
fn what_a_cluster_cannot_be_is_refused_before_anyone_is_called() {
    let addresses = free_addresses(2);
    let refused = |config, node: NodeConfig| execute(config, node, |_, _| Ok(())).unwrap_err();
    let few = || StoreConfig { key_groups: 3, ..StoreConfig::default() };
    let error = refused(cluster(2, 0, &addresses), few().into());
    assert!(error.to_string().contains("4 workers cannot share 3 key groups"), "{error}");
    let error = refused(cluster(1, 2, &addresses), NodeConfig::default());
    assert!(error.to_string().contains("there is no process 2 of 2"), "{error}");
    // Two processes cannot have one directory.
    let directory = tempfile::tempdir().unwrap();
    let memory = ByteSize(1 << 20);
    let own =
        StoreConfig { directory: Some(directory.path().into()), memory, ..Default::default() };
    let inner = own.clone();
    let outcome = execute(timely::Config::process(1), own.into(), move |_, _| {
        let inner = inner.clone().into();
        let taken = execute(timely::Config::process(1), inner, |_, _| Ok(())).unwrap_err();
        Ok(taken.kind())
    });
    assert_eq!(outcome.unwrap(), [ErrorKind::Locked]);
}

/// The others would wait for it at their meeting for ever.
#[test]
fn a_worker_whose_job_has_returned_fails_the_meeting_of_the_others() {
    let job = |worker: &mut Worker, state: &WorkerState| {
        state.meet(worker, 1)?;
        // Early or late: those that wait at the next meeting, or come to it, learn of it.
        if worker.index() == 1 {
            return Ok(());
        }
        state.meet(worker, 2).map(drop)
    };
    let check = |outcome: Result<Vec<()>>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        let text = error.to_string();
        assert!(text.contains("that worker 1 will not come to"), "{text}");
    };
    for _ in 0..10 {
        check(execute(timely::Config::process(3), NodeConfig::default(), job));
    }
    let addresses = free_addresses(2);
    let start = |process: usize| {
        let config = cluster(1, process, &addresses);
        std::thread::spawn(move || execute(config, NodeConfig::default(), job))
    };
    let running: Vec<_> = (0..2).map(start).collect();
    running.into_iter().for_each(|process| check(process.join().expect("no panic")));
}
