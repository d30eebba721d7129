//! Checkpoints of a table on the heap, in one or in the order of hashes, write what has changed since the last one that was confirmed, and
//! each one that is retained is of its own barrier.
//!
//! What this catches: an entry that is left out because a change, a removal, a move in memory or a
//! checkpoint that was given up was forgotten; one that comes back; records counted wrong; memory that
//! is not given back, or not booked; segments that are never given up; checkpoints that write all.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{
    CheckpointOutcome, Cursor, Heap, Layout, Pace, StateContext, Table, Upkeep,
};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, ErrorKind, Helper, KeyHash, MemoryKind, SegmentStore, State,
    StateImage, hash_word,
};

use crate::retained::Retained;

/// A value: one that owns heap is read and encoded at once, another one is copied first.
pub trait Word: State + Default + Eq + std::fmt::Debug {
    fn of(n: u64) -> Self;
    fn update(&mut self);
    fn modify(&mut self);
}

impl Word for String {
    fn of(n: u64) -> Self {
        format!("{n} ").repeat(1 + n as usize % 9)
    }

    fn update(&mut self) {
        self.push('u');
    }

    fn modify(&mut self) {
        self.insert(0, 'm');
    }
}

impl Word for u64 {
    fn of(n: u64) -> Self {
        n
    }

    fn update(&mut self) {
        *self += 1;
    }

    fn modify(&mut self) {
        *self = self.rotate_left(7);
    }
}

pub type Model<V> = BTreeMap<u64, V>;

/// A table, what should be in it, and the checkpoints of it that can be restored.
pub struct Ground<L, V> {
    layout: PhantomData<L>,
    device: Simulated,
    store: SegmentStore,
    pub account: Rc<Account>,
    memory: u64,
    helper: Helper,
    chance: u64,
    number: u64,
    retained: Retained<Model<V>>,
}

impl<L: Layout<u64, V> + Default, V: Word> Ground<L, V> {
    pub fn new(seed: u64, memory: u64) -> Self {
        let device = Simulated::new(seed, Faults::late(2));
        let store = SegmentStore::new(Arc::new(device.clone()), 1);
        let (account, helper) = (Account::root(memory), Helper::inline());
        let (chance, number, retained) = (seed << 32, 0, Retained::none(&store));
        let layout = PhantomData;
        Self { layout, device, store, account, memory, helper, chance, number, retained }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.chance += 1;
        hash_word(hash_word(self.chance)) % limit
    }

    fn open(&self, account: &Rc<Account>, image: Option<StateImage>) -> L::Table {
        L::default().open(self.context(account, image)).unwrap()
    }

    pub fn context(&self, account: &Rc<Account>, image: Option<StateImage>) -> StateContext {
        let device: Arc<dyn Device> = Arc::new(self.device.clone());
        StateContext {
            name: "table".into(),
            account: Account::below(account, "table", u64::MAX),
            segments: Some(self.store.clone()),
            helper: self.helper.clone(),
            max_value_bytes: 4096,
            key_groups: 256,
            owned: 0..256,
            movable: false,
            restored: image.map(|image| (image, BlobReader::new(device))),
        }
    }

    pub fn blobs(&mut self) -> BlobWriter {
        self.number += 1;
        BlobWriter::new(Arc::new(self.device.clone()), self.number, 4096)
    }

    /// One seeded change of both, of keys below `keys`; `share` of them in a hundred.
    fn change(&mut self, table: &mut L::Table, model: &mut Model<V>, keys: u64) {
        let (key, n) = (self.below(keys), self.below(1000));
        let word = V::of(n);
        match self.below(100) {
            0..30 => {
                table.put(key, word.clone()).unwrap();
                model.insert(key, word);
            }
            30..60 => {
                table.update(&key, V::default, V::update).unwrap();
                model.entry(key).or_default().update();
            }
            60..80 => {
                let found = table.modify(&key, V::modify).unwrap();
                assert_eq!(found, model.get_mut(&key).map(V::modify));
            }
            _ => assert_eq!(table.take(&key).unwrap(), model.remove(&key)),
        }
        assert!(self.account.used() <= self.memory);
    }

    /// Some key groups leave both, if the table finds them.
    fn leave(&mut self, table: &mut L::Table, model: &mut Model<V>) {
        let share = u64::MAX / 16;
        let first = self.below(16) * share;
        let hashes = first..=first + share;
        if let Some(by_hash) = table.by_hash() {
            let mut cursor = Cursor::default();
            while !cursor.done {
                by_hash.remove_hashes((), &hashes, &mut cursor, 50).unwrap();
            }
            model.retain(|key, _| !hashes.contains(&key.key_hash()));
        }
    }

    /// Each retained checkpoint is what it was, on memory of its own.
    fn check_retained(&self, when: &str) {
        for (image, then) in self.retained.all() {
            let account = Account::root(1 << 30);
            assert_eq!(image.entries, then.len() as u64, "{when}");
            let live: u64 = image.segments().map(|segment| segment.live_records).sum();
            assert_eq!(live, image.entries, "{when}");
            assert_eq!(entries(&mut self.open(&account, Some(image.clone()))), *then, "{when}");
        }
    }
}

fn entries<V: Word>(table: &mut impl Table<u64, V>) -> Model<V> {
    let (mut found, mut cursor) = (Model::new(), Cursor::default());
    while !cursor.done {
        table
            .scan(&mut cursor, 100, &mut |key, value| {
                assert_eq!(found.insert(*key, value.clone()), None);
                Ok(())
            })
            .unwrap();
    }
    found
}

/// What becomes of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Committed,
    /// Given up after so many steps.
    GivenUp(u64),
    /// The disk is full after so many.
    Full(u64),
    Unknown,
}

#[test]
fn every_retained_checkpoint_of_a_random_history_is_of_its_barrier() {
    let seeds = match std::env::var_os("ALLUVIUM_LONG") {
        _ if cfg!(miri) => 1,
        Some(_) => 300,
        None => 9,
    };
    for seed in 0..seeds {
        let memory = if seed % 6 == 4 { 600 << 10 } else { 64 << 20 };
        history::<Heap, String>(seed, memory);
        history::<Heap, u64>(seed, memory);
    }
}

fn history<L: Layout<u64, V> + Default, V: Word>(seed: u64, memory: u64) {
    let mut ground = Ground::<L, V>::new(seed, memory);
    let account = ground.account.clone();
    let (mut table, mut model) = (ground.open(&account, None), Model::new());
    let keys = if cfg!(miri) { 30 } else { [100, 1_000, 4_000][seed as usize % 3] };
    for _ in 0..2 * keys {
        ground.change(&mut table, &mut model, keys);
    }
    let (mut encoded, mut all) = (0, 0);
    for round in 0..if cfg!(miri) { 5 } else { 60 } {
        // Few keys, and now and then many, new ones or none at all.
        let (changes, wide) = match ground.below(12) {
            0 => (2 * keys, keys),
            1 => (keys, 2 * keys),
            2 => (0, keys),
            3 => (keys / 3, keys),
            _ => (keys / 20, keys),
        };
        for _ in 0..changes {
            ground.change(&mut table, &mut model, wide);
        }
        if ground.below(40) == 0 {
            table.clear().unwrap();
            model.clear();
        }
        if ground.below(8) == 0 {
            ground.leave(&mut table, &mut model);
        }
        let end = match ground.below(10) {
            0 | 1 => End::GivenUp(ground.below(6)),
            2 => End::Full(ground.below(6)),
            3 if ground.below(3) == 0 => End::Unknown,
            _ => End::Committed,
        };
        let when = format!("seed {seed}, round {round}, {end:?}");
        let (then, before) = (model.clone(), table.stats().codec_calls);
        if checkpoint(&mut ground, &mut table, &mut model, (end, keys)) {
            encoded += table.stats().codec_calls - before;
            all += then.len() as u64;
        }
        assert_eq!(entries(&mut table), model, "{when}");
        if round % 5 == 4 {
            ground.check_retained(&when);
        }
        if ground.below(12) == 0 {
            drop(table);
            assert_eq!(account.used(), 0, "{when}");
            let last = ground.retained.all().last().cloned();
            table = ground.open(&account, last.as_ref().map(|(image, _)| image.clone()));
            model = last.map(|(_, then)| then).unwrap_or_default();
            assert_eq!(entries(&mut table), model, "{when}");
        }
    }
    drop(table);
    assert_eq!(account.used(), 0, "seed {seed}");
    let is_large = memory > 1 << 20;
    assert!(!is_large || encoded < all * 8 / 10, "seed {seed}: {encoded} of {all} were written");
}

/// Takes a checkpoint while the table changes; says whether it was confirmed.
fn checkpoint<L: Layout<u64, V> + Default, V: Word>(
    ground: &mut Ground<L, V>,
    table: &mut L::Table,
    model: &mut Model<V>,
    (end, keys): (End, u64),
) -> bool {
    let (then, mut blobs) = (model.clone(), ground.blobs());
    let mut taken = table.begin_checkpoint(&mut blobs).unwrap();
    let (mut step, mut failed) = (0, false);
    // It grows or is cleared meanwhile, seldom.
    let (many, clears) = (ground.below(20) == 0, ground.below(40) == 0);
    let leaves = ground.below(8) == 0;
    // It follows the stream, to an end that is near, far, or reached at once.
    let parts = [u64::MAX, 1000, 40, 0][ground.below(4) as usize];
    while taken.is_none() && end != End::GivenUp(step) && !failed {
        for _ in 0..if many { keys } else { 4 } {
            ground.change(table, model, if many { 4 * keys } else { keys });
        }
        if clears && step == 1 {
            table.clear().unwrap();
            model.clear();
        }
        if leaves && step == 2 {
            ground.leave(table, model);
        }
        if end == End::Full(step) {
            ground.device.set_capacity_bytes(Some(ground.device.used_bytes()));
        }
        if parts > 0 {
            let gone = Pace::WHOLE.min(step * Pace::WHOLE.div_ceil(parts));
            table.pace_checkpoint(Pace { calls: 64, gone });
        }
        match table.continue_checkpoint(&mut blobs) {
            Ok(image) => taken = image,
            Err(error) => {
                use ErrorKind::{DiskFull, Io, OverBudget, Overtaken};
                let kinds = [DiskFull, OverBudget, Overtaken, Io];
                assert!(kinds.contains(&error.kind()), "{error}");
                failed = true;
            }
        }
        step += 1;
    }
    ground.device.set_capacity_bytes(None);
    for _ in 0..4 {
        ground.change(table, model, keys);
    }
    let outcome = match (taken, end) {
        (Some(image), End::Committed | End::Unknown) => {
            ground.retained.push(image, then);
            match end {
                End::Committed => CheckpointOutcome::Committed,
                _ => CheckpointOutcome::Unknown,
            }
        }
        _ => CheckpointOutcome::Abandoned,
    };
    table.checkpointed(outcome);
    while ground.helper.drive() {}
    if outcome == CheckpointOutcome::Abandoned {
        blobs.abandon();
    }
    outcome == CheckpointOutcome::Committed
}

/// Notes of what has died are given up between two of the last shares, which add them to sets of what is live: the
/// checkpoint is lost, and does not go on without end, nor says what is not so.
#[test]
fn a_checkpoint_without_the_notes_that_its_sets_need_is_lost() {
    lost_without_notes::<Heap>();
}

fn lost_without_notes<L: Layout<u64, String> + Default>() {
    const KEYS: u64 = 20_000;
    let mut ground = Ground::<L, String>::new(7, 64 << 20);
    let account = ground.account.clone();
    let mut table = ground.open(&account, None);
    let mut model: Model<String> = (0..KEYS).map(|key| (key, String::of(key))).collect();
    model.iter().for_each(|(key, value)| assert!(!table.put(*key, value.clone()).unwrap()));
    table.checkpoint(&mut ground.blobs()).unwrap();
    table.checkpointed(CheckpointOutcome::Committed);
    // So many that sets are made; the others stay where they are.
    for key in 0..KEYS * 6 / 10 {
        assert_eq!(
            table.modify(&key, String::modify).unwrap(),
            model.get_mut(&key).map(String::modify)
        );
    }
    let mut blobs = ground.blobs();
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    // More than one share adds.
    for key in KEYS * 6 / 10..KEYS {
        assert_eq!(table.take(&key).unwrap(), model.remove(&key));
    }
    let looks = table.stats().checkpoint_looks;
    while table.stats().checkpoint_looks < looks + 4096 {
        assert!(table.continue_checkpoint(&mut blobs).unwrap().is_none(), "it makes no sets");
    }
    table.reclaim(1 << 30).unwrap();
    for _ in 0..10 {
        let error = table.continue_checkpoint(&mut blobs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Overtaken, "{error}");
    }
    table.checkpointed(CheckpointOutcome::Abandoned);
    let image = table.checkpoint(&mut ground.blobs()).unwrap();
    ground.retained.push(image, model);
    ground.check_retained("the next one");
}

/// A short entry that changes before it is read is copied then: it need not be found again among others that were kept.
#[test]
fn short_entries_that_change_before_they_are_read_are_copied_at_once() {
    copied_at_once::<Heap>();
}

fn copied_at_once<L: Layout<u64, u64> + Default>() {
    const KEYS: u64 = 20_000;
    let mut ground = Ground::<L, u64>::new(11, 64 << 20);
    let account = ground.account.clone();
    let mut table = ground.open(&account, None);
    let mut model: Model<u64> = (0..KEYS).map(|key| (key, key)).collect();
    model.iter().for_each(|(key, value)| assert!(!table.put(*key, *value).unwrap()));
    table.checkpoint(&mut ground.blobs()).unwrap();
    table.checkpointed(CheckpointOutcome::Committed);
    let change = |table: &mut L::Table, model: &mut Model<u64>, step: usize| {
        for key in (0..KEYS).step_by(step) {
            table.modify(&key, Word::update).unwrap().unwrap();
            model.get_mut(&key).map(Word::update).unwrap();
        }
    };
    change(&mut table, &mut model, 3);
    let then = model.clone();
    let before = (account.used_for(MemoryKind::Index), table.stats().codec_calls);
    let mut blobs = ground.blobs();
    assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
    change(&mut table, &mut model, 2);
    assert_eq!(account.used_for(MemoryKind::Index), before.0, "something is kept beside");
    let image = loop {
        if let Some(image) = table.continue_checkpoint(&mut blobs).unwrap() {
            break image;
        }
    };
    let copied = table.stats().codec_calls - before.1;
    assert_eq!(copied, KEYS.div_ceil(3), "each of those that had changed, once");
    table.checkpointed(CheckpointOutcome::Committed);
    ground.retained.push(image, then);
    let image = table.checkpoint(&mut ground.blobs()).unwrap();
    table.checkpointed(CheckpointOutcome::Committed);
    ground.retained.push(image, model);
    ground.check_retained("copied early");
}

/// What was written for a checkpoint of a table of so many, once it has settled.
fn written<L>(keys: u64, changed: u64, clustered: bool) -> Vec<u64>
where
    L: Layout<u64, String> + Default,
{
    let mut ground = Ground::<L, String>::new(1, 256 << 20);
    let account = ground.account.clone();
    let mut table = ground.open(&account, None);
    for key in 0..keys {
        table.put(key, "a value of some thirty-two bytes".into()).unwrap();
    }
    let mut bytes = Vec::new();
    for _ in 0..40 {
        for nth in 0..changed {
            let key = if clustered { nth } else { ground.below(keys) };
            table
                .modify(&key, |value| *value = "and another of as many such bytes".into())
                .unwrap();
        }
        let before = table.stats().flushed_bytes;
        let mut blobs = ground.blobs();
        table.checkpoint(&mut blobs).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        bytes.push(table.stats().flushed_bytes - before + blobs.bytes());
        let stats = table.stats();
        assert!(stats.disk_bytes <= 3 * keys * 120 + (1 << 20), "{stats:?}");
    }
    bytes
}

/// Header of a segment, page and tail, and those of the list: whole blocks.
const BLOCKS: u64 = 24 << 10;
/// A record with its header, on storage.
const RECORD: u64 = 64;

#[test]
fn a_checkpoint_writes_in_proportion_to_what_has_changed() {
    in_proportion::<Heap>();
}

fn in_proportion<L: Layout<u64, String> + Default>() {
    for (changed, clustered) in [(50, false), (500, false), (5_000, false), (500, true)] {
        let bytes = written::<L>(50_000, changed, clustered);
        assert!(bytes[0] > 50_000 * RECORD, "the first has everything");
        // The same key may be changed twice: there are no more than these.
        let bound = changed * (RECORD * 3 / 2 + 32) + BLOCKS;
        let mut later: Vec<u64> = bytes[1..].to_vec();
        later.sort_unstable();
        let mean = later.iter().sum::<u64>() / later.len() as u64;
        let median = later[later.len() / 2];
        assert!(median <= bound, "{changed} changed: {median} > {bound}: {bytes:?}");
        assert!(mean <= 2 * bound, "{changed} changed: {mean} in the mean, {bound}: {bytes:?}");
    }
}

#[test]
fn a_checkpoint_of_16_times_the_state_writes_the_same() {
    the_same::<Heap>();
}

fn the_same<L: Layout<u64, String> + Default>() {
    let median = |keys: u64| {
        let mut bytes = written::<L>(keys, 50, false).split_off(1);
        bytes.sort_unstable();
        bytes[bytes.len() / 2]
    };
    let (small, large) = (median(5_000), median(80_000));
    assert!(large <= small * 5 / 4, "{small} of 5,000, {large} of 80,000");
}

/// A key whose hash is that of many others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Alike(u64);

impl KeyHash for Alike {
    fn key_hash(&self) -> u64 {
        hash_word(self.0 % 2)
    }
}

/// Entries that cannot be told apart by their hashes are remembered as others are: what has changed is written.
#[test]
fn entries_of_one_hash_are_written_when_they_have_changed() {
    let mut ground = Ground::<Heap, u64>::new(5, 64 << 20);
    let account = ground.account.clone();
    let open = |ground: &Ground<_, _>, image| Heap::default().open(ground.context(&account, image));
    let mut table = open(&ground, None).unwrap();
    let (mut values, mut written, mut changed) = (Vec::new(), Vec::new(), BTreeSet::new());
    for more in [50, 50, 200, 10, 300, 0] {
        for key in values.len() as u64..values.len() as u64 + more {
            table.put(Alike(key), key).unwrap();
            values.push(key);
            changed.insert(key);
        }
        let (then, due) = (values.clone(), std::mem::take(&mut changed).len() as u64);
        let before = table.stats().codec_calls;
        let mut blobs = ground.blobs();
        let mut taken = table.begin_checkpoint(&mut blobs).unwrap();
        while taken.is_none() {
            let key = ground.below(values.len() as u64);
            table.modify(&Alike(key), |value| *value += 1000).unwrap();
            values[key as usize] += 1000;
            changed.insert(key);
            taken = table.continue_checkpoint(&mut blobs).unwrap();
        }
        table.checkpointed(CheckpointOutcome::Committed);
        written.push((due, table.stats().codec_calls - before));
        let mut restored = open(&ground, taken).unwrap();
        let mut of = |key| *restored.get(&Alike(key)).unwrap().unwrap();
        assert_eq!((0..then.len() as u64).map(&mut of).collect::<Vec<_>>(), then);
        assert_eq!(restored.len(), then.len() as u64);
        drop(restored);
    }
    // More only if a segment is written anew.
    let exact = written.iter().filter(|(due, written)| due == written).count();
    assert!(exact >= 4 && written.iter().all(|(due, written)| due <= written), "{written:?}");
    drop(table);
    assert_eq!(account.used(), 0);
}

/// A key whose hash has its highest bits from many others: a part that is full is split several times, and no entry moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Near(u64);

impl KeyHash for Near {
    fn key_hash(&self) -> u64 {
        hash_word(self.0 / 300) << 52 | hash_word(hash_word(self.0)) >> 12
    }
}

/// What several splits take at once is not taken from what the next checkpoint needs, nor from what opening it does.
#[test]
fn a_table_that_is_full_of_keys_that_are_near_each_other_is_checkpointed_and_opened() {
    for memory in (600..1200).step_by(23).map(|kib| kib << 10) {
        let mut ground = Ground::<Heap, String>::new(7, memory);
        let account = ground.account.clone();
        let open = |ground: &Ground<_, _>, image| {
            Heap::new().open(ground.context(&account, image)).unwrap()
        };
        let (mut table, mut keys) = (open(&ground, None), 0);
        while table.put(Near(keys), "a value that owns heap".repeat(20)).is_ok() {
            assert!(account.used() <= memory);
            keys += 1;
        }
        let image = table.checkpoint(&mut ground.blobs()).unwrap();
        table.checkpointed(CheckpointOutcome::Committed);
        assert!(keys > 100 && table.len() == keys, "{keys} keys in {memory}");
        drop(table);
        assert_eq!(account.used(), 0);
        assert_eq!(open(&ground, Some(image)).len(), keys);
    }
}

#[test]
fn a_table_that_has_not_changed_writes_nothing() {
    let bytes = written::<Heap>(2_000, 0, true);
    assert!(bytes[1..].iter().all(|bytes| *bytes == 0), "{bytes:?}");
}

/// Marks are given up for entries: a table takes as many keys as one that has had no checkpoint.
#[test]
fn what_is_remembered_of_a_checkpoint_makes_room_for_entries() {
    makes_room::<Heap>();
}

fn makes_room<L: Layout<u64, String> + Default>() {
    let fill = |checkpoints: bool| {
        let mut ground = Ground::<L, String>::new(3, 4 << 20);
        let account = ground.account.clone();
        let mut table = ground.open(&account, None);
        for key in 0.. {
            if checkpoints && key == 10_000 {
                table.checkpoint(&mut ground.blobs()).unwrap();
                table.checkpointed(CheckpointOutcome::Committed);
            }
            if table.put(key, "value".into()).is_err() {
                return key;
            }
        }
        unreachable!("memory is bounded")
    };
    // What is named again stays listed: some hundred bytes.
    let (with, without) = (fill(true), fill(false));
    assert!(without - with < 100, "{with}, {without} without: {}", std::any::type_name::<L>());
}
