//! Runs the cells of a suite in turns, one process each, and keeps their outcomes.
//!
//! Each outcome is a line of `cells.jsonl` as soon as it is there. A run in the same directory does
//! not repeat cells that have figures, unless the commit is another one: then it is refused. A cell
//! that a time limit cuts, or whose program dies, is an outcome with the reason. Each cell has a
//! directory of its own, which is removed when it ends, also when a signal ends the suite;
//! directories of a suite that was killed are removed by the next one.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use alluvium_reports::{Environment, environment};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::cell::{Cell, DIRECTORY, HOSTS, Outcome};
use crate::stop_unsafe;
use crate::{Error, Result};

const CELLS: &str = "cells.jsonl";
const RUN: &str = "run.json";
/// Directories of cells begin with this.
const WORK: &str = "work-";
/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(10);

/// What a run was made with: the next one in its directory has the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    suite: String,
    environment: Environment,
}

/// Runs cells for one suite.
#[derive(Debug)]
pub struct Runner {
    out: PathBuf,
    /// A cell runs at most so long.
    limit: Duration,
    environment: Environment,
    kept: Vec<Outcome>,
}

/// How a process ended.
enum Ended {
    Itself(ExitStatus),
    Cut,
    Stopped,
}

impl Runner {
    /// Begins a suite in a directory, or goes on with the one there.
    ///
    /// # Errors
    /// Files cannot be made or read, or the directory has a run of another suite or commit.
    pub fn begin(out: &Path, suite: &str, limit: Duration) -> Result<Self> {
        stop_unsafe::watch();
        fs::create_dir_all(out).map_err(|error| Error::io(out, "make", &error))?;
        remove_left(out)?;
        let mut environment = environment(out);
        let path = out.join(RUN);
        if let Ok(text) = fs::read_to_string(&path) {
            let run: Run = serde_json::from_str(&text)
                .map_err(|error| Error::new(format!("{}: {error}", path.display())))?;
            check_same(out, suite, &run, &environment)?;
            environment = run.environment;
        } else {
            let run = Run { suite: suite.to_owned(), environment: environment.clone() };
            write(out, RUN, &to_json(&run))?;
        }
        let kept = read_outcomes(&out.join(CELLS))?;
        Ok(Runner { out: out.to_owned(), limit, environment, kept })
    }

    /// The machine that the run was begun on.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Runs all cells in so many rounds, and calls `each` with all outcomes of these cells after
    /// every one.
    ///
    /// # Errors
    /// [`Error::Interrupted`] after a signal; files that cannot be written; what `each` returns.
    pub fn run(
        &mut self,
        cells: &[Cell],
        rounds: usize,
        each: &mut dyn FnMut(&[Outcome]) -> Result<()>,
    ) -> Result<Vec<Outcome>> {
        let (mut outcomes, total) = (Vec::new(), cells.len() * rounds);
        for round in 1..=rounds {
            for cell in cells {
                let known = self.kept.iter().find(|kept| is_run_of(kept, cell, round));
                let outcome = match known {
                    Some(kept) => kept.clone(),
                    None => self.run_new(cell, round, (outcomes.len() + 1, total))?,
                };
                outcomes.push(outcome);
                each(&outcomes)?;
            }
        }
        Ok(outcomes)
    }

    fn run_new(
        &self,
        cell: &Cell,
        round: usize,
        (number, total): (usize, usize),
    ) -> Result<Outcome> {
        if stop_unsafe::has_stopped() {
            return Err(Error::Interrupted);
        }
        let outcome = self.outcome(cell, round)?;
        let said = match (&outcome.why, outcome.number("ops_per_s")) {
            (Some(why), _) => why.clone(),
            (None, Some(rate)) => format!("{}/s", alluvium_reports::short(rate)),
            (None, None) => "done".to_owned(),
        };
        let (row, column, seconds) = (&cell.row, &cell.column, outcome.seconds);
        eprintln!("[{number}/{total}] round {round}, {row} on {column}: {said} ({seconds:.1} s)");
        let path = self.out.join(CELLS);
        let failed = |error: std::io::Error| Error::io(&path, "write", &error);
        let mut file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        let line =
            serde_json::to_string(&outcome).map_err(|error| Error::new(error.to_string()))?;
        writeln!(file, "{line}").map_err(failed)?;
        Ok(outcome)
    }

    fn outcome(&self, cell: &Cell, round: usize) -> Result<Outcome> {
        let mut outcome = Outcome {
            row: cell.row.clone(),
            column: cell.column.clone(),
            round,
            command: cell.command(),
            seconds: 0.0,
            figures: None,
            why: None,
        };
        let program = match &cell.program {
            Ok(program) => program,
            Err(why) => {
                outcome.why = Some(why.clone());
                return Ok(outcome);
            }
        };
        let work = tempfile::Builder::new().prefix(WORK).tempdir_in(&self.out);
        let work = work.map_err(|error| Error::io(&self.out, "make a directory in", &error))?;
        let started = Instant::now();
        let ended = self.process(cell, program, &work)?;
        outcome.seconds = started.elapsed().as_secs_f64();
        match ended {
            Ended::Stopped => return Err(Error::Interrupted),
            Ended::Cut => {
                outcome.why = Some(format!("cut after {:.0} s", self.limit.as_secs_f64()));
            }
            Ended::Itself(status) if !status.success() => {
                outcome.why = Some(failure(status, &work.path().join("stderr")));
            }
            Ended::Itself(_) => match figures(cell, &work) {
                Ok(figures) => outcome.figures = Some(figures),
                Err(why) => outcome.why = Some(why),
            },
        }
        Ok(outcome)
    }

    /// Runs a cell's processes until the first one ends, its time is over, or a signal comes.
    fn process(&self, cell: &Cell, program: &Path, work: &TempDir) -> Result<Ended> {
        let mut beside = OtherProcesses(Vec::new());
        if !cell.beside.is_empty() {
            write_hosts(work.path(), 1 + cell.beside.len())?;
        }
        let mut child = start(program, &cell.arguments, work.path(), "")?;
        for (number, arguments) in cell.beside.iter().enumerate() {
            match start(program, arguments, work.path(), &format!("-{}", number + 1)) {
                Ok(other) => beside.0.push(other),
                Err(error) => {
                    end(&mut child);
                    return Err(error);
                }
            }
        }
        let failed = |error: std::io::Error| Error::io(program, "wait for", &error);
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                // An interrupt from a terminal ends the process as well.
                let has_stopped = stop_unsafe::has_stopped() && !status.success();
                return Ok(if has_stopped { Ended::Stopped } else { Ended::Itself(status) });
            }
            if stop_unsafe::has_stopped() {
                end(&mut child);
                return Ok(Ended::Stopped);
            }
            if started.elapsed() >= self.limit {
                end(&mut child);
                return Ok(Ended::Cut);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Processes beside a cell's first. They end with it.
struct OtherProcesses(Vec<Child>);

impl Drop for OtherProcesses {
    fn drop(&mut self) {
        // Those that ended well have nothing left to do; they end within moments of the first.
        let patience = Instant::now() + Duration::from_secs(2);
        for child in &mut self.0 {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < patience {
                std::thread::sleep(LOOK);
            }
            end(child);
        }
    }
}

/// Starts a process of a cell.
fn start(program: &Path, arguments: &[String], work: &Path, number: &str) -> Result<Child> {
    let file = |name: &str| {
        let path = work.join(format!("{name}{number}"));
        File::create(&path).map_err(|error| Error::io(&path, "make", &error))
    };
    let dir = work.display().to_string();
    Command::new(program)
        .args(arguments.iter().map(|argument| argument.replace(DIRECTORY, &dir)))
        .stdin(Stdio::null())
        .stdout(file("stdout")?)
        .stderr(file("stderr")?)
        .spawn()
        .map_err(|error| Error::io(program, "run", &error))
}

/// Writes addresses of this machine that are free now.
fn write_hosts(work: &Path, count: usize) -> Result<()> {
    let failed = |error: std::io::Error| Error::new(format!("no free address: {error}"));
    let listeners = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0"));
    // All at once, so that they differ.
    let listeners = listeners.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    let addresses = listeners.iter().map(|listener| listener.local_addr());
    let addresses = addresses.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    let lines: String = addresses.iter().map(|address| format!("{address}\n")).collect();
    write_back(&work.join(HOSTS), &lines)
}

/// Writes a file of the run, whole or not at all.
///
/// # Errors
/// The system's.
pub fn write(out: &Path, name: &str, text: &str) -> Result<()> {
    let (part, path) = (out.join(format!("{name}.part")), out.join(name));
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
    written.map_err(|error| Error::io(&path, "write", &error))
}

fn to_json(run: &Run) -> String {
    serde_json::to_string_pretty(run).unwrap_or_default()
}

fn end(child: &mut Child) {
    // It may have ended since; then there is nothing to do.
    let _ = child.kill();
    let _ = child.wait();
}

/// Removes the directories of cells of a suite that was killed.
fn remove_left(out: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io(out, "read", &error);
    for entry in fs::read_dir(out).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_work = entry.file_name().to_string_lossy().starts_with(WORK);
        if is_work && entry.path().is_dir() {
            fs::remove_dir_all(entry.path())
                .map_err(|error| Error::io(&entry.path(), "remove", &error))?;
        }
    }
    Ok(())
}

fn check_same(out: &Path, suite: &str, run: &Run, now: &Environment) -> Result<()> {
    let refuse = |what: String| {
        let out = out.display();
        Err(Error::new(format!("{out} has a run of {what}; choose another --out")))
    };
    if run.suite != suite {
        return refuse(format!("suite {}", run.suite));
    }
    if run.environment.commit != now.commit {
        return refuse(format!("commit {}, this is {}", run.environment.commit, now.commit));
    }
    Ok(())
}

/// The outcomes of the runs before; the last line may be cut where a suite was killed.
fn read_outcomes(path: &Path) -> Result<Vec<Outcome>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(path, "read", &error)),
    };
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    if whole < text.len() {
        write_back(path, &text[..whole])?;
    }
    let parsed = text[..whole].lines().enumerate().map(|(at, line)| {
        serde_json::from_str(line)
            .map_err(|error| Error::new(format!("{}: line {}: {error}", path.display(), at + 1)))
    });
    parsed.collect()
}

fn write_back(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| Error::io(path, "write", &error))
}

/// The last words of a program that failed, or how it ended.
fn failure(status: ExitStatus, stderr: &Path) -> String {
    let text = fs::read_to_string(stderr).unwrap_or_default();
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    match (status.code(), last) {
        (Some(_), Some(last)) => last.trim().to_owned(),
        _ => format!("the program ended with {status}"),
    }
}

fn figures(cell: &Cell, work: &TempDir) -> std::result::Result<serde_json::Value, String> {
    let name = cell.figures.as_deref().unwrap_or("stdout");
    let path = work.path().join(name);
    let text = fs::read_to_string(&path).map_err(|_| format!("the program wrote no {name}"))?;
    serde_json::from_str(&text).map_err(|error| format!("its figures are no JSON: {error}"))
}

/// Whether an outcome with figures is of this cell. Two rows may have one command.
fn is_run_of(kept: &Outcome, cell: &Cell, round: usize) -> bool {
    let is_of = (&kept.row, &kept.column, kept.round) == (&cell.row, &cell.column, round);
    is_of && kept.command == cell.command() && kept.figures.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(row: &str, script: &str) -> Cell {
        Cell {
            row: row.to_owned(),
            column: "sh".to_owned(),
            program: Ok(PathBuf::from("/bin/sh")),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            beside: Vec::new(),
            figures: None,
        }
    }

    #[test]
    fn processes_beside_a_cell_have_addresses_and_end_with_it() {
        let out = tempfile::tempdir().unwrap();
        let pid = out.path().join("pid");
        let told = format!("wc -l <{{dir}}/{HOSTS}");
        let wait = format!("until [ -s {0} ]; do sleep 0.01; done", pid.display());
        let mut cell = shell("two", &format!("{wait}; {told}"));
        let beside = format!("echo $$ >{}; exec sleep 600", pid.display());
        cell.beside = vec![vec!["-c".to_owned(), beside]];
        let mut runner = Runner::begin(out.path(), "tests", Duration::from_secs(60)).unwrap();
        let outcomes = runner.run(&[cell], 1, &mut |_| Ok(())).unwrap();
        assert_eq!(outcomes[0].figures, Some(serde_json::json!(2)), "{outcomes:?}");
        let pid = fs::read_to_string(pid).unwrap();
        let alive = Command::new("kill").args(["-0", pid.trim()]).output().unwrap();
        assert!(!alive.status.success(), "{pid} still runs");
    }

    fn names(out: &Path) -> Vec<String> {
        let entries = fs::read_dir(out).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(WORK)).collect()
    }

    #[test]
    fn cells_are_run_once_and_failures_have_their_reasons() {
        let out = tempfile::tempdir().unwrap();
        fs::create_dir_all(out.path().join("work-left/by-a-killed-suite")).unwrap();
        // What ends by itself may take long on a busy machine. Nothing else is cut.
        let limit = Duration::from_secs(600);
        let mut cells = vec![
            shell("good", "echo '{\"ops_per_s\": 5}' && touch {dir}/state"),
            shell("bad", "echo first >&2; echo 'no room' >&2; exit 3"),
            shell("killed", "kill -9 $$"),
            shell("silent", "true"),
        ];
        let missing = Err("rocksdb is not installed".to_owned());
        let cut =
            [shell("slow", "exec sleep 600"), Cell { program: missing, ..shell("missing", "") }];
        let mut calls = 0;
        let mut run = |cells: &[Cell], limit| {
            let mut runner = Runner::begin(out.path(), "tests", limit).unwrap();
            let outcomes = runner.run(cells, 2, &mut |_| {
                calls += 1;
                Ok(())
            });
            let outcomes = outcomes.unwrap();
            assert_eq!((outcomes.len(), names(out.path()).len()), (2 * cells.len(), 0));
            outcomes
        };
        let outcomes = run(&cells, limit);
        let slow = run(&cut, Duration::from_millis(300));
        assert_eq!(calls, 12);
        assert_eq!(outcomes[0].number("ops_per_s"), Some(5.0));
        let why = |outcome: &Outcome| outcome.why.clone().unwrap_or_default();
        assert_eq!(why(&outcomes[1]), "no room");
        assert!(why(&outcomes[2]).contains("signal: 9"), "{}", why(&outcomes[2]));
        assert!(why(&outcomes[3]).contains("no JSON"), "{}", why(&outcomes[3]));
        assert_eq!(why(&slow[0]), "cut after 0 s");
        assert_eq!(why(&slow[1]), "rocksdb is not installed");

        // A run that goes on has the good cells, and tries the others again.
        cells.truncate(2);
        let lines = || fs::read_to_string(out.path().join(CELLS)).unwrap().lines().count();
        assert_eq!(lines(), 12);
        let mut runner = Runner::begin(out.path(), "tests", limit).unwrap();
        runner.run(&cells, 2, &mut |_| Ok(())).unwrap();
        assert_eq!(lines(), 14);
        // Another row with the same command is another cell.
        let again = Cell { row: "again".to_owned(), ..cells[0].clone() };
        let mut runner = Runner::begin(out.path(), "tests", limit).unwrap();
        let both = runner.run(&[cells[0].clone(), again], 1, &mut |_| Ok(())).unwrap();
        assert_eq!([&both[0].row, &both[1].row], ["good", "again"]);
        assert_eq!(lines(), 15);
        // A line that was cut is not a cell.
        let mut file = File::options().append(true).open(out.path().join(CELLS)).unwrap();
        write!(file, "{{\"row\": \"go").unwrap();
        let mut runner = Runner::begin(out.path(), "tests", limit).unwrap();
        runner.run(&cells[..1], 2, &mut |_| Ok(())).unwrap();
        assert_eq!(lines(), 15);
        let error = Runner::begin(out.path(), "others", limit).map(drop).unwrap_err();
        assert!(error.to_string().contains("has a run of suite tests"), "{error}");
    }
}
