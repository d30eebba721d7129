//! Events at both ends of time are found again, in each shape of windows and with each way to emit; an
//! event at the end of time itself is late.
//!
//! What this catches: state that is named by an end that was clipped, so that two windows, or two
//! sessions of a key, share it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use alluvium::time::nanos;
use alluvium::windows::Late;
use alluvium::{
    Counting, Elements, Emit, Holistic, Process, Result, Store, Time, Window, Windows, process,
};

use crate::dice::Dice;
use crate::sorted::Sorted;

/// Values by window, with how often they came out.
type Rows = BTreeMap<(Window, Vec<i64>), i64>;

fn clipped(start: i128, end: i128) -> Window {
    let clip = |at: i128| Time(at.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
    Window { start: clip(start), end: clip(end) }
}

/// Of aligned windows, by the definition.
fn aligned(events: &[(i64, i64)], (length, slide): (i64, i64)) -> Rows {
    let (length, slide) = (i128::from(length), i128::from(slide));
    let mut windows: BTreeMap<i128, Vec<i64>> = BTreeMap::new();
    for (at, value) in events {
        let at = i128::from(*at);
        let mut start = at.div_euclid(slide) * slide;
        while start + length > at {
            windows.entry(start).or_default().push(*value);
            start -= slide;
        }
    }
    let of = |(start, values): (i128, Vec<i64>)| ((clipped(start, start + length)), values);
    counted(windows.into_iter().map(of))
}

/// Of sessions, by the definition.
fn sessions(events: &[(i64, i64)], gap: i64) -> Rows {
    let mut events = events.to_vec();
    events.sort_unstable();
    let mut all: Vec<(i128, i128, Vec<i64>)> = Vec::new();
    for (at, value) in events {
        let at = i128::from(at);
        match all.last_mut().filter(|(_, last, _)| at - *last <= i128::from(gap)) {
            Some((_, last, values)) => {
                *last = at;
                values.push(value);
            }
            None => all.push((at, at, vec![value])),
        }
    }
    let of = |(start, last, values)| (clipped(start, last + i128::from(gap)), values);
    counted(all.into_iter().map(of))
}

fn counted(rows: impl Iterator<Item = (Window, Vec<i64>)>) -> Rows {
    let mut counted = Rows::new();
    for (window, mut values) in rows {
        values.sort_unstable();
        *counted.entry((window, values)).or_default() += 1;
    }
    counted
}

/// Gives its values, sorted.
fn sorting() -> impl Process<u64, i64, Row = Vec<i64>> {
    process(|_: &u64, _, all: &mut dyn Elements<i64>, emit: &mut dyn FnMut(Vec<i64>)| {
        let mut sorted = Vec::new();
        while let Some(element) = all.next()? {
            sorted.push(*element);
        }
        sorted.sort_unstable();
        emit(sorted);
        Ok(())
    })
}

/// Events and watermarks from one end of time to the other.
fn check(
    what: &str,
    events: &[(i64, i64)],
    expected: &Rows,
    mut add: impl FnMut(&mut Vec<(u64, Time, i64)>, &mut dyn FnMut(Window, Vec<i64>, i64)),
    mut advance: impl FnMut(Time, &mut dyn FnMut(Window, Vec<i64>, i64)) -> bool,
) {
    let mut rows = Rows::new();
    let note = &mut |window, values: Vec<i64>, diff| {
        *rows.entry((window, values)).or_default() += diff;
    };
    let mut batch: Vec<_> = events.iter().map(|(at, value)| (1, Time(*at), *value)).collect();
    add(&mut batch, note);
    assert!(batch.is_empty(), "{what}");
    let near = [-40, -20, -9, -5, -2, -1].map(|before| i64::MAX + before);
    let first = [0, 1, 5, 30].map(|after| i64::MIN + after);
    for watermark in first.into_iter().chain([0]).chain(near).chain([i64::MAX]) {
        let mut calls = 0;
        while !advance(Time(watermark), note) {
            calls += 1;
            assert!(calls < 10_000, "{what}: advancing to {watermark} does not end");
        }
    }
    rows.retain(|_, count| *count != 0);
    assert_eq!(rows, *expected, "{what}");
}

#[test]
fn events_at_both_ends_of_time_come_out() {
    let edges = [0, 1, 3, 15, 16, 30];
    let mut dice = Dice(11);
    for round in 0..20 {
        let mut ats: Vec<i64> = edges.iter().map(|after| i64::MIN + after).collect();
        // The last time of an event is one before the end of time.
        ats.extend(edges.iter().map(|before| i64::MAX - 1 - before));
        ats.extend([0, i64::MAX - 15, i64::MAX - 4]);
        if round > 0 {
            ats.retain(|_| dice.below(2) == 0);
        }
        let events: Vec<_> = ats.iter().zip(1..).map(|(at, value)| (*at, value)).collect();
        let shapes = [(10, 10), (10, 3), (30, 1), (i64::MAX, i64::MAX), (7, 0), (10, 0), (1, 0)];
        for (length, slide) in shapes.into_iter().chain([(i64::MAX, 0)]) {
            let (windows, expected) = match slide {
                0 => (Windows::session(nanos(length)), sessions(&events, length)),
                _ => (
                    Windows::sliding(nanos(length), nanos(slide)),
                    aligned(&events, (length, slide)),
                ),
            };
            for emit in [
                Emit::OnClose,
                Emit::OnWatermark,
                Emit::Early(nanos(3)),
                Emit::Early(nanos(i64::MAX)),
            ] {
                for lateness in [0, 7, i64::MAX] {
                    let windows = windows.lateness(nanos(lateness)).emit(emit);
                    let what = format!("round {round} {windows:?}");
                    check_all(&what, windows, &events, &expected);
                }
            }
        }
    }
}

/// Aggregated, with and without totals, and holistic.
fn check_all(what: &str, windows: Windows, events: &[(i64, i64)], expected: &Rows) {
    let no_late = &mut |late: Late<u64, i64>| panic!("{late:?} is late");
    for subtracts in [false, true] {
        let store = Store::in_memory().open().unwrap();
        let folded = store.aggregated("w").open(windows, Sorted(subtracts)).unwrap();
        let folded = RefCell::new(folded);
        check(
            &format!("{what} subtracts {subtracts}"),
            events,
            expected,
            |batch, note| {
                let out = &mut |_: &u64, window, values, diff| note(window, values, diff);
                folded.borrow_mut().add_batch(Time::MIN, batch, no_late, out).unwrap();
            },
            |to, note| {
                let out = &mut |_: &u64, window, values, diff| note(window, values, diff);
                folded.borrow_mut().advance(to, 3, out).unwrap().done
            },
        );
    }
    let store = Store::in_memory().open().unwrap();
    let kept = RefCell::new(store.holistic("w").open(windows, sorting()).unwrap());
    check(
        &format!("{what} kept"),
        events,
        expected,
        |batch, note| {
            let out = &mut |_: &u64, window, values, diff| note(window, values, diff);
            kept.borrow_mut().add_batch(Time::MIN, batch, no_late, out).unwrap();
        },
        |to, note| {
            let out = &mut |_: &u64, window, values, diff| note(window, values, diff);
            kept.borrow_mut().advance(to, 3, out).unwrap().done
        },
    );
}

/// Their ends, `MAX - 5` and after the end of time, were in one bucket: the first had both events.
#[test]
fn two_sessions_near_the_end_of_time_keep_their_own_events() {
    let store = Store::in_memory().open().unwrap();
    let mut kept: Holistic<u64, i64, _> =
        store.holistic("w").open(Windows::session(nanos(10)), sorting()).unwrap();
    let mut batch = vec![(1, Time(i64::MAX - 15), 1), (1, Time(i64::MAX - 4), 2)];
    kept.add_batch(Time(0), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
    let mut told = Vec::new();
    let out = &mut |_: &u64, window: Window, values: Vec<i64>, _| {
        told.push((i64::MAX - window.start.0, values));
    };
    while !kept.advance(Time::MAX, 10, out).unwrap().done {}
    assert_eq!(told, [(15, vec![1]), (4, vec![2])]);
}

/// Time, key and lateness of late events.
type LateRows = Vec<(i64, u64, i64)>;

#[test]
fn an_event_at_the_end_of_time_is_late_and_stops_nothing() {
    for windows in [
        Windows::tumbling(nanos(10)),
        Windows::sliding(nanos(10), nanos(2)),
        Windows::session(nanos(10)),
    ] {
        let add = |sent: i64| -> Result<(LateRows, i64)> {
            let store = Store::in_memory().open()?;
            let mut counts = store.aggregated::<u64, (), _>("w").open(windows, Counting)?;
            let mut late = Vec::new();
            let mut batch = vec![(1, Time(sent), ()), (2, Time::MAX, ()), (3, Time(sent), ())];
            let keep = &mut |event: Late<u64, ()>| {
                late.push((event.at.0, event.key, event.lateness));
            };
            counts.add_batch(Time(sent), &mut batch, keep, &mut |_, _, _, _| ())?;
            assert!(batch.is_empty());
            let mut keys = 0;
            let out = &mut |key: &u64, _, _, _| keys |= 1 << *key;
            while !counts.advance(Time::MAX, 10, out)?.done {}
            Ok((late, keys))
        };
        let (late, keys) = add(5).unwrap();
        assert_eq!(late, [(i64::MAX, 2, 5 - i64::MAX)], "how far after, as a negative number");
        assert_eq!(keys, 0b1010, "the others count");
    }
}

#[test]
fn what_comes_at_the_end_of_time_is_late_at_the_end_of_time() {
    let store = Store::in_memory().open().unwrap();
    let windows = Windows::session(nanos(10)).lateness(nanos(5));
    let mut counts = store.aggregated::<u64, (), _>("w").open(windows, Counting).unwrap();
    counts.advance(Time::MAX, 10, &mut |_, _, _, _| ()).unwrap();
    let mut late = Vec::new();
    let mut batch = vec![(1, Time(i64::MAX - 1), ()), (1, Time::MAX, ())];
    let note = &mut |event: Late<u64, ()>| late.push((event.at, event.lateness));
    counts.add_batch(Time(0), &mut batch, note, &mut |_, _, _, _| ()).unwrap();
    late.sort_unstable();
    assert_eq!(late, [(Time(i64::MAX - 1), 1), (Time::MAX, 0)]);
}
