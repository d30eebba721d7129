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

/// A session: its first and last event, and the values.
type Session = (i64, i64, Vec<i64>);

/// The contents of sessions, and the events that count for none. An event joins what is open at the time
/// it was sent with; it counts for none if it would be over by itself and joins nothing that events
/// have made which were sent before.
pub fn sessions(events: &[Event], gap: i64, lateness: i64) -> (Results, Vec<Event>) {
    let (mut taken, mut dropped) = (Vec::<Event>::new(), Vec::new());
    for event in events {
        let is_over = event.at < event.sent && event.at + gap + lateness < event.sent;
        let joins = || {
            let before = taken.iter().filter(|e| e.sent < event.sent && e.key == event.key);
            let before: Vec<_> = before.copied().collect();
            let (_, open) = replay(&before, gap, lateness, event.sent);
            open.values().flatten().any(|session| touches(session, event.at, gap))
        };
        match is_over && !joins() {
            true => dropped.push(*event),
            false => taken.push(*event),
        }
    }
    (replay(&taken, gap, lateness, i64::MAX).0, dropped)
}

fn touches((start, last, _): &Session, at: i64, gap: i64) -> bool {
    *start <= at + gap && at <= last + gap
}

/// Sessions that are closed at `until`, and those that are open: of events in the order of the times they
/// were sent with, each joining what was open then.
fn replay(
    events: &[Event],
    gap: i64,
    lateness: i64,
    until: i64,
) -> (Results, BTreeMap<u64, Vec<Session>>) {
    let mut events = events.to_vec();
    events.sort_by_key(|event| event.sent);
    let mut results = Results::new();
    let mut open: BTreeMap<u64, Vec<Session>> = BTreeMap::new();
    let mut close = |key: u64, (start, last, mut values): Session| {
        values.sort_unstable();
        let old = results.insert((window(start, last + gap), key), values);
        assert!(old.is_none(), "one session closes once");
    };
    let mut close_before = |key: u64, sets: &mut Vec<Session>, now: i64| {
        let (gone, still): (Vec<_>, Vec<_>) =
            sets.drain(..).partition(|(_, last, _)| last + gap + lateness < now);
        *sets = still;
        gone.into_iter().for_each(|session| close(key, session));
    };
    for event in &events {
        let sets = open.entry(event.key).or_default();
        close_before(event.key, sets, event.sent);
        let (joined, apart): (Vec<_>, Vec<_>) =
            sets.drain(..).partition(|session| touches(session, event.at, gap));
        *sets = apart;
        let mut whole = (event.at, event.at, vec![event.value]);
        for (start, last, values) in joined {
            whole = (whole.0.min(start), whole.1.max(last), [whole.2, values].concat());
        }
        sets.push(whole);
    }
    open.iter_mut().for_each(|(key, sets)| close_before(*key, sets, until));
    (results, open)
}
