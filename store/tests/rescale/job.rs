//! A job with a state of every kind, on any number of workers, and what it should have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Device, Faults, Simulated};
use alluvium::moving::{KeyGroup, Source};
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AnyLayout, AppendLog, Count, Counting, Elements, Emit, Heap, Holistic, HybridLog,
    KIB, Key, KeyHash, List, MIB, Map, Result, Store, StoreBuilder, Time, TimeMap, Timers, Value,
    Window, WindowSegments, Windows, process,
};

use crate::dice::Dice;

pub const GROUPS: u16 = 12;

/// Layouts, with memory that their state does not fit into where they have storage.
pub fn layouts() -> Vec<(&'static str, AnyLayout)> {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    vec![
        ("heap", Heap::new().into()),
        ("hybrid log", log.memory(256 * KIB).into()),
        ("append log", AppendLog::new().memory(160 * KIB).block(KIB).segment(32 * KIB).into()),
        ("window segments", WindowSegments::new().memory(256 * KIB).into()),
        ("packed window segments", WindowSegments::new().memory(2 * MIB).pack_all().into()),
        ("auto", AnyLayout::Auto),
    ]
}

pub fn builder(layout: &AnyLayout) -> StoreBuilder {
    Store::in_memory()
        .memory(8 * MIB)
        .max_value(4 * KIB)
        .layout(layout.clone())
        .helpers(Helpers::Inline)
        .key_groups(GROUPS)
}

type Rows = Box<dyn FnMut(&u64, Window, &mut dyn Elements<i64>, &mut dyn FnMut(i64)) -> Result<()>>;

/// One worker.
pub struct Worker {
    pub store: Store,
    pub map: Map<u64, Vec<u8>>,
    pub counts: Count<String>,
    pub value: Value<String>,
    pub timers: Timers<u64, u8>,
    pub lists: List<String, u64>,
    pub times: TimeMap<u64, u32>,
    pub hops: Aggregated<u64, i64, Counting>,
    pub early: Aggregated<u64, i64, Counting>,
    pub visits: Aggregated<u64, i64, Counting>,
    pub kept: Holistic<u64, i64, alluvium::windows::Processing<Rows, i64>>,
}

/// The states by name that a worker opens.
impl Worker {
    pub fn open(store: Store) -> Result<Self> {
        let rows: Rows = Box::new(|_, _, elements, emit| {
            let mut sum = 0i64;
            while let Some(element) = elements.next()? {
                sum = sum.wrapping_mul(31).wrapping_add(*element);
            }
            emit(sum);
            Ok(())
        });
        Ok(Self {
            map: store.map("map").open()?,
            counts: store.count("counts").open()?,
            value: store.value("value").open()?,
            timers: store.timers_in("timers")?,
            lists: store.list("lists").open()?,
            times: store.time_map("times").open(nanos(10))?,
            hops: store
                .aggregated("hops")
                .open(Windows::sliding(nanos(30), nanos(10)).lateness(nanos(7)), Counting)?,
            early: store.aggregated("early").open(
                Windows::tumbling(nanos(40)).lateness(nanos(9)).emit(Emit::Early(nanos(15))),
                Counting,
            )?,
            visits: store.aggregated("visits").open(
                Windows::session(nanos(12)).lateness(nanos(5)).emit(Emit::OnWatermark),
                Counting,
            )?,
            kept: store.holistic("kept").open(
                Windows::tumbling(nanos(25)).lateness(nanos(3)).emit(Emit::OnWatermark),
                process(rows),
            )?,
            store,
        })
    }
}

/// What the states should be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    map: BTreeMap<u64, Vec<u8>>,
    counts: BTreeMap<String, i64>,
    value: Option<String>,
    timers: BTreeSet<(Time, u64, u8)>,
    lists: BTreeMap<String, Vec<u64>>,
    times: BTreeMap<u64, Vec<(Time, u32)>>,
}

/// Workers that own the key groups between them.
pub struct Job {
    pub workers: Vec<Worker>,
    pub devices: Vec<Simulated>,
    /// What came out of windows, added up.
    pub rows: BTreeMap<(&'static str, Window, u64, i64), i64>,
    watermark: i64,
}

/// The first and the end of the key groups of a worker.
pub fn owned(worker: usize, workers: usize) -> std::ops::Range<u16> {
    let first = |n: usize| (n * usize::from(GROUPS)).div_ceil(workers) as u16;
    first(worker)..first(worker + 1)
}

impl Job {
    pub fn new(workers: usize, layout: &AnyLayout) -> Self {
        Self::opened(workers, layout, &[])
    }

    /// A job that goes on from the last checkpoints of these devices.
    pub fn opened(workers: usize, layout: &AnyLayout, from: &[Simulated]) -> Self {
        let devices: Vec<_> =
            (0..workers).map(|n| Simulated::new(n as u64 + 3, Faults::late(2))).collect();
        let open = |(n, device): (usize, &Simulated)| {
            let device: Arc<dyn Device> = Arc::new(device.clone());
            let mut builder = builder(layout).owned_groups(owned(n, workers)).device(device);
            if !from.is_empty() {
                let source = |device: &Simulated| Source::device(Arc::new(device.clone()));
                builder = builder.restore_from(from.iter().map(source));
            }
            let worker = Worker::open(builder.open().unwrap()).unwrap();
            let memory = worker.store.stats().unwrap().memory;
            assert!(memory.peak <= memory.limit, "{memory:?}");
            worker
        };
        // All are open at once: they read the same directories.
        let workers = devices.iter().enumerate().map(open).collect();
        Self { workers, devices, rows: BTreeMap::new(), watermark: 0 }
    }

    /// The same job on other workers in another layout.
    pub fn rescaled(self, workers: usize, layout: &AnyLayout) -> Self {
        for worker in &self.workers {
            worker.store.checkpoint(1).unwrap();
        }
        let Self { workers: old, devices, rows, watermark } = self;
        drop(old);
        Self { rows, watermark, ..Self::opened(workers, layout, &devices) }
    }

    pub fn worker_of<Q: KeyHash + ?Sized>(&mut self, key: &Q) -> &mut Worker {
        let (group, workers) = (KeyGroup::of(key.key_hash(), GROUPS).0, self.workers.len());
        let owner = (0..workers).find(|n| owned(*n, workers).contains(&group)).unwrap();
        &mut self.workers[owner]
    }

    /// Some changes of each kind.
    pub fn change(&mut self, model: &mut Model, dice: &mut Dice, count: usize) {
        for _ in 0..count {
            let (key, n) = (dice.below(90), dice.next());
            let name = format!("key {key}");
            match n % 12 {
                0 => {
                    let had = self.worker_of(&key).map.remove(&key).unwrap();
                    assert_eq!(had, model.map.remove(&key).is_some());
                }
                1..=3 => {
                    let value = vec![n as u8; (n >> 8) as usize % 700];
                    self.worker_of(&key).map.put(key, value.clone()).unwrap();
                    model.map.insert(key, value);
                }
                4 => {
                    self.worker_of(&*name).counts.add(&*name, 3).unwrap();
                    *model.counts.entry(name).or_default() += 3;
                }
                5 => {
                    self.worker_of(&()).value.set(name.clone()).unwrap();
                    model.value = Some(name);
                }
                6 => {
                    let (at, space) = (Time((n >> 8) as i64 % 60), (n >> 20) as u8 % 3);
                    self.worker_of(&key).timers.set_in(key, at, space).unwrap();
                    model.timers.insert((at, key, space));
                }
                7 if n >> 8 & 3 == 0 => {
                    self.worker_of(&*name).lists.clear(&*name).unwrap();
                    model.lists.remove(&name);
                }
                7..=9 => {
                    for element in 0..1 + (n >> 8) % 40 {
                        self.worker_of(&*name).lists.append(&*name, n ^ element).unwrap();
                        model.lists.entry(name.clone()).or_default().push(n ^ element);
                    }
                }
                _ => {
                    let at = Time((n >> 8) as i64 % 100);
                    self.worker_of(&key).times.insert(&key, at, n as u32).unwrap();
                    model.times.entry(key).or_default().push((at, n as u32));
                }
            }
        }
    }

    /// Events, some of them late, and then a watermark.
    pub fn stream(&mut self, dice: &mut Dice, events: usize) {
        for _ in 0..events {
            let sent = Time(self.watermark + dice.below(5) as i64);
            let back = if dice.below(3) == 0 { dice.below(30) as i64 } else { 0 };
            let (at, key) = (Time(sent.0 + dice.below(40) as i64 - back), dice.below(60));
            let event = (at, key, dice.below(1000) as i64);
            let mut rows = std::mem::take(&mut self.rows);
            let worker = self.worker_of(&key);
            let mut note = |kind, key: &u64, window, row: i64, diff| {
                *rows.entry((kind, window, *key, row)).or_default() += diff;
            };
            let out = &mut |k: &u64, w, r: i64, d| note("hops", k, w, r, d);
            let mut batch = vec![(event.1, event.0, event.2)];
            worker.hops.add_batch(sent, &mut batch, &mut |_| {}, out).unwrap();
            let out = &mut |k: &u64, w, r: i64, d| note("early", k, w, r, d);
            let mut batch = vec![(event.1, event.0, event.2)];
            worker.early.add_batch(sent, &mut batch, &mut |_| {}, out).unwrap();
            let out = &mut |k: &u64, w, r: i64, d| note("visits", k, w, r, d);
            let mut batch = vec![(event.1, event.0, event.2)];
            worker.visits.add_batch(sent, &mut batch, &mut |_| {}, out).unwrap();
            let out = &mut |k: &u64, w, r: i64, d| note("kept", k, w, r, d);
            let mut batch = vec![(event.1, event.0, event.2)];
            worker.kept.add_batch(sent, &mut batch, &mut |_| {}, out).unwrap();
            self.rows = rows;
        }
        self.advance(self.watermark + 1 + dice.below(20) as i64);
    }

    pub fn advance(&mut self, watermark: i64) {
        self.watermark = watermark;
        let (at, rows) = (Time(watermark), &mut self.rows);
        let mut note = |kind, key: &u64, window, row: i64, diff| {
            *rows.entry((kind, window, *key, row)).or_default() += diff;
        };
        for worker in &mut self.workers {
            let out = &mut |k: &u64, w, r: i64, d| note("hops", k, w, r, d);
            while !worker.hops.advance(at, 1000, out).unwrap().done {}
            let out = &mut |k: &u64, w, r: i64, d| note("early", k, w, r, d);
            while !worker.early.advance(at, 1000, out).unwrap().done {}
            let out = &mut |k: &u64, w, r: i64, d| note("visits", k, w, r, d);
            while !worker.visits.advance(at, 1000, out).unwrap().done {}
            let out = &mut |k: &u64, w, r: i64, d| note("kept", k, w, r, d);
            while !worker.kept.advance(at, 1000, out).unwrap().done {}
        }
        rows.retain(|_, sum| *sum != 0);
    }

    /// What the states are, over all workers.
    pub fn read(&mut self) -> Model {
        let mut found = Model::default();
        fn add<K: Key + Ord, V>(all: &mut BTreeMap<K, V>, key: &K, value: V) {
            assert!(all.insert(key.clone(), value).is_none(), "a key is in two places");
        }
        for worker in &mut self.workers {
            worker
                .map
                .for_each(|k, v| {
                    add(&mut found.map, k, v.clone());
                    Ok(())
                })
                .unwrap();
            let counts = worker.counts.as_map();
            counts
                .for_each(|k, v| {
                    add(&mut found.counts, k, *v);
                    Ok(())
                })
                .unwrap();
            if let Some(value) = worker.value.get().unwrap() {
                assert!(found.value.replace(value.clone()).is_none());
            }
            let lists = &mut found.lists;
            worker
                .lists
                .for_each(|k, v| {
                    lists.entry(k.clone()).or_default().push(*v);
                    Ok(())
                })
                .unwrap();
            for key in 0..90 {
                let mut values = Vec::new();
                let all = Time::MIN..Time::MAX;
                worker
                    .times
                    .range(&key, all, |at, v| {
                        values.push((at, *v));
                        Ok(())
                    })
                    .unwrap();
                if !values.is_empty() {
                    add(&mut found.times, &key, values);
                }
            }
            let mut timers = Vec::new();
            while let Some((at, key, space)) = worker.timers.pop_first() {
                timers.push((at, key, space));
            }
            for (at, key, space) in timers {
                worker.timers.set_in(key, at, space).unwrap();
                assert!(found.timers.insert((at, key, space)), "a timer is in two places");
            }
        }
        found
    }
}

impl Model {
    /// In the order in which it is read.
    pub fn in_order(mut self) -> Self {
        self.times.values_mut().for_each(|values| values.sort_by_key(|(at, _)| *at));
        self
    }
}
