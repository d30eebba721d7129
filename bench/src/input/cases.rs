//! Nexmark cases with known answers: JSON lines of inserts and of the change each must cause.
//!
//! Support for tests. The files are kept beside the repository; see [`shared_dir`]. A line is one
//! step of a case; the steps of a case are consecutive.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::columns::{self, Table};
use super::timestamp::parse_time;
use crate::nexmark::Event;
use alluvium::Time;

use crate::{Error, Result};

/// Inputs in steps, each with the change of the result it must cause.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its number in the file.
    pub number: u64,
    /// In order.
    pub steps: Vec<CaseStep>,
}

/// Rows that arrive together.
#[derive(Clone, Debug)]
pub struct CaseStep {
    /// What arrives, in order.
    pub inserts: Vec<Insert>,
    /// The result's column names.
    pub columns: Vec<String>,
    /// How the result changes.
    pub delta: Vec<Delta>,
}

/// A row of a table or of the query's side input.
#[derive(Clone, Debug)]
pub enum Insert {
    /// A row of the three tables.
    Event(Event),
    /// A row of the side input of q13.
    SideInput(SideInput),
}

/// A row of the side input of q13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideInput {
    /// When it became valid.
    pub date_time: Time,
    /// Looked up by.
    pub key: u64,
    /// What is found.
    pub value: i64,
}

/// A row of a result as text; `None` is NULL.
pub type ResultRow = Vec<Option<String>>;

/// A row of a result and how many more (or fewer) times it occurs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Delta(pub ResultRow, pub i64);

#[derive(Deserialize)]
struct Line {
    case: u64,
    insert: Vec<(String, Vec<Value>)>,
    columns: Vec<String>,
    delta: Vec<Delta>,
}

/// The directory of shared data: `$ALLUVIUM_SHARED`, or `../shared` beside the repository.
/// `None`, with a line on the standard error that says what is skipped, if it is not there.
pub fn shared_dir(needed_for: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let dir = std::env::var_os("ALLUVIUM_SHARED").map_or_else(beside, PathBuf::from);
    if dir.join("data").is_dir() {
        return Some(dir);
    }
    eprintln!("skipped: {needed_for} needs {}, which is not there", dir.join("data").display());
    None
}

/// The cases of the file at `path`.
///
/// # Errors
/// Names file and line of what is not a step.
pub fn read_cases(path: &Path) -> Result<Vec<Case>> {
    let text = fs::read_to_string(path).map_err(|source| Error::io(path, "read", source))?;
    let mut cases: Vec<Case> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let fault = |message: String| Error::in_column(path, index as u64 + 1, None, message);
        let Line { case: number, insert, columns, delta } =
            serde_json::from_str(line).map_err(|error| fault(error.to_string()))?;
        let inserts = insert.iter().map(|(table, row)| parse_insert(table, row));
        let inserts = inserts.collect::<std::result::Result<_, String>>().map_err(fault)?;
        if cases.last().is_none_or(|case| case.number != number) {
            cases.push(Case { number, steps: Vec::new() });
        }
        if let Some(case) = cases.last_mut() {
            case.steps.push(CaseStep { inserts, columns, delta });
        }
    }
    Ok(cases)
}

fn parse_insert(table: &str, row: &[Value]) -> std::result::Result<Insert, String> {
    let (table, times): (_, &[usize]) = match table {
        "person" => (Table::Person, &[6]),
        "auction" => (Table::Auction, &[5, 6]),
        "bid" => (Table::Bid, &[5]),
        "side_input" => return side_input(row),
        other => return Err(format!("no table {other:?}")),
    };
    let width = table.columns().len();
    if row.len() != width {
        return Err(format!("{} fields for {}, which has {width}", row.len(), table.file_name()));
    }
    let mut fields: Vec<String> = row.iter().map(shown).collect();
    for &column in times {
        fields[column] = parse_time(&fields[column])?.as_ms().to_string();
    }
    columns::event(table, |column| &fields[column])
        .map(Insert::Event)
        .map_err(|fault| format!("{}: {}", table.columns()[fault.column], fault.message))
}

fn side_input(row: &[Value]) -> std::result::Result<Insert, String> {
    let fields: Vec<String> = row.iter().map(shown).collect();
    let [time, key, value] = &fields[..] else {
        return Err(format!("{} fields for side_input, which has 3", row.len()));
    };
    let number = |error: std::num::ParseIntError| error.to_string();
    Ok(Insert::SideInput(SideInput {
        date_time: parse_time(time)?,
        key: key.parse().map_err(number)?,
        value: value.parse().map_err(number)?,
    }))
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shared_cases_are_read() {
        let Some(shared) = shared_dir("all_shared_cases_are_read") else { return };
        let (mut cases, mut steps) = (0, 0);
        for entry in fs::read_dir(shared.join("data/nexmark-cases")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                let read = read_cases(&path).unwrap();
                cases += read.len();
                steps += read.iter().map(|case| case.steps.len()).sum::<usize>();
            }
        }
        assert_eq!((cases, steps), (38, 77));
    }

    #[test]
    fn a_broken_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q.jsonl");
        let step = r#"{"case":0,"step":0,"insert":[["bid",[1]]],"columns":[],"delta":[]}"#;
        fs::write(&path, step).unwrap();
        let message = read_cases(&path).unwrap_err().to_string();
        assert!(message.contains("q.jsonl: line 1: 1 fields for bid.csv"), "{message}");
    }
}
