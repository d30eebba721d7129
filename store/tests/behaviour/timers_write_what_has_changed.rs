//! Checkpoints of timers write what has come since the last one that was confirmed and tell what has gone, and each one
//! that is retained is of its own barrier.
//!
//! What this catches: a timer that is left out, or comes back, because it was set, withdrawn or fired while a checkpoint
//! was taken, given up or left undecided, or because the store was opened again in between; timers of another key group;
//! checkpoints that write all, or what has come and gone since the last one; records that are never given up.

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium::checkpoints::Seal;
use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Faults, Simulated};
use alluvium::moving::Source;
use alluvium::stats::MemoryKind;
use alluvium::{Error, ErrorKind, KIB, MIB, Store, StoreBuilder, Time, Timers};

use crate::common::{self, Dice, Standing};

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
    /// Timers and checkpoints for which there was no room.
    refused: u64,
}

fn builder(device: &Simulated, helpers: Helpers, memory: u64) -> StoreBuilder {
    Store::in_memory()
        .clock(Arc::new(Standing))
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
        Self { device, store, timers, memory, helpers, moves, model, retained, refused: 0 }
    }

    /// Sets, withdraws or fires one, of a key that owns heap or not.
    fn change(&mut self, dice: &mut Dice) {
        let (at, key) = (dice.below(150) as i64, format!("{}", dice.below(9)).repeat(5));
        let timer = (at, key.clone(), dice.below(2) as u8);
        match dice.below(10) {
            0..5 => match self.timers.set_in(key, Time(at), timer.2) {
                Ok(is_new) => assert_eq!(is_new, self.model.insert(timer)),
                Err(error) => self.refuse(&error),
            },
            5..8 => {
                let was_there = self.timers.cancel_in(key, Time(at), timer.2);
                assert_eq!(was_there, self.model.remove(&timer));
            }
            8 => {
                let fired = self.timers.pop_first().map(|(at, key, n)| (at.0, key, n));
                fired.iter().for_each(|fired| assert!(self.model.remove(fired)));
            }
            _ => {
                // It comes and goes.
                if self.model.insert(timer.clone()) {
                    match self.timers.set_in(key.clone(), Time(at), timer.2) {
                        Ok(_) => assert!(self.timers.cancel_in(key, Time(at), timer.2)),
                        Err(error) => self.refuse(&error),
                    }
                    self.model.remove(&timer);
                }
            }
        }
        assert_eq!(self.timers.len(), self.model.len() as u64);
    }

    fn refuse(&mut self, error: &Error) {
        assert!(error.kind() == ErrorKind::OverBudget && self.memory < MIB, "{error}");
        self.refused += 1;
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
                // There was no memory to note what went while it was told: it is begun again.
                Err(error) if error.kind() == ErrorKind::Overtaken && self.memory < MIB => {
                    self.refused += 1;
                    return false;
                }
                Err(error) => {
                    self.refuse(&error);
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

/// Who does the work in the background of a history: half of them have a thread.
fn helpers_of(seed: u64) -> Helpers {
    if seed % 8 >= 4 { Helpers::Thread } else { Helpers::Inline }
}

/// Plays a history; says how many checkpoints were confirmed, and for what there was no room.
fn play(seed: u64, rounds: u64) -> (u64, u64) {
    let (moves, in_little) = (seed % 2 == 1, seed % 4 >= 2);
    let memory = if in_little { 160 * KIB } else { 4 * MIB };
    let mut dice = Dice(seed);
    let mut ground = Ground::new(seed, helpers_of(seed), memory, moves);
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
    (confirmed, ground.refused)
}

#[test]
fn each_checkpoint_that_is_retained_is_of_its_barrier() {
    let seeds = if common::long() { 400 } else { 8 };
    let played: Vec<_> = (0..seeds).map(|seed| (helpers_of(seed), play(seed, 60))).collect();
    // How much a thread comes to is its turn on the machine: those without one are enough by themselves.
    let counted = || played.iter().filter(|(helpers, _)| *helpers == Helpers::Inline);
    let confirmed: u64 = counted().map(|(_, (confirmed, _))| confirmed).sum();
    let refused: u64 = counted().map(|(_, (_, refused))| refused).sum();
    assert!(confirmed > 80 && refused > 20, "{played:?}");
}

/// Where little is written, all are looked at still, as many with each share as the design says.
#[test]
fn a_share_looks_at_no_more_than_some_thousands() {
    let device = Simulated::new(1, Faults::default());
    let store = builder(&device, Helpers::Inline, 64 * MIB).open().unwrap();
    let mut timers = store.timers::<u64>("t").unwrap();
    let count = 200_000_i64;
    (0..count).for_each(|n| assert!(timers.set(n.cast_unsigned(), Time(n)).unwrap()));
    store.checkpoint(1).unwrap();
    for round in 0..3 {
        timers.pop_first().unwrap();
        timers.set(0, Time(count + round)).unwrap();
        let mut seal = store.seal(2).unwrap();
        let mut shares = 1;
        while !seal.advance().unwrap() {
            shares += 1;
        }
        assert!(shares >= count / 8192, "{shares} shares");
        seal.confirm().unwrap();
    }
}

/// Sets timers until there is no room; says how many.
fn fill(timers: &mut Timers<u64>, from: u64) -> u64 {
    for n in from.. {
        match timers.set(n, Time((n * 7919 % 100_003).cast_signed())) {
            Ok(is_new) => assert!(is_new),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OverBudget);
                return n - from;
            }
        }
    }
    unreachable!("memory has an end")
}

/// Timers are worth more than what is noted of those that have gone: then a checkpoint writes all.
#[test]
fn timers_have_the_memory_that_notes_of_the_dead_take() {
    let device = Simulated::new(1, Faults::default());
    let memory = MIB;
    let store = builder(&device, Helpers::Inline, memory).open().unwrap();
    let mut timers = store.timers::<u64>("t").unwrap();
    let room = fill(&mut timers, 0);
    let fire = |timers: &mut Timers<u64>, count: u64| {
        (0..count).for_each(|_| assert!(timers.pop_first().is_some()));
    };
    fire(&mut timers, room / 10);
    let written = || store.stats().unwrap().io.bytes_written;
    store.checkpoint(1).unwrap();
    let whole = written();
    fire(&mut timers, room / 10);
    store.checkpoint(2).unwrap();
    assert!(written() - whole < whole / 3, "what has fired is told, and not all written");
    fire(&mut timers, room / 10);
    let used = store.stats().unwrap().memory.used;
    fill(&mut timers, room);
    let is_full = store.stats().unwrap().memory.used + 8 * KIB > memory;
    assert!(is_full && used + 8 * KIB < memory);
    // Buffers need some room. Less than a half is new.
    fire(&mut timers, room / 5);
    let before = written();
    store.checkpoint(3).unwrap();
    let entries = timers.len();
    assert!(written() - before > entries * 40, "all {entries} were written");
    let expected: Vec<_> = std::iter::from_fn(|| timers.pop_first()).collect();
    let image = device.crash(CrashPolicy::Nothing);
    let store = builder(&image, Helpers::Inline, memory).open().unwrap();
    let mut timers = store.timers::<u64>("t").unwrap();
    assert!(std::iter::from_fn(|| timers.pop_first()).eq(expected));
}

/// In memory blocks are full; on storage a few of each are behind the rest, which leaves gaps as they are read.
#[test]
fn timers_that_fill_the_memory_are_restored_in_it() {
    let device = Simulated::new(1, Faults::default());
    let open = |device: &Simulated| {
        let store = builder(device, Helpers::Inline, MIB).open().unwrap();
        let timers = store.timers::<u64>("t").unwrap();
        (store, timers)
    };
    let (store, mut timers) = open(&device);
    let at = |n: u64| Time(n.cast_signed());
    let count = (0..).find(|n| timers.set(*n, at(*n)).is_err()).expect("memory has an end");
    let left = count / 6..count;
    (0..left.start).for_each(|n| assert!(timers.cancel(n, at(n))));
    store.checkpoint(1).unwrap();
    let written = || store.stats().unwrap().io.bytes_written;
    let whole = written();
    // Not the first of a block: what comes before it is of the block before.
    for n in left.clone().filter(|n| n % 64 % 16 == 5) {
        assert!(timers.cancel(n, at(n)) && timers.set(n, at(n)).unwrap());
    }
    store.checkpoint(2).unwrap();
    assert!(written() - whole < whole / 3, "few were written");
    let (_store, mut timers) = open(&device.crash(CrashPolicy::Nothing));
    let all = std::iter::from_fn(|| timers.pop_first());
    assert!(all.eq(left.map(|n| (at(n), n, ()))));
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
        assert!(timers.set(next, Time(at.cast_signed())).unwrap());
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
            timers.cancel(key, Time(at.cast_signed()));
        }
        for _ in 0..passing {
            let (at, key) = set(&mut timers, round);
            assert!(timers.cancel(key, Time(at.cast_signed())));
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
        assert!(whole > count * 32, "the first has everything");
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

#[test]
fn a_checkpoint_ends_while_more_timers_are_set_than_its_shares_look_at() {
    const OLD: i64 = 20_000;
    const BETWEEN: i64 = 10_000;
    let device = Simulated::new(1, Faults::none());
    let store = builder(&device, Helpers::Inline, 256 * MIB).open().unwrap();
    let mut timers: Timers<u64> = store.timers("t").unwrap();
    (0..OLD).for_each(|at| assert!(timers.set(at as u64, Time(at)).unwrap()));
    store.checkpoint(0).unwrap();
    let mut seal = store.seal(1).unwrap();
    let mut set = OLD;
    for share in 0.. {
        if seal.advance().unwrap() {
            break;
        }
        assert!(share < 40, "{set} timers are set");
        (set..set + BETWEEN).for_each(|at| assert!(timers.set(at as u64, Time(at)).unwrap()));
        set += BETWEEN;
    }
    seal.confirm().unwrap();
    drop((timers, store));
    let store = builder(&device, Helpers::Inline, 256 * MIB).open().unwrap();
    let mut timers: Timers<u64> = store.timers("t").unwrap();
    let fired: Vec<i64> = std::iter::from_fn(|| timers.pop_first()).map(|(at, ..)| at.0).collect();
    assert_eq!(fired, (0..OLD).collect::<Vec<_>>());
}

/// Memory that checkpoints of timers have, which were not written yet when all of so many fired: before the checkpoint is
/// given up, in that call, and after each unit of work in idle time.
fn kept_bytes(count: i64) -> Vec<u64> {
    let device = Simulated::new(1, Faults::none());
    let store = builder(&device, Helpers::Inline, 256 * MIB).open().unwrap();
    let mut timers: Timers<String> = store.timers("t").unwrap();
    let kept = || store.stats().unwrap().states[0].memory.used_for(MemoryKind::Buffers);
    let before = kept();
    let key = |at: i64| format!("{at:40}");
    (0..count).for_each(|at| assert!(timers.set(key(at), Time(at)).unwrap()));
    let seal = store.seal(0).unwrap();
    (0..count).for_each(|at| assert_eq!(timers.pop_first(), Some((Time(at), key(at), ()))));
    let mut kept_bytes = vec![kept()];
    seal.abort();
    kept_bytes.push(kept());
    while store.tick(1).unwrap() > 0 {
        kept_bytes.push(kept());
    }
    assert_eq!(kept_bytes.last(), Some(&before));
    kept_bytes
}

#[test]
fn what_a_checkpoint_that_is_given_up_has_kept_goes_in_parts() {
    let counts = [2_000, 50_000].map(|count| {
        let bytes = kept_bytes(count);
        assert!(bytes[0] > count as u64 * 60, "{} bytes of {count} timers", bytes[0]);
        let most = bytes.windows(2).map(|two| two[0] - two[1]).max().unwrap();
        // Some blocks of 64 timers each, and the table of blocks with the last.
        assert!(most <= 80 * KIB, "{most} bytes of {count} timers go in one call");
        bytes.len()
    });
    assert!(counts[1] > 15 * counts[0], "{counts:?}");
}

/// Timers that memory has room for after all of a third of it were set anew eight times, while as many checkpoints were
/// taken, if they are, and given up.
fn room_after_changes(seals: bool) -> i64 {
    let device = Simulated::new(1, Faults::none());
    let store = builder(&device, Helpers::Inline, MIB).open().unwrap();
    let mut timers: Timers<u64> = store.timers("t").unwrap();
    let fill = |timers: &mut Timers<u64>| {
        let full = (0..).find(|at| timers.set(*at as u64, Time(*at)).is_err());
        full.expect("memory is full at last")
    };
    let full = fill(&mut timers);
    (full / 3..full).for_each(|at| assert!(timers.cancel(at as u64, Time(at))));
    for round in 0..8 {
        let seal = seals.then(|| store.seal(round).unwrap());
        for at in 0..full / 3 {
            assert!(timers.cancel(at as u64, Time(at)));
            assert!(timers.set(at as u64, Time(at)).unwrap());
        }
        seal.into_iter().for_each(Seal::abort);
    }
    fill(&mut timers)
}

#[test]
fn what_a_checkpoint_that_is_given_up_has_kept_makes_way() {
    let (with, without) = (room_after_changes(true), room_after_changes(false));
    assert!(with * 50 >= without * 49, "room for {with} timers, {without} without checkpoints");
}
