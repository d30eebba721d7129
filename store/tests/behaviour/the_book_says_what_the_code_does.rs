//! The numbers of the book's chapter on memory, measured: each row of its tables holds for states of
//! many sizes, and is not wider than it must be.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::open_on;
use alluvium::config::{ByteSize, HYBRID_LOG_BYTES_MIN};
use alluvium::io::{Faults, Simulated};
use alluvium::stats::MemoryKind;
use alluvium::time::nanos;
use alluvium::types::rounded;
use alluvium::{AnyLayout, ErrorKind, Heap, HybridLog, KIB, Key, MIB, State, Store, Time, Ttl};

const CHAPTER: &str = include_str!("../../../docs/src/sizing.md");

/// Sizes of states: a doubling, in steps small enough to see tables before and after they grow.
const KEYS: [u64; 6] = [60_000, 72_000, 86_000, 103_000, 124_000, 149_000];

/// Least and most of the measured bytes per key.
type Range = (f64, f64);

fn store(layout: AnyLayout) -> Store {
    open_on(Arc::new(Simulated::new(1, Faults::none())), layout, 64 * MIB).unwrap()
}

fn layout(name: &str) -> AnyLayout {
    AnyLayout::named(name).unwrap_or_else(|| panic!("the book names a layout {name}"))
}

/// Bytes per key that `used` grows by from an empty state to one of many keys.
fn per_key(mut fill: impl FnMut(u64) -> (u64, u64)) -> Range {
    let each = KEYS.map(|keys| {
        let (before, after) = fill(keys);
        (after - before) as f64 / keys as f64
    });
    (each.iter().copied().fold(f64::MAX, f64::min), each.iter().copied().fold(0.0, f64::max))
}

fn in_memory<K: Key, V: State>(name: &str, entry: impl Fn(u64) -> (K, V)) -> Range {
    per_key(|keys| {
        let store = store(layout(name));
        let mut map = store.map::<K, V>("m").open().unwrap();
        let before = store.stats().unwrap().memory.used;
        map.load((0..keys).map(&entry)).map_err(|rejected| rejected.error).unwrap();
        let stats = store.stats().unwrap();
        assert_eq!(stats.total().pages_flushed, 0, "all of it is in memory");
        (before, stats.memory.used)
    })
}

fn on_storage<K: Key, V: State>(name: &str, entry: impl Fn(u64) -> (K, V)) -> Range {
    per_key(|keys| {
        let store = store(layout(name));
        let mut map = store.map::<K, V>("m").open().unwrap();
        map.load((0..keys).map(&entry)).map_err(|rejected| rejected.error).unwrap();
        store.checkpoint(1).unwrap();
        (0, store.stats().unwrap().total().disk_bytes)
    })
}

fn expiring(name: &str, to_storage: bool) -> Range {
    per_key(|keys| {
        let store = store(layout(name));
        let ttl = Ttl::event_time(nanos(1000));
        let mut map = store.expiring_map::<u64, u64>("m").open(ttl).unwrap();
        let before = store.stats().unwrap().memory.used;
        map.load((0..keys).map(|n| (n, n))).map_err(|rejected| rejected.error).unwrap();
        if !to_storage {
            return (before, store.stats().unwrap().memory.used);
        }
        store.checkpoint(1).unwrap();
        (0, store.stats().unwrap().total().disk_bytes)
    })
}

fn timers() -> Range {
    per_key(|keys| {
        let store = store(Heap::new().into());
        let mut timers = store.timers::<u64>("t").unwrap();
        let before = store.stats().unwrap().memory.used;
        for key in 0..keys {
            // Neither in order nor in reverse.
            timers.set(key, Time((key * 7919 % 10_007).cast_signed())).unwrap();
        }
        (before, store.stats().unwrap().memory.used)
    })
}

fn text(n: u64) -> String {
    format!("customer-{n:07}")
}

/// A range as the book writes it, `38 to 45`.
fn range(cell: &str) -> Range {
    let (least, most) = cell.split_once(" to ").unwrap_or_else(|| panic!("no range: {cell:?}"));
    (least.parse().unwrap(), most.parse().unwrap())
}

/// The written range holds what was measured, and not much more.
#[track_caller]
fn assert_tight(what: &str, written: Range, measured: Range) {
    println!("{what}: written {written:?}, measured {measured:.1?}");
    let holds = written.0 <= measured.0 && measured.1 <= written.1;
    let tight = measured.0 < written.0 * 1.1 + 1.0 && measured.1 > written.1 / 1.1 - 1.0;
    assert!(holds && tight, "{what}: written {written:?}, measured {measured:.1?}");
}

#[test]
fn bytes_per_key_are_as_written() {
    let mut rows = 0;
    for line in CHAPTER.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [state, layout, memory, storage] = cells[..] else { panic!("four cells: {line}") };
        let (in_memory, on_storage) = match state {
            "`Map<u64, u64>`" => {
                (in_memory(layout, |n| (n, n)), Some(on_storage(layout, |n| (n, n))))
            }
            "`Map<u64, [u64; 6]>`" => {
                let entry = |n| (n, [n; 6]);
                (in_memory(layout, entry), Some(on_storage(layout, entry)))
            }
            "`Map<String, Vec<u64>>`" => {
                let entry = |n| (text(n), vec![n; 4]);
                (in_memory(layout, entry), Some(on_storage(layout, entry)))
            }
            "`ExpiringMap<u64, u64>`" => (expiring(layout, false), Some(expiring(layout, true))),
            "`Timers<u64>`" => (timers(), None),
            other => panic!("no measurement of {other}"),
        };
        assert_tight(&format!("{state} {layout}, memory"), range(memory), in_memory);
        match on_storage {
            Some(measured) => {
                assert_tight(&format!("{state} {layout}, storage"), range(storage), measured);
            }
            None => assert_eq!(storage, ""),
        }
        rows += 1;
    }
    assert_eq!(rows, 9);
}

#[test]
fn the_parts_of_a_key_are_as_written() {
    assert!(
        CHAPTER.contains("8 bytes and the size of `(K, V)` for the slot, 11 to 21 for the index")
    );
    let index = per_key(|keys| {
        let store = store(layout("hybrid-log"));
        let mut map = store.map::<u64, u64>("m").open().unwrap();
        map.load((0..keys).map(|n| (n, n))).map_err(|rejected| rejected.error).unwrap();
        let memory = store.stats().unwrap().memory;
        (0, memory.used_for(MemoryKind::Index))
    });
    assert!(index.0 >= 11.0 && index.1 <= 21.5, "{index:?}");
    assert!(CHAPTER.contains("`n + 8` rounded up to 16, at least 32"));
    for n in 1..1000 {
        assert_eq!(rounded(n), (n + 8).next_multiple_of(16).max(32));
    }
}

#[test]
fn what_a_log_needs_besides_is_as_written() {
    let opened = |memory: ByteSize, heap: bool| {
        let device = Arc::new(Simulated::new(1, Faults::none()));
        let store = Store::in_memory().memory(memory.0).device(device).open().unwrap();
        if heap {
            store.map::<u64, String>("m").open().map(drop).unwrap();
        } else {
            store.map::<u64, u64>("m").open().map(drop).unwrap();
        }
        store.stats().unwrap().memory.used as f64 / MIB as f64
    };
    let mut rows = 0;
    for line in CHAPTER.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (Ok(memory), 3) = (cells[0].parse::<ByteSize>(), cells.len()) else { continue };
        // Another table has numbers of logs.
        if !cells[1].ends_with(" MiB") {
            continue;
        }
        for (cell, heap) in [(cells[1], false), (cells[2], true)] {
            let written: f64 = cell.strip_suffix(" MiB").unwrap().parse().unwrap();
            let measured = opened(memory, heap);
            assert!((measured / written - 1.0).abs() < 0.1, "{line}: {measured:.3}");
        }
        rows += 1;
    }
    assert_eq!(rows, 3);
    assert!(CHAPTER.contains(&format!("| hybrid-log | {} KiB |", HYBRID_LOG_BYTES_MIN / KIB)));
    let device = Arc::new(Simulated::new(1, Faults::none()));
    let store = Store::in_memory().memory(64 * MIB).device(device).open().unwrap();
    let open = |memory| store.map::<u64, u64>("m").layout(HybridLog::new().memory(memory)).open();
    let refused = open(83 * KIB).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OverBudget);
    assert!(refused.message().contains("bytes to open"), "{refused}");
    open(HYBRID_LOG_BYTES_MIN).unwrap();
}

#[test]
fn a_heap_that_grows_needs_room_for_one_more_block() {
    assert!(CHAPTER.contains("room for one block more"));
    let store = store(Heap::new().into());
    let mut map = store.map::<u64, u64>("m").open().unwrap();
    let (mut before, mut grown) = (store.stats().unwrap().memory.used, 0);
    for n in 0..100_000 {
        map.put(n, n).unwrap();
        let memory = store.stats().unwrap().memory;
        grown += u64::from(memory.used > before);
        // A block, and the directory twice.
        assert!(memory.peak <= before + (10 << 10) + before / 16, "{} of {before}", memory.peak);
        before = memory.used;
    }
    assert!(grown > 100, "{grown}");
}

/// The table of contents has every page, and the code of every page is run.
#[test]
fn every_page_is_listed_and_run() {
    let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
    let contents = include_str!("../../../docs/SUMMARY.md");
    let run = include_str!("../../../timely-adapter/src/book.rs");
    let mut pages = 0;
    for folder in ["", "src/", "design/", "benchmarks/"] {
        for entry in std::fs::read_dir(format!("{book}/{folder}")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name == "SUMMARY.md" || !name.ends_with(".md") {
                continue;
            }
            let page = format!("{folder}{name}");
            assert!(contents.contains(&format!("({page})")), "{page} is not listed");
            let text = std::fs::read_to_string(format!("{book}/{page}")).unwrap();
            let is_run = run.contains(&format!("/docs/{page}\")"));
            assert!(is_run || !text.contains("```rust"), "the code of {page} is not run");
            pages += 1;
        }
    }
    assert_eq!(contents.matches(".md)").count(), pages);
}

/// The table of layouts has all that there are, and the names that a file may say.
#[test]
fn every_layout_is_advised_on() {
    let chapter = include_str!("../../../docs/src/layouts.md");
    for name in AnyLayout::NAMES.into_iter().chain(["append-log", "window-segments"]) {
        assert!(AnyLayout::named(name).is_some(), "{name}");
        assert!(chapter.contains(&format!("| `{name}` |")), "{name}");
    }
    assert!(chapter.contains("| `auto`, the default |"));
    assert_eq!(AnyLayout::default(), AnyLayout::named("auto").unwrap());
}

/// The root has 40 names at most, without modules: a reader sees all of them on one page.
#[test]
fn the_root_has_few_names() {
    let (root, _) = include_str!("../../src/lib.rs").split_once("pub mod checkpoints").unwrap();
    let mut names = BTreeSet::new();
    for item in root.split(';') {
        let Some((before, path)) = item.split_once("pub use ") else { continue };
        if before.contains("#[doc(hidden)]") {
            continue;
        }
        let listed = path.rsplit_once('{').map_or(path, |(_, listed)| listed.trim_matches('}'));
        let last = listed.split(',').map(|name| name.rsplit("::").next().unwrap_or(name).trim());
        names.extend(last.filter(|name| !name.is_empty()));
    }
    assert!(["Store", "Map", "Windows"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(names.remove("io"), "a module");
    assert!(names.len() <= 40, "{} names: {names:?}", names.len());
}
