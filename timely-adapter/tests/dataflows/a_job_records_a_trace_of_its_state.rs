//! A job whose configuration has a trace leaves one for each worker and state, with each row's access.

use std::collections::BTreeMap;
use std::fs;

use crate::common;
use alluvium::StoreConfig;
use alluvium::config::TraceOptions;
use alluvium_timely::{Counting, KeyBy, NodeConfig, Rolling, Spec, WorkerOverrides};

fn words() -> Vec<(u64, Vec<String>)> {
    let word = |n: u64| format!("word {}", n * n % 31);
    (0..10).map(|step| (step, (0..100).map(|n| word(step * 7 + n)).collect())).collect()
}

/// Puts by key in the files of a worker's states.
fn puts(directory: &std::path::Path) -> BTreeMap<String, usize> {
    let mut puts = BTreeMap::new();
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        assert!(path.ends_with("counts_groups.trace"), "{}", path.display());
        for line in fs::read_to_string(path).unwrap().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let [_, "put", key, _] = words[..] {
                *puts.entry(key.replace("%20", " ")).or_default() += 1;
            }
        }
    }
    puts
}

#[test]
fn each_row_is_in_the_trace_of_the_worker_that_has_its_key() {
    let place = tempfile::tempdir().unwrap();
    let mut expected = BTreeMap::new();
    for word in words().into_iter().flat_map(|(_, words)| words) {
        *expected.entry(word).or_insert(0) += 1;
    }
    let trace = Some(TraceOptions::to(place.path()));
    let node = NodeConfig::from(StoreConfig { trace, ..StoreConfig::default() });
    let found = common::run(2, node, WorkerOverrides::default(), words(), |words, state| {
        words.key_by(state, String::clone).rolling(Spec::new("counts"), Counting)
    });
    let found: BTreeMap<String, usize> =
        found.unwrap().into_keys().map(|(word, count)| (word, count as usize)).collect();
    assert_eq!(found, expected);
    let mut traced = BTreeMap::new();
    for worker in ["worker-0", "worker-1"] {
        for (key, count) in puts(&place.path().join(worker)) {
            assert_eq!(traced.insert(key, count), None, "a key has one worker");
        }
    }
    assert_eq!(traced, expected);
}
