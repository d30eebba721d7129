//! The operators of q3 to q8 with their states on RocksDB and on FASTER, on one store and on one for each
//! state, answer as on our layouts.

use std::path::Path;
use std::process::Command;

use alluvium_peers::kinds;

/// Runs a query and gives its checksum.
fn checksum(dir: &Path, options: &str) -> String {
    let (json, state) = (dir.join("figures.json"), dir.join("state"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium-peers"));
    command.arg("nexmark").args(options.split_whitespace());
    let output = command.arg("--json").arg(&json).arg("--dir").arg(state).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options}: {said}");
    let figures = std::fs::read_to_string(json).unwrap();
    let (_, rest) = figures.split_once("\"checksum\": \"").expect("figures have a checksum");
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn queries_on_peers_give_our_answers() {
    let kinds = kinds();
    let there = |name: &&str| kinds.iter().any(|kind| kind.name == *name && kind.open.is_ok());
    let engines: Vec<_> = ["rocksdb", "faster"].into_iter().filter(there).collect();
    for query in
        ["q3", "q4-hotstorage", "q5-hotstorage", "q6-hotstorage", "q7-hotstorage", "q8-hotstorage"]
    {
        let run = |more: &str| {
            let dir = tempfile::tempdir().unwrap();
            let options = format!("--query {query} --events 20000 --in-flight 40 --memory 512MiB");
            checksum(dir.path(), &format!("{options} {more}"))
        };
        let ours = run("");
        for engine in &engines {
            assert_eq!(run(&format!("--engine {engine}")), ours, "{query} on {engine}");
            let shared = format!("--engine {engine} --monolithic --workers 2");
            assert_eq!(run(&shared), ours, "{query} on one {engine} a worker");
        }
    }
}
