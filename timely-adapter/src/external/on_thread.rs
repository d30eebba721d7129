//! An external table of a function that waits: it is called on a thread of its own.

use std::fmt;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use alluvium::io::Waker;
use alluvium::{Error, ErrorKind, Result};

use super::{Answer, ExternalTable, Question};

/// Looks keys up on a thread. The thread ends after its current call when this is dropped.
pub struct OnThread<K, V> {
    questions: Sender<Vec<Question<K>>>,
    answers: Receiver<Vec<Answer<V>>>,
    waker: Arc<OnceLock<Arc<Waker>>>,
}

impl<K, V> fmt::Debug for OnThread<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnThread").finish_non_exhaustive()
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
        let (questions, asked) = channel();
        let (told, answers) = channel();
        let waker = Arc::<OnceLock<Arc<Waker>>>::default();
        let wakes = waker.clone();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                serve(&asked, Telling { told: Some(told), wakes }, keys_max.max(1), look_up)
            })
            .map_err(|error| Error::io("starting a thread", name, error))?;
        Ok(Self { questions, answers, waker })
    }
}

/// Where answers go. The operator is woken also when the thread ends by a panic.
struct Telling<V> {
    told: Option<Sender<Vec<Answer<V>>>>,
    wakes: Arc<OnceLock<Arc<Waker>>>,
}

impl<V> Telling<V> {
    /// Says whether the operator is still there.
    fn tell(&self, answers: Vec<Answer<V>>) -> bool {
        let is_told = self.told.as_ref().is_some_and(|told| told.send(answers).is_ok());
        self.wake();
        is_told
    }

    fn wake(&self) {
        if let Some(waker) = self.wakes.get() {
            waker.wake();
        }
    }
}

impl<V> Drop for Telling<V> {
    fn drop(&mut self) {
        // First, so that whoever is woken finds it gone.
        self.told = None;
        self.wake();
    }
}

fn serve<K, V>(
    asked: &Receiver<Vec<Question<K>>>,
    telling: Telling<V>,
    keys_max: usize,
    mut look_up: impl FnMut(&[K], &mut Vec<Result<Option<V>>>),
) {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    while let Ok(mut questions) = asked.recv() {
        questions.extend(asked.try_iter().flatten());
        let mut questions = questions.into_iter();
        loop {
            keys.clear();
            values.clear();
            let mut numbers = Vec::new();
            for Question { number, key } in questions.by_ref().take(keys_max) {
                numbers.push(number);
                keys.push(key);
            }
            if keys.is_empty() {
                break;
            }
            look_up(&keys, &mut values);
            values.truncate(numbers.len());
            while values.len() < numbers.len() {
                let message = "the function of an external table left a key without an answer";
                values.push(Err(Error::new(ErrorKind::Input, message)));
            }
            let answers = numbers.into_iter().zip(values.drain(..));
            let answers = answers.map(|(number, value)| Answer { number, value }).collect();
            if !telling.tell(answers) {
                return;
            }
        }
    }
}

impl<K: Send + 'static, V: Send + 'static> ExternalTable<K, V> for OnThread<K, V> {
    fn wake_with(&mut self, waker: Arc<Waker>) {
        let _ = self.waker.set(waker);
    }

    fn ask(&mut self, questions: &mut Vec<Question<K>>) {
        // If the thread has ended, `answers` says so.
        let _ = self.questions.send(std::mem::take(questions));
    }

    fn answers(&mut self, answers: &mut Vec<Answer<V>>) -> Result<()> {
        loop {
            match self.answers.try_recv() {
                Ok(more) => answers.extend(more),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    let message = "the thread that asks an external table has panicked";
                    return Err(Error::new(ErrorKind::Panicked, message));
                }
            }
        }
    }
}
