//! Random histories of events, late ones among them, and watermarks give the results that a plain
//! re-computation gives: for all shapes, ways to emit, layouts, and amounts of fuel.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::backend::{HolisticLayout, WindowLayout};
use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::windows::Late;
use alluvium::{
    AnyLayout, Elements, Emit, ErrorKind, KIB, MIB, Store, Time, Window, Windows, process,
};

use crate::btree_layout::BTree;
use crate::dice::Dice;
use crate::model::{self, Event, Results};
use crate::sorted::Sorted;

/// A step of a history.
#[derive(Clone, Debug)]
pub enum Step {
    Add { sent: i64, events: Vec<(i64, u64, i64)> },
    Advance { watermark: i64, fuel: usize },
}

/// Events around a watermark that moves on, some of them late, in batches.
pub fn history(dice: &mut Dice, steps: usize) -> Vec<Step> {
    let mut watermark = dice.below(50) as i64 - 40;
    let mut value = 0;
    let mut all = Vec::new();
    for _ in 0..steps {
        if dice.below(3) == 0 {
            let far = if dice.below(8) == 0 { 60 } else { 8 };
            watermark += dice.below(far) as i64;
            let fuel = if dice.below(2) == 0 { 1 + dice.below(4) as usize } else { 1000 };
            all.push(Step::Advance { watermark, fuel });
        } else {
            let sent = watermark + dice.below(5) as i64;
            let count = 1 + dice.below(6);
            let events = (0..count).map(|_| {
                value += 1;
                let back = if dice.below(3) == 0 { dice.below(40) as i64 } else { 0 };
                (sent + dice.below(15) as i64 - back, dice.below(3), value)
            });
            all.push(Step::Add { sent, events: events.collect() });
        }
    }
    all
}

/// Has no events sent with a watermark with which some were sent before: what is opened again in between
/// does not know any more which sessions were there before these.
fn never_twice_at_a_watermark(history: &mut [Step]) {
    let (mut now, mut used) = (i64::MIN, BTreeSet::new());
    for step in history {
        match step {
            Step::Advance { watermark, .. } => now = *watermark,
            Step::Add { sent, .. } => {
                *sent += i64::from(*sent == now && used.contains(sent));
                used.insert(*sent);
            }
        }
    }
}

pub fn events(history: &[Step]) -> Vec<Event> {
    let mut all = Vec::new();
    for step in history {
        if let Step::Add { sent, events } = step {
            let event = |(at, key, value)| Event { at, sent: *sent, key, value };
            all.extend(events.iter().copied().map(event));
        }
    }
    all
}

/// What comes out, added up.
#[derive(Default)]
pub struct Collected {
    sums: BTreeMap<(Window, u64, Vec<i64>), i64>,
    /// How often results of a window and key came out, or were taken back.
    changes: BTreeMap<(Window, u64), u64>,
    dropped: Vec<(i64, u64, i64, i64)>,
}

impl Collected {
    fn note(&mut self, key: &u64, window: Window, row: Vec<i64>, diff: i64) {
        *self.sums.entry((window, *key, row)).or_default() += diff;
        *self.changes.entry((window, *key)).or_default() += 1;
    }

    fn results(&self) -> Results {
        let mut results = Results::new();
        for ((window, key, row), sum) in &self.sums {
            match sum {
                0 => {}
                1 => {
                    let old = results.insert((*window, *key), row.clone());
                    assert!(old.is_none(), "two results of {window:?} {key}: {old:?}, {row:?}");
                }
                sum => panic!("{window:?} {key} {row:?} came out {sum} times"),
            }
        }
        results
    }
}

/// Runs a history; `add` and `advance` are those of the windows under test.
pub fn run(
    history: &[Step],
    mut add: impl FnMut(
        Time,
        &mut Vec<(u64, Time, i64)>,
        &mut dyn FnMut(Late<u64, i64>),
        &mut dyn FnMut(&u64, Window, Vec<i64>, i64),
    ),
    mut advance: impl FnMut(Time, usize, &mut dyn FnMut(&u64, Window, Vec<i64>, i64)) -> bool,
    mut settled: impl FnMut(i64, &Collected),
) -> Collected {
    let mut collected = Collected::default();
    let end = Step::Advance { watermark: i64::MAX, fuel: 7 };
    for step in history.iter().chain([&end]) {
        match step {
            Step::Add { sent, events } => {
                let events = events.iter().map(|(at, key, value)| (*key, Time(*at), *value));
                let mut batch: Vec<_> = events.collect();
                let mut dropped = Vec::new();
                add(
                    Time(*sent),
                    &mut batch,
                    &mut |late| dropped.push((late.at.0, late.key, late.element, late.lateness)),
                    &mut |key, window, row, diff| collected.note(key, window, row, diff),
                );
                assert!(batch.is_empty());
                collected.dropped.extend(dropped);
            }
            Step::Advance { watermark, fuel } => {
                let mut calls = 0;
                // A watermark is also left half done, and events come between.
                while !advance(Time(*watermark), *fuel, &mut |key, window, row, diff| {
                    collected.note(key, window, row, diff);
                }) && (*watermark == i64::MAX || *fuel == 1000 || calls < 3)
                {
                    calls += 1;
                    assert!(calls < 100_000, "advancing does not end");
                }
                if *fuel == 1000 {
                    settled(*watermark, &collected);
                }
            }
        }
    }
    collected
}

/// Checks what came out against the model, and says whether some came early.
pub fn check(
    what: &str,
    collected: &Collected,
    (expected, dropped): &(Results, Vec<Event>),
    emit: Emit,
) -> bool {
    let results = collected.results();
    let missing: Vec<_> = expected.iter().filter(|(k, v)| results.get(k) != Some(v)).collect();
    let extra: Vec<_> = results.iter().filter(|(k, v)| expected.get(k) != Some(v)).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "{what}: missing {missing:?}, not expected {extra:?}"
    );
    let mut told = collected.dropped.clone();
    let dropped = dropped.iter().map(|e| (e.at, e.key, e.value, e.sent - e.at));
    let mut dropped: Vec<_> = dropped.collect();
    told.sort_unstable();
    dropped.sort_unstable();
    assert_eq!(told, dropped, "{what}: late events");
    if emit == Emit::OnClose {
        assert!(collected.changes.values().all(|n| *n == 1), "{what}: one result per window");
    }
    matches!(emit, Emit::Early(_)) && collected.changes.values().any(|n| *n > 1)
}

pub fn expected(events: &[Event], shape: (i64, i64, i64), lateness: i64) -> (Results, Vec<Event>) {
    match shape {
        (gap, 0, _) => model::sessions(events, gap, lateness),
        shape => model::aligned(events, shape, lateness),
    }
}

pub fn windows((length, slide, offset): (i64, i64, i64), lateness: i64, emit: Emit) -> Windows {
    let windows = match slide {
        0 => Windows::session(nanos(length)),
        _ => Windows::sliding(nanos(length), nanos(slide)).offset(nanos(offset.rem_euclid(slide))),
    };
    windows.lateness(nanos(lateness)).emit(emit)
}

/// All results of windows that are closed are out, and, if results come on closing, no others.
fn check_closed(
    what: &str,
    expected: &Results,
    collected: &Collected,
    watermark: i64,
    (lateness, emit, slide): (i64, Emit, i64),
) {
    if emit != Emit::OnClose || slide == 0 {
        return;
    }
    let closed = |((window, _), _): &(&(Window, u64), &Vec<i64>)| {
        window.end.0.saturating_add(lateness) <= watermark
    };
    let closed: Vec<_> = expected.iter().filter(closed).map(|(at, _)| *at).collect();
    let out: Vec<_> = collected.results().into_keys().collect();
    assert_eq!(out, closed, "{what} at {watermark}");
}

pub fn aggregated_windows_equal_the_model<L>(name: &str, layout: L, place: Place)
where
    L: WindowLayout<u64, Vec<i64>>,
{
    let (mut subtracts, mut early, mut left, mut half_done) = (false, 0, 0u64, 0u64);
    let mut cases = 0;
    each_case(place, |what, history, shape, lateness, emit| {
        subtracts = !subtracts;
        let what = format!("{name} {what} subtracts {subtracts}");
        let spec = windows(shape, lateness, emit);
        cases += 1;
        let opened = place.opened(|store| {
            let windows = store.aggregated("w").layout(layout.clone());
            let mut windows = windows.open(spec, Sorted(subtracts)).unwrap();
            // The timers of most sessions are let go, and found again.
            if cases % 3 > 0 {
                windows.keep_timers(cases % 3);
            }
            windows
        });
        let model = expected(&events(history), shape, lateness);
        let collected = run(
            history,
            |sent, batch, late, out| {
                opened.with(|windows| windows.add_batch(sent, batch, late, out).unwrap());
            },
            |to, fuel, out| {
                let done = opened.with(|w| w.advance(to, fuel, out).unwrap().done);
                left += u64::from(!done);
                if !done && left % 8 == 0 {
                    half_done += u64::from(opened.restart_in_steps());
                }
                done
            },
            |to, collected| {
                check_closed(&what, &model.0, collected, to, (lateness, emit, shape.1));
                opened.restart();
            },
        );
        early += u64::from(check(&what, &collected, &model, emit));
    });
    assert!(early > 100, "{name}: {early} histories with early results");
    let is_restarted = matches!(place, Place::Device);
    assert!(!is_restarted || half_done > 20, "{name}: {half_done} restarts in between");
}

pub fn holistic_windows_equal_the_model<L>(name: &str, layout: L, place: Place)
where
    L: HolisticLayout<u64, i64>,
{
    let (mut early, mut left, mut half_done, mut cases) = (0, 0u64, 0u64, 0);
    each_case(place, |what, history, shape, lateness, emit| {
        let what = format!("{name} {what}");
        let spec = windows(shape, lateness, emit);
        let sort =
            |_: &u64, _, elements: &mut dyn Elements<i64>, emit: &mut dyn FnMut(Vec<i64>)| {
                let mut all = Vec::new();
                while let Some(element) = elements.next()? {
                    all.push(*element);
                }
                all.sort_unstable();
                emit(all);
                Ok(())
            };
        cases += 1;
        let opened = place.opened(|store| {
            let windows = store.holistic("w").layout(layout.clone());
            let mut windows = windows.open(spec, process(sort)).unwrap();
            if cases % 3 > 0 {
                windows.keep_timers(cases % 3);
            }
            windows
        });
        let model = expected(&events(history), shape, lateness);
        let collected = run(
            history,
            |sent, batch, late, out| {
                opened.with(|windows| windows.add_batch(sent, batch, late, out).unwrap());
            },
            |to, fuel, out| {
                let done = opened.with(|w| w.advance(to, fuel, out).unwrap().done);
                left += u64::from(!done);
                if !done && left % 8 == 0 {
                    half_done += u64::from(opened.restart_in_steps());
                }
                done
            },
            |to, collected| {
                check_closed(&what, &model.0, collected, to, (lateness, emit, shape.1));
                opened.restart();
            },
        );
        early += u64::from(check(&what, &collected, &model, emit));
    });
    assert!(early > 100, "{name}: {early} histories with early results");
    let is_restarted = matches!(place, Place::Device);
    assert!(!is_restarted || half_done > 20, "{name}: {half_done} restarts in between");
}

/// Shapes (a gap, and 0, is a session), latenesses and ways to emit, each with some histories.
fn each_case(place: Place, mut case: impl FnMut(&str, &[Step], (i64, i64, i64), i64, Emit)) {
    let shapes =
        [(10, 10, 0), (10, 2, 0), (10, 4, 3), (7, 3, -2), (1, 1, 0), (5, 0, 0), (12, 0, 0)];
    for (n, shape) in shapes.into_iter().enumerate() {
        for lateness in [0, 1, 6, 30] {
            for emit in [Emit::OnClose, Emit::OnWatermark, Emit::Early(nanos(3))] {
                for seed in 0..7 {
                    let mut dice = Dice(seed * 1000 + n as u64);
                    let mut history = history(&mut dice, 40);
                    if let Place::Device = place {
                        never_twice_at_a_watermark(&mut history);
                    }
                    let what = format!("{shape:?} lateness {lateness} {emit:?} seed {seed}");
                    case(&what, &history, shape, lateness, emit);
                }
            }
        }
    }
}

/// Where windows are kept.
#[derive(Clone, Copy)]
pub enum Place {
    Memory,
    /// On a device, from which they are opened again and again.
    Device,
}

/// Windows that are open.
struct Opened<W, F> {
    open: F,
    device: Option<Simulated>,
    now: RefCell<Option<(Store, W)>>,
}

impl Place {
    fn opened<W, F: Fn(&Store) -> W>(self, open: F) -> Opened<W, F> {
        let device = match self {
            Place::Memory => None,
            Place::Device => Some(Simulated::new(1, Faults::late(2))),
        };
        let opened = Opened { open, device, now: RefCell::new(None) };
        opened.open_now();
        opened
    }
}

impl<W, F: Fn(&Store) -> W> Opened<W, F> {
    fn open_now(&self) {
        let store = match &self.device {
            None => Store::in_memory().open(),
            Some(device) => Store::in_memory()
                .memory(2 * MIB)
                .max_value(4 * KIB)
                .helpers(Helpers::Inline)
                .device(Arc::new(device.clone()))
                .open(),
        };
        let store = store.unwrap();
        let windows = (self.open)(&store);
        self.now.replace(Some((store, windows)));
    }

    fn with<R>(&self, work: impl FnOnce(&mut W) -> R) -> R {
        work(&mut self.now.borrow_mut().as_mut().unwrap().1)
    }

    /// Takes a checkpoint, drops everything, and opens the checkpoint.
    fn restart(&self) {
        if self.device.is_some() {
            let (store, windows) = self.now.take().unwrap();
            store.checkpoint(0).unwrap();
            drop((windows, store));
            self.open_now();
        }
    }

    /// The same with a checkpoint that is taken in steps, while not all is done that a watermark asks for, if all windows
    /// have fired; says whether they have. What is left is to drop what nobody needs any more.
    fn restart_in_steps(&self) -> bool {
        if self.device.is_none() {
            return false;
        }
        let (store, windows) = self.now.take().unwrap();
        let mut seal = match store.seal(0) {
            Ok(seal) => seal,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
                self.now.replace(Some((store, windows)));
                return false;
            }
        };
        while !seal.advance().unwrap() {}
        seal.confirm().unwrap();
        drop((windows, store));
        self.open_now();
        true
    }
}

#[test]
fn aggregated_windows_over_a_users_layout() {
    aggregated_windows_equal_the_model("btree", BTree, Place::Memory);
}

#[test]
fn aggregated_windows_over_our_layouts_in_memory() {
    for name in ["heap", "hybrid-log", "window-segments", "auto"] {
        aggregated_windows_equal_the_model(name, AnyLayout::named(name).unwrap(), Place::Memory);
    }
}

#[test]
fn holistic_windows_over_our_layouts_in_memory() {
    for name in ["heap", "append-log", "auto"] {
        holistic_windows_equal_the_model(name, AnyLayout::named(name).unwrap(), Place::Memory);
    }
}

#[test]
fn aggregated_windows_that_are_restarted() {
    for name in ["heap", "hybrid-log", "auto"] {
        aggregated_windows_equal_the_model(name, AnyLayout::named(name).unwrap(), Place::Device);
    }
}

#[test]
fn holistic_windows_that_are_restarted() {
    for name in ["heap", "auto"] {
        holistic_windows_equal_the_model(name, AnyLayout::named(name).unwrap(), Place::Device);
    }
}

#[test]
fn holistic_windows_over_a_users_layout() {
    holistic_windows_equal_the_model("btree", BTree, Place::Memory);
}
