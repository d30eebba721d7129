//! A whole report: every engine on every operator, in turns, each cell in a process of its own.
//!
//! Cells are written to `cells.jsonl` as they end, and the report is made anew after each. A run
//! that was interrupted goes on where it was when it is called again with the same options.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use alluvium_reports::{Environment, environment};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::args::{EngineArgs, InputArgs, OperatorArgs};
use crate::cell::{Cell, Outcome};
use crate::engine::{Kind, Open};
use crate::generator::Generator;
use crate::measure::Bound;
use crate::native::{self, NativeKind};
use crate::operator::{Name, trace_of};
use crate::report;
use crate::{Error, Result};

/// Events of which the accesses an event makes are estimated.
const ESTIMATED_EVENTS: usize = 50_000;
/// What a cell says that its cgroup has killed.
const KILLED: &str = "killed: its memory and the bound were not enough for it";
/// Beyond its time limit a cell gets so long for generating, checking and closing.
const GRACE: Duration = Duration::from_secs(180);

/// What is run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Where cells and report are written.
    pub out: PathBuf,
    /// The operators.
    pub operators: Vec<Name>,
    /// The engines, by name.
    pub engines: Vec<String>,
    /// How often each is run.
    pub rounds: usize,
    /// About how many accesses a cell makes.
    pub accesses: u64,
    /// Rates of open loops, in events per second; after the closed loops.
    pub rates: Vec<f64>,
    /// A command before that of each cell, such as one that makes a cgroup.
    pub wrap: Vec<String>,
    /// The input.
    pub input: InputArgs,
    /// The operators' numbers.
    pub numbers: OperatorArgs,
    /// Memory and time.
    pub engine: EngineArgs,
}

/// What is known of a report beside its cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The options of the run, by which it is known again.
    pub options: Vec<String>,
    /// The machine.
    pub environment: Environment,
    /// Each engine's name, version and note.
    pub engines: Vec<(String, String, String)>,
    /// The memory of each engine.
    pub memory: String,
    /// What bounds the page cache, in words.
    pub page_cache: String,
    /// Cells that the run will have.
    pub cells: usize,
}

impl Report {
    /// Runs what is missing and writes the report after each cell.
    ///
    /// # Errors
    /// Options that make no sense and files that cannot be written. Cells that fail are part of
    /// the report; at the end they are an error too.
    pub fn run(&self, kinds: &[Kind]) -> Result<()> {
        self.check(kinds)?;
        fs::create_dir_all(&self.out).map_err(|error| Error::io(&self.out, "make", error))?;
        let jobs = self.jobs(kinds)?;
        let about = self.about(kinds, jobs.len());
        let mut cells = self.resume(&about)?;
        let known: HashMap<String, ()> = cells.iter().map(|cell| (key_of(cell), ())).collect();
        let todo: Vec<_> = jobs.iter().filter(|job| !known.contains_key(&job.key())).collect();
        eprintln!("{} cells, {} of them are there already", jobs.len(), jobs.len() - todo.len());
        for (number, job) in todo.iter().enumerate() {
            eprint!("[{}/{}] {} ... ", number + 1, todo.len(), job.key());
            let cell = self.cell(job);
            eprintln!("{}", in_short(&cell));
            self.append(&cell)?;
            cells.push(cell);
            report::write(&self.out, &about, &cells)?;
        }
        report::write(&self.out, &about, &cells)?;
        let wrong = |cell: &&Cell| matches!(cell.outcome, Outcome::Failed(_));
        match cells.iter().filter(wrong).count() {
            0 => Ok(()),
            failed => Err(Error::Wrong(format!("{failed} cells failed; the report says how"))),
        }
    }

    fn check(&self, kinds: &[Kind]) -> Result<()> {
        self.numbers.options().check()?;
        self.engine.most()?;
        if let Some(more) = self.engine.bound_bytes()? {
            // Refused before work starts where it cannot be done.
            drop(Bound::enter(more + (1 << 30))?);
        }
        let memory = self.engine.memory_bytes()?;
        for name in &self.engines {
            if native::KINDS.iter().any(|kind| kind.name == name) {
                continue;
            }
            let Some(kind) = kinds.iter().find(|kind| kind.name == name) else {
                return Err(no_such_engine(name, kinds));
            };
            // A missing peer is a row that says so; too little memory is a mistake.
            if kind.open.is_ok() && memory < kind.memory_min {
                kind.check(Name::Aggregation, &self.numbers.options(), memory)?;
            }
        }
        match () {
            () if self.rounds == 0 => Err(Error::Usage("--rounds 0: 1 is the least".to_owned())),
            () if self.rates.iter().any(|rate| *rate <= 0.0) => {
                Err(Error::Usage("--rates: must be above 0".to_owned()))
            }
            () => self.check_disk().and_then(|()| self.check_natives(memory)),
        }
    }

    /// Refuses to start where the memory is too little to open what a native row has.
    fn check_natives(&self, memory_bytes: u64) -> Result<()> {
        let wanted = |kind: &&NativeKind| self.engines.iter().any(|engine| engine == kind.name);
        for kind in native::KINDS.iter().filter(wanted) {
            for operator in &self.operators {
                let (directory, _removed) = place(self.engine.dir.as_deref())?;
                let (operator, options) = (*operator, self.numbers.options());
                let open = Open { directory, memory_bytes, operator, options, events: 0 };
                kind.open(&open).map_err(|error| {
                    Error::Usage(format!("{operator} on {}: {error}", kind.name))
                })?;
            }
        }
        Ok(())
    }

    /// Refuses to start where the disk is clearly too small.
    fn check_disk(&self) -> Result<()> {
        let directory = self.engine.dir.clone().unwrap_or_else(std::env::temp_dir);
        let found = rustix::fs::statvfs(&directory)
            .map_err(|error| Error::io(&directory, "look at", error.into()))?;
        let free = found.f_bavail * found.f_frsize;
        // A log that drops nothing until it is compacted holds every write a few times.
        let wanted = self.accesses.saturating_mul(100).max(64 << 20);
        match free < wanted {
            true => Err(Error::Usage(format!(
                "{}: {} MiB are free, the run may take {} MiB",
                directory.display(),
                free >> 20,
                wanted >> 20
            ))),
            false => Ok(()),
        }
    }

    fn about(&self, kinds: &[Kind], cells: usize) -> About {
        let natives =
            native::KINDS.iter().map(|kind| (kind.name, env!("CARGO_PKG_VERSION"), kind.note));
        let others = kinds.iter().map(|kind| (kind.name, kind.version.as_str(), kind.note));
        let named = |(name, version, note): (&str, &str, &str)| {
            (name.to_owned(), version.to_owned(), note.to_owned())
        };
        let directory = self.engine.dir.clone().unwrap_or_else(std::env::temp_dir);
        let page_cache = match (&self.engine.bound, self.wrap.is_empty()) {
            (Some(more), _) => {
                format!("bounded by a cgroup of the engine's memory and {more} more")
            }
            (None, true) => "not bounded".to_owned(),
            (None, false) => {
                format!("bounded with each cell's memory by `{}`", self.wrap.join(" "))
            }
        };
        About {
            options: self.options(),
            environment: environment(&directory),
            engines: natives
                .chain(others)
                .filter(|(name, ..)| self.engines.iter().any(|engine| engine == name))
                .map(named)
                .collect(),
            memory: self.engine.memory.clone(),
            page_cache,
            cells,
        }
    }

    fn options(&self) -> Vec<String> {
        let mut words = self.input.words(self.input.events);
        words.extend(self.numbers.words());
        words.extend(self.engine.words());
        words.push(format!("--accesses {}", self.accesses));
        words.extend(self.wrap.clone());
        words
    }

    /// The cells in the order in which they are run: operator by operator, engines in turns, and at
    /// the end of each round the first one once more.
    fn jobs(&self, kinds: &[Kind]) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for operator in &self.operators {
            let events = self.events(*operator)?;
            for round in 1..=self.rounds {
                for engine in &self.engines {
                    jobs.push(Job::new(*operator, engine, format!("{round}"), None, events));
                }
                let first = self.engines.iter().find(|name| is_there(name, kinds));
                jobs.extend(first.map(|engine| {
                    Job::new(*operator, engine, format!("{round} again"), None, events)
                }));
            }
            for rate in &self.rates {
                for engine in &self.engines {
                    let round = "open loop".to_owned();
                    jobs.push(Job::new(*operator, engine, round, Some(*rate), events));
                }
            }
        }
        Ok(jobs)
    }

    /// How many events make about as many accesses as wanted.
    fn events(&self, operator: Name) -> Result<usize> {
        if self.input.input.is_some() {
            return Ok(self.input.events);
        }
        let generator = self.input.generator(operator)?;
        let few = Generator { events: ESTIMATED_EVENTS, ..generator };
        let options = self.numbers.options();
        let trace = trace_of(&mut *operator.operator(&options), &few.stream()?);
        let each = trace.count() as f64 / ESTIMATED_EVENTS as f64;
        let events = self.accesses as f64 / each;
        Ok(((events / 100.0).ceil() as usize * 100).max(100))
    }

    /// Cells of an earlier run with the same options.
    fn resume(&self, about: &About) -> Result<Vec<Cell>> {
        let path = self.out.join("about.json");
        if let Ok(text) = fs::read_to_string(&path) {
            let before: About = serde_json::from_str(&text)
                .map_err(|error| Error::input(&path, error.line() as u64, error.to_string()))?;
            if before.options != about.options {
                let out = self.out.display();
                let message = format!("{out} has a run with other options; choose another --out");
                return Err(Error::Usage(message));
            }
        }
        let text = serde_json::to_string_pretty(about).map_err(Error::engine)?;
        fs::write(&path, text).map_err(|error| Error::io(&path, "write", error))?;
        read_cells(&self.out)
    }

    fn append(&self, cell: &Cell) -> Result<()> {
        let path = self.out.join("cells.jsonl");
        let line = serde_json::to_string(cell).map_err(Error::engine)? + "\n";
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|error| Error::io(&path, "write", error))
    }

    /// Runs a cell in a process of its own.
    fn cell(&self, job: &Job) -> Cell {
        let words = self.words(job);
        let program = std::env::current_exe().map_or("alluvium-gadget".into(), |path| path);
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut line = self.wrap.clone();
        line.push(name);
        line.extend(words.iter().cloned());
        let failed = |why: String| Cell {
            operator: job.operator.to_string(),
            engine: job.engine.clone(),
            version: String::new(),
            round: job.round.clone(),
            rate: job.rate,
            outcome: Outcome::Failed(why),
            figures: None,
            command: line.join(" "),
        };
        let mut all = self.wrap.clone();
        all.push(program.display().to_string());
        all.extend(words);
        match self.output_of(&all) {
            Ok(text) => match serde_json::from_str::<Cell>(text.lines().last().unwrap_or_default())
            {
                Ok(cell) => Cell { command: line.join(" "), ..cell },
                Err(error) => failed(format!("what the cell printed cannot be read: {error}")),
            },
            Err(why) if why == KILLED => {
                Cell { outcome: Outcome::Refused(why), ..failed(String::new()) }
            }
            Err(why) => failed(why),
        }
    }

    fn words(&self, job: &Job) -> Vec<String> {
        let mut words = vec!["cell".to_owned()];
        words.extend(["--operator".to_owned(), job.operator.to_string()]);
        words.extend(["--engine".to_owned(), job.engine.clone()]);
        words.extend(["--round".to_owned(), job.round.replace(' ', "-")]);
        if let Some(rate) = job.rate {
            words.extend(["--rate".to_owned(), rate.to_string()]);
        }
        words.extend(self.input.words(job.events));
        words.extend(self.numbers.words());
        words.extend(self.engine.words());
        words
    }

    /// What a command prints; its end is waited for no longer than its time limit and some grace.
    fn output_of(&self, line: &[String]) -> std::result::Result<String, String> {
        let (program, arguments) = line.split_first().ok_or("no command")?;
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
        let read = |stream: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut text = String::new();
                stream.map(|mut stream| stream.read_to_string(&mut text));
                text
            })
        };
        let output = read(child.stdout.take().map(|stream| Box::new(stream) as Box<_>));
        let errors = read(child.stderr.take().map(|stream| Box::new(stream) as Box<_>));
        let end = Instant::now() + Duration::from_secs_f64(self.engine.seconds) + GRACE;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err("killed long after its time limit".to_owned());
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        Bound::clear(child.id());
        let (output, errors) =
            (output.join().unwrap_or_default(), errors.join().unwrap_or_default());
        let is_killed = status.signal() == Some(9) && self.engine.bound.is_some();
        match status.success() {
            true => Ok(output),
            false if is_killed => Err(KILLED.to_owned()),
            false => Err(format!("{status}: {}", errors.trim())),
        }
    }
}

/// An empty directory for an engine, in the one that was asked for; it goes when the second part does.
///
/// # Errors
/// Those of the file system.
pub fn place(dir: Option<&Path>) -> Result<(PathBuf, TempDir)> {
    let at = dir.map_or_else(std::env::temp_dir, Path::to_owned);
    let made = tempfile::Builder::new().prefix("gadget-").tempdir_in(&at);
    let made = made.map_err(|error| Error::io(&at, "make a directory in", error))?;
    Ok((made.path().to_owned(), made))
}

/// Whether an engine can be opened at all.
fn is_there(name: &str, kinds: &[Kind]) -> bool {
    native::KINDS.iter().any(|kind| kind.name == name)
        || kinds.iter().any(|kind| kind.name == name && kind.open.is_ok())
}

/// The error for an engine that is not known.
pub fn no_such_engine(name: &str, kinds: &[Kind]) -> Error {
    let natives = native::KINDS.iter().map(|kind| kind.name);
    let known: Vec<_> = natives.chain(kinds.iter().map(|kind| kind.name)).collect();
    Error::Usage(format!("there is no engine {name:?}, but {}", known.join(", ")))
}

/// The cells of a run; a last line that was cut off while it was written is left out.
///
/// # Errors
/// Those of the file, and lines before the last that are no cells.
pub fn read_cells(out: &Path) -> Result<Vec<Cell>> {
    let path = out.join("cells.jsonl");
    let Ok(file) = File::open(&path) else { return Ok(Vec::new()) };
    let lines: std::result::Result<Vec<String>, _> = BufReader::new(file).lines().collect();
    let lines = lines.map_err(|error| Error::io(&path, "read", error))?;
    let count = lines.len();
    let mut cells = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(cell) => cells.push(cell),
            Err(_) if at + 1 == count => {
                // The next cell begins a line of its own.
                let whole = lines[..at].iter().map(|line| line.clone() + "\n").collect::<String>();
                fs::write(&path, whole).map_err(|error| Error::io(&path, "write", error))?;
            }
            Err(error) => return Err(Error::input(&path, at as u64 + 1, error.to_string())),
        }
    }
    Ok(cells)
}

fn key_of(cell: &Cell) -> String {
    named(&cell.operator, &cell.engine, &cell.round, cell.rate)
}

fn named(operator: &str, engine: &str, round: &str, rate: Option<f64>) -> String {
    let rate = rate.map_or(String::new(), |rate| format!(" at {rate} events/s"));
    format!("{operator}, {engine}, round {}{rate}", round.replace('-', " "))
}

fn in_short(cell: &Cell) -> String {
    match (&cell.outcome, &cell.figures) {
        (Outcome::Refused(why), _) => format!("not run: {why}"),
        (Outcome::Failed(why), _) => format!("FAILED: {why}"),
        (outcome, Some(figures)) => {
            let cut = if *outcome == Outcome::Cut { " (cut)" } else { "" };
            format!("{:.0} accesses/s{cut}", figures.accesses_per_s)
        }
        _ => String::new(),
    }
}

#[derive(Clone, Debug)]
struct Job {
    operator: Name,
    engine: String,
    round: String,
    rate: Option<f64>,
    events: usize,
}

impl Job {
    fn new(operator: Name, engine: &str, round: String, rate: Option<f64>, events: usize) -> Self {
        Job { operator, engine: engine.to_owned(), round, rate, events }
    }

    fn key(&self) -> String {
        named(self.operator.text(), &self.engine, &self.round, self.rate)
    }
}
