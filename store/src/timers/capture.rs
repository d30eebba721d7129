//! Taking a checkpoint of timers while they are set, withdrawn and fire.
//!
//! At the barrier nothing is copied. Timers are read in their order, a batch at a time, which the
//! helper writes. One that goes before it was read is kept; one that comes behind what was read is
//! noted, so that it is passed over. If there is no room for that, the rest is read and written at
//! once.
//!
//! What it keeps true: what was read and what was kept are together the timers of the barrier, each
//! once.

use std::rc::Rc;

use alluvium_layouts::{EntryWriter, StateContext};
use alluvium_pagestore::{
    Account, Error, ErrorKind, Key, MemoryKind, Result, State, StateImage, Time,
};

use super::heap_of;
use super::set::{Timer, TimerSet};
use crate::sorted_blocks::SortedBlocks;

/// Bytes that are left free beside what is kept.
const FREE_BYTES: u64 = 4 << 10;

/// A checkpoint being taken.
#[derive(Debug)]
pub(super) struct Capture<K: Key + Ord, N: State + Ord> {
    account: Rc<Account>,
    /// At the barrier.
    entries: u64,
    /// The last that was read.
    read: Option<Timer<K, N>>,
    step: Step,
    /// Of the barrier, gone before they were read.
    gone: SortedBlocks<Timer<K, N>>,
    /// Not of the barrier, behind what was read.
    new: SortedBlocks<Timer<K, N>>,
    /// Heap that `gone` and `new` own, booked with their blocks.
    heap: u64,
    booked: u64,
    /// Made when it is needed.
    writer: Option<EntryWriter>,
    failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Reading,
    /// What was kept is written.
    Keeping,
    Ending,
}

impl<K: Key + Ord, N: State + Ord> Capture<K, N> {
    /// All `timers` there are now are of the checkpoint. Cost: O(1).
    pub(super) fn begin(context: &StateContext, timers: &TimerSet<K, N>) -> Result<Self> {
        context.segment_store()?;
        Ok(Self {
            account: context.account.clone(),
            entries: timers.len() as u64,
            read: None,
            step: Step::Reading,
            gone: SortedBlocks::new(),
            new: SortedBlocks::new(),
            heap: 0,
            booked: 0,
            writer: None,
            failed: false,
        })
    }

    /// Whether it has to be [told](Capture::note) when this timer comes or goes.
    pub(super) fn wants(&self, timers: &TimerSet<K, N>, timer: &Timer<K, N>) -> bool {
        let is_behind = |read: &Timer<K, N>| timers.is_after(timer, read);
        self.step == Step::Reading && self.read.as_ref().is_none_or(is_behind)
    }

    /// Whether there is room to be told of one more, beside so many bytes.
    fn has_room(&self, timer: &Timer<K, N>, beside: u64) -> bool {
        let growth = self.gone.growth_bytes() + self.new.growth_bytes();
        self.account.available() >= beside + heap_of(timer) + growth + FREE_BYTES
    }

    /// Before a timer that it [wants](Capture::wants) comes or goes: sees to it that it can be told,
    /// or needs not be, and that as many bytes are `beside` it as there were. An error is kept for who
    /// advances the checkpoint.
    pub(super) fn prepare(
        &mut self,
        context: &StateContext,
        timers: &TimerSet<K, N>,
        timer: &Timer<K, N>,
        beside: u64,
    ) {
        if self.has_room(timer, beside) {
            return;
        }
        let mut read_rest = || {
            self.writer(context)?.wait()?;
            while self.read_one(timers)? {}
            Ok::<_, Error>(())
        };
        self.failed |= read_rest().is_err();
        self.step = Step::Keeping;
    }

    /// A timer that it [wants](Capture::wants) has come, or has gone.
    pub(super) fn note(&mut self, timer: Timer<K, N>, has_come: bool) {
        let (here, there) = match has_come {
            true => (&mut self.new, &mut self.gone),
            false => (&mut self.gone, &mut self.new),
        };
        if let Some(known) = there.remove(&timer) {
            self.heap -= heap_of(&known);
        } else {
            self.heap += heap_of(&timer);
            here.insert(timer);
        }
        self.book();
    }

    fn book(&mut self) {
        let bytes = self.gone.memory_bytes() + self.new.memory_bytes() + self.heap;
        self.account.adjust(MemoryKind::Buffers, self.booked, bytes);
        self.booked = bytes;
    }

    fn writer(&mut self, context: &StateContext) -> Result<&mut EntryWriter> {
        if self.writer.is_none() {
            self.writer = Some(EntryWriter::new::<(Time, K), N>(context)?);
        }
        Ok(self.writer.as_mut().expect("made above"))
    }

    /// Reads the next timer; says whether there was one.
    fn read_one(&mut self, timers: &TimerSet<K, N>) -> Result<bool> {
        let Some(timer) = timers.next(self.read.as_ref()) else { return Ok(false) };
        match self.new.remove(timer) {
            Some(new) => self.heap -= heap_of(&new),
            None => self.writer.as_mut().expect("it is ready").push(&timer.0, &timer.1)?,
        }
        self.read = Some(timer.clone());
        Ok(true)
    }

    /// Does a bounded share; the image at the end.
    pub(super) fn advance(
        &mut self,
        context: &StateContext,
        timers: &TimerSet<K, N>,
    ) -> Result<Option<StateImage>> {
        if self.failed {
            let message = "timers had to be written at once, which failed; begin the checkpoint \
                           again";
            return Err(Error::new(ErrorKind::Overtaken, message));
        }
        if !self.writer(context)?.is_ready()? {
            return Ok(None);
        }
        if self.step == Step::Ending {
            let image = self.writer(context)?.take_image();
            assert_eq!(image.entries, self.entries, "each timer of the barrier once");
            return Ok(Some(image));
        }
        while self.writer(context)?.has_room() {
            if self.step == Step::Reading {
                if !self.read_one(timers)? {
                    self.step = Step::Keeping;
                }
            } else if let Some(timer) = self.gone.pop_first() {
                self.heap -= heap_of(&timer);
                self.writer(context)?.push(&timer.0, &timer.1)?;
            } else {
                self.book();
                self.writer(context)?.submit_end();
                self.step = Step::Ending;
                return Ok(None);
            }
        }
        self.book();
        self.writer(context)?.submit();
        Ok(None)
    }

    /// Waits a moment for the helper.
    pub(super) fn pause(&mut self) {
        self.writer.iter_mut().for_each(EntryWriter::pause);
    }
}

impl<K: Key + Ord, N: State + Ord> Drop for Capture<K, N> {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.booked);
    }
}
