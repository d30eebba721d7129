//! Mailboxes: a helper's jobs answer the owner of a state through them.
//!
//! The channel underneath carries boxed messages of any type, and its code is compiled once for all
//! state types. A message costs one allocation on the sending thread. Messages are sent per page or
//! per checkpoint, never per record.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use crate::channel::{Receiver, Sender, unbounded};
pub use crate::channel::{RecvTimeoutError, TryRecvError};

type BoxedMessage = Box<dyn Any + Send>;

/// Creates a mailbox and the handle that posts to it.
pub fn mailbox<T: Send + 'static>() -> (Post<T>, Mailbox<T>) {
    let (sender, receiver) = channel();
    (Post { sender, of: PhantomData }, Mailbox { receiver, of: PhantomData })
}

#[inline(never)]
fn channel() -> (Sender<BoxedMessage>, Receiver<BoxedMessage>) {
    unbounded()
}

/// Posts messages to a [`Mailbox`]. Clones post to the same one.
pub struct Post<T> {
    sender: Sender<BoxedMessage>,
    of: PhantomData<fn(T)>,
}

impl<T: Send + 'static> Post<T> {
    /// Posts a message. Drops it if the mailbox is gone.
    pub fn send(&self, message: T) {
        send(&self.sender, Box::new(message));
    }
}

#[inline(never)]
fn send(sender: &Sender<BoxedMessage>, message: BoxedMessage) {
    let _ = sender.send(message);
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), of: PhantomData }
    }
}

impl<T> fmt::Debug for Post<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Post")
    }
}

/// Receives the messages of its [`Post`]s, in order.
pub struct Mailbox<T> {
    receiver: Receiver<BoxedMessage>,
    of: PhantomData<fn() -> T>,
}

impl<T: 'static> Mailbox<T> {
    /// Takes the next message, without waiting.
    ///
    /// # Errors
    /// `Empty` if there is none yet. `Disconnected` if there is none and every post is gone, for
    /// instance because the job panicked.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        try_recv(&self.receiver).map(unboxed)
    }

    /// Takes the next message, and waits for it up to `timeout`.
    ///
    /// # Errors
    /// `Timeout` if none came; `Disconnected` as in [`try_recv`](Mailbox::try_recv).
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        recv_timeout(&self.receiver, timeout).map(unboxed)
    }
}

impl<T> Mailbox<T> {
    /// Returns whether there is no message now.
    pub fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mailbox")
    }
}

#[inline(never)]
fn try_recv(receiver: &Receiver<BoxedMessage>) -> Result<BoxedMessage, TryRecvError> {
    receiver.try_recv()
}

#[inline(never)]
fn recv_timeout(
    receiver: &Receiver<BoxedMessage>,
    timeout: Duration,
) -> Result<BoxedMessage, RecvTimeoutError> {
    receiver.recv_timeout(timeout)
}

fn unboxed<T: 'static>(message: BoxedMessage) -> T {
    *message.downcast().expect("a mailbox has messages of its own type only")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_order_and_the_end_of_all_posts_is_told() {
        let (post, mailbox) = mailbox();
        assert!(mailbox.is_empty());
        assert_eq!(mailbox.try_recv(), Err(TryRecvError::Empty));
        let other = post.clone();
        post.send("first".to_owned());
        other.send("second".to_owned());
        drop((post, other));
        assert!(!mailbox.is_empty());
        assert_eq!(mailbox.try_recv().as_deref(), Ok("first"));
        assert_eq!(mailbox.recv_timeout(Duration::ZERO).as_deref(), Ok("second"));
        assert_eq!(mailbox.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn a_message_that_nobody_receives_is_dropped() {
        let (post, mailbox) = mailbox();
        let message = std::sync::Arc::new(());
        post.send(message.clone());
        drop(mailbox);
        post.send(message.clone());
        assert_eq!(std::sync::Arc::strong_count(&message), 1);
    }
}
