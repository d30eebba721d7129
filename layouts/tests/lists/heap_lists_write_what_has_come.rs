//! Checkpoints of lists on the heap write what has come since the last one that was confirmed, and each one that is
//! retained is of its own barrier.
//!
//! What this catches: elements that are left out, come twice or in another order, as some of their list were written by
//! one checkpoint and some by another; lists that come back after they were cleared, moved or purged, also when that was
//! not done with at the barrier; records counted wrong; what a checkpoint that was given up has written taken
//! for written; memory that is not given back, or not booked; checkpoints that write all.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{
    CheckpointOutcome, Cursor, Heap, HeapLists, Lists, ListsLayout, StateContext, Upkeep,
};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, Error, ErrorKind, Helper, KeyHash, MemoryKind, SegmentStore,
    State, StateImage, Time,
};

use crate::common::{Dice, Model, read};
use crate::retained::Retained;

/// An element, with heap or without.
trait Element: State + Eq + std::fmt::Debug {
    fn of(n: u64) -> Self;
}

impl Element for u64 {
    fn of(n: u64) -> Self {
        n
    }
}

impl Element for String {
    fn of(n: u64) -> Self {
        format!("{n} ").repeat(n as usize % 5)
    }
}

/// Lists, what should be in them, and the checkpoints of them that can be restored.
struct Ground<E> {
    device: Simulated,
    store: SegmentStore,
    account: Rc<Account>,
    memory: u64,
    helper: Helper,
    dice: Dice,
    number: u64,
    retained: Retained<Model<u64, E>>,
    is_movable: bool,
}

impl<E: Element> Ground<E> {
    fn new(seed: u64, memory: u64) -> Self {
        let device = Simulated::new(seed, Faults::late(2));
        let store = SegmentStore::new(Arc::new(device.clone()), 1);
        let (account, helper, dice) = (Account::root(memory), Helper::inline(), Dice(seed << 32));
        let (number, retained, is_movable) = (0, Retained::none(&store), seed % 2 == 1);
        Self { device, store, account, memory, helper, dice, number, retained, is_movable }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.dice.below(limit)
    }

    fn open(&self, account: &Rc<Account>, image: Option<StateImage>) -> HeapLists<u64, E> {
        let device: Arc<dyn Device> = Arc::new(self.device.clone());
        let context = StateContext {
            name: "lists".into(),
            account: Account::below(account, "lists", u64::MAX),
            segments: Some(self.store.clone()),
            helper: self.helper.clone(),
            max_value_bytes: 4096,
            key_groups: 256,
            owned: 0..256,
            movable: self.is_movable,
            restored: image.map(|image| (image, BlobReader::new(device))),
        };
        Heap::new().open_lists(context).unwrap()
    }

    fn blobs(&mut self) -> BlobWriter {
        self.number += 1;
        BlobWriter::new(Arc::new(self.device.clone()), self.number, 4096)
    }

    /// One seeded change of both.
    fn change(&mut self, lists: &mut HeapLists<u64, E>, model: &mut Model<u64, E>, keys: u64) {
        let (time, key, n) = (Time(self.below(5) as i64), self.below(keys), self.below(1000));
        match self.below(1000) {
            0..840 => {
                // Some keys get many.
                for n in 0..if key % 50 == 0 { 40 } else { 1 } + n % 3 {
                    match lists.append(time, &key, E::of(n)) {
                        Ok(()) => model.entry((time, key)).or_default().push(E::of(n)),
                        Err(rejected) => assert!(is_short(&rejected.error), "{rejected:?}"),
                    }
                }
            }
            840..950 => {
                lists.clear_key(time, &key).unwrap();
                model.remove(&(time, key));
            }
            950..990 => {
                let to = Time(6);
                let moved = lists.relocate(time, to, &key);
                if let Err(error) = moved {
                    assert!(is_short(&error), "{error}");
                } else if let Some(mut moved) = model.remove(&(time, key)) {
                    let later = model.entry((to, key)).or_default();
                    moved.append(later);
                    *later = moved;
                }
            }
            990..996 => {
                let fuel = [1, 100_000][self.below(2) as usize];
                lists.purge(Time(time.0.min(2)), fuel).unwrap();
                model.retain(|(of, _), _| *of >= Time(time.0.min(2)));
            }
            _ => {
                let (share, mut cursor) = (u64::MAX / 16, Cursor::default());
                let first = self.below(16) * share;
                let hashes = first..=first + share;
                let by_hash = lists.by_hash().unwrap();
                while !cursor.done {
                    by_hash.remove_hashes(time, &hashes, &mut cursor, 50).unwrap();
                }
                model.retain(|(of, key), _| *of != time || !hashes.contains(&key.key_hash()));
            }
        }
        assert!(self.account.used() <= self.memory);
    }

    /// Each retained checkpoint is what it was, on memory of its own.
    fn check_retained(&self, when: &str) {
        for (image, then) in self.retained.all() {
            let account = Account::root(1 << 30);
            let live: u64 = image.segments().map(|segment| segment.live_records).sum();
            assert_eq!(live, image.entries, "{when}");
            let mut restored = self.open(&account, Some(image.clone()));
            assert_eq!(restored.stats().codec_calls, live, "{when}");
            check(&mut restored, then, when);
        }
    }
}

fn is_short(error: &Error) -> bool {
    error.kind() == ErrorKind::OverBudget
}

fn check<E: Element>(lists: &mut HeapLists<u64, E>, model: &Model<u64, E>, when: &str) {
    for ((time, key), wanted) in model {
        assert_eq!(read(lists, *time, key).unwrap(), *wanted, "{when}: {time:?} {key}");
    }
    assert_eq!(lists.len(), model.values().map(|list| list.len() as u64).sum::<u64>(), "{when}");
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
    let seeds = if std::env::var_os("ALLUVIUM_LONG").is_some() { 300 } else { 6 };
    for seed in 0..seeds {
        history::<u64>(seed);
        history::<String>(seed);
    }
}

fn history<E: Element>(seed: u64) {
    let memory = if seed % 6 == 4 { 1200 << 10 } else { 64 << 20 };
    let mut ground = Ground::<E>::new(seed, memory);
    let account = ground.account.clone();
    let (mut lists, mut model) = (ground.open(&account, None), BTreeMap::new());
    let keys = [100, 400, 1_000][seed as usize % 3];
    for _ in 0..2 * keys {
        ground.change(&mut lists, &mut model, keys);
    }
    let (mut encoded, mut all) = (0, 0);
    for round in 0..60 {
        let changes = [0, keys, keys / 5, keys / 20, keys / 20][ground.below(5) as usize];
        for _ in 0..changes {
            ground.change(&mut lists, &mut model, keys);
        }
        let end = match ground.below(10) {
            0 | 1 => End::GivenUp(ground.below(6)),
            2 => End::Full(ground.below(6)),
            3 if ground.below(3) == 0 => End::Unknown,
            _ => End::Committed,
        };
        let when = format!("seed {seed}, round {round}, {end:?}");
        let before = lists.stats().codec_calls;
        if let Some(records) = checkpoint(&mut ground, &mut lists, &mut model, (end, keys)) {
            encoded += lists.stats().codec_calls - before;
            all += records;
        }
        check(&mut lists, &model, &when);
        if round % 5 == 4 {
            ground.check_retained(&when);
        }
        if ground.below(12) == 0 {
            drop(lists);
            assert_eq!(account.used(), 0, "{when}");
            let last = ground.retained.all().last().cloned();
            lists = ground.open(&account, last.as_ref().map(|(image, _)| image.clone()));
            model = last.map(|(_, then)| then).unwrap_or_default();
            check(&mut lists, &model, &when);
        }
    }
    drop(lists);
    assert_eq!(account.used(), 0, "seed {seed}");
    let is_large = memory > 2 << 20;
    assert!(!is_large || encoded < all * 8 / 10, "seed {seed}: {encoded} of {all} were written");
}

/// Takes a checkpoint while lists change; how many records it has, if it was confirmed.
fn checkpoint<E: Element>(
    ground: &mut Ground<E>,
    lists: &mut HeapLists<u64, E>,
    model: &mut Model<u64, E>,
    (end, keys): (End, u64),
) -> Option<u64> {
    let (then, mut blobs) = (model.clone(), ground.blobs());
    let mut taken = match lists.begin_checkpoint(&mut blobs) {
        Ok(taken) => taken,
        Err(error) => {
            assert!(is_short(&error), "{error}");
            lists.checkpointed(CheckpointOutcome::Abandoned);
            return None;
        }
    };
    let (mut step, mut failed) = (0, false);
    let many = ground.below(20) == 0;
    while taken.is_none() && end != End::GivenUp(step) && !failed {
        for _ in 0..if many { keys } else { 4 } {
            ground.change(lists, model, keys);
        }
        if end == End::Full(step) {
            ground.device.set_capacity_bytes(Some(ground.device.used_bytes()));
        }
        match lists.continue_checkpoint(&mut blobs) {
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
        ground.change(lists, model, keys);
    }
    let (outcome, records) = match (taken, end) {
        (Some(image), End::Committed | End::Unknown) => {
            let records = image.entries;
            ground.retained.push(image, then);
            match end {
                End::Committed => (CheckpointOutcome::Committed, Some(records)),
                _ => (CheckpointOutcome::Unknown, None),
            }
        }
        _ => (CheckpointOutcome::Abandoned, None),
    };
    lists.checkpointed(outcome);
    while ground.helper.drive() {}
    if outcome == CheckpointOutcome::Abandoned {
        blobs.abandon();
    }
    records
}

/// Memory is short as the records of a list are noted as dead: the checkpoint is lost, and does not go on without what
/// was due.
#[test]
fn a_checkpoint_that_cannot_note_what_is_dead_does_not_go_on() {
    const KEYS: u64 = 4000;
    let mut ground = Ground::<u64>::new(1, 64 << 20);
    let account = ground.account.clone();
    let (mut lists, mut model) = (ground.open(&account, None), Model::new());
    let mut append = |lists: &mut HeapLists<u64, u64>, count| {
        for (key, n) in (0..KEYS).flat_map(|key| (0..count).map(move |n| (key, n))) {
            lists.append(Time(1), &key, n).unwrap();
            model.entry((Time(1), key)).or_insert_with(Vec::new).push(n);
        }
        model.clone()
    };
    // Each list has some records: those before are longer than what comes.
    for count in [16, 8, 4, 2, 1] {
        append(&mut lists, count);
        lists.checkpoint(&mut ground.blobs()).unwrap();
        lists.checkpointed(CheckpointOutcome::Committed);
    }
    // All of them are written anew with what comes now.
    let then = append(&mut lists, 40);
    let mut blobs = ground.blobs();
    assert!(lists.begin_checkpoint(&mut blobs).unwrap().is_none());
    assert!(lists.continue_checkpoint(&mut blobs).unwrap().is_none());
    let mut others = 0;
    let error = loop {
        // What lists remember of their records is given back as they are written.
        let free = account.available();
        account.reserve(MemoryKind::Buffers, free, "others").unwrap();
        others += free;
        match lists.continue_checkpoint(&mut blobs) {
            Ok(image) => assert!(image.is_none(), "there was room"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Overtaken, "{error}");
    account.release(MemoryKind::Buffers, others);
    for _ in 0..10 {
        let error = lists.continue_checkpoint(&mut blobs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Overtaken, "{error}");
    }
    lists.checkpointed(CheckpointOutcome::Abandoned);
    let image = lists.checkpoint(&mut ground.blobs()).unwrap();
    ground.retained.push(image, then);
    ground.check_retained("the next one");
}

/// Bytes that were written for each of some checkpoints, of `keys` lists of `len` elements each, `changed` of which
/// get `more` before each.
fn written(keys: u64, len: u64, changed: u64, more: u64) -> Vec<u64> {
    let mut ground = Ground::<u64>::new(1, 256 << 20);
    let account = ground.account.clone();
    let mut lists = ground.open(&account, None);
    for key in 0..keys {
        (0..len).for_each(|n| lists.append(Time(1), &key, n).unwrap());
    }
    let mut bytes = Vec::new();
    for _ in 0..30 {
        for _ in 0..changed {
            let key = ground.below(keys);
            (0..more).for_each(|n| lists.append(Time(1), &key, n).unwrap());
        }
        let before = lists.stats().flushed_bytes;
        let mut blobs = ground.blobs();
        lists.checkpoint(&mut blobs).unwrap();
        lists.checkpointed(CheckpointOutcome::Committed);
        bytes.push(lists.stats().flushed_bytes - before + blobs.bytes());
    }
    bytes
}

/// Header of a segment, page and tail, and those of the list of deaths: whole blocks.
const BLOCKS: u64 = 24 << 10;
/// What a record takes beside its elements.
const RECORD: u64 = 80;

#[test]
fn a_checkpoint_writes_in_proportion_to_what_has_come() {
    for (keys, len, changed, more) in
        [(20_000, 20, 200, 5), (20_000, 20, 2_000, 5), (100, 20_000, 1, 10), (100, 20_000, 50, 100)]
    {
        let bytes = written(keys, len, changed, more);
        assert!(bytes[0] > keys * len * 8, "the first has everything");
        let mut later: Vec<u64> = bytes[1..].to_vec();
        later.sort_unstable();
        let mean = later.iter().sum::<u64>() / later.len() as u64;
        let bound = 3 * changed * (RECORD + more * 8) + BLOCKS;
        assert!(mean <= bound, "{mean} in the mean, {bound} for {changed} of {keys}: {bytes:?}");
    }
}

#[test]
fn a_checkpoint_of_16_times_the_state_writes_the_same() {
    let median = |keys: u64, len: u64| {
        let mut bytes = written(keys, len, 50, 10).split_off(1);
        bytes.sort_unstable();
        bytes[bytes.len() / 2]
    };
    let (small, more, longer) = (median(5_000, 20), median(80_000, 20), median(5_000, 320));
    let most = small * 5 / 4;
    assert!(more <= most && longer <= most, "{small}, {more} of more lists, {longer} of longer");
}

#[test]
fn lists_that_have_not_changed_write_nothing() {
    let bytes = written(1_000, 30, 0, 0);
    assert!(bytes[1..].iter().all(|bytes| *bytes == 0), "{bytes:?}");
}
