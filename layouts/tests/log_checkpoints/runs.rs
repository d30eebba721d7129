//! Checkpoints of a hybrid log most of whose records are in sorted runs, and move there meanwhile.
//!
//! What this catches: a record that is in no part of an image, or comes back; a file of a run that a checkpoint needs and a
//! merge removes; runs that are written again for each checkpoint; memory of a checkpoint that is not given back.

use std::sync::Arc;

use alluvium_layouts::{
    CheckpointOutcome, ExpiryPass, HybridLog, HybridLogTable, Table, Touched, Upkeep,
};
use alluvium_pagestore::io::{CrashPolicy, Device, Fault, Faults, Simulated};
use alluvium_pagestore::{BlobReader, BlobWriter, ErrorKind, MIB, SegmentStore, StateImage, Time};

use crate::log::{Log, Model, Value, entries, open, restored};

fn history<V: Value>(seed: u64, threads: bool) {
    let mut log = Log::<V>::with_runs(seed, threads);
    for _ in 0..if crate::long() { 100 } else { 12 } {
        log.play(8);
        for _ in 0..1500 {
            log.change();
        }
        log.check_memory();
    }
    log.end();
}

#[test]
fn counters_in_runs_are_restored() {
    for seed in 0..if crate::long() { 40 } else { 3 } {
        history::<u64>(seed, seed % 2 == 1);
    }
}

#[test]
fn strings_in_runs_are_restored() {
    for seed in 50..if crate::long() { 90 } else { 52 } {
        history::<String>(seed, seed % 2 == 1);
    }
}

/// A log of 60,000 keys whose index alone would be larger than its memory.
pub struct Run {
    pub device: Simulated,
    segments: SegmentStore,
    pub layout: HybridLog,
    pub table: HybridLogTable<u64, u64>,
    pub model: Model<u64>,
    number: u64,
}

pub const MEMORY: u64 = MIB;
pub const KEYS: u64 = 60_000;

impl Run {
    pub fn new() -> Self {
        let mut run = Self::of(HybridLog::new().cold_runs_automatic());
        (0..KEYS).for_each(|key| run.put(key, key));
        run
    }

    /// One of which the index joins segments all the time.
    fn joining() -> Self {
        let mut run = Self::of(HybridLog::new().cold_runs_automatic().joins_always());
        (0..KEYS).for_each(|key| run.put(key, key));
        run
    }

    /// One whose entries may expire.
    fn empty() -> Self {
        Self::of(HybridLog::new().cold_runs(true))
    }

    fn of(layout: HybridLog) -> Self {
        let device = Simulated::new(1, Faults::none());
        let segments = SegmentStore::new(Arc::new(device.clone()), 1);
        let (table, _) = open(&layout, &segments, MEMORY, false, None).unwrap();
        Self { device, segments, layout, table, model: Model::new(), number: 0 }
    }

    /// Entries expire: a value is when it was touched last.
    fn begin_expiring(&mut self, now: u64) {
        self.table.can_expire().unwrap();
        self.table.stamp_with(TOUCHED, Time(now as i64));
        self.table.live_for(20_000);
    }

    /// What was touched last before a time is over: some of it goes, and the model forgets that.
    fn expire_to(&mut self, to: u64) {
        let mut pass = ExpiryPass::new(TOUCHED, Time(to as i64));
        while !pass.cursor.done {
            self.table.expire(&mut pass, 500).unwrap();
            // While a checkpoint is taken nothing is looked at.
            if pass.cursor.position == 0 {
                break;
            }
        }
        let there = entries(&mut self.table).unwrap();
        assert_eq!(self.table.len(), there.len() as u64);
        self.model.retain(|key, touched| {
            let is_there = there.contains_key(key);
            assert!(is_there || *touched < to, "{key}");
            is_there
        });
        assert_eq!(there, self.model);
    }

    /// Opens what a checkpoint says, on a device as a crash leaves it.
    pub fn go_on(&mut self, image: &StateImage, model: Model<u64>) {
        self.device = self.device.crash(CrashPolicy::Everything);
        self.segments = SegmentStore::new(Arc::new(self.device.clone()), 1 << (20 + self.number));
        let restored = open(&self.layout, &self.segments, MEMORY, false, Some(image));
        (self.table, self.model) = (restored.unwrap().0, model);
    }

    pub fn put(&mut self, key: u64, value: u64) {
        assert_eq!(self.table.put(key, value).unwrap(), self.model.insert(key, value).is_some());
    }

    pub fn take(&mut self, key: u64) {
        assert_eq!(self.table.take(&key).unwrap(), self.model.remove(&key), "{key}");
    }

    /// Loads as many new keys as there is room for, from this one on. Returns the next.
    fn load(&mut self, from: u64) -> u64 {
        let Some(room) = self.table.room_to_load(0) else {
            self.put(from, from);
            return from + 1;
        };
        let end = from + room.entries() as u64;
        let mut batch = (from..end).map(|key| (key, key)).collect();
        self.table.load_batch(&mut batch, room).unwrap();
        self.model.extend((from..end).map(|key| (key, key)));
        end
    }

    /// Takes a checkpoint, and calls `between` between its steps.
    pub fn checkpoint(
        &mut self,
        outcome: CheckpointOutcome,
        between: impl FnMut(&mut Self),
    ) -> (StateImage, Model<u64>) {
        let taken = self.seal(between);
        self.table.checkpointed(outcome);
        taken
    }

    /// Takes one that nobody has confirmed yet.
    pub fn seal(&mut self, mut between: impl FnMut(&mut Self)) -> (StateImage, Model<u64>) {
        self.number += 1;
        let mut blobs = BlobWriter::new(self.segments.shared_device(), self.number, 4096);
        assert!(self.table.begin_checkpoint(&mut blobs).unwrap().is_none());
        let model = self.model.clone();
        let image = loop {
            between(self);
            if let Some(image) = self.table.continue_checkpoint(&mut blobs).unwrap() {
                break image;
            }
        };
        blobs.finish().unwrap();
        self.device.sync_directory().unwrap();
        (image, model)
    }
}

const TOUCHED: Touched<u64> = |value| Time(*value as i64);

fn is_run(name: &str) -> bool {
    name.starts_with("run-")
}

#[test]
fn a_checkpoint_names_runs_and_does_not_write_them_again() {
    let mut run = Run::new();
    let (first, model) = run.checkpoint(CheckpointOutcome::Committed, |_| ());
    assert!(first.runs().count() > 0, "records have moved");
    restored(&run.device, &run.layout, &first, &model);
    let (second, model) = run.checkpoint(CheckpointOutcome::Committed, |_| ());
    restored(&run.device, &run.layout, &second, &model);
    assert!(first.runs().eq(second.runs()), "nothing has moved meanwhile");
}

#[test]
fn records_move_and_levels_merge_while_a_checkpoint_is_taken() {
    let mut run = Run::joining();
    let mut key = 0;
    let joins = run.table.stats().joins;
    for round in 0..4 {
        let (image, model) = run.checkpoint(CheckpointOutcome::Committed, |run| {
            for _ in 0..400 {
                key = (key + 7919) % (KEYS + 4000);
                match key % 5 {
                    0 => run.take(key),
                    _ => run.put(key, key + round),
                }
            }
        });
        restored(&run.device, &run.layout, &image, &model);
        assert_eq!(entries(&mut run.table).unwrap(), run.model);
    }
    assert!(run.table.stats().joins > joins, "segments are joined meanwhile");
}

/// A level that was loaded is in a checkpoint whose barrier comes after it, and in no other.
#[test]
fn entries_are_loaded_while_a_checkpoint_is_taken() {
    let (mut run, mut next, mut meanwhile) = (Run::new(), KEYS, 0);
    for round in 0..4 {
        next = run.load(next);
        let mut loads = 0;
        let (image, model) = run.checkpoint(CheckpointOutcome::Committed, |run| {
            if loads < 3 {
                let from = next;
                next = run.load(from);
                loads += u64::from(next > from + 1);
            }
        });
        meanwhile += loads;
        assert!(model.len() < run.model.len());
        assert_eq!(entries(&mut run.table).unwrap(), run.model);
        restored(&run.device, &run.layout, &image, &model);
        if round == 3 {
            // A crash: what was loaded after the barrier is gone.
            run.go_on(&image, model);
            assert_eq!(entries(&mut run.table).unwrap(), run.model);
        }
    }
    assert!(meanwhile >= 2, "{meanwhile} batches of {} keys", next - KEYS);
}

#[test]
fn the_first_records_move_while_a_checkpoint_is_taken() {
    for before in [1_000, 15_000, 20_000] {
        let mut run = Run::of(HybridLog::new().cold_runs_automatic());
        (0..before).for_each(|key| run.put(key, key));
        assert_eq!(run.table.stats().runs.moved, 0, "{before} keys");
        let mut key = before;
        let (image, model) = run.checkpoint(CheckpointOutcome::Committed, |run| {
            for _ in 0..1_000 {
                key += 1;
                run.put(key % KEYS, key);
                run.put(key * 7919 % before, key);
            }
        });
        while run.table.stats().runs.moved == 0 {
            key += 1;
            run.put(key % KEYS, key);
        }
        restored(&run.device, &run.layout, &image, &model);
        let (image, model) = run.checkpoint(CheckpointOutcome::Committed, |_| ());
        assert!(image.runs().count() > 0);
        restored(&run.device, &run.layout, &image, &model);
        assert_eq!(entries(&mut run.table).unwrap(), run.model);
    }
}

#[test]
fn what_a_crash_leaves_is_the_last_checkpoint() {
    let mut run = Run::joining();
    let (mut kept, mut key) = (None, 0);
    for round in 0..6 {
        let outcome = match round % 3 {
            1 => CheckpointOutcome::Abandoned,
            _ => CheckpointOutcome::Committed,
        };
        let taken = run.checkpoint(outcome, |run| {
            key = (key + 104_729) % KEYS;
            run.put(key, round);
        });
        if outcome == CheckpointOutcome::Committed {
            kept = Some(taken);
        }
        for _ in 0..6000 {
            key = (key + 104_729) % KEYS;
            match key % 4 {
                0 => run.take(key),
                _ => run.put(key, key + round),
            }
        }
        let (image, model) = kept.as_ref().unwrap();
        let seed = round;
        for policy in [CrashPolicy::Nothing, CrashPolicy::Subset { seed }, CrashPolicy::Everything]
        {
            let after = run.device.crash(policy);
            restored(&after, &run.layout, image, model);
        }
    }
    assert!(run.table.stats().joins > 0, "segments are joined");
    let (image, _) = kept.unwrap();
    let files = run.device.list().unwrap().into_iter().filter(|name| is_run(name)).count();
    let named = image.runs().count();
    assert!(files <= named + 24, "{files} files of runs, {named} named: others are removed");
}

/// Levels are merged a range of hashes at a time: a checkpoint has what was merged and what was not, and an open goes on.
#[test]
fn checkpoints_between_the_parts_of_a_merge_are_restored() {
    let mut run = Run::of(HybridLog::new().cold_runs(true).partition_hashes(64));
    (0..KEYS).for_each(|key| run.put(key, key));
    let (mut key, mut within) = (0, 0);
    let mut until_merged = |run: &mut Run| {
        let merged = run.table.stats().runs.merged_bytes;
        for _ in 0..KEYS {
            key = (key + 7919) % KEYS;
            match key % 5 {
                0 => run.take(key),
                _ => run.put(key, key + run.number),
            }
            if run.table.stats().runs.merged_bytes > merged {
                return;
            }
        }
        panic!("nothing is merged");
    };
    let policies = [CrashPolicy::Nothing, CrashPolicy::Subset { seed: 3 }, CrashPolicy::Everything];
    for nth in 0..100 {
        until_merged(&mut run);
        let (image, model) = run.checkpoint(CheckpointOutcome::Committed, |_| ());
        if image.runs().all(|run| run.cuts.is_empty()) {
            continue;
        }
        within += 1;
        restored(&run.device.crash(policies[nth % 3]), &run.layout, &image, &model);
        until_merged(&mut run);
        run.go_on(&image, model);
        assert_eq!(entries(&mut run.table).unwrap(), run.model);
        until_merged(&mut run);
        assert_eq!(entries(&mut run.table).unwrap(), run.model);
        if within == 6 {
            return;
        }
    }
    panic!("{within} checkpoints within a merge");
}

#[test]
fn after_a_sync_that_failed_a_run_is_written_again_before_it_is_named() {
    for nth in 1.. {
        let mut run = Run::new();
        let mut blobs = BlobWriter::new(run.segments.shared_device(), 1, 4096);
        run.device.on_nth_sync(nth, Fault::Error);
        assert!(run.table.begin_checkpoint(&mut blobs).unwrap().is_none());
        let failed = loop {
            match run.table.continue_checkpoint(&mut blobs) {
                Ok(None) => {}
                Ok(Some(_)) => break false,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                    break true;
                }
            }
        };
        run.device.forget_scripts();
        drop(blobs);
        run.table.checkpointed(CheckpointOutcome::Abandoned);
        run.number = 1;
        let (image, model) = run.checkpoint(CheckpointOutcome::Committed, |_| ());
        restored(&run.device.crash(CrashPolicy::Nothing), &run.layout, &image, &model);
        if !failed {
            assert!(nth > 3, "runs are synced");
            break;
        }
    }
}

#[test]
fn a_log_goes_on_from_its_runs() {
    let mut run = Run::new();
    for round in 0..3 {
        let (image, model) = run.checkpoint(CheckpointOutcome::Committed, |_| ());
        for key in (0..KEYS).step_by(3) {
            run.table.take(&key).unwrap();
        }
        // Also with the option off: what is in runs stays there.
        let layout = match round {
            0 => HybridLog::new().cold_runs(true),
            1 => HybridLog::new().cold_runs(false),
            _ => HybridLog::new().cold_runs_automatic(),
        };
        let device = run.device.crash(CrashPolicy::Everything);
        run.segments = SegmentStore::new(Arc::new(device.clone()), 1 << (20 + round));
        run.table = open(&layout, &run.segments, MEMORY, false, Some(&image)).unwrap().0;
        (run.device, run.model) = (device, model);
        assert_eq!(run.table.len(), run.model.len() as u64);
        for key in (0..KEYS).step_by(5) {
            let found = run.table.get(&key).unwrap().copied();
            assert_eq!(found, run.model.get(&key).copied(), "{key}");
        }
        (0..KEYS).step_by(7).for_each(|key| run.put(key, key + round));
        assert_eq!(entries(&mut run.table).unwrap(), run.model);
    }
}

#[test]
fn a_heap_reads_runs_and_a_log_whose_groups_move_says_that_it_does_not() {
    use alluvium_layouts::{Heap, Layout, StateContext};
    use alluvium_pagestore::{Account, Helper};
    let mut run = Run::new();
    let (image, _) = run.checkpoint(CheckpointOutcome::Committed, |_| ());
    let context = |memory, movable| StateContext {
        name: "log".into(),
        account: Account::below(&Account::root(memory), "log", u64::MAX),
        segments: Some(run.segments.clone()),
        helper: Helper::inline(),
        max_value_bytes: 512,
        key_groups: 256,
        owned: 0..256,
        movable,
        restored: Some((image.clone(), BlobReader::new(run.segments.shared_device()))),
    };
    let mut heap = Layout::<u64, u64>::open(&Heap::new(), context(64 << 20, false)).unwrap();
    assert_eq!(heap.len(), run.model.len() as u64);
    for (key, value) in &run.model {
        assert_eq!(heap.get(key).unwrap().copied(), Some(*value), "{key}");
    }
    let refused = Layout::<u64, u64>::open(&Heap::new(), context(1 << 20, false)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::OverBudget, "{refused}");
    let log = HybridLog::new();
    let refused = Layout::<u64, u64>::open(&log, context(64 << 20, true)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[test]
fn what_has_expired_in_runs_does_not_come_back_with_a_checkpoint() {
    let mut run = Run::empty();
    run.begin_expiring(0);
    (0..KEYS).for_each(|key| run.put(key, key));
    let moved = run.table.stats().runs;
    assert!(moved.keys > KEYS / 4, "{moved:?}");
    run.expire_to(KEYS / 3);
    let after = run.table.stats();
    assert!(after.expired > KEYS / 5 && after.runs.keys < moved.keys, "{after:?}");
    for round in 1..4 {
        // Some expire while it is taken: it has them.
        let to = KEYS / 3 + round * 5000;
        let mut steps = 0;
        let (image, model) = run.checkpoint(CheckpointOutcome::Committed, |run| {
            steps += 1;
            if steps == 2 {
                run.expire_to(to);
            }
            let key = KEYS * round + steps * 31;
            run.put(key, KEYS + key % 1000);
        });
        let len = run.table.len();
        assert_eq!(len, run.model.len() as u64);
        run.go_on(&image, model);
        assert_eq!(run.table.len(), run.model.len() as u64);
        run.begin_expiring(KEYS + 1000);
        assert_eq!(entries(&mut run.table).unwrap(), run.model);
        run.expire_to(to + 2000);
        (0..KEYS).step_by(11).for_each(|key| {
            let found = run.table.get(&key).unwrap().copied();
            assert_eq!(found, run.model.get(&key).copied(), "{key}");
        });
        // Some that have expired come back, and so do some that have not.
        (0..KEYS).step_by(53).for_each(|key| run.put(key, KEYS + round));
        run.expire_to(to + 4000);
    }
    run.expire_to(3 * KEYS);
    let runs = run.table.stats().runs;
    assert_eq!((runs.keys, runs.levels), (0, 0), "{runs:?}");
}
