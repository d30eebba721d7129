//! Cases of session windows that engines got wrong, each by hand.

use alluvium::stats::MemoryKind;
use alluvium::time::nanos;
use alluvium::{Counting, Emit, Store, Time, Windows};

use crate::by_hand::{Joining, Results, add, advance, counting, in_memory, left_of};

#[test]
fn an_event_a_gap_after_the_last_still_belongs_to_the_session() {
    let (_store, mut visits) = counting(Windows::session(nanos(10)));
    let mut results = Results::new();
    add(&mut visits, 0, &[0], &mut results);
    advance(&mut visits, 10, &mut results);
    assert!(results.is_empty(), "an event at 10 may come and belongs to it");
    add(&mut visits, 10, &[10, 21], &mut results);
    advance(&mut visits, i64::MAX, &mut results);
    assert_eq!(results, [(1, 0, 20, 2, 1), (1, 21, 31, 1, 1)]);
}

#[test]
fn an_event_that_bridges_two_fired_sessions_takes_both_back_and_tells_one() {
    let windows = Windows::session(nanos(10)).lateness(nanos(50)).emit(Emit::OnWatermark);
    let (_store, mut visits) = counting(windows);
    let mut results = Results::new();
    add(&mut visits, 0, &[0, 15], &mut results);
    advance(&mut visits, 30, &mut results);
    assert_eq!(results, [(1, 0, 10, 1, 1), (1, 15, 25, 1, 1)]);
    results.clear();
    assert!(add(&mut visits, 30, &[8], &mut results).is_empty());
    assert_eq!(results, [(1, 0, 10, 1, -1), (1, 15, 25, 1, -1), (1, 0, 25, 3, 1)]);
    results.clear();
    advance(&mut visits, i64::MAX, &mut results);
    assert!(results.is_empty(), "the timers of the two are gone: {results:?}");
}

#[test]
fn a_late_event_that_joins_an_open_session_counts() {
    for advanced in [true, false] {
        let (_store, mut visits) = counting(Windows::session(nanos(10)));
        let mut results = Results::new();
        add(&mut visits, 0, &[0, 8], &mut results);
        if advanced {
            advance(&mut visits, 12, &mut results);
        }
        assert!(add(&mut visits, 12, &[1, 2], &mut results).is_empty(), "advanced: {advanced}");
        advance(&mut visits, i64::MAX, &mut results);
        assert_eq!(results, [(1, 0, 18, 4, 1)], "advanced: {advanced}");
    }
}

/// At the watermark 14600 an event at 14600 may still come, which belongs to a session that ends there: so
/// results come out one nanosecond later than in systems where it does not belong to it.
#[test]
fn a_late_event_that_joins_a_session_within_the_lateness_changes_its_result_at_once() {
    let windows = Windows::session(nanos(3000)).lateness(nanos(10)).emit(Emit::OnWatermark);
    let (_store, mut visits) = counting(windows);
    let mut results = Results::new();
    add(&mut visits, 0, &[11600], &mut results);
    advance(&mut visits, 14600, &mut results);
    assert!(add(&mut visits, 14600, &[10000], &mut results).is_empty());
    assert!(results.is_empty());
    advance(&mut visits, 14601, &mut results);
    assert_eq!(results, [(1, 10000, 14600, 2, 1)]);

    let (_store, mut visits) = counting(windows);
    let mut results = Results::new();
    add(&mut visits, 0, &[11600], &mut results);
    advance(&mut visits, 14601, &mut results);
    assert_eq!(results, [(1, 11600, 14600, 1, 1)]);
    results.clear();
    assert!(add(&mut visits, 14601, &[10000], &mut results).is_empty());
    assert_eq!(results, [(1, 11600, 14600, 1, -1), (1, 10000, 14600, 2, 1)]);
    results.clear();
    assert!(add(&mut visits, 14601, &[14500], &mut results).is_empty());
    advance(&mut visits, i64::MAX, &mut results);
    assert_eq!(results, [(1, 10000, 14600, 2, -1), (1, 10000, 17500, 3, 1)]);
}

/// Neither the order of events that are sent with one time, nor when they come in, decides which are late.
#[test]
fn what_is_sent_at_the_same_time_saves_no_late_event() {
    for advanced in [true, false] {
        for events in [[8, 1], [1, 8]] {
            let (_store, mut visits) = counting(Windows::session(nanos(10)));
            let mut results = Results::new();
            if advanced {
                advance(&mut visits, 12, &mut results);
            }
            let what = format!("advanced: {advanced}, {events:?}");
            assert_eq!(add(&mut visits, 12, &events, &mut results), [1], "{what}");
            advance(&mut visits, 12, &mut results);
            assert_eq!(add(&mut visits, 12, &[0], &mut results), [0], "{what}");
            assert!(
                add(&mut visits, 13, &[1], &mut results).is_empty(),
                "{what}: 8 was there before"
            );
            advance(&mut visits, i64::MAX, &mut results);
            assert_eq!(results, [(1, 1, 18, 2, 1)], "{what}");
        }
    }
}

#[test]
fn a_chain_of_sessions_becomes_one() {
    let (_store, mut visits) = counting(Windows::session(nanos(10)));
    let mut results = Results::new();
    add(&mut visits, 0, &[0, 15, 30, 45, 60], &mut results);
    add(&mut visits, 0, &[7, 22, 37, 52], &mut results);
    advance(&mut visits, i64::MAX, &mut results);
    assert_eq!(results, [(1, 0, 70, 9, 1)]);
}

/// Two sessions of a key whose timers are at one time, of which one goes on: it was left without a timer
/// once, and so open for good.
#[test]
fn sessions_of_a_key_that_are_due_at_one_time_each_close_at_their_own() {
    let (_store, mut counts) =
        counting(Windows::session(nanos(6)).lateness(nanos(12)).emit(Emit::OnWatermark));
    let mut results = Results::new();
    advance(&mut counts, 177, &mut results);
    add(&mut counts, 178, &[175], &mut results);
    add(&mut counts, 179, &[163], &mut results);
    add(&mut counts, 181, &[167], &mut results);
    advance(&mut counts, 189, &mut results);
    // The session that ended at 173 is closed for it, the one from 175 on is not.
    add(&mut counts, 191, &[173], &mut results);
    advance(&mut counts, i64::MAX, &mut results);
    assert_eq!(left_of(results), [(163, 173, 2), (173, 181, 2)]);
}

/// Two sessions become one, whose timers are withdrawn but for one; a third had one at the same time.
#[test]
fn a_session_keeps_its_timer_when_others_with_one_at_that_time_are_joined() {
    let (_store, mut counts) =
        counting(Windows::session(nanos(6)).lateness(nanos(12)).emit(Emit::Early(nanos(4))));
    let mut results = Results::new();
    advance(&mut counts, 98, &mut results);
    add(&mut counts, 98, &[105, 114, 109], &mut results);
    // Results early, it closes at 132, which is when the one at 131 may be results early.
    advance(&mut counts, 118, &mut results);
    add(&mut counts, 118, &[124, 131], &mut results);
    add(&mut counts, 118, &[119], &mut results);
    advance(&mut counts, i64::MAX, &mut results);
    assert_eq!(left_of(results), [(105, 130, 5), (131, 137, 1)]);
}

/// A key with very many open sessions: an event looks at those next to it, and a timer at its own. How long
/// that takes is printed.
#[test]
fn many_open_sessions_of_one_key_are_told_apart() {
    for (open, emit) in [(0, Emit::OnClose), (50_000, Emit::OnClose), (50_000, Emit::OnWatermark)] {
        // The sessions of a key are one value.
        let store = Store::in_memory().max_value(16 * alluvium::MIB).open().unwrap();
        let windows = Windows::session(nanos(10)).lateness(nanos(40)).emit(emit);
        let mut visits = store.aggregated("counts").open(windows, Counting).unwrap();
        let mut results = Results::new();
        let at = |n: i64| n * 30;
        // Out of order: each other one first.
        let first: Vec<i64> = (0..open).step_by(2).chain((1..open).step_by(2)).map(at).collect();
        add(&mut visits, 0, &first, &mut results);
        let start = std::time::Instant::now();
        // One extends a session, one begins another, one joins two.
        let events: Vec<i64> =
            (0..10_000).map(|n| at(n * 5) + [5, 15, 20][n as usize % 3]).collect();
        add(&mut visits, 0, &events, &mut results);
        println!("{open} open, {emit:?}: 10,000 events in {:?}", start.elapsed());
        let start = std::time::Instant::now();
        advance(&mut visits, i64::MAX, &mut results);
        println!("{open} open, {emit:?}: closed in {:?}", start.elapsed());
        let mut all: Vec<i64> = first.into_iter().chain(events).collect();
        all.sort_unstable();
        let sessions = all.chunk_by(|last, next| next - last <= 10);
        let expected: Vec<_> =
            sessions.map(|s| (s[0], s[s.len() - 1] + 10, s.len() as i64)).collect();
        assert!(left_of(results) == expected, "{open} open, {emit:?}");
    }
}

/// Would keep the copies of late events booked that were let into their sessions.
#[test]
fn late_events_of_sessions_give_their_memory_back_when_they_are_in() {
    let store = in_memory();
    let windows = Windows::session(nanos(1_000));
    let mut joined = store.aggregated::<String, String, _>("s").open(windows, Joining).unwrap();
    let mut used = Vec::new();
    for round in 0..20 {
        let start = round * 10_000;
        let late = (0..50).map(|n| ("k".repeat(200 + n), Time(start + 10), "late".to_owned()));
        let mut batch: Vec<_> = late.collect();
        let mut too_late = 0;
        let sent = Time(start + 500);
        joined.add_batch(sent, &mut batch, &mut |_| too_late += 1, &mut |_, _, _, _| ()).unwrap();
        let mut rows = 0;
        joined.advance_all(Time(start + 9_000), &mut |_, _, _, _| rows += 1).unwrap();
        assert_eq!((too_late, rows), (0, 50));
        used.push(store.stats().unwrap().memory.used_for(MemoryKind::Values));
    }
    assert!(used[19] <= used[1] + 20_000, "{used:?}");
}
