//! Cases of windows that engines got wrong, each by hand.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use alluvium::moving::KeyGroup;
use alluvium::time::nanos;
use alluvium::{
    Aggregate, Counting, Elements, Emit, ErrorKind, Holistic, KeyHash, Process, Store, Time,
    Window, Windows, process,
};

use crate::by_hand::{Joining, Results, add, advance, counting, in_memory, note, on_a_device};

#[test]
fn an_event_before_at_and_after_an_end_is_in_the_window_that_has_it() {
    let (_store, mut counts) = counting(Windows::tumbling(nanos(10)));
    let mut results = Results::new();
    add(&mut counts, -20, &[9, 10, 11, -1, -10, -11], &mut results);
    advance(&mut counts, 9, &mut results);
    assert_eq!(results, [(1, -20, -10, 1, 1), (1, -10, 0, 2, 1)], "at 9 the window to 10 is open");
    results.clear();
    advance(&mut counts, 10, &mut results);
    assert_eq!(results, [(1, 0, 10, 1, 1)]);
    results.clear();
    advance(&mut counts, 20, &mut results);
    assert_eq!(results, [(1, 10, 20, 2, 1)]);
}

#[test]
fn all_that_a_watermark_lets_fire_fires_in_one_call() {
    let (_store, mut counts) = counting(Windows::sliding(nanos(10), nanos(1)));
    let (mut results, mut expected) = (Results::new(), Results::new());
    for (at, key) in (0..3000).map(|n| (Time(n % 100), n as u64)) {
        counts
            .add_batch(Time::MIN, &mut vec![(key, at, ())], &mut |_| {}, &mut |_, _, _, _| {})
            .unwrap();
        let ends = (at.0 + 1..=at.0 + 10).filter(|end| *end <= 90);
        expected.extend(ends.map(|end| (key, end - 10, end, 1, 1)));
    }
    counts.advance_all(Time(90), &mut note(&mut results)).unwrap();
    assert!(counts.advance(Time(90), 1, &mut |_, _, _, _| {}).unwrap().done);
    results.sort_unstable();
    expected.sort_unstable();
    assert_eq!(results, expected);
}

#[test]
fn an_event_exactly_at_cleanup_time_is_late_and_one_before_is_not() {
    for (sent, is_late) in [(14, false), (15, true), (16, true)] {
        let (_store, mut counts) = counting(Windows::tumbling(nanos(10)).lateness(nanos(5)));
        let mut results = Results::new();
        advance(&mut counts, sent, &mut results);
        let late = add(&mut counts, sent, &[9], &mut results);
        assert_eq!(!late.is_empty(), is_late, "sent with {sent}");
        advance(&mut counts, i64::MAX, &mut results);
        assert_eq!(results.len(), usize::from(!is_late));
    }
}

#[test]
fn lateness_is_told_by_the_time_an_event_was_sent_with_whatever_the_watermark_is() {
    let (_store, mut counts) = counting(Windows::tumbling(nanos(10)));
    let mut results = Results::new();
    let mut late = Vec::new();
    let mut batch = vec![(1, Time(5), ()), (1, Time(15), ())];
    counts
        .add_batch(
            Time(12),
            &mut batch,
            &mut |l| late.push((l.at.0, l.lateness)),
            &mut |_, _, _, _| (),
        )
        .unwrap();
    assert_eq!(late, [(5, 7)], "the window of 5 was over for it, though nothing has advanced");
    advance(&mut counts, i64::MAX, &mut results);
    assert_eq!(results, [(1, 10, 20, 1, 1)]);
}

#[test]
fn an_event_that_is_late_for_some_windows_counts_for_the_others_only() {
    let (_store, mut counts) = counting(Windows::sliding(nanos(10), nanos(5)));
    let mut results = Results::new();
    // The window [-5, 5) is over at 6 and has not fired; [0, 10) is open.
    assert!(add(&mut counts, 0, &[1], &mut results).is_empty());
    assert!(add(&mut counts, 6, &[3], &mut results).is_empty());
    advance(&mut counts, i64::MAX, &mut results);
    assert_eq!(results, [(1, -5, 5, 1, 1), (1, 0, 10, 2, 1)]);
}

#[test]
fn a_watermark_that_regresses_counts_as_the_last_one() {
    let (_store, mut counts) = counting(Windows::tumbling(nanos(10)));
    let mut results = Results::new();
    advance(&mut counts, 25, &mut results);
    advance(&mut counts, 3, &mut results);
    assert_eq!(counts.watermark(), Time(25));
    assert_eq!(add(&mut counts, 3, &[19], &mut results), [19]);
    assert!(results.is_empty());
}

#[test]
fn a_watermark_may_jump_over_a_million_windows() {
    let (_store, mut counts) = counting(Windows::sliding(nanos(10), nanos(2)));
    let mut results = Results::new();
    add(&mut counts, 0, &[0, 3_000_001], &mut results);
    let mut calls = 0;
    while !counts.advance(Time(2_999_000), 10, &mut note(&mut results)).unwrap().done {
        calls += 1;
    }
    assert!(calls < 20, "empty windows cost nothing: {calls}");
    assert_eq!(results.len(), 5);
    advance(&mut counts, 4_000_000, &mut results);
    assert_eq!(results.len(), 10);
    add(&mut counts, 4_000_000, &[4_000_001], &mut results);
    advance(&mut counts, i64::MAX, &mut results);
    assert_eq!(results.len(), 15);
}

#[test]
fn each_call_fires_as_much_as_its_fuel_allows() {
    let store = in_memory();
    let windows = Windows::tumbling(nanos(10));
    let mut counts = store.aggregated::<u64, (), _>("counts").open(windows, Counting).unwrap();
    let mut batch: Vec<_> = (0..10_000).map(|key| (key, Time(1), ())).collect();
    counts.add_batch(Time::MIN, &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
    let (mut all, mut most, mut done) = (0, 0, false);
    while !done {
        let before = all;
        done = counts.advance(Time(10), 500, &mut |_, _, _, _| all += 1).unwrap().done;
        most = most.max(all - before);
    }
    assert_eq!(all, 10_000);
    assert!(most <= 1000, "{most} in one call");
}

#[test]
fn windows_that_cannot_be_are_refused_by_name() {
    let store = in_memory();
    for (windows, word) in [
        (Windows::sliding(nanos(10), nanos(11)), "in none"),
        (Windows::tumbling(nanos(0)), "windows of 0"),
        (Windows::sliding(nanos(10), nanos(0)), "every 0"),
        (Windows::tumbling(Duration::MAX), "292 years or more is too long"),
        (Windows::session(nanos(0)), "gap of 0"),
        (Windows::session(Duration::MAX), "gap of 292 years or more"),
        (Windows::tumbling(nanos(10)).lateness(Duration::MAX), "lateness 292 years or more"),
        (Windows::tumbling(nanos(10)).emit(Emit::Early(nanos(0))), "every 0"),
        (Windows::tumbling(nanos(10)).emit(Emit::Early(Duration::MAX)), "early every 292"),
    ] {
        let error = store.aggregated::<u64, (), _>("w").open(windows, Counting).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// Late events that wait are found by their keys' hashes, of which a store may have a part only.
#[test]
fn late_events_wait_in_a_store_of_a_few_key_groups() {
    for group in 0..4 {
        for windows in [Windows::sliding(nanos(10), nanos(5)), Windows::session(nanos(10))] {
            let store = Store::in_memory().key_groups(4).owned_groups(group..group + 1);
            let store = store.open().unwrap();
            let mut counts = store.aggregated::<u64, (), _>("w").open(windows, Counting).unwrap();
            let own = |key: &u64| KeyGroup::of(key.key_hash(), 4) == KeyGroup(group);
            let keys: Vec<u64> = (0..400).filter(own).collect();
            let mut batch: Vec<_> = keys.iter().map(|key| (*key, Time(93), ())).collect();
            let late = &mut |_| panic!("it counts");
            counts.add_batch(Time(96), &mut batch, late, &mut |_, _, _, _| ()).unwrap();
            let mut results = Vec::new();
            let out = &mut |key: &u64, _, count, _| results.push((*key, count));
            while !counts.advance(Time::MAX, 10, out).unwrap().done {}
            results.sort_unstable();
            assert!(results.into_iter().eq(keys.into_iter().map(|key| (key, 1))), "{windows:?}");
        }
    }
}

#[test]
fn late_events_that_are_allowed_change_a_fired_window_once_each() {
    let windows = Windows::tumbling(nanos(10)).lateness(nanos(20)).emit(Emit::OnWatermark);
    let (_store, mut counts) = counting(windows);
    let mut results = Results::new();
    add(&mut counts, 0, &[1], &mut results);
    advance(&mut counts, 10, &mut results);
    add(&mut counts, 12, &[2, 3], &mut results);
    let late = add(&mut counts, 30, &[4], &mut results);
    assert_eq!(late, [4]);
    advance(&mut counts, i64::MAX, &mut results);
    let expected =
        [(1, 1), (1, -1), (2, 1), (2, -1), (3, 1)].map(|(count, diff)| (1, 0, 10, count, diff));
    assert_eq!(results, expected);
}

#[test]
fn early_results_come_when_the_watermark_passes_their_times() {
    let windows = Windows::tumbling(nanos(10)).emit(Emit::Early(nanos(3)));
    let (_store, mut counts) = counting(windows);
    let mut results = Results::new();
    add(&mut counts, 0, &[1], &mut results);
    advance(&mut counts, 2, &mut results);
    assert_eq!(results, [(1, 0, 10, 1, 1)], "0 was passed");
    advance(&mut counts, 3, &mut results);
    advance(&mut counts, 5, &mut results);
    assert_eq!(results.len(), 1, "nothing has changed");
    add(&mut counts, 5, &[7], &mut results);
    advance(&mut counts, 6, &mut results);
    advance(&mut counts, 10, &mut results);
    assert_eq!(results[1..], [(1, 0, 10, 1, -1), (1, 0, 10, 2, 1)]);
}

fn texts(texts: &[(i64, &str)]) -> Vec<(u64, Time, String)> {
    texts.iter().map(|(at, text)| (1, Time(*at), text.to_string())).collect()
}

#[test]
fn what_need_not_commute_is_folded_in_order_of_arrival() {
    for windows in [Windows::tumbling(nanos(10)), Windows::session(nanos(10))] {
        let store = in_memory();
        let mut joined = store.aggregated("joined").open(windows, Joining).unwrap();
        let mut results = Vec::new();
        let mut batch = texts(&[(5, "a"), (3, "b"), (9, "c"), (1, "d")]);
        joined.add_batch(Time(0), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
        joined.advance(Time::MAX, 100, &mut |_: &u64, _, text, _| results.push(text)).unwrap();
        assert_eq!(results, ["abcd"], "{windows:?}");
    }
}

#[test]
fn a_panic_of_an_aggregate_poisons_the_state_and_loses_nothing_else() {
    let store = on_a_device();
    for (name, windows) in [("t", Windows::tumbling(nanos(10))), ("s", Windows::session(nanos(10)))]
    {
        let mut joined = store.aggregated(name).open(windows, Joining).unwrap();
        let mut batch = texts(&[(1, "a"), (2, "b")]);
        joined.add_batch(Time(0), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
        let mut batch = texts(&[(3, "planned panic")]);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _ = joined.add_batch(Time(0), &mut batch, &mut |_| (), &mut |_, _, _, _| ());
        }));
        assert!(panicked.is_err());
        assert_eq!(store.checkpoint(0).unwrap_err().kind(), ErrorKind::Poisoned);
        joined.clear_poison();
        store.checkpoint(0).unwrap();
        let mut results = Vec::new();
        joined.advance(Time::MAX, 100, &mut |_: &u64, _, text, _| results.push(text)).unwrap();
        assert_eq!(results, ["ab"], "{name}");
    }
}

#[test]
fn no_checkpoint_is_taken_in_the_middle_of_a_firing() {
    let store = on_a_device();
    let windows = Windows::tumbling(nanos(10));
    let mut counts = store.aggregated::<u64, (), _>("counts").open(windows, Counting).unwrap();
    let mut batch: Vec<_> = (0..3000).map(|key| (key, Time(1), ())).collect();
    counts.add_batch(Time::MIN, &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
    let mut all = 0;
    assert!(!counts.advance(Time(10), 10, &mut |_, _, _, _| all += 1).unwrap().done);
    let error = store.checkpoint(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("being fired"), "{error}");
    while !counts.advance(Time(10), 100, &mut |_, _, _, _| all += 1).unwrap().done {}
    store.checkpoint(0).unwrap();
    assert_eq!(all, 3000);
}

fn in_order(windows: Windows, batches: &[(i64, &[(i64, &str)])]) -> Vec<(i64, i64, String)> {
    let store = in_memory();
    let concatenate =
        process(|_: &u64, _, texts: &mut dyn Elements<String>, emit: &mut dyn FnMut(String)| {
            let mut all = String::new();
            while let Some(text) = texts.next()? {
                all.push_str(text);
            }
            emit(all);
            Ok(())
        });
    let mut kept: Holistic<u64, String, _> =
        store.holistic("kept").open(windows, concatenate).unwrap();
    let mut results = Vec::new();
    for (sent, batch) in batches {
        let mut batch = texts(batch);
        kept.add_batch(Time(*sent), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
    }
    finish(&mut kept, &mut results);
    results
}

fn finish<F: Process<u64, String, Row = String>>(
    kept: &mut Holistic<u64, String, F>,
    results: &mut Vec<(i64, i64, String)>,
) {
    let mut note = |_: &u64, window: Window, text, _| {
        results.push((window.start.0, window.end.0, text));
    };
    while !kept.advance(Time::MAX, 100, &mut note).unwrap().done {}
}

#[test]
fn a_function_reads_its_events_in_the_order_that_is_promised() {
    let events: &[(i64, &str)] = &[(7, "a"), (2, "b"), (9, "c"), (4, "d")];
    assert_eq!(
        in_order(Windows::tumbling(nanos(10)), &[(0, events)]),
        [(0, 10, "abcd".to_string())]
    );
    // By slices of 5, each in order of arrival.
    let results = in_order(Windows::sliding(nanos(10), nanos(5)), &[(0, events)]);
    let expected = [(-5, 5, "bd"), (0, 10, "bdac"), (5, 15, "ac")];
    assert_eq!(results, expected.map(|(start, end, text)| (start, end, text.to_string())));
    // One session after the other, what joins them last.
    let events: &[(i64, &str)] = &[(0, "a"), (3, "b"), (30, "c"), (31, "d"), (15, "e")];
    assert_eq!(
        in_order(Windows::session(nanos(15)), &[(0, events)]),
        [(0, 46, "abcde".to_string())]
    );
}

#[test]
fn early_results_of_windows_that_keep_their_events_are_taken_back_as_they_were_given() {
    let store = in_memory();
    let joined =
        process(|_: &u64, _, all: &mut dyn Elements<u64>, emit: &mut dyn FnMut(String)| {
            let mut text = String::new();
            while let Some(n) = all.next()? {
                text += &n.to_string();
            }
            emit(text);
            Ok(())
        });
    let windows =
        Windows::sliding(nanos(10), nanos(5)).emit(Emit::Early(nanos(3))).lateness(nanos(100));
    let mut kept = store.holistic::<u64, u64>("w").open(windows, joined).unwrap();
    let mut results = Vec::new();
    let mut step = |sent, events: &[(i64, u64)], watermark| {
        results.clear();
        let out = &mut |_: &u64, window: Window, text: String, diff| {
            results.push((window.start.0, text, diff));
        };
        let mut batch: Vec<_> = events.iter().map(|(at, n)| (1, Time(*at), *n)).collect();
        kept.add_batch(Time(sent), &mut batch, &mut |_| unreachable!(), out).unwrap();
        while !kept.advance(Time(watermark), 1, out).unwrap().done {}
        results.iter().map(|(start, text, diff)| (*start, text.clone(), *diff)).collect::<Vec<_>>()
    };
    let text = |start, text: &str, diff| (start, text.to_owned(), diff);
    assert_eq!(step(0, &[(6, 1), (1, 2)], 1), [text(-5, "2", 1), text(0, "21", 1)]);
    // The window before the last has not changed, the last has, in its first slice.
    let second = [text(0, "21", -1), text(0, "213", 1), text(5, "13", 1)];
    assert_eq!(step(1, &[(7, 3)], 6), second);
    // At the end of a window it is given if it has changed.
    assert_eq!(step(6, &[], 10), []);
    // A late event for a window that has fired, and for one that has not.
    let third = [text(0, "213", -1), text(0, "2134", 1)];
    assert_eq!(step(10, &[(8, 4)], 10), third);
    assert_eq!(step(10, &[], 12), [text(5, "13", -1), text(5, "134", 1)]);
    assert_eq!(step(12, &[], i64::MAX), []);
}

#[test]
fn an_equal_name_or_another_shape_of_state_is_refused() {
    let store = in_memory();
    let windows = Windows::tumbling(nanos(10));
    let _first = store.aggregated::<u64, (), _>("w").open(windows, Counting).unwrap();
    let error = store.aggregated::<u64, (), _>("w").open(windows, Counting).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
}

#[test]
fn running_totals_go_with_the_last_window_that_has_something() {
    let (store, mut counts) = counting(Windows::sliding(nanos(10), nanos(2)));
    let keys = || store.stats().unwrap().total().live_keys;
    for begin in [0, 100] {
        let mut results = Results::new();
        add(&mut counts, begin, &[begin, begin + 1, begin + 5], &mut results);
        advance(&mut counts, begin + 8, &mut results);
        // Two slices, and the total.
        assert_eq!(keys(), 3);
        advance(&mut counts, begin + 14, &mut results);
        let expected: Vec<_> = [(2, 2), (4, 2), (6, 3), (8, 3), (10, 3), (12, 1), (14, 1)]
            .map(|(end, count)| (1, begin + end - 10, begin + end, count, 1))
            .into();
        assert_eq!(results, expected);
        assert_eq!(keys(), 0);
    }
    advance(&mut counts, i64::MAX, &mut Results::new());
    assert_eq!(keys(), 0);
}

/// Early results come out when the watermark passes their time, and not again because the store was opened
/// again, or because there was no window when it passed.
#[test]
fn early_results_do_not_come_out_once_more_after_a_restart() {
    let device = alluvium::io::Simulated::new(1, alluvium::io::Faults::none());
    let open = || {
        let store = Store::in_memory().memory(4 * alluvium::MIB).max_value(4 * alluvium::KIB);
        let store = store.helpers(alluvium::config::Helpers::Inline);
        let store = store.device(std::sync::Arc::new(device.clone())).open().unwrap();
        let windows = Windows::tumbling(nanos(100)).emit(Emit::Early(nanos(10)));
        let counts = store.aggregated::<u64, (), _>("counts").open(windows, Counting).unwrap();
        (store, counts)
    };
    let mut results = Results::new();
    let (store, mut counts) = open();
    advance(&mut counts, 2, &mut results);
    add(&mut counts, 2, &[5], &mut results);
    advance(&mut counts, 3, &mut results);
    assert_eq!(results, [], "0 was passed before there was a window");
    advance(&mut counts, 12, &mut results);
    assert_eq!(std::mem::take(&mut results), [(1, 0, 100, 1, 1)]);
    add(&mut counts, 12, &[15], &mut results);
    store.checkpoint(1).unwrap();
    drop((store, counts));
    let (_store, mut counts) = open();
    advance(&mut counts, 19, &mut results);
    assert_eq!(results, [], "10 was passed before the restart");
    advance(&mut counts, 20, &mut results);
    assert_eq!(results, [(1, 0, 100, 1, -1), (1, 0, 100, 2, 1)]);
}

/// Sums, of which one change panics: the one for which a countdown ends.
struct Brittle(Rc<Cell<u32>>);

impl Brittle {
    fn touch(&self) {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        assert_ne!(left, 1, "planned panic");
    }
}

impl Aggregate<i64> for Brittle {
    type Acc = i64;
    type Out = i64;

    fn init(&self) -> i64 {
        0
    }

    fn add(&self, acc: &mut i64, element: &i64) {
        *acc += element;
    }

    fn merge(&self, acc: &mut i64, later: &i64) {
        self.touch();
        *acc += later;
    }

    fn subtract(&self, acc: &mut i64, first: &i64) -> bool {
        self.touch();
        *acc -= first;
        true
    }

    fn out(&self, acc: &i64) -> Option<i64> {
        Some(*acc)
    }
}

/// Would count accumulators of a slice twice that were added, or taken out, before the panic.
#[test]
fn totals_that_a_panic_left_halfway_are_made_anew() {
    let (keys, slices) = (300, 12);
    for panics_at in [1, 2, 150, 299, 301, 450, 600] {
        let (store, countdown) = (in_memory(), Rc::new(Cell::new(0)));
        let windows = Windows::sliding(nanos(40), nanos(10));
        let sums = store.aggregated("sums");
        let mut sums = sums.open(windows, Brittle(countdown.clone())).unwrap();
        let mut results = BTreeMap::new();
        for slice in 0..slices {
            let at = Time(slice * 10);
            let mut batch: Vec<_> = (0..keys).map(|key| (key, at, key + slice)).collect();
            sums.add_batch(at, &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
            countdown.set(if slice == 6 { panics_at } else { 0 });
            let mut advance = || {
                sums.advance_all(at.plus(10), &mut |key: &i64, window, sum, _| {
                    assert_eq!(results.insert((window.end.0, *key), sum), None);
                })
            };
            if catch_unwind(AssertUnwindSafe(&mut advance)).is_err() {
                assert_eq!(slice, 6);
                sums.clear_poison();
                sums.advance_all(at.plus(10), &mut |key: &i64, window, sum, _| {
                    assert_eq!(results.insert((window.end.0, *key), sum), None);
                })
                .unwrap();
            } else {
                assert_ne!(slice, 6, "no panic at {panics_at}");
            }
        }
        let expected = (1..=slices).flat_map(|end| {
            let of = move |key| ((end - 4).max(0)..end).map(move |slice| key + slice).sum::<i64>();
            (0..keys).map(move |key| ((end * 10, key), of(key)))
        });
        assert!(results.into_iter().eq(expected), "a panic at change {panics_at}");
    }
}
