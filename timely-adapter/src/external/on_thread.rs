//! An external table of a function that waits: it is called on a thread of its own.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use alluvium::io::Waker;
use alluvium::moving::KeyGroup;
use alluvium::{Error, ErrorKind, Result};

use super::{Answer, ExternalTable, Question};

/// Looks keys up on a thread. The thread ends after its current call when this is dropped. If parts of the
/// table follow key groups, that is waited for: none follows to a worker that is gone.
pub struct OnThread<K, V> {
    /// `None` once this is being dropped, as are the replies.
    requests: Option<Sender<TableRequest<K>>>,
    replies: Option<Receiver<TableReply<V>>>,
    /// Replies that have come and were not taken.
    answered: Vec<Answer<V>>,
    followed: Vec<(KeyGroup, Result<()>)>,
    /// Whether the table has parts that follow key groups.
    has_parts: bool,
    waker: Arc<OnceLock<Arc<Waker>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<K, V> Drop for OnThread<K, V> {
    fn drop(&mut self) {
        (self.requests, self.replies) = (None, None);
        if let Some(thread) = self.thread.take().filter(|_| self.has_parts) {
            // That it has panicked was told.
            let _ = thread.join();
        }
    }
}

impl<K, V> fmt::Debug for OnThread<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnThread").finish_non_exhaustive()
    }
}

enum TableRequest<K> {
    Ask(Vec<Question<K>>),
    Follow(KeyGroup, u16),
}

enum TableReply<V> {
    Answers(Vec<Answer<V>>),
    Followed(KeyGroup, Result<()>),
}

/// What is called on the thread.
pub(super) trait ServeTable<K, V>: Send + 'static {
    /// Adds what the table has for each of the keys, in their order.
    fn look_up(&mut self, keys: &[K], values: &mut Vec<Result<Option<V>>>);

    /// Brings the table's part of a key group, of so many, to where it is looked up from now on.
    fn follow(&mut self, group: KeyGroup, groups: u16) -> Result<()>;
}

/// Two functions.
struct Functions<L, F>(L, F);

impl<K, V, L, F> ServeTable<K, V> for Functions<L, F>
where
    L: FnMut(&[K], &mut Vec<Result<Option<V>>>) + Send + 'static,
    F: FnMut(KeyGroup, u16) -> Result<()> + Send + 'static,
{
    fn look_up(&mut self, keys: &[K], values: &mut Vec<Result<Option<V>>>) {
        (self.0)(keys, values);
    }

    fn follow(&mut self, group: KeyGroup, groups: u16) -> Result<()> {
        (self.1)(group, groups)
    }
}

impl<K: Send + 'static, V: Send + 'static> OnThread<K, V> {
    /// Calls `look_up` with up to `keys_max` keys at a time, on a new thread named `name`. It adds what
    /// the table has for each of them, in their order. It should not wait longer than whoever waits for
    /// the rows has patience.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if there can be no further thread.
    pub fn new(
        name: &str,
        keys_max: usize,
        look_up: impl FnMut(&[K], &mut Vec<Result<Option<V>>>) + Send + 'static,
    ) -> Result<Self> {
        Self::serving(name, keys_max, Functions(look_up, |_, _| Ok(())), false)
    }

    /// The same of a table whose parts [follow](ExternalTable::follow) key groups. `follow` gets a group and
    /// how many there are, on the same thread, and returns when the part is where `look_up` finds it. Keys that
    /// wait are looked up between two calls of it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if there can be no further thread.
    pub fn following(
        name: &str,
        keys_max: usize,
        look_up: impl FnMut(&[K], &mut Vec<Result<Option<V>>>) + Send + 'static,
        follow: impl FnMut(KeyGroup, u16) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        Self::serving(name, keys_max, Functions(look_up, follow), true)
    }

    pub(super) fn serving(
        name: &str,
        keys_max: usize,
        serve: impl ServeTable<K, V>,
        has_parts: bool,
    ) -> Result<Self> {
        let (requests, asked) = channel();
        let (told, replies) = channel();
        let waker = Arc::<OnceLock<Arc<Waker>>>::default();
        let telling = ReplySender { told: Some(told), wakes: waker.clone() };
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&asked, &telling, keys_max.max(1), serve))
            .map_err(|error| Error::io("starting a thread", name, error))?;
        Ok(Self {
            requests: Some(requests),
            replies: Some(replies),
            answered: Vec::new(),
            followed: Vec::new(),
            has_parts,
            waker,
            thread: Some(thread),
        })
    }

    fn request(&self, request: TableRequest<K>) {
        // If the thread has ended, `answers` says so.
        let _ = self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok());
    }

    /// Takes in the replies that have come.
    fn receive(&mut self) -> Result<()> {
        let replies = self.replies.as_ref().expect("it is not being dropped");
        loop {
            match replies.try_recv() {
                Ok(TableReply::Answers(more)) => self.answered.extend(more),
                Ok(TableReply::Followed(group, done)) => self.followed.push((group, done)),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    let message = "the thread that asks an external table has panicked";
                    return Err(Error::new(ErrorKind::Panicked, message));
                }
            }
        }
    }
}

/// Where replies go. The operator is woken also when the thread ends by a panic.
struct ReplySender<V> {
    told: Option<Sender<TableReply<V>>>,
    wakes: Arc<OnceLock<Arc<Waker>>>,
}

impl<V> ReplySender<V> {
    /// Says whether the operator is still there.
    fn tell(&self, reply: TableReply<V>) -> bool {
        let is_told = self.told.as_ref().is_some_and(|told| told.send(reply).is_ok());
        self.wake();
        is_told
    }

    fn wake(&self) {
        if let Some(waker) = self.wakes.get() {
            waker.wake();
        }
    }
}

impl<V> Drop for ReplySender<V> {
    fn drop(&mut self) {
        // First, so that whoever is woken finds it gone.
        self.told = None;
        self.wake();
    }
}

/// Answers what is asked, and has one group follow whenever nothing is.
fn run<K, V>(
    asked: &Receiver<TableRequest<K>>,
    telling: &ReplySender<V>,
    keys_max: usize,
    mut serve: impl ServeTable<K, V>,
) {
    let (mut questions, mut groups) = (VecDeque::new(), VecDeque::new());
    loop {
        let first = match questions.is_empty() && groups.is_empty() {
            true => match asked.recv() {
                Ok(request) => Some(request),
                Err(_) => return,
            },
            false => None,
        };
        for request in first.into_iter().chain(asked.try_iter()) {
            match request {
                TableRequest::Ask(more) => questions.extend(more),
                TableRequest::Follow(group, of) => groups.push_back((group, of)),
            }
        }
        let next = questions.drain(..keys_max.min(questions.len()));
        let reply = match next.len() {
            0 => groups
                .pop_front()
                .map(|(group, of)| TableReply::Followed(group, serve.follow(group, of))),
            _ => Some(TableReply::Answers(answer(next, &mut serve))),
        };
        if reply.is_some_and(|reply| !telling.tell(reply)) {
            return;
        }
    }
}

fn answer<K, V>(
    questions: impl Iterator<Item = Question<K>>,
    serve: &mut impl ServeTable<K, V>,
) -> Vec<Answer<V>> {
    let (numbers, keys): (Vec<u64>, Vec<K>) =
        questions.map(|Question { number, key }| (number, key)).unzip();
    let mut values = Vec::with_capacity(keys.len());
    serve.look_up(&keys, &mut values);
    values.truncate(numbers.len());
    while values.len() < numbers.len() {
        let message = "the function of an external table left a key without an answer";
        values.push(Err(Error::new(ErrorKind::Input, message)));
    }
    let answers = numbers.into_iter().zip(values);
    answers.map(|(number, value)| Answer { number, value }).collect()
}

impl<K: Send + 'static, V: Send + 'static> ExternalTable<K, V> for OnThread<K, V> {
    fn wake_with(&mut self, waker: Arc<Waker>) {
        let _ = self.waker.set(waker);
    }

    fn ask(&mut self, questions: &mut Vec<Question<K>>) {
        self.request(TableRequest::Ask(std::mem::take(questions)));
    }

    fn answers(&mut self, answers: &mut Vec<Answer<V>>) -> Result<()> {
        let done = self.receive();
        answers.append(&mut self.answered);
        done
    }

    fn follow(&mut self, group: KeyGroup, groups: u16) -> bool {
        if self.has_parts {
            self.request(TableRequest::Follow(group, groups));
        }
        self.has_parts
    }

    fn followed(&mut self, followed: &mut Vec<(KeyGroup, Result<()>)>) {
        // If the thread has ended, `answers` says so.
        let _ = self.receive();
        followed.append(&mut self.followed);
    }
}
