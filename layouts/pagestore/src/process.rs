//! The process that something belongs to.
//!
//! A forked child has copies of its parent's store, without the parent's threads. What it keeps
//! true: the child neither changes files nor lets go of the lock, and waits for no thread.

use crate::{Error, ErrorKind, Result};

/// A process, by its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessId(u32);

impl ProcessId {
    /// The process that calls.
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether it is the one that calls; a child that it forked is not. Cost: a system call.
    pub(crate) fn is_this(self) -> bool {
        self.0 == std::process::id()
    }

    /// # Errors
    /// [`ErrorKind::Unsupported`] if the one that calls is another.
    pub(crate) fn check(self) -> Result<()> {
        if self.is_this() {
            return Ok(());
        }
        let message =
            format!("the directory was opened by process {}, which forked this one", self.0);
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}
