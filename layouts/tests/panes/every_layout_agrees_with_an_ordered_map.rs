//! Random histories on all layouts and budgets, step by step beside the model.

use std::collections::{BTreeMap, BTreeSet};

use alluvium_layouts::{
    Cursor, Heap, HybridLog, Panes, PanesLayout, TableStats, Upkeep, WindowSegments,
};
use alluvium_pagestore::{KIB, KeyGroup, KeyHash, MIB, Result, Time};

use super::common::{Accumulator, Items, Model, Place, Random, fold, purge, put, settle};

/// Calls until the cursor is done.
fn each_step(mut step: impl FnMut(&mut Cursor) -> Result<()>) {
    let mut cursor = Cursor::default();
    while !cursor.done {
        step(&mut cursor).unwrap();
    }
}

/// What a history does.
struct Shape {
    seed: u64,
    steps: u32,
    keys: u64,
    slices: u64,
    reopens: bool,
}

fn run<A: Accumulator, L: PanesLayout<u64, A>>(
    layout: &L,
    place: &mut Place,
    shape: Shape,
) -> TableStats {
    let mut stats = TableStats::default();
    println!("{} seed {}", layout.name(), shape.seed);
    let mut random = Random(shape.seed << 32);
    let mut panes = place.open::<A, L>(layout);
    let (mut model, mut floor) = (Model::default(), 0i64);
    for step in 0..shape.steps {
        let slice = floor + 10 * random.below(shape.slices) as i64;
        let key = random.below(shape.keys);
        let context = format!("seed {} step {step}", shape.seed);
        match random.below(100) {
            0..40 => {
                put::<A>(&mut panes, slice, key, step).unwrap();
                model.update(slice, key, step);
            }
            40..62 => {
                let batch: Vec<(Time, u64)> = (0..random.below(60))
                    .map(|_| {
                        let slice = floor + 10 * random.below(shape.slices) as i64;
                        (Time(slice), random.below(shape.keys))
                    })
                    .collect();
                let push = |_: &(Time, u64), sum: &mut A| sum.push(step);
                panes.update_batch(&batch, |(s, k)| (*s, k), |_| A::begin(), push).unwrap();
                batch.iter().for_each(|(slice, key)| model.update(slice.0, *key, step));
            }
            62..75 => {
                let found = panes.get(Time(slice), &key).unwrap();
                assert_eq!(found, model.get::<A>(slice, key), "{context}");
            }
            75..81 => {
                panes.remove(Time(slice), &key).unwrap();
                model.0.remove(&(slice, key));
                assert_eq!(panes.get(Time(slice), &key).unwrap(), None, "{context}");
            }
            81..84 => {
                let hashes = KeyGroup(random.below(5) as u16).hashes(5);
                let fuel = 1 + random.below(100) as usize;
                let mut found = BTreeMap::new();
                each_step(|cursor| {
                    let by_hash = panes.by_hash().expect("panes in the order of hashes");
                    by_hash.visit_hashes(Time(slice), &hashes, cursor, fuel, &mut |key, _, sums| {
                        let [sum] = sums else { panic!("{context}: {key} has {}", sums.len()) };
                        let before = found.insert(*key, sum.clone());
                        assert_eq!(before, None, "{context}: {key} comes twice");
                        Ok(())
                    })
                });
                let mut known = model.fold::<A>(slice..slice + 1);
                known.retain(|key, _| hashes.contains(&key.key_hash()));
                assert_eq!(found, known, "{context}");
            }
            84 => {
                let hashes = KeyGroup(random.below(5) as u16).hashes(5);
                let fuel = 1 + random.below(100) as usize;
                each_step(|cursor| {
                    let by_hash = panes.by_hash().expect("panes in the order of hashes");
                    by_hash.remove_hashes(Time(slice), &hashes, cursor, fuel).map(drop)
                });
                let is_left = |at: &(i64, u64)| at.0 != slice || !hashes.contains(&at.1.key_hash());
                model.0.retain(|at, _| is_left(at));
                assert_eq!(panes.get(Time(slice), &key).unwrap(), model.get::<A>(slice, key));
            }
            85..87 => {
                let end = slice + 10 * random.below(shape.slices) as i64;
                let fuel = 1 + random.below(400) as usize;
                let found = fold::<A>(&mut panes, slice..end, fuel).unwrap();
                assert_eq!(found, model.fold::<A>(slice..end), "{context}");
            }
            87..89 => {
                floor += 10 * random.below(3) as i64;
                let fuel = 1 + random.below(200) as usize;
                panes.purge(Time(floor), fuel).unwrap();
                model.purge(floor);
                if random.below(2) == 0 {
                    purge::<A>(&mut panes, floor, fuel);
                }
            }
            89..92 => drop(panes.tick(random.below(8) as usize).unwrap()),
            92..94 => panes.prefetch(Time(slice)).unwrap(),
            94 => drop(panes.reclaim(random.below(64 << 10)).unwrap()),
            95..97 => {
                // A slice that has anything is told of; one too many may be.
                let told = panes.next_slice(Time(slice));
                let known = model.0.range((slice, 0)..).next().map(|((slice, _), _)| *slice);
                assert!(
                    known.is_none() || told.is_some_and(|t| t.0 <= known.unwrap()),
                    "{context}"
                );
                assert!(told.is_none_or(|t| t.0 >= slice), "{context}");
            }
            97 if shape.reopens && place.device.is_some() && random.below(3) == 0 => {
                place.checkpoint::<A>(&mut panes).unwrap();
                for _ in 0..random.below(40) {
                    // What comes after a checkpoint is lost with a crash.
                    put::<A>(&mut panes, slice, random.below(shape.keys), step).unwrap();
                }
                stats.add(&panes.stats());
                drop(panes);
                assert_eq!(place.account.used(), 0, "{context}");
                panes = place.open::<A, L>(layout);
            }
            _ => {
                if model.0.is_empty() {
                    assert_eq!(fold::<A>(&mut panes, i64::MIN..i64::MAX, 10).unwrap().len(), 0);
                }
            }
        }
        let (used, limit) = (place.account.used(), place.account.limit());
        assert!(used <= limit, "{context}: {used} of {limit} bytes: {:?}", place.account);
    }
    let slices: BTreeSet<i64> = model.0.keys().map(|(slice, _)| *slice).collect();
    for slice in slices {
        let found = fold::<A>(&mut panes, slice..slice + 1, 50).unwrap();
        assert_eq!(found, model.fold::<A>(slice..slice + 1), "slice {slice}");
    }
    let found = fold::<A>(&mut panes, i64::MIN..i64::MAX, 1000).unwrap();
    assert_eq!(found, model.fold::<A>(i64::MIN..i64::MAX));
    purge::<A>(&mut panes, i64::MAX, 100);
    settle::<A, _>(&mut panes, |panes| panes.is_empty() && panes.next_slice(Time::MIN).is_none());
    stats.add(&panes.stats());
    drop(panes);
    assert_eq!(place.account.used(), 0);
    stats
}

fn shape(seed: u64) -> Shape {
    Shape { seed, steps: 2500, keys: 300, slices: 8, reopens: true }
}

fn tiny() -> WindowSegments {
    WindowSegments::new().image(8 * KIB).runs_max(3)
}

#[test]
fn in_memory() {
    for seed in 1..4 {
        run::<(u64, u64), _>(&Heap::new(), &mut Place::in_memory(16 * MIB), shape(seed));
        run::<Items, _>(&Heap::new(), &mut Place::in_memory(16 * MIB), shape(seed));
        run::<Items, _>(&HybridLog::new(), &mut Place::in_memory(16 * MIB), shape(seed));
        run::<(u64, u64), _>(&WindowSegments::new(), &mut Place::in_memory(4 * MIB), shape(seed));
        run::<Items, _>(&WindowSegments::new(), &mut Place::in_memory(8 * MIB), shape(seed));
    }
}

#[test]
fn in_much_memory_with_checkpoints() {
    for seed in 10..13 {
        run::<Items, _>(&Heap::new(), &mut Place::simulated(16 * MIB, seed).0, shape(seed));
        run::<Items, _>(&HybridLog::new(), &mut Place::simulated(16 * MIB, seed).0, shape(seed));
        let layout = WindowSegments::new();
        run::<Items, _>(&layout, &mut Place::simulated(8 * MIB, seed).0, shape(seed));
        run::<(u64, u64), _>(&layout, &mut Place::simulated(8 * MIB, seed).0, shape(seed));
    }
}

#[test]
fn in_little_memory_on_a_simulated_device() {
    let (mut plain, mut owning) = (TableStats::default(), TableStats::default());
    for seed in 20..26 {
        let layout = HybridLog::new().page(4 * KIB);
        let little = |kib| Place::simulated(kib * KIB, seed).0;
        run::<(u64, u64), _>(&layout, &mut little(512), shape(seed));
        let wide = || Shape { keys: 1500, slices: 6, ..shape(seed) };
        plain.add(&run::<(u64, u64), _>(&tiny(), &mut little(192), wide()));
        owning.add(&run::<Items, _>(&tiny(), &mut little(256), wide()));
    }
    for stats in [plain, owning] {
        // Else nothing was tried.
        println!("{stats:?}");
        let TableStats { pages_flushed, cold_reads, rewritten, .. } = stats;
        let least = pages_flushed.min(cold_reads).min(rewritten);
        assert!(least > 20 && stats.prefetched_bytes > 1 << 16, "{stats:?}");
    }
}

#[test]
fn in_little_memory_in_a_directory_with_a_helper_thread() {
    for seed in 30..33 {
        let directory = tempfile::tempdir().unwrap();
        let shape = Shape { steps: 1200, ..shape(seed) };
        run::<Items, _>(&tiny(), &mut Place::real(320 * KIB, directory.path()), shape);
    }
}

#[test]
fn where_small_slices_share_runs() {
    let shape = |seed| Shape { steps: 1500, keys: 60, slices: 16, ..shape(seed) };
    let layout = tiny().pack_all();
    run::<(u64, u64), _>(&layout, &mut Place::simulated(2 * MIB, 50).0, shape(50));
    run::<Items, _>(&layout, &mut Place::simulated(4 * MIB, 51).0, shape(51));
    let directory = tempfile::tempdir().unwrap();
    let place = &mut Place::real(4 * MIB, directory.path());
    run::<Items, _>(&layout, place, Shape { steps: 800, ..shape(52) });
}

#[test]
fn with_few_keys_that_are_removed_and_come_again() {
    for seed in 40..46 {
        let shape = Shape { seed, steps: 2000, keys: 5, slices: 3, reopens: true };
        run::<Items, _>(&tiny(), &mut Place::simulated(320 * KIB, seed).0, shape);
    }
}
