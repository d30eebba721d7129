//! Calls that fail are made again, until they do not: each event counts once, each result comes out once.
//!
//! What this catches: a call that writes two states and fails between them, so that the next try does
//! the first write again, or never the second. On a layout that refuses by number, each single write of
//! a history is refused, once, then three times in a row. On ours all memory but a little is taken by
//! somebody else.

use std::cell::{Cell, RefCell};

use alluvium::backend::{HolisticLayout, WindowLayout};
use alluvium::time::nanos;
use alluvium::{AnyLayout, Elements, Emit, ErrorKind, MIB, Result, Store, process};

use crate::btree_layout::{BTree, refusals};
use crate::dice::Dice;
use crate::sorted::Sorted;
use crate::taken::take_all_but;
use crate::windows_hold_what_the_definition_says::{
    Collected, Step, check, events, expected, history, run, windows,
};

/// Length, slide and offset; a gap and 0 are sessions.
type Shape = (i64, i64, i64);

const SHAPES: [Shape; 5] = [(5, 0, 0), (12, 0, 0), (10, 10, 0), (10, 2, 0), (26, 1, 3)];
const EMITS: [Emit; 3] = [Emit::OnClose, Emit::OnWatermark, Emit::Early(nanos(3))];
/// Most times that a call is made.
const CALLS_MAX: u32 = 40;

/// Makes calls again, and says between two of them that one has failed.
struct Calls<'a> {
    before: &'a dyn Fn(),
    failed: &'a dyn Fn(),
}

impl Calls<'_> {
    fn outlast<R>(&self, mut call: impl FnMut() -> Result<R>) -> R {
        (self.before)();
        for _ in 0..CALLS_MAX {
            match call() {
                Ok(done) => return done,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
                    (self.failed)();
                }
            }
        }
        panic!("a call fails that nobody refuses");
    }
}

/// What windows are made of, and how they are told.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: Shape,
    lateness: i64,
    emit: Emit,
    subtracts: bool,
}

fn run_aggregated<L: WindowLayout<u64, Vec<i64>>>(
    case: Case,
    layout: L,
    history: &[Step],
    store: &Store,
    calls: &Calls<'_>,
) -> Collected {
    let spec = windows(case.shape, case.lateness, case.emit);
    let opened = store.aggregated("w").layout(layout).open(spec, Sorted(case.subtracts));
    let opened = RefCell::new(opened.unwrap());
    run(
        history,
        |sent, batch, late, out| {
            calls.outlast(|| opened.borrow_mut().add_batch(sent, batch, late, out));
        },
        |to, fuel, out| calls.outlast(|| opened.borrow_mut().advance(to, fuel, out)).done,
        |_, _| (),
    )
}

fn run_holistic<L: HolisticLayout<u64, i64>>(
    case: Case,
    layout: L,
    history: &[Step],
    store: &Store,
    calls: &Calls<'_>,
) -> Collected {
    let sort = |_: &u64, _, all: &mut dyn Elements<i64>, emit: &mut dyn FnMut(Vec<i64>)| {
        let mut sorted = Vec::new();
        while let Some(element) = all.next()? {
            sorted.push(*element);
        }
        sorted.sort_unstable();
        emit(sorted);
        Ok(())
    };
    let spec = windows(case.shape, case.lateness, case.emit);
    let opened = store.holistic("w").layout(layout).open(spec, process(sort));
    let opened = RefCell::new(opened.unwrap());
    run(
        history,
        |sent, batch, late, out| {
            calls.outlast(|| opened.borrow_mut().add_batch(sent, batch, late, out));
        },
        |to, fuel, out| calls.outlast(|| opened.borrow_mut().advance(to, fuel, out)).done,
        |_, _| (),
    )
}

/// Each shape, way to emit and lateness with some histories of so many steps.
fn each_case(steps: usize, seeds: u64, mut visit: impl FnMut(&str, Case, &[Step], u64)) {
    for (n, shape) in SHAPES.into_iter().enumerate() {
        for emit in EMITS {
            for lateness in [0, 6] {
                for seed in 0..seeds {
                    let case = Case { shape, lateness, emit, subtracts: seed % 2 == 0 };
                    let mut dice = Dice(7000 + seed * 100 + n as u64);
                    let history = history(&mut dice, steps);
                    visit(&format!("{case:?} seed {seed}"), case, &history, seed);
                }
            }
        }
    }
}

#[test]
fn each_write_is_refused_once_and_three_times() {
    let (refused, mut writes) = (Cell::new(0), 0);
    let failed = || refused.set(refused.get() + 1);
    let calls = Calls { before: &|| (), failed: &failed };
    each_case(10, 2, |what, case, history, _| {
        let model = expected(&events(history), case.shape, case.lateness);
        for is_kept in [false, true] {
            let attempt = |writes: std::ops::Range<u64>| {
                let store = Store::in_memory().open().unwrap();
                let what = format!("{what} kept {is_kept} refused {writes:?}");
                refusals::refuse(writes);
                let collected = match is_kept {
                    true => run_holistic(case, BTree, history, &store, &calls),
                    false => run_aggregated(case, BTree, history, &store, &calls),
                };
                let tried = refusals::tried();
                refusals::refuse(0..0);
                check(&what, &collected, &model, case.emit);
                tried
            };
            let all = attempt(0..0);
            for write in 0..all {
                attempt(write..write + 1);
                attempt(write..write + 3);
            }
            writes += all;
        }
    });
    // A write that only goes on with what was taken fails no call, if the next try succeeds.
    assert!(refused.get() >= 3 * writes && writes > 1000, "{} of {writes}", refused.get());
}

fn memory_is_taken(
    name: &str,
    run: impl Fn(Case, AnyLayout, &[Step], &Store, &Calls<'_>) -> Collected,
) {
    let refused = Cell::new(0u64);
    each_case(40, 5, |what, case, history, seed| {
        let what = format!("{name} {what}");
        let store = Store::in_memory().memory(4 * MIB).open().unwrap();
        let (dice, taken, left) = (RefCell::new(Dice(!seed)), RefCell::default(), Cell::new(0));
        // Taken before every other call, and given back when that has failed once, or thrice.
        let before = || {
            let mut dice = dice.borrow_mut();
            if dice.below(2) == 0 {
                left.set(if dice.below(2) == 0 { 1 } else { 3 });
                let most = if dice.below(2) == 0 { 200 } else { 4000 };
                *taken.borrow_mut() = take_all_but(&store, dice.below(most));
            } else {
                taken.borrow_mut().clear();
            }
        };
        let failed = || {
            refused.set(refused.get() + 1);
            left.set(left.get() - 1);
            if left.get() == 0 {
                taken.borrow_mut().clear();
            }
        };
        let calls = Calls { before: &before, failed: &failed };
        let collected = run(case, AnyLayout::named(name).unwrap(), history, &store, &calls);
        let model = expected(&events(history), case.shape, case.lateness);
        check(&what, &collected, &model, case.emit);
    });
    assert!(refused.get() > 200, "{name}: {} calls failed", refused.get());
}

#[test]
fn memory_that_others_take_loses_nothing_of_aggregated_windows() {
    for name in ["heap", "hybrid-log", "window-segments", "auto"] {
        memory_is_taken(name, run_aggregated);
    }
}

#[test]
fn memory_that_others_take_loses_nothing_of_holistic_windows() {
    for name in ["heap", "append-log", "auto"] {
        memory_is_taken(name, run_holistic);
    }
}
