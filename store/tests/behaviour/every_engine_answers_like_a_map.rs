//! The conformance histories on real directories: each I/O engine, with and without the page
//! cache, gives the answers of a `BTreeMap` while a helper thread does the background work.
//!
//! What this catches that the simulated device does not: buffers that are not aligned for direct
//! I/O, completions on other threads, locks and files that outlive a store.

use crate::common;
use crate::common::history::{Op, Value, op};
use alluvium::config::Helpers;
use alluvium::io::{DirectIo, EngineChoice, IoOptions};
use alluvium::{AnyLayout, ErrorKind, Heap, HybridLog, KIB, MIB, Store};
use proptest::prelude::*;

fn engines() -> Vec<(&'static str, &'static str, IoOptions)> {
    let on = |engine, direct| IoOptions { engine, direct, ..IoOptions::default() };
    vec![
        ("threads, buffered", "threads", on(EngineChoice::Threads, DirectIo::Off)),
        ("threads, direct", "threads", on(EngineChoice::Threads, DirectIo::Auto)),
        ("uring, buffered", "uring", on(EngineChoice::Uring, DirectIo::Off)),
        ("uring, direct", "uring", on(EngineChoice::Uring, DirectIo::Auto)),
    ]
}

fn layouts() -> Vec<(AnyLayout, u64)> {
    vec![
        (Heap::new().into(), MIB),
        (HybridLog::new().into(), 8 * MIB),
        (common::tiny().into(), 256 * KIB),
        (common::tiny().hash_bits(1).into(), 256 * KIB),
    ]
}

fn run<V: Value>(ops: &[Op]) {
    for (name, engine, io) in engines() {
        for (layout, memory) in layouts() {
            let directory = tempfile::tempdir().unwrap();
            let open = || {
                Store::builder(directory.path())
                    .memory(memory)
                    .max_value(4 * KIB)
                    .layout(layout.clone())
                    .helpers(Helpers::Thread)
                    .io(io)
                    .open()
            };
            match open() {
                Ok(store) => {
                    let (used, why_not) = store.engine();
                    assert_eq!(used, engine, "{name}: {why_not:?}");
                    if let Some(reason) = why_not {
                        eprintln!("{name}: {reason}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    eprintln!("{name}: skipped, {error}");
                    break;
                }
                Err(error) => panic!("{name}: {error}"),
            }
            common::history::run::<V>(|| open().unwrap(), memory, ops);
        }
    }
}

/// Few cases, since every write goes through the kernel; `ALLUVIUM_LONG=1` runs more.
fn config() -> ProptestConfig {
    let cases = if common::long() { 100 } else { 1 };
    ProptestConfig { cases, max_shrink_iters: 30, failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn plain_values(ops in prop::collection::vec(op(), 1..30)) {
        run::<u64>(&ops);
    }

    #[test]
    fn values_that_own_heap(ops in prop::collection::vec(op(), 1..30)) {
        run::<Vec<String>>(&ops);
    }
}
