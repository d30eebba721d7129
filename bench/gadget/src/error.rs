//! What can go wrong: arguments, input files, an engine, and answers that differ from the model's.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a run could not be prepared, or why it failed.
#[derive(Debug)]
pub enum Error {
    /// An option makes no sense; the message says which values do.
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
    /// A line of an input file is not what the options say it is.
    Input {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What was found and what was expected.
        message: String,
    },
    /// An engine returned a wrong value, or a trace broke its grammar; the message names the access.
    Wrong(String),
    /// The engine failed.
    Engine(String),
}

impl Error {
    /// An error of the system on `path`.
    pub fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Error::Io { path: path.to_owned(), action, source }
    }

    pub(crate) fn input(path: &Path, line: u64, message: impl Into<String>) -> Self {
        Error::Input { path: path.to_owned(), line, message: message.into() }
    }

    /// An engine's own error, in its words.
    pub fn engine(error: impl fmt::Display) -> Self {
        Error::Engine(error.to_string())
    }
}

impl From<alluvium::Error> for Error {
    fn from(error: alluvium::Error) -> Self {
        Error::Engine(error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message) | Error::Wrong(message) | Error::Engine(message) => {
                f.write_str(message)
            }
            Error::Io { path, action, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
            Error::Input { path, line, message } => {
                write!(f, "{}: line {line}: {message}", path.display())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
