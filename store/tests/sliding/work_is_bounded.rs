//! What a slide takes does not grow with the length of windows, and what a call does not with what
//! there is to do.

use std::cell::Cell;
use std::rc::Rc;

use alluvium::time::nanos;
use alluvium::{Aggregated, Store, Time, WindowSegments, Windows};

use crate::in_order::{InOrder, value};

/// Merges and results per slice and key of windows of so many slices, once they are under way.
fn merges_per_slice(slices: i64) -> f64 {
    const KEYS: u64 = 20;
    let store = Store::in_memory().open().unwrap();
    let aggregate = InOrder::default();
    let merges: Rc<Cell<u64>> = aggregate.merges.clone();
    let mut windows: Aggregated<u64, i64, InOrder, WindowSegments> = store
        .aggregated("w")
        .layout(WindowSegments::new())
        .open(Windows::sliding(nanos(slices), nanos(1)), aggregate)
        .unwrap();
    let mut rows = 0;
    for slice in 0..4 * slices {
        if slice == slices {
            merges.set(0);
            rows = 0;
        }
        let of_key = |key| (key, Time(slice), value(slice, 0));
        let mut batch: Vec<_> = (0..KEYS).map(of_key).collect();
        windows.add_batch(Time(slice), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
        let out = &mut |_: &u64, window: alluvium::Window, row: Vec<i64>, _| {
            let first = window.start.0.max(0);
            assert_eq!(row, (first..window.end.0).map(|slice| value(slice, 0)).collect::<Vec<_>>());
            rows += 1;
        };
        while !windows.advance(Time(slice + 1), 1000, out).unwrap().done {}
    }
    let count = 3 * slices as u64 * KEYS;
    assert_eq!(rows, count);
    merges.get() as f64 / count as f64
}

#[test]
fn a_slide_takes_three_merges_a_key_however_long_windows_are() {
    for slices in [30, 60, 200] {
        let merges = merges_per_slice(slices);
        assert!(merges <= 3.0, "{slices} slices: {merges} merges per slice and key");
    }
}

#[test]
fn each_call_moves_as_much_as_its_fuel_allows() {
    const KEYS: u64 = 1_000;
    const FUEL: usize = 200;
    let store = Store::in_memory().open().unwrap();
    let aggregate = InOrder::default();
    let merges = aggregate.merges.clone();
    let mut windows: Aggregated<u64, i64, InOrder, WindowSegments> = store
        .aggregated("w")
        .layout(WindowSegments::new())
        .open(Windows::sliding(nanos(30), nanos(1)), aggregate)
        .unwrap();
    let (mut most, mut rows) = (0, 0);
    for slice in 0..70 {
        let of_key = |key| (key, Time(slice), value(slice, 0));
        let mut batch: Vec<_> = (0..KEYS).map(of_key).collect();
        windows.add_batch(Time(slice), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
        let mut done = false;
        while !done {
            merges.set(0);
            let out = &mut |_: &u64, _, _: Vec<i64>, _| rows += 1;
            done = windows.advance(Time(slice + 1), FUEL, out).unwrap().done;
            most = most.max(merges.get());
        }
    }
    assert_eq!(rows, 70 * KEYS);
    // A table is looked at in parts of up to 112 keys.
    assert!(most <= 2 * (FUEL as u64 + 112), "{most} merges in a call");
}
