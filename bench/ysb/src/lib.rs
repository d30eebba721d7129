//! The Yahoo streaming benchmark in Timely: filter, project, join ads to campaigns, count views by campaign
//! and window of 10 s, store the results in Redis. The table of ads is in the process, in Redis on the same
//! host, or in Redis behind an injected delay.
//!
//! One command runs all placements, checks each answer against a recount and writes one report:
//! `alluvium-ysb suite --out report`.

#![forbid(unsafe_code)]

pub mod cell;
pub mod event;
pub mod job;
pub mod oracle;
pub mod proxy;
pub mod report;
pub mod server;
pub mod sink;
pub mod suite;

use std::fmt;

/// What went wrong, in words.
#[derive(Debug)]
pub struct Error(String);

/// Of this program.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with these words.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

macro_rules! from {
    ($($error:ty: $what:literal),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self(format!(concat!($what, "{}"), error))
            }
        }
    )*};
}

from!(std::io::Error: "", redis::RedisError: "Redis: ", alluvium::Error: "", serde_json::Error: "JSON: ");
