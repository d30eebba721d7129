//! Where the completion of a request goes.

use std::sync::Arc;

use crate::channel::Sender;

use super::{Completion, Waker};

/// A channel for the completion, and optionally a waker to call afterwards.
#[derive(Clone, Debug)]
pub struct Reply {
    channel: Sender<Completion>,
    waker: Option<Arc<Waker>>,
}

impl Reply {
    /// Wakes `waker` after each completion.
    #[must_use]
    pub fn waking(mut self, waker: Arc<Waker>) -> Self {
        self.waker = Some(waker);
        self
    }

    /// Sends the completion. Succeeds if the receiver is gone.
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
