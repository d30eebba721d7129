//! Key groups move between three stores that are in use, in chunks that are repeated, lost and begun
//! anew, and all they have moves with them.
//!
//! What this catches: entries lost, doubled or left behind; chunks that bring back what was changed
//! since; writes to a group that moves; checkpoints that would not have what they say; chunks that are
//! too large; memory not given back; a mover that looks at other groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::io::{Faults, Simulated};
use alluvium::{
    AnyLayout, Count, ErrorKind, Extraction, Heap, HybridLog, KIB, KeyGroup, KeyHash, MIB, Map,
    Mover, Result, Standing, Store, Time, Timers,
};

use crate::dice::Dice;
use crate::job::{GROUPS, builder};

const WORKERS: u64 = 3;
const CHUNK: usize = 4 * KIB as usize;

struct Worker {
    store: Store,
    mover: Mover,
    map: Map<u64, Vec<u8>>,
    counts: Count<u64>,
    timers: Timers<u64, u8>,
}

fn group_of(key: u64) -> KeyGroup {
    KeyGroup::of(key.key_hash(), GROUPS)
}

fn layouts() -> [(&'static str, AnyLayout); 2] {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    [("heap", Heap::new().into()), ("hybrid log", log.memory(320 * KIB).into())]
}

fn open(layout: &AnyLayout, at: u64, workers: u64, device: &Simulated) -> Result<Worker> {
    let first = |at: u64| (at * u64::from(GROUPS)).div_ceil(workers) as u16;
    let owned = first(at)..first(at + 1);
    let store = builder(layout)
        .memory(2 * MIB)
        .owned_groups(owned)
        .device(Arc::new(device.clone()))
        .open()?;
    let mover = store.mover("unit")?;
    Ok(Worker {
        map: store.map("map").moved_by(&mover).open()?,
        counts: store.count("counts").moved_by(&mover).open()?,
        timers: store.timers_moved_by(&mover, "timers")?,
        mover,
        store,
    })
}

fn device(seed: u64) -> Simulated {
    Simulated::new(seed, Faults::late(2))
}

/// What all stores together have to have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    map: BTreeMap<u64, Vec<u8>>,
    counts: BTreeMap<u64, i64>,
    timers: BTreeSet<(Time, u64, u8)>,
}

/// A group under way.
struct Journey {
    group: KeyGroup,
    from: usize,
    to: usize,
    rest: Extraction,
    sent: Vec<Vec<u8>>,
}

struct Job {
    workers: Vec<Worker>,
    owners: Vec<usize>,
    model: Model,
    dice: Dice,
    moved: u64,
}

impl Job {
    fn new(layout: &AnyLayout, seed: u64) -> Self {
        let open = |at| open(layout, at, WORKERS, &device(seed + at)).unwrap();
        let workers: Vec<_> = (0..WORKERS).map(open).collect();
        let owner = |group| {
            let here =
                |worker: &Worker| worker.mover.standing(KeyGroup(group)).unwrap() == Standing::Here;
            workers.iter().position(here).expect("each group is somewhere")
        };
        let owners = (0..GROUPS).map(owner).collect();
        Self { workers, owners, model: Model::default(), dice: Dice(seed), moved: 0 }
    }

    /// A write to a key whose group does not move.
    fn write(&mut self, moving: &[Journey]) {
        let key = self.dice.below(4000);
        let group = group_of(key);
        let n = self.dice.below(1000);
        let worker = &mut self.workers[self.owners[usize::from(group.0)]];
        if moving.iter().any(|journey| journey.group == group) {
            let before = worker.map.get(&key).unwrap().map(|value| value.clone());
            assert_eq!(before, self.model.map.get(&key).cloned());
            let refused = [
                worker.map.put(key, vec![]).map_err(alluvium::Error::from).map(drop),
                worker.map.take(&key).map(drop),
                worker.map.remove(&key).map(drop),
                worker.map.update(&key, Vec::new, |value| value.push(1)).map(drop),
                worker.map.modify(&key, |value| value.push(1)).map(drop),
                worker.map.update_batch(&[key], |k| k, |_| vec![], |_, _| {}).map_err(|e| e.error),
                worker.map.load([(key, vec![])]).map_err(alluvium::Error::from).map(drop),
                worker.map.clear(),
                worker.counts.add(&key, 1).map(drop),
                worker.timers.set_in(Time(1), key, 1).map(drop),
            ];
            for result in refused {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
                assert!(error.to_string().contains("is being moved"), "{error}");
            }
            return;
        }
        let model = &mut self.model;
        match n % 8 {
            0..=3 => {
                let value = vec![n as u8; 1 + n as usize % 500];
                worker.map.put(key, value.clone()).unwrap();
                model.map.insert(key, value);
            }
            4 => assert_eq!(worker.map.take(&key).unwrap(), model.map.remove(&key)),
            5 => {
                let sum = worker.counts.add(&key, n as i64).unwrap();
                let known = model.counts.entry(key).or_default();
                *known += n as i64;
                assert_eq!(sum, *known);
            }
            6 => {
                let timer = (Time(n as i64), key, (n % 3) as u8);
                let new = worker.timers.set_in(timer.0, key, timer.2).unwrap();
                assert_eq!(new, model.timers.insert(timer));
            }
            _ => {
                let found = worker.timers.cancel_in(Time(n as i64), key, (n % 3) as u8);
                assert_eq!(found, model.timers.remove(&(Time(n as i64), key, (n % 3) as u8)));
            }
        }
    }

    /// Takes a step of a journey; says whether it has ended.
    fn travel(&mut self, journey: &mut Journey) -> bool {
        let Journey { group, from, to, rest, sent } = journey;
        let (old, new) = (&self.workers[*from], &self.workers[*to]);
        match self.dice.below(200) {
            // The mover is lost, and another one begins.
            0 => {
                *rest = old.mover.begin(*group).unwrap();
                sent.clear();
            }
            // It is given up, what has arrived is forgotten, the group changes, and it is begun anew.
            1 => {
                old.mover.keep(*group).unwrap();
                while !new.mover.forget(*group, 1 + self.dice.below(50) as usize).unwrap() {}
                *rest = old.mover.begin(*group).unwrap();
                sent.clear();
            }
            // A chunk comes again.
            2..=30 if !sent.is_empty() => {
                let at = self.dice.below(sent.len() as u64) as usize;
                assert_eq!(new.mover.install(&sent[at]).unwrap(), (*group, false));
            }
            _ => {
                let chunk = old.mover.next_chunk(rest, CHUNK).unwrap().expect("not ended yet");
                assert!(chunk.len() <= CHUNK, "{} bytes", chunk.len());
                let (arrived, complete) = new.mover.install(&chunk).unwrap();
                assert_eq!(arrived, *group);
                sent.push(chunk);
                return complete;
            }
        }
        false
    }

    /// Begins to move some group.
    fn set_out(&mut self, moving: &[Journey]) -> Option<Journey> {
        let group = KeyGroup(self.dice.below(u64::from(GROUPS)) as u16);
        let from = self.owners[usize::from(group.0)];
        let to = (from + 1 + self.dice.below(WORKERS - 1) as usize) % WORKERS as usize;
        let is_moving = moving.iter().any(|journey| journey.group == group);
        if is_moving || self.workers[to].mover.standing(group).unwrap() != Standing::Away {
            return None;
        }
        let rest = self.workers[from].mover.begin(group).unwrap();
        Some(Journey { group, from, to, rest, sent: Vec::new() })
    }

    fn run(&mut self, steps: u64) {
        let mut moving: Vec<Journey> = Vec::new();
        let mut leaving: Vec<(KeyGroup, usize)> = Vec::new();
        for _ in 0..steps {
            (0..self.dice.below(20)).for_each(|_| self.write(&moving));
            if moving.len() < 2 {
                let journey = self.set_out(&moving);
                moving.extend(journey);
            }
            if moving.is_empty() {
                continue;
            }
            let at = self.dice.below(moving.len() as u64) as usize;
            let mut journey = moving.swap_remove(at);
            if !self.travel(&mut journey) {
                moving.push(journey);
                continue;
            }
            let Journey { group, from, to, mut rest, sent } = journey;
            self.moved += 1;
            assert!(self.workers[from].mover.next_chunk(&mut rest, CHUNK).unwrap().is_none());
            // Not forgotten yet: it is still there to be read.
            let key = (0..).find(|key| group_of(*key) == group).unwrap();
            let old = &mut self.workers[from];
            let known = old.map.get(&key).unwrap().map(|value| value.clone());
            assert_eq!(known, self.model.map.get(&key).cloned());
            leaving.push((group, from));
            self.owners[usize::from(group.0)] = to;
            (0..20).for_each(|_| self.write(&moving));
            // Chunks that come again after that change nothing.
            for chunk in &sent {
                assert_eq!(self.workers[to].mover.install(chunk).unwrap(), (group, true));
            }
            let fuel = 1 + self.dice.below(100) as usize;
            leaving
                .retain(|(group, from)| !self.workers[*from].mover.forget(*group, fuel).unwrap());
        }
        for (group, from) in leaving {
            while !self.workers[from].mover.forget(group, 100).unwrap() {}
        }
        // All journeys end.
        while let Some(mut journey) = moving.pop() {
            while !self.travel(&mut journey) {}
            while !self.workers[journey.from].mover.forget(journey.group, 100).unwrap() {}
            self.owners[usize::from(journey.group.0)] = journey.to;
        }
    }

    fn check(&mut self, when: &str) {
        let mut found = Model::default();
        for (at, worker) in self.workers.iter_mut().enumerate() {
            let in_place = |key: &u64| {
                assert_eq!(self.owners[usize::from(group_of(*key).0)], at, "{when}: {key} is left");
            };
            worker
                .map
                .for_each(|key, value| {
                    in_place(key);
                    assert!(found.map.insert(*key, value.clone()).is_none(), "{when}: {key} twice");
                    Ok(())
                })
                .unwrap();
            worker
                .counts
                .as_map()
                .for_each(|key, count| {
                    in_place(key);
                    assert!(found.counts.insert(*key, *count).is_none(), "{when}: {key} twice");
                    Ok(())
                })
                .unwrap();
            let mut before = Time::MIN;
            let mut timers = Vec::new();
            while let Some((time, key, namespace)) = worker.timers.pop_due_in(Time::MAX) {
                assert!(before <= time, "{when}: timers in order of time");
                in_place(&key);
                before = time;
                timers.push((time, key, namespace));
            }
            assert!(worker.timers.is_empty());
            for (time, key, namespace) in timers {
                assert!(found.timers.insert((time, key, namespace)), "{when}: {key} twice");
                worker.timers.set_in(time, key, namespace).unwrap();
            }
        }
        assert_eq!(found, self.model, "{when}");
    }

    /// Moves a group without trouble.
    fn bring(&mut self, group: KeyGroup, to: usize) {
        let from = self.owners[usize::from(group.0)];
        if from == to {
            return;
        }
        let mut rest = self.workers[from].mover.begin(group).unwrap();
        while let Some(chunk) = self.workers[from].mover.next_chunk(&mut rest, CHUNK).unwrap() {
            self.workers[to].mover.install(&chunk).unwrap();
        }
        while !self.workers[from].mover.forget(group, 64).unwrap() {}
        self.owners[usize::from(group.0)] = to;
    }
}

#[test]
fn groups_move_whatever_happens_on_the_way() {
    for (name, layout) in layouts() {
        for seed in 0..2 {
            let when = format!("{name}, seed {seed}");
            let mut job = Job::new(&layout, seed << 32);
            let home = job.owners.clone();
            for round in 0..3 {
                job.run(400);
                job.check(&format!("{when}, round {round}"));
            }
            assert!(job.moved > 10, "{when}: {} moves", job.moved);
            let stats = job.workers[0].store.stats().unwrap();
            let cold = stats.states.iter().any(|state| state.table.cold_reads > 0);
            assert_eq!(cold, name == "hybrid log", "{when}");
            // Away from home no checkpoint is taken; back at home it has all there is.
            if job.owners != home {
                let refused: Vec<_> =
                    job.workers.iter().filter_map(|w| w.store.checkpoint(1).err()).collect();
                assert!(!refused.is_empty());
                for error in refused {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                }
            }
            for (group, to) in (0..).zip(home) {
                job.bring(KeyGroup(group), to);
            }
            job.check(&when);
            job.workers.iter().for_each(|worker| assert!(worker.store.checkpoint(1).is_ok()));
        }
    }
}

/// Groups that were away and back are the same in a canonical file, and in a checkpoint.
#[test]
fn a_group_moved_away_and_back_is_intact() {
    for (name, layout) in layouts() {
        let mut job = Job::new(&layout, 5);
        (0..20_000).for_each(|_| job.write(&[]));
        let export = |job: &Job| -> Vec<Vec<u8>> {
            let file = |worker: &Worker| {
                let mut file = Vec::new();
                worker.store.export(&mut file).unwrap();
                file
            };
            job.workers.iter().map(file).collect()
        };
        let (before, home) = (export(&job), job.owners.clone());
        for group in 0..GROUPS {
            for by in 1..=WORKERS as usize {
                job.bring(KeyGroup(group), (home[usize::from(group)] + by) % WORKERS as usize);
            }
        }
        assert!(export(&job) == before, "{name}: the files differ");
        // A store that owns all takes them over from the others' checkpoints.
        let devices: Vec<_> = (0..WORKERS).map(device).collect();
        let mut all = Vec::new();
        for (at, device) in (0..WORKERS).zip(&devices) {
            let worker = open(&layout, at, WORKERS, device).unwrap();
            worker.store.import(&before[at as usize][..]).unwrap();
            worker.store.checkpoint(3).unwrap();
            let mut file = Vec::new();
            worker.store.export(&mut file).unwrap();
            assert!(file == before[at as usize]);
            drop(worker);
            let again = open(&layout, at, WORKERS, device).unwrap();
            let mut file = Vec::new();
            again.store.export(&mut file).unwrap();
            assert!(file == before[at as usize], "{name}: a restart");
            all.push(file);
        }
        let sources = devices.iter().map(|d| alluvium::Source::device(Arc::new(d.clone())));
        let store = builder(&layout)
            .memory(2 * MIB)
            .device(Arc::new(device(77)))
            .restore_from(sources)
            .open()
            .unwrap();
        let mover = store.mover("unit").unwrap();
        let map = store.map::<u64, Vec<u8>>("map").moved_by(&mover).open().unwrap();
        let _counts = store.count::<u64>("counts").moved_by(&mover).open().unwrap();
        let timers = store.timers_moved_by::<u64, u8>(&mover, "timers").unwrap();
        assert_eq!(map.len().unwrap(), job.model.map.len() as u64, "{name}");
        assert_eq!(timers.len(), job.model.timers.len() as u64, "{name}");
    }
}

/// A store that is lost with half of a group takes nothing along: the group is sent again, to another.
#[test]
fn a_store_that_is_lost_half_way_takes_nothing_along() {
    for (name, layout) in layouts() {
        let mut job = Job::new(&layout, 9);
        (0..20_000).for_each(|_| job.write(&[]));
        let group = KeyGroup(0);
        let mut rest = job.workers[0].mover.begin(group).unwrap();
        for _ in 0..3 {
            let chunk = job.workers[0].mover.next_chunk(&mut rest, CHUNK).unwrap().unwrap();
            assert!(!job.workers[1].mover.install(&chunk).unwrap().1, "{name}: too few chunks");
        }
        let refused = job.workers[1].store.checkpoint(1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let mut kept = Vec::new();
        job.workers[1].store.export(&mut kept).unwrap();
        job.workers[1] = open(&layout, 1, WORKERS, &device(100)).unwrap();
        // What it had of its own comes from elsewhere; what it had of the group does not count.
        assert!(job.workers[1].store.import(&kept[..]).unwrap().passed_over > 0);
        assert_eq!(job.workers[0].mover.standing(group).unwrap(), Standing::Leaving);
        job.bring(group, 1);
        job.check(name);
    }
}

/// Timers of a group under way do not fire, on neither side.
#[test]
fn timers_of_a_group_under_way_wait() {
    let mut job = Job::new(&Heap::new().into(), 1);
    let group = KeyGroup(0);
    let keys: Vec<u64> = (0..).filter(|key| group_of(*key) == group).take(200).collect();
    for key in &keys {
        job.workers[0].timers.set_in(Time(*key as i64), *key, 0).unwrap();
    }
    let mut rest = job.workers[0].mover.begin(group).unwrap();
    assert_eq!(job.workers[0].timers.next_time(), None);
    let mut chunks = 0;
    while let Some(chunk) = job.workers[0].mover.next_chunk(&mut rest, CHUNK).unwrap() {
        assert_eq!(job.workers[1].timers.pop_due_in(Time::MAX), None);
        job.workers[1].mover.install(&chunk).unwrap();
        chunks += 1;
    }
    assert!(chunks > 1, "{chunks} chunks");
    assert_eq!(job.workers[0].timers.pop_due_in(Time::MAX), None);
    while !job.workers[0].mover.forget(group, 7).unwrap() {
        assert_eq!(job.workers[0].timers.pop_due_in(Time::MAX), None);
    }
    assert!(job.workers[0].timers.is_empty());
    for key in &keys {
        assert_eq!(job.workers[1].timers.pop_due_in(Time::MAX), Some((Time(*key as i64), *key, 0)));
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let job = Job::new(&Heap::new().into(), 1);
    let (here, there) = (&job.workers[0], &job.workers[1]);
    let kind = |result: Result<()>, words: &str| {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        error.kind()
    };
    let group = KeyGroup(0);
    let refused = [
        (there.mover.begin(group).map(drop), "is not here to be given away"),
        (here.mover.keep(group), "is not being given away"),
        (here.mover.forget(group, 1).map(drop), "not being given away"),
    ];
    for (result, words) in refused {
        assert_eq!(kind(result, words), ErrorKind::Mismatch);
    }
    let unknown = here.mover.begin(KeyGroup(GROUPS)).map(drop);
    assert_eq!(kind(unknown, "no key group 12 of 12"), ErrorKind::Config);
    assert_eq!(kind(here.store.mover("unit").map(drop), "already"), ErrorKind::InUse);
    let other = there.store.map::<u64, u64>("late").moved_by(&here.mover).open().map(drop);
    assert_eq!(kind(other, "of another store"), ErrorKind::Config);

    let mut rest = here.mover.begin(group).unwrap();
    let late = here.store.map::<u64, u64>("late").moved_by(&here.mover).open().map(drop);
    assert_eq!(kind(late, "key group 0"), ErrorKind::Unsupported);
    let chunk = here.mover.next_chunk(&mut rest, CHUNK).unwrap().unwrap();
    let mut damaged = chunk.clone();
    damaged[20] ^= 1;
    assert_eq!(kind(there.mover.install(&damaged).map(drop), "damaged"), ErrorKind::Corrupt);
    let twice = here.mover.install(&chunk).map(drop);
    assert_eq!(kind(twice, "not forgotten yet"), ErrorKind::InUse);
    here.mover.keep(group).unwrap();
    let twice = here.mover.install(&chunk).map(drop);
    assert_eq!(kind(twice, "is here already"), ErrorKind::Mismatch);
    let late = here.mover.next_chunk(&mut rest, CHUNK).map(drop);
    assert_eq!(kind(late, "not being given away by this any more"), ErrorKind::Mismatch);
    // A unit of other states.
    let store = builder(&Heap::new().into()).owned_groups(4..8).open().unwrap();
    let mover = store.mover("unit").unwrap();
    let _map = store.map::<u64, u64>("map").moved_by(&mover).open().unwrap();
    assert_eq!(kind(mover.install(&chunk).map(drop), "other states"), ErrorKind::Mismatch);
    // A layout in no order.
    let heap = store.map::<u64, u64>("heap").layout(Heap::new()).moved_by(&mover).open().map(drop);
    assert_eq!(kind(heap, "key groups cannot move"), ErrorKind::Unsupported);
    let sorted =
        store.map::<u64, u64>("sorted").layout(Heap::new().in_order()).moved_by(&mover).open();
    sorted.unwrap();
}
