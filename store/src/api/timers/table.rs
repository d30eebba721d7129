//! Pending timers: set, withdrawn and fired; their memory, checkpoints and key groups.

use std::rc::Rc;

use alluvium_layouts::{
    CheckpointOutcome, DroppedHere, InSteps, Oversize, RecordPosition, Remembered, StateContext,
    TableStats, Upkeep, at_once,
};
use alluvium_pagestore::{
    BlobWriter, Error, ErrorKind, Key, MemoryKind, Result, State, StateImage, Time,
};

use super::checkpoint::TimersCheckpoint;
use super::set::{Timer, TimerSet};
use crate::api::own_keys::OwnKeys;
use crate::durability::moving::Groups;

/// Pending timers, and what checkpoints have of them.
#[derive(Debug)]
pub(crate) struct TimerTable<K: Key + Ord, N: State + Ord> {
    pub(super) context: StateContext,
    pub(super) timers: TimerSet<K, N>,
    /// The checkpoint being taken.
    checkpoint: Option<TimersCheckpoint<K, N>>,
    /// Those that were given up and have kept something.
    given_up: Vec<TimersCheckpoint<K, N>>,
    /// What checkpoints have.
    remembered: DroppedHere<Remembered>,
    pub(super) codec_calls: u64,
    oversize: Oversize,
}

impl<K: Key + Ord, N: State + Ord> TimerTable<K, N> {
    /// Refuses a key whose group is on its way, or elsewhere, and one that is none of its `own`.
    pub(super) fn check(&self, own: Option<&OwnKeys>, key: &K) -> Result<()> {
        let groups = self.timers.groups();
        if groups.is_none() && own.is_none() {
            return Ok(());
        }
        let hash = key.key_hash();
        let of_groups = groups.map_or(Ok(()), |groups| groups.check(hash));
        let checked = of_groups.and_then(|()| own.map_or(Ok(()), |own| own.check(hash)));
        checked.map_err(|error| error.with("state", &self.context.name))
    }

    pub(super) fn insert(&mut self, timer: Timer<K, N>) -> Result<bool> {
        self.oversize.check(&timer.0.1, heap_of(&timer))?;
        let more = heap_of(&timer) + self.timers.growth_bytes(&timer);
        if more > 0 {
            self.context.account.ensure_left(more, "a timer")?;
        }
        self.insert_at(timer, RecordPosition::NONE)
    }

    /// Inserts a timer whose record is at this place.
    fn insert_at(&mut self, timer: Timer<K, N>, place: RecordPosition) -> Result<bool> {
        let (heap, growth) = (heap_of(&timer), self.timers.growth_bytes(&timer));
        self.ensure(heap + growth)?;
        let is_wanted = self.capture_wants(Some(&timer));
        let is_told = is_wanted && self.prepare(heap, heap + growth);
        if is_wanted {
            // What it took for that may have been left for this.
            self.ensure(heap + growth)?;
        }
        let told = is_told.then(|| timer.clone());
        let before = self.timers.memory_bytes();
        let new = self.timers.insert(timer, (place, self.remembered.epoch()));
        let account = &self.context.account;
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
        if new {
            account.charge(MemoryKind::Values, heap);
            if let (Some(checkpoint), Some(timer)) = (&mut self.checkpoint, told) {
                checkpoint.come(timer);
            }
        }
        Ok(new)
    }

    /// [`insert_at`](TimerTable::insert_at) while a store is opened. What several checkpoints wrote, or stores, does not come in order and
    /// leaves blocks half full, which may have been full: where memory lacks they are filled.
    pub(super) fn restore(&mut self, timer: Timer<K, N>, place: RecordPosition) -> Result<()> {
        let needed = heap_of(&timer) + self.timers.growth_bytes(&timer);
        let account = &self.context.account;
        if account.ensure(needed, "a timer").is_err() {
            self.pack();
        }
        self.insert_at(timer, place).map(drop)
    }

    fn pack(&mut self) {
        let before = self.timers.memory_bytes();
        self.timers.pack();
        let account = &self.context.account;
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
    }

    /// Sees to it that so many bytes are free.
    fn ensure(&mut self, bytes: u64) -> Result<()> {
        self.drop_left_for(bytes);
        let account = &self.context.account;
        let ensured = account.ensure(bytes, "a timer");
        if ensured.is_err() && self.remembered.make_way() {
            return account.ensure(bytes, "a timer");
        }
        ensured
    }

    /// Whether the checkpoint being taken wants to be told when a timer comes or goes.
    #[inline]
    fn capture_wants(&self, timer: Option<&Timer<K, N>>) -> bool {
        match (&self.checkpoint, timer) {
            (Some(checkpoint), Some(timer)) => checkpoint.wants(&self.timers, timer),
            _ => false,
        }
    }

    /// Before a timer that owns so many bytes comes, which is about to take so many, or goes; says whether the checkpoint
    /// is to be told still.
    fn prepare(&mut self, heap: u64, taking: u64) -> bool {
        let needed =
            self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.needed((heap, taking)));
        self.drop_left_for(needed);
        let Self { checkpoint, timers, remembered, .. } = self;
        let told = checkpoint.as_mut().map(|it| it.prepare(timers, remembered, (heap, taking)));
        told.unwrap_or(false)
    }

    pub(super) fn remove(&mut self, timer: &Timer<K, N>) -> bool {
        let is_told = self.capture_wants(Some(timer)) && self.prepare(heap_of(timer), 0);
        let before = self.timers.memory_bytes();
        let removed = self.timers.remove(timer, self.remembered.epoch());
        // What was kept may own more than what is equal to it.
        let Some((known, place)) = removed else { return false };
        self.removed(before, &known);
        self.let_go(&known, place, is_told);
        true
    }

    /// Bytes of all timers.
    pub(super) fn timers_bytes(&self) -> u64 {
        self.context.account.used_for(MemoryKind::Values)
    }

    pub(super) fn pop(&mut self) -> Option<Timer<K, N>> {
        let first = self.timers.first();
        let is_told = self.capture_wants(first) && {
            let heap = first.map_or(0, heap_of);
            self.prepare(heap, 0)
        };
        let before = self.timers.memory_bytes();
        let (timer, place) = self.timers.pop_first(self.remembered.epoch())?;
        self.removed(before, &timer);
        self.let_go(&timer, place, is_told);
        Some(timer)
    }

    /// A timer has gone, whose record was at this place.
    fn let_go(&mut self, timer: &Timer<K, N>, place: RecordPosition, is_told: bool) {
        match self.checkpoint.as_mut().filter(|_| is_told) {
            Some(checkpoint) => checkpoint.go(timer, place, &mut self.remembered),
            None => self.remembered.note_dead(place),
        }
    }

    /// Gives up the checkpoint that is being taken, if there is one; what it has kept goes
    /// [later](TimerTable::drop_some_left).
    fn give_up_capture(&mut self) {
        self.given_up.extend(self.checkpoint.take().filter(TimersCheckpoint::has_kept));
    }

    /// Drops a part of what checkpoints that were given up have kept; says whether there was something.
    fn drop_some_left(&mut self) -> bool {
        let Some(checkpoint) = self.given_up.last_mut() else { return false };
        let is_some = checkpoint.drop_step();
        if !checkpoint.has_kept() {
            self.given_up.pop();
        }
        is_some
    }

    /// Drops of that as much as it takes for so many bytes to be free.
    #[inline]
    fn drop_left_for(&mut self, bytes: u64) {
        while !self.given_up.is_empty() && self.context.account.available() < bytes {
            self.drop_some_left();
        }
    }

    /// Books what is left after a timer was removed from `before` bytes of timers.
    fn removed(&self, before: u64, timer: &Timer<K, N>) {
        let account = &self.context.account;
        account.adjust(MemoryKind::Values, before, self.timers.memory_bytes());
        account.release(MemoryKind::Values, heap_of(timer));
    }
}

impl<K: Key + Ord, N: State + Ord> TimerTable<K, N> {
    pub(crate) fn open(mut context: StateContext, groups: Option<Rc<Groups>>) -> Result<Self> {
        let restored = context.restored.take();
        let timers = TimerSet::new(groups);
        context.account.reserve(MemoryKind::Values, timers.memory_bytes(), "timers")?;
        let remembered = DroppedHere::new(Remembered::new(&context));
        let (checkpoint, given_up, codec_calls) = (None, Vec::new(), 0);
        let oversize = Oversize::new(&context.name, context.max_value_bytes);
        let mut table =
            TimerTable { context, timers, checkpoint, given_up, remembered, codec_calls, oversize };
        if let Some((image, blobs)) = restored {
            let mut remembered = DroppedHere::new(Remembered::new(&table.context));
            remembered.restore::<(Time, K), N>(&image, &blobs, |at, namespace, place| {
                table.restore((at, namespace), place)
            })?;
            table.remembered = remembered;
            table.pack();
        }
        table.remembered.keep_room::<(Time, K), N>()?;
        Ok(table)
    }
}

impl<K: Key + Ord, N: State + Ord> InSteps for TimerTable<K, N> {
    fn pause(&mut self) -> Result<()> {
        self.remembered.pause();
        Ok(())
    }
}

impl<K: Key + Ord, N: State + Ord> Upkeep for TimerTable<K, N> {
    fn tick(&mut self, work: usize) -> Result<usize> {
        Ok((0..work).take_while(|_| self.drop_some_left()).count())
    }

    /// What checkpoints that were given up have kept, and what is noted for the next one, which writes all timers then.
    fn reclaim(&mut self, bytes: u64) -> Result<u64> {
        let before = self.context.account.used();
        let given = |table: &Self| before - table.context.account.used();
        while given(self) < bytes && self.drop_some_left() {}
        if given(self) < bytes {
            self.remembered.make_way();
        }
        Ok(given(self))
    }

    fn checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<StateImage> {
        at_once(self, blobs)
    }

    fn begin_checkpoint(&mut self, _: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.drop_some_left();
        self.give_up_capture();
        let (account, entries) = (self.context.account.clone(), self.timers.len() as u64);
        let bytes = account.used_for(MemoryKind::Values);
        self.remembered.begin::<(Time, K), N>(entries, bytes)?;
        self.checkpoint = Some(TimersCheckpoint::begin(account));
        Ok(None)
    }

    fn continue_checkpoint(&mut self, blobs: &mut BlobWriter) -> Result<Option<StateImage>> {
        self.drop_some_left();
        let Self { context, timers, checkpoint, remembered, .. } = self;
        let Some(capturing) = checkpoint else {
            return Err(Error::new(ErrorKind::Config, "no checkpoint was begun"));
        };
        remembered.plan();
        capturing.begin_share();
        let epoch = remembered.epoch();
        let image = remembered.step(blobs, |to| capturing.read(timers, epoch, to));
        if let Ok(Some(_)) = &image {
            *checkpoint = None;
        }
        image.map_err(|error| error.with("state", &context.name))
    }

    fn checkpointed(&mut self, outcome: CheckpointOutcome) {
        self.give_up_capture();
        self.remembered.decide(outcome);
    }

    fn stats(&self) -> TableStats {
        let mut stats = TableStats {
            live_keys: self.timers.len() as u64,
            live_bytes: self.context.account.used_for(MemoryKind::Values),
            codec_calls: self.codec_calls,
            ..TableStats::default()
        };
        self.remembered.describe(&mut stats);
        stats
    }

    fn fixed_bytes(&self) -> (u64, u64) {
        (self.context.account.used(), self.context.account.limit())
    }
}

pub(super) fn heap_of<K: Key, N: State>(((_, key), namespace): &Timer<K, N>) -> u64 {
    (key.heap_bytes() + namespace.heap_bytes()) as u64
}

impl<K: Key + Ord, N: State + Ord> Drop for TimerTable<K, N> {
    fn drop(&mut self) {
        (self.checkpoint, self.given_up) = (None, Vec::new());
        let account = &self.context.account;
        account.release(MemoryKind::Values, account.used_for(MemoryKind::Values));
    }
}
