//! Checkpoints of timers write what has come since the last one that was confirmed and tell what has gone, and each one
//! that is retained is of its own barrier.
//!
//! What this catches: a timer that is left out, or comes back, because it was set, withdrawn or fired while a checkpoint
//! was taken, given up or left undecided, or because the store was opened again in between; timers of another key group;
//! checkpoints that write all, or what has come and gone since the last one; records that are never given up.

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium::io::{CrashPolicy, Faults, Simulated};
use alluvium::{ErrorKind, Helpers, KIB, MIB, Source, Store, StoreBuilder, Time, Timers};

use crate::common::Dice;

type Model = BTreeSet<(i64, String, u8)>;

const GROUPS: u16 = 8;

/// A store with timers, what should be in them, and the checkpoints of it that can be restored.
struct Ground {
    device: Simulated,
    store: Store,
    timers: Timers<String, u8>,
    memory: u64,
    helpers: Helpers,
    moves: bool,
    model: Model,
    retained: Vec<(u64, Model)>,
}

fn builder(device: &Simulated, helpers: Helpers, memory: u64) -> StoreBuilder {
    Store::in_memory()
        .memory(memory)
        .max_value(KIB)
        .helpers(helpers)
        .key_groups(GROUPS)
        .device(Arc::new(device.clone()))
        .retain(3)
}

fn open(builder: StoreBuilder, moves: bool) -> (Store, Timers<String, u8>) {
    let store = builder.open().unwrap();
    let timers = match moves {
        false => store.timers_in("t"),
        true => store.timers_moved_by(&store.mover("unit").unwrap(), "t"),
    };
    (store, timers.unwrap())
}

fn all(mut timers: Timers<String, u8>) -> Model {
    let fired = std::iter::from_fn(|| timers.pop_first());
    fired.map(|(at, key, namespace)| (at.0, key, namespace)).collect()
}

impl Ground {
    fn new(seed: u64, helpers: Helpers, memory: u64, moves: bool) -> Self {
        let device = Simulated::new(seed, Faults::late(3));
        let (store, timers) = open(builder(&device, helpers, memory), moves);
        let (model, retained) = (Model::new(), Vec::new());
        Self { device, store, timers, memory, helpers, moves, model, retained }
    }

    /// Sets, withdraws or fires one, of a key that owns heap or not.
    fn change(&mut self, dice: &mut Dice) {
        let (at, key) = (dice.below(150) as i64, format!("{}", dice.below(9)).repeat(5));
        let timer = (at, key.clone(), dice.below(2) as u8);
        match dice.below(10) {
            0..5 => match self.timers.set_in(Time(at), key, timer.2) {
                Ok(is_new) => assert_eq!(is_new, self.model.insert(timer)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget),
            },
            5..8 => {
                let was_there = self.timers.cancel_in(Time(at), key, timer.2);
                assert_eq!(was_there, self.model.remove(&timer));
            }
            8 => {
                let fired = self.timers.pop_first().map(|(at, key, n)| (at.0, key, n));
                fired.iter().for_each(|fired| assert!(self.model.remove(fired)));
            }
            _ => {
                // It comes and goes.
                if self.model.insert(timer.clone()) {
                    match self.timers.set_in(Time(at), key.clone(), timer.2) {
                        Ok(_) => assert!(self.timers.cancel_in(Time(at), key, timer.2)),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget),
                    }
                    self.model.remove(&timer);
                }
            }
        }
        assert_eq!(self.timers.len(), self.model.len() as u64);
    }

    fn changes(&mut self, dice: &mut Dice, most: u64) {
        (0..dice.below(most + 1)).for_each(|_| self.change(dice));
    }

    /// Takes a checkpoint while timers come and go, and ends it somehow; says whether it was confirmed.
    fn checkpoint(&mut self, dice: &mut Dice) -> bool {
        let barrier = self.model.clone();
        let mut seal = self.store.seal(0).unwrap();
        let number = seal.number();
        let end = dice.below(6);
        let steps = dice.below(9);
        let meanwhile = dice.below(30);
        for step in 0.. {
            if end == 0 && step == steps {
                seal.abort();
                return false;
            }
            match seal.advance() {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::OverBudget);
                    assert!(self.memory < MIB, "{error}");
                    return false;
                }
            }
            self.changes(dice, meanwhile);
        }
        self.changes(dice, meanwhile);
        match end {
            0 => {
                seal.abort();
                false
            }
            1 => {
                // Nobody knows what became of it.
                seal.keep();
                drop(seal);
                false
            }
            _ => {
                seal.confirm().unwrap();
                self.retained.push((number, barrier));
                let old = self.retained.len().saturating_sub(3);
                self.retained.drain(..old);
                true
            }
        }
    }

    /// What a crash now would leave.
    fn image(&self) -> Simulated {
        self.device.crash(CrashPolicy::Nothing)
    }

    /// Each checkpoint that is retained is of its barrier, read by another kind of timers.
    fn check_each(&self, when: &str) {
        for (number, barrier) in &self.retained {
            let builder = builder(&self.image(), Helpers::Inline, 4 * MIB).restore(*number);
            let (_store, timers) = open(builder, !self.moves);
            assert_eq!(&all(timers), barrier, "{when}, checkpoint {number}");
        }
    }

    /// Three stores that share the key groups have together what the last checkpoint has.
    fn check_groups(&self, when: &str) {
        let Some((number, barrier)) = self.retained.last() else { return };
        let mut found = Model::new();
        for groups in [0..3, 3..4, 4..GROUPS] {
            let source = Source::device(Arc::new(self.image())).checkpoint(*number);
            let new = Simulated::new(1, Faults::default());
            let builder = builder(&new, Helpers::Inline, 4 * MIB).owned_groups(groups);
            let (_store, timers) = open(builder.restore_from([source]), false);
            let part = all(timers);
            assert_eq!(found.intersection(&part).count(), 0, "{when}");
            found.extend(part);
        }
        assert_eq!(&found, barrier, "{when}");
    }

    /// Crashes, and goes on from one of the checkpoints that are retained.
    fn crash(&mut self, dice: &mut Dice) {
        let Some(last) = self.retained.len().checked_sub(1) else { return };
        let nth = last.saturating_sub(dice.below(2) as usize);
        self.retained.truncate(nth + 1);
        let (number, barrier) = self.retained[nth].clone();
        self.device = self.image();
        let builder = builder(&self.device, self.helpers, self.memory).restore(number);
        (self.store, self.timers) = open(builder, self.moves);
        self.model = barrier;
    }
}

/// Plays a history; says how many checkpoints were confirmed.
fn play(seed: u64, rounds: u64) -> u64 {
    let (moves, in_little) = (seed % 2 == 1, seed % 4 >= 2);
    let helpers = if seed % 8 >= 4 { Helpers::Thread } else { Helpers::Inline };
    let memory = if in_little { 200 * KIB } else { 4 * MIB };
    let mut dice = Dice(seed);
    let mut ground = Ground::new(seed, helpers, memory, moves);
    let mut confirmed = 0;
    for round in 0..rounds {
        // Now and then most of it changes.
        let most = [40, 40, 200, 2000][dice.below(4) as usize];
        ground.changes(&mut dice, most);
        confirmed += u64::from(ground.checkpoint(&mut dice));
        let when = format!("seed {seed}, round {round}");
        match dice.below(12) {
            0..4 => ground.check_each(&when),
            4 => ground.check_groups(&when),
            5 => ground.crash(&mut dice),
            _ => {}
        }
    }
    ground.check_each(&format!("seed {seed}, the end"));
    confirmed
}

#[test]
fn each_checkpoint_that_is_retained_is_of_its_barrier() {
    let confirmed: u64 = (0..16).map(|seed| play(seed, 60)).sum();
    assert!(confirmed > 400, "{confirmed}");
}

/// Timers that few histories change much: lists of deaths, small segments and sets come and go.
#[test]
fn many_small_checkpoints_one_after_the_other_are_each_whole() {
    for moves in [false, true] {
        let mut dice = Dice(5 + u64::from(moves));
        let mut ground = Ground::new(3, Helpers::Inline, 4 * MIB, moves);
        ground.changes(&mut dice, 4000);
        for round in 0..150 {
            ground.changes(&mut dice, 20);
            ground.checkpoint(&mut dice);
            if round % 5 == 0 {
                ground.check_each(&format!("round {round}"));
            }
        }
        ground.check_groups("the end");
    }
}

/// Bytes that are written by each of some checkpoints of `count` timers, of which `changed` go and others come before
/// each, a half of them those that are due first, and `passing` come and go.
fn written(count: u64, changed: u64, passing: u64) -> Vec<u64> {
    let device = Simulated::new(1, Faults::default());
    let store = builder(&device, Helpers::Inline, 256 * MIB).retain(1).open().unwrap();
    let mut timers = store.timers::<u64>("t").unwrap();
    let (mut dice, mut next) = (Dice(count + changed), 0);
    let mut set = |timers: &mut Timers<u64>, now: u64| {
        next += 1;
        let at = now * changed + dice.below(2 * count);
        assert!(timers.set(Time(at.cast_signed()), next).unwrap());
        (at, next)
    };
    let mut known: Vec<_> = (0..count).map(|_| set(&mut timers, 0)).collect();
    let mut bytes = Vec::new();
    let mut chance = Dice(count);
    for round in 0..40 {
        for _ in 0..changed / 2 {
            timers.pop_first().unwrap();
        }
        while timers.len() > count - changed && !known.is_empty() {
            let (at, key) = known.swap_remove(chance.below(known.len() as u64) as usize);
            timers.cancel(Time(at.cast_signed()), key);
        }
        for _ in 0..passing {
            let (at, key) = set(&mut timers, round);
            assert!(timers.cancel(Time(at.cast_signed()), key));
        }
        while timers.len() < count {
            known.push(set(&mut timers, round));
        }
        let before = store.stats().unwrap().io.bytes_written;
        store.checkpoint(round).unwrap();
        bytes.push(store.stats().unwrap().io.bytes_written - before);
    }
    bytes
}

/// Header of a segment, page and tail, those of the list of deaths, and the checkpoint's own file: whole blocks.
const BLOCKS: u64 = 48 << 10;
/// What a record takes, and what tells that another one is dead.
const RECORD: u64 = 80;

#[test]
fn a_checkpoint_writes_in_proportion_to_what_has_changed() {
    for (count, changed) in [(50_000, 500), (50_000, 5_000), (5_000, 50)] {
        let bytes = written(count, changed, count / 10);
        let whole = bytes[0];
        assert!(whole > count * 40, "the first has everything");
        let mean = bytes[1..].iter().sum::<u64>() / (bytes.len() - 1) as u64;
        let bound = 3 * changed * RECORD + BLOCKS;
        assert!(mean <= bound, "{mean} in the mean, {bound} for {changed} of {count}: {bytes:?}");
    }
}

#[test]
fn a_checkpoint_of_16_times_the_timers_writes_the_same() {
    let median = |count: u64| {
        let mut bytes = written(count, 200, 500).split_off(1);
        bytes.sort_unstable();
        bytes[bytes.len() / 2]
    };
    let (few, many) = (median(5_000), median(80_000));
    assert!(many <= few * 5 / 4, "{few}, {many} of more timers");
}

#[test]
fn timers_that_come_and_go_between_two_checkpoints_write_nothing() {
    let none = written(2_000, 0, 0).split_off(1);
    let passing = written(2_000, 0, 5_000).split_off(1);
    assert_eq!(none, passing);
    assert!(none.iter().all(|bytes| *bytes < 16 << 10), "{none:?}");
}
