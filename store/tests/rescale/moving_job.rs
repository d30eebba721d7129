//! Stores whose key groups move between them while they are written to, and what they should have
//! together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::io::{Faults, Simulated};
use alluvium::moving::{Extraction, KeyGroup, Mover, Standing};
use alluvium::time::nanos;
use alluvium::{
    AnyLayout, AppendLog, Count, ErrorKind, Heap, HybridLog, KIB, KeyHash, List, MIB, Map, Result,
    Store, StoreBuilder, Time, TimeMap, Timers,
};

use crate::dice::Dice;
use crate::job::{GROUPS, builder, owned};

/// Workers at first.
pub const WORKERS: u64 = 3;
pub const CHUNK: usize = 4 * KIB as usize;

pub struct Worker {
    pub store: Store,
    pub mover: Mover,
    pub map: Map<u64, Vec<u8>>,
    pub counts: Count<u64>,
    pub timers: Timers<u64, u8>,
    pub lists: List<u64, Vec<u8>>,
    pub times: TimeMap<u64, Vec<u8>>,
}

pub fn group_of(key: u64) -> KeyGroup {
    KeyGroup::of(key.key_hash(), GROUPS)
}

pub fn layouts() -> [(&'static str, AnyLayout); 3] {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    let runs = log.clone().cold_entries(64);
    [
        ("heap", Heap::new().into()),
        ("hybrid log", log.memory(320 * KIB).into()),
        ("hybrid log, runs", runs.memory(512 * KIB).into()),
    ]
}

/// What keeps lists beside these layouts of maps: also with little memory, if that does.
pub fn of_lists(layout: &AnyLayout) -> AnyLayout {
    match layout {
        AnyLayout::Heap(_) => layout.clone(),
        _ => AppendLog::new().memory(320 * KIB).block(KIB).segment(32 * KIB).into(),
    }
}

/// A store in a directory of its own, whose states move together.
pub fn open(layout: &AnyLayout, at: u64, workers: u64, device: &Simulated) -> Result<Worker> {
    open_as(layout, at, workers, device, |builder| builder)
}

/// The same, restored as `restore` says.
pub fn open_as(
    layout: &AnyLayout,
    at: u64,
    workers: u64,
    device: &Simulated,
    restore: impl FnOnce(StoreBuilder) -> StoreBuilder,
) -> Result<Worker> {
    let builder = builder(layout)
        .clock(Arc::new(crate::clock::Standing))
        .memory(2 * MIB)
        .owned_groups(owned(at as usize, workers as usize))
        .device(Arc::new(device.clone()));
    let store = restore(builder).open()?;
    let mover = store.mover("unit")?;
    Ok(Worker {
        map: store.map("map").moved_by(&mover).open()?,
        counts: store.count("counts").moved_by(&mover).open()?,
        timers: store.timers_moved_by(&mover, "timers")?,
        lists: store.list("lists").layout(of_lists(layout)).moved_by(&mover).open()?,
        times: store.time_map("times").layout(of_lists(layout)).moved_by(&mover).open(nanos(10))?,
        mover,
        store,
    })
}

pub fn device(seed: u64) -> Simulated {
    Simulated::new(seed, Faults::late(2))
}

/// What all stores together have to have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    pub map: BTreeMap<u64, Vec<u8>>,
    pub counts: BTreeMap<u64, i64>,
    pub timers: BTreeSet<(Time, u64, u8)>,
    pub lists: BTreeMap<u64, Vec<Vec<u8>>>,
    pub times: BTreeMap<u64, Vec<(Time, Vec<u8>)>>,
}

/// A group under way.
pub struct Journey {
    group: KeyGroup,
    from: usize,
    to: usize,
    rest: Extraction,
    sent: Vec<Vec<u8>>,
}

pub struct Job {
    pub workers: Vec<Worker>,
    /// Of each group, as far as moves are complete.
    pub owners: Vec<usize>,
    pub model: Model,
    pub dice: Dice,
    pub moved: u64,
    /// Chunks of earlier moves, also of runs before this one.
    pub stale: Vec<(KeyGroup, Vec<u8>)>,
    /// Whether more groups set out.
    pub is_busy: bool,
    moving: Vec<Journey>,
    /// Groups that are elsewhere in full, and where something of them may be left.
    leaving: Vec<(KeyGroup, usize)>,
}

impl Job {
    pub fn new(layout: &AnyLayout, seed: u64) -> Self {
        let open = |at| open(layout, at, WORKERS, &device(seed + at)).unwrap();
        Self::of((0..WORKERS).map(open).collect(), Model::default(), seed)
    }

    /// Of workers that have what the model says, wherever it is.
    pub fn of(workers: Vec<Worker>, model: Model, seed: u64) -> Self {
        let all = |standing: Standing| {
            let groups = (0..GROUPS).map(KeyGroup);
            let those = |group: &KeyGroup, worker: &Worker| {
                worker.mover.standing(*group).unwrap() == standing
            };
            let at = |group: KeyGroup| {
                let found = workers.iter().enumerate().filter(move |(_, one)| those(&group, one));
                found.map(move |(at, _)| (group, at)).collect::<Vec<_>>()
            };
            groups.map(at).collect::<Vec<_>>()
        };
        let here = all(Standing::Here);
        let owners = here.iter().map(|at| match at[..] {
            [(_, at)] => at,
            _ => panic!("a group is at {at:?}"),
        });
        let (owners, leaving) = (owners.collect(), all(Standing::Going).concat());
        let (moving, stale, dice) = (Vec::new(), Vec::new(), Dice(seed));
        Self { workers, owners, model, dice, moved: 0, stale, is_busy: true, moving, leaving }
    }

    /// A write to a key whose group does not move.
    pub fn write(&mut self) {
        let key = self.dice.below(4000);
        let group = group_of(key);
        let n = self.dice.below(1000);
        let worker = &mut self.workers[self.owners[usize::from(group.0)]];
        if self.moving.iter().any(|journey| journey.group == group) {
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
                worker.timers.set_in(key, Time(1), 1).map(drop),
                worker.lists.append(&key, vec![]).map_err(alluvium::Error::from),
                worker.lists.append_batch(&mut vec![(key, vec![])]),
                worker.lists.clear(&key),
                worker.times.insert(&key, Time(1), vec![]).map_err(alluvium::Error::from),
                worker.times.remove_range(&key, Time::MIN..Time::MAX),
            ];
            for result in refused {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
                assert!(error.to_string().contains("is moving"), "{error}");
            }
            return;
        }
        let model = &mut self.model;
        match n % 11 {
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
                let new = worker.timers.set_in(key, timer.0, timer.2).unwrap();
                assert_eq!(new, model.timers.insert(timer));
            }
            7 => {
                // Some lists are long.
                let (key, count) = if n < 30 { (key % 16, 40) } else { (key, 1 + n % 3) };
                let group = group_of(key);
                if self.moving.iter().any(|journey| journey.group == group) {
                    return;
                }
                let worker = &mut self.workers[self.owners[usize::from(group.0)]];
                let list = model.lists.entry(key).or_default();
                for n in 0..count {
                    let element = vec![n as u8; 20 + (key % 50) as usize];
                    worker.lists.append(&key, element.clone()).unwrap();
                    list.push(element);
                }
                if n % 7 == 0 {
                    worker.lists.clear(&key).unwrap();
                    model.lists.remove(&key);
                } else if n % 5 == 0 {
                    assert_eq!(worker.lists.to_vec(&key).unwrap(), model.lists[&key]);
                }
            }
            8 | 9 => {
                let (at, value) = (Time((n % 60) as i64), vec![n as u8; 30 + n as usize % 40]);
                worker.times.insert(&key, at, value.clone()).unwrap();
                let values = model.times.entry(key).or_default();
                let place = values.partition_point(|(known, _)| *known <= at);
                values.insert(place, (at, value));
            }
            _ => {
                let found = worker.timers.cancel_in(key, Time(n as i64), (n % 3) as u8);
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
                if self.stale.len() < 40 {
                    self.stale.push((*group, chunk.clone()));
                }
                sent.push(chunk);
                return complete;
            }
        }
        false
    }

    /// Begins to move some group.
    fn set_out(&mut self) -> Option<Journey> {
        let workers = self.workers.len();
        let group = KeyGroup(self.dice.below(u64::from(GROUPS)) as u16);
        let from = self.owners[usize::from(group.0)];
        let to = (from + 1 + self.dice.below(workers as u64 - 1) as usize) % workers;
        let is_moving = self.moving.iter().any(|journey| journey.group == group);
        if is_moving || self.workers[to].mover.standing(group).unwrap() != Standing::Away {
            return None;
        }
        let rest = self.workers[from].mover.begin(group).unwrap();
        Some(Journey { group, from, to, rest, sent: Vec::new() })
    }

    /// Chunks come again that were sent long ago: of a group that is there, or arrives by another move,
    /// they change nothing.
    pub fn repeat_stale(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        let at = self.dice.below(self.stale.len() as u64) as usize;
        let (group, chunk) = &self.stale[at];
        for worker in &self.workers {
            let before = worker.mover.standing(*group).unwrap();
            if before == Standing::Away {
                continue;
            }
            if let Err(error) = worker.mover.install(chunk) {
                let kinds = [ErrorKind::Mismatch, ErrorKind::InUse];
                assert!(kinds.contains(&error.kind()), "{error}");
            }
            assert_eq!(worker.mover.standing(*group).unwrap(), before);
        }
    }

    /// Some writes, and a step of a journey.
    pub fn step(&mut self) {
        (0..self.dice.below(20)).for_each(|_| self.write());
        if self.is_busy && self.moving.len() < 2 && self.workers.len() > 1 {
            let journey = self.set_out();
            self.moving.extend(journey);
        }
        let (at, fuel) = (self.dice.next() as usize, 1 + self.dice.below(100) as usize);
        if !self.moving.is_empty() {
            let at = at % self.moving.len();
            let mut journey = self.moving.swap_remove(at);
            match self.travel(&mut journey) {
                false => self.moving.push(journey),
                true => self.arrive(journey),
            }
        }
        // Not always at once.
        if self.dice.below(3) > 0 {
            self.forget(fuel);
        }
    }

    fn forget(&mut self, fuel: usize) {
        let Self { workers, leaving, .. } = self;
        leaving.retain(|(group, from)| !workers[*from].mover.forget(*group, fuel).unwrap());
    }

    fn arrive(&mut self, journey: Journey) {
        let Journey { group, from, to, mut rest, sent } = journey;
        self.moved += 1;
        assert!(self.workers[from].mover.next_chunk(&mut rest, CHUNK).unwrap().is_none());
        // Not forgotten yet: it is still there to be read.
        let key = (0..).find(|key| group_of(*key) == group).unwrap();
        let old = &mut self.workers[from];
        let known = old.map.get(&key).unwrap().map(|value| value.clone());
        assert_eq!(known, self.model.map.get(&key).cloned());
        self.leaving.push((group, from));
        self.owners[usize::from(group.0)] = to;
        (0..20).for_each(|_| self.write());
        // Chunks that come again after that change nothing.
        for chunk in &sent {
            assert_eq!(self.workers[to].mover.install(chunk).unwrap(), (group, true));
        }
    }

    pub fn run(&mut self, steps: u64) {
        (0..steps).for_each(|_| self.step());
        self.settle();
    }

    /// All journeys end.
    pub fn settle(&mut self) {
        while let Some(mut journey) = self.moving.pop() {
            while !self.travel(&mut journey) {}
            self.arrive(journey);
        }
        while !self.leaving.is_empty() {
            self.forget(100);
        }
    }

    pub fn check(&mut self, when: &str) {
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
            worker
                .lists
                .for_each(|key, element| {
                    in_place(key);
                    found.lists.entry(*key).or_default().push(element.clone());
                    Ok(())
                })
                .unwrap();
            for key in self.model.times.keys() {
                let mut values = Vec::new();
                worker
                    .times
                    .range(key, Time::MIN..Time::MAX, |at, value| {
                        in_place(key);
                        values.push((at, value.clone()));
                        Ok(())
                    })
                    .unwrap();
                if !values.is_empty() {
                    assert!(found.times.insert(*key, values).is_none(), "{when}: {key} twice");
                }
            }
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
                worker.timers.set_in(key, time, namespace).unwrap();
            }
        }
        assert_eq!(found, self.model, "{when}");
    }

    /// Moves a group without trouble.
    pub fn bring(&mut self, group: KeyGroup, to: usize) {
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
