//! Windows of four times the memory fire rightly, within the memory, and leave nothing behind.

use std::cell::Cell;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::types::{hash_bytes, hash_word};
use alluvium::{
    Aggregate, AnyLayout, Elements, Heap, KIB, MIB, Process, State, Store, Time, Windows, process,
};

fn store(device: &Simulated, memory: u64) -> Store {
    Store::in_memory()
        .memory(memory)
        .max_value(4 * KIB)
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        .open()
        .unwrap()
}

/// About a hundred bytes that no other number has.
fn text(n: u64) -> String {
    format!("{:064x}{:036}", hash_word(n), n)
}

/// Number of texts, and a sum over them that knows their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Digest {
    count: u64,
    sum: u64,
}

impl Digest {
    fn add(&mut self, text: &str) {
        self.count += 1;
        self.sum = self.sum.wrapping_mul(31).wrapping_add(hash_bytes(text.as_bytes()));
    }
}

/// A digest of all texts of a window.
fn digest<E: AsRef<str> + 'static>() -> impl Process<u64, E, Row = Digest> {
    process(|_: &u64, _, texts: &mut dyn Elements<E>, emit: &mut dyn FnMut(Digest)| {
        let mut digest = Digest::default();
        while let Some(text) = texts.next()? {
            digest.add(text.as_ref());
        }
        emit(digest);
        Ok(())
    })
}

fn windows_of(keys: u64, events: u64, memory: u64, windows: Windows, length: i64) {
    let device = Simulated::new(7, Faults::none());
    let store = store(&device, memory);
    let mut kept = store.holistic::<u64, String>("kept").open(windows, digest()).unwrap();
    let mut told = Vec::new();
    let mut expected = vec![Digest::default(); keys as usize];
    for round in 0..2 {
        expected.fill(Digest::default());
        let mut batch = Vec::new();
        for n in 0..events {
            let key = hash_word(n) % keys;
            let text = text(round * events + n);
            expected[key as usize].add(&text);
            let at = Time(round as i64 * length + n as i64 * length / events as i64);
            batch.push((key, at, text));
            if batch.len() == 64 || n + 1 == events {
                kept.add_batch(
                    Time(round as i64 * length),
                    &mut batch,
                    &mut |_| (),
                    &mut |_, _, _, _| (),
                )
                .unwrap();
            }
            assert!(store.stats().unwrap().memory.used <= memory);
        }
        let spilled = store.stats().unwrap().io.bytes_written;
        assert!(spilled > 2 * memory, "{spilled} bytes were written");
        told.clear();
        let end = Time((round as i64 + 1) * length + 1);
        let mut calls = 0;
        while !kept
            .advance(end, 100, &mut |key, _, digest, _| told.push((*key, digest)))
            .unwrap()
            .done
        {
            store.tick(10).unwrap();
            calls += 1;
            assert!(calls < 1_000_000);
        }
        told.sort_unstable();
        let expected = (0..).zip(expected.iter().copied()).filter(|(_, digest)| digest.count > 0);
        assert!(told == expected.collect::<Vec<_>>(), "round {round}");
    }
    while store.tick(1000).unwrap() > 0 {}
    let stats = store.stats().unwrap();
    let disk: u64 = stats.states.iter().map(|state| state.table.disk_bytes).sum();
    assert_eq!(disk, 0, "{stats}");
    assert!(stats.memory.peak <= memory, "{stats}");
}

#[test]
fn a_holistic_window_of_one_key() {
    windows_of(1, 40_000, MIB, Windows::tumbling(nanos(1_000_000)), 1_000_000);
}

#[test]
fn a_holistic_window_of_many_keys() {
    windows_of(700, 40_000, MIB, Windows::tumbling(nanos(1_000_000)), 1_000_000);
}

/// Nothing of a tumbling window is on storage when the one before it fires: it is the watermark that says
/// when to read it.
#[test]
fn what_a_tumbling_window_has_on_storage_is_read_shortly_before_it_fires() {
    const LENGTH: i64 = 1_000_000;
    let device = Simulated::new(7, Faults::none());
    let store = store(&device, 4 * MIB);
    let mut other = store.map::<u64, String>("other").layout(Heap::new()).open().unwrap();
    for n in 0..18_000 {
        other.put(n, text(n)).unwrap();
    }
    let windows = Windows::tumbling(nanos(LENGTH));
    let mut kept = store.holistic::<u64, String>("kept").open(windows, digest()).unwrap();
    let mut expected = vec![Digest::default(); 100];
    for n in 0..16_000 {
        expected[(n % 100) as usize].add(&text(n));
        let mut one = vec![(n % 100, Time(n as i64), text(n))];
        kept.add_batch(Time(0), &mut one, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
    }
    other.clear().unwrap();
    let read = |store: &Store| {
        let stats = store.stats().unwrap();
        let table = stats.states.iter().find(|state| state.name == "kept").unwrap().table;
        (
            stats.io.bytes_written,
            stats.io.bytes_read,
            table.prefetched_bytes,
            table.prefetch_wasted_bytes,
        )
    };
    let mut told = Vec::new();
    let mut advance = |to: i64| {
        let mut out = |key: &u64, _, digest, _| told.push((*key, digest));
        while !kept.advance(Time(to), 100, &mut out).unwrap().done {}
        while store.tick(100).unwrap() > 0 {}
    };
    advance(LENGTH / 2);
    let (written, _, ahead, _) = read(&store);
    assert!(written > MIB / 2 && ahead == 0, "{written} bytes were written, {ahead} read ahead");
    advance(LENGTH - LENGTH / 8);
    let (_, bytes_read, ahead, _) = read(&store);
    assert!(ahead >= written / 4 * 3, "{written} bytes were written, {ahead} read ahead");
    advance(LENGTH - 1);
    advance(LENGTH);
    let (_, in_all, ahead_in_all, wasted) = read(&store);
    assert_eq!((in_all, ahead_in_all, wasted), (bytes_read, ahead, 0));
    told.sort_unstable();
    assert!(told == (0..).zip(expected).collect::<Vec<_>>());
}

/// A text that counts how often it is copied.
#[derive(Debug, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Copied(String);

thread_local! {
    static COPIES: Cell<u64> = const { Cell::new(0) };
}

impl Clone for Copied {
    fn clone(&self) -> Self {
        COPIES.set(COPIES.get() + 1);
        Copied(self.0.clone())
    }
}

impl AsRef<str> for Copied {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Sessions of one key that pause for longer than the gap between them.
fn sessions_of(events: u64, memory: u64, gap: i64) {
    let device = Simulated::new(7, Faults::none());
    let store = store(&device, memory);
    let mut kept =
        store.holistic::<u64, Copied>("kept").open(Windows::session(nanos(gap)), digest()).unwrap();
    for round in 0..2 {
        let mut expected = Digest::default();
        let first = round * (events as i64 + 2 * gap);
        let mut batch = Vec::new();
        for n in 0..events {
            let text = text(round as u64 * events + n);
            expected.add(&text);
            batch.push((7, Time(first + n as i64), Copied(text)));
            if batch.len() == 64 || n + 1 == events {
                kept.add_batch(Time(first), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
                assert!(store.stats().unwrap().memory.used <= memory);
            }
        }
        let mut told = Vec::new();
        COPIES.set(0);
        let end = Time(first + events as i64 + 2 * gap);
        while !kept.advance(end, 100, &mut |_, _, digest, _| told.push(digest)).unwrap().done {
            store.tick(10).unwrap();
        }
        assert_eq!(told, [expected], "round {round}");
        // What is in memory is read where it is, the rest as it comes from storage.
        assert_eq!(COPIES.get(), 0, "round {round}: a session is not collected");
    }
    while store.tick(1000).unwrap() > 0 {}
    let stats = store.stats().unwrap();
    assert!(stats.io.bytes_written > 4 * memory, "{stats}");
    assert!(stats.memory.peak <= memory, "{stats}");
}

#[test]
fn a_holistic_session_is_read_as_a_stream() {
    sessions_of(40_000, MIB, 100_000);
}

#[test]
fn a_holistic_session_that_moves_again_and_again_is_read_as_a_stream() {
    sessions_of(40_000, MIB, 5_000);
}

/// The last text in the order of texts.
struct Last;

impl Aggregate<String> for Last {
    type Acc = String;
    type Out = String;

    fn init(&self) -> String {
        String::new()
    }

    fn add(&self, acc: &mut String, text: &String) {
        self.merge(acc, text);
    }

    fn merge(&self, acc: &mut String, later: &String) {
        if *later > *acc {
            acc.clone_from(later);
        }
    }

    fn out(&self, acc: &String) -> Option<String> {
        Some(acc.clone())
    }
}

#[test]
fn aggregated_windows_of_many_keys() {
    for windows in [Windows::tumbling(nanos(1_000)), Windows::sliding(nanos(1_000), nanos(500))] {
        for layout in [AnyLayout::Auto, AnyLayout::named("hybrid-log").unwrap()] {
            let device = Simulated::new(7, Faults::none());
            let (memory, keys) = (2 * MIB, 30_000u64);
            let store = store(&device, memory);
            let mut last = store
                .aggregated::<u64, String, _>("last")
                .layout(layout.clone())
                .open(windows, Last)
                .unwrap();
            let texts = |n: u64| (hash_word(n) % keys, Time((n / 45) as i64), text(n));
            let mut told = Vec::new();
            for first in (0..45_000).step_by(64) {
                let mut batch: Vec<_> = (first..(first + 64).min(45_000)).map(texts).collect();
                last.add_batch(Time(0), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
            }
            while !last
                .advance(Time::MAX, 100, &mut |key, window, text, _| {
                    told.push((window, *key, text))
                })
                .unwrap()
                .done
            {
                store.tick(10).unwrap();
            }
            let mut expected = std::collections::BTreeMap::new();
            for (key, at, text) in (0..45_000).map(texts) {
                let slide = if windows == Windows::tumbling(nanos(1_000)) { 1_000 } else { 500 };
                let mut start = at.0.div_euclid(slide) * slide;
                while at.0 < start + 1_000 {
                    let window = alluvium::Window { start: Time(start), end: Time(start + 1_000) };
                    Last.add(expected.entry((window, key)).or_default(), &text);
                    start -= slide;
                }
            }
            told.sort_unstable();
            let expected = expected.into_iter().map(|((w, key), text)| (w, key, text));
            assert!(told == expected.collect::<Vec<_>>(), "{windows:?} {layout:?}");
            let stats = store.stats().unwrap();
            assert!(stats.io.bytes_written > memory, "{stats}");
            assert!(stats.memory.peak <= memory, "{stats}");
        }
    }
}
