//! A cell of a suite: one program that runs once, and what came of it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a cell's directory goes in its arguments.
pub const DIRECTORY: &str = "{dir}";

/// In a cell's directory: an address a line for each of its processes.
pub const HOSTS: &str = "hosts";

/// One run of a program, in a directory of its own.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The experiment, such as `q4`.
    pub row: String,
    /// What it runs on, such as `heap`.
    pub column: String,
    /// The program; `None` with the reason if it cannot be run.
    pub program: Result<PathBuf, String>,
    /// Its arguments; [`DIRECTORY`] in them becomes the cell's directory.
    pub arguments: Vec<String>,
    /// Arguments of further processes of the program, which run at the same time. They find each other by
    /// a list of addresses in the file [`HOSTS`].
    pub beside: Vec<Vec<String>>,
    /// Where the program writes its figures as JSON; it prints them unless given.
    pub figures: Option<String>,
}

impl Cell {
    /// The command as a person would write it, which also says which cell this is.
    pub fn command(&self) -> String {
        let name = |path: &PathBuf| {
            path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        };
        let program = self.program.as_ref().map_or_else(|_| "missing".to_owned(), name);
        let arguments = self.arguments.join(" ");
        format!("{program} {arguments}")
    }
}

/// What came of a run of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The experiment.
    pub row: String,
    /// What it ran on.
    pub column: String,
    /// Which round, from 1.
    pub round: usize,
    /// The command.
    pub command: String,
    /// How long the process ran.
    pub seconds: f64,
    /// What the program said of itself, if it ended well.
    pub figures: Option<Value>,
    /// Why there are no figures.
    pub why: Option<String>,
}

impl Outcome {
    /// The points of a latency curve in the figures, at a path such as `latencies.event.ccdf`, as milliseconds
    /// and the share of events that took at least as long.
    pub fn curve(&self, path: &str) -> Vec<(f64, f64)> {
        let Some(Value::Array(points)) = self.at(path) else { return Vec::new() };
        let point = |point: &Value| Some((point.get(0)?.as_f64()? / 1e6, point.get(1)?.as_f64()?));
        points.iter().filter_map(point).collect()
    }

    /// Whether the figures say `true`.
    pub fn says(&self, name: &str) -> bool {
        self.at(name).and_then(Value::as_bool).unwrap_or(false)
    }

    fn at(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(self.figures.as_ref()?, |value, name| value.get(name))
    }

    /// A number of the figures, such as `memory.peak_rss`.
    pub fn number(&self, path: &str) -> Option<f64> {
        self.at(path)?.as_f64()
    }

    /// A text of the figures.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.figures.as_ref()?.get(name)?.as_str()
    }
}
