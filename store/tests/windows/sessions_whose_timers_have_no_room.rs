//! Open sessions of which only the timers that come next are in memory: each closes once, at its time and in the order
//! of times, over checkpoints and restarts, in memory that has no room for all timers.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::types::hash_word;
use alluvium::{
    Aggregated, AnyLayout, Heap, HybridLog, KIB, MIB, Map, Store, Time, Window, Windows,
};

use crate::dice::Dice;
use crate::sorted::Sorted;

const GAP: i64 = 10_000;

/// Sessions of a store that is opened again and again.
struct Job {
    device: Simulated,
    memory: u64,
    layout: AnyLayout,
    /// The most timers that are kept, if not as many as there is room for.
    timers_most: Option<usize>,
    now: Option<(Store, Aggregated<u64, i64, Sorted>)>,
    /// Has the memory that sessions leave, if it is filled.
    other: Option<Map<u64, [u64; 8]>>,
    fills: bool,
    /// The times of each key's events that are in open sessions.
    events: BTreeMap<u64, Vec<(i64, i64)>>,
    /// Ends, keys, starts and values of sessions that have closed.
    told: Vec<(i64, u64, i64, Vec<i64>)>,
    wanted: Vec<(i64, u64, i64, Vec<i64>)>,
    /// The most sessions that were open beside so many timers.
    most: (u64, u64),
}

impl Job {
    fn new(memory: u64, layout: impl Into<AnyLayout>, timers_most: Option<usize>) -> Self {
        let mut job = Self {
            device: Simulated::new(3, Faults::none()),
            memory,
            layout: layout.into(),
            timers_most,
            now: None,
            other: None,
            fills: false,
            events: BTreeMap::new(),
            told: Vec::new(),
            wanted: Vec::new(),
            most: (0, 0),
        };
        job.open();
        job
    }

    fn open(&mut self) {
        let builder = Store::in_memory().memory(self.memory).max_value(4 * KIB);
        let builder = builder.helpers(Helpers::Inline).device(Arc::new(self.device.clone()));
        let store = builder.open().unwrap();
        let sessions = store.aggregated("s").layout(self.layout.clone());
        let mut sessions = sessions.open(Windows::session(nanos(GAP)), Sorted(false)).unwrap();
        if let Some(most) = self.timers_most {
            sessions.keep_timers(most);
        }
        if self.fills {
            self.other = Some(store.map("other").open().unwrap());
        }
        self.now = Some((store, sessions));
    }

    fn restart(&mut self) {
        let (store, sessions) = self.now.take().unwrap();
        store.checkpoint(0).unwrap();
        self.other = None;
        drop((sessions, store));
        self.open();
    }

    fn add(&mut self, sent: i64, (key, at, value): (u64, i64, i64)) {
        let (store, sessions) = self.now.as_mut().unwrap();
        let mut batch = vec![(key, Time(at), value)];
        let late = &mut |_| panic!("nothing is late");
        let added = sessions.add_batch(Time(sent), &mut batch, late, &mut |_, _, _, _| {
            panic!("nothing closes");
        });
        added.unwrap_or_else(|error| panic!("{error}\n{}", store.stats().unwrap()));
        self.events.entry(key).or_default().push((at, value));
    }

    /// Lets sessions close that end before the watermark, in many calls; all at the end of time.
    fn advance(&mut self, to: i64, fuel: usize) {
        self.look();
        for n in 0..if self.fills { 20_000 } else { 0 } {
            self.other.as_mut().unwrap().put(n, [n; 8]).unwrap();
        }
        let (store, sessions) = self.now.as_mut().unwrap();
        let told = &mut self.told;
        let from = told.len();
        let out = &mut |key: &u64, window: Window, all: Vec<i64>, diff: i64| {
            assert_eq!(diff, 1);
            told.push((window.end.0, *key, window.start.0, all));
        };
        while !sessions.advance(Time(to), fuel, out).unwrap().done {
            store.tick(10).unwrap();
        }
        let mut closed = Vec::new();
        self.events.retain(|key, events| {
            events.sort_unstable();
            while let Some((start, _)) = events.first().copied() {
                let gaps = events.windows(2).position(|pair| pair[1].0 - pair[0].0 > GAP);
                let len = gaps.map_or(events.len(), |gap| gap + 1);
                let end = events[len - 1].0 + GAP;
                if end >= to && to < i64::MAX {
                    break;
                }
                let mut values: Vec<_> = events.drain(..len).map(|(_, value)| value).collect();
                values.sort_unstable();
                closed.push((end, *key, start, values));
            }
            !events.is_empty()
        });
        closed.sort_unstable();
        assert!(
            self.told[from..] == closed,
            "at {to}: {} of {}",
            self.told.len() - from,
            closed.len()
        );
        self.wanted.extend(closed);
    }

    fn look(&mut self) {
        let (store, _) = self.now.as_ref().unwrap();
        let stats = store.stats().unwrap();
        let open = self.events.len() as u64;
        if open > self.most.0 {
            self.most = (open, stats.state("s/timers").unwrap().table.live_keys);
        }
        assert!(stats.memory.peak <= self.memory, "{stats}");
    }
}

/// A history in which keys have sessions of a few events, long ones and several at once among them.
fn play(job: &mut Job, keys: u64, rounds: i64, seed: u64) {
    let mut dice = Dice(seed);
    let mut value = 0;
    for round in 0..rounds {
        let sent = round * GAP / 2;
        job.advance(sent, 1 + dice.below(400) as usize);
        for n in 0..keys {
            let key = hash_word(n ^ (seed + round as u64 / 3) << 20) % (2 * keys);
            let ahead = if dice.below(20) == 0 { 3 * GAP } else { 0 };
            job.add(sent, (key, sent + ahead + dice.below(GAP as u64) as i64, value));
            value += 1;
        }
        match dice.below(3) {
            0 => job.restart(),
            // A part of what is due at a time, then a restart at the next one.
            1 => job.advance(sent + GAP / 4, 64),
            _ => {}
        }
    }
    job.advance(i64::MAX, 1_000);
    assert!(job.told == job.wanted && job.events.is_empty());
}

#[test]
fn sessions_in_memory_close_in_order_though_their_timers_were_let_go() {
    let mut job = Job::new(4 * MIB, Heap::new(), Some(500));
    play(&mut job, 2_000, 12, 5);
    let (open, timers) = job.most;
    assert!(open > 2_500 && timers <= 501, "{timers} timers of {open} sessions");
}

#[test]
fn sessions_on_storage_close_in_order_though_their_timers_were_let_go() {
    let mut job = Job::new(2 * MIB, HybridLog::new(), None);
    play(&mut job, 6_000, 8, 7);
    let (open, timers) = job.most;
    assert!(open > 7_000 && timers < open / 2, "{timers} timers of {open} sessions");
}

/// Another state has all memory that it can have when sessions close: it gives up what their timers want.
#[test]
fn sessions_close_though_another_state_has_the_memory() {
    let mut job = Job::new(3 * MIB, HybridLog::new(), None);
    job.fills = true;
    (job.now, job.device) = (None, Simulated::new(4, Faults::none()));
    job.open();
    for round in 0..3 {
        let sent = round * 4 * GAP;
        for key in 0..6_000 {
            let at = sent + (hash_word(key) % GAP as u64) as i64;
            job.add(sent, (key, at, round));
        }
        job.advance(sent + 3 * GAP, 500);
    }
    assert_eq!(job.told.len(), 18_000);
}

/// A burst ends at one time: these timers are not divided, and the others are let go.
#[test]
fn sessions_that_all_end_at_one_time_close_together() {
    let mut job = Job::new(2 * MIB, HybridLog::new(), None);
    for key in 0..6_000 {
        job.add(0, (key, 500, key as i64));
        job.add(0, (key + 10_000, 900 + (key % 7) as i64, key as i64));
    }
    job.restart();
    job.advance(i64::MAX, 300);
    assert_eq!(job.told.len(), 12_000);
}
