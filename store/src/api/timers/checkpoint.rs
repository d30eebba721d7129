//! Taking a checkpoint of timers while they are set, withdrawn and fire.
//!
//! At the barrier nothing is copied. Timers are read in their order, a few at a time: those that are
//! [due](Recording::is_due), as they have come since the last checkpoint or stand in a segment that goes, are written,
//! by the helper; the others stay where they are. One that is due and goes before it was read is kept; one that
//! comes behind what was read is noted, so that it is passed over. If there is no room for that, the rest is read and
//! written at once.
//!
//! What was kept for a checkpoint that was given up goes a part at a time.
//!
//! What it keeps true: what was read and what was kept are together the timers of the barrier, each
//! once, but for those that went before they were read and are on storage as they were.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use alluvium_layouts::{RecordPosition, Recording, Remembered};
use alluvium_pagestore::{Account, Key, MemoryKind, Result, State};

use super::set::{Timer, TimerSet};
use super::table::heap_of;
use crate::api::sorted_blocks::SortedBlocks;

/// Bytes that are left free beside what is kept.
const FREE_BYTES: u64 = 4 << 10;
/// Timers that are looked at together: a share looks at some hundred times as many at most.
const LOOKED_MAX: usize = 32;
/// Blocks of what a checkpoint that was given up has kept that are dropped together.
const DROPPED_BLOCKS: usize = 4;

/// A checkpoint being taken.
#[derive(Debug)]
pub(super) struct TimersCheckpoint<K: Key + Ord, N: State + Ord> {
    account: Rc<Account>,
    /// The last that was read.
    read: Option<Timer<K, N>>,
    /// Whether there are some to be read.
    is_reading: bool,
    /// Of the barrier, to be written, gone before they were read.
    gone: SortedBlocks<Timer<K, N>>,
    /// Not of the barrier, behind what was read.
    new: SortedBlocks<Timer<K, N>>,
    /// How many have come, of those, since the last share, and how many of them a share may pass beside those that it looks
    /// at: twice as many as have come since one has read, or a stream that sets more than shares look at would stay ahead.
    came: usize,
    passes: usize,
    has_read: bool,
    /// Heap that `gone` and `new` own, booked with their blocks.
    heap: u64,
    booked: u64,
}

impl<K: Key + Ord, N: State + Ord> TimersCheckpoint<K, N> {
    /// All timers there are now are of the checkpoint. Cost: O(1).
    pub(super) fn begin(account: Rc<Account>) -> Self {
        Self {
            account,
            read: None,
            is_reading: true,
            gone: SortedBlocks::new(),
            new: SortedBlocks::new(),
            came: 0,
            passes: 0,
            has_read: false,
            heap: 0,
            booked: 0,
        }
    }

    /// Whether it has to be told when this timer [comes](TimersCheckpoint::come) or [goes](TimersCheckpoint::go).
    pub(super) fn wants(&self, timers: &TimerSet<K, N>, timer: &Timer<K, N>) -> bool {
        let is_behind = |read: &Timer<K, N>| timers.is_after(timer, read);
        self.is_reading && self.read.as_ref().is_none_or(is_behind)
    }

    /// Bytes that have to be free to [prepare](TimersCheckpoint::prepare) for a timer that owns so many, with as many `beside` it,
    /// without reading the rest.
    pub(super) fn needed(&self, (heap, beside): (u64, u64)) -> u64 {
        beside + heap + self.gone.growth_bytes() + self.new.growth_bytes() + FREE_BYTES
    }

    /// Before a timer that it [wants](TimersCheckpoint::wants) and that owns so many bytes comes or goes: sees to it that it can be
    /// told, or needs not be, and that as many bytes are `beside` it as there were. Says which of the two. An error is
    /// kept for who advances the checkpoint.
    pub(super) fn prepare(
        &mut self,
        timers: &mut TimerSet<K, N>,
        remembered: &mut Remembered,
        bytes: (u64, u64),
    ) -> bool {
        remembered.plan();
        if self.account.available() < self.needed(bytes) {
            let epoch = remembered.epoch();
            remembered.read_rest(|to| self.read_step(timers, epoch, to));
            self.is_reading = false;
        }
        self.is_reading
    }

    /// The next share begins.
    pub(super) fn begin_share(&mut self) {
        if std::mem::take(&mut self.has_read) {
            self.passes = 0;
        }
        self.passes += 2 * std::mem::take(&mut self.came);
    }

    /// A timer that it wants has come.
    pub(super) fn come(&mut self, timer: Timer<K, N>) {
        self.came += 1;
        match self.gone.remove(&timer) {
            Some(known) => self.heap -= heap_of(&known),
            None => {
                self.heap += heap_of(&timer);
                self.new.insert(timer);
            }
        }
        self.book();
    }

    /// A timer that it wants has gone, whose record was at this place.
    pub(super) fn go(
        &mut self,
        timer: &Timer<K, N>,
        place: RecordPosition,
        remembered: &mut Remembered,
    ) {
        if let Some(known) = self.new.remove(timer) {
            self.heap -= heap_of(&known);
        } else if remembered.is_due(place) {
            remembered.outdate(place);
            // A copy may own less.
            let timer = timer.clone();
            self.heap += heap_of(&timer);
            self.gone.insert(timer);
        } else {
            remembered.note_dead(place);
        }
        self.book();
    }

    fn book(&mut self) {
        let bytes = self.gone.memory_bytes() + self.new.memory_bytes() + self.heap;
        self.account.adjust(MemoryKind::Buffers, self.booked, bytes);
        self.booked = bytes;
    }

    /// Reads some timers, or one of those that were kept; says whether there were any.
    pub(super) fn read(
        &mut self,
        timers: &mut TimerSet<K, N>,
        epoch: u32,
        to: &mut Recording<'_>,
    ) -> Result<bool> {
        if self.read_step(timers, epoch, to)? {
            return Ok(true);
        }
        let kept = self.gone.pop_first();
        if let Some(timer) = &kept {
            self.heap -= heap_of(timer);
            let place = to.write(&timer.0, &timer.1, RecordPosition::NONE)?;
            to.note_dead(place);
        }
        self.book();
        Ok(kept.is_some())
    }

    /// Reads some timers; says whether there were any.
    fn read_step(
        &mut self,
        timers: &mut TimerSet<K, N>,
        epoch: u32,
        to: &mut Recording<'_>,
    ) -> Result<bool> {
        if !self.is_reading {
            return Ok(false);
        }
        self.has_read = true;
        let Self { new, heap, passes, .. } = self;
        let mut looked = 0;
        let read = timers.scan(self.read.as_ref(), |timer, places, at| {
            looked += 1;
            let place = places.get(at, epoch);
            if !to.is_due(place) {
                to.keep(place);
            } else if let Some(known) = new.remove(timer) {
                *heap -= heap_of(&known);
                let is_free = *passes > 0;
                *passes -= usize::from(is_free);
                looked -= usize::from(is_free);
            } else {
                match to.write(&timer.0, &timer.1, place) {
                    Ok(place) => places.set(at, place, epoch),
                    Err(error) => return ControlFlow::Break(Err(error)),
                }
            }
            match looked < LOOKED_MAX && to.has_room() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(Ok(timer.clone())),
            }
        });
        match read {
            ControlFlow::Break(last) => self.read = Some(last?),
            ControlFlow::Continue(()) => (self.is_reading, self.read) = (false, None),
        }
        self.book();
        Ok(true)
    }
}

impl<K: Key + Ord, N: State + Ord> TimersCheckpoint<K, N> {
    /// Of a checkpoint that was given up: drops a bounded part of what it has kept; says whether there was something.
    /// Timers that panic when they are dropped do so for nobody.
    pub(super) fn drop_step(&mut self) -> bool {
        let is_some = self.has_kept();
        for _ in 0..DROPPED_BLOCKS {
            let block = self.gone.take_block().or_else(|| self.new.take_block());
            for timer in block.into_iter().flatten() {
                self.heap -= heap_of(&timer);
                let _panic = catch_unwind(AssertUnwindSafe(|| drop(timer)));
            }
        }
        self.book();
        is_some
    }

    /// Whether it has kept timers, or noted some.
    pub(super) fn has_kept(&self) -> bool {
        self.gone.len() + self.new.len() > 0
    }
}

impl<K: Key + Ord, N: State + Ord> Drop for TimersCheckpoint<K, N> {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}
