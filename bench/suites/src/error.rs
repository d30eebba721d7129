//! What goes wrong in a suite, in words.

use std::fmt;
use std::path::Path;

/// A result of a suite.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a suite could not be run or fails.
#[derive(Debug)]
pub enum Error {
    /// Said in words: an option, a file, a program that is not there.
    Words(String),
    /// Answers differ. The report names the cells.
    Wrong(String),
    /// A signal ended the suite. The report has what was measured before.
    Interrupted,
}

impl Error {
    /// An error with these words.
    pub fn new(words: impl Into<String>) -> Self {
        Error::Words(words.into())
    }

    /// An error of the system on `path`.
    pub fn io(path: &Path, action: &str, source: &std::io::Error) -> Self {
        Error::Words(format!("cannot {action} {}: {source}", path.display()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Words(words) | Error::Wrong(words) => f.write_str(words),
            Error::Interrupted => f.write_str(
                "interrupted; the report has what was measured, and the same command goes on",
            ),
        }
    }
}

impl std::error::Error for Error {}
