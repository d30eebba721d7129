//! What the command says of runs that cannot be, and how it goes on with one that was interrupted.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn gadget(words: &str, out: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium-gadget"));
    command.args(words.split_whitespace());
    if words.starts_with("run") {
        command.arg("--out").arg(out);
    }
    command.output().unwrap()
}

fn refused(words: &str, why: &str) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("report");
    let done = gadget(words, &out);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success() && said.contains(why), "{words}: {said}");
    assert!(!out.join("cells.jsonl").exists(), "{words}: work has begun");
}

#[test]
fn what_cannot_be_run_is_refused_before_work_starts() {
    refused("run --operators joins", "joins");
    refused("run --engines rock", "there is no engine \"rock\"");
    refused(
        "run --engines ours-heap --memory 1MiB",
        "ours-heap: 1 MiB of memory; 2 MiB is the least",
    );
    refused("run --engines ours-native --memory 20KiB", "on ours-native:");
    refused("run --accesses 99999999999999", "MiB are free, the run may take");
    refused("run --rounds 0", "--rounds 0");
    refused("run --rates 0", "--rates");
    refused("run --late 101", "percentages");
    refused("trace --operator aggregation --input gone.csv:0:1", "gone.csv");
}

#[test]
fn a_row_of_csv_that_ends_early_is_named_by_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.csv");
    fs::write(&file, "a,1000000,SUBMIT\nb,20000").unwrap();
    let words = format!("trace --operator aggregation --input {}:0:1:2", file.display());
    refused(&words, "jobs.csv: line 2: the row ends after 2 columns of 3");
}

#[test]
fn an_engine_without_enough_memory_is_a_row_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let words = "cell --operator aggregation --engine ours-native --events 100000 --keys 1000000 --dist uniform \
                 --memory 1MiB";
    let done = gadget(words, dir.path());
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.contains("\"refused\"") && said.contains("out of memory: "), "{said}");
}

#[test]
fn a_native_row_that_is_cut_says_how_many_events_it_took() {
    let dir = tempfile::tempdir().unwrap();
    // A busy machine may let the time pass before the first look at it: then the run takes no events.
    for seconds in [0.001, 0.002, 0.004, 0.008, 0.016, 0.032] {
        // All events are of one batch: the only watermark is at the end.
        let words = format!(
            "cell --operator session-holistic --engine ours-native --events 400000 --keys 100 \
             --watermark 1000000events --seconds {seconds}"
        );
        let done = gadget(&words, dir.path());
        let cell: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(cell["outcome"]["kind"], "cut", "{cell}");
        let events = cell["figures"]["events"].as_u64().unwrap();
        if events > 0 {
            assert!((256..400_000).contains(&events), "{events}");
            return;
        }
    }
    panic!("no run took an event");
}

#[test]
fn a_run_that_was_interrupted_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let words = "run --operators aggregation --engines hashbrown,btree --rounds 2 --accesses 2000";
    assert!(gadget(words, dir.path()).status.success());
    let path = dir.path().join("cells.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    assert_eq!(lines.len(), 6, "two engines, two rounds, and the first once more in each");
    // As if it had been killed while it wrote the fourth cell.
    fs::write(&path, lines[..3].join("\n") + "\n" + &lines[3][..40]).unwrap();
    let again = gadget(words, dir.path());
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        again.status.success() && said.contains("6 cells, 3 of them are there already"),
        "{said}"
    );
    let resumed = fs::read_to_string(&path).unwrap();
    assert_eq!(resumed.lines().count(), 6);
    assert!(resumed.starts_with(&(lines[..3].join("\n") + "\n")), "what was there stays");
    for name in ["report.md", "report.html"] {
        assert!(fs::read_to_string(dir.path().join(name)).unwrap().contains("btree"));
    }
    let other = gadget(&format!("{words} --seed 7"), dir.path());
    assert!(
        !other.status.success() && String::from_utf8_lossy(&other.stderr).contains("other options")
    );
}
