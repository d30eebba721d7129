//! Tables that other programs own and change: rows are looked up in them while they are joined.
//!
//! What it keeps true: rows of a key come out in the order in which they arrive, each once, with the
//! timestamp it came with; what waits, what is asked and what is cached is bounded, and booked in the
//! store's memory when the operator is built. It leaves to a [`ExternalTable`] how a table is reached.
//!
//! Nothing of the operator is part of a checkpoint: at one, all rows sent before it have come out, and
//! the truth of the table is with its owner.

pub(crate) mod asking;
mod cache;
mod join;
pub(crate) mod on_thread;
#[cfg(feature = "redis")]
mod redis;
mod waiting;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alluvium::Result;
use alluvium::io::Waker;
use alluvium::moving::KeyGroup;

pub use join::LookupExternal;
pub use on_thread::OnThread;
#[cfg(feature = "redis")]
pub use redis::{RedisConfig, redis_slot};

/// A key whose value a table is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question<K> {
    /// Its number, which the answer has to have.
    pub number: u64,
    /// The key.
    pub key: K,
}

/// What a table has for a key.
#[derive(Debug)]
pub struct Answer<V> {
    /// Of the question.
    pub number: u64,
    /// The value, or `None` if the table has none; or why that is not known.
    ///
    /// [`Io`], [`Backpressure`] and [`PeerLost`] say that the table cannot be reached at the moment: the
    /// operator asks again, as long as [`External::patience`] says. Every other error ends the run.
    ///
    /// [`Io`]: alluvium::ErrorKind::Io
    /// [`Backpressure`]: alluvium::ErrorKind::Backpressure
    /// [`PeerLost`]: alluvium::ErrorKind::PeerLost
    pub value: Result<Option<V>>,
}

/// One worker's way to a table that lies outside of the job: keys are asked for now, and answered later.
///
/// [`OnThread`] makes one of a function that waits. No call here may wait, as it would keep the worker
/// from everything else.
pub trait ExternalTable<K, V>: 'static {
    /// Wakes `waker` whenever there are answers, from now on. Called once, before anything is asked.
    fn wake_with(&mut self, waker: Arc<Waker>);

    /// Begins to look all `questions` up, and leaves none in it. There are never more than
    /// [`External::asked_max`] without an answer, and no two of them have the same key.
    fn ask(&mut self, questions: &mut Vec<Question<K>>);

    /// Adds the answers that have come since the last call, in any order: one for each question.
    ///
    /// # Errors
    /// There will be no more answers. The run ends with the error.
    fn answers(&mut self, answers: &mut Vec<Answer<V>>) -> Result<()>;

    /// A key group is on this worker from now on: it came by a [move](crate::Keyed::migratable), or the run
    /// begins with it here. Starts to bring the table's part of it, of `groups` of all keys, to where this
    /// worker asks for it, and returns whether that takes time: then [`followed`](Self::followed) says when it
    /// is there. Until then no worker asks for a key of the group. Called again after an error.
    ///
    /// Default: all workers ask in one place, and nothing is to be moved.
    fn follow(&mut self, _group: KeyGroup, _groups: u16) -> bool {
        false
    }

    /// Adds the key groups whose part is there since the last call, or why it could not be brought. Errors that
    /// pass are those of [`Answer::value`]: the operator tries again. Default: none.
    fn followed(&mut self, _followed: &mut Vec<(KeyGroup, Result<()>)>) {}
}

/// What a stream tells about a key of an external table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<V> {
    /// The key's value is another one now: what is cached of it is forgotten.
    Changed,
    /// The key has this value now, or none.
    Is(Option<V>),
}

/// What look-ups in an external table have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupCounts {
    /// Rows that came out, or were dropped by the join.
    pub rows: u64,
    /// Of these, rows that the cache answered at once.
    pub cached: u64,
    /// Questions asked, those asked again included.
    pub asked: u64,
    /// Answers that were errors.
    pub failed: u64,
}

/// How an operator looks rows up in an external table.
#[derive(Clone, Debug)]
pub struct External {
    id: String,
    parked_max: usize,
    asked_max: usize,
    value_bytes_max: usize,
    patience: Option<Duration>,
    cache: Option<(u64, Duration)>,
    counts: Rc<Cell<LookupCounts>>,
}

impl External {
    /// Creates the options of the operator `id`, without a cache. The id is different for each operator of a worker.
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            parked_max: 4096,
            asked_max: 256,
            value_bytes_max: 1024,
            patience: Some(Duration::from_secs(30)),
            cache: None,
            counts: Rc::default(),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn patience_max(&self) -> Option<Duration> {
        self.patience
    }

    /// Lets so many rows wait for answers at a time; with so many waiting, the operator takes no further
    /// input. At least 1. Default: 4096.
    #[must_use]
    pub fn parked_max(mut self, rows: usize) -> Self {
        self.parked_max = rows.max(1);
        self
    }

    /// Asks for so many keys at a time. More hide more of the table's delay. At least 1. Default: 256.
    #[must_use]
    pub fn asked_max(mut self, keys: usize) -> Self {
        self.asked_max = keys.max(1);
        self
    }

    /// Sets the most heap bytes that a value may own. So much is booked for each question under way; a longer value
    /// ends the run with [`ErrorKind::ValueTooLarge`](alluvium::ErrorKind::ValueTooLarge). Default: 1024.
    #[must_use]
    pub fn value_bytes_max(mut self, bytes: usize) -> Self {
        self.value_bytes_max = bytes;
        self
    }

    /// Sets how long a key may go without an answer, while its rows wait and hold their times: whether the table
    /// cannot be reached or does not answer. Then the run ends with the error. `None` waits as long as it
    /// takes. Zero ends the run at the first error. Default: 30 s.
    #[must_use]
    pub fn patience(mut self, patience: Option<Duration>) -> Self {
        self.patience = patience;
        self
    }

    /// Keeps answers, also those that the table has no value, in so much memory and for so long. Rows may
    /// see values that are so old. If keys or values own heap, half of the memory is for that.
    #[must_use]
    pub fn cache(mut self, bytes: u64, ttl: Duration) -> Self {
        self.cache = Some((bytes, ttl));
        self
    }

    /// Counts here what the operator does.
    #[must_use]
    pub fn counted_by(mut self, counts: Rc<Cell<LookupCounts>>) -> Self {
        self.counts = counts;
        self
    }
}
