//! Key groups of windows move between three stores while events come, late ones among them, and what comes
//! out is what a plain re-computation gives: for all shapes, ways to emit and layouts.
//!
//! What this catches: accumulators lost, doubled or left behind by a move, by one back, by chunks that
//! come twice or not at all, by a second extraction; windows that fire at both stores or at neither;
//! late events that wait and are left behind, or are late in one place and not in the other; totals and
//! stacks that still have what has gone; checkpoints that bring back what was forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::io::{Faults, Simulated};
use alluvium::moving::{KeyGroup, Mover, Standing};
use alluvium::time::nanos;
use alluvium::windows::{Advanced, Late, Processing};
use alluvium::{
    Aggregated, AnyLayout, AppendLog, Elements, Emit, ErrorKind, Heap, Holistic, HybridLog, KIB,
    KeyHash, MIB, Result, Store, Time, Window, WindowSegments, Windows, process,
};

use crate::dice::Dice;
use crate::job::{GROUPS, builder, owned};
use crate::model::{self, Event, Results};
use crate::sorted::Sorted;

const STORES: usize = 3;
const CHUNK: usize = 2 * KIB as usize;

type Rows = Box<
    dyn FnMut(&u64, Window, &mut dyn Elements<Vec<i64>>, &mut dyn FnMut(Vec<i64>)) -> Result<()>,
>;

type Kept = Holistic<u64, Vec<i64>, Processing<Rows, Vec<i64>>>;
/// What takes results.
type Told<'t> = &'t mut dyn FnMut(&u64, Window, Vec<i64>, i64);

/// Windows that fold their events, or keep them, each as so many copies that they do not fit into memory.
enum Subject {
    Folded(Box<Aggregated<u64, i64, Sorted>>),
    Kept(Box<Kept>),
}

/// Copies of an event's value.
const COPIES: usize = 150;

impl Subject {
    fn open(case: &Case, store: &Store, mover: &Mover) -> Self {
        if !case.keeps {
            let windows = store.aggregated("w").moved_by(mover);
            let mut windows = windows.open(case.windows(), Sorted(case.subtracts)).unwrap();
            if let Some(most) = case.timers_most {
                windows.keep_timers(most);
            }
            return Self::Folded(Box::new(windows));
        }
        let rows: Rows = Box::new(|_, _, events, emit| {
            let mut row = Vec::new();
            while let Some(event) = events.next()? {
                assert_eq!(*event, vec![event[0]; COPIES]);
                row.push(event[0]);
            }
            row.sort_unstable();
            emit(row);
            Ok(())
        });
        let windows = store.holistic("w").moved_by(mover);
        let mut windows = windows.open(case.windows(), process(rows)).unwrap();
        if let Some(most) = case.timers_most {
            windows.keep_timers(most);
        }
        Self::Kept(Box::new(windows))
    }

    fn add_batch(
        &mut self,
        sent: Time,
        batch: &mut Vec<(u64, Time, i64)>,
        late: &mut dyn FnMut(Late<u64, i64>),
        out: Told<'_>,
    ) -> Result<()> {
        let windows = match self {
            Self::Folded(windows) => return windows.add_batch(sent, batch, late, out),
            Self::Kept(windows) => windows,
        };
        let copies = batch.drain(..).map(|(key, at, value)| (key, at, vec![value; COPIES]));
        let mut copies: Vec<_> = copies.collect();
        let late = &mut |Late { at, key, element, lateness }: Late<u64, Vec<i64>>| {
            late(Late { at, key, element: element[0], lateness });
        };
        let done = windows.add_batch(sent, &mut copies, late, out);
        batch.extend(copies.into_iter().map(|(key, at, copies)| (key, at, copies[0])));
        done
    }

    fn advance(&mut self, to: Time, fuel: usize, out: Told<'_>) -> Result<Advanced> {
        match self {
            Self::Folded(windows) => windows.advance(to, fuel, out),
            Self::Kept(windows) => windows.advance(to, fuel, out),
        }
    }
}

struct Part {
    store: Store,
    mover: Mover,
    windows: Subject,
}

fn open(case: &Case, at: usize, device: &Simulated) -> Part {
    let store = builder(&case.layout)
        .memory(6 * MIB)
        .owned_groups(owned(at, STORES))
        .device(Arc::new(device.clone()))
        .open()
        .unwrap();
    let mover = store.mover("unit").unwrap();
    let windows = Subject::open(case, &store, &mover);
    Part { store, mover, windows }
}

#[derive(Debug)]
struct Case {
    layout: AnyLayout,
    shape: (i64, i64, i64),
    lateness: i64,
    emit: Emit,
    subtracts: bool,
    /// Whether events are kept.
    keeps: bool,
    keys: u64,
    batch_max: u64,
    /// How many timers are kept in memory.
    timers_most: Option<usize>,
}

impl Case {
    /// Windows that fold few events of few keys.
    fn new(layout: AnyLayout, shape: (i64, i64, i64), emit: Emit, lateness: i64) -> Self {
        let (subtracts, keeps, keys, batch_max) = (false, false, 12, 12);
        let timers_most = None;
        Self { layout, shape, lateness, emit, subtracts, keeps, keys, batch_max, timers_most }
    }

    fn windows(&self) -> Windows {
        let windows = match self.shape {
            (gap, 0, _) => Windows::session(nanos(gap)),
            (length, slide, offset) => Windows::sliding(nanos(length), nanos(slide))
                .offset(nanos(offset.rem_euclid(slide))),
        };
        windows.lateness(nanos(self.lateness)).emit(self.emit)
    }
}

fn group_of(key: u64) -> KeyGroup {
    KeyGroup::of(key.key_hash(), GROUPS)
}

/// What came out of all stores, added up, and what was dropped.
#[derive(Default)]
struct Collected {
    sums: BTreeMap<(Window, u64, Vec<i64>), i64>,
    dropped: Vec<(i64, u64, i64, i64)>,
}

struct Job {
    case: Case,
    devices: Vec<Simulated>,
    parts: Vec<Part>,
    owners: Vec<usize>,
    collected: Collected,
    events: Vec<Event>,
    watermark: i64,
    dice: Dice,
    /// Groups that have left a store which still has something of them.
    left: Vec<(KeyGroup, usize)>,
    moves: u64,
    /// Whether anything was read from storage.
    has_read: bool,
}

impl Job {
    fn new(case: Case, seed: u64) -> Self {
        let devices: Vec<_> =
            (0..STORES as u64).map(|at| Simulated::new(seed + at, Faults::late(2))).collect();
        let parts =
            devices.iter().enumerate().map(|(at, device)| open(&case, at, device)).collect();
        let owner = |group| (0..STORES).find(|at| owned(*at, STORES).contains(&group)).unwrap();
        Self {
            case,
            devices,
            parts,
            owners: (0..GROUPS).map(owner).collect(),
            collected: Collected::default(),
            events: Vec::new(),
            watermark: -40,
            dice: Dice(seed),
            left: Vec::new(),
            moves: 0,
            has_read: false,
        }
    }

    /// A job that has run so many steps, with the right results.
    fn played(case: Case, seed: u64, steps: u64) -> Self {
        let mut job = Self::new(case, seed);
        job.run(steps);
        job.check();
        job
    }

    fn look(&mut self) {
        for part in &self.parts {
            let stats = part.store.stats().unwrap();
            self.has_read |= stats.states.iter().any(|state| state.table.cold_reads > 0);
        }
    }

    /// Some events, late ones among them, each at the store that has its key.
    fn add(&mut self, under_way: Option<KeyGroup>) {
        let sent = self.watermark + self.dice.below(5) as i64;
        // A group that has come does not know which sessions were there before events that were sent
        // with the watermark.
        let is_used = self.events.iter().any(|event| event.sent == self.watermark);
        let sent = sent.max(self.watermark + i64::from(is_used));
        let mut batches = vec![Vec::new(); STORES];
        for _ in 0..1 + self.dice.below(self.case.batch_max) {
            let back = if self.dice.below(3) == 0 { self.dice.below(40) as i64 } else { 0 };
            let at = sent + self.dice.below(15) as i64 - back;
            let (key, value) = (self.dice.below(self.case.keys), self.events.len() as i64);
            if Some(group_of(key)) == under_way {
                continue;
            }
            self.events.push(Event { at, sent, key, value });
            batches[self.owners[usize::from(group_of(key).0)]].push((key, Time(at), value));
        }
        for (part, mut batch) in self.parts.iter_mut().zip(batches) {
            let Collected { sums, dropped } = &mut self.collected;
            let late = &mut |late: alluvium::windows::Late<u64, i64>| {
                dropped.push((late.at.0, late.key, late.element, late.lateness));
            };
            let out = &mut |key: &u64, window, row, diff| {
                *sums.entry((window, *key, row)).or_default() += diff;
            };
            part.windows.add_batch(Time(sent), &mut batch, late, out).unwrap();
            assert!(batch.is_empty());
        }
    }

    /// Advances all stores until they are done.
    fn advance(&mut self, to: i64) {
        self.watermark = to;
        for part in &mut self.parts {
            let sums = &mut self.collected.sums;
            let fuel = 1 + self.dice.below(40) as usize;
            let out = &mut |key: &u64, window, row, diff| {
                *sums.entry((window, *key, row)).or_default() += diff;
            };
            while !part.windows.advance(Time(to), fuel, out).unwrap().done {}
        }
    }

    /// Moves a random group to a random store, with trouble on the way.
    fn bring(&mut self) {
        let group = KeyGroup(self.dice.below(u64::from(GROUPS)) as u16);
        let from = self.owners[usize::from(group.0)];
        let to = (from + 1 + self.dice.below(STORES as u64 - 1) as usize) % STORES;
        if self.parts[to].mover.standing(group).unwrap() != Standing::Away {
            return;
        }
        let mut rest = self.parts[from].mover.begin(group).unwrap();
        let mut sent: Vec<Vec<u8>> = Vec::new();
        let key = (0..).find(|key| group_of(*key) == group).unwrap();
        loop {
            match self.dice.below(30) {
                0 => {
                    rest = self.parts[from].mover.begin(group).unwrap();
                    sent.clear();
                }
                1 => {
                    self.parts[from].mover.keep(group).unwrap();
                    while !self.parts[to].mover.forget(group, 3).unwrap() {}
                    rest = self.parts[from].mover.begin(group).unwrap();
                    sent.clear();
                }
                2 if !sent.is_empty() => {
                    let at = self.dice.below(sent.len() as u64) as usize;
                    assert_eq!(self.parts[to].mover.install(&sent[at]).unwrap(), (group, false));
                }
                // Others go on, as far as the watermark lets them.
                3 => {
                    self.add(Some(group));
                    self.advance(self.watermark);
                }
                4 => self.what_is_refused(from, key),
                _ => {
                    // Several, also of events that are long.
                    let is_large = self.case.keeps || self.case.keys > 1000;
                    let bytes = if is_large { 16 * CHUNK } else { CHUNK };
                    let chunk = self.parts[from].mover.next_chunk(&mut rest, bytes).unwrap();
                    let chunk = chunk.expect("not ended yet");
                    assert!(chunk.len() <= bytes, "{} bytes", chunk.len());
                    let (_, complete) = self.parts[to].mover.install(&chunk).unwrap();
                    sent.push(chunk);
                    if complete {
                        break;
                    }
                }
            }
        }
        self.parts[from].mover.leave(group).unwrap();
        for chunk in &sent {
            assert_eq!(self.parts[to].mover.install(chunk).unwrap(), (group, true));
        }
        self.owners[usize::from(group.0)] = to;
        self.left.push((group, from));
        self.moves += 1;
    }

    fn what_is_refused(&mut self, from: usize, key: u64) {
        let windows = &mut self.parts[from].windows;
        let later = Time(self.watermark + 1);
        let refused = windows.advance(later, 10, &mut |_, _, _, _| panic!("nothing comes out"));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InUse);
        let mut batch = vec![(key, later, 7)];
        let refused =
            windows.add_batch(later, &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap_err();
        assert_eq!((refused.kind(), batch.len()), (ErrorKind::InUse, 1), "{refused}");
        assert!(refused.to_string().contains("is moving"), "{refused}");
    }

    fn forget(&mut self, fuel: usize) {
        let Self { parts, left, .. } = self;
        left.retain(|(group, from)| !parts[*from].mover.forget(*group, fuel).unwrap());
    }

    /// Takes checkpoints, drops everything, and opens these.
    fn restart(&mut self) {
        self.look();
        for (at, device) in self.devices.iter().enumerate() {
            self.parts[at].store.checkpoint(1).unwrap();
            // The old one lets its directory go before the new one is opened.
            self.parts.remove(at);
            self.parts.insert(at, open(&self.case, at, device));
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            for _ in 0..self.dice.below(4) {
                self.add(None);
            }
            let far = if self.dice.below(8) == 0 { 60 } else { 8 };
            let to = self.watermark + self.dice.below(far) as i64;
            self.advance(to);
            (0..self.dice.below(3)).for_each(|_| self.bring());
            if self.dice.below(3) > 0 {
                let fuel = 1 + self.dice.below(20) as usize;
                self.forget(fuel);
            }
            if self.dice.below(10) == 0 {
                self.restart();
            }
        }
        self.advance(i64::MAX);
        self.look();
    }

    fn check(&self) {
        let what = &self.case;
        let (expected, dropped) = match self.case.shape {
            (gap, 0, _) => model::sessions(&self.events, gap, self.case.lateness),
            shape => model::aligned(&self.events, shape, self.case.lateness),
        };
        let mut results = Results::new();
        for ((window, key, row), sum) in self.collected.sums.iter().filter(|(_, sum)| **sum != 0) {
            assert_eq!(*sum, 1, "{what:?}: {window:?} {key} {row:?}");
            let old = results.insert((*window, *key), row.clone());
            assert!(old.is_none(), "{what:?}: two results of {window:?} {key}: {old:?}, {row:?}");
        }
        let missing: Vec<_> = expected.iter().filter(|(k, v)| results.get(k) != Some(v)).collect();
        let extra: Vec<_> = results.iter().filter(|(k, v)| expected.get(k) != Some(v)).collect();
        assert!(
            missing.is_empty() && extra.is_empty(),
            "{what:?}: missing {missing:?}, not expected {extra:?}"
        );
        let mut told = self.collected.dropped.clone();
        let dropped = dropped.iter().map(|e| (e.at, e.key, e.value, e.sent - e.at));
        let mut dropped: Vec<_> = dropped.collect();
        told.sort_unstable();
        dropped.sort_unstable();
        assert_eq!(told, dropped, "{what:?}: late events");
    }
}

fn layouts() -> [AnyLayout; 3] {
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
    [WindowSegments::new().memory(MIB).into(), Heap::new().into(), log.memory(320 * KIB).into()]
}

const SHAPES: [(i64, i64, i64); 5] = [(10, 10, 0), (10, 2, 0), (10, 4, 3), (30, 1, 0), (6, 0, 0)];
const EMITS: [Emit; 3] = [Emit::OnClose, Emit::OnWatermark, Emit::Early(nanos(4))];
const LATENESSES: [i64; 3] = [0, 12, 30];

#[test]
fn results_are_the_same_wherever_windows_are() {
    let mut moves = 0;
    for (n, shape) in SHAPES.into_iter().enumerate() {
        for (m, emit) in EMITS.into_iter().enumerate() {
            for (l, layout) in layouts().into_iter().enumerate() {
                // Window segments always, the others in turns.
                if l > 0 && (n + m) % 2 != l - 1 {
                    continue;
                }
                let (turn, seed) = (n + m + l, n * 9 + m * 3 + l);
                let case = Case {
                    subtracts: turn % 2 == 0,
                    keys: if l == 0 { 40 } else { 12 },
                    ..Case::new(layout, shape, emit, LATENESSES[turn % 3])
                };
                moves += Job::played(case, seed as u64, 26).moves;
            }
        }
    }
    assert!(moves > 200, "{moves} moves");
}

/// Sessions of which a few timers are in memory, and the others are found again in their sets: also those of key groups
/// that have come.
#[test]
fn sessions_whose_timers_were_let_go_end_wherever_they_are() {
    let mut moves = 0;
    for (m, emit) in EMITS.into_iter().enumerate() {
        for (n, lateness) in LATENESSES.into_iter().enumerate() {
            let [_, heap, log] = layouts();
            let kept = AppendLog::new().memory(MIB).block(KIB).segment(32 * KIB);
            for (l, layout) in [heap, log, kept.into()].into_iter().enumerate() {
                let case = Case {
                    timers_most: Some(1 + (l + n) % 3),
                    keeps: l == 2,
                    keys: 24,
                    ..Case::new(layout, SHAPES[4], emit, lateness)
                };
                moves += Job::played(case, (500 + m * 9 + n * 3 + l) as u64, 26).moves;
            }
        }
    }
    assert!(moves > 150, "{moves} moves");
}

/// The same with windows that keep their events, which do not fit into memory in the append log.
#[test]
fn windows_that_keep_their_events_give_the_same_wherever_they_are() {
    let log = |shape: (i64, i64, i64)| {
        // Runs of all slices of a window are read together, and those of sessions that do not fire too.
        let memory = match shape {
            (length, slide, _) if length == slide => 384 * KIB,
            (_, 1, _) => 4 * MIB,
            _ => MIB,
        };
        AppendLog::new().memory(memory).block(KIB).segment(32 * KIB)
    };
    let mut moves = 0;
    for (n, shape) in SHAPES.into_iter().enumerate() {
        let mut has_read = false;
        for (m, emit) in EMITS.into_iter().enumerate() {
            let layouts: [AnyLayout; 2] = [log(shape).into(), Heap::new().into()];
            for (l, layout) in layouts.into_iter().enumerate() {
                if l == 1 && (n + m) % 2 == 0 {
                    continue;
                }
                let (turn, seed) = (n + m + l, 100 + n * 9 + m * 3 + l);
                let case = Case {
                    keeps: true,
                    keys: 24,
                    batch_max: 40,
                    ..Case::new(layout, shape, emit, LATENESSES[turn % 3])
                };
                let job = Job::played(case, seed as u64, 22);
                moves += job.moves;
                has_read |= job.has_read && l == 0;
            }
        }
        assert!(has_read || shape.0 != shape.1, "{shape:?}: nothing was on storage");
    }
    assert!(moves > 150, "{moves} moves");
}

/// Windows whose slices are small and share runs: groups leave what is packed, and come back, and late events come to it.
#[test]
fn windows_of_packed_slices_give_the_same_wherever_they_are() {
    let mut moves = 0;
    for (n, shape) in SHAPES.into_iter().take(4).enumerate() {
        let layout = WindowSegments::new().memory(2 * MIB).pack_all().into();
        let case = Case { keys: 40, ..Case::new(layout, shape, EMITS[n % 3], LATENESSES[n % 3]) };
        let job = Job::played(case, 300 + n as u64, 26);
        moves += job.moves;
    }
    assert!(moves > 20, "{moves} moves");
}

/// Windows that fold more than memory has room for: runs of slices, of which groups leave and come back,
/// which get more events, fire and are merged.
#[test]
fn windows_larger_than_memory_give_the_same_wherever_they_are() {
    let cases = [
        ((20, 20, 0), Emit::OnClose, 30, 256 * KIB),
        ((20, 5, 0), Emit::OnWatermark, 12, 256 * KIB),
        // Of early results there is another state like it.
        ((20, 10, 3), Emit::Early(nanos(4)), 30, 512 * KIB),
    ];
    for (n, (shape, emit, lateness, memory)) in cases.into_iter().enumerate() {
        let layout = WindowSegments::new().memory(memory).into();
        let case = Case {
            subtracts: n == 1,
            keys: 3000,
            batch_max: 1200,
            ..Case::new(layout, shape, emit, lateness)
        };
        let job = Job::played(case, 200 + n as u64, 14);
        assert!(job.has_read && job.moves > 5, "{shape:?}: {} moves", job.moves);
    }
}
