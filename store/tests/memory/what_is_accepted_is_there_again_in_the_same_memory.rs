//! States in the least memory that they open with, and a little more: what is accepted can be checkpointed, opened again
//! with the same configuration, and read. A write that would leave too little for that is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{
    Aggregate, Aggregated, AnyLayout, AppendLog, Elements, Error, ErrorKind, HybridLog, KIB, List,
    MIB, Map, Result, Store, Time, TimeMap, Timers, WindowSegments, Windows, process,
};

use crate::counting::alone;
use crate::dice::{Dice, times};
use crate::windows_are_there_again_in_the_same_memory::NOT_FIRED;

/// A state of one kind, in `memory` bytes, and what is to be found in it.
pub(crate) trait Kind: Sized {
    const NAME: &'static str;
    /// Whether the memory is that of the store, and not that of the state's layout.
    const OF_STORE: bool = false;
    type Model: Default;

    fn open(store: &Store, name: &str, memory: u64) -> Result<Self>;
    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()>;
    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()>;
}

pub(crate) fn log(memory: u64) -> HybridLog {
    HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).memory(memory)
}

pub(crate) struct Plain<const GENERATIONS: u32>(Map<u64, u64, HybridLog>);

impl<const GENERATIONS: u32> Kind for Plain<GENERATIONS> {
    const NAME: &'static str = if GENERATIONS == 1 { "log" } else { "log of two generations" };
    type Model = BTreeMap<u64, u64>;

    fn open(store: &Store, name: &str, memory: u64) -> Result<Self> {
        let layout = log(memory).generations(GENERATIONS);
        Ok(Self(store.map(name).layout(layout).open()?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        let (key, n) = (dice.below(2000), dice.next());
        if dice.below(4) == 0 {
            self.0.remove(&key)?;
            model.remove(&key);
        } else {
            self.0.put(key, n)?;
            model.insert(key, n);
        }
        Ok(())
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        let mut seen = BTreeMap::new();
        self.0.for_each(|key, value| {
            seen.insert(*key, *value);
            Ok(())
        })?;
        assert_eq!(seen, *model, "{what}");
        for (key, value) in model {
            assert_eq!(self.0.get(key)?.as_deref(), Some(value), "{what}");
        }
        Ok(())
    }
}

pub(crate) struct Owning(Map<u64, Vec<u64>, HybridLog>);

impl Kind for Owning {
    const NAME: &'static str = "log of values that own heap";
    type Model = BTreeMap<u64, Vec<u64>>;

    fn open(store: &Store, name: &str, memory: u64) -> Result<Self> {
        Ok(Self(store.map(name).layout(log(memory)).open()?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        let (key, n) = (dice.below(300), dice.next());
        if dice.below(4) == 0 {
            self.0.remove(&key)?;
            model.remove(&key);
        } else {
            let value = vec![n; dice.below(60) as usize];
            self.0.put(key, value.clone())?;
            model.insert(key, value);
        }
        Ok(())
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        let mut seen = BTreeMap::new();
        self.0.for_each(|key, value| {
            seen.insert(*key, value.clone());
            Ok(())
        })?;
        assert_eq!(seen, *model, "{what}");
        for (key, value) in model {
            assert_eq!(self.0.get(key)?.as_deref(), Some(value), "{what}");
        }
        Ok(())
    }
}

pub(crate) struct Lists(List<u64, u64>);

impl Kind for Lists {
    const NAME: &'static str = "lists in an append log";
    type Model = BTreeMap<u64, Vec<u64>>;

    fn open(store: &Store, name: &str, memory: u64) -> Result<Self> {
        let layout = AnyLayout::from(AppendLog::new().memory(memory));
        Ok(Self(store.list(name).layout(layout).open()?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        let (key, n) = (dice.below(40), dice.next());
        if dice.below(60) == 0 {
            self.0.clear(&key)?;
            model.remove(&key);
            return Ok(());
        }
        for at in 0..dice.below(20) {
            self.0.append(&key, n + at)?;
            model.entry(key).or_default().push(n + at);
        }
        Ok(())
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        for key in 0..40 {
            let known = model.get(&key).cloned().unwrap_or_default();
            assert_eq!(self.0.to_vec(&key)?, known, "{what}, key {key}");
        }
        Ok(())
    }
}

type Rows = BTreeMap<(i64, u64), Vec<u64>>;
pub(crate) type Kept =
    alluvium::Holistic<u64, u64, alluvium::windows::Processing<Collect, Vec<u64>>, AnyLayout>;
type Collect =
    fn(&u64, alluvium::Window, &mut dyn Elements<u64>, &mut dyn FnMut(Vec<u64>)) -> Result<()>;

fn collect(
    _: &u64,
    _: alluvium::Window,
    elements: &mut dyn Elements<u64>,
    emit: &mut dyn FnMut(Vec<u64>),
) -> Result<()> {
    let mut all = Vec::new();
    while let Some(element) = elements.next()? {
        all.push(*element);
    }
    all.sort_unstable();
    emit(all);
    Ok(())
}

/// Events of windows that have not fired.
#[derive(Default)]
pub(crate) struct Waiting {
    watermark: i64,
    events: Vec<(i64, u64, u64)>,
}

impl Waiting {
    fn rows(&self, to: i64, (length, slide): (i64, i64)) -> Rows {
        let mut rows = Rows::new();
        for (at, key, n) in &self.events {
            let first = (at / slide + 1) * slide;
            let ends = (first..=at + length).step_by(slide as usize);
            ends.filter(|end| *end > self.watermark && *end <= to)
                .for_each(|end| rows.entry((end, *key)).or_default().push(*n));
        }
        rows.values_mut().for_each(|row| row.sort_unstable());
        rows
    }
}

const LENGTH: i64 = 50;
const SLIDE: i64 = 10;

pub(crate) struct Sliding(Kept);

impl Sliding {
    fn fire(&mut self, model: &Waiting, to: i64, what: &str) -> Result<()> {
        let mut rows = Rows::new();
        let mut told = |key: &u64, window: alluvium::Window, row: Vec<u64>, by: i64| {
            assert_eq!(by, 1);
            assert!(rows.insert((window.end.0, *key), row).is_none(), "{what}: twice");
        };
        self.0.advance_all(Time(to), &mut told)?;
        assert_eq!(rows, model.rows(to, (LENGTH, SLIDE)), "{what}");
        Ok(())
    }
}

impl Kind for Sliding {
    const NAME: &'static str = "sliding windows in an append log";
    type Model = Waiting;

    fn open(store: &Store, name: &str, memory: u64) -> Result<Self> {
        let layout = AnyLayout::from(AppendLog::new().memory(memory));
        let windows = Windows::sliding(nanos(LENGTH), nanos(SLIDE));
        let open = store.holistic::<u64, u64>(name).layout(layout);
        Ok(Self(open.open(windows, process(collect as Collect))?))
    }

    fn change(&mut self, model: &mut Waiting, dice: &mut Dice) -> Result<()> {
        let (key, n) = (dice.below(30), dice.next());
        let at = model.watermark + dice.below(2 * LENGTH as u64) as i64;
        let sent = Time(model.watermark);
        let mut batch = vec![(key, Time(at), n)];
        self.0.add_batch(sent, &mut batch, &mut |_| panic!("late"), &mut |_, _, _, _| ())?;
        model.events.push((at, key, n));
        Ok(())
    }

    fn compare(&mut self, model: &Waiting, what: &str) -> Result<()> {
        self.fire(model, model.watermark + 2 * LENGTH, what)
    }
}

pub(crate) struct Times(TimeMap<u64, u64>);

impl Kind for Times {
    const NAME: &'static str = "a map by time";
    const OF_STORE: bool = true;
    type Model = BTreeMap<(u64, i64), Vec<u64>>;

    fn open(store: &Store, name: &str, _: u64) -> Result<Self> {
        Ok(Self(store.time_map(name).open(nanos(10))?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        let (key, at, n) = (dice.below(20), dice.below(1000) as i64, dice.next());
        self.0.insert(&key, Time(at), n)?;
        model.entry((key, at)).or_default().push(n);
        Ok(())
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        let mut seen = Self::Model::new();
        for key in 0..20 {
            self.0.range(&key, Time(0)..Time(1000), |at, n| {
                seen.entry((key, at.0)).or_default().push(*n);
                Ok(())
            })?;
        }
        assert_eq!(seen, *model, "{what}");
        Ok(())
    }
}

/// Adds up.
pub(crate) struct Sum;

impl Aggregate<u64> for Sum {
    type Acc = u64;
    type Out = u64;

    fn init(&self) -> u64 {
        0
    }

    fn add(&self, acc: &mut u64, element: &u64) {
        *acc += element;
    }

    fn merge(&self, acc: &mut u64, later: &u64) {
        *acc += later;
    }

    fn out(&self, acc: &u64) -> Option<u64> {
        Some(*acc)
    }
}

/// Sums in windows of 50 that have not fired.
pub(crate) struct Segments(Aggregated<u64, u64, Sum, AnyLayout>);

impl Kind for Segments {
    const NAME: &'static str = "windows in window segments";
    type Model = BTreeMap<(i64, u64), i64>;

    fn open(store: &Store, name: &str, memory: u64) -> Result<Self> {
        let layout = AnyLayout::from(WindowSegments::new().memory(memory));
        let open = store.aggregated::<u64, u64, Sum>(name).layout(layout);
        Ok(Self(open.open(Windows::tumbling(nanos(LENGTH)), Sum)?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        let event = |dice: &mut Dice| {
            (dice.below(4000), Time(dice.below(40 * LENGTH as u64) as i64), 1 + dice.below(1 << 32))
        };
        let mut batch: Vec<_> = (0..dice.below(20)).map(|_| event(dice)).collect();
        let all = batch.clone();
        let add =
            self.0.add_batch(Time(0), &mut batch, &mut |_| panic!("late"), &mut |_, _, _, _| ());
        let mut add_all = |events: &[(u64, Time, u64)], sign: i64| {
            for (key, at, n) in events {
                let sum = model.entry(((at.0 / LENGTH + 1) * LENGTH, *key)).or_default();
                *sum += sign * *n as i64;
            }
        };
        add_all(&all, 1);
        // Those that are left are not in.
        add_all(&batch, -1);
        model.retain(|_, sum| *sum != 0);
        add
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        let mut rows = BTreeMap::new();
        let mut told = |key: &u64, window: alluvium::Window, sum: u64, by: i64| {
            assert_eq!(by, 1);
            assert!(rows.insert((window.end.0, *key), sum as i64).is_none(), "{what}: twice");
        };
        self.0.advance_all(Time(41 * LENGTH), &mut told)?;
        assert_eq!(rows, *model, "{what}");
        Ok(())
    }
}

pub(crate) struct Pending(Timers<u64>);

impl Kind for Pending {
    const NAME: &'static str = "timers";
    const OF_STORE: bool = true;
    type Model = BTreeSet<(i64, u64)>;

    fn open(store: &Store, name: &str, _: u64) -> Result<Self> {
        Ok(Self(store.timers(name)?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        for _ in 0..16 {
            let (key, at) = (dice.below(1000), dice.below(1000) as i64);
            if dice.below(8) == 0 {
                assert_eq!(self.0.cancel(key, Time(at)), model.remove(&(at, key)));
            } else {
                self.0.set(key, Time(at))?;
                model.insert((at, key));
            }
        }
        Ok(())
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        let left = std::iter::from_fn(|| self.0.pop_first());
        let left: BTreeSet<_> = left.map(|(at, key, ())| (at.0, key)).collect();
        assert_eq!(left, *model, "{what}");
        Ok(())
    }
}

fn store<K: Kind>(device: &Simulated, memory: u64) -> Result<Store> {
    let all = if K::OF_STORE { memory } else { 8 * MIB };
    let builder = Store::in_memory().memory(all).max_value(4 * KIB);
    builder.device(Arc::new(device.clone())).helpers(Helpers::Inline).open()
}

pub(crate) fn is_lack(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OverBudget | ErrorKind::Overtaken)
}

fn least<K: Kind>() -> u64 {
    let (mut low, mut high) = (16 * KIB, 2 * MIB);
    while low + 512 < high {
        let middle = (low + high) / 2;
        let device = Simulated::new(1, Faults::none());
        match store::<K>(&device, middle).and_then(|store| K::open(&store, "s", middle).map(drop)) {
            Ok(()) => high = middle,
            Err(_) => low = middle,
        }
    }
    high
}

pub(crate) fn play<K: Kind>() {
    let (least, first) = (least::<K>(), times("ALLUVIUM_SEED", 1));
    let seeds = times("ALLUVIUM_HISTORIES", 8);
    let (mut short, mut failures) = (0, Vec::new());
    for seed in first..first + seeds {
        let mut dice = Dice(seed);
        let memory = least + [0, 1, 4, 16, 64, 340][dice.below(6) as usize] * KIB;
        let device = Simulated::new(seed, Faults::none());
        let mut model = K::Model::default();
        'rounds: for round in 0..3u64 {
            let what =
                format!("{}, seed {seed}, {memory} of {least} bytes, round {round}", K::NAME);
            let opened = store::<K>(&device, memory).and_then(|kept| {
                let state = K::open(&kept, "s", memory)?;
                Ok((state, kept))
            });
            let (mut state, kept) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    failures.push(format!("{what}: opening: {error}"));
                    break;
                }
            };
            for nth in 0..700 {
                if let Err(error) = state.change(&mut model, &mut dice) {
                    assert!(is_lack(&error), "{what}: {error}");
                    assert!(error.context(NOT_FIRED).is_none(), "{what}: {error}");
                    short += 1;
                }
                if nth % 200 == 150
                    && let Err(error) = kept.checkpoint(nth)
                {
                    assert!(is_lack(&error), "{what}: {error}");
                    failures.push(format!("{what}: checkpoint {nth}: {error}"));
                }
            }
            if let Err(error) = kept.checkpoint(1000) {
                failures.push(format!("{what}: last checkpoint: {error}"));
                break 'rounds;
            }
            drop((state, kept));
            let opened = store::<K>(&device, memory).and_then(|kept| {
                let state = K::open(&kept, "s", memory)?;
                Ok((state, kept))
            });
            match opened {
                Ok((mut state, _kept)) => {
                    if let Err(error) = state.compare(&model, &what) {
                        failures.push(format!("{what}: reading: {error}"));
                        break 'rounds;
                    }
                }
                Err(error) => {
                    failures.push(format!("{what}: reopening: {error}"));
                    break 'rounds;
                }
            }
        }
    }
    println!("{}: {seeds} histories, {short} calls refused", K::NAME);
    failures.iter().for_each(|failure| println!("  {failure}"));
    assert!(failures.is_empty(), "{}: {} failures", K::NAME, failures.len());
}

#[test]
fn hybrid_logs_open_again_in_the_least_memory() {
    let _alone = alone();
    play::<Plain<1>>();
    play::<Plain<2>>();
    play::<Owning>();
}

#[test]
fn timers_open_again_in_the_least_memory() {
    let _alone = alone();
    play::<Pending>();
}

/// Timers are set until memory is full, and a log has the rest: their checkpoints lack none.
#[test]
fn timers_are_checkpointed_while_a_log_has_all_other_memory() {
    let _alone = alone();
    let device = Simulated::new(1, Faults::none());
    let open = || -> Result<_> {
        let kept = store::<Pending>(&device, 500 * KIB)?;
        let map = kept.map::<u64, u64>("map").layout(log(200 * KIB)).open()?;
        Ok((Pending::open(&kept, "s", 0)?, map, kept))
    };
    let (mut timers, mut map, kept) = open().unwrap();
    let mut model = BTreeSet::new();
    for round in 0..3u64 {
        for key in 0..10_000 {
            if let Err(rejected) = map.put(key, round) {
                assert!(is_lack(&rejected.error), "{}", rejected.error);
            }
        }
        let full = (0..1_000_000u64).find_map(|n| {
            let (key, at) = (n * 7919 % 100_003, (n * 31 % 1009) as i64);
            match timers.0.set(key, Time(at)) {
                Ok(_) => drop(model.insert((at, key))),
                Err(error) => return Some(error),
            }
            None
        });
        assert_eq!(full.expect("memory is full").kind(), ErrorKind::OverBudget);
        kept.checkpoint(round).unwrap();
        let some: Vec<_> = model.iter().copied().step_by(3).take(500).collect();
        for (at, key) in some {
            assert!(timers.0.cancel(key, Time(at)) && model.remove(&(at, key)));
        }
    }
    kept.checkpoint(9).unwrap();
    drop((timers, map, kept));
    let (mut timers, _map, _kept) = open().unwrap();
    timers.compare(&model, "opened again").unwrap();
}

#[test]
fn append_logs_open_again_in_the_least_memory_and_are_read() {
    let _alone = alone();
    play::<Lists>();
    play::<Sliding>();
    play::<Times>();
}

#[test]
fn window_segments_open_again_in_the_least_memory_and_fire() {
    let _alone = alone();
    play::<Segments>();
}
