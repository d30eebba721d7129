//! Lists whose keys have one hash stand side by side, and a call looks at those before the ones that it goes on with.
//! Calls with little fuel must not do that for each list anew: looks are counted, by the hashes that are asked for.

use std::cell::Cell;
use std::collections::BTreeSet;

use alluvium_layouts::{Cursor, Heap, Lists};
use alluvium_pagestore::{KeyHash, Time};

use crate::common::Ground;
use crate::groups::in_order;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// A key whose hash is that of all others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Alike(u64);

impl KeyHash for Alike {
    fn key_hash(&self) -> u64 {
        ASKED.set(ASKED.get() + 1);
        alluvium_pagestore::hash_word(5)
    }
}

const KEYS: u64 = 2000;
const LOOKS_PER_LIST_MAX: u64 = 40;
const BUCKET: Time = Time(10);

/// What `call` asks for.
fn asked(call: impl FnOnce()) -> u64 {
    let before = ASKED.get();
    call();
    ASKED.get() - before
}

#[test]
fn of_lists_on_the_heap_with_hardly_any_fuel() {
    let mut ground = Ground::new(None, 64 << 20, false);
    ground.movable = true;
    let (mut lists, _) = ground.open::<Alike, u64, _>(&Heap::new()).unwrap();
    for key in 0..KEYS {
        for n in 0..=key % 3 {
            lists.append(BUCKET, &Alike(key), n).unwrap();
        }
    }
    let all = 0..=u64::MAX;
    let (mut seen, mut elements, mut calls) = (BTreeSet::new(), 0, 0);
    let looks = asked(|| {
        let mut cursor = Cursor::default();
        while !cursor.done {
            calls += 1;
            let visit = &mut |key: &Alike, from: u64, run: &[u64]| {
                assert!(run.iter().enumerate().all(|(n, element)| *element == from + n as u64));
                seen.insert(key.0);
                elements += run.len() as u64;
                Ok(())
            };
            in_order(&mut lists).visit_hashes(BUCKET, &all, &mut cursor, 1, visit).unwrap();
        }
    });
    assert_eq!((seen.len() as u64, elements), (KEYS, (0..KEYS).map(|key| key % 3 + 1).sum()));
    assert!(looks <= LOOKS_PER_LIST_MAX * KEYS, "{looks} looks, {calls} calls");
    let mut calls = 0;
    let looks = asked(|| {
        let mut cursor = Cursor::default();
        while !cursor.done {
            calls += 1;
            in_order(&mut lists).remove_hashes(BUCKET, &all, &mut cursor, 1).unwrap();
        }
    });
    assert_eq!((lists.len(), lists.next_bucket(Time::MIN)), (0, None));
    assert!(looks <= LOOKS_PER_LIST_MAX * KEYS, "{looks} looks, {calls} calls");
}
