//! The one error type of Alluvium.
//!
//! An [`Error`] has a [`ErrorKind`] to branch on, a sentence for people, context (state, file,
//! offset, key group, …) and the error that caused it. Bad input, a full disk and damaged bytes
//! are errors; a broken invariant of ours is a panic with the numbers in it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::out_of_line_unsafe::{DroppedHere, drop_here};

/// Result with Alluvium's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Kind of an [`Error`]: what went wrong, and what the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option has an impossible value. The message names the option and the limit that it
    /// misses. Change the configuration.
    Config,
    /// The budget cannot hold what this call needs; the message names both numbers. The call
    /// changed nothing. Raise the budget or store less.
    OverBudget,
    /// Data on its way to storage fills the memory, and storage does not keep up. The call changed
    /// nothing. Try again later.
    Backpressure,
    /// A value is larger than the configured limit. The call changed nothing.
    ValueTooLarge,
    /// The store has no state of this name.
    UnknownState,
    /// The state has a handle already, one of its closures has called it, a value of it is
    /// borrowed, or the key's group is moving to another store.
    InUse,
    /// Stored types, layouts or key groups differ from the requested ones. The message names both.
    Mismatch,
    /// This build cannot read the format version of the file.
    FormatVersion,
    /// Bytes differ from what was written. They are never served. Restore from a checkpoint.
    Corrupt,
    /// A required file does not exist.
    Missing,
    /// Another process or store holds the directory.
    Locked,
    /// A change of the state has overtaken the checkpoint: the state was cleared; or it changed,
    /// and its old contents could not be kept, since memory was short or storage too slow. State
    /// and older checkpoints are intact. Start the checkpoint again.
    Overtaken,
    /// The device is full. Earlier writes are safe. The error clears when space returns.
    DiskFull,
    /// The process or the system has no file descriptor left. The message has the limit: raise it,
    /// or close files. The call changed nothing.
    Descriptors,
    /// The device or the operating system refused an operation.
    Io,
    /// A user closure panicked in this state: reads and writes continue, but checkpoints fail until
    /// the poison is cleared. Or a key or value panicked while its page was encoded: it stays in
    /// memory, and calls that need it on storage fail until it changes.
    Poisoned,
    /// The user's input is malformed; the message says where.
    Input,
    /// The layout or machine cannot do this.
    Unsupported,
    /// A worker panicked; the message has its text. The run has ended on all workers of all
    /// processes. Repair the cause and start again from the last checkpoint.
    Panicked,
    /// Another process of the group did not connect, or disconnected before its end; the message
    /// names it. The run has ended. Start all processes again.
    PeerLost,
}

/// An error with kind, message, context and source. `{}` prints one line; `{:?}` prints the context
/// on lines of their own.
///
/// ```
/// use alluvium_pagestore::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::Config, "memory is 0").with("option", "memory");
/// assert_eq!(error.kind(), ErrorKind::Config);
/// assert_eq!(error.context("option"), Some("memory"));
/// println!("{error}");
/// ```
pub struct Error(DroppedHere<Box<ErrorDetails>>);

struct ErrorDetails {
    kind: ErrorKind,
    message: String,
    context: Vec<(&'static str, String)>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

drop_here!(Box<ErrorDetails>);

impl Error {
    /// Makes an error without context.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::of(kind, message.into())
    }

    #[cold]
    fn of(kind: ErrorKind, message: String) -> Self {
        Self(DroppedHere::new(Box::new(ErrorDetails {
            kind,
            message,
            context: Vec::new(),
            source: None,
        })))
    }

    /// Adds a piece of context, such as `("file", "seg-3")`. Keeps an equal name that is there:
    /// several callers may add the same.
    #[must_use]
    pub fn with(self, name: &'static str, value: impl fmt::Display) -> Self {
        self.with_piece((name, value.to_string()))
    }

    #[cold]
    fn with_piece(mut self, piece: (&'static str, String)) -> Self {
        if !self.0.context.contains(&piece) {
            self.0.context.push(piece);
        }
        self
    }

    /// Sets the error that caused this one.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message without context.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the value of one piece of context.
    pub fn context(&self, name: &str) -> Option<&str> {
        self.0.context.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str())
    }

    /// Makes an error of the operating system while doing `what` to `file`. A full device becomes
    /// [`ErrorKind::DiskFull`], an absent file [`ErrorKind::Missing`], a lack of descriptors
    /// [`ErrorKind::Descriptors`].
    pub fn io(what: &str, file: impl fmt::Display, source: std::io::Error) -> Self {
        let kind = match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => ErrorKind::DiskFull,
            Some(code @ (libc::EMFILE | libc::ENFILE)) => {
                let message = format!("cannot {what}: {}", lack_of_descriptors(code));
                return Self::new(ErrorKind::Descriptors, message).with("file", file);
            }
            _ if source.kind() == std::io::ErrorKind::StorageFull => ErrorKind::DiskFull,
            _ if source.kind() == std::io::ErrorKind::NotFound => ErrorKind::Missing,
            _ => ErrorKind::Io,
        };
        Self::new(kind, format!("cannot {what}")).with("file", file).caused_by(source)
    }
}

/// Which limit of open files is reached, and what to do.
fn lack_of_descriptors(code: i32) -> String {
    if code == libc::ENFILE {
        return "the system has no file descriptors left; raise its limit (sysctl fs.file-max), or \
                close files of other processes"
            .into();
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let words = |limit: Option<u64>| limit.map_or("unlimited".into(), |limit| limit.to_string());
    format!(
        "all {} file descriptors of this process are in use; raise the limit (ulimit -n, at most {} \
         without privileges) before it starts",
        words(limit.current),
        words(limit.maximum)
    )
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        for (i, (name, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{name} {value}", if i == 0 { " (" } else { ", " })?;
        }
        if !self.0.context.is_empty() {
            f.write_str(")")?;
        }
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)?;
        for (name, value) in &self.0.context {
            write!(f, "\n  {name}: {value}")?;
        }
        match &self.0.source {
            Some(source) => write!(f, "\n  caused by: {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

/// An error together with the argument that the call did not take. `?` converts it into its
/// [`Error`].
///
/// ```
/// use alluvium_pagestore::{Error, ErrorKind, Rejected};
///
/// fn put(value: String) -> Result<(), Rejected<String>> {
///     Err(Rejected::new(Error::new(ErrorKind::OverBudget, "no room"), value))
/// }
/// let rejected = put("tea".to_owned()).unwrap_err();
/// assert_eq!(rejected.value, "tea");
/// ```
pub struct Rejected<T> {
    /// Why the call was refused.
    pub error: Error,
    /// The caller's argument.
    pub value: T,
}

impl<T> Rejected<T> {
    /// Pairs `error` with the returned argument.
    pub fn new(error: Error, value: T) -> Self {
        Self { error, value }
    }
}

impl<T> fmt::Debug for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Rejected<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Rejected<T>> for Error {
    fn from(rejected: Rejected<T>) -> Self {
        rejected.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All kinds; a new one does not compile until it is here.
    macro_rules! kinds {
        ($($kind:ident),* $(,)?) => {{
            let known = |kind| match kind { $(ErrorKind::$kind => stringify!($kind)),* };
            [$(known(ErrorKind::$kind)),*]
        }};
    }

    /// Neither `Debug` nor an error itself.
    struct Argument;

    #[test]
    fn what_is_rejected_is_an_error_like_the_one_it_has() {
        fn refuse() -> std::result::Result<(), Box<dyn std::error::Error>> {
            let cause = std::io::Error::other("the cause");
            let error = Error::new(ErrorKind::OverBudget, "no room").with("state", "a");
            Err(Rejected::new(error.caused_by(cause), Argument))?
        }
        let error = refuse().unwrap_err();
        assert_eq!(error.to_string(), "no room (state a): the cause");
        assert_eq!(error.source().unwrap().to_string(), "the cause");
        assert!(format!("{error:?}").contains("no room"));
    }

    #[test]
    fn a_piece_of_context_is_said_once() {
        let error = Error::new(ErrorKind::OverBudget, "short").with("state", "a");
        let error = error.with("file", "a").with("state", "a").with("state", "b");
        assert_eq!(error.to_string(), "short (state a, file a, state b)");
        assert_eq!(error.context("state"), Some("a"));
    }

    #[test]
    fn the_book_says_what_to_do_about_every_kind() {
        let chapter = include_str!("../../../docs/src/errors.md");
        for kind in kinds!(
            Config,
            OverBudget,
            Backpressure,
            ValueTooLarge,
            UnknownState,
            InUse,
            Mismatch,
            FormatVersion,
            Corrupt,
            Missing,
            Locked,
            Overtaken,
            DiskFull,
            Descriptors,
            Io,
            Poisoned,
            Input,
            Unsupported,
            Panicked,
            PeerLost,
        ) {
            let rows = chapter.lines().filter(|line| line.starts_with(&format!("| `{kind}` |")));
            assert_eq!(rows.count(), 1, "{kind}");
        }
    }

    #[test]
    fn a_lack_of_descriptors_names_the_limit_and_the_remedy() {
        let error = |code| Error::io("open", "seg-1", std::io::Error::from_raw_os_error(code));
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
        let (own, of_system) = (error(libc::EMFILE), error(libc::ENFILE));
        assert_eq!(
            (own.kind(), of_system.kind()),
            (ErrorKind::Descriptors, ErrorKind::Descriptors)
        );
        assert!(own.message().contains(&format!("all {limit} file")), "{own}");
        assert!(own.message().contains("ulimit -n"), "{own}");
        assert!(of_system.message().contains("fs.file-max"), "{of_system}");
        assert_eq!(own.context("file"), Some("seg-1"));
    }

    #[test]
    fn one_line_and_many_lines_tell_the_same() {
        let e = Error::io("write", "seg-1", std::io::Error::from_raw_os_error(libc::ENOSPC))
            .with("offset", 4096);
        assert_eq!(e.kind(), ErrorKind::DiskFull);
        assert_eq!(e.context("offset"), Some("4096"));
        assert!(e.to_string().starts_with("cannot write (file seg-1, offset 4096): "));
        assert!(format!("{e:?}").contains("\n  offset: 4096\n  caused by: "));
    }
}
