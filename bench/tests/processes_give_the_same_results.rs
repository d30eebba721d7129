//! `alluvium-bench nexmark` as several processes: the results of one, and one end for all.

#[path = "../../timely-adapter/tests/common/processes.rs"]
#[expect(dead_code, reason = "shared with the adapter's")]
mod processes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use processes::free_addresses;
use serde_json::Value;

/// A run of several processes.
struct Cluster {
    dir: PathBuf,
    hosts: Vec<String>,
}

impl Cluster {
    /// Processes on this machine.
    fn local(dir: &Path, processes: usize) -> Self {
        let cluster = Self { dir: dir.to_owned(), hosts: free_addresses(processes) };
        cluster.write_hosts();
        cluster
    }

    fn write_hosts(&self) {
        fs::write(self.dir.join("hosts"), self.hosts.join("\n") + "\n").expect("a file");
    }

    fn report(&self, process: usize) -> PathBuf {
        self.dir.join(format!("report-{process}.json"))
    }

    /// What all processes get, and what one of them gets besides.
    fn words(&self, process: usize, options: &str) -> Vec<String> {
        let report = self.report(process);
        let _ = fs::remove_file(&report);
        let memory = if options.contains("--memory") { "" } else { " --memory 64MiB" };
        let line = format!(
            "nexmark {options}{memory} -n {} -p {process} --hostfile {} --json {}",
            self.hosts.len(),
            self.dir.join("hosts").display(),
            report.display()
        );
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn start(&self, process: usize, options: &str) -> Child {
        start(Command::new(env!("CARGO_BIN_EXE_alluvium-bench")).args(self.words(process, options)))
    }

    /// Runs all processes with the same options.
    fn run(&self, options: &str) -> Vec<Output> {
        let start = |process| self.start(process, options);
        let children: Vec<_> = (0..self.hosts.len()).map(start).collect();
        children.into_iter().map(end).collect()
    }

    /// The reports of a run that must be good.
    fn reports(&self, outputs: &[Output]) -> Vec<Value> {
        let report = |(process, output): (usize, &Output)| {
            assert!(output.status.success(), "process {process}: {}", errors(output));
            let report = fs::read(self.report(process)).expect("a report");
            serde_json::from_slice(&report).expect("JSON")
        };
        outputs.iter().enumerate().map(report).collect()
    }

    /// `process 1 at 127.0.0.1:7000`
    fn place(&self, process: usize) -> String {
        format!("process {process} at {}", self.hosts[process])
    }
}

fn start(command: &mut Command) -> Child {
    let command = command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

fn end(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The program's own last word.
fn message(output: &Output) -> String {
    assert!(!output.status.success());
    let errors = errors(output);
    let own = errors.lines().rev().find(|line| line.starts_with("alluvium-bench: "));
    own.unwrap_or_else(|| panic!("no message in {errors}")).to_owned()
}

fn sorted_lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("a file");
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn results_do_not_depend_on_the_number_of_processes_and_workers() {
    let dir = tempfile::tempdir().unwrap();
    let side = dir.path().join("side.csv");
    let rows: Vec<_> = (0..5_000).map(|n| format!("{},{}", 2 * n, n * n)).collect();
    fs::write(&side, format!("key,value\n{}\n", rows.join("\n"))).unwrap();
    for query in ["q0", "q3", "q4", "q13"] {
        let mut answers = Vec::new();
        for (processes, workers) in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)] {
            let results = dir.path().join("results.csv");
            let _ = fs::remove_file(&results);
            let mut options = format!(
                "--query {query} --events 20000 --workers {workers} --results {}",
                results.display()
            );
            if query == "q13" {
                options.push_str(&format!(" --side-input {}", side.display()));
            }
            let cluster = Cluster::local(dir.path(), processes);
            let reports = cluster.reports(&cluster.run(&options));
            let ops: u64 = reports.iter().map(|report| report["ops"].as_u64().unwrap()).sum();
            assert_eq!(ops, 20_000, "{options}");
            let rows = sorted_lines(&results);
            assert!(rows.len() > 1, "{options}");
            for report in reports {
                answers.push((report["checksum"].clone(), rows.clone()));
            }
        }
        assert_eq!(answers.len(), 7);
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{query}");
    }
}

/// Long enough to be interrupted: 20,000 events per second.
const SLOW: &str = "--query q4 --events 4000000 --rate 20000";

#[test]
fn a_process_that_is_killed_ends_the_others_which_name_it() {
    let dir = tempfile::tempdir().unwrap();
    for victim in 0..3 {
        let cluster = Cluster::local(dir.path(), 3);
        let state = |process| dir.path().join(format!("state-{victim}-{process}"));
        let mut children: Vec<_> = (0..3)
            .map(|process| {
                let dir = state(process).display().to_string();
                cluster.start(process, &format!("{SLOW} --dir {dir} --checkpoint-at 1000"))
            })
            .collect();
        // All have begun.
        let begin = Instant::now();
        for process in 0..3 {
            while !state(process).join(format!("worker-{process}/MANIFEST")).exists() {
                assert!(begin.elapsed() < Duration::from_secs(60), "no checkpoint");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        children[victim].kill().expect("it runs");
        for (process, child) in children.into_iter().enumerate() {
            let output = end(child);
            if process != victim {
                let expected = format!("{} disconnected before its end", cluster.place(victim));
                assert!(message(&output).contains(&expected), "{process}: {}", errors(&output));
            }
        }
    }
}

#[test]
fn processes_that_are_killed_go_on_at_their_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let options = "--query q4 --events 60000 --rate 30000 --layout hybrid-log --workers 2";
    let cluster = Cluster::local(dir.path(), 2);
    let whole = cluster.reports(&cluster.run(options));
    let state = |process| dir.path().join(format!("state-{process}"));
    let options =
        |process| format!("{options} --dir {} --checkpoint-at 20000", state(process).display());
    let cluster = Cluster::local(dir.path(), 2);
    let mut children: Vec<_> = (0..2).map(|p| cluster.start(p, &options(p))).collect();
    let begin = Instant::now();
    for worker in 0..4 {
        let manifest = state(worker / 2).join(format!("worker-{worker}/MANIFEST"));
        while !manifest.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "no checkpoint");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    children.iter_mut().for_each(|child| child.kill().expect("it runs"));
    children.into_iter().for_each(|child| drop(end(child)));
    let cluster = Cluster::local(dir.path(), 2);
    let children: Vec<_> = (0..2).map(|p| cluster.start(p, &options(p))).collect();
    let outputs: Vec<_> = children.into_iter().map(end).collect();
    let rest = cluster.reports(&outputs);
    assert!(rest.iter().all(|report| report["checksum"] == whole[0]["checksum"]));
    let ops: u64 = rest.iter().map(|report| report["ops"].as_u64().unwrap()).sum();
    assert!((20_000..=40_000).contains(&ops), "{ops}");
}

#[test]
fn what_fails_in_one_process_is_said_by_all() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::local(dir.path(), 2);
    // State that does not fit, in the second process only.
    let options = "--query q4 --events 4000000 --in-flight 100000 --layout heap";
    let first = cluster.start(0, options);
    let second = end(cluster.start(1, &format!("{options} --memory 200KiB")));
    let (first, second) = (message(&end(first)), message(&second));
    assert!(second.starts_with("alluvium-bench: state failed in an operator: "), "{second}");
    assert_eq!(first, format!("{second} ({})", cluster.place(1)));
    // Results that cannot be written, by the first.
    let cluster = Cluster::local(dir.path(), 2);
    let outputs = cluster.run("--query q4 --events 5000 --results /nowhere/r.csv");
    let [first, second] = [0, 1].map(|process| message(&outputs[process]));
    assert!(first.contains("/nowhere/r.csv"), "{first}");
    assert_eq!(second, format!("{first} ({})", cluster.place(0)));
}

#[test]
fn processes_that_do_not_fit_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::local(dir.path(), 2);
    let alone = end(cluster.start(1, "--query q0 --events 10 --connect-within 1"));
    let expected = format!("{} did not connect within 1 s", cluster.place(0));
    assert!(message(&alone).contains(&expected), "{}", errors(&alone));
    for (other, expected) in [
        ("--query q0 --events 10 --workers 2", "processes of 2 workers"),
        ("--query q0 --events 11", "started with different options"),
    ] {
        let cluster = Cluster::local(dir.path(), 2);
        let first = cluster.start(0, "--query q0 --events 10");
        let second = end(cluster.start(1, other));
        for output in [end(first), second] {
            assert!(message(&output).contains(expected), "{}", errors(&output));
        }
    }
    // Both in one directory: one has it, and the other never comes.
    let cluster = Cluster::local(dir.path(), 2);
    let state = dir.path().join("state");
    let options = format!("--query q0 --events 10 --connect-within 10 --dir {}", state.display());
    let first = cluster.start(0, &options);
    // It has the directory before the other is started, which then has its whole patience for that.
    let begin = Instant::now();
    while !state.join("LOCK").exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "nobody has the directory");
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = cluster.start(1, &options);
    let messages = [first, second].map(|child| message(&end(child))).join("\n");
    assert!(messages.contains("the directory is in use by "), "{messages}");
    assert!(messages.contains("did not connect within 10 s"), "{messages}");
    let one = |options: &str| message(&end(cluster.start(5, options)));
    assert!(one("--query q0 --events 10").contains("--process is 5, of 2 processes"));
    let few = Cluster { dir: dir.path().to_owned(), hosts: vec![String::new(); 3] };
    let message = message(&end(few.start(0, "--query q0 --events 10")));
    assert!(message.contains("hosts has 2 addresses for 3 processes"), "{message}");
}

/// Two network namespaces with a cable between them; they go when this is dropped.
struct TwoHosts {
    names: [String; 2],
}

impl TwoHosts {
    /// `None`, with a line on the standard error, where the machine does not allow it.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let hosts = Self { names: [0, 1].map(|n| format!("alluvium-{id}-{n}")) };
        let [a, b] = &hosts.names;
        let cable = format!("al{}", id % 100_000);
        let made = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {cable}a netns {a} type veth peer name {cable}b netns {b}"),
            format!("-n {a} addr add 10.97.1.1/24 dev {cable}a"),
            format!("-n {b} addr add 10.97.1.2/24 dev {cable}b"),
            format!("-n {a} link set {cable}a up"),
            format!("-n {b} link set {cable}b up"),
        ]
        .iter()
        .try_for_each(|words| ip(words));
        match made {
            Ok(()) => Some(hosts),
            Err(why) => {
                eprintln!("skipped: this machine gives no network namespaces: {why}");
                None
            }
        }
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {words}: {}", errors(&output))),
    }
}

#[test]
fn processes_on_two_hosts_give_the_same_results() {
    let Some(hosts) = TwoHosts::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results.csv");
    let options = format!("--query q3 --events 20000 --workers 2 --results {}", results.display());
    let alone = Cluster::local(dir.path(), 1);
    let one = alone.reports(&alone.run(&options));
    let expected = sorted_lines(&results);
    fs::remove_file(&results).unwrap();
    let addresses = ["10.97.1.1:2101", "10.97.1.2:2101"].map(str::to_owned);
    let cluster = Cluster { dir: dir.path().to_owned(), hosts: addresses.into() };
    cluster.write_hosts();
    let children = [0, 1].map(|process| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &hosts.names[process]]);
        command.arg(env!("CARGO_BIN_EXE_alluvium-bench"));
        start(command.args(cluster.words(process, &options)))
    });
    let outputs = children.map(end);
    let two = cluster.reports(&outputs);
    assert_eq!(sorted_lines(&results), expected);
    assert!(two.iter().all(|report| report["checksum"] == one[0]["checksum"]));
}
