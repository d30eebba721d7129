//! Entries of a log with a cold tier expire: what is there is what a map of times says, and `len` counts just that.

use std::collections::BTreeMap;
use std::fmt::Debug;

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, MIB, RewriteProgress, SegmentMeta, State, Time};

use super::tests::{Dice, open};
use crate::contract::expiry::{ExpiryPass, Touched};
use crate::contract::table::{Cursor, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::{HybridLog, HybridLogTable};

/// A value that tells when it was touched last.
trait Timed: State + PartialEq + Debug {
    fn of(touched: i64, key: u64) -> Self;
    fn touched(&self) -> Time;
}

impl Timed for [u64; 2] {
    fn of(touched: i64, key: u64) -> Self {
        [touched as u64, key]
    }

    fn touched(&self) -> Time {
        Time(self[0] as i64)
    }
}

impl Timed for String {
    fn of(touched: i64, key: u64) -> Self {
        format!("{touched:020} of {key:0w$}", w = 8 + key as usize % 60)
    }

    fn touched(&self) -> Time {
        Time(self[..20].parse().unwrap())
    }
}

/// A table as a store drives it, and when each key was touched last. Keys that have expired may be there or not, and do not
/// come back.
struct Life<V: Timed> {
    table: HybridLogTable<u64, V>,
    model: BTreeMap<u64, i64>,
    now: i64,
    ttl: i64,
    /// The last pass, or the one under way.
    pass: ExpiryPass<V>,
}

impl<V: Timed> Life<V> {
    fn new(table: HybridLogTable<u64, V>, ttl: i64) -> Self {
        let touched: Touched<V> = V::touched;
        let mut pass = ExpiryPass::new(touched, Time::MIN);
        pass.cursor.done = true;
        let mut life = Self { table, model: BTreeMap::new(), now: 0, ttl, pass };
        life.table.can_expire().unwrap();
        life.table.stamp_with(touched, Time(0));
        life.table.live_for(ttl as u64);
        life
    }

    /// What was touched last before this is over.
    fn over(&self) -> i64 {
        self.now - self.ttl + 1
    }

    /// What is there of a key, if it is not over.
    fn known(&self, key: u64) -> Option<i64> {
        self.model.get(&key).copied().filter(|touched| *touched >= self.over())
    }

    /// Looks at what a call has found. What is over may be found; what is not there is forgotten.
    fn saw(&mut self, key: u64, found: Option<V>) {
        match (found, self.model.get(&key)) {
            (Some(found), Some(touched)) => assert_eq!(found, V::of(*touched, key), "{key}"),
            (None, _) => {
                assert_eq!(self.known(key), None, "{key} is missing");
                self.model.remove(&key);
            }
            (Some(found), None) => panic!("{key} is back: {found:?}"),
        }
    }

    fn get(&mut self, key: u64) {
        let found = self.table.get(&key).unwrap().cloned();
        self.saw(key, found);
    }

    fn put(&mut self, key: u64) {
        let was_there = self.table.put(key, V::of(self.now, key)).unwrap();
        assert!(was_there || self.known(key).is_none(), "{key}");
        assert!(!was_there || self.model.contains_key(&key), "{key} is back");
        self.model.insert(key, self.now);
    }

    fn touch(&mut self, key: u64) {
        let new = V::of(self.now, key);
        let before = self.table.modify(&key, |value| std::mem::replace(value, new)).unwrap();
        let is_there = before.is_some();
        self.saw(key, before);
        if is_there {
            self.model.insert(key, self.now);
        }
    }

    fn take(&mut self, key: u64) {
        let taken = self.table.take(&key).unwrap();
        self.saw(key, taken);
        self.model.remove(&key);
    }

    /// Time goes on, and a store looks at some entries.
    fn go_on(&mut self, by: i64) {
        self.now += by;
        if self.pass.cursor.done && self.over() >= self.pass.to.0.saturating_add(self.ttl / 8) {
            self.pass = ExpiryPass::new(V::touched, Time(self.over()));
        }
        if !self.pass.cursor.done {
            self.table.expire(&mut self.pass, 8).unwrap();
        }
    }

    /// All that is shown is right, and counted.
    fn check(&mut self) {
        let (mut seen, mut cursor) = (BTreeMap::new(), Cursor::default());
        while !cursor.done {
            self.table
                .scan(&mut cursor, 5000, &mut |key, value| {
                    assert!(seen.insert(*key, value.clone()).is_none(), "{key} is shown twice");
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(self.table.len(), seen.len() as u64, "{:?}", self.table.stats());
        let keys: Vec<u64> = self.model.keys().copied().collect();
        for key in keys {
            self.saw(key, seen.remove(&key));
        }
        assert!(seen.is_empty(), "{seen:?} are back");
    }
}

fn play<V: Timed>(seed: u64, (keys, steps, ttl): (u64, u64, i64), layout: &HybridLog) {
    let (device, store) = (Simulated::new(seed, Faults::none()), Account::root(MIB));
    let table = open::<u64, V>(&layout.clone().cold_runs(true), &device, &store);
    let (mut life, mut dice) = (Life::new(table, ttl), Dice(seed));
    let mut most = 0;
    for step in 0..steps {
        // New keys come, some of which come back; a few are touched again and again.
        let key = match dice.below(8) {
            0..6 => step % keys,
            6 => dice.below(keys),
            _ => dice.below(keys / 40),
        };
        match dice.below(12) {
            0..8 => life.put(key),
            8 => life.get(key),
            9 => life.take(key),
            _ => life.touch(key),
        }
        life.go_on(if dice.below(20_000) == 0 { ttl / 2 } else { 1 });
        if step % 256 == 0 {
            rewrite_some(&mut life.table);
        }
        most = most.max(life.table.stats().runs.keys);
        assert!(store.used() <= MIB, "{store:?}");
        if step % (steps / 5) == 0 {
            life.check();
        }
    }
    life.check();
    let stats = life.table.stats();
    println!("{most} keys in runs at most, {stats:?}");
    assert!(most > 5000 && stats.expired > 5000, "{most}, {stats:?}");
    // Of what nobody touches any more nothing is left, without a new entry that would pay for it.
    for _ in 0..4 {
        life.go_on(ttl);
        for _ in 0..200 {
            life.go_on(0);
            life.table.tick(5000).unwrap();
            rewrite_some(&mut life.table);
        }
    }
    let stats = life.table.stats();
    assert_eq!((stats.runs.keys, stats.runs.levels), (0, 0), "{stats:?}");
    let runs = device.list().unwrap().into_iter().filter(|name| name.starts_with("run-")).count();
    assert_eq!(runs, 0, "no run has a record that is there");
    life.check();
    life.put(7);
    life.get(7);
    drop(life);
    assert_eq!(store.used(), 0);
}

/// Rewrites a segment that has expired, or more than half of which is dead, and unlinks those that are dead, as a store
/// does.
fn rewrite_some<V: Timed>(table: &mut HybridLogTable<u64, V>) {
    let rewriter = table.rewriter().expect("a log with segments");
    let mut segments = Vec::new();
    rewriter.segments(&mut segments);
    segments.retain(|segment| segment.sealed && !segment.pinned);
    for segment in segments.iter().filter(|segment| segment.live_records == 0) {
        rewriter.unlink(segment.id).unwrap();
    }
    let wanted = |segment: &&SegmentMeta| {
        let is_due = segment.expired || 2 * segment.live_records < segment.records;
        segment.live_records > 0 && is_due
    };
    let Some(segment) = segments.iter().find(wanted) else { return };
    rewriter.begin(segment.id).unwrap();
    for _ in 0..20 {
        let progress = table.rewriter().expect("a log with segments").step(1000).unwrap();
        if matches!(progress, RewriteProgress::Done { .. }) {
            return;
        }
        table.tick(1).unwrap();
    }
}

#[test]
fn plain_values_expire() {
    play::<[u64; 2]>(0, (500_000, 420_000, 150_000), &HybridLog::new());
}

#[test]
fn keys_that_come_back_expire() {
    play::<[u64; 2]>(5, (130_000, 420_000, 110_000), &HybridLog::new());
}

#[test]
fn values_that_own_heap_expire() {
    play::<String>(3, (150_000, 300_000, 120_000), &HybridLog::new());
}

#[test]
fn keys_whose_hashes_are_alike_expire() {
    play::<[u64; 2]>(4, (120_000, 260_000, 100_000), &HybridLog::new().hash_bits(13));
}

/// Parts of merges drop what has expired: space comes back although some keys of each level are touched again and again, so
/// that no level goes as a whole.
#[test]
fn what_has_expired_goes_with_the_parts_of_merges() {
    let (device, store) = (Simulated::new(6, Faults::none()), Account::root(MIB));
    let layout = HybridLog::new().cold_runs(true).partition_hashes(64).index_percent(12);
    let table = open::<u64, [u64; 2]>(&layout, &device, &store);
    let (mut life, mut dice) = (Life::new(table, 20_000), Dice(6));
    let (mut most, mut most_keys, mut between) = (0, 0, 0);
    for step in 0..100_000 {
        let key = if dice.below(4) == 0 { dice.below(4_000) } else { 4_000 + step };
        life.put(key);
        life.get(4_000 + step.saturating_sub(dice.below(30_000)));
        life.go_on(1);
        if step % 256 == 0 {
            rewrite_some(&mut life.table);
            let runs = life.table.stats().runs;
            (most, most_keys) = (runs.records.max(most), runs.keys.max(most_keys));
        }
        let is_between =
            life.table.core.log.cold.as_ref().is_some_and(|cold| cold.levels.parted() > 0);
        between += u64::from(is_between);
        if is_between && between % 4 == 1 {
            life.check();
        }
        assert!(store.used() <= MIB, "{store:?}");
    }
    life.check();
    let stats = life.table.stats();
    println!(
        "{between} steps between parts, {most} records of {most_keys} keys at most, {stats:?}"
    );
    assert!(between > 10, "{between}");
    assert!(stats.runs.moved > 3 * most_keys, "most have expired: {stats:?}");
    assert!(most < 3 * most_keys, "{most} records of {most_keys} keys");
}
