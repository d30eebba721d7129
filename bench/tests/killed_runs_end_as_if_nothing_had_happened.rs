//! `alluvium-bench nexmark` with checkpoints, killed at random moments and started again, each time
//! with another number of workers or processes: what it says at the end is what a run says that was
//! left alone.

#[path = "../../timely-adapter/tests/common/processes.rs"]
#[expect(dead_code, reason = "shared with the adapter's")]
mod processes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use processes::free_addresses;
use serde_json::Value;

fn bench(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium-bench"));
    command.arg("nexmark").args(words.split_whitespace()).stdin(Stdio::null());
    command.env("RUST_BACKTRACE", "0").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(words: &str) -> Child {
    bench(words).spawn().expect("the program starts")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn sorted_lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("a file");
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The first process's report and the result's rows.
type Answer = (Value, Vec<String>);

/// Workers of each process, and processes.
type Shape = (usize, usize);

/// A run as one or more processes, each with the same options but for its number and directory.
struct Run {
    dir: PathBuf,
    options: String,
}

impl Run {
    fn answer_files(&self) -> (PathBuf, PathBuf) {
        (self.dir.join("report.json"), self.dir.join("results.csv"))
    }

    /// Starts all processes; `more` is said to each, `{}` being its number.
    fn start(&self, (workers, processes): Shape, more: &str) -> Vec<Child> {
        let (report, results) = self.answer_files();
        let hosts = self.dir.join("hosts");
        if processes > 1 {
            fs::write(&hosts, free_addresses(processes).join("\n")).expect("a file");
        }
        let process = |process: usize| {
            let more = more.replace("{}", &process.to_string());
            let results = results.display();
            let mut words =
                format!("{} --workers {workers} {more} --results {results}", self.options);
            if processes > 1 {
                let hosts = hosts.display();
                words.push_str(&format!(" -n {processes} -p {process} --hostfile {hosts}"));
            }
            if process == 0 {
                words.push_str(&format!(" --json {}", report.display()));
            }
            start(&words)
        };
        (0..processes).map(process).collect()
    }

    /// Lets all processes end.
    fn end(&self, children: Vec<Child>) -> Answer {
        for child in children {
            let output = child.wait_with_output().expect("it ends");
            assert!(output.status.success(), "{}: {}", self.options, errors(&output));
        }
        self.answer()
    }

    /// What the run that ended last has said.
    fn answer(&self) -> Answer {
        let (report, results) = self.answer_files();
        let report = fs::read(report).expect("a report");
        (serde_json::from_slice(&report).expect("JSON"), sorted_lines(&results))
    }
}

/// A small generator, so that runs repeat as far as a machine lets them.
struct Dice(u64);

impl Dice {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Kills a run again and again while it does anything, be it opening, restoring, aligning, writing,
/// committing or removing, each time in another of the `shapes`, then lets it end. Says how often it
/// was killed, and how often after it had gone on from a checkpoint.
fn kill_and_compare(run: &Run, shapes: &[Shape], kills: u32, seed: u64) -> (u32, u32) {
    let more = format!("--dir {}/whole-{{}}", dir_of(run));
    let whole = run.end(run.start(shapes[0], &more));
    assert!(whole.1.len() > 1, "there are results");
    let more = format!("--dir {}/killed-{{}} --checkpoint-every-events 1500", dir_of(run));
    let record = run.dir.join("killed-0/COMMITTED");
    let (mut dice, mut killed, mut after_one, mut longest) = (Dice(seed), 0, 0, 60);
    let mut generations = 0;
    let mut shapes_in_turns = shapes.iter().copied().cycle();
    let mut next_shape = || shapes_in_turns.next().expect("there are some");
    while killed < kills {
        let is_later = record.exists();
        let mut children = run.start(next_shape(), &more);
        let ended = |child: &mut Child| child.try_wait().expect("a process").is_some();
        // At any moment, or at one after it has committed something.
        if killed % 2 == 0 {
            let before = fs::read(&record).ok();
            while fs::read(&record).ok() == before && !children.iter_mut().all(ended) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_millis(dice.below(longest)));
        // One of them; those that are left notice, and are killed if they have not ended by then.
        let victim = dice.below(children.len() as u64) as usize;
        let all_over = children.iter_mut().all(ended);
        let _ = children[victim].kill();
        std::thread::sleep(Duration::from_millis(dice.below(20)));
        for child in &mut children {
            let _ = child.kill();
        }
        let outputs: Vec<_> =
            children.into_iter().map(|child| child.wait_with_output().expect("it ends")).collect();
        // Whoever was not killed must not have anything else to say.
        let failed = outputs.iter().find(|output| !output.status.success());
        if let (true, Some(output)) = (all_over, failed) {
            panic!("{}: {}", run.options, errors(output));
        }
        if all_over {
            // It came to its end first: from the beginning, and not so long.
            assert_same(run, &run.answer(), &whole);
            generations += 1;
            assert!(generations < 1_000, "it is never killed");
            longest = (longest * 3 / 4).max(20);
            for process in 0..3 {
                let _ = fs::remove_dir_all(run.dir.join(format!("killed-{process}")));
            }
            continue;
        }
        killed += 1;
        after_one += u32::from(is_later);
        // The further it is, the longer the next may take, so that it comes to an end.
        longest = (longest + 20).min(400);
    }
    let place = format!("--restore {}/killed-{{}}", dir_of(run));
    let rest = match record.exists() {
        true => run.end(run.start(next_shape(), &place)),
        false => run.end(run.start(next_shape(), &more)),
    };
    assert_same(run, &rest, &whole);
    println!("{}: killed {killed} times, {} ends compared", run.options, generations + 1);
    (killed, after_one)
}

fn assert_same(run: &Run, found: &Answer, whole: &Answer) {
    assert_eq!(found.0["checksum"], whole.0["checksum"], "{}", run.options);
    assert!(found.1 == whole.1, "{}: the rows differ", run.options);
}

fn dir_of(run: &Run) -> String {
    run.dir.display().to_string()
}

#[test]
fn killed_at_random_moments_a_run_goes_on_to_the_same_results() {
    let (kills, seed) = match std::env::var_os("ALLUVIUM_LONG") {
        Some(_) => (70, u64::from(std::process::id()) | 1),
        None => (3, 7),
    };
    println!("seed {seed}");
    let (mut killed, mut after_one) = (0, 0);
    let cases: [(&str, &str, &[Shape]); 3] = [
        ("q4", "hybrid-log", &[(2, 1), (3, 1), (1, 1)]),
        ("q5", "window-segments", &[(1, 1), (2, 1), (3, 1)]),
        ("q4", "hybrid-log", &[(1, 2), (2, 1), (1, 3), (1, 1), (2, 2)]),
    ];
    for (at, (query, layout, shapes)) in cases.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        // Window segments book their next checkpoint as slices come: each of three workers needs 4.6 MiB
        // at times.
        let memory = if layout == "window-segments" { "24MiB" } else { "8MiB" };
        let options = format!(
            "--query {query} --events 60000 --in-flight 2000 --layout {layout} --memory {memory}"
        );
        let run = Run { dir: dir.path().to_owned(), options };
        let (some, later) = kill_and_compare(&run, shapes, kills, seed + at as u64);
        killed += some;
        after_one += later;
    }
    println!("killed {killed} times, {after_one} of them after a checkpoint");
    assert!(killed >= 3 * kills);
    assert!(after_one > 0, "no run was killed after a checkpoint");
}

#[test]
fn checkpoints_by_time_are_made_while_the_stream_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let options = "--query q4 --events 80000 --rate 40000 --layout hybrid-log --memory 8MiB";
    let run = Run { dir: dir.path().to_owned(), options: options.to_owned() };
    let whole = run.end(run.start((1, 1), ""));
    assert!(whole.0.get("checkpoints").is_none());
    let more = format!("--dir {}/state --checkpoint-every 100ms", dir_of(&run));
    let with = run.end(run.start((1, 1), &more));
    assert_eq!((&with.0["checksum"], &with.1), (&whole.0["checksum"], &whole.1));
    let checkpoints = &with.0["checkpoints"];
    assert!(checkpoints["committed"].as_u64().unwrap() >= 2, "{checkpoints}");
    assert_eq!(checkpoints["abandoned"], 0);
    // Going on from the last of them gives the same once more, on three workers too.
    let again = run.end(run.start((3, 1), &format!("--restore {}/state", dir_of(&run))));
    assert_eq!((&again.0["checksum"], &again.1), (&whole.0["checksum"], &whole.1));
    assert!(again.0["ops"].as_u64().unwrap() < 80_000);
}

/// A run with these workers that is fed slowly and killed when it has committed something.
fn kill_after_a_checkpoint(run: &Run, shape: Shape, place: &str) {
    let record = Path::new(place).join("COMMITTED");
    let before = fs::read(&record).ok();
    let more = format!("--dir {place} --checkpoint-every-events 3000 --rate 20000");
    let mut child = run.start(shape, &more).remove(0);
    while fs::read(&record).ok() == before {
        assert!(child.try_wait().expect("a process").is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

/// Each worker reads all of a file and takes its share, which is another one with other workers.
#[test]
fn events_of_files_are_fed_once_by_other_workers() {
    let dir = tempfile::tempdir().unwrap();
    let events = dir.path().join("events").display().to_string();
    let mut write = Command::new(env!("CARGO_BIN_EXE_alluvium-bench"));
    write.args(["gen", "--events", "90000", "--csv", &events]).stdout(Stdio::null());
    assert!(write.status().expect("it runs").success());
    let options = format!("--query q4 --input {events} --memory 8MiB");
    let run = Run { dir: dir.path().to_owned(), options };
    let whole = run.end(run.start((1, 1), ""));
    let place = format!("{}/state", dir_of(&run));
    kill_after_a_checkpoint(&run, (2, 1), &place);
    kill_after_a_checkpoint(&run, (3, 1), &place);
    let rest = run.end(run.start((2, 1), &format!("--restore {place}")));
    assert!(rest.0["ops"].as_u64().unwrap() < 90_000, "it went on");
    assert_same(&run, &rest, &whole);
}

/// By the wall clock workers stop where they are, so that what is done has gaps.
#[test]
fn events_by_the_wall_clock_are_fed_once_by_other_workers() {
    let dir = tempfile::tempdir().unwrap();
    let options = "--query q12-processing-time --clock wall --events 200000 --memory 16MiB";
    let run = Run { dir: dir.path().to_owned(), options: options.to_owned() };
    let place = format!("{}/state", dir_of(&run));
    kill_after_a_checkpoint(&run, (2, 1), &place);
    kill_after_a_checkpoint(&run, (3, 1), &place);
    let rest = run.end(run.start((2, 1), &format!("--restore {place}")));
    let ops = rest.0["ops"].as_u64().unwrap();
    assert!((1..200_000).contains(&ops), "{ops}");
    // When a bid came is told by the windows, how many there are is not: 46 of 50 events.
    assert_eq!(bids(&rest.1), 200_000 / 50 * 46);
}

/// The sum of the counts of bids.
fn bids(rows: &[String]) -> u64 {
    let column = rows.iter().find_map(|row| row.split(',').position(|name| name == "bid_count"));
    let column = column.expect("a line of names");
    rows.iter().filter_map(|row| row.split(',').nth(column)?.parse::<u64>().ok()).sum()
}

#[test]
fn what_cannot_be_restored_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("state").display().to_string();
    let refusal = |options: &str| {
        let words = format!("--query q4 --events 6000 --memory 8MiB {options}");
        let output = bench(&words).output().expect("it runs");
        assert!(!output.status.success(), "{options}");
        errors(&output)
    };
    let message = refusal("--restore /nowhere/at-all");
    assert!(message.contains("there is no directory /nowhere/at-all"), "{message}");
    for option in ["--checkpoint-every 1s", "--checkpoint-every-events 9", "--checkpoint-at 9"] {
        let message = refusal(option);
        assert!(message.contains("--dir"), "{message}");
    }
    fs::create_dir_all(&place).unwrap();
    let message = refusal(&format!("--restore {place}"));
    assert!(message.contains("has no checkpoint to go on from"), "{message}");
    let options = format!("--dir {place} --checkpoint-every-events 2000 --workers 2");
    let words = format!("--query q4 --events 6000 --memory 8MiB {options}");
    let output = bench(&words).output().expect("it runs");
    assert!(output.status.success(), "{}", errors(&output));
    // A directory that is not there is named, by all who need it.
    let (there, away) = (Path::new(&place).join("worker-1"), dir.path().join("away"));
    fs::rename(&there, &away).unwrap();
    for workers in [1, 2, 3] {
        let message = refusal(&format!("--restore {place} --workers {workers}"));
        assert!(message.contains("does not see worker-1/checkpoint-"), "{message}");
        assert!(!there.exists() && !Path::new(&place).join("worker-0.1").exists());
    }
    fs::rename(&away, &there).unwrap();
    let results = dir.path().join("r.csv");
    let message =
        refusal(&format!("--restore {place} --workers 2 --results {}", results.display()));
    assert!(message.contains("kept no changes"), "{message}");
    // A record that is damaged is not taken for none.
    let record = Path::new(&place).join("COMMITTED");
    let mut bytes = fs::read(&record).unwrap();
    bytes[100] ^= 1;
    fs::write(&record, bytes).unwrap();
    let message = refusal(&format!("--restore {place} --workers 2"));
    assert!(message.contains("the job's record has a damaged body"), "{message}");
}
