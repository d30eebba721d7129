//! The `adapter` command with a query: the same answers straight and in the dataflow, on any layout
//! and in little memory. The run itself compares the two ways and fails if they differ.

use alluvium_bench::args::AdapterArgs;
use alluvium_bench::report::Report;
use alluvium_bench::run;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: AdapterArgs,
}

fn adapter(line: &str) -> alluvium_bench::Result<Report> {
    let words = std::iter::once("adapter").chain(line.split_whitespace());
    run::adapter(&Line::try_parse_from(words).unwrap().args)
}

/// Runs on heap and short of memory, and gives the report of the latter.
fn same_answers_short_of_memory(query: &str, memory: &str) -> Report {
    let heap = adapter(&format!("{query} --rounds 2 --layout heap --memory 64MiB")).unwrap();
    let line = format!("{query} --rounds 2 --layout hybrid-log --memory {memory}");
    let short = adapter(&line).unwrap();
    assert_eq!(heap.checksum, short.checksum);
    assert_eq!(heap.ops, short.ops);
    short
}

#[test]
fn q4_with_more_state_than_memory() {
    let query = "--query q4 --events 60000 --in-flight 6000";
    let report = same_answers_short_of_memory(query, "1MiB");
    assert!(report.io.bytes_written > 0 && report.io.reads > 0, "{:?}", report.io);
}

#[test]
fn q20_with_more_state_than_memory() {
    let report =
        same_answers_short_of_memory("--query q20 --events 30000 --max-value 512KiB", "5MiB");
    assert!(report.io.bytes_written > 0 && report.io.reads > 0, "{:?}", report.io);
}

#[test]
fn queries_without_a_straight_form_are_refused() {
    let error = adapter("--query q3 --events 10 --memory 64MiB").unwrap_err().to_string();
    assert!(error.contains("q4 and q20"), "{error}");
}
