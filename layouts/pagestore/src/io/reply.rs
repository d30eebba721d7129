//! Where the end of a request goes.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::{Completion, Waker};

/// A channel with room for the completion (else the engine waits), and who is to be woken when it
/// is there.
#[derive(Clone, Debug)]
pub struct Reply {
    channel: Sender<Completion>,
    waker: Option<Arc<Waker>>,
}

impl Reply {
    /// Also wakes `waker` after each completion.
    #[must_use]
    pub fn waking(mut self, waker: Arc<Waker>) -> Self {
        self.waker = Some(waker);
        self
    }

    /// Sends the completion. A receiver that is gone is no error.
    pub fn send(&self, completion: Completion) {
        let _ = self.channel.send(completion);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

impl From<Sender<Completion>> for Reply {
    fn from(channel: Sender<Completion>) -> Self {
        Self { channel, waker: None }
    }
}
