//! A directory, a budget, two kinds of accumulators and the model.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium_layouts::{CheckpointOutcome, Cursor, Merge, Panes, PanesLayout, StateContext};
use alluvium_pagestore::io::{Device, Faults, IoOptions, Simulated, open_device};
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, Helper, SegmentStore, State, StateImage, Time, hash_word,
};

/// What came, in order: the oracle remembers all of it.
pub type Items = Vec<u32>;

/// An accumulator that tells the order in which things came.
pub trait Accumulator: State + PartialEq + Debug {
    fn begin() -> Self;
    fn push(&mut self, item: u32);
    /// What it is after `items`.
    fn of(items: &[u32]) -> Self {
        let mut new = Self::begin();
        items.iter().for_each(|item| new.push(*item));
        new
    }
    fn append(&mut self, newer: &Self);
}

const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A count, and a hash that depends on the order.
impl Accumulator for (u64, u64) {
    fn begin() -> Self {
        (0, 0)
    }

    fn push(&mut self, item: u32) {
        *self = (self.0 + 1, self.1.wrapping_mul(BASE).wrapping_add(u64::from(item) + 1));
    }

    fn append(&mut self, newer: &Self) {
        let power = (0..newer.0).fold(1u64, |power, _| power.wrapping_mul(BASE));
        *self = (self.0 + newer.0, self.1.wrapping_mul(power).wrapping_add(newer.1));
    }
}

/// All of it.
impl Accumulator for Items {
    fn begin() -> Self {
        Vec::new()
    }

    fn push(&mut self, item: u32) {
        Vec::push(self, item);
    }

    fn append(&mut self, newer: &Self) {
        self.extend_from_slice(newer);
    }
}

pub fn merge<A: Accumulator>() -> Merge<A> {
    Rc::new(|older: &mut A, newer: &A| older.append(newer))
}

/// Numbers that look random.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 += 1;
        hash_word(hash_word(self.0)) % limit
    }
}

/// Where panes live: their budget, their files, and the last checkpoint.
pub struct Place {
    pub account: Rc<Account>,
    pub device: Option<Arc<dyn Device>>,
    pub helper: Helper,
    pub max_value_bytes: u64,
    next_segment: u64,
    checkpoints: u64,
    committed: Option<StateImage>,
}

impl Place {
    pub fn in_memory(limit: u64) -> Self {
        Self {
            account: Account::root(limit),
            device: None,
            helper: Helper::inline(),
            max_value_bytes: 4 << 10,
            next_segment: 1,
            checkpoints: 0,
            committed: None,
        }
    }

    /// On a simulated device whose requests end late.
    pub fn simulated(limit: u64, seed: u64) -> (Self, Simulated) {
        let device = Simulated::new(seed, Faults::late(6));
        let shared: Arc<dyn Device> = Arc::new(device.clone());
        (Self { device: Some(shared), ..Self::in_memory(limit) }, device)
    }

    /// In a directory, with a helper thread.
    pub fn real(limit: u64, directory: &Path) -> Self {
        let device = open_device(directory, &IoOptions::default()).unwrap();
        let helper = Helper::thread().unwrap();
        Self { device: Some(device), helper, ..Self::in_memory(limit) }
    }

    pub fn open<A: Accumulator, L: PanesLayout<u64, A>>(&mut self, layout: &L) -> L::Panes {
        self.try_open(layout).unwrap()
    }

    pub fn try_open<A: Accumulator, L: PanesLayout<u64, A>>(
        &mut self,
        layout: &L,
    ) -> alluvium_pagestore::Result<L::Panes> {
        let device = self.device.clone();
        let restored =
            self.committed.clone().map(|image| (image, BlobReader::new(device.clone().unwrap())));
        let segments = device.map(|device| SegmentStore::new(device, self.next_segment));
        let context = StateContext {
            name: "panes".into(),
            account: Account::below(
                &self.account,
                "panes",
                layout.memory_limit().unwrap_or(u64::MAX),
            ),
            segments: segments.clone(),
            helper: self.helper.clone(),
            max_value_bytes: self.max_value_bytes,
            key_groups: 256,
            owned: 0..256,
            movable: false,
            restored,
        };
        let opened = layout.open_panes(context, merge::<A>());
        // Ids are not given twice, whatever a reopen finds.
        self.next_segment += 1 << 20;
        opened
    }

    /// Takes a checkpoint; a crash after it finds it.
    pub fn checkpoint<A: Accumulator>(
        &mut self,
        panes: &mut impl Panes<u64, A>,
    ) -> alluvium_pagestore::Result<StateImage> {
        let image = self.begin_checkpoint(panes)?;
        panes.checkpointed(CheckpointOutcome::Committed);
        Ok(image)
    }

    /// Writes a checkpoint that may be restored, without telling the panes.
    pub fn begin_checkpoint<A: Accumulator>(
        &mut self,
        panes: &mut impl Panes<u64, A>,
    ) -> alluvium_pagestore::Result<StateImage> {
        self.checkpoints += 1;
        let mut blobs = BlobWriter::new(self.device.clone().unwrap(), self.checkpoints, 4096);
        let image = panes.checkpoint(&mut blobs)?;
        blobs.finish()?;
        self.committed = Some(image.clone());
        Ok(image)
    }

    /// Begins a checkpoint; the image, if that is all.
    pub fn begin<A: Accumulator>(
        &mut self,
        panes: &mut impl Panes<u64, A>,
    ) -> alluvium_pagestore::Result<Option<StateImage>> {
        let mut blobs = self.blobs();
        panes.begin_checkpoint(&mut blobs)
    }

    /// Does a step of it.
    pub fn advance<A: Accumulator>(
        &mut self,
        panes: &mut impl Panes<u64, A>,
    ) -> alluvium_pagestore::Result<Option<StateImage>> {
        let mut blobs = self.blobs();
        panes.continue_checkpoint(&mut blobs)
    }

    /// Nothing is written with it.
    fn blobs(&mut self) -> BlobWriter {
        self.checkpoints += 1;
        BlobWriter::new(self.device.clone().unwrap(), self.checkpoints, 4096)
    }

    /// An image was taken and is the one that is restored.
    pub fn commit<A: Accumulator>(&mut self, panes: &mut impl Panes<u64, A>, image: StateImage) {
        self.committed = Some(image);
        panes.checkpointed(CheckpointOutcome::Committed);
    }

    /// Names of the segment files that are there.
    pub fn segment_files(&self) -> Vec<String> {
        let mut names = self.device.as_ref().unwrap().list().unwrap();
        names.retain(|name| name.starts_with("seg-"));
        names
    }
}

/// The oracle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model(pub BTreeMap<(i64, u64), Items>);

impl Model {
    pub fn update(&mut self, slice: i64, key: u64, item: u32) {
        self.0.entry((slice, key)).or_default().push(item);
    }

    pub fn get<A: Accumulator>(&self, slice: i64, key: u64) -> Option<A> {
        self.0.get(&(slice, key)).map(|items| A::of(items))
    }

    pub fn fold<A: Accumulator>(&self, slices: Range<i64>) -> BTreeMap<u64, A> {
        let mut merged = BTreeMap::<u64, Items>::new();
        for ((_, key), items) in self.0.range((slices.start, 0)..(slices.end, 0)) {
            merged.entry(*key).or_default().extend(items);
        }
        merged.into_iter().map(|(key, items)| (key, A::of(&items))).collect()
    }

    pub fn purge(&mut self, before: i64) {
        self.0 = self.0.split_off(&(before, 0));
    }
}

pub fn put<A: Accumulator>(
    panes: &mut impl Panes<u64, A>,
    slice: i64,
    key: u64,
    item: u32,
) -> alluvium_pagestore::Result<()> {
    panes.update(Time(slice), &key, A::begin, |sum| sum.push(item))
}

/// Folds with so much fuel per call, by value and by reference in turns; each key comes once.
pub fn fold<A: Accumulator>(
    panes: &mut impl Panes<u64, A>,
    slices: Range<i64>,
    fuel: usize,
) -> alluvium_pagestore::Result<BTreeMap<u64, A>> {
    let (mut cursor, mut found, mut lent) = (Cursor::default(), BTreeMap::new(), fuel % 2 == 0);
    let mut come = |key: &u64, sum| -> alluvium_pagestore::Result<()> {
        assert_eq!(found.insert(*key, sum), None, "key {key} comes twice");
        Ok(())
    };
    while !cursor.done {
        let range = Time(slices.start)..Time(slices.end);
        match lent {
            true => panes.visit(range, &mut cursor, fuel, |run| {
                run.for_each(|(key, sum)| come(key, sum.clone()).unwrap());
            })?,
            false => panes.fold(range, &mut cursor, fuel, &mut come)?,
        }
        lent = !lent;
    }
    Ok(found)
}

/// Purges with so much fuel per call, and has the helper end what it does.
pub fn purge<A: Accumulator>(panes: &mut impl Panes<u64, A>, before: i64, fuel: usize) {
    let mut calls = 0;
    while !panes.purge(Time(before), fuel).unwrap() {
        calls += 1;
        assert!(calls < 10_000_000, "a purge without an end");
    }
}

/// Lets the helper end what it does, until `enough`.
pub fn settle<A: Accumulator, P: Panes<u64, A>>(panes: &mut P, enough: impl Fn(&mut P) -> bool) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        panes.tick(64).unwrap();
        if enough(panes) {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    panic!("the helper does not end: {:?}", panes.stats());
}
