//! Work that a store's helper does while the worker goes on, and its answer.

use std::fmt;

use alluvium_pagestore::mailbox::{Mailbox, TryRecvError, mailbox};
use alluvium_pagestore::{Error, ErrorKind, Result};

use crate::store::Store;

/// A job that was given to a store's helper. Dropped, it is done all the same, unless the helper has
/// no threads and nobody asks.
pub struct Aside<R> {
    store: Store,
    answer: Mailbox<Result<R>>,
    what: &'static str,
}

impl Store {
    /// Has the helper do `job`, after what was given to it before; `what` names what is lost with a
    /// job that panics. The last handle of the store that goes waits until it is done. For whoever
    /// commits the checkpoints of several stores as one.
    #[doc(hidden)]
    pub fn aside<R: Send + 'static>(
        &self,
        what: &'static str,
        job: impl FnOnce() -> Result<R> + Send + 'static,
    ) -> Aside<R> {
        let (reply, answer) = mailbox();
        self.0.helper.submit(move || {
            // Who does not wait for the answer does not need it.
            reply.send(job());
        });
        Aside { store: self.clone(), answer, what }
    }
}

impl<R: 'static> Aside<R> {
    /// What came of it, once; `None` until it is done. A helper without threads works in here. Cheap
    /// otherwise.
    pub fn poll(&self) -> Option<Result<R>> {
        self.store.0.drive();
        match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                let message = format!("the helper lost {}", self.what);
                Some(Err(Error::new(ErrorKind::Io, message)))
            }
        }
    }
}

impl<R> fmt::Debug for Aside<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aside({})", self.what)
    }
}
