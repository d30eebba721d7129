//! What can go wrong in a workload: its arguments, its files, the programs and stores it runs, and answers that
//! differ from the model's.
//!
//! Every message names the file, and the line and column where there is one, so that the person
//! who gave the input can repair it without reading code.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use alluvium::ErrorKind;

/// A result of a workload.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a workload could not be prepared, read or reported, or why it failed.
#[derive(Debug)]
pub enum Error {
    /// An option or a size makes no sense; the message says which values do.
    Usage(String),
    /// Reading or writing `path` failed. Repair the cause and run again.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done to it.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// An input file says something that is not part of its format. Nothing after it was read.
    Input {
        /// The file.
        path: PathBuf,
        /// The line, from 1, where the offending row begins.
        line: u64,
        /// The column's name, where one column is to blame.
        column: Option<String>,
        /// What was found and what was expected.
        message: String,
    },
    /// A program that a workload runs, such as `git`, failed; the message has its own words.
    Command(String),
    /// Answers are not the right ones, or a trace broke its grammar; the message says how and where.
    Wrong(String),
    /// Our store refused or failed.
    Store(alluvium::Error),
    /// Another store failed, in its words.
    Engine(String),
}

impl Error {
    /// An error of the system on `path`.
    pub fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Error::Io { path: path.to_owned(), action, source }
    }

    /// An error in a line of an input file.
    pub fn input(path: &Path, line: u64, message: impl Into<String>) -> Self {
        Error::in_column(path, line, None, message)
    }

    /// The same, and in a column if one is to blame.
    pub fn in_column(
        path: &Path,
        line: u64,
        column: Option<&str>,
        message: impl Into<String>,
    ) -> Self {
        Error::Input {
            path: path.to_owned(),
            line,
            column: column.map(str::to_owned),
            message: message.into(),
        }
    }

    /// Another store's error, in its words.
    pub fn engine(error: impl fmt::Display) -> Self {
        Error::Engine(error.to_string())
    }
}

impl From<alluvium::Error> for Error {
    fn from(error: alluvium::Error) -> Self {
        Error::Store(error)
    }
}

impl From<Error> for alluvium::Error {
    /// The error of a worker, as its group takes it: in the same words.
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Store(error) => return error,
            Error::Usage(_) => ErrorKind::Config,
            Error::Io { .. } => ErrorKind::Io,
            Error::Input { .. } | Error::Wrong(_) => ErrorKind::Input,
            Error::Command(_) | Error::Engine(_) => ErrorKind::Unsupported,
        };
        alluvium::Error::new(kind, error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message)
            | Error::Command(message)
            | Error::Wrong(message)
            | Error::Engine(message) => f.write_str(message),
            Error::Store(error) => error.fmt(f),
            Error::Io { path, action, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
            Error::Input { path, line, column: Some(column), message } => {
                write!(f, "{}: line {line}, column {column}: {message}", path.display())
            }
            Error::Input { path, line, column: None, message } => {
                write!(f, "{}: line {line}: {message}", path.display())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Store(error) => error.source(),
            _ => None,
        }
    }
}
