//! Merges in parts: they go on after a restart, a part leaves its memory to the next one, and their levels count as one.

use std::rc::Rc;

use alluvium_layouts::runs_internals::{Judge, Levels, RecordView};
use alluvium_pagestore::{Account, KIB, MIB, MemoryKind, SegmentStore};

use crate::common::*;
use crate::dice::Dice;

const PART_BYTES: u64 = 100 << 10;

/// Keeps all records.
struct All;

impl Judge for All {
    fn judge(&mut self, _: &[RecordView<'_>], _: &mut [bool]) -> alluvium_pagestore::Result<()> {
        Ok(())
    }
}

/// Levels to which batches come.
struct Ground {
    store: SegmentStore,
    account: Rc<Account>,
    levels: Levels,
    dice: Dice,
    /// Records, and about how many bytes they have.
    records: u64,
    moved: u64,
    merged: u64,
}

impl Ground {
    fn new(seed: u64) -> Self {
        let store = store(&device(seed));
        let account = Account::below(&Account::root(4 * MIB), "cold", 4 * MIB);
        let levels =
            Levels::new(store.clone(), account.clone(), STATE).merged_in_parts_of(PART_BYTES);
        Self { store, account, levels, dice: Dice(seed), records: 0, moved: 0, merged: 0 }
    }

    fn add(&mut self) -> u64 {
        let batch = level(&mut self.dice, 60, u64::MAX >> 8, 64, 0);
        let bytes: u64 = batch.iter().map(|one| one.value.len() as u64 + 32).sum();
        self.records += batch.len() as u64;
        self.moved += bytes;
        let runs = write(&self.store, small(), &batch).unwrap();
        self.levels.add(&runs).unwrap();
        bytes
    }

    fn step(&mut self, fuel: u64) -> bool {
        self.levels.step(fuel, small(), 8 << 10, |_| All).unwrap()
    }

    /// What a checkpoint has of the levels is opened.
    fn restart(&mut self) {
        let (store, account) = (self.store.clone(), self.account.clone());
        self.merged += self.levels.stats().merged_bytes;
        let infos = self.levels.infos();
        self.levels = Levels::new(store, account, STATE).merged_in_parts_of(PART_BYTES);
        infos.iter().rev().for_each(|runs| self.levels.add(runs).unwrap());
        self.levels.go_on_in_parts();
    }

    fn count(&self) -> u64 {
        let mut count = 0;
        let visit = &mut |group: &[RecordView<'_>]| {
            count += group.len() as u64;
            Ok(true)
        };
        self.levels.scan(&(0..=u64::MAX), 8 << 10, visit).unwrap();
        count
    }
}

#[test]
fn they_go_on_after_a_restart() {
    let (mut written, mut known) = ([0; 2], [0; 2]);
    for restarts in [false, true] {
        let mut ground = Ground::new(81);
        for nth in 0..800 {
            let bytes = ground.add();
            ground.step(10 * bytes);
            if restarts && nth % 40 == 39 {
                let parted = ground.levels.parted();
                ground.restart();
                known[0] += parted;
                known[1] += ground.levels.parted();
            }
        }
        assert_eq!(ground.count(), ground.records);
        written[usize::from(restarts)] = ground.merged + ground.levels.stats().merged_bytes;
    }
    println!("{written:?} bytes written, {known:?} merges in parts before and after");
    assert!(known[0] > 10 && known[1] == known[0], "{known:?}");
    assert!(written[1] < written[0] * 11 / 10, "{written:?}");
}

#[test]
fn a_part_leaves_its_memory_to_the_next() {
    let mut ground = Ground::new(82);
    while ground.levels.parted() == 0 {
        let bytes = ground.add();
        for _ in 0..10 {
            if ground.levels.parted() == 0 {
                ground.step(bytes);
            }
        }
    }
    // Others take what is free, but for what describes the files that merges write.
    let taken = ground.account.available() - 16 * KIB;
    ground.account.charge(MemoryKind::Pages, taken);
    let merges = ground.levels.stats().merges;
    let mut steps = 0;
    while ground.levels.parted() > 0 {
        assert!(ground.step(PART_BYTES), "a part begins");
        steps += 1;
        assert!(steps < 1_000, "it ends");
    }
    assert!(ground.levels.stats().merges > merges);
    ground.account.release(MemoryKind::Pages, taken);
    assert_eq!(ground.count(), ground.records);
    // What is kept for a part goes when there is none.
    ground.levels.give_up();
    ground.levels.clear().unwrap();
    assert_eq!(ground.account.used(), 0);
}

/// However many levels merges in parts have, those that count are few if merges are done as fast as batches come.
#[test]
fn their_levels_count_as_one() {
    let mut ground = Ground::new(83);
    let (mut most, mut standing) = (0, 0);
    for _ in 0..2_000 {
        let bytes = ground.add();
        ground.step(8 * bytes);
        most = ground.levels.len().max(most);
        standing = ground.levels.standing().max(standing);
    }
    println!("{most} levels, {standing} count, {} merges in parts", ground.levels.parted());
    assert!(most > 30 && standing <= 24, "{most} levels, {standing} count");
}
