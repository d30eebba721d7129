//! A job on helper threads whose system calls fail, do a part of their work, or are interrupted: a child
//! process with a library before libc (`shim.c`, built here with `cc`; without a C compiler the tests
//! say so and are skipped).
//!
//! What this catches: a short read or write that is taken for a whole one, an interrupted call that is
//! taken for a failed one, an error of the system that is told as something else or not at all, and a
//! descriptor, a lock or a name that such an error leaves wrong.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use alluvium::io::EngineChoice;
use alluvium::{MIB, Store};

use crate::children::{Expected, Line, Plan};
use crate::dice::{Dice, times};
use crate::job::Found;
use crate::long;

/// Builds the library; `None` if nothing here compiles C, or libraries are not loaded that way.
fn library(directory: &Path) -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        println!("skipped: there is no LD_PRELOAD here");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crashes/shim.c");
    let built = directory.join("shim.so");
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-shared", "-fPIC", "-o"]).arg(&built).arg(&source).arg("-ldl");
    match command.output() {
        Err(error) => {
            println!("skipped: there is no C compiler to build the library with: {error}");
            None
        }
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "shim.c does not compile: {words}");
            Some(built)
        }
    }
}

/// Of a kind of call: those seen, done in part, interrupted, failed.
type Counts = BTreeMap<String, [u64; 4]>;

fn add_report(report: &Path, counts: &mut Counts) {
    // A process that was killed has written none.
    let Ok(text) = std::fs::read_to_string(report) else { return };
    for line in text.lines() {
        let mut words = line.split(' ');
        let name = words.next().expect("a name").to_owned();
        let sum = counts.entry(name).or_default();
        words.zip(sum).for_each(|(word, sum)| *sum += word.parse::<u64>().unwrap());
    }
}

/// How calls fare.
struct Shim<'a> {
    library: &'a Path,
    is_gentle: bool,
    of: u64,
    report: PathBuf,
}

impl Shim<'_> {
    fn prepare(&self, plan: &Plan, command: &mut Command) {
        command
            .env("LD_PRELOAD", self.library)
            .env("ALLUVIUM_SHIM_DIRECTORY", &plan.directory)
            .env("ALLUVIUM_SHIM_SEED", plan.attempt.to_string())
            .env("ALLUVIUM_SHIM_OF", self.of.to_string())
            .env("ALLUVIUM_SHIM_GENTLE", if self.is_gentle { "1" } else { "0" })
            .env("ALLUVIUM_SHIM_REPORT", &self.report);
    }
}

/// Runs jobs of some seeds in rounds on one directory each. Gives the errors lived through.
fn run(is_gentle: bool, directories: u64) {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(folder.path()) else { return };
    let first = times("ALLUVIUM_SEED", 1);
    let mut counts = Counts::new();
    let (mut met, mut told, mut killed, mut compared, mut jobs) = (0, 0, 0, 0, 0);
    for seed in first..first + directories {
        let directory = tempfile::tempdir_in(folder.path()).unwrap();
        let path = directory.path().canonicalize().unwrap().join("store");
        let (mut dice, mut expected) = (Dice(seed), Expected::of(seed));
        let mut found = Found::default();
        for round in 1..=if long() { 4 } else { 3 } {
            let by_chance = Plan::by_chance(&path, seed, &mut dice);
            let plan = Plan {
                until: 250 * round,
                engine: EngineChoice::Threads,
                trouble: !is_gentle,
                ..by_chance
            };
            let report = directory.path().join(format!("report-{round}"));
            let of = if is_gentle { 3 + dice.below(20) } else { 60 + dice.below(200) };
            let shim = Shim { library: &library, is_gentle, of, report };
            let when = format!("seed {seed}, round {round}, one of {of}, {plan:?}");
            let mut running = plan.spawn(|command| shim.prepare(&plan, command));
            // Every third one that fails is killed as well.
            let kill_after = (!is_gentle && dice.below(3) == 0).then(|| dice.below(10));
            let (mut heard, mut ended, mut is_killed) = (0, false, false);
            loop {
                if kill_after == Some(heard) && !is_killed {
                    std::thread::sleep(Duration::from_micros(dice.below(5_000)));
                    running.kill();
                    is_killed = true;
                }
                match running.line() {
                    None => break,
                    Some(Line::Opened) => {}
                    Some(Line::Told(told)) => found.told(told),
                    Some(Line::Done(errors)) => (met, ended) = (met + errors, true),
                    Some(Line::Failed(error)) => {
                        assert!(!is_gentle, "{when}: {error}");
                        (told, ended) = (told + 1, true);
                    }
                }
                heard += 1;
            }
            let (status, words) = running.end();
            assert!(ended && status.success() || is_killed, "{when}: {status}: {words}");
            jobs += 1;
            killed += u64::from(is_killed && !ended);
            add_report(&shim.report, &mut counts);
            compared += expected.check(&mut found, &plan, &mut dice, &when);
        }
    }
    println!(
        "{jobs} jobs: {met} errors lived through, {told} jobs ended by one, {killed} killed; \
         {compared} checkpoints compared; calls seen, done in part, interrupted, failed: {counts:?}"
    );
    if is_gentle {
        let [read, write] = ["pread", "pwrite"].map(|name| counts[name]);
        assert!(read[1] > 0 && write[1] > 0 && read[2] > 0 && write[2] > 0, "{counts:?}");
        assert!(counts.values().all(|counts| counts[3] == 0), "{counts:?}");
    } else {
        assert!(met > 0, "{counts:?}");
        let fails = |counts: &[u64; 4]| counts[3] > 0 || counts[0] == 0;
        assert!(!long() || counts.values().all(fails), "{counts:?}");
    }
}

#[test]
fn calls_that_do_a_part_or_are_interrupted_are_no_errors() {
    run(true, times("ALLUVIUM_JOBS", if long() { 60 } else { 1 }));
}

#[test]
fn calls_that_fail_are_told_and_made_again() {
    run(false, times("ALLUVIUM_JOBS", if long() { 150 } else { 2 }));
}

const OPENED: &str = "ALLUVIUM_OPENED_BY_A_CHILD";

#[test]
#[ignore = "a child of another test"]
fn a_child_opens_a_directory() {
    let Some(path) = std::env::var_os(OPENED) else { return };
    match Store::builder(path).memory(MIB).open() {
        Ok(_) => println!("it is open"),
        Err(error) => println!("it is not: {error}"),
    }
}

/// A directory that was there may have a name that a crash takes back: opening it syncs the directory that names it, and
/// fails with that. So does making one, and then none is left.
#[test]
fn the_parent_of_a_directory_that_existed_is_synced() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(folder.path()) else { return };
    let folder = folder.path().canonicalize().unwrap();
    let opens = |path: &Path, unsynced: Option<&Path>| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "shim::a_child_opens_a_directory", "--ignored", "--nocapture"])
            .env("LD_PRELOAD", &library)
            .env(OPENED, path);
        unsynced.into_iter().for_each(|path| _ = command.env("ALLUVIUM_SHIM_UNSYNCED", path));
        let output = command.output().unwrap();
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words}");
        let is_open = words.contains("it is open");
        assert!(is_open || words.contains("sync the parent of"), "{words}");
        is_open
    };
    let (parent, other) = (folder.join("parent"), folder.join("other"));
    let path = parent.join("store");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::create_dir(&other).unwrap();
    // It existed, and was empty; then it has a store.
    for _ in 0..2 {
        assert!(!opens(&path, Some(&parent)));
        assert!(opens(&path, Some(&other)));
        assert!(opens(&path, None));
    }
    let new = parent.join("new");
    assert!(!opens(&new, Some(&parent)));
    assert!(!new.exists());
    assert!(opens(&new, None));
    // By a link: the name that counts is that of what it leads to.
    let link = other.join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(!opens(&link, Some(&parent)));
    assert!(opens(&link, None));
}
