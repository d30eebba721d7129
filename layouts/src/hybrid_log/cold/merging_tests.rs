//! What happens while levels of a log are merged, which is asserted: key groups that are visited and leave, and checkpoints.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, ErrorKind, Helper, KIB, KeyGroup, KeyHash, MIB, SegmentStore,
    StateImage,
};

use super::tests::Dice;
use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::table::{CheckpointOutcome, Cursor, Layout, StateContext, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

const KEYS: u64 = 100_000;

/// A log of a MiB, and what it should hold.
pub(super) struct Play {
    pub device: Simulated,
    segments: SegmentStore,
    pub store: Rc<Account>,
    pub table: HybridLogTable<u64, u64>,
    pub model: BTreeMap<u64, u64>,
    pub dice: Dice,
    layout: HybridLog,
    checkpoints: u64,
}

/// A log of a MiB, of a checkpoint if there is one.
pub(super) fn open(
    layout: &HybridLog,
    segments: &SegmentStore,
    helper: Helper,
    image: Option<&StateImage>,
) -> (Rc<Account>, HybridLogTable<u64, u64>) {
    let store = Account::root(MIB);
    let context = StateContext {
        name: "log".into(),
        account: Account::below(&store, "log", u64::MAX),
        segments: Some(segments.clone()),
        helper,
        max_value_bytes: 4 * KIB,
        key_groups: 256,
        owned: 0..256,
        movable: true,
        restored: image.map(|image| (image.clone(), BlobReader::new(segments.shared_device()))),
    };
    (store, Layout::<u64, u64>::open(layout, context).unwrap())
}

impl Play {
    /// A log of a MiB with so many keys that most are in runs.
    fn new(seed: u64) -> Self {
        let mut play = Self::empty(seed, HybridLog::new().cold_runs(true));
        (0..KEYS).for_each(|key| play.put(key, key));
        play
    }

    pub fn empty(seed: u64, layout: HybridLog) -> Self {
        Self::on(Simulated::new(seed, Faults::none()), Helper::inline(), seed, layout)
    }

    pub fn on(device: Simulated, helper: Helper, seed: u64, layout: HybridLog) -> Self {
        let segments = SegmentStore::new(Arc::new(device.clone()), 1);
        let (store, table) = open(&layout, &segments, helper, None);
        let (model, dice) = (BTreeMap::new(), Dice(seed));
        Self { device, segments, store, table, model, dice, layout, checkpoints: 0 }
    }

    /// Takes a checkpoint and opens it.
    pub fn open_again(&mut self, helper: Helper) {
        let (image, _) = self.checkpoint();
        (self.store, self.table) = open(&self.layout, &self.segments, helper, Some(&image));
    }

    /// Puts a key, and again as long as it is told that more is to be merged.
    pub fn put(&mut self, key: u64, value: u64) {
        let is_taken = self.put_at_the_end((key, value), &mut AtTheEnd::default());
        assert!(is_taken, "{key} is refused");
    }

    /// Puts any key that `is_one`.
    fn put_any(&mut self, is_one: impl Fn(u64) -> bool) {
        let key = self.dice.below(KEYS);
        if is_one(key) {
            self.put(key, self.model.len() as u64);
        }
    }

    fn is_merging(&self) -> bool {
        self.table.core.log.cold.as_ref().unwrap().levels.is_merging()
    }

    /// Puts until a merge is under way, or none is. Says how many.
    fn until(&mut self, is_merging: bool) -> u64 {
        for puts in 0..10 * KEYS {
            if self.is_merging() == is_merging {
                return puts;
            }
            self.put_any(|_| true);
        }
        panic!("{:?}", self.table.stats().runs);
    }

    pub fn check(&mut self) {
        let (mut seen, mut cursor) = (BTreeMap::new(), Cursor::default());
        while !cursor.done {
            self.table
                .scan(&mut cursor, 5_000, &mut |key, value| {
                    assert!(seen.insert(*key, *value).is_none(), "{key} twice");
                    Ok(())
                })
                .unwrap();
        }
        assert!(seen == self.model, "{} of {}", seen.len(), self.model.len());
        assert_eq!(self.table.len(), self.model.len() as u64);
    }
}

/// A group is visited in steps and then leaves, all of it while a merge has read some of the runs that have its records.
#[test]
fn a_key_group_moves_while_runs_are_merged() {
    for (seed, groups) in [(0, [17, 255]), (1, [200, 255])] {
        let mut play = Play::new(seed);
        for group in groups {
            let hashes = KeyGroup(group).hashes(256);
            let is_other = |key: u64| !hashes.contains(&key.key_hash());
            play.until(false);
            play.until(true);
            let (mut seen, mut cursor) = (BTreeMap::new(), Cursor::default());
            while !cursor.done {
                let visit: VisitRun<'_, u64, u64> = &mut |key, _, values| {
                    assert!(seen.insert(*key, values[0]).is_none(), "{key} twice");
                    Ok(())
                };
                play.table.visit_hashes((), &hashes, &mut cursor, 90, visit).unwrap();
            }
            let of_group = play.model.iter().filter(|(key, _)| !is_other(**key));
            assert!(seen.iter().eq(of_group), "{} were seen", seen.len());
            assert!(seen.len() > 100 && play.is_merging(), "the merge has gone on for all of it");
            let mut cursor = Cursor::default();
            while !cursor.done {
                play.table.remove_hashes((), &hashes, &mut cursor, 90).unwrap();
            }
            assert!(play.is_merging());
            play.model.retain(|key, _| is_other(*key));
            assert_eq!(play.table.len(), play.model.len() as u64);
            let merged = play.table.stats().runs.merged_bytes;
            for _ in 0..10 * KEYS {
                if play.table.stats().runs.merged_bytes > merged {
                    break;
                }
                play.put_any(is_other);
            }
            assert!(play.table.stats().runs.merged_bytes > merged, "the merge ends");
            play.check();
        }
    }
}

/// Partitions are so short that the directories of two such logs would take all memory that a log of a MiB has for them: as
/// those of millions of keys do.
const FEW_KEYS: u64 = 45_000;
pub(super) const FEW_HASHES: usize = 16;

/// With as many, some of which are dead, directories leave no memory for moves.
const MANY_KEYS: u64 = 60_000;

fn short_partitions(keys: u64, seed: u64) -> Play {
    let layout = HybridLog::new().cold_runs(true).partition_hashes(FEW_HASHES);
    let mut play = Play::empty(seed, layout);
    (0..keys).for_each(|key| play.put(key, key));
    play
}

/// The oldest level is merged in parts: so the space of updated records comes back, and none is refused.
#[test]
fn updates_leave_few_dead_records_where_directories_take_most_memory() {
    let keys = 35_000;
    let layout = HybridLog::new().cold_runs(true).partition_hashes(FEW_HASHES);
    let mut play = Play::empty(3, layout);
    (0..keys).for_each(|key| play.put(key, key));
    let (mut most, mut most_bytes) = (0, 0);
    for step in 0..4 * keys {
        let key = play.dice.below(keys);
        play.put(key, step);
        if step % 256 == 0 {
            let runs = play.table.stats().runs;
            most = most.max(runs.records);
            most_bytes = most_bytes.max(runs.directory_bytes);
        }
    }
    println!("{most} records and {most_bytes} bytes at most, {:?}", play.table.stats().runs);
    assert!(most <= 2 * keys, "{most} records");
    assert!(most_bytes > 128 * KIB, "two of these have no room");
    play.check();
}

/// A state that is emptied has next to no tombstones nor directories in the end.
#[test]
fn deletes_give_directories_back_where_these_take_most_memory() {
    let mut play = short_partitions(FEW_KEYS, 4);
    let before = play.table.stats().runs;
    let mut most = 0;
    for key in 0..FEW_KEYS {
        assert_eq!(play.table.take(&key).unwrap(), play.model.remove(&key), "{key}");
        assert!(play.store.used() <= MIB);
        most = most.max(play.table.stats().runs.records);
    }
    while play.table.tick(1).unwrap() > 0 {}
    let after = play.table.stats().runs;
    println!("{before:?}, {most} records at most, {after:?}");
    assert!(before.directory_bytes > 64 * KIB, "{before:?}");
    assert!(after.records < FEW_KEYS / 20, "{after:?}");
    assert!(after.directory_bytes < before.directory_bytes / 10, "{after:?}");
    play.check();
}

/// Dead records of keys that change leave no memory for moves, long before so many of them are there that levels are merged
/// for their share: they are merged before that, and no change is refused.
#[test]
fn keys_that_change_are_not_refused_where_directories_leave_no_memory_for_moves() {
    let mut play = short_partitions(MANY_KEYS, 5);
    for step in 0..3 * MANY_KEYS {
        let key = play.dice.below(MANY_KEYS);
        play.put(key, step);
    }
    play.check();
}

/// The same where keys are deleted in between, and come again.
#[test]
fn keys_that_change_and_are_deleted_are_not_refused_either() {
    let mut play = short_partitions(MANY_KEYS, 6);
    for step in 0..2 * MANY_KEYS {
        let key = play.dice.below(MANY_KEYS);
        match play.dice.below(10) {
            0 => assert_eq!(play.table.take(&key).unwrap(), play.model.remove(&key), "{key}"),
            _ => play.put(key, step),
        }
    }
    play.check();
}

/// As long as memory has room for what comes, a call does one step of a merge at most: no more than a part, whatever the
/// levels have. Blocks of so short partitions are nearly empty: a part reads ten times its bytes.
#[test]
fn no_call_merges_more_than_a_part_while_memory_has_room() {
    let layout = HybridLog::new().cold_runs(true).partition_hashes(FEW_HASHES);
    let mut play = Play::empty(5, layout);
    let (mut most, mut before) = (0, 0);
    for key in 0..MANY_KEYS {
        play.put(key, key);
        let cold = play.table.core.log.cold.as_ref().unwrap();
        let read = cold.levels.stats_merge_read_bytes();
        most = most.max(read - before);
        before = read;
    }
    let stats = play.table.core.log.cold.as_ref().unwrap().levels.stats();
    println!("{most} bytes in one call at most, of {before}; {stats:?}");
    assert!(stats.merges > 20, "{stats:?}");
    assert!(most < 1 << 20 && 8 * most < stats.bytes, "{most}, {stats:?}");
}

/// What calls came to where memory has ended.
#[derive(Debug, Default)]
struct AtTheEnd {
    /// Puts that were taken.
    taken: u64,
    /// Most calls that a put took until it was taken or refused for good.
    calls: u64,
    /// Calls that said that more is to be merged.
    asked_again: u64,
    /// Most bytes of runs that a call merged.
    most: u64,
}

impl Play {
    fn cold(&mut self) -> &mut super::ColdTier {
        self.table.core.log.cold.as_mut().unwrap()
    }

    /// Puts a key, and again as long as it is told that more is to be merged.
    fn put_at_the_end(&mut self, (key, value): (u64, u64), end: &mut AtTheEnd) -> bool {
        for calls in 1..=1_000 {
            let before = self.cold().levels.stats_merge_read_bytes();
            let put = self.table.put(key, value);
            let read = self.cold().levels.stats_merge_read_bytes() - before;
            end.most = end.most.max(read);
            end.calls = end.calls.max(calls);
            assert!(self.store.used() <= MIB);
            match put {
                Ok(known) => {
                    assert_eq!(known, self.model.insert(key, value).is_some(), "{key}");
                    end.taken += 1;
                    return true;
                }
                Err(refused) if refused.error.kind() == ErrorKind::Backpressure => {
                    end.asked_again += 1;
                }
                Err(refused) => {
                    assert_eq!(refused.error.kind(), ErrorKind::OverBudget, "{}", refused.error);
                    return false;
                }
            }
        }
        panic!("{key} is told to be put again and again")
    }

    /// Puts so many keys, then changes of any of them.
    fn play_to_the_end(&mut self, keys: u64, changes: u64) -> AtTheEnd {
        (0..keys).for_each(|key| self.put(key, key));
        let mut end = AtTheEnd::default();
        for step in 0..changes {
            let key = self.dice.below(keys);
            self.put_at_the_end((key, step), &mut end);
        }
        println!("{keys} keys: {end:?}");
        end
    }
}

/// Where memory ends a call does not merge all levels before it is taken or refused. It ends with a part, and says that more
/// is to be merged: called again some times, it is taken where it would be by a log whose calls merge all at once. Of 100,000
/// keys all changes are taken so; with 122,760 memory is full, and none is.
#[test]
fn where_memory_ends_a_call_merges_a_part_and_is_taken_when_it_is_made_again() {
    for (keys, changes, taken) in [(100_000, 60_000, 60_000), (122_760, 15_000, 0)] {
        let [whole, parted] = [true, false].map(|at_once| {
            let layout = HybridLog::new().cold_runs(true).partition_hashes(FEW_HASHES);
            let mut play = Play::empty(8, layout);
            play.cold().merges_all_at_once = at_once;
            let end = play.play_to_the_end(keys, changes);
            play.check();
            end
        });
        assert_eq!((whole.taken, parted.taken), (taken, taken));
        assert!(whole.asked_again == 0 && whole.most > 24 << 20, "{whole:?}");
        assert!(parted.asked_again > 0 && parted.calls <= 40, "{parted:?}");
        // A step that was paid for, and a part, of what is put and of what it moves up from a run.
        assert!(parted.most < 3 << 20, "{parted:?}");
    }
}

/// What a checkpoint wrote, its requests, and its steps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    times: u64,
    bytes: u64,
    requests: u64,
    steps: u64,
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.times += other.times;
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.steps += other.steps;
    }

    fn each(&self) -> [f64; 3] {
        [self.bytes, self.requests, self.steps].map(|all| all as f64 / self.times as f64)
    }
}

impl Play {
    /// Takes a checkpoint, which is confirmed.
    pub fn checkpoint(&mut self) -> (StateImage, Cost) {
        let sealed = self.seal();
        self.table.checkpointed(CheckpointOutcome::Committed);
        sealed
    }

    /// Takes one that nobody has confirmed yet.
    pub fn seal(&mut self) -> (StateImage, Cost) {
        self.checkpoints += 1;
        let before = self.device.stats();
        let mut blobs = BlobWriter::new(self.segments.shared_device(), self.checkpoints, 4096);
        let mut image: Option<StateImage> = self.table.begin_checkpoint(&mut blobs).unwrap();
        let mut steps = 0;
        while image.is_none() {
            image = self.table.continue_checkpoint(&mut blobs).unwrap();
            steps += 1;
        }
        blobs.finish().unwrap();
        let after = self.device.stats();
        self.device.sync_directory().unwrap();
        let requests = |of: &alluvium_pagestore::io::IoStats| of.reads + of.writes + of.syncs;
        let cost = Cost {
            times: 1,
            bytes: after.bytes_written - before.bytes_written,
            requests: requests(&after) - requests(&before),
            steps,
        };
        (image.expect("it is whole"), cost)
    }
}

/// Checkpoints after as many puts, every other one in the middle of a merge: these write as much and ask the device as often.
/// Their steps are more, as a merge has memory in which deaths could be noted: segments are looked at instead.
#[test]
fn a_checkpoint_in_the_middle_of_a_merge_costs_as_much_as_another() {
    let mut play = Play::new(7);
    play.checkpoint();
    let (mut within, mut outside) = (Cost::default(), Cost::default());
    for _ in 0..5 {
        play.until(false);
        play.checkpoint();
        let puts = play.until(true);
        within.add(play.checkpoint().1);
        play.until(false);
        play.checkpoint();
        (0..puts).for_each(|_| play.put_any(|_| true));
        play.until(false);
        outside.add(play.checkpoint().1);
    }
    println!("within {within:?} {:?}, outside {outside:?} {:?}", within.each(), outside.each());
    for (nth, most) in [1.25, 1.25, 1.6].into_iter().enumerate() {
        let (within, outside) = (within.each()[nth], outside.each()[nth]);
        assert!(within <= most * outside + 1.0, "{within} beside {outside}");
    }
    play.check();
}
