//! A state of every primitive in every layout, a history of it, and all that it holds as lines of text.
//!
//! Whoever makes fixtures plays the history twice: in the store whose files are kept, and in one that
//! keeps all of it on the heap and is never opened again. The lines are those of the second one.

use std::fmt::Debug;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::time::nanos;
use alluvium::types::Serde;
use alluvium::{
    Aggregate, Aggregated, AnyLayout, AppendLog, Count, Elements, Emit, Error, ExpiringMap,
    ExpiringValue, Heap, Holistic, HybridLog, KIB, Key, KeyHash, Layout, List, MIB, Map, Process,
    Result, State, Store, StoreBuilder, Time, TimeMap, Timers, Ttl, Value, Window, WindowSegments,
    Windows,
};

use crate::clock::Standing;
use crate::dice::Dice;

/// A value with parts of many types.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
#[derive(Clone, Debug, PartialEq)]
pub struct Bid {
    price: u64,
    at: Time,
    by: Option<String>,
    kind: Kind,
    tags: Vec<(u8, String)>,
}

#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Open,
    Sealed { until: i32 },
    Proxy(bool, f64),
}

/// A key with parts.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State, KeyHash)]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    shop: u16,
    name: String,
}

/// By serde.
#[derive(serde::Serialize, serde::Deserialize, State)]
#[derive(Clone, Debug, PartialEq)]
#[state(serde)]
pub enum Upload {
    Empty,
    Parts { file: std::path::PathBuf, sizes: std::collections::BTreeMap<u8, i64> },
}

impl Bid {
    fn of(n: u64) -> Self {
        let kind = match n % 3 {
            0 => Kind::Open,
            1 => Kind::Sealed { until: -(n as i32) },
            _ => Kind::Proxy(n.is_multiple_of(2), n as f64 / 4.0),
        };
        let tags = (0..n % 4).map(|tag| (tag as u8, "tag ".repeat(tag as usize))).collect();
        let by = (!n.is_multiple_of(5)).then(|| format!("bidder {n}"));
        Self { price: n, at: Time(n as i64 - 300), by, kind, tags }
    }
}

impl Upload {
    fn of(n: u64) -> Self {
        match n % 3 {
            0 => Self::Empty,
            _ => Self::Parts {
                file: format!("dir/{n}").into(),
                sizes: (0..n % 5).map(|part| (part as u8, -(n as i64) << part)).collect(),
            },
        }
    }
}

/// Count and sum; one of the two kinds can take elements out again.
#[derive(Clone, Copy)]
pub struct Sum {
    pub subtracts: bool,
}

impl Aggregate<u64> for Sum {
    type Acc = (u64, u64);
    type Out = (u64, u64);

    fn init(&self) -> (u64, u64) {
        (0, 0)
    }

    fn add(&self, acc: &mut (u64, u64), element: &u64) {
        *acc = (acc.0 + 1, acc.1 + element);
    }

    fn merge(&self, acc: &mut (u64, u64), later: &(u64, u64)) {
        *acc = (acc.0 + later.0, acc.1 + later.1);
    }

    fn out(&self, acc: &(u64, u64)) -> Option<(u64, u64)> {
        (acc.0 > 0).then_some(*acc)
    }

    fn subtract(&self, acc: &mut (u64, u64), first: &(u64, u64)) -> bool {
        if self.subtracts {
            *acc = (acc.0 - first.0, acc.1 - first.1);
        }
        self.subtracts
    }
}

/// Gives all elements of a window at once.
pub struct All;

impl Process<u64, String> for All {
    type Row = Vec<String>;

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        elements: &mut dyn Elements<String>,
        emit: &mut dyn FnMut(Vec<String>),
    ) -> Result<()> {
        let mut all = Vec::new();
        while let Some(element) = elements.next()? {
            all.push(element.clone());
        }
        all.sort_unstable();
        emit(all);
        Ok(())
    }
}

/// Life of the entries that expire.
const LIFE: i64 = 100;
/// Keys of most states.
const KEYS: u64 = 40;

pub struct States {
    pub store: Store,
    maps: Vec<(&'static str, Map<u64, u64>)>,
    ordered: Map<u64, u64, Heap>,
    bids: Vec<(&'static str, Map<Item, Bid>)>,
    uploads: Map<String, Upload>,
    pairs: Map<(u16, String), Serde<Vec<String>>>,
    counts: Count<u16>,
    value: Value<String>,
    timers: Timers<u64>,
    named_timers: Timers<String, u8>,
    lists: Vec<(&'static str, List<u64, String>)>,
    times: Vec<(&'static str, TimeMap<u64, u64>)>,
    seen: Vec<(&'static str, ExpiringMap<u64, u64>)>,
    last: ExpiringValue<String>,
    by_clock: ExpiringMap<u64, u64>,
    folded: Vec<(&'static str, Aggregated<u64, u64, Sum>)>,
    kept: Vec<(&'static str, Holistic<u64, String, All>)>,
    pub now: i64,
    /// Whether a call that failed so is made again.
    pub again: Again,
}

pub type Again = Box<dyn FnMut(&Error) -> bool>;

fn outlast<R>(again: &mut Again, mut call: impl FnMut() -> Result<R>) -> Result<R> {
    loop {
        match call() {
            Err(error) if again(&error) => {}
            done => return done,
        }
    }
}

/// What is told by windows, while a history goes on.
pub type Lines = Vec<String>;

pub fn log(bytes: u64) -> HybridLog {
    HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).memory(bytes)
}

pub fn builder(builder: StoreBuilder) -> StoreBuilder {
    builder
        .clock(Arc::new(Standing))
        .memory(16 * MIB)
        .max_value(KIB)
        .helpers(Helpers::Inline)
        .retain(3)
}

impl States {
    /// Opens all of them, each in its layout, or all on the heap.
    pub fn open(builder: StoreBuilder, on_heap: bool) -> Result<Self> {
        let store = builder.open()?;
        let layout = |layout: AnyLayout| if on_heap { Heap::new().into() } else { layout };
        let heap = || layout(Heap::new().into());
        // A little above the least: so little can be too little to restore many small segments.
        let log = |bytes| layout(log(bytes + 64 * KIB).into());
        let append = || layout(AppendLog::new().memory(400 * KIB).block(KIB).into());
        let segments = || layout(WindowSegments::new().memory(256 * KIB).into());
        let map = |name, layout: AnyLayout| -> Result<_> {
            Ok((name, store.map(name).layout(layout).open()?))
        };
        let bids = |name, layout: AnyLayout| -> Result<_> {
            Ok((name, store.map(name).layout(layout).open()?))
        };
        let list = |name, layout: AnyLayout| -> Result<_> {
            Ok((name, store.list(name).layout(layout).open()?))
        };
        let times = |name, layout: AnyLayout| -> Result<_> {
            Ok((name, store.time_map(name).layout(layout).open(nanos(10))?))
        };
        let seen = |name, layout: AnyLayout| -> Result<_> {
            let map = store.expiring_map(name).layout(layout);
            Ok((name, map.open(Ttl::event_time(nanos(LIFE)))?))
        };
        let fold = |name, layout: AnyLayout, windows, subtracts| -> Result<_> {
            let folded = store.aggregated(name).layout(layout);
            Ok((name, folded.open(windows, Sum { subtracts })?))
        };
        let keep = |name, layout: AnyLayout, windows| -> Result<_> {
            Ok((name, store.holistic(name).layout(layout).open(windows, All)?))
        };
        let (tumbling, session) =
            (Windows::tumbling(nanos(20)).offset(nanos(3)), Windows::session(nanos(12)));
        Ok(Self {
            maps: vec![
                map("map-heap", heap())?,
                map("map-log", log(112 * KIB))?,
                map("map-aged", layout(self::log(188 * KIB).generations(2).into()))?,
                map("map-colliding", layout(self::log(176 * KIB).hash_bits(3).into()))?,
            ],
            ordered: store.map("map-ordered").layout(Heap::new()).open()?,
            bids: vec![bids("bids-heap", heap())?, bids("bids-log", log(160 * KIB))?],
            uploads: store.map("uploads").layout(log(160 * KIB)).open()?,
            pairs: store.map("pairs").layout(log(160 * KIB)).open()?,
            counts: store.count("counts").layout(log(112 * KIB)).open()?,
            value: store.value("value").layout(log(144 * KIB)).open()?,
            timers: store.timers("timers")?,
            named_timers: store.timers_in("named-timers")?,
            lists: vec![list("list-append", append())?, list("list-heap", heap())?],
            times: vec![times("times-append", append())?, times("times-heap", heap())?],
            seen: vec![seen("seen-heap", heap())?, seen("seen-log", log(144 * KIB))?],
            last: {
                let last = store.expiring_value("last").layout(heap());
                last.open(Ttl::event_time(nanos(LIFE)).refreshed_by_reads())?
            },
            by_clock: {
                let map = store.expiring_map("by-clock").layout(log(144 * KIB));
                map.open(Ttl::processing_time(nanos(LIFE)))?
            },
            folded: vec![
                fold("fold-segments", segments(), tumbling.lateness(nanos(15)), false)?,
                fold("fold-heap", heap(), tumbling, false)?,
                fold("fold-log", log(160 * KIB), tumbling, false)?,
                fold(
                    "slide-totals",
                    segments(),
                    Windows::sliding(nanos(40), nanos(10))
                        .lateness(nanos(20))
                        .emit(Emit::OnWatermark),
                    true,
                )?,
                fold("slide-stacks", segments(), Windows::sliding(nanos(48), nanos(2)), false)?,
                fold(
                    "early",
                    segments(),
                    Windows::tumbling(nanos(60)).emit(Emit::Early(nanos(7))),
                    false,
                )?,
                fold("session-log", log(160 * KIB), session, false)?,
                fold("session-heap", heap(), session.lateness(nanos(10)), false)?,
            ],
            kept: vec![
                keep("keep-append", append(), tumbling.lateness(nanos(15)))?,
                keep("keep-heap", heap(), tumbling)?,
                keep(
                    "keep-slide",
                    append(),
                    Windows::sliding(nanos(30), nanos(10)).emit(Emit::OnWatermark),
                )?,
                keep(
                    "keep-early",
                    append(),
                    Windows::tumbling(nanos(60)).emit(Emit::Early(nanos(7))),
                )?,
                keep("keep-session", append(), session)?,
            ],
            now: 0,
            again: Box::new(|_| false),
            store,
        })
    }

    /// Goes on from the time that a history had come to.
    pub fn at(self, now: i64) -> Self {
        Self { now, ..self }
    }

    /// Fills what spills only when it has much: windows, all of which but the last are over by then.
    pub fn fill(&mut self) -> Result<()> {
        for slice in 0..10 {
            for (_, windows) in &mut self.folded[..1] {
                let at = Time(slice * 20 + 3);
                let mut batch = (0..100).map(|key| (key, at, 1)).collect();
                windows.add_batch(Time::MIN, &mut batch, &mut |_| {}, &mut |_, _, _, _| {})?;
            }
        }
        Ok(())
    }

    /// Puts entries of other keys than those of the seeded changes into a map on the heap and one in a log.
    pub fn put_more(&mut self, keys: std::ops::Range<u64>, value: u64) -> Result<()> {
        for (_, map) in &mut self.maps[..2] {
            for key in keys.clone() {
                map.put(1000 + key, value)?;
            }
        }
        Ok(())
    }

    /// Seeded changes, all of them to all states of a kind.
    pub fn changes(&mut self, dice: &mut Dice, count: u64) -> Result<Lines> {
        let mut told = Vec::new();
        for _ in 0..count {
            self.change(dice, &mut told)?;
        }
        told.sort_unstable();
        Ok(told)
    }

    /// One seeded change. A call that fails is made again as long as [`again`](States::again) says.
    pub fn change(&mut self, dice: &mut Dice, told: &mut Lines) -> Result<()> {
        let (n, key) = (dice.next() % 1000, dice.below(KEYS));
        let item = Item { shop: key as u16 % 3, name: format!("item {key}") };
        let again = &mut self.again;
        match dice.below(20) {
            0..4 => {
                let key = dice.below(6 * KEYS);
                for (_, map) in &mut self.maps {
                    outlast(again, || Ok(map.put(key, n)?))?;
                }
                outlast(again, || Ok(self.ordered.put(key, n)?))?;
            }
            4 | 5 => {
                let key = dice.below(6 * KEYS);
                for (_, map) in &mut self.maps {
                    outlast(again, || map.remove(&key))?;
                }
                outlast(again, || self.ordered.remove(&key))?;
            }
            6 => {
                for (_, map) in &mut self.bids {
                    outlast(again, || Ok(map.put(item.clone(), Bid::of(n))?))?;
                }
                let (pair, words) =
                    ((item.shop, item.name.clone()), vec![item.name; n as usize % 4]);
                outlast(again, || Ok(self.pairs.put(pair.clone(), Serde(words.clone()))?))?;
                outlast(again, || Ok(self.uploads.put(format!("upload {key}"), Upload::of(n))?))?;
            }
            7 => {
                for (_, map) in &mut self.bids {
                    outlast(again, || map.remove(&item))?;
                }
                let pair = (item.shop, item.name);
                outlast(again, || self.pairs.remove(&pair))?;
                outlast(again, || self.uploads.remove(format!("upload {key}").as_str()))?;
            }
            8 => {
                outlast(again, || self.counts.add(&(key as u16), n as i64 - 500))?;
                outlast(again, || Ok(self.value.set(format!("value {n}"))?))?;
                outlast(again, || Ok(self.last.set(format!("last {n}"))?))?;
                outlast(again, || Ok(self.by_clock.put(key, n)?))?;
            }
            9 | 10 => {
                let (at, of, name) = (Time(n as i64 % 90), format!("timer {key}"), (n % 3) as u8);
                if !outlast(again, || self.timers.set(key, at))? {
                    self.timers.cancel(key, at);
                }
                if !outlast(again, || self.named_timers.set_in(of.clone(), at, name))? {
                    self.named_timers.cancel_in(of, at, name);
                }
            }
            11 => {
                for (_, list) in &mut self.lists {
                    outlast(again, || Ok(list.append(&(key % 9), format!("element {n}"))?))?;
                }
            }
            12 if n.is_multiple_of(4) => {
                for (_, list) in &mut self.lists {
                    outlast(again, || list.clear(&(key % 9)))?;
                }
            }
            13 => {
                let at = Time(self.now + n as i64 % 50);
                for (_, map) in &mut self.times {
                    outlast(again, || Ok(map.insert(&(key % 9), at, n)?))?;
                }
            }
            14 | 15 => {
                for (_, map) in &mut self.seen {
                    outlast(again, || Ok(map.put(key, n)?))?;
                }
            }
            16..19 => {
                let at = Time(self.now + n as i64 % 45);
                let events: Vec<_> = (0..2).map(|i| (key % 12, at.plus(i), n + i as u64)).collect();
                self.add(Time(self.now), &events, told)?;
            }
            _ => self.advance(Time(self.now + n as i64 % 6), told)?,
        }
        Ok(())
    }

    /// Gives events to all windows.
    fn add(&mut self, sent: Time, events: &[(u64, Time, u64)], told: &mut Lines) -> Result<()> {
        let again = &mut self.again;
        for (name, windows) in &mut self.folded {
            let (mut lates, mut batch) = (Vec::new(), events.to_vec());
            let late = &mut |late| lates.push(format!("{name}: {late:?}"));
            let out = &mut |key: &u64, window, out: (u64, u64), by| {
                told.push(row(name, *key, window, &out, by));
            };
            outlast(again, || windows.add_batch(sent, &mut batch, late, out))?;
            told.append(&mut lates);
        }
        for (name, windows) in &mut self.kept {
            let event = |event: &(u64, Time, u64)| (event.0, event.1, format!("event {}", event.2));
            let (mut lates, mut batch) = (Vec::new(), events.iter().map(event).collect());
            let late = &mut |late| lates.push(format!("{name}: {late:?}"));
            let out = &mut |key: &u64, window, out: Vec<String>, by| {
                told.push(row(name, *key, window, &out, by));
            };
            outlast(again, || windows.add_batch(sent, &mut batch, late, out))?;
            told.append(&mut lates);
        }
        Ok(())
    }

    /// Tells all that know of time that it goes on.
    fn advance(&mut self, to: Time, told: &mut Lines) -> Result<()> {
        let again = &mut self.again;
        for (name, windows) in &mut self.folded {
            let out = &mut |key: &u64, window, out: (u64, u64), by| {
                told.push(row(name, *key, window, &out, by));
            };
            while !outlast(again, || windows.advance(to, 1000, out))?.done {}
        }
        for (name, windows) in &mut self.kept {
            let out = &mut |key: &u64, window, out: Vec<String>, by| {
                told.push(row(name, *key, window, &out, by));
            };
            while !outlast(again, || windows.advance(to, 1000, out))?.done {}
        }
        if to != Time::MAX {
            for (_, map) in &mut self.seen {
                outlast(again, || map.advance(to))?;
            }
            outlast(again, || self.last.advance(to))?;
            for (_, map) in &mut self.times {
                while !outlast(again, || map.purge(to.plus(-30), 1000))? {}
            }
            self.now = to.0;
        }
        Ok(())
    }

    /// All that there is. Then it goes on a little: an event comes late, entries expire, timers become
    /// due, windows close. What is there afterwards is of no further use.
    pub fn lines(&mut self) -> Result<Lines> {
        let mut lines = Vec::new();
        for (name, map) in &mut self.maps {
            entries(name, map, &mut lines)?;
        }
        entries("map-ordered", &mut self.ordered, &mut lines)?;
        for (name, map) in &mut self.bids {
            entries(name, map, &mut lines)?;
        }
        entries("uploads", &mut self.uploads, &mut lines)?;
        entries("pairs", &mut self.pairs, &mut lines)?;
        entries("counts", self.counts.as_map(), &mut lines)?;
        lines.push(format!("value: {:?}", self.value.get()?.as_deref()));
        for (name, list) in &mut self.lists {
            for key in 0..9 {
                lines.push(format!("{name}: {key} = {:?}", list.to_vec(&key)?));
            }
        }
        for (name, map) in &mut self.times {
            for key in 0..9 {
                let mut all = Vec::new();
                map.range(&key, Time(-100)..Time(1000), |at, value| {
                    all.push((at.0, *value));
                    Ok(())
                })?;
                lines.push(format!("{name}: {key} = {all:?}"));
            }
        }
        self.expiring("", &mut lines)?;
        // Windows first tell late ones: sessions have no lateness that a late event could come in by.
        let late = [(3, Time(self.now - 9), 77), (4, Time(self.now + 1), 78)];
        self.add(Time(self.now), &late[1..], &mut lines)?;
        self.add_late(&late[0], &mut lines)?;
        let later = Time(self.now + LIFE / 2);
        self.advance(later, &mut lines)?;
        self.expiring(" later", &mut lines)?;
        self.advance(Time::MAX, &mut lines)?;
        while let Some((at, key)) = self.timers.pop_due(Time(1000)) {
            lines.push(format!("timers: {at:?} {key}"));
        }
        while let Some((at, key, name)) = self.named_timers.pop_due_in(Time(1000)) {
            lines.push(format!("named-timers: {at:?} {key} {name}"));
        }
        lines.sort_unstable();
        Ok(lines)
    }

    /// An event before the watermark, for windows of the grid.
    fn add_late(&mut self, event: &(u64, Time, u64), told: &mut Lines) -> Result<()> {
        let sent = Time(self.now);
        let folded = std::mem::take(&mut self.folded);
        let kept = std::mem::take(&mut self.kept);
        let (sessions, grid) =
            folded.into_iter().partition(|(name, _)| name.starts_with("session"));
        let (kept_sessions, kept) =
            kept.into_iter().partition(|(name, _)| name.ends_with("session"));
        (self.folded, self.kept) = (grid, kept);
        self.add(sent, std::slice::from_ref(event), told)?;
        let mut sessions: Vec<_> = sessions;
        let mut kept_sessions: Vec<_> = kept_sessions;
        self.folded.append(&mut sessions);
        self.kept.append(&mut kept_sessions);
        Ok(())
    }

    fn expiring(&mut self, when: &str, lines: &mut Lines) -> Result<()> {
        for (name, map) in &mut self.seen {
            map.for_each(|key, value| {
                lines.push(format!("{name}{when}: {key} = {value}"));
                Ok(())
            })?;
        }
        self.by_clock.for_each(|key, value| {
            lines.push(format!("by-clock{when}: {key} = {value}"));
            Ok(())
        })?;
        lines.push(format!("last{when}: {:?}", self.last.get()?.as_deref()));
        Ok(())
    }
}

fn row(name: &str, key: u64, window: Window, out: &impl Debug, by: i64) -> String {
    let Window { start, end } = window;
    format!("{name}: {key} in {}..{}: {out:?} {by:+}", start.0, end.0)
}

fn entries<K: Key + Debug, V: State + Debug, L: Layout<K, V>>(
    name: &str,
    map: &mut Map<K, V, L>,
    lines: &mut Lines,
) -> Result<()> {
    map.for_each(|key, value| {
        lines.push(format!("{name}: {key:?} = {value:?}"));
        Ok(())
    })
}
