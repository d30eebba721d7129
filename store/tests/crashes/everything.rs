//! One store with a state of every kind and layout, and what they should hold, in plain maps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use alluvium::config::Helpers;
use alluvium::io::Simulated;
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AppendLog, Count, Counting, Elements, Error, Heap, Holistic, HybridLog, KIB, Key,
    Layout, List, MIB, Map, Process, Result, State, Store, StoreBuilder, Time, TimeMap, Timers,
    Value, Window, WindowSegments, Windows,
};

use crate::clock::Standing;
use crate::dice::Dice;
use crate::history::RETAINED;
use crate::trouble::Trouble;

/// Length of the windows.
const LENGTH: i64 = 10;

/// A value that is so long that few leave the memory.
type Cold = [u64; 60];

/// Keys of those.
const COLD_KEYS: u64 = 1_000;

/// Gives all elements of a window at once.
pub struct Collect;

impl Process<u64, u64> for Collect {
    type Row = Vec<u64>;

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        elements: &mut dyn Elements<u64>,
        emit: &mut dyn FnMut(Vec<u64>),
    ) -> Result<()> {
        let mut all = Vec::new();
        while let Some(element) = elements.next()? {
            all.push(*element);
        }
        emit(all);
        Ok(())
    }
}

/// What the states should hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    heap: BTreeMap<u64, u64>,
    plain: BTreeMap<u64, u64>,
    owning: BTreeMap<String, Vec<u64>>,
    cold: BTreeMap<u64, Cold>,
    counts: BTreeMap<u16, i64>,
    value: Option<String>,
    timers: BTreeSet<(Time, u64)>,
    list: BTreeMap<u64, Vec<u64>>,
    times: BTreeMap<(u64, Time), Vec<u64>>,
    watermark: i64,
    /// Elements of windows that have not fired, by their ends and keys.
    windows: BTreeMap<(i64, u64), Vec<u64>>,
}

pub struct Everything {
    pub store: Store,
    pub trouble: Trouble,
    heap: Map<u64, u64>,
    /// The same with a layout of a type of its own.
    ordered: Map<u64, u64, Heap>,
    plain: Map<u64, u64>,
    /// The same in two generations.
    aged: Map<u64, u64>,
    owning: Map<String, Vec<u64>>,
    /// One most of whose records move to sorted runs.
    cold: Map<u64, Cold>,
    counts: Count<u16>,
    value: Value<String>,
    timers: Timers<u64>,
    list: List<u64, u64>,
    /// The same on the heap.
    held: List<u64, u64>,
    times: TimeMap<u64, u64>,
    folded: Aggregated<u64, u64, Counting>,
    kept: Holistic<u64, u64, Collect>,
}

pub fn builder(device: &Simulated) -> StoreBuilder {
    Store::in_memory()
        .clock(Arc::new(Standing))
        .memory(5 * MIB)
        .max_value(KIB)
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        // So little that segments are rewritten in histories as short as these.
        .space_amplification(1.1)
        .retain(RETAINED)
}

/// How long states wait for storage that does nothing, unless a test says otherwise.
const PATIENCE: Duration = Duration::from_secs(20);

/// A hybrid log of so little memory that it evicts.
fn log(bytes: u64, patience: Duration) -> HybridLog {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    log.memory(bytes).patience(patience)
}

impl Everything {
    pub fn open(builder: StoreBuilder) -> Result<Self> {
        Self::with_patience(builder, PATIENCE)
    }

    /// Opens it with states that wait so long for storage that does nothing.
    pub fn with_patience(builder: StoreBuilder, patience: Duration) -> Result<Self> {
        let store = builder.patience(patience).open()?;
        let log = |bytes| log(bytes, patience);
        let append = AppendLog::new().memory(400 * KIB).patience(patience);
        let segments = WindowSegments::new().memory(400 * KIB).patience(patience);
        let windows = Windows::tumbling(nanos(LENGTH));
        Ok(Self {
            heap: store.map("heap").layout(Heap::new().into()).open()?,
            ordered: store.map("ordered").layout(Heap::new()).open()?,
            plain: store.map("plain").layout(log(112 * KIB).into()).open()?,
            aged: store.map("aged").layout(log(124 * KIB).generations(2).into()).open()?,
            owning: store.map("owning").layout(log(144 * KIB).into()).open()?,
            cold: store.map("cold").layout(log(560 * KIB).cold_entries(16).into()).open()?,
            counts: store.count("counts").layout(log(112 * KIB).hash_bits(3).into()).open()?,
            value: store.value("value").layout(log(144 * KIB).into()).open()?,
            timers: store.timers("timers")?,
            list: store.list("list").layout(append.into()).open()?,
            held: store.list("held").layout(Heap::new().into()).open()?,
            times: store.time_map("times").open(nanos(LENGTH))?,
            folded: store.aggregated("folded").layout(segments.into()).open(windows, Counting)?,
            kept: store.holistic("kept").open(windows, Collect)?,
            trouble: Trouble::none(),
            store,
        })
    }

    /// One seeded operation on both.
    pub fn change(&mut self, model: &mut Model, dice: &mut Dice) -> Result<()> {
        let (key, n) = (dice.below(300), dice.next() % 1000);
        let word = format!("key {}", key % 60);
        let trouble = &mut self.trouble;
        match dice.below(25) {
            0 | 1 => {
                trouble.outlast(|| Ok(self.heap.put(key, n)?))?;
                trouble.outlast(|| Ok(self.ordered.put(key, n)?))?;
                model.heap.insert(key, n);
            }
            2 => {
                trouble.outlast(|| self.heap.remove(&key))?;
                trouble.outlast(|| self.ordered.remove(&key))?;
                model.heap.remove(&key);
            }
            3..7 => {
                trouble.outlast(|| Ok(self.plain.put(key, n)?))?;
                trouble.outlast(|| Ok(self.aged.put(key, n)?))?;
                model.plain.insert(key, n);
            }
            7 | 8 => {
                trouble.outlast(|| self.plain.remove(&key))?;
                trouble.outlast(|| self.aged.remove(&key))?;
                model.plain.remove(&key);
            }
            9..12 => {
                let new = vec![n; n as usize % 60];
                trouble.outlast(|| Ok(self.owning.put(word.clone(), new.clone())?))?;
                model.owning.insert(word, new);
            }
            12 => {
                trouble.outlast(|| self.owning.remove(word.as_str()))?;
                model.owning.remove(&word);
            }
            13 | 14 => {
                trouble.outlast(|| self.counts.add(&(key as u16), 3))?;
                *model.counts.entry(key as u16).or_default() += 3;
            }
            15 | 16 => {
                let timer = (Time(n as i64 % 50), key % 9);
                if model.timers.remove(&timer) {
                    assert!(self.timers.cancel(timer.1, timer.0));
                } else {
                    assert!(self.timers.set(timer.1, timer.0)?);
                    model.timers.insert(timer);
                }
            }
            17 => {
                trouble.outlast(|| Ok(self.list.append(&(key % 20), n)?))?;
                trouble.outlast(|| Ok(self.held.append(&(key % 20), n)?))?;
                model.list.entry(key % 20).or_default().push(n);
            }
            18 => {
                trouble.outlast(|| self.list.clear(&(key % 20)))?;
                trouble.outlast(|| self.held.clear(&(key % 20)))?;
                model.list.remove(&(key % 20));
            }
            19 => {
                let at = Time(n as i64 % 40);
                trouble.outlast(|| Ok(self.times.insert(&(key % 20), at, n)?))?;
                model.times.entry((key % 20, at)).or_default().push(n);
            }
            20 | 21 => {
                let (key, at) = (key % 20, model.watermark + n as i64 % (2 * LENGTH));
                let batch = || vec![(key, Time(at), n)];
                let sent = Time(model.watermark);
                let never = &mut |late| panic!("{late:?} is late");
                let (mut counted, mut kept) = (batch(), batch());
                trouble.outlast(|| {
                    self.folded.add_batch(sent, &mut counted, never, &mut |_, _, _, _| ())
                })?;
                trouble.outlast(|| {
                    self.kept.add_batch(sent, &mut kept, never, &mut |_, _, _, _| ())
                })?;
                let end = (at / LENGTH + 1) * LENGTH;
                model.windows.entry((end, key)).or_default().push(n);
            }
            22 => self.change_cold(model, n)?,
            23 => self.fire(model, model.watermark + n as i64 % 6)?,
            _ => {
                trouble.outlast(|| Ok(self.value.set(word.clone())?))?;
                model.value = Some(word);
                trouble.outlast(|| self.store.tick(60))?;
            }
        }
        Ok(())
    }

    /// Changes many keys whose records move to runs, as few move until there are many.
    fn change_cold(&mut self, model: &mut Model, n: u64) -> Result<()> {
        for key in (n * 37..n * 37 + 100).map(|key| key % COLD_KEYS) {
            if n % 4 == 0 {
                self.trouble.outlast(|| self.cold.remove(&key))?;
                model.cold.remove(&key);
            } else {
                self.trouble.outlast(|| Ok(self.cold.put(key, [n; 60])?))?;
                model.cold.insert(key, [n; 60]);
            }
        }
        Ok(())
    }

    /// Records that moved to sorted runs, and bytes that merges of these wrote.
    pub fn moved_and_merged(&self) -> (u64, u64) {
        let runs = self.cold.stats().map(|stats| stats.runs).unwrap_or_default();
        (runs.moved, runs.merged_bytes)
    }

    /// Records that were copied to the old generation.
    pub fn copied(&self) -> u64 {
        self.aged.stats().map_or(0, |stats| stats.rewritten)
    }

    /// The checkpoints that the store lists.
    pub fn numbers(&self) -> Vec<u64> {
        self.store.checkpoints().iter().map(|retained| retained.checkpoint.number).collect()
    }

    pub fn changes(&mut self, model: &mut Model, dice: &mut Dice, count: u64) -> Result<()> {
        (0..count).try_for_each(|_| self.change(model, dice))
    }

    /// Fires windows up to a watermark, and compares what comes out.
    fn fire(&mut self, model: &mut Model, watermark: i64) -> Result<()> {
        let (mut counts, mut rows) = (BTreeMap::new(), BTreeMap::new());
        let mut count = |key: &u64, window: Window, count: i64, by: i64| {
            assert!(by == 1 && counts.insert((window.end.0, *key), count as usize).is_none());
        };
        let trouble = &mut self.trouble;
        let mut folded = || self.folded.advance(Time(watermark), 1000, &mut count);
        while !trouble.outlast(&mut folded)?.done {}
        let mut row = |key: &u64, window: Window, mut row: Vec<u64>, by: i64| {
            row.sort_unstable();
            assert!(by == 1 && rows.insert((window.end.0, *key), row).is_none());
        };
        let mut kept = || self.kept.advance(Time(watermark), 1000, &mut row);
        while !trouble.outlast(&mut kept)?.done {}
        let mut fired = std::mem::take(&mut model.windows);
        model.windows = fired.split_off(&(watermark.saturating_add(1), 0));
        fired.values_mut().for_each(|elements| elements.sort_unstable());
        assert_eq!(rows, fired, "windows up to {watermark}");
        let fired: BTreeMap<_, _> = fired.iter().map(|(of, all)| (*of, all.len())).collect();
        assert_eq!(counts, fired, "counts up to {watermark}");
        model.watermark = watermark;
        Ok(())
    }

    /// Everything is as the model says, or an error says that it cannot be read. Fires what waits,
    /// so that the store is of no further use.
    pub fn compare(&mut self, model: &Model, when: &str) -> Vec<Error> {
        let mut model = model.clone();
        let mut errors = Vec::new();
        errors.extend(compare_map(&mut self.heap, &model.heap, when).err());
        errors.extend(compare_map(&mut self.ordered, &model.heap, when).err());
        errors.extend(compare_map(&mut self.plain, &model.plain, when).err());
        errors.extend(compare_map(&mut self.aged, &model.plain, when).err());
        errors.extend(compare_map(&mut self.owning, &model.owning, when).err());
        errors.extend(compare_map(&mut self.cold, &model.cold, when).err());
        errors.extend(compare_map(self.counts.as_map(), &model.counts, when).err());
        match self.value.get() {
            Ok(value) => assert_eq!(value.as_deref(), model.value.as_ref(), "{when}"),
            Err(error) => errors.push(error),
        }
        errors.extend(self.compare_lists(&model, when).err());
        let due: Vec<_> = std::iter::from_fn(|| self.timers.pop_due(Time(100))).collect();
        assert!(due.iter().eq(&model.timers), "{when}: timers {due:?}, {:?}", model.timers);
        assert_eq!(self.folded.watermark(), self.kept.watermark(), "{when}");
        errors.extend(self.fire(&mut model, i64::MAX).err());
        errors
    }

    fn compare_lists(&mut self, model: &Model, when: &str) -> Result<()> {
        for key in 0..20 {
            let expected = model.list.get(&key).cloned().unwrap_or_default();
            assert_eq!(self.list.to_vec(&key)?, expected, "{when}: list {key}");
            assert_eq!(self.held.to_vec(&key)?, expected, "{when}: list {key} on the heap");
            let mut found: BTreeMap<Time, Vec<u64>> = BTreeMap::new();
            self.times.range(&key, Time(0)..Time(100), |at, value| {
                found.entry(at).or_default().push(*value);
                Ok(())
            })?;
            let of_key = model.times.iter().filter(|((of, _), _)| *of == key);
            let expected: BTreeMap<_, _> =
                of_key.map(|((_, at), values)| (*at, values.clone())).collect();
            assert_eq!(found, expected, "{when}: times {key}");
        }
        Ok(())
    }
}

/// The entries of a map; each once.
fn compare_map<
    K: Key + Ord + std::fmt::Debug,
    V: State + PartialEq + std::fmt::Debug,
    L: Layout<K, V>,
>(
    map: &mut Map<K, V, L>,
    model: &BTreeMap<K, V>,
    when: &str,
) -> Result<()> {
    assert_eq!(map.len()?, model.len() as u64, "{when}");
    let mut seen = BTreeMap::new();
    map.for_each(|key, value| {
        assert!(seen.insert(key.clone(), value.clone()).is_none(), "{when}: {key:?} twice");
        Ok(())
    })?;
    assert_eq!(seen, *model, "{when}");
    for (key, value) in model {
        assert_eq!(map.get(key)?.as_deref(), Some(value), "{when}: {key:?}");
    }
    Ok(())
}
