//! A replay of a repository's history leaves what git says, on every layout and memory, also when
//! most of the state is on storage. The snapshots were made by `git ls-tree`, not by a replay.

use std::path::Path;
use std::process::Command;

use alluvium_bench::args::ReplayArgs;
use alluvium_bench::input::shared_dir;
use alluvium_bench::report::Report;
use alluvium_bench::run::replay;
use alluvium_bench::workload::git::{Repository, Snapshot, read_snapshot};
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    replay: ReplayArgs,
}

fn run(words: &[&str]) -> alluvium_bench::Result<Report> {
    let words = std::iter::once(&"replay").chain(words);
    replay(&Cli::try_parse_from(words).unwrap().replay)
}

/// Replays a quarter, a half, three quarters and all of a shared history; gives the reports.
fn shared_history(name: &str, counts: [u64; 4], layout: &str, memory: &str) -> Vec<Report> {
    let Some(shared) = shared_dir("replays_end_as_git_says") else { return Vec::new() };
    let dir = shared.join("data/git-changes");
    let input = dir.join(format!("{name}.csv.xz"));
    let dump = tempfile::tempdir().unwrap();
    let dump = dump.path().join("dump.tsv");
    let mut reports = Vec::new();
    for (upto, percent) in counts.into_iter().zip([25, 50, 75, 100]) {
        let upto = upto.to_string();
        let report = run(&[
            "--input",
            input.to_str().unwrap(),
            "--upto",
            &upto,
            "--layout",
            layout,
            "--memory",
            memory,
            "--dump",
            dump.to_str().unwrap(),
        ]);
        reports.push(report.unwrap());
        let expected = read_snapshot(&dir.join(format!("{name}-snap-{percent}.tsv.xz"))).unwrap();
        let found = read_snapshot(&dump).unwrap();
        let what = format!("{name} {percent} % on {layout} in {memory}");
        assert_eq!(found.difference(&expected), None, "{what}");
        assert_eq!(reports.last().unwrap().memory.live_keys, expected.0.len() as u64, "{what}");
    }
    reports
}

const KAFKA: [u64; 4] = [26_216, 49_288, 72_521, 98_257];
const RISINGWAVE: [u64; 4] = [37_392, 73_089, 105_065, 140_709];

#[test]
fn on_the_heap() {
    shared_history("kafka", KAFKA, "heap", "4MiB");
}

#[test]
fn on_the_hybrid_log_in_4_mib() {
    shared_history("risingwave", RISINGWAVE, "hybrid-log", "4MiB");
}

#[test]
fn on_the_hybrid_log_with_memory_to_spare() {
    shared_history("risingwave", RISINGWAVE, "hybrid-log", "256MiB");
}

/// Records that a rewrite had copied were looked for past the segment's end: the answer to the
/// copying came after that to a later flush, and took the segment back to what it was before.
#[test]
fn on_the_hybrid_log_mostly_on_storage() {
    for (name, counts) in [("kafka", KAFKA), ("risingwave", RISINGWAVE)] {
        for report in shared_history(name, counts, "hybrid-log", "512KiB").iter().skip(1) {
            assert!(report.io.flushes > 0 && report.io.reads > 0, "{:?}", report.io);
        }
    }
}

fn git(dir: &Path, words: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(dir).env_remove("GIT_DIR").env_remove("GIT_INDEX_FILE");
    command.args(["-c", "user.name=t", "-c", "user.email=t@example.invalid"]);
    command.args(["-c", "commit.gpgSign=false", "-c", "init.defaultBranch=main"]).args(words);
    assert!(command.output().unwrap().status.success(), "{words:?}");
}

#[test]
fn of_a_local_repository() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    git(dir, &["init", "-q"]);
    for round in 0..5 {
        for file in 0..20 {
            let path = dir.join(format!("file-{}", (file + round * 7) % 30));
            std::fs::write(path, format!("{round} {file}")).unwrap();
        }
        let _ = std::fs::remove_file(dir.join(format!("file-{round}")));
        git(dir, &["add", "-A"]);
        git(dir, &["commit", "-q", "-m", "round"]);
    }
    let mut checksums = Vec::new();
    for layout in ["heap", "hybrid-log"] {
        let dump = tempfile::NamedTempFile::new().unwrap();
        let (dir, path) = (dir.to_str().unwrap(), dump.path().to_str().unwrap());
        let report =
            run(&["--git", dir, "--layout", layout, "--memory", "4MiB", "--dump", path]).unwrap();
        let left: Snapshot = read_snapshot(dump.path()).unwrap();
        let expected = Repository::open(Path::new(dir)).unwrap().snapshot().unwrap();
        assert_eq!(left.difference(&expected), None);
        checksums.push(report.checksum);
    }
    assert_eq!(checksums[0], checksums[1]);
}

#[test]
fn what_is_no_history_is_refused_in_words() {
    let nowhere = run(&["--git", "/nowhere/at/all", "--memory", "4MiB"]).unwrap_err().to_string();
    assert!(nowhere.contains("/nowhere/at/all"), "{nowhere}");
    let missing = run(&["--input", "/nowhere.csv", "--memory", "4MiB"]).unwrap_err().to_string();
    assert!(missing.contains("/nowhere.csv"), "{missing}");
    let small = run(&["--git", ".", "--memory", "17KiB", "--layout", "hybrid-log"]);
    assert!(small.unwrap_err().to_string().contains("to open"));
}
