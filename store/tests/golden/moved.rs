//! Two stores between which key groups have moved, with a state of each kind that moves, and all that
//! the two hold together as lines of text.

use alluvium::config::Helpers;
use alluvium::moving::{KeyGroup, Mover, Standing};
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AnyLayout, AppendLog, Count, ExpiringMap, Heap, Holistic, KIB, KeyHash, List, MIB,
    Map, Result, Store, StoreBuilder, Time, TimeMap, Timers, Ttl, WindowSegments, Windows,
};

use crate::dice::Dice;
use crate::states::{All, Lines, Sum, log};

const GROUPS: u16 = 8;
pub const WORKERS: usize = 2;

/// One store, whose states move together.
pub struct Worker {
    pub store: Store,
    mover: Mover,
    map: Map<u64, u64>,
    split: Map<u64, u64>,
    counts: Count<u64>,
    timers: Timers<u64, u8>,
    lists: List<u64, u64>,
    heap_lists: List<u64, u64>,
    times: TimeMap<u64, u64>,
    seen: ExpiringMap<u64, u64>,
    folded: Aggregated<u64, u64, Sum>,
    sessions: Aggregated<u64, u64, Sum>,
    kept: Holistic<u64, String, All>,
}

/// The groups that the workers begin with; the only worker of a store that is never opened again has all.
pub fn builder(builder: StoreBuilder, at: Option<usize>) -> StoreBuilder {
    let owned = match at {
        None => 0..GROUPS,
        Some(0) => 0..GROUPS / 2,
        Some(_) => GROUPS / 2..GROUPS,
    };
    let builder = builder.key_groups(GROUPS).owned_groups(owned).retain(2);
    builder.memory(8 * MIB).max_value(KIB).helpers(Helpers::Inline)
}

impl Worker {
    /// Opens it in its layouts, or all on the heap.
    pub fn open(builder: StoreBuilder, on_heap: bool) -> Result<Self> {
        let store = builder.open()?;
        let mover = store.mover("unit")?;
        let layout = |layout: AnyLayout| if on_heap { Heap::new().into() } else { layout };
        let append = || layout(AppendLog::new().memory(320 * KIB).block(KIB).into());
        let log = || layout(log(320 * KIB).into());
        let segments = layout(WindowSegments::new().memory(256 * KIB).into());
        let heap = || AnyLayout::from(Heap::new());
        let (unit, sum) = (&mover, Sum { subtracts: false });
        Ok(Self {
            map: store.map("map").layout(log()).moved_by(unit).open()?,
            split: store.map("split").layout(heap()).moved_by(unit).open()?,
            counts: store.count("counts").layout(log()).moved_by(unit).open()?,
            timers: store.timers_moved_by(unit, "timers")?,
            lists: store.list("lists").layout(append()).moved_by(unit).open()?,
            heap_lists: store.list("heap-lists").layout(heap()).moved_by(unit).open()?,
            times: store.time_map("times").layout(append()).moved_by(unit).open(nanos(10))?,
            seen: {
                let seen = store.expiring_map("seen").layout(log()).moved_by(unit);
                seen.open(Ttl::event_time(nanos(100)))?
            },
            folded: {
                let folded = store.aggregated("folded").layout(segments).moved_by(unit);
                folded.open(Windows::tumbling(nanos(20)), sum)?
            },
            sessions: {
                let sessions = store.aggregated("sessions").layout(log()).moved_by(unit);
                sessions.open(Windows::session(nanos(12)), sum)?
            },
            kept: {
                let kept = store.holistic("kept").layout(append()).moved_by(unit);
                kept.open(Windows::tumbling(nanos(20)), All)?
            },
            mover,
            store,
        })
    }

    fn owns(&self, key: u64) -> bool {
        let standing = self.mover.standing(KeyGroup::of(key.key_hash(), GROUPS)).unwrap();
        standing == Standing::Here
    }

    fn advance(&mut self, to: Time, lines: &mut Lines) -> Result<()> {
        let mut told = Vec::new();
        let folded = &mut |key: &u64, window, out: (u64, u64), by| {
            told.push(format!("folded: {key} in {window:?}: {out:?} {by:+}"));
        };
        while !self.folded.advance(to, 1000, folded)?.done {}
        let sessions = &mut |key: &u64, window, out: (u64, u64), by| {
            lines.push(format!("sessions: {key} in {window:?}: {out:?} {by:+}"));
        };
        while !self.sessions.advance(to, 1000, sessions)?.done {}
        let kept = &mut |key: &u64, window, out: Vec<String>, by| {
            lines.push(format!("kept: {key} in {window:?}: {out:?} {by:+}"));
        };
        while !self.kept.advance(to, 1000, kept)?.done {}
        lines.append(&mut told);
        Ok(())
    }

    fn change(&mut self, now: i64, key: u64, n: u64, kind: u64) -> Result<()> {
        let (at, sent) = (Time(now + n as i64 % 40), Time(now));
        match kind {
            0 | 1 => {
                self.map.put(key, n)?;
                self.split.put(key, n)?;
                self.seen.put(key, n)?;
            }
            2 => {
                self.map.remove(&key)?;
                self.split.remove(&key)?;
            }
            3 => drop(self.counts.add(&key, n as i64)?),
            4 => drop(self.timers.set_in(key, at, (n % 3) as u8)?),
            5 => {
                self.lists.append(&key, n)?;
                self.heap_lists.append(&key, n)?;
                self.times.insert(&key, at, n)?;
            }
            6 if n.is_multiple_of(3) => {
                self.lists.clear(&key)?;
                self.heap_lists.clear(&key)?;
            }
            _ => {
                let never = &mut |_| panic!("none is late");
                let mut batch = vec![(key, at, n)];
                self.folded.add_batch(sent, &mut batch, never, &mut |_, _, _, _| {})?;
                let mut batch = vec![(key, at, n)];
                self.sessions.add_batch(sent, &mut batch, never, &mut |_, _, _, _| {})?;
                let mut batch = vec![(key, at, format!("event {n}"))];
                let never = &mut |_| panic!("none is late");
                self.kept.add_batch(sent, &mut batch, never, &mut |_, _, _, _| {})?;
            }
        }
        Ok(())
    }
}

/// Seeded changes, each at the worker that has the key's group.
pub fn changes(workers: &mut [Worker], now: i64, dice: &mut Dice, count: u64) -> Result<()> {
    for _ in 0..count {
        let (key, n, kind) = (dice.below(80), dice.next() % 1000, dice.below(10));
        let worker = workers.iter_mut().find(|worker| worker.owns(key)).expect("one has it");
        worker.change(now, key, n, kind)?;
    }
    Ok(())
}

/// Time goes on for all of them.
pub fn advance(workers: &mut [Worker], to: i64) -> Result<()> {
    for worker in workers {
        worker.advance(Time(to), &mut Vec::new())?;
        worker.seen.advance(Time(to))?;
    }
    Ok(())
}

/// Brings a group from one worker to the other; it is forgotten there only in part, if `stays`.
pub fn bring(workers: &[Worker], group: u16, from: usize, to: usize, stays: bool) -> Result<()> {
    let group = KeyGroup(group);
    let mut rest = workers[from].mover.begin(group)?;
    while let Some(chunk) = workers[from].mover.next_chunk(&mut rest, 4 << 10)? {
        workers[to].mover.install(&chunk)?;
    }
    if stays {
        assert!(!workers[from].mover.forget(group, 1)?, "some of it is to be left");
        return Ok(());
    }
    while !workers[from].mover.forget(group, 64)? {}
    Ok(())
}

/// All that the workers hold together; of no further use then.
pub fn lines(workers: &mut [Worker]) -> Result<Lines> {
    let mut lines = Vec::new();
    for worker in workers {
        // What is left of groups that have gone is removed first: nobody but the mover sees it.
        for group in (0..GROUPS).map(KeyGroup) {
            while worker.mover.standing(group)? == Standing::Going
                && !worker.mover.forget(group, 64)?
            {}
        }
        let Worker { map, split, counts, timers, lists, heap_lists, times, seen, .. } = worker;
        for (name, map) in [("map", map), ("split", split)] {
            map.for_each(|key, value| {
                lines.push(format!("{name}: {key} = {value}"));
                Ok(())
            })?;
        }
        counts.as_map().for_each(|key, value| {
            lines.push(format!("counts: {key} = {value}"));
            Ok(())
        })?;
        seen.for_each(|key, value| {
            lines.push(format!("seen: {key} = {value}"));
            Ok(())
        })?;
        for key in 0..80 {
            for (name, list) in [("lists", &mut *lists), ("heap-lists", &mut *heap_lists)] {
                let all = list.to_vec(&key)?;
                if !all.is_empty() {
                    lines.push(format!("{name}: {key} = {all:?}"));
                }
            }
            times.range(&key, Time(-100)..Time(1000), |at, value| {
                lines.push(format!("times: {key} at {} = {value}", at.0));
                Ok(())
            })?;
        }
        while let Some((at, key, name)) = timers.pop_due_in(Time(1000)) {
            lines.push(format!("timers: {} {key} {name}", at.0));
        }
        worker.advance(Time::MAX, &mut lines)?;
    }
    lines.sort_unstable();
    Ok(lines)
}
