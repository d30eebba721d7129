//! A state of which a checkpoint could not keep what changed has none of that checkpoint any more, however much memory
//! comes free: the checkpoint fails with that state's next share, and the states beside it are not written for nothing.
//!
//! What this catches: a state that is made to wait for memory that is of no use to it, until all others are whole.

use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::{ErrorKind, Heap, KIB, MIB, Map, Store};

const KEYS: u64 = 3000;

/// Plain: before what owns heap becomes longer, what other states' checkpoints take is free.
type Value = [u64; 8];

#[test]
fn by_the_next_share_of_its_state() {
    for lost in [0, 1] {
        let device = Arc::new(Simulated::new(1, Faults::none()));
        let store = Store::in_memory().memory(4 * MIB).device(device).helpers(Helpers::Inline);
        let store = store.open().unwrap();
        let open = |name| store.map(name).layout(Heap::new().into()).open().unwrap();
        let mut maps: [Map<u64, Value>; 2] = [open("first"), open("second")];
        for map in &mut maps {
            (0..KEYS).for_each(|key| assert!(!map.put(key, [key; 8]).unwrap()));
        }
        let mut seal = store.seal(1).unwrap();
        // Nothing is left to keep what a key had, nor to write all at once.
        let memory = store.stats().unwrap().memory;
        let others = store.reserve(memory.limit - memory.used - KIB, "others").unwrap();
        maps[lost].modify(&7, |value| value[0] += 1).unwrap();
        drop(others);
        let mut shares = 0;
        let error = loop {
            shares += 1;
            assert!(shares < 10_000, "it never ends");
            match seal.advance() {
                Ok(is_whole) => assert!(!is_whole, "a checkpoint without what was changed"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Overtaken, "{error:?}");
        assert_eq!(error.context("state"), Some(["first", "second"][lost]), "{error:?}");
        let written = maps[1 - lost].stats().unwrap().codec_calls;
        assert!(written < KEYS / 2, "{written} were written for nothing in {shares} shares");
        drop(seal);
        // The next one is whole.
        assert_eq!(store.checkpoint(2).unwrap().entries, 2 * KEYS);
    }
}
