//! Many slices on storage are folded where memory has room for an image of one of them: each is walked after the
//! other, each key comes once, and a fold goes on where a visit failed.

use std::collections::BTreeMap;

use alluvium_layouts::{Cursor, Panes, Upkeep, WindowSegments};
use alluvium_pagestore::{Error, ErrorKind, KIB, MIB, MemoryKind, Result, Time};

use super::common::{Accumulator, Items, Model, Place, Random, fold, put};

const SLICES: i64 = 40;
const IMAGE: u64 = 8 * KIB;

/// Slices in one or two runs each, with keys that were removed in between, and some of it in memory.
fn fill<A: Accumulator>(panes: &mut impl Panes<u64, A>, seed: u64) -> Model {
    let (mut model, mut random) = (Model::default(), Random(seed << 32));
    let update = |panes: &mut _, model: &mut Model, slice: i64, key: u64, item: u32| {
        put::<A>(panes, slice, key, item).unwrap();
        model.update(slice, key, item);
    };
    for round in 0..2u32 {
        for slice in 0..SLICES {
            for item in 0..60 {
                update(panes, &mut model, slice, random.below(400), 1000 * round + item);
            }
            panes.reclaim(MIB).unwrap();
            let key = random.below(400);
            panes.remove(Time(slice), &key).unwrap();
            model.0.remove(&(slice, key));
        }
    }
    for item in 0..100 {
        let slice = random.below(SLICES as u64) as i64;
        update(panes, &mut model, slice, random.below(400), 5000 + item);
    }
    model
}

/// Folds of which some visits fail; each key comes once.
fn fold_with_failures<A: Accumulator>(
    panes: &mut impl Panes<u64, A>,
    fuel: usize,
) -> Result<BTreeMap<u64, A>> {
    let (mut cursor, mut found, mut tries) = (Cursor::default(), BTreeMap::new(), 0);
    while !cursor.done {
        let folded = panes.fold(Time(0)..Time(SLICES), &mut cursor, fuel, &mut |key, sum| {
            tries += 1;
            if tries % 7 == 0 {
                return Err(Error::new(ErrorKind::Input, "planned"));
            }
            assert_eq!(found.insert(*key, sum), None, "key {key} comes twice");
            Ok(())
        });
        match folded {
            Err(error) if error.kind() == ErrorKind::Input => {}
            folded => folded?,
        }
    }
    assert!(tries > 50, "{tries}");
    Ok(found)
}

fn in_little_memory<A: Accumulator>(seed: u64, free: u64) {
    let (mut place, _) = Place::simulated(MIB, seed);
    let layout = WindowSegments::new().image(IMAGE).memory(MIB);
    let mut panes = place.open::<A, _>(&layout);
    let model = fill::<A>(&mut panes, seed);
    // All there is goes to storage, and others have the memory.
    while panes.reclaim(MIB).unwrap() > 0 {}
    let held = place.account.available() - free;
    place.account.charge(MemoryKind::Buffers, held);
    let expected = model.fold::<A>(0..SLICES);
    for fuel in [1, 50, 1001, 100_000] {
        let when = format!("seed {seed}, fuel {fuel}");
        assert_eq!(fold::<A>(&mut panes, 0..SLICES, fuel).expect(&when), expected, "{when}");
        assert_eq!(fold_with_failures::<A>(&mut panes, fuel).expect(&when), expected, "{when}");
        assert!(place.account.used() <= MIB, "{when}: {:?}", place.account);
        assert!(place.account.available() < SLICES as u64 * IMAGE / 4, "{when}");
    }
    place.account.release(MemoryKind::Buffers, held);
    let used = place.account.used();
    assert_eq!(fold::<A>(&mut panes, 0..SLICES, 1000).unwrap(), expected, "seed {seed}");
    assert_eq!(place.account.used(), used, "seed {seed}");
    drop(panes);
    assert_eq!(place.account.used(), 0);
}

#[test]
fn slices_are_folded_with_memory_for_one_image() {
    for seed in 1..4 {
        in_little_memory::<(u64, u64)>(seed, 24 * KIB);
        in_little_memory::<Items>(seed, 32 * KIB);
    }
}
