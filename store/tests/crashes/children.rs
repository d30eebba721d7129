//! The test binary as a child process: a job on a real directory, which is killed, or whose system
//! calls fail (see the modules `kills` and `shim`).

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{DirectIo, EngineChoice, IoOptions};
use alluvium::{ErrorKind, KIB, MIB, Store, StoreBuilder};

use crate::clock::Standing;
use crate::dice::Dice;
use crate::everything::Everything;
use crate::history::RETAINED;
use crate::job::{Fixtures, Found, Job, Replay, Subject, Told};
use crate::trouble::Trouble;

/// What is told to a child, and how its lines begin.
const VARIABLE: &str = "ALLUVIUM_CHILD";
const MARK: &str = "alluvium: ";

/// How a job runs.
#[derive(Clone, Debug)]
pub struct Plan {
    pub directory: PathBuf,
    pub seed: u64,
    /// What is left to chance beside the changes.
    pub attempt: u64,
    /// Changes in all.
    pub until: u64,
    pub engine: EngineChoice,
    pub direct: DirectIo,
    pub helpers: Helpers,
    /// Whether calls of the system fail.
    pub trouble: bool,
    /// Whether the states are those of the fixtures.
    pub fixtures: bool,
}

impl Plan {
    /// One of the ways to run, by chance.
    pub fn by_chance(directory: &Path, seed: u64, dice: &mut Dice) -> Self {
        Self {
            directory: directory.to_owned(),
            seed,
            attempt: dice.next(),
            until: u64::MAX,
            engine: [EngineChoice::Threads, EngineChoice::Auto][dice.below(2) as usize],
            direct: [DirectIo::Auto, DirectIo::Off][dice.below(2) as usize],
            helpers: [Helpers::Thread, Helpers::Inline][dice.below(2) as usize],
            trouble: false,
            fixtures: seed.is_multiple_of(2),
        }
    }

    pub fn builder(&self) -> StoreBuilder {
        let Self { engine, direct, helpers, .. } = *self;
        Store::builder(&self.directory)
            .io(IoOptions { engine, direct, threads: 3, ..IoOptions::default() })
            .clock(Arc::new(Standing))
            .memory(4 * MIB)
            .max_value(KIB)
            .helpers(helpers)
            .space_amplification(1.1)
            .retain(RETAINED)
    }

    fn text(&self) -> String {
        let Self { seed, attempt, until, engine, direct, helpers, trouble, fixtures, .. } = self;
        let parts =
            (seed, attempt, until, engine, direct, helpers, trouble, fixtures, &self.directory);
        serde_json::to_string(&parts).unwrap()
    }

    fn of_text(text: &str) -> Self {
        let (seed, attempt, until, engine, direct, helpers, trouble, fixtures, directory) =
            serde_json::from_str(text).unwrap();
        Self { directory, seed, attempt, until, engine, direct, helpers, trouble, fixtures }
    }

    /// A child that follows it; `prepare` changes the command.
    pub fn spawn(&self, prepare: impl FnOnce(&mut Command)) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "children::a_child_does_its_job", "--ignored", "--nocapture"])
            .env(VARIABLE, self.text())
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let mut stderr = child.stderr.take().expect("piped");
        let words = std::thread::spawn(move || {
            let mut words = Vec::new();
            let _ = stderr.read_to_end(&mut words);
            String::from_utf8_lossy(&words).into_owned()
        });
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Running { child, lines, words }
    }
}

/// What jobs of a seed should hold, of whichever states they have.
pub enum Expected {
    Everything(Box<Replay<Everything>>),
    Fixtures(Box<Replay<Fixtures>>),
}

impl Expected {
    pub fn of(seed: u64) -> Self {
        match seed.is_multiple_of(2) {
            true => Self::Fixtures(Box::new(Replay::of(seed))),
            false => Self::Everything(Box::new(Replay::of(seed))),
        }
    }

    /// As [`Found::check`].
    pub fn check(&mut self, found: &mut Found, plan: &Plan, dice: &mut Dice, when: &str) -> u64 {
        match self {
            Self::Everything(replay) => found.check(|| plan.builder(), replay, dice, when),
            Self::Fixtures(replay) => found.check(|| plan.builder(), replay, dice, when),
        }
    }
}

/// What a child says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Opened,
    Told(Told),
    /// Its job is done; so many errors were lived through.
    Done(u64),
    /// It has ended by an error.
    Failed(String),
}

impl Line {
    fn text(&self) -> String {
        let words = match self {
            Line::Opened => "opened".to_owned(),
            Line::Told(Told::Confirming(number, position)) => {
                format!("confirming {number} {position}")
            }
            Line::Told(Told::Confirmed(number, position)) => {
                format!("confirmed {number} {position}")
            }
            Line::Done(met) => format!("done {met}"),
            Line::Failed(error) => format!("failed {error}"),
        };
        format!("\n{MARK}{words}")
    }

    /// What is in a line of the child's, which may be cut short by its end.
    fn of_text(text: &str) -> Option<Self> {
        let words = text.split_once(MARK)?.1;
        let (first, rest) = words.split_once(' ').unwrap_or((words, ""));
        let numbers = || {
            let (number, position) = rest.split_once(' ')?;
            Some((number.parse().ok()?, position.parse().ok()?))
        };
        match first {
            "opened" => Some(Line::Opened),
            "confirming" => numbers().map(|(n, at)| Line::Told(Told::Confirming(n, at))),
            "confirmed" => numbers().map(|(n, at)| Line::Told(Told::Confirmed(n, at))),
            "done" => rest.parse().ok().map(Line::Done),
            "failed" => Some(Line::Failed(rest.to_owned())),
            _ => None,
        }
    }
}

/// A child at work.
pub struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    words: std::thread::JoinHandle<String>,
}

impl Running {
    /// The next line that it says; `None` once it has ended.
    pub fn line(&mut self) -> Option<Line> {
        loop {
            let mut bytes = Vec::new();
            let read = self.lines.read_until(b'\n', &mut bytes).unwrap();
            if read == 0 {
                return None;
            }
            // What is not ended was cut off, and may lack digits.
            if let (Some(b'\n'), Ok(text)) = (bytes.last(), std::str::from_utf8(&bytes))
                && let Some(line) = Line::of_text(text.trim_end())
            {
                return Some(line);
            }
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// How it ended, and all that it wrote to the error stream.
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        (status, self.words.join().expect("it only reads"))
    }
}

/// Not a test: the other side of [`Plan::spawn`].
#[test]
#[ignore = "a child of other tests"]
fn a_child_does_its_job() {
    let Ok(text) = std::env::var(VARIABLE) else { return };
    let plan = Plan::of_text(&text);
    match plan.fixtures {
        true => follow::<Fixtures>(&plan),
        false => follow::<Everything>(&plan),
    }
}

fn follow<S: Subject>(plan: &Plan) {
    let say = |line: Line| println!("{}", line.text());
    let mut replay = Replay::<S>::of(plan.seed);
    let trouble = if plan.trouble { Trouble::outside() } else { Trouble::none() };
    let mut dice = Dice(plan.attempt);
    let job = Job::open(plan.seed, || plan.builder(), trouble, &mut replay);
    let mut job = match job {
        Ok(job) => job,
        Err(error) => return say(Line::Failed(format!("{:?} {error}", error.kind()))),
    };
    say(Line::Opened);
    match job.run(&mut dice, plan.until, &mut |told| say(Line::Told(told))) {
        Ok(()) => say(Line::Done(job.met())),
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::Corrupt, "{error:?}");
            say(Line::Failed(format!("{:?} {error}", error.kind())));
        }
    }
}
