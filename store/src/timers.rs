//! Timers: requests to be called for a key when event time reaches a point.
//!
//! Kept in memory in time order, set semantics on (time, key), part of every checkpoint. The
//! budget books an upper bound per timer: a B-tree's nodes are at least half full.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use alluvium_layouts::{CheckpointOutcome, Images, StateContext, TableStats};
use alluvium_layouts::{read_entries, write_entries};
use alluvium_pagestore::{
    BlobWriter, Error, ErrorKind, Key, MemoryKind, Result, StateImage, Time, rounded,
};

use crate::state_cell::Hooks;

/// Pending timers. Open them with [`Store::timers`](crate::Store::timers).
#[derive(Debug)]
pub struct Timers<K: Key + Ord> {
    shared: Rc<TimersCell<K>>,
}

#[derive(Debug)]
pub(crate) struct TimersCell<K: Key + Ord>(RefCell<Pending<K>>);

#[derive(Debug)]
struct Pending<K: Key + Ord> {
    context: StateContext,
    timers: BTreeSet<(Time, K)>,
    images: Images,
    codec_calls: u64,
}

impl<K: Key + Ord> Pending<K> {
    /// Upper bound of the tree's memory per timer: 11 slots a node of which at least 5 are used,
    /// and inner nodes over at least 6 children.
    fn bytes_of(key: &K) -> u64 {
        let leaf = rounded(16 + 11 * size_of::<(Time, K)>());
        let inner = leaf + 12 * 8;
        (leaf / 5 + inner / 30 + 16 + key.heap_bytes()) as u64
    }

    fn insert(&mut self, at: Time, key: K) -> Result<bool> {
        let account = &self.context.account;
        let bytes = Self::bytes_of(&key);
        if account.available() < bytes {
            return Err(account.over_budget(bytes, "a timer"));
        }
        let new = self.timers.insert((at, key));
        if new {
            account.charge(MemoryKind::Values, bytes);
        }
        Ok(new)
    }

    fn release(&self, key: &K) {
        self.context.account.release(MemoryKind::Values, Self::bytes_of(key));
    }
}

impl<K: Key + Ord> TimersCell<K> {
    pub(crate) fn open(mut context: StateContext) -> Result<Rc<Self>> {
        let restored = context.restored.take();
        let mut pending = Pending {
            context: context.clone(),
            timers: BTreeSet::new(),
            images: Images::default(),
            codec_calls: 0,
        };
        if let Some((image, blobs)) = restored {
            read_entries::<(Time, K), ()>(&context, &image, &blobs, |(at, key), ()| {
                pending.codec_calls += 1;
                pending.insert(at, key).map(drop)
            })?;
            pending.images.restored(&image);
        }
        Ok(Rc::new(Self(RefCell::new(pending))))
    }
}

impl<K: Key + Ord> Timers<K> {
    pub(crate) fn new(shared: Rc<TimersCell<K>>) -> Self {
        Self { shared }
    }

    /// Asks for `key` at `at`; says whether that was new. Cost: O(log n).
    pub fn set(&mut self, at: Time, key: K) -> Result<bool> {
        self.shared.0.borrow_mut().insert(at, key)
    }

    /// Withdraws a timer and says whether there was one.
    pub fn cancel(&mut self, at: Time, key: K) -> bool {
        let mut pending = self.shared.0.borrow_mut();
        let timer = (at, key);
        let known = pending.timers.remove(&timer);
        if known {
            pending.release(&timer.1);
        }
        known
    }

    /// Removes and returns the earliest timer that is due: one before `watermark`, which says
    /// that nothing earlier is still to come. Equal times come in key order. A timer set while
    /// firing is due at once if its time is.
    pub fn pop_due(&mut self, watermark: Time) -> Option<(Time, K)> {
        let mut pending = self.shared.0.borrow_mut();
        if pending.timers.first()?.0 >= watermark {
            return None;
        }
        let timer = pending.timers.pop_first()?;
        pending.release(&timer.1);
        Some(timer)
    }

    /// The time of the earliest timer.
    pub fn next_time(&self) -> Option<Time> {
        self.shared.0.borrow().timers.first().map(|(at, _)| *at)
    }

    /// Timers pending.
    pub fn len(&self) -> u64 {
        self.shared.0.borrow().timers.len() as u64
    }

    /// Whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Key + Ord> TimersCell<K> {
    fn enter(&self) -> Result<std::cell::RefMut<'_, Pending<K>>> {
        self.0.try_borrow_mut().map_err(|_| Error::new(ErrorKind::InUse, "the timers are in use"))
    }
}

impl<K: Key + Ord> Hooks for TimersCell<K> {
    fn poisoned(&self) -> bool {
        false
    }

    fn checkpoint(&self, _: &mut BlobWriter) -> Result<StateImage> {
        let mut pending = self.enter()?;
        let image = write_entries(&pending.context, pending.timers.iter().map(|t| (t, &())))?;
        pending.codec_calls += image.entries;
        pending.images.taken(&image);
        Ok(image)
    }

    fn checkpointed(&self, outcome: CheckpointOutcome) -> Result<()> {
        let mut pending = self.enter()?;
        let segments = pending.context.segments.clone();
        pending.images.decide(outcome, segments.as_ref());
        Ok(())
    }

    fn tick(&self, _: usize) -> Result<usize> {
        Ok(0)
    }

    fn stats(&self) -> Result<TableStats> {
        let pending = self.enter()?;
        Ok(TableStats {
            live_keys: pending.timers.len() as u64,
            live_bytes: pending.context.account.used_for(MemoryKind::Values),
            codec_calls: pending.codec_calls,
            ..TableStats::default()
        })
    }
}

impl<K: Key + Ord> Drop for Pending<K> {
    fn drop(&mut self) {
        let account = &self.context.account;
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
    }
}
