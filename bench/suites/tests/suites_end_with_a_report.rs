//! The command with programs that only pretend: what a user sees of a suite that succeeds, of wrong
//! answers, of a missing program, and of an interrupt.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Puts a script in place of a program.
fn pretend(bin: &Path, name: &str, script: &str) {
    let path = bin.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Writes figures where `--json` says, with the layout as a part of `checksum` if `differs`.
fn bench(differs: bool) -> String {
    let checksum = if differs { "$layout" } else { "same" };
    format!(
        r#"while [ $# -gt 0 ]; do
            case $1 in --json) json=$2 ;; --layout) layout=$2 ;; --query) query=$2 ;; esac
            shift
        done
        echo "{{\"ops_per_s\": 1500, \"checksum\": \"$query {checksum}\",
               \"latency_ns\": {{\"p99\": 2000000}}, \"io\": {{\"bytes_written\": 0}},
               \"memory\": {{\"peak_rss\": 1048576, \"live_bytes\": 0, \"live_keys\": 1}}}}" >"$json""#
    )
}

fn suite(bin: &Path, options: &str, out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_suite"));
    command.args(options.split_whitespace()).arg("--bin").arg(bin).arg("--out").arg(out);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(bin: &Path, options: &str, out: &Path) -> Output {
    suite(bin, options, out).output().expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn directories(out: &Path) -> usize {
    fs::read_dir(out).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
}

#[test]
fn a_suite_has_a_row_for_each_query_and_does_not_repeat_what_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    pretend(dir.path(), "alluvium-bench", &bench(false));
    let output = run(dir.path(), "nexmark --smoke", &out);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 29 * 3);
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    for query in ["q0", "q10", "q22", "q106"] {
        let row = format!("| {query} | 1.50 | 1.50 | 1.50 | 2.00 |");
        assert!(report.contains(&row), "{query}: {report}");
    }
    assert!(report.contains("All answers are equal."), "{report}");
    assert_eq!(directories(&out), 0);
    let again = run(dir.path(), "nexmark --smoke", &out);
    assert!(again.status.success() && said(&again).is_empty(), "{}", said(&again));
}

#[test]
fn answers_that_differ_fail_the_suite_and_are_in_its_report() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    pretend(dir.path(), "alluvium-bench", &bench(true));
    let output = run(dir.path(), "nexmark --smoke --queries q3,q4", &out);
    assert_eq!(output.status.code(), Some(1));
    let expected = "q4: checksum q4 heap on heap, q4 hybrid-log on monolithic log";
    assert!(said(&output).contains(expected), "{}", said(&output));
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(report.contains("DIFFERENT") && report.contains(expected), "{report}");
}

#[test]
fn what_cannot_be_run_is_said_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let output = run(dir.path(), "nexmark --smoke", &out);
    assert!(said(&output).contains("cargo build --release -p alluvium-bench"), "{}", said(&output));
    pretend(dir.path(), "alluvium-bench", "echo 'no room on the device' >&2; exit 1");
    let output = run(dir.path(), "nexmark --smoke --queries q99", &out);
    assert!(
        said(&output).contains("no query \"q99\" in the suite, but q0, q1"),
        "{}",
        said(&output)
    );
    let output = run(dir.path(), "nexmark --smoke --queries q1", &out);
    assert!(said(&output).contains("q1 on heap: no room on the device"), "{}", said(&output));
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(report.contains("| q1 | failed | failed | failed |"), "{report}");
}

/// The first two cells end at once, the third hangs: the report has two cells, nothing is left of the third,
/// and its process is gone.
#[test]
fn an_interrupted_suite_keeps_its_report_and_removes_its_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (out, pid) = (dir.path().join("out"), dir.path().join("pid"));
    let script = format!(
        "case \"$*\" in *'--layout auto'*) echo $$ >{0}.part; mv {0}.part {0}; exec sleep 600 ;; esac\n{1}",
        pid.display(),
        bench(false)
    );
    pretend(dir.path(), "alluvium-bench", &script);
    let child = suite(dir.path(), "nexmark --smoke --queries q1", &out).spawn().unwrap();
    let begin = Instant::now();
    while !pid.exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no third cell");
        std::thread::sleep(Duration::from_millis(10));
    }
    let kill = |what: &str, pid: &str| Command::new("kill").args([what, pid]).output().unwrap();
    kill("-INT", &child.id().to_string());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(said(&output).contains("interrupted"), "{}", said(&output));
    assert_eq!(directories(&out), 0);
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(report.contains("2 of 3 cells are done"), "{report}");
    let sleeper = fs::read_to_string(&pid).unwrap();
    assert!(!kill("-0", sleeper.trim()).status.success(), "the third cell still runs");
}
