//! One store becomes three, these two, and these one again, each time in another layout: the states
//! are what the model is, and windows give what they give undisturbed.

use alluvium::time::nanos;
use alluvium::{AnyLayout, Counting, Heap, MIB, SECOND, Store, Time, WindowSegments, Windows};

use crate::dice::Dice;
use crate::job::{Job, Model, layouts};

#[test]
fn one_becomes_three_becomes_two_becomes_one() {
    let layouts = layouts();
    for (start, (name, _)) in layouts.iter().enumerate() {
        for step in [0, 1] {
            let layout = |stage: usize| &layouts[(start + stage * step) % layouts.len()].1;
            let (mut model, mut dice) = (Model::default(), Dice(41 + start as u64));
            let mut job = Job::new(1, layout(0));
            let mut undisturbed = Job::new(1, &Heap::new().into());
            for (stage, workers) in [3, 2, 1, 1].into_iter().enumerate() {
                job.change(&mut model, &mut dice, 400);
                for _ in 0..3 {
                    let seed = dice.next();
                    job.stream(&mut Dice(seed), 60);
                    undisturbed.stream(&mut Dice(seed), 60);
                }
                let when = format!("{name}, by {step}, stage {stage}");
                assert_eq!(job.read(), model.clone().in_order(), "{when}");
                job = job.rescaled(workers, layout(stage + 1));
                assert_eq!(job.read(), model.clone().in_order(), "{when}, restored");
            }
            job.advance(10_000);
            undisturbed.advance(10_000);
            assert!(!job.rows.is_empty());
            assert_eq!(job.rows, undisturbed.rows, "{name}, by {step}");
        }
    }
}

/// Between two checkpoints one slice has changed: the tables of the others are named as the first has
/// written them, beside one that is of no slice any more.
#[test]
fn slices_that_an_earlier_checkpoint_has_written_are_restored_once() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let opened = |store: &Store| {
        let windows = store.aggregated::<u64, u64, _>("w");
        windows.open(Windows::tumbling(nanos(SECOND)), Counting).unwrap()
    };
    let exported = |store: &Store| {
        let mut bytes = Vec::new();
        store.export(&mut bytes).unwrap();
        bytes
    };
    let store = Store::builder(at("old")).memory(8 * MIB).layout(WindowSegments::new());
    let store = store.key_groups(8).open().unwrap();
    let mut windows = opened(&store);
    let mut add = |slices: std::ops::Range<i64>, keys: u64| {
        for (slice, key) in slices.flat_map(|slice| (0..keys).map(move |key| (slice, key))) {
            let mut batch = vec![(key, Time(slice * SECOND), key)];
            windows.add_batch(Time(0), &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
        }
    };
    add(0..8, 1000);
    store.checkpoint(1).unwrap();
    let before = store.stats().unwrap().io.bytes_written;
    add(7..8, 30);
    store.checkpoint(2).unwrap();
    let written = store.stats().unwrap().io.bytes_written - before;
    let whole = exported(&store);
    drop((windows, store));
    let layouts =
        [("segments", WindowSegments::new().into()), ("heap", AnyLayout::from(Heap::new()))];
    for (name, layout) in layouts {
        let store = Store::builder(at(name)).memory(8 * MIB).layout(layout).key_groups(8);
        let store = store.restore_from([(at("old"), None)]).open().unwrap();
        let windows = opened(&store);
        assert!(exported(&store) == whole, "{name}");
        drop(windows);
    }
    assert!(3 * written < before, "{written} bytes after {before}: all slices were written");
}

/// Lists on the heap of which several checkpoints have written a part each, and cleared ones, are restored in order.
#[test]
fn lists_that_several_checkpoints_have_written_are_restored_in_order() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let opened = |store: &Store| store.list::<u64, u64>("l").open().unwrap();
    let exported = |store: &Store| {
        let mut bytes = Vec::new();
        store.export(&mut bytes).unwrap();
        bytes
    };
    let store = Store::builder(at("old")).memory(8 * MIB).layout(Heap::new()).key_groups(8);
    let store = store.open().unwrap();
    let mut list = opened(&store);
    let mut written = Vec::new();
    for number in 0..12u64 {
        let before = store.stats().unwrap().io.bytes_written;
        for key in (0..4_000).filter(|key| number == 0 || (key + number) % 40 == 0) {
            let most = if number == 0 { 20 } else { 3 };
            (0..most).for_each(|n| list.append(&key, 1000 * number + n).unwrap());
            if (key + number) % 7 == 0 {
                list.clear(&(key / 2)).unwrap();
            }
        }
        store.checkpoint(number).unwrap();
        written.push(store.stats().unwrap().io.bytes_written - before);
    }
    let whole = exported(&store);
    drop((list, store));
    for (name, layout) in [("log", AnyLayout::Auto), ("heap", AnyLayout::from(Heap::new()))] {
        let store = Store::builder(at(name)).memory(8 * MIB).layout(layout).key_groups(8);
        let store = store.restore_from([(at("old"), None)]).open().unwrap();
        let list = opened(&store);
        assert!(exported(&store) == whole, "{name}");
        drop(list);
    }
    assert!(written[1..].iter().sum::<u64>() < written[0], "{written:?}");
}
