//! A state that has no small slices takes the same memory whether small slices are packed or not; one that has none any more
//! gives back what packing took; and appends do not look at what is packed.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{AppendLog, AppendLogLists, CheckpointOutcome, Lists, Upkeep};
use alluvium_pagestore::io::{Faults, Simulated};
use alluvium_pagestore::{Account, ErrorKind, MEMORY_KINDS, MemoryKind, Time};

use crate::common::{Dice, Ground, folded};

type Element = [u64; 4];

/// A state, and what it has taken so far.
struct Beside {
    ground: Ground,
    lists: AppendLogLists<u64, Element>,
    account: Rc<Account>,
}

fn open(memory: u64, packs: bool) -> Option<Beside> {
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), memory, false);
    let (lists, account) = ground.open(&AppendLog::new().packs_slices(packs)).ok()?;
    Some(Beside { ground, lists, account })
}

/// What is appended: how many elements in all, and to which bucket and list each comes.
struct Shape {
    name: &'static str,
    elements: u64,
    span: i128,
    at: fn(u64) -> (i64, u64),
}

/// Histories in which no bucket is small when memory is short, or few are.
const SHAPES: [Shape; 5] = [
    Shape { name: "many large ones", elements: 90_000, span: 1, at: |n| ((n % 20) as i64, n % 7) },
    Shape { name: "one by one", elements: 90_000, span: 1, at: |n| ((n / 900) as i64, n % 50) },
    Shape { name: "few", elements: 60_000, span: 10, at: |n| ((n % 100 / 9) as i64, n % 3) },
    Shape { name: "one that stays", elements: 60_000, span: 1, at: |n| (i64::MAX, n % 500) },
    Shape {
        name: "a large one and few small ones",
        elements: 60_000,
        span: 100,
        at: |n| (if n % 1_000 == 0 { (n % 10_000 / 1_000) as i64 } else { 99 }, n % 300),
    },
];

/// What some steps have come to: how many were refused, and what was taken by kind, summed.
#[derive(Debug, Default)]
struct Outcome {
    refused: u64,
    used: [u64; MEMORY_KINDS.len()],
}

impl Beside {
    /// A step of a history: an append, and now and then something else. The elements that were accepted are counted.
    fn step(&mut self, shape: &Shape, n: u64, accepted: &mut u64, outcome: &mut Outcome) {
        let (bucket, key) = (shape.at)(n);
        match self.lists.append(Time(bucket), &key, [n; 4]) {
            Ok(()) => *accepted += 1,
            Err(refused) if refused.error.kind() == ErrorKind::OverBudget => outcome.refused += 1,
            Err(refused) => panic!("{} {n}: {}", shape.name, refused.error),
        }
        if n % 20_000 == 19_999 {
            self.ground.checkpoint(&mut self.lists, CheckpointOutcome::Committed).unwrap();
        }
        if n % 25_000 == 24_999 {
            let found = folded(&mut self.lists, Time(bucket)..Time(bucket).plus(1), 100).unwrap();
            assert!(!found.is_empty());
        }
        if n % 30_000 == 29_999 {
            *accepted -= self.lists.len();
            self.lists.purge(Time(bucket / 2), usize::MAX).unwrap();
            *accepted += self.lists.len();
        }
        assert_eq!(self.lists.len(), *accepted, "{} {n}", shape.name);
        for (sum, kind) in outcome.used.iter_mut().zip(MEMORY_KINDS) {
            *sum += self.account.used_for(kind);
        }
    }
}

/// How many chunks a piece of memory has room for depends on where the allocator puts it. So two runs of one history are not
/// the same to the byte, and are compared by many steps together.
#[test]
fn a_state_without_small_slices_takes_the_same_memory_at_each_step() {
    let steps = 10_000;
    for shape in &SHAPES {
        for memory in [1 << 20, 1 << 21] {
            let mut both = [false, true].map(|packs| open(memory, packs).expect("enough memory"));
            let (mut accepted, mut refused) = ([0, 0], [0, 0]);
            both.iter_mut().for_each(|one| one.lists.fold_at_once(shape.span));
            for from in (0..shape.elements).step_by(steps) {
                let mut outcomes = [Outcome::default(), Outcome::default()];
                for n in from..from + steps as u64 {
                    both[0].step(shape, n, &mut accepted[0], &mut outcomes[0]);
                    both[1].step(shape, n, &mut accepted[1], &mut outcomes[1]);
                }
                let [plain, packing] = &outcomes;
                // Lists may leave memory some steps earlier or later, and merges take some for a while. Packing takes a fifth
                // of the smaller memory.
                let most = |kind| match kind {
                    MemoryKind::Buffers | MemoryKind::Tables => memory / 16,
                    _ => memory / 4,
                };
                let is_near = |((one, other), kind): ((&u64, &u64), MemoryKind)| {
                    one.abs_diff(*other) / steps as u64 <= most(kind)
                };
                (refused[0], refused[1]) =
                    (refused[0] + plain.refused, refused[1] + packing.refused);
                let is_same = plain.used.iter().zip(&packing.used).zip(MEMORY_KINDS).all(is_near);
                assert!(is_same, "{} in {memory}: {from}: {packing:?}, {plain:?}", shape.name);
            }
            let most = shape.elements / 50;
            assert!(refused[0].abs_diff(refused[1]) <= most, "{}: {refused:?}", shape.name);
            both.iter().for_each(|one| assert!(one.account.stats().peak <= memory));
        }
    }
}

/// The least memory in which large slices are accepted that are read together, to 8 KiB.
fn least(packs: bool) -> u64 {
    let is_enough = |memory: u64| {
        let Some(Beside { mut lists, .. }) = open(memory, packs) else { return false };
        lists.fold_at_once(100);
        let mut all = (0..100).flat_map(|slice| (0..1_700).map(move |n| (slice, n)));
        all.all(|(slice, n)| lists.append(Time(slice), &(n % 30), [n; 4]).is_ok())
    };
    let (mut less, mut enough) = (0, 8 << 20);
    assert!(is_enough(enough));
    while enough - less > 8 << 10 {
        let middle = (less + enough) / 2;
        match is_enough(middle) {
            true => enough = middle,
            false => less = middle,
        }
    }
    enough
}

#[test]
fn a_state_without_small_slices_is_accepted_in_the_same_memory() {
    let (plain, packing) = (least(false), least(true));
    assert!(plain > 3 << 19, "{plain} is more than with what nothing can be packed");
    // What packs nothing writes lists before it refuses an append.
    assert!(packing.abs_diff(plain) <= plain / 12, "{packing}, {plain} with nothing packed");
}

/// What was packed goes, by a purge or as it is cleared: then nothing of packing is left.
#[test]
fn what_packing_took_is_given_back_when_nothing_is_packed() {
    for is_cleared in [false, true] {
        let memory = 1 << 20;
        let mut one = open(memory, true).unwrap();
        let empty = one.account.used();
        for round in 0..3u64 {
            let slices = 2_000;
            let time = |slice: u64| Time((round * slices + slice) as i64);
            for slice in 0..slices {
                one.lists.append(time(slice), &7, [slice; 4]).unwrap();
            }
            assert!(one.lists.stats().disk_bytes > 0 && one.account.used() > memory / 4);
            if is_cleared {
                (0..slices).for_each(|slice| one.lists.clear_key(time(slice), &7).unwrap());
            } else {
                one.lists.purge(time(slices), usize::MAX).unwrap();
            }
            while one.lists.tick(1_000).unwrap() > 0 {}
            one.lists.purge(time(slices), usize::MAX).unwrap();
            assert_eq!(one.account.used(), empty, "round {round}, cleared: {is_cleared}");
            assert_eq!(one.lists.len(), 0);
        }
        assert!(one.account.stats().peak <= memory);
    }
}

/// Packs `slices` small slices of one window, and appends to others of it. Returns how many packed slices these appends have
/// looked at, at most for one of them and for all.
fn looked_at(slices: i64) -> (u64, u64) {
    let device = Simulated::new(5, Faults::none());
    let mut ground = Ground::new(Some(Arc::new(device)), 128 << 20, false);
    let (mut lists, _) = ground.open::<u64, u64, _>(&AppendLog::new().pack_all()).unwrap();
    lists.fold_at_once(10_000);
    let mut wanted: BTreeMap<u64, u64> = BTreeMap::new();
    let mut append = |lists: &mut AppendLogLists<u64, u64>, time: i64, key: u64| {
        lists.append(Time(time), &key, time as u64).unwrap();
        *wanted.entry(key).or_default() += 1;
    };
    (0..slices).for_each(|slice| append(&mut lists, slice * 2, 7));
    lists.reclaim(u64::MAX).unwrap();
    let mut dice = Dice(3);
    let (start, mut most) = (lists.packed_looked_at(), 0);
    for n in 0..400 {
        let before = lists.packed_looked_at();
        // The first of a bucket, and further lists of those that are there.
        append(&mut lists, dice.below(slices as u64) as i64 * 2 + 1, n);
        most = most.max(lists.packed_looked_at() - before);
    }
    let all = lists.packed_looked_at() - start;
    let found = folded(&mut lists, Time(0)..Time(10_000), 1_000).unwrap();
    assert!(found.iter().map(|(key, list)| (*key, list.len() as u64)).eq(wanted));
    (most, all)
}

#[test]
fn an_append_looks_at_as_many_packed_slices_however_many_there_are() {
    let (few, many) = (looked_at(400), looked_at(4_000));
    assert!(few.1 > 0, "appends looked for room");
    // Pages of 128 slices: those at the ends of a window and the slice's own, one before each.
    assert!(many.0 <= 6 * 128, "{many:?} for one append");
    assert!(many.1 <= 3 * few.1, "{many:?} beside many, {few:?} beside few");
}
