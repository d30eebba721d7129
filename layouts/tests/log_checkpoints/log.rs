//! A hybrid log on a simulated device, its checkpoints, and what each of them should hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium_layouts::{
    CheckpointOutcome, Cursor, HybridLog, HybridLogTable, Layout, Pace, StateContext, Table, Upkeep,
};
use alluvium_pagestore::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, Error, ErrorKind, Helper, KIB, MIB, MemoryKind, SegmentStore,
    State, StateImage, blobs_name,
};

use crate::dice::Dice;

/// What the log holds.
pub trait Value: State + PartialEq + Debug {
    fn of(n: u64) -> Self;
}

impl Value for u64 {
    fn of(n: u64) -> Self {
        n
    }
}

impl Value for String {
    fn of(n: u64) -> Self {
        format!("{n}{}", "x".repeat(n as usize % 50))
    }
}

pub type Model<V> = BTreeMap<u64, V>;

/// A checkpoint under way.
struct Sealing<V> {
    blobs: BlobWriter,
    /// What the log held at the barrier.
    model: Model<V>,
    image: Option<StateImage>,
}

/// One that can be restored.
struct Taken<V> {
    image: StateImage,
    model: Model<V>,
}

pub struct Log<V: Value> {
    device: Simulated,
    segments: SegmentStore,
    layout: HybridLog,
    memory: u64,
    pub keys: u64,
    threads: bool,
    late: u32,
    account: Rc<Account>,
    /// Of its buffers, after it was opened.
    idle_bytes: u64,
    table: Option<HybridLogTable<u64, V>>,
    model: Model<V>,
    sealing: Option<Sealing<V>>,
    /// Segments that were found to be dead and are to be removed.
    dead: Vec<u64>,
    taken: Vec<Taken<V>>,
    number: u64,
    compared: u64,
    /// Checkpoints that could not go on.
    lost: u64,
    pub dice: Dice,
}

/// Bytes that the buffers of a log take while it does nothing.
pub fn idle(account: &Account) -> u64 {
    account.used_for(MemoryKind::Buffers)
}

pub fn open<V: Value>(
    layout: &HybridLog,
    segments: &SegmentStore,
    memory: u64,
    threads: bool,
    restored: Option<&StateImage>,
) -> Result<(HybridLogTable<u64, V>, Rc<Account>), Error> {
    let account = Account::below(&Account::root(memory), "log", u64::MAX);
    let context = StateContext {
        name: "log".into(),
        account: account.clone(),
        segments: Some(segments.clone()),
        helper: if threads { Helper::thread()? } else { Helper::inline() },
        max_value_bytes: 512,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: restored.map(|i| (i.clone(), BlobReader::new(segments.shared_device()))),
    };
    Ok((Layout::<u64, V>::open(layout, context)?, account))
}

pub fn files(image: &StateImage) -> Vec<String> {
    let segments = image.segments().map(|segment| segment.id.file_name());
    let runs = image.runs().map(|run| run.id.file_name());
    let all: BTreeSet<_> = segments.chain(runs).chain(image.blob_files().map(blobs_name)).collect();
    all.into_iter().collect()
}

pub fn entries<V: Value>(table: &mut HybridLogTable<u64, V>) -> Result<Model<V>, Error> {
    let (mut seen, mut cursor) = (Model::new(), Cursor::default());
    // Each step opens all runs, if there are some.
    let fuel = if table.len() > 10_000 { 4000 } else { 16 };
    while !cursor.done {
        let mut again = BTreeSet::new();
        table.scan(&mut cursor, fuel, &mut |key, value| {
            assert!(again.insert(*key), "{key} twice");
            assert!(
                seen.insert(*key, value.clone()).is_none_or(|old| old == *value),
                "{key} twice"
            );
            Ok(())
        })?;
    }
    Ok(seen)
}

/// Trouble that the device was told to make.
fn is_planned(error: &Error) {
    let kinds = [
        ErrorKind::Io,
        ErrorKind::DiskFull,
        ErrorKind::Backpressure,
        ErrorKind::OverBudget,
        ErrorKind::Poisoned,
        ErrorKind::Overtaken,
    ];
    assert!(kinds.contains(&error.kind()), "{error:?}");
}

impl<V: Value> Log<V> {
    pub fn new(seed: u64, threads: bool) -> Self {
        Self::with(seed, threads, &[8, 16, 64, 1024], &[2, 4, 8, 32])
    }

    /// With memory for two of them: pages of few records need tables of most of it.
    pub fn with_memory(seed: u64, threads: bool) -> Self {
        Self::with(seed, threads, &[1024], &[32])
    }

    /// With records that move to sorted runs, as the index of all would take more than the memory.
    pub fn with_runs(seed: u64, threads: bool) -> Self {
        let mut log = Self::with(seed, threads, &[8], &[32]);
        log.memory = MIB;
        log.keys = 60_000;
        log.layout = HybridLog::new()
            .queue_depth(2)
            .generations(1 + (seed % 2) as u32)
            .patience(Duration::from_secs(60))
            .cold_runs(true);
        log.table = None;
        let (table, account) = open(&log.layout, &log.segments, log.memory, threads, None).unwrap();
        log.idle_bytes = idle(&account);
        (log.table, log.account) = (Some(table), account);
        for key in 0..log.keys {
            log.put(key);
        }
        log
    }

    /// With one of so many KiB beyond the least that it opens with, and pages of one of so many records.
    fn with(seed: u64, threads: bool, more: &[u64], pages: &[u32]) -> Self {
        let mut dice = Dice(seed);
        let late = dice.below(4) as u32;
        let device = Simulated::new(seed, Faults::late(late));
        let segments = SegmentStore::new(Arc::new(device.clone()), 1);
        let layout = HybridLog::new()
            .page_records(pages[dice.below(pages.len() as u64) as usize])
            .queue_depth(2)
            .segment([8, 12, 32][dice.below(3) as usize] * KIB)
            .cooling_percent([0, 25, 60][dice.below(3) as usize])
            .hash_bits([0, 4, 64, 64][dice.below(4) as usize])
            .generations(1 + (seed % 2) as u32)
            .patience(Duration::from_secs(60));
        // The least that it opens with, and a little or much more.
        let mut memory = 16 * KIB;
        while open::<V>(&layout, &segments, memory, false, None).is_err() {
            memory += 4 * KIB;
        }
        memory += more[dice.below(more.len() as u64) as usize] * KIB;
        let (table, account) = open(&layout, &segments, memory, threads, None).unwrap();
        let keys = if cfg!(miri) { 20 } else { [20, 200, 800][dice.below(3) as usize] };
        Self {
            device,
            segments,
            layout,
            memory,
            keys,
            threads,
            late,
            idle_bytes: idle(&account),
            account,
            table: Some(table),
            model: Model::new(),
            sealing: None,
            dead: Vec::new(),
            taken: Vec::new(),
            number: 0,
            compared: 0,
            lost: 0,
            dice,
        }
    }

    fn table(&mut self) -> &mut HybridLogTable<u64, V> {
        self.table.as_mut().expect("it is open")
    }

    pub fn play(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.dice.below(100) {
                0..45 => self.change_some(),
                45..48 => self.compare(),
                48..58 => self.begin(),
                58..80 => self.advance(),
                80..83 => drop(self.abort()),
                83..88 => self.confirm(),
                88..90 => self.trouble(),
                90..92 => self.trouble_ends(),
                92..97 => self.rewrite(),
                97 => self.restore(),
                98 => self.clear(),
                _ => {
                    let work = self.dice.below(100) as usize;
                    self.tick(work);
                }
            }
        }
    }

    pub fn tick(&mut self, work: usize) {
        self.table().tick(work).map_or_else(|e| is_planned(&e), drop);
    }

    /// Everything is as the model says once the device is well again.
    pub fn end(mut self) -> u64 {
        self.trouble_ends();
        self.abort();
        self.compare();
        // What the helper has of them it gives back when it comes to it.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            // An error of before may be told yet.
            self.tick(8);
            if idle(&self.account) == self.idle_bytes {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(idle(&self.account), self.idle_bytes, "memory of checkpoints given up");
        self.compare();
        let before = self.compared;
        while self.compared < before + 2 {
            self.begin();
            while self.sealing.as_ref().is_some_and(|sealing| sealing.image.is_none()) {
                self.advance();
            }
            self.confirm();
        }
        self.compare_restored(self.taken.len() - 1);
        self.restore();
        self.compare();
        self.compared
    }

    pub fn change_some(&mut self) {
        let many = [1, 3, 10, 60][self.dice.below(4) as usize];
        for _ in 0..=self.dice.below(many) {
            self.change();
        }
    }

    pub fn put(&mut self, key: u64) {
        let n = self.dice.next() % 1000;
        let known = self.table().put(key, V::of(n)).unwrap();
        assert_eq!(known, self.model.insert(key, V::of(n)).is_some());
    }

    pub fn change(&mut self) {
        let (key, n) = (self.dice.below(self.keys), self.dice.next() % 1000);
        let table = self.table.as_mut().expect("it is open");
        match self.dice.below(10) {
            0..4 => match table.put(key, V::of(n)) {
                Ok(known) => assert_eq!(known, self.model.insert(key, V::of(n)).is_some()),
                Err(rejected) => is_planned(&rejected.error),
            },
            4 => match table.update(&key, || V::of(0), |value| *value = V::of(n)) {
                Ok(()) => drop(self.model.insert(key, V::of(n))),
                Err(error) => is_planned(&error),
            },
            5 => self.modify(key, n),
            6 => {
                let batch: Vec<u64> = (0..n % 20).map(|i| (key + i * 7) % self.keys).collect();
                let change = |_: &u64, value: &mut V| *value = V::of(n);
                let done = table.update_batch(&batch, |key| key, |_| V::of(1), change);
                let applied = done.map_or_else(
                    |stopped| {
                        is_planned(&stopped.error);
                        stopped.applied
                    },
                    |()| batch.len(),
                );
                self.model.extend(batch[..applied].iter().map(|key| (*key, V::of(n))));
            }
            7 | 8 => match table.take(&key) {
                Ok(value) => assert_eq!(value, self.model.remove(&key), "{key}"),
                Err(error) => is_planned(&error),
            },
            _ => match table.get(&key) {
                Ok(value) => assert_eq!(value, self.model.get(&key), "{key}"),
                Err(error) => is_planned(&error),
            },
        }
        assert_eq!(self.table().len(), self.model.len() as u64);
    }

    pub fn modify(&mut self, key: u64, n: u64) {
        match self.table().modify(&key, |value| *value = V::of(n)) {
            Ok(None) => assert!(!self.model.contains_key(&key), "{key} is missing"),
            Ok(Some(())) => assert!(self.model.insert(key, V::of(n)).is_some(), "{key} is back"),
            Err(error) => is_planned(&error),
        }
    }

    fn compare(&mut self) {
        match entries(self.table()) {
            Ok(found) => assert_eq!(found, self.model),
            Err(error) => is_planned(&error),
        }
    }

    /// Nothing is written for it, whatever is being sealed.
    pub fn clear(&mut self) {
        match self.table().clear() {
            Ok(()) => self.model.clear(),
            Err(error) => is_planned(&error),
        }
    }

    pub fn begin(&mut self) {
        if self.sealing.is_some() {
            return;
        }
        self.number += 1;
        let mut blobs = BlobWriter::new(self.segments.shared_device(), self.number, 4096);
        let begun = self.table().begin_checkpoint(&mut blobs);
        let model = self.model.clone();
        self.sealing = Some(Sealing { blobs, model, image: None });
        match begun {
            Ok(None) => {}
            Ok(Some(image)) => self.sealed(image),
            Err(error) => {
                is_planned(&error);
                self.abort();
            }
        }
    }

    pub fn advance(&mut self) {
        let Some(sealing) = &mut self.sealing else { return };
        if sealing.image.is_some() {
            return;
        }
        let table = self.table.as_mut().expect("it is open");
        table.pace_checkpoint(Pace {
            calls: self.dice.below(300),
            gone: self.dice.below(Pace::WHOLE + Pace::WHOLE / 4),
        });
        match table.continue_checkpoint(&mut sealing.blobs) {
            Ok(Some(image)) => self.sealed(image),
            Ok(None) => {}
            Err(error) => {
                is_planned(&error);
                self.lost += 1;
                // It may be tried again, or not.
                let is_hopeless = error.message().contains("begin it again");
                if is_hopeless || self.dice.below(3) == 0 {
                    self.abort();
                    self.begin();
                }
            }
        }
    }

    /// The image is there: it holds what the log held at the barrier.
    fn sealed(&mut self, image: StateImage) {
        let names = files(&image);
        self.segments.pin(names.iter().map(String::as_str));
        let sealing = self.sealing.as_mut().expect("it was begun");
        self.device.drain();
        restored(&self.device, &self.layout, &image, &sealing.model);
        self.compared += 1;
        sealing.image = Some(image);
    }

    /// Whether the checkpoint being sealed is whole, if one is.
    pub fn is_whole(&self) -> Option<bool> {
        self.sealing.as_ref().map(|sealing| sealing.image.is_some())
    }

    /// How many checkpoints could not go on.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// More is not booked than there is.
    pub fn check_memory(&self) {
        assert!(self.account.used() <= self.memory, "{} bytes: {:?}", self.memory, self.account);
    }

    /// Gives a checkpoint up, and gives back what it would have held.
    pub fn abort(&mut self) -> Option<Model<V>> {
        let Sealing { blobs, image, model } = self.sealing.take()?;
        if let Some(image) = &image {
            self.segments.unpin(files(image).iter().map(String::as_str));
        }
        self.table().checkpointed(CheckpointOutcome::Abandoned);
        blobs.abandon();
        Some(model)
    }

    pub fn confirm(&mut self) {
        if self.sealing.as_ref().is_none_or(|sealing| sealing.image.is_none()) {
            return;
        }
        let sealing = self.sealing.as_ref().expect("looked at above");
        if let Err(error) = sealing.blobs.finish() {
            is_planned(&error);
            return drop(self.abort());
        }
        let Sealing { image, model, .. } = self.sealing.take().expect("looked at above");
        let image = image.expect("looked at above");
        let outcome = match self.dice.below(5) {
            0 => CheckpointOutcome::Unknown,
            _ => CheckpointOutcome::Committed,
        };
        self.table().checkpointed(outcome);
        self.taken.push(Taken { image, model });
        while self.taken.len() > 3 && outcome == CheckpointOutcome::Committed {
            let oldest = self.taken.remove(0);
            self.segments.unpin(files(&oldest.image).iter().map(String::as_str));
        }
        let any = self.dice.below(self.taken.len() as u64) as usize;
        self.compare_restored(any);
    }

    /// One of those retained holds what it should.
    fn compare_restored(&mut self, which: usize) {
        self.device.drain();
        let Taken { image, model } = &self.taken[which];
        restored(&self.device, &self.layout, image, model);
        self.compared += 1;
    }

    /// The log goes on from one of those retained, as after a crash.
    fn restore(&mut self) {
        self.abort();
        if self.taken.is_empty() {
            return;
        }
        self.trouble_ends();
        self.table = None;
        self.dead.clear();
        let which = self.dice.below(self.taken.len() as u64) as usize;
        self.taken.truncate(which + 1);
        let next = self.segments.peek_id();
        self.device.drain();
        self.device = self.device.crash(CrashPolicy::Everything);
        self.device.set_faults(Faults::late(self.late));
        self.segments = SegmentStore::new(Arc::new(self.device.clone()), next);
        let mut named = BTreeSet::new();
        for Taken { image, .. } in &self.taken {
            self.segments.pin(files(image).iter().map(String::as_str));
            named.extend(files(image));
        }
        for name in self.device.list().unwrap() {
            if !named.contains(&name) {
                self.device.remove(&name).unwrap();
            }
        }
        let Taken { image, model } = &self.taken[which];
        let (mut memory, threads) = (self.memory, self.threads);
        // Of memories near the least a restore may ask for more.
        let (table, account) = loop {
            match open(&self.layout, &self.segments, memory, threads, Some(image)) {
                Ok(opened) => break opened,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error:?}");
                    assert!(memory < 4 * MIB, "{error:?}");
                    memory *= 2;
                }
            }
        };
        self.idle_bytes = idle(&account);
        (self.table, self.account) = (Some(table), account);
        self.model.clone_from(model);
        self.compare();
    }

    fn trouble(&mut self) {
        let mut chance = || [0.0, 0.02, 0.3][self.dice.below(3) as usize];
        let faults = Faults {
            latency_max: self.late,
            read_errors: chance() / 4.0,
            write_errors: chance(),
            sync_errors: chance(),
            directory_errors: chance() / 2.0,
            ..Faults::none()
        };
        self.device.set_faults(faults);
        if self.dice.below(3) == 0 {
            let full = self.device.used_bytes() + self.dice.below(64 * KIB);
            self.device.set_capacity_bytes(Some(full));
        }
    }

    fn trouble_ends(&mut self) {
        self.device.set_faults(Faults::late(self.late));
        self.device.set_capacity_bytes(None);
    }

    /// Goes on rewriting any segment, or removes those that have died.
    fn rewrite(&mut self) {
        let (pick, fuel) = (self.dice.next(), 1 + self.dice.below(60) as usize);
        let begin = self.dice.below(3) == 0;
        let (some, mut dead) = (self.dice.below(4) as usize, std::mem::take(&mut self.dead));
        let rewriter = self.table().rewriter().expect("a log with segments");
        let mut all = Vec::new();
        rewriter.segments(&mut all);
        // As a policy does, some of those that it saw an earlier time.
        let found = all.iter().filter(|s| s.sealed && s.live_records == 0 && !s.pinned);
        dead.extend(found.map(|segment| segment.id));
        for id in dead.drain(..some.min(dead.len())) {
            rewriter.unlink(id).unwrap_or_else(|e| is_planned(&e));
        }
        let sealed: Vec<_> = all.iter().filter(|s| s.sealed && s.live_records > 0).collect();
        if begin && !sealed.is_empty() {
            // Some of them together, of which the first that is begun may not be one.
            let at = |nth: u64| sealed[(pick.wrapping_add(nth)) as usize % sealed.len()].id;
            let together: Vec<_> = (0..pick % 4).map(at).collect();
            rewriter.foresee(&together);
            rewriter.begin(at(pick % 3)).unwrap_or_else(|e| is_planned(&e));
        }
        rewriter.step(fuel).map_or_else(|e| is_planned(&e), drop);
        self.dead = dead;
    }
}

/// A checkpoint, restored elsewhere, holds what the model says, and each record once.
pub fn restored<V: Value>(
    device: &Simulated,
    layout: &HybridLog,
    image: &StateImage,
    model: &Model<V>,
) {
    let copy = device.crash(CrashPolicy::Everything);
    let segments = SegmentStore::new(Arc::new(copy), 1 << 20);
    let (mut table, account) = open::<V>(layout, &segments, 4 * MIB, false, Some(image))
        .unwrap_or_else(|e| panic!("{e:?}"));
    let before = idle(&account);
    assert_eq!(entries(&mut table).unwrap(), *model, "restored from {image:?}");
    assert_eq!(table.len(), model.len() as u64);
    assert_eq!(idle(&account), before, "memory of a scan");
}
