//! A batch of updates that ends early, because a closure panics or there is no more memory, has been
//! applied as far as it says, and leaves nothing else behind.

use std::panic::{AssertUnwindSafe, catch_unwind};

use alluvium_layouts::{BatchError, Heap, HybridLog, Panes, PanesLayout, WindowSegments};
use alluvium_pagestore::{KIB, MIB, Time};

use super::common::{Items, Model, Place, Random, fold, purge};

type Item = (Time, u64, u32);

fn update(
    panes: &mut impl Panes<u64, Items>,
    batch: &[Item],
    mut may: impl FnMut(&Item),
) -> Result<(), BatchError> {
    fn place_of((slice, key, _): &Item) -> (Time, &u64) {
        (*slice, key)
    }
    let init = |item: &Item| {
        may(item);
        Items::new()
    };
    panes.update_batch(batch, place_of, init, |item, sum| sum.push(item.2))
}

fn items(random: &mut Random, count: u32) -> Vec<Item> {
    (0..count).map(|item| (Time(random.below(3) as i64), random.below(400), item)).collect()
}

fn panics<L: PanesLayout<u64, Items>>(layout: &L) {
    let mut place = Place::in_memory(16 * MIB);
    let mut panes = place.open::<Items, L>(layout);
    let (mut model, mut random, mut panicked) = (Model::default(), Random(3), 0);
    for round in 0..40 {
        let batch = items(&mut random, 1 + round * 5);
        let from = random.below(batch.len() as u64) as u32;
        let mut stopped = None;
        let run = AssertUnwindSafe(|| {
            update(&mut panes, &batch, |item| {
                if item.2 >= from {
                    stopped = Some(item.2);
                    std::panic::resume_unwind(Box::new("planned"));
                }
            })
        });
        let applied = match catch_unwind(run) {
            Ok(done) => {
                done.unwrap();
                batch.len() as u32
            }
            Err(_) => {
                panicked += 1;
                stopped.unwrap()
            }
        };
        for (slice, key, item) in &batch[..applied as usize] {
            model.update(slice.0, *key, *item);
        }
        assert_eq!(fold::<Items>(&mut panes, 0..3, 100).unwrap(), model.fold::<Items>(0..3));
        if round % 10 == 9 {
            purge::<Items>(&mut panes, 3, 50);
            assert_eq!(panes.len(), 0, "keys without accumulators are left");
            model = Model::default();
        }
    }
    assert!(panicked > 20, "{panicked}");
    drop(panes);
    assert_eq!(place.account.used(), 0);
}

#[test]
fn because_a_closure_panics() {
    panics(&Heap::new());
    panics(&HybridLog::new());
}

fn memory_ends<L: PanesLayout<u64, Items>>(layout: &L, memory: u64) {
    let mut place = Place::in_memory(memory);
    let mut panes = place.open::<Items, L>(layout);
    let (mut model, mut random, mut failed) = (Model::default(), Random(4), 0);
    for round in 0..3000u32 {
        let batch: Vec<Item> = (0..90)
            .map(|item| (Time(random.below(3) as i64), random.below(1 << 40), item + round))
            .collect();
        let applied = match update(&mut panes, &batch, |_| ()) {
            Ok(()) => batch.len(),
            Err(error) => {
                failed += 1;
                error.applied
            }
        };
        for (slice, key, item) in &batch[..applied] {
            model.update(slice.0, *key, *item);
        }
        assert!(place.account.used() <= memory, "{:?}", place.account);
        if failed == 3 {
            break;
        }
    }
    assert_eq!(failed, 3, "the memory did not end");
    assert_eq!(fold::<Items>(&mut panes, 0..3, 100).unwrap(), model.fold::<Items>(0..3));
    purge::<Items>(&mut panes, 3, 1000);
    assert_eq!(panes.len(), 0);
    drop(panes);
    assert_eq!(place.account.used(), 0);
}

#[test]
fn because_memory_ends() {
    for extra in [0, 1000, 3000, 7777] {
        memory_ends(&Heap::new(), 300 * KIB + extra);
        memory_ends(&HybridLog::new(), 600 * KIB + extra);
        memory_ends(&WindowSegments::new(), 400 * KIB + extra);
    }
}
