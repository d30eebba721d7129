//! Random histories give the results of a plain re-computation, slices in order, whatever comes
//! late, however little fuel there is, and however often the store is opened again.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{Aggregated, Emit, KIB, MIB, Store, Time, Window, WindowSegments, Windows};

use crate::dice::Dice;
use crate::in_order::{InOrder, value};
use crate::model::{self, Event, Results};

type InSegments = Aggregated<u64, i64, InOrder, WindowSegments>;

/// Length, slide and offset, and how long a slice is.
const SHAPES: [((i64, i64, i64), i64); 5] =
    [((40, 1, 0), 1), ((100, 4, 3), 4), ((30, 7, -2), 1), ((52, 5, 0), 1), ((75, 3, 1), 3)];

fn open(store: &Store, windows: Windows, aggregate: InOrder) -> InSegments {
    store.aggregated("w").layout(WindowSegments::new()).open(windows, aggregate).unwrap()
}

fn store_on(device: &Simulated) -> Store {
    Store::in_memory()
        .memory(2 * MIB)
        .max_value(4 * KIB)
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap()
}

/// Rows by window and key, added up.
#[derive(Default)]
struct Told(BTreeMap<(Window, u64), BTreeMap<Vec<i64>, i64>>);

impl Told {
    fn note(&mut self, key: &u64, window: Window, row: Vec<i64>, diff: i64) {
        *self.0.entry((window, *key)).or_default().entry(row).or_default() += diff;
    }

    fn results(self) -> Results {
        let rows = self.0.into_iter().filter_map(|(at, mut rows)| {
            rows.retain(|_, count| *count != 0);
            assert!(rows.len() < 2 && rows.values().all(|count| *count == 1), "{at:?}: {rows:?}");
            Some((at, rows.into_keys().next()?))
        });
        rows.collect()
    }
}

fn check_history(seed: u64, (shape, slice): ((i64, i64, i64), i64), lateness: i64, emit: Emit) {
    let mut dice = Dice(seed);
    let what = format!("seed {seed} {shape:?} lateness {lateness} {emit:?}");
    let windows = Windows::sliding(nanos(shape.0), nanos(shape.1))
        .offset(nanos(shape.2.rem_euclid(shape.1)))
        .lateness(nanos(lateness))
        .emit(emit);
    let device = Simulated::new(seed, Faults::late(2));
    let mut store = store_on(&device);
    let mut now = open(&store, windows, InOrder::default());
    let (mut events, mut told, mut dropped) = (Vec::new(), Told::default(), 0);
    let (mut watermark, mut number) = (dice.below(30) as i64 - 20, 0);
    for _ in 0..60 {
        if dice.below(2) == 0 {
            let far = if dice.below(12) == 0 { 90 } else { 7 };
            watermark += dice.below(far) as i64;
            let fuel = if dice.below(2) == 0 { 1 + dice.below(4) as usize } else { 1000 };
            // Also left half done, with events between.
            for _ in 0..1 + dice.below(40) {
                let out = &mut |key: &u64, window, row, diff| told.note(key, window, row, diff);
                if now.advance(Time(watermark), fuel, out).unwrap().done {
                    break;
                }
            }
        } else {
            let sent = watermark + dice.below(4) as i64;
            let mut batch = Vec::new();
            for _ in 0..1 + dice.below(8) {
                let back = if dice.below(3) == 0 { dice.below(shape.0 as u64) as i64 } else { 0 };
                let (at, key) = (sent + dice.below(12) as i64 - back, dice.below(3));
                number += 1;
                let value = value((at - shape.2).div_euclid(slice), number);
                events.push(Event { at, sent, key, value });
                batch.push((key, Time(at), value));
            }
            let out = &mut |key: &u64, window, row, diff| told.note(key, window, row, diff);
            now.add_batch(Time(sent), &mut batch, &mut |_| dropped += 1, out).unwrap();
        }
        if dice.below(10) == 0 && store.checkpoint(0).is_ok() {
            drop((now, store));
            store = store_on(&device);
            now = open(&store, windows, InOrder::default());
        }
    }
    let out = &mut |key: &u64, window, row, diff| told.note(key, window, row, diff);
    while !now.advance(Time::MAX, 7, out).unwrap().done {}
    let (expected, too_late) = model::aligned(&events, shape, lateness);
    assert_eq!(dropped, too_late.len(), "{what}");
    let results = told.results();
    for (at, row) in &expected {
        assert_eq!(results.get(at), Some(row), "{what}: {at:?}");
    }
    assert_eq!(results.len(), expected.len(), "{what}");
    for state in store.stats().unwrap().states {
        let is_left = state.name != "w/progress" && state.table.live_keys > 0;
        assert!(!is_left, "{what}: something is left in {}", state.name);
    }
}

#[test]
fn slices_are_folded_in_order_whatever_comes_late() {
    for shape in SHAPES {
        for lateness in [0, 5, 25] {
            for emit in [Emit::OnClose, Emit::OnWatermark] {
                for seed in 0..10 {
                    check_history(seed, shape, lateness, emit);
                }
            }
        }
    }
}

#[test]
fn a_merge_that_panics_changes_no_result() {
    let mut panics = 0;
    for seed in 0..100 {
        let mut dice = Dice(seed);
        let store = Store::in_memory().open().unwrap();
        let aggregate = InOrder::default();
        let panics_after = aggregate.panics_after.clone();
        let mut windows = open(&store, Windows::sliding(nanos(30), nanos(1)), aggregate);
        let (mut events, mut told) = (Vec::new(), Told::default());
        for at in 0..100 {
            let key = dice.below(3);
            let value = value(at, 0);
            events.push(Event { at, sent: at, key, value });
            let mut batch = vec![(key, Time(at), value)];
            windows.add_batch(Time(at), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
            if dice.below(6) == 0 {
                panics_after.set(Some(dice.below(6)));
            }
            loop {
                let mut rows = Vec::new();
                let out = &mut |key: &u64, window, row, _| rows.push((*key, window, row));
                let advance = AssertUnwindSafe(|| windows.advance(Time(at), 1000, out).unwrap());
                let done = catch_unwind(advance);
                rows.into_iter().for_each(|(key, window, row)| told.note(&key, window, row, 1));
                match done {
                    Ok(advanced) if advanced.done => break,
                    Ok(_) => {}
                    Err(_) => {
                        panics += 1;
                        panics_after.set(None);
                        windows.clear_poison();
                    }
                }
            }
            panics_after.set(None);
        }
        let out = &mut |key: &u64, window, row, diff| told.note(key, window, row, diff);
        while !windows.advance(Time::MAX, 1000, out).unwrap().done {}
        assert!(told.results() == model::aligned(&events, (30, 1, 0), 0).0, "seed {seed}");
    }
    assert!(panics > 100, "{panics} merges panicked");
}
