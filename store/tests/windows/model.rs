//! Windows by re-computation: what each event counts for, from its time and the time it was sent
//! with, and nothing else.

use std::collections::BTreeMap;

use alluvium::{Time, Window};

/// An event: when it happened, what it was sent with, its key and value.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub at: i64,
    pub sent: i64,
    pub key: u64,
    pub value: i64,
}

/// The values of a window and key, in the order of their sums' commutative folding: sorted.
pub type Results = BTreeMap<(Window, u64), Vec<i64>>;

fn window(start: i64, end: i64) -> Window {
    Window { start: Time(start), end: Time(end) }
}

/// The contents of aligned windows, and the events that count for none.
pub fn aligned(
    events: &[Event],
    (length, slide, offset): (i64, i64, i64),
    lateness: i64,
) -> (Results, Vec<Event>) {
    let (mut results, mut dropped) = (Results::new(), Vec::new());
    for event in events {
        let mut counts = false;
        let near = (event.at - offset).div_euclid(slide);
        for n in near - length / slide - 1..=near {
            let start = n * slide + offset;
            let holds = start <= event.at && event.at < start + length;
            let is_closed = event.at < event.sent && start + length + lateness <= event.sent;
            if holds && !is_closed {
                counts = true;
                let of = (window(start, start + length), event.key);
                results.entry(of).or_default().push(event.value);
            }
        }
        if !counts {
            dropped.push(*event);
        }
    }
    results.values_mut().for_each(|values| values.sort_unstable());
    (results, dropped)
}

/// The contents of sessions, and the events that count for none: events in the order of the times
/// they were sent with, each joining what was open then.
pub fn sessions(events: &[Event], gap: i64, lateness: i64) -> (Results, Vec<Event>) {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.sent);
    let (mut results, mut dropped) = (Results::new(), Vec::new());
    let mut open: BTreeMap<u64, Vec<(i64, i64, Vec<i64>)>> = BTreeMap::new();
    let mut close = |key: u64, (start, last, mut values): (i64, i64, Vec<i64>)| {
        values.sort_unstable();
        let old = results.insert((window(start, last + gap), key), values);
        assert!(old.is_none(), "one session closes once");
    };
    for event in &events {
        let sets = open.entry(event.key).or_default();
        let (gone, still): (Vec<_>, Vec<_>) =
            sets.drain(..).partition(|(_, last, _)| last + gap + lateness < event.sent);
        *sets = still;
        gone.into_iter().for_each(|session| close(event.key, session));
        if event.at + gap + lateness < event.sent {
            dropped.push(*event);
            continue;
        }
        let touches = |(start, last, _): &(i64, i64, Vec<i64>)| {
            *start <= event.at + gap && event.at <= last + gap
        };
        let (joined, apart): (Vec<_>, Vec<_>) = sets.drain(..).partition(touches);
        *sets = apart;
        let mut whole = (event.at, event.at, vec![event.value]);
        for (start, last, values) in joined {
            whole = (whole.0.min(start), whole.1.max(last), [whole.2, values].concat());
        }
        sets.push(whole);
    }
    for (key, sets) in open {
        sets.into_iter().for_each(|session| close(key, session));
    }
    (results, dropped)
}
