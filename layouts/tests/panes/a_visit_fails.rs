//! A fold whose visit fails goes on with the key it failed at; nothing comes twice, nothing is left
//! out.

use std::collections::BTreeMap;

use alluvium_layouts::{Cursor, Heap, HybridLog, Panes, PanesLayout, Upkeep, WindowSegments};
use alluvium_pagestore::{Error, ErrorKind, KIB, MIB, Result, Time};

use super::common::{Accumulator, Items, Model, Place, Random, fold, put};

fn fill<A: Accumulator>(
    panes: &mut impl Panes<u64, A>,
    slices: u64,
    keys: u64,
    items: u32,
) -> Model {
    let (mut model, mut random) = (Model::default(), Random(1));
    for item in 0..items {
        let (slice, key) = (random.below(slices) as i64, random.below(keys));
        put::<A>(panes, slice, key, item).unwrap();
        model.update(slice, key, item);
    }
    model
}

fn failure() -> Error {
    Error::new(ErrorKind::Input, "the visit fails")
}

/// One step of a fold of which the visit after `succeeding` fails.
fn step<A: Accumulator>(
    panes: &mut impl Panes<u64, A>,
    slices: i64,
    cursor: &mut Cursor,
    (fuel, succeeding): (usize, u64),
    found: &mut BTreeMap<u64, A>,
) -> Result<()> {
    let mut left = succeeding;
    panes.fold(Time(0)..Time(slices), cursor, fuel, &mut |key, sum| {
        left = left.checked_sub(1).ok_or_else(failure)?;
        assert_eq!(found.insert(*key, sum), None, "key {key} comes twice");
        Ok(())
    })
}

/// A short step whose visit cannot fail. It goes on from where another failed.
fn visit<A: Accumulator>(
    panes: &mut impl Panes<u64, A>,
    slices: i64,
    cursor: &mut Cursor,
    found: &mut BTreeMap<u64, A>,
) {
    let visited = panes.visit(Time(0)..Time(slices), cursor, 1, |run| {
        run.for_each(|(key, sum)| {
            assert_eq!(found.insert(*key, sum.clone()), None, "key {key} comes twice");
        });
    });
    visited.unwrap();
}

/// Visits that fail again and again.
fn goes_on<A: Accumulator, L: PanesLayout<u64, A>>(layout: &L, mut place: Place, slices: u64) {
    let mut panes = place.open::<A, L>(layout);
    let mut random = Random(7);
    for round in 0..3 {
        let model = fill::<A>(&mut panes, slices, 700, 4000);
        let (mut cursor, mut found, mut failures) = (Cursor::default(), BTreeMap::new(), 0);
        while !cursor.done {
            let shape = (1 + random.below(3000) as usize, random.below(90));
            if let Err(error) = step(&mut panes, slices as i64, &mut cursor, shape, &mut found) {
                assert_eq!(error.kind(), ErrorKind::Input, "{error}");
                failures += 1;
                if failures == 5 {
                    visit(&mut panes, slices as i64, &mut cursor, &mut found);
                }
            }
        }
        assert!(failures > 3, "{failures} failures");
        assert_eq!(found, model.fold::<A>(0..slices as i64), "round {round}");
        super::common::purge::<A>(&mut panes, slices as i64, 1000);
    }
}

#[test]
fn the_next_call_goes_on_with_the_key_that_it_failed_at() {
    for slices in [1, 2, 9] {
        goes_on::<Items, _>(&Heap::new(), Place::in_memory(16 * MIB), slices);
        goes_on::<(u64, u64), _>(&HybridLog::new(), Place::in_memory(16 * MIB), slices);
        let layout = WindowSegments::new();
        goes_on::<(u64, u64), _>(&layout, Place::in_memory(16 * MIB), slices);
        goes_on::<Items, _>(&layout, Place::in_memory(16 * MIB), slices);
        // In runs on storage, in part.
        let (place, _) = Place::simulated(320 * KIB, slices);
        goes_on::<Items, _>(&layout.image(8 * KIB), place, slices);
    }
}

#[test]
fn when_slices_moved_to_storage_meanwhile_the_fold_says_that_it_begins_anew() {
    for slices in [1u64, 4] {
        let (mut place, _) = Place::simulated(4 * MIB, 3);
        let mut panes = place.open::<Items, _>(&WindowSegments::new());
        let model = fill::<Items>(&mut panes, slices, 700, 4000);
        let (mut cursor, mut found) = (Cursor::default(), BTreeMap::new());
        let error = step(&mut panes, slices as i64, &mut cursor, (10_000, 50), &mut found);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Input);
        assert!(panes.reclaim(2 * MIB).unwrap() > 0);
        let visited = found.clone();
        let error = step(&mut panes, slices as i64, &mut cursor, (10_000, 5000), &mut found);
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(found, visited, "nothing is visited then");
        let anew = fold::<Items>(&mut panes, 0..slices as i64, 100).unwrap();
        assert_eq!(anew, model.fold::<Items>(0..slices as i64));
    }
}

#[test]
fn keys_of_slices_that_have_none_in_common_are_folded_in_little_memory() {
    let mut place = Place::in_memory(512 * KIB);
    let mut panes = place.open::<Items, _>(&WindowSegments::new());
    let mut model = Model::default();
    for item in 0..4000u32 {
        let (slice, key) = (i64::from(item % 40), u64::from(item));
        put::<Items>(&mut panes, slice, key, item).unwrap();
        model.update(slice, key, item);
    }
    for fuel in [1, 300, 100_000] {
        let found = fold::<Items>(&mut panes, 0..40, fuel).unwrap();
        assert_eq!(found, model.fold::<Items>(0..40), "fuel {fuel}");
        assert!(place.account.used() <= 512 * KIB, "{:?}", place.account);
    }
    // Sums that are larger than what is free are folded one at a time.
    for item in 0..20_000u32 {
        let (slice, key) = (i64::from(item % 3), u64::from(item % 9 % 3));
        if put::<Items>(&mut panes, slice, key, item).is_err() {
            break;
        }
        model.update(slice, key, item);
    }
    let found = fold::<Items>(&mut panes, 0..40, 1000).unwrap();
    assert_eq!(found, model.fold::<Items>(0..40));
    let used = place.account.used();
    super::common::purge::<Items>(&mut panes, 40, 100);
    assert!(place.account.used() < used);
    drop(panes);
    assert_eq!(place.account.used(), 0);
}
