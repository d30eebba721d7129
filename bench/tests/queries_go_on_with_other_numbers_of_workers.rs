//! Nexmark queries go on from a checkpoint of two workers on three, and from one of these on one,
//! to the checksum of a run that was left alone.

use std::process::Command;

use alluvium_bench::queries::NAMES;

const EVENTS: u64 = 12_000;
/// With state of all kinds; all queries there are, if there is time.
const QUERIES: [&str; 7] = ["q4-hotstorage", "q7", "q8", "q11", "q19", "q102", "q105"];

/// Runs the program and gives the events fed and the checksum, or what it says is wrong.
fn run(query: &str, layout: &str, more: &str) -> Result<(u64, String), String> {
    let words = format!(
        "nexmark --query {query} --layout {layout} --events {EVENTS} --in-flight 2000 --memory \
         24MiB {more}"
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium-bench"));
    let output = command.args(words.split_whitespace()).output().expect("the program starts");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    // `nexmark-q4 on heap: 20000 ops in 0.1 s, 200000 ops/s, checksum 1234`
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<_> = said.split_whitespace().collect();
    let before = |word| words.iter().position(|other| *other == word).expect("a line of figures");
    Ok((words[before("ops") - 1].parse().expect("a number"), words[before("checksum") + 1].into()))
}

#[test]
fn all_but_one_give_the_same_result() {
    let (mut refused, mut went_on) = (Vec::new(), 0);
    let is_long = std::env::var_os("ALLUVIUM_LONG").is_some();
    let queries: &[&str] = if is_long { NAMES } else { &QUERIES };
    for (query, layout) in queries.iter().zip(["heap", "hybrid-log"].into_iter().cycle()) {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().display();
        let (all, whole) = run(query, layout, "").unwrap();
        let more = format!("--dir {place} --workers 2 --checkpoint-at 1500");
        assert_eq!(run(query, layout, &more), Ok((all, whole.clone())), "{query}");
        let more = format!("--restore {place} --workers 3 --checkpoint-every-events 1000");
        match run(query, layout, &more) {
            Ok((fed, checksum)) => {
                assert_eq!(checksum, whole, "{query} on three");
                went_on += usize::from((1..all).contains(&fed));
                let more = format!("--restore {place} --workers 1");
                let (_, checksum) = run(query, layout, &more).unwrap();
                assert_eq!(checksum, whole, "{query} on one");
            }
            Err(message) => {
                refused.push((query, message));
                // Nothing is lost by that.
                let more = format!("--restore {place} --workers 2");
                assert_eq!(run(query, layout, &more).unwrap().1, whole, "{query} on two again");
            }
        }
    }
    // It has all its state on one worker, by keys of its own.
    let [(name, message)] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!(**name, "q102");
    assert!(message.contains("keys of this state were not given to workers by key group"));
    assert!(went_on * 3 > queries.len(), "{went_on} queries had something to do");
}
