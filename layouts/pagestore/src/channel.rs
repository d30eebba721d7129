//! Channels between threads: receivers take messages in the order in which senders sent them.
//!
//! Messages are in a queue under a lock. Beside it is a channel of tokens, one for each message: that
//! waits, wakes and tells who is gone. So crossbeam's channels are compiled once, and not for each
//! type of messages, which took 20 KB a time. Messages are sent per request, page or checkpoint, never
//! per record.
//!
//! Invariants: a message is in the queue before its token is sent, so who takes a token finds one. The
//! queue stays empty once the last receiver is gone. No message is dropped under the lock.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use crossbeam_channel::{RecvError, RecvTimeoutError, TryRecvError};

use crate::out_of_line_unsafe::{DroppedHere, drop_here};

/// An empty queue keeps room for this many messages at most.
const KEPT_ROOM: usize = 64;

// What is compiled in each crate that uses a channel stays small: tokens are dropped by a function of this
// crate, and the functions below are not inlined.
type TokenSender = DroppedHere<crossbeam_channel::Sender<()>>;
type TokenReceiver = DroppedHere<crossbeam_channel::Receiver<()>>;
drop_here!(crossbeam_channel::Sender<()>);
drop_here!(crossbeam_channel::Receiver<()>);

/// Creates a channel. Sending never waits.
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = token_channel();
    let queue = Arc::new(Queue { messages: Mutex::default(), receivers: AtomicUsize::new(1) });
    (Sender { queue: queue.clone(), tokens: sender }, Receiver { queue, tokens: Some(receiver) })
}

#[inline(never)]
fn token_channel() -> (TokenSender, TokenReceiver) {
    let (sender, receiver) = crossbeam_channel::unbounded();
    (DroppedHere::new(sender), DroppedHere::new(receiver))
}

#[inline(never)]
fn send_token(to: &TokenSender) -> bool {
    to.send(()).is_ok()
}

#[inline(never)]
fn try_token(from: &TokenReceiver) -> Result<(), TryRecvError> {
    from.try_recv()
}

/// Waits for a token, for ever if there is no deadline.
#[inline(never)]
fn await_token(from: &TokenReceiver, until: Option<Instant>) -> Result<(), RecvTimeoutError> {
    match until {
        Some(until) => from.recv_deadline(until),
        None => from.recv().map_err(|RecvError| RecvTimeoutError::Disconnected),
    }
}

#[inline(never)]
fn has_no_token(receiver: &TokenReceiver) -> bool {
    receiver.is_empty()
}

#[inline(never)]
fn another_sender(sender: &TokenSender) -> TokenSender {
    DroppedHere::new((**sender).clone())
}

#[inline(never)]
fn another_receiver(receiver: &TokenReceiver) -> TokenReceiver {
    DroppedHere::new((**receiver).clone())
}

/// Sends messages to the receivers of a channel. Clones send to the same ones.
pub struct Sender<T> {
    queue: Arc<Queue<T>>,
    tokens: TokenSender,
}

/// Receives the messages of a channel. A message goes to one of its clones.
pub struct Receiver<T> {
    queue: Arc<Queue<T>>,
    /// `None` only while dropping.
    tokens: Option<TokenReceiver>,
}

/// Nobody is left to receive.
#[derive(Debug)]
pub struct Disconnected;

struct Queue<T> {
    messages: Mutex<VecDeque<T>>,
    receivers: AtomicUsize,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> T {
        let mut messages = self.lock();
        let message = messages.pop_front().expect("a message for each token");
        if messages.is_empty() && messages.capacity() > KEPT_ROOM {
            *messages = VecDeque::new();
        }
        message
    }

    /// Drops what nobody will receive.
    fn clear(&self) {
        let left = std::mem::take(&mut *self.lock());
        drop(left);
    }
}

impl<T> Sender<T> {
    /// Sends a message. Cost: a short lock, and a system call if a receiver sleeps.
    ///
    /// # Errors
    /// If all receivers are gone. Drops the message then.
    pub fn send(&self, message: T) -> Result<(), Disconnected> {
        self.queue.lock().push_back(message);
        if send_token(&self.tokens) {
            return Ok(());
        }
        self.queue.clear();
        Err(Disconnected)
    }
}

impl<T> Receiver<T> {
    fn tokens(&self) -> &TokenReceiver {
        self.tokens.as_ref().expect("not dropped yet")
    }

    /// Takes the next message, without waiting.
    ///
    /// # Errors
    /// `Empty` if there is none yet; `Disconnected` if there is none and all senders are gone.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        try_token(self.tokens()).map(|()| self.queue.pop())
    }

    /// Takes the next message, and waits for it.
    ///
    /// # Errors
    /// If there is none and all senders are gone.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.recv_until(None).map_err(|_| RecvError)
    }

    /// Takes the next message, and waits for it up to `timeout`.
    ///
    /// # Errors
    /// `Timeout` if none came; `Disconnected` if there is none and all senders are gone.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        // A deadline that no clock will show is none.
        self.recv_until(Instant::now().checked_add(timeout))
    }

    /// Takes the next message, and waits for it until `deadline`.
    ///
    /// # Errors
    /// Those of [`recv_timeout`](Receiver::recv_timeout).
    pub fn recv_deadline(&self, deadline: Instant) -> Result<T, RecvTimeoutError> {
        self.recv_until(Some(deadline))
    }

    fn recv_until(&self, until: Option<Instant>) -> Result<T, RecvTimeoutError> {
        await_token(self.tokens(), until).map(|()| self.queue.pop())
    }

    /// Takes messages, and waits for them, until all senders are gone.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Takes the messages that are there.
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }

    /// Returns whether there is no message now.
    pub fn is_empty(&self) -> bool {
        has_no_token(self.tokens())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), tokens: another_sender(&self.tokens) }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.queue.receivers.fetch_add(1, Ordering::SeqCst);
        Self { queue: self.queue.clone(), tokens: Some(another_receiver(self.tokens())) }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // First: a message that comes after the last one has cleared the queue is its sender's to drop.
        self.tokens = None;
        if self.queue.receivers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.queue.clear();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const SOON: Duration = Duration::from_millis(5);

    #[test]
    fn messages_come_in_order_and_the_end_of_all_senders_is_told() {
        let (sender, receiver) = unbounded();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(receiver.recv_timeout(SOON), Err(RecvTimeoutError::Timeout));
        let other = sender.clone();
        sender.send(1).unwrap();
        other.send(2).unwrap();
        drop(sender);
        assert!(!receiver.is_empty());
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        other.send(3).unwrap();
        drop(other);
        assert_eq!(receiver.recv(), Ok(3));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(receiver.recv(), Err(RecvError));
        assert_eq!(receiver.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn what_nobody_will_receive_is_dropped_or_given_back() {
        let (sender, receiver) = unbounded();
        let message = Arc::new(());
        let other = receiver.clone();
        sender.send(message.clone()).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&message), 2, "a clone may receive it");
        drop(other);
        assert_eq!(Arc::strong_count(&message), 1);
        assert!(sender.send(message.clone()).is_err());
        assert_eq!(Arc::strong_count(&message), 1);
    }

    /// Each message comes once, and those of one sender in its order, with pauses in which
    /// receivers fall asleep. A wake that is lost hangs the test.
    #[test]
    fn several_receivers_share_what_several_senders_send() {
        const EACH: u64 = if cfg!(miri) { 20 } else { 3000 };
        let (sender, receiver) = unbounded();
        let senders = (0..3).map(|who| {
            let sender = sender.clone();
            thread::spawn(move || {
                for number in 0..EACH {
                    if number % 128 == who {
                        thread::sleep(Duration::from_micros(300));
                    }
                    sender.send((who, number)).unwrap();
                }
            })
        });
        let senders: Vec<_> = senders.collect();
        drop(sender);
        let receivers = (0..3).map(|_| {
            let receiver = receiver.clone();
            thread::spawn(move || receiver.iter().collect::<Vec<_>>())
        });
        let found: Vec<_> =
            receivers.collect::<Vec<_>>().into_iter().map(|r| r.join().unwrap()).collect();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        for who in 0..3 {
            let of_sender = |found: &Vec<(u64, u64)>| {
                found
                    .iter()
                    .filter(|(by, _)| *by == who)
                    .map(|(_, number)| *number)
                    .collect::<Vec<_>>()
            };
            assert!(found.iter().map(of_sender).all(|numbers| numbers.is_sorted()));
            let mut all: Vec<u64> = found.iter().flat_map(of_sender).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..EACH), "sender {who}");
        }
    }

    #[test]
    fn one_that_sleeps_is_woken_by_the_end_of_all_senders() {
        let (sender, receiver) = unbounded::<u8>();
        let asleep = thread::spawn(move || receiver.recv_timeout(Duration::MAX));
        thread::sleep(SOON);
        drop(sender);
        assert_eq!(asleep.join().unwrap(), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn an_empty_queue_gives_the_memory_of_many_messages_back() {
        let (sender, receiver) = unbounded();
        for round in 0..2 {
            (0..1000).for_each(|number| sender.send(number).unwrap());
            assert_eq!(receiver.try_iter().count(), 1000, "round {round}");
            assert!(receiver.queue.lock().capacity() <= KEPT_ROOM, "round {round}");
        }
    }
}
