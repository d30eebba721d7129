//! As many hybrid logs open as the book says, and each of them works, the first as well as the last; one more is refused
//! by words that say what to give.

use std::sync::Arc;

use alluvium::config::{ByteSize, HYBRID_LOGS_BY_MEMORY, Helpers};
use alluvium::io::{Faults, Simulated};
use alluvium::{ErrorKind, HybridLog, KIB, MIB, Map, State, Store};

use crate::counting::alone;

fn store(memory: u64) -> Store {
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let builder = Store::in_memory().memory(memory).device(device).helpers(Helpers::Inline);
    builder.open().unwrap()
}

/// Opens logs until one is refused.
fn open_all<V: State>(store: &Store) -> (Vec<Map<u64, V, HybridLog>>, alluvium::Error) {
    let mut maps = Vec::new();
    loop {
        let name = format!("m{}", maps.len());
        match store.map::<u64, V>(&name).layout(HybridLog::new()).open() {
            Ok(map) => maps.push(map),
            Err(error) => return (maps, error),
        }
    }
}

fn all_work<V: State + PartialEq + std::fmt::Debug>(memory: u64, make: impl Fn(u64) -> V) -> u64 {
    let store = store(memory);
    let (mut maps, refused) = open_all::<V>(&store);
    let count = maps.len() as u64;
    assert_eq!(refused.kind(), ErrorKind::OverBudget, "{refused}");
    // The last fill first: the first begin their pages when the others have all the memory.
    let (keys, logs) = (40, 0..maps.len());
    for nth in logs.clone().rev().chain(logs.clone()).chain(logs.rev()) {
        for key in 0..keys {
            let made = make(key + nth as u64);
            maps[nth].update(&key, || make(0), |v| *v = made).unwrap_or_else(|e| {
                panic!("{memory} bytes, {count} logs, log {nth}, key {key}: {e}");
            });
        }
    }
    store.checkpoint(1).unwrap();
    for (nth, map) in maps.iter_mut().enumerate() {
        for key in 0..keys {
            let found = map.get(&key).unwrap().map(|v| v.clone());
            assert_eq!(found, Some(make(key + nth as u64)), "log {nth}");
        }
    }
    count
}

/// The words of a refusal, which a larger memory answers.
fn more_open_in_what_is_told<V: State>(memory: u64) {
    let (maps, refused) = open_all::<V>(&store(memory));
    let told = ByteSize(if V::NO_HEAP { memory + memory / 2 } else { 4 * memory });
    let words = format!("a memory of {} would do", told.short());
    assert!(refused.to_string().contains(&words), "{refused}");
    assert!(refused.to_string().contains("kept for the pages of other states"), "{refused}");
    let (more, _) = open_all::<V>(&store(told.0));
    assert!(more.len() > maps.len(), "{} and {}", more.len(), maps.len());
}

/// What is told is not much less than what there is.
fn is_told(what: &str, memory: u64, told: u64, count: u64) {
    let near = told <= count && count <= told + told / 16;
    assert!(near, "{what} in {memory} bytes: {count}, {told} are told");
}

#[test]
fn as_many_logs_open_and_work_as_the_book_says() {
    let _alone = alone();
    let book = include_str!("../../../docs/src/sizing.md");
    for (memory, plain, heap) in HYBRID_LOGS_BY_MEMORY {
        is_told("plain", memory, plain, all_work(memory, |n| n));
        is_told("heap", memory, heap, all_work(memory, |n| vec![n as u8; 3000]));
        more_open_in_what_is_told::<u64>(memory);
        more_open_in_what_is_told::<Vec<u8>>(memory);
        let size = match memory {
            MIB.. => format!("{} MiB", memory / MIB),
            _ => format!("{} KiB", memory / KIB),
        };
        let row = format!("| {size} | {plain} | {heap} |");
        assert!(book.contains(&row), "{row} is not in the book");
    }
}
