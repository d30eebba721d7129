//! Windows of a few events by hand: counts of key 1, and the rows that come out.

use alluvium::{Aggregate, Aggregated, Counting, Store, Time, Window, Windows};

/// Key, start and end of the window, count, and +1 or -1.
pub type Results = Vec<(u64, i64, i64, i64, i64)>;

pub fn in_memory() -> Store {
    Store::in_memory().open().unwrap()
}

/// A store that can take checkpoints.
pub fn on_a_device() -> Store {
    let device = alluvium::io::Simulated::new(1, alluvium::io::Faults::none());
    let store = Store::in_memory().memory(4 * alluvium::MIB).max_value(4 * alluvium::KIB);
    let store = store.helpers(alluvium::config::Helpers::Inline);
    store.device(std::sync::Arc::new(device)).open().unwrap()
}

pub fn counting(windows: Windows) -> (Store, Aggregated<u64, (), Counting>) {
    let store = in_memory();
    let counts = store.aggregated("counts").open(windows, Counting).unwrap();
    (store, counts)
}

/// Adds events of key 1 that were sent with the given time; gives those that were late.
pub fn add(
    counts: &mut Aggregated<u64, (), Counting>,
    sent: i64,
    at: &[i64],
    results: &mut Results,
) -> Vec<i64> {
    let mut late = Vec::new();
    let mut batch: Vec<_> = at.iter().map(|at| (1, Time(*at), ())).collect();
    counts
        .add_batch(Time(sent), &mut batch, &mut |event| late.push(event.at.0), &mut note(results))
        .unwrap();
    late
}

/// Notes the results that come out.
pub fn note(results: &mut Results) -> impl FnMut(&u64, Window, i64, i64) + '_ {
    |key, window, count, diff| results.push((*key, window.start.0, window.end.0, count, diff))
}

pub fn advance(counts: &mut Aggregated<u64, (), Counting>, to: i64, results: &mut Results) {
    while !counts.advance(Time(to), 1000, &mut note(results)).unwrap().done {}
}

/// What is not taken back: windows and counts.
pub fn left_of(results: Results) -> Vec<(i64, i64, i64)> {
    let mut sums = std::collections::BTreeMap::new();
    for (_, start, end, count, diff) in results {
        *sums.entry((start, end, count)).or_insert(0) += diff;
    }
    sums.retain(|_, sum| *sum != 0);
    sums.into_keys().collect()
}

/// Joins texts in the order in which they are folded.
pub struct Joining;

impl Aggregate<String> for Joining {
    type Acc = String;
    type Out = String;

    fn init(&self) -> String {
        String::new()
    }

    fn add(&self, acc: &mut String, element: &String) {
        assert!(element != "planned panic", "a planned panic");
        acc.push_str(element);
    }

    fn merge(&self, acc: &mut String, later: &String) {
        acc.push_str(later);
    }

    fn out(&self, acc: &String) -> Option<String> {
        Some(acc.clone())
    }
}
