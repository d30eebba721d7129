//! What happens between the parts of merges, and within one: key groups leave and arrive, the device is full, and a crash
//! comes at any step.
//!
//! What this catches: a record of a group that has left and comes back with a part that had copied it, or with a checkpoint;
//! a group that arrives behind the place that a merge has reached; a file that a part removes although a checkpoint names
//! it; what a part that stopped has left on a full device.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use alluvium_pagestore::io::{CrashPolicy, Device, Moment, Simulated};
use alluvium_pagestore::{ErrorKind, Helper, KeyGroup, KeyHash, SegmentStore, StateImage, Turns};

use super::merging_tests::{Play, open};
use super::tests::Dice;
use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::table::{CheckpointOutcome, Cursor, Table};
use crate::contract::upkeep::Upkeep;
use crate::hybrid_log::HybridLog;

const GROUPS: u16 = 256;

fn group_of(key: u64) -> u16 {
    KeyGroup::of(key.key_hash(), GROUPS).0
}

/// Records move early, and parts of merges have some 8,000 of them.
fn in_parts() -> HybridLog {
    HybridLog::new().cold_runs(true).partition_hashes(64).index_percent(12)
}

/// What a tier is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A part of a merge is over, and not all are.
    BetweenParts,
    /// The next one is under way.
    WithinPart,
    /// Records are copied to be moved, are written, or lose their index entries.
    Gathering,
    Writing,
    Leaving,
}

impl Play {
    fn is_in(&self, phase: Phase) -> bool {
        let cold = self.table.core.log.cold.as_ref().unwrap();
        let moves = |is_it: fn(&super::ColdMove) -> bool| cold.moving.as_deref().is_some_and(is_it);
        match phase {
            Phase::BetweenParts => cold.levels.parted() > 0,
            Phase::WithinPart => cold.levels.parted() > 0 && cold.levels.is_merging(),
            Phase::Gathering => moves(super::ColdMove::is_gathering),
            Phase::Writing => moves(|one| !one.is_gathering() && !one.is_leaving()),
            Phase::Leaving => moves(super::ColdMove::is_leaving),
        }
    }

    fn take(&mut self, key: u64) {
        assert_eq!(self.table.take(&key).unwrap(), self.model.remove(&key), "{key}");
    }
}

/// Two logs each of which has some key groups, and sends them to the other one.
struct Exchange {
    sides: [Play; 2],
    /// Which side has a group.
    side_of: [usize; GROUPS as usize],
    keys: u64,
    dice: Dice,
    value: u64,
}

impl Exchange {
    fn new(seed: u64, keys: u64, helpers: [(Simulated, Helper); 2]) -> Self {
        let sides = helpers.map(|(device, helper)| Play::on(device, helper, seed, in_parts()));
        let side_of = std::array::from_fn(|group| group % 2);
        let mut exchange = Self { sides, side_of, keys, dice: Dice(seed), value: keys };
        (0..keys).for_each(|key| exchange.side(key).put(key, key));
        exchange
    }

    fn side(&mut self, key: u64) -> &mut Play {
        &mut self.sides[self.side_of[group_of(key) as usize]]
    }

    /// Changes or reads any key but those of a group that is on its way.
    fn change(&mut self, but: Option<u16>) {
        let key = self.dice.below(self.keys);
        if but == Some(group_of(key)) {
            return;
        }
        self.value += 1;
        let (what, value) = (self.dice.below(6), self.value);
        let side = self.side(key);
        match what {
            0 => side.take(key),
            1 => {
                let found = side.table.get(&key).unwrap().copied();
                assert_eq!(found, side.model.get(&key).copied(), "{key}");
            }
            _ => side.put(key, value),
        }
    }

    /// Sends a group to the other side, while the keys of others change on both.
    fn send(&mut self, group: u16) {
        let from = self.side_of[group as usize];
        let (hashes, mut seen) = (KeyGroup(group).hashes(GROUPS), BTreeMap::new());
        let mut cursor = Cursor::default();
        while !cursor.done {
            let visit: VisitRun<'_, u64, u64> = &mut |key, _, values| {
                assert!(seen.insert(*key, values[0]).is_none(), "{key} twice");
                Ok(())
            };
            self.sides[from].table.visit_hashes((), &hashes, &mut cursor, 90, visit).unwrap();
            self.change(Some(group));
        }
        let model = &mut self.sides[from].model;
        let is_of_group = |(key, _): &(&u64, &u64)| group_of(**key) == group;
        assert!(seen.iter().eq(model.iter().filter(is_of_group)), "{} were seen", seen.len());
        model.retain(|key, _| group_of(*key) != group);
        let mut cursor = Cursor::default();
        while !cursor.done {
            self.sides[from].table.remove_hashes((), &hashes, &mut cursor, 90).unwrap();
            self.change(Some(group));
        }
        assert_eq!(self.sides[from].table.len(), self.sides[from].model.len() as u64);
        self.side_of[group as usize] = 1 - from;
        for (key, value) in seen {
            self.sides[1 - from].put(key, value);
            self.change(Some(group));
        }
    }

    /// Changes keys until one side is in a phase. Says which.
    fn until(&mut self, phase: Phase) -> usize {
        for _ in 0..40 * self.keys {
            if let Some(side) = self.sides.iter().position(|side| side.is_in(phase)) {
                return side;
            }
            self.change(None);
        }
        panic!("never {phase:?}: {:?}", self.sides[0].table.stats().runs);
    }

    fn check(&mut self) {
        self.sides.iter_mut().for_each(Play::check);
    }
}

/// Groups leave in each phase of moves and merges, and come back to where the merge had passed them or had not. Then both
/// logs are opened again from a checkpoint with cuts of parts and of groups.
fn exchange(seed: u64, keys: u64, helpers: [(Simulated, Helper); 2]) {
    let mut exchange = Exchange::new(seed, keys, helpers);
    let phases = [Phase::BetweenParts, Phase::Gathering, Phase::Writing, Phase::Leaving];
    for phase in phases.into_iter().chain([Phase::WithinPart; 2]) {
        let from = exchange.until(phase);
        let any = exchange.dice.below(GROUPS.into()) as u16;
        let mut groups = (0..GROUPS).map(|nth| (any + nth) % GROUPS);
        let group = groups.find(|group| exchange.side_of[*group as usize] == from).unwrap();
        exchange.send(group);
        // It comes back soon, beside another one.
        exchange.send((group + 1) % GROUPS);
        exchange.send(group);
    }
    exchange.check();
    let from = exchange.until(Phase::BetweenParts);
    let group = exchange.side_of.iter().position(|side| *side == from).unwrap();
    exchange.send(group as u16);
    for side in &mut exchange.sides {
        side.open_again(Helper::inline());
    }
    exchange.check();
    for group in [group as u16, 77, 255] {
        exchange.until(Phase::BetweenParts);
        exchange.send(group);
    }
    exchange.check();
}

#[test]
fn key_groups_are_exchanged_between_the_parts_of_merges() {
    let helpers = [1, 2].map(|seed| (super::giving_tests::device(seed), Helper::inline()));
    exchange(1, 60_000, helpers);
}

#[test]
fn key_groups_are_exchanged_while_helpers_merge_in_parts() {
    let helpers = [3, 4].map(|seed| {
        let (turns, device) = (Turns::new(seed), super::giving_tests::device(seed));
        device.take_turns(&turns);
        (device, Helper::in_turns(&turns).unwrap())
    });
    exchange(3, 60_000, helpers);
}

/// The device becomes full within a part. What was merged stays so; reads, changes in memory and deletes go on, and merges
/// too once there is room.
#[test]
fn a_device_that_becomes_full_within_a_part_stops_merging_and_nothing_else() {
    let keys = 30_000;
    let mut play = Play::empty(7, in_parts());
    (0..keys).for_each(|key| play.put(key, key));
    for round in 0..3 {
        let mut value = 0;
        while !play.is_in(Phase::WithinPart) {
            let key = play.dice.below(keys);
            value += 1;
            play.put(key, value);
            assert!(value < 40 * keys, "never within a part");
        }
        let before = play.table.stats().runs;
        // Room for less than what a part writes.
        let used = play.device.used_bytes();
        play.device.set_capacity_bytes(Some(used + round * 16_384));
        let mut deleted = 0;
        for step in 0..4_000 {
            let key = play.dice.below(keys);
            let found = play.table.get(&key).unwrap().copied();
            assert_eq!(found, play.model.get(&key).copied(), "{key}");
            if step % 40 == 0 {
                assert_eq!(play.table.take(&key).unwrap(), play.model.remove(&key), "{key}");
                deleted += 1;
            }
            // What cannot be written may be refused.
            if let Ok(known) = play.table.put(key, step) {
                assert_eq!(known, play.model.insert(key, step).is_some(), "{key}");
            }
        }
        let after = play.table.stats().runs;
        println!("{deleted} deleted, {after:?}");
        assert!(after.failed > before.failed, "a part has met the full device");
        let merged = after.merged_bytes - before.merged_bytes;
        assert!(merged < 400 << 10, "{merged} bytes: no more than the end of one part");
        play.device.set_capacity_bytes(None);
        play.check();
        while play.table.stats().runs.merged_bytes < before.merged_bytes + 500_000 {
            let key = play.dice.below(keys);
            play.put(key, round);
        }
        assert!(play.table.stats().runs.records < 2 * keys, "{:?}", play.table.stats().runs);
        play.check();
    }
    // It is cleared where nothing can be written, and gives its storage back.
    while !play.is_in(Phase::WithinPart) {
        let key = play.dice.below(keys);
        play.put(key, key);
    }
    play.device.set_capacity_bytes(Some(0));
    // A page of the log that was on its way may be told first.
    let passes = |done: alluvium_pagestore::Result<bool>| match done {
        Ok(is_over) => is_over,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
            false
        }
    };
    let Play { table, device, model, .. } = &mut play;
    assert!((0..10).any(|_| passes(table.clear().map(|()| true))), "it is cleared");
    assert!((0..1_000).any(|_| passes(table.tick(64).map(|done| done == 0))), "nothing is left");
    model.clear();
    assert_eq!(table.len(), 0);
    let files = device.list().unwrap();
    assert!(!files.iter().any(|name| name.starts_with("run-")), "{files:?}");
    device.set_capacity_bytes(None);
    (0..keys).for_each(|key| play.put(key, key));
    play.check();
}

/// The checkpoint that was confirmed last, and the crashes that it was looked for after.
struct Last {
    image: StateImage,
    model: BTreeMap<u64, u64>,
    steps: u64,
    crashes: BTreeMap<String, u64>,
}

impl Last {
    /// What a crash at a step leaves, for one step in some.
    fn look(&mut self, moment: &Moment<'_>) {
        self.steps += 1;
        let kind = moment.words().split('-').next().unwrap_or_default().to_string();
        let (at, seen) = (self.steps, self.crashes.entry(kind.clone()).or_default());
        *seen += 1;
        // Of what is done most the fewest.
        let one_in = if kind.starts_with("write") || kind.starts_with("read") { 40 } else { 8 };
        if *seen % one_in != 1 {
            return;
        }
        let policies = [
            CrashPolicy::Nothing,
            CrashPolicy::Subset { seed: at },
            CrashPolicy::Everything,
            CrashPolicy::Torn { seed: at },
            CrashPolicy::Prefix { seed: at },
        ];
        let policy = policies[(at / 3) as usize % 5];
        let segments = SegmentStore::new(Arc::new(moment.crash(policy)), 1 << 20);
        let (_, mut table) = open(&in_parts(), &segments, Helper::inline(), Some(&self.image));
        assert_eq!(table.len(), self.model.len() as u64, "{kind} {policy:?}");
        for key in (at % 37..30_000).step_by(37) {
            let found = table.get(&key).unwrap().copied();
            assert_eq!(found, self.model.get(&key).copied(), "{key} after {kind}, {policy:?}");
        }
    }
}

#[test]
fn at_any_step_between_parts_of_merges_the_last_checkpoint_is_whole() {
    let (keys, mut play) = (30_000, Play::empty(9, in_parts()));
    (0..keys).for_each(|key| play.put(key, key));
    let (image, _) = play.checkpoint();
    let (model, crashes) = (play.model.clone(), BTreeMap::new());
    let last = Arc::new(Mutex::new(Last { image, model, steps: 0, crashes }));
    let seen = last.clone();
    play.device.watch(move |moment| {
        if !std::thread::panicking() {
            seen.lock().unwrap_or_else(PoisonError::into_inner).look(moment);
        }
    });
    let (mut within, mut value) = (0, keys);
    for round in 0..12 {
        for _ in 0..8_000 {
            let key = play.dice.below(keys);
            value += 1;
            match play.dice.below(4) {
                0 => play.take(key),
                _ => play.put(key, value),
            }
            if play.is_in(Phase::BetweenParts) {
                within += 1;
                break;
            }
        }
        if round % 3 == 1 {
            // A group leaves, and its keys come back one by one.
            let (group, mut cursor) = (play.dice.below(256) as u16, Cursor::default());
            while !cursor.done {
                let hashes = KeyGroup(group).hashes(GROUPS);
                play.table.remove_hashes((), &hashes, &mut cursor, 90).unwrap();
            }
            play.model.retain(|key, _| group_of(*key) != group);
        }
        if round % 2 == 0 {
            let (image, _) = play.seal();
            let mut last = last.lock().unwrap();
            (last.image, last.model) = (image, play.model.clone());
            drop(last);
            play.table.checkpointed(CheckpointOutcome::Committed);
        }
    }
    play.device.watch(|_| ());
    play.check();
    let last = last.lock().unwrap();
    println!("{within} of 12 within a merge, {:?}", last.crashes);
    assert!(within > 2, "{within}");
    for kind in ["create run", "write run", "remove run"] {
        assert!(last.crashes.get(kind).is_some_and(|seen| *seen > 8), "{kind}: {:?}", last.crashes);
    }
}
