//! The answers, counted again by a loop that shares nothing with the dataflow but the events.

use std::collections::BTreeMap;

use crate::event::{Events, VIEW, WINDOW_NS};

/// Views by campaign and begin of the window, in nanoseconds.
pub type Answers = BTreeMap<(u128, i64), i64>;

/// Counts all events.
pub fn recount(events: &Events) -> Answers {
    let table: BTreeMap<u128, u128> =
        (0..events.ads).map(|ad| (events.ad(ad), events.campaign(ad))).collect();
    let mut answers = Answers::new();
    for number in 0..events.count {
        let event = events.event(number);
        if event.kind == VIEW {
            let window = event.at - event.at % WINDOW_NS;
            *answers.entry((table[&event.ad], window)).or_default() += 1;
        }
    }
    answers
}

/// What is wrong with `found`, if anything is.
pub fn difference(expected: &Answers, found: &Answers) -> Option<String> {
    for (key @ (campaign, window), count) in expected {
        let other = found.get(key).copied().unwrap_or_default();
        if other != *count {
            return Some(format!(
                "campaign {campaign:032x} has {other} views in the window at {window}, not {count}"
            ));
        }
    }
    let more = found.keys().find(|key| !expected.contains_key(key))?;
    Some(format!("campaign {:032x} has a window at {} that has no views", more.0, more.1))
}
