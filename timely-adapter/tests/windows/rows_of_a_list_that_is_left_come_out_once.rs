//! A function of windows that gives a row for each event as it reads it, on a device that stops once in the
//! middle of a list. The operator waits and calls again; each row comes out once, at the window's time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium::io::{Device, Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{AnyLayout, AppendLog, Elements, KIB, MIB, Process, Result, Time, Window, Windows};
use alluvium_timely::{Fault, KeyBy, Spec, Windowing, WorkerState};
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{InputHandleVec, ProbeHandle};
use timely::worker::Worker;

use crate::common;

/// A key, a number, and what makes it long.
type Row = (u64, u64, Vec<u8>);

struct Each;

impl Process<u64, Row> for Each {
    type Row = u64;

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        rows: &mut dyn Elements<Row>,
        emit: &mut dyn FnMut(u64),
    ) -> Result<()> {
        while let Some((_, number, _)) = rows.next()? {
            emit(*number);
        }
        Ok(())
    }
}

const KEYS: u64 = 4;
const ROWS: u64 = 150;
/// Longer than a busy machine takes for anything that this test does.
const FOR_EVER: Duration = Duration::from_secs(60);

type Given = Rc<RefCell<BTreeMap<u64, Vec<(u64, i64, i64)>>>>;

/// Whether the operator waited for the stuck read with a part of a list given.
fn run(device: &Simulated, worker: &mut Worker, state: &WorkerState, nth: u64) -> bool {
    let (given, probe) = (Given::default(), ProbeHandle::new());
    let sink = given.clone();
    let layout = AppendLog::new().memory(256 * KIB).patience(Duration::from_millis(200));
    let mut input: InputHandleVec<i64, Row> = worker.dataflow::<i64, _, _>(|scope| {
        let (input, rows) = scope.new_input();
        rows.key_by(state, |row: &Row| row.0)
            .window(Windows::tumbling(nanos(10)), |row| Time(row.1 as i64 % 10))
            .holistic(Spec::new("each").layout(AnyLayout::from(layout)), Each)
            .unwrap()
            .results
            .inspect(move |((key, _, number), time, diff)| {
                sink.borrow_mut().entry(*key).or_default().push((*number, *time, *diff));
            })
            .probe_with(&probe);
        input
    });
    for number in 0..ROWS {
        (0..KEYS).for_each(|key| input.send((key, number, vec![key as u8; 1000])));
        input.flush();
        worker.step();
    }
    device.on_nth_read(nth, alluvium::io::Fault::Stuck);
    input.close();
    let (since, mut within) = (Instant::now(), false);
    while !probe.done() {
        assert!(since.elapsed() < FOR_EVER, "read {nth}: {:?}", state.waiting());
        assert_eq!(state.fault().map(ToString::to_string), None, "read {nth}");
        if device.stuck() > 0 && !state.waiting().is_empty() {
            within |= given.borrow().values().any(|rows| (rows.len() as u64) < ROWS);
            device.forget_scripts();
            device.release_stuck();
        }
        device.drive();
        worker.step_or_park(Some(Duration::from_millis(1)));
    }
    let expected: Vec<_> = (0..ROWS).map(|number| (number, 10, 1)).collect();
    let given = given.take();
    assert_eq!(given.len() as u64, KEYS, "read {nth}");
    assert!(given.values().all(|rows| *rows == expected), "read {nth}: {given:?}");
    within
}

#[test]
fn rows_of_a_list_that_is_left_come_out_once() {
    let mut within = 0;
    for nth in 1..=30 {
        let device = Simulated::new(nth, Faults::none());
        let scripted = device.clone();
        let work =
            move |worker: &mut Worker, state: &WorkerState| run(&scripted, worker, state, nth);
        within += u64::from(common::on_device(&device, 4 * MIB, Fault::WAIT, work));
        if within == 2 {
            return;
        }
    }
    panic!("the operator waited {within} times within a list");
}
