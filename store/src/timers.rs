//! Timers: requests to be called for a key when event time reaches a point.
//!
//! Kept in memory in time order, set semantics on (time, key), part of every checkpoint.

use std::cell::RefCell;
use std::rc::Rc;

use alluvium_layouts::{CheckpointOutcome, Images, StateContext, TableStats};
use alluvium_layouts::{read_entries, write_entries};
use alluvium_pagestore::{BlobWriter, Error, ErrorKind, Key, MemoryKind, Result, StateImage, Time};

use crate::sorted_blocks::SortedBlocks;
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
    timers: SortedBlocks<(Time, K)>,
    images: Images,
    codec_calls: u64,
}

impl<K: Key + Ord> Pending<K> {
    fn insert(&mut self, at: Time, key: K) -> Result<bool> {
        let account = &self.context.account;
        let (heap, growth) = (key.heap_bytes() as u64, self.timers.growth_bytes());
        account.ensure(heap + growth, "a timer")?;
        let before = self.timers.memory_bytes();
        let new = self.timers.insert((at, key));
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
        if new {
            account.charge(MemoryKind::Values, heap);
        }
        Ok(new)
    }

    /// Books what is left after a timer of `key` was removed from `before` bytes of timers.
    fn removed(&self, before: u64, key: &K) {
        let account = &self.context.account;
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
        account.release(MemoryKind::Values, key.heap_bytes() as u64);
    }
}

impl<K: Key + Ord> TimersCell<K> {
    pub(crate) fn open(mut context: StateContext) -> Result<Rc<Self>> {
        let restored = context.restored.take();
        let mut pending = Pending {
            context: context.clone(),
            timers: SortedBlocks::new(),
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
        let (timer, before) = ((at, key), pending.timers.memory_bytes());
        let known = pending.timers.remove(&timer);
        if known {
            pending.removed(before, &timer.1);
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
        let before = pending.timers.memory_bytes();
        let timer = pending.timers.pop_first()?;
        pending.removed(before, &timer.1);
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
        let mut stats = TableStats {
            live_keys: pending.timers.len() as u64,
            live_bytes: pending.context.account.used_for(MemoryKind::Values),
            codec_calls: pending.codec_calls,
            ..TableStats::default()
        };
        pending.images.describe(&mut stats);
        Ok(stats)
    }
}

impl<K: Key + Ord> Drop for Pending<K> {
    fn drop(&mut self) {
        let account = &self.context.account;
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
    }
}
