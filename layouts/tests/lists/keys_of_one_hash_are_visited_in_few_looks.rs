//! Lists whose keys have one hash stand in a chain of blocks.
//!
//! What this catches: calls with little fuel that look at all lists of the chain again, or do more than their fuel;
//! elements that are missed or doubled because a table has grown, lists came or a visit failed between two calls, or
//! another visit was left half way. Work is counted: hashes that are asked for, and keys that are compared.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use alluvium_layouts::{Cursor, Heap, Lists};
use alluvium_pagestore::{Account, Error, ErrorKind, KeyHash, Time, hash_word};

use crate::common::{Dice, Ground, Model};
use crate::groups::{fold_group, in_order, remove_group};

thread_local! {
    static WORK: Cell<u64> = const { Cell::new(0) };
}

/// A key with a hash, which it may share with any number of others.
#[derive(Clone, Debug, Eq, PartialOrd, Ord, alluvium_derive::State)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Alike {
    hash: u64,
    n: u64,
}

impl KeyHash for Alike {
    fn key_hash(&self) -> u64 {
        WORK.set(WORK.get() + 1);
        self.hash
    }
}

impl PartialEq for Alike {
    fn eq(&self, other: &Self) -> bool {
        WORK.set(WORK.get() + 1);
        (self.hash, self.n) == (other.hash, other.n)
    }
}

const KEYS: u64 = 2000;
const LOOKS_PER_LIST_MAX: u64 = 40;
const BUCKET: Time = Time(10);

fn key(n: u64) -> Alike {
    Alike { hash: hash_word(5), n }
}

/// Opens lists without storage, and their account.
fn open() -> (<Heap as alluvium_layouts::ListsLayout<Alike, u64>>::Lists, Rc<Account>) {
    let mut ground = Ground::new(None, 64 << 20, false);
    ground.movable = true;
    ground.open::<Alike, u64, _>(&Heap::new()).unwrap()
}

/// What `call` asks for and compares.
fn work(call: impl FnOnce()) -> u64 {
    let before = WORK.get();
    call();
    WORK.get() - before
}

#[test]
fn of_lists_on_the_heap_with_hardly_any_fuel() {
    let (mut lists, account) = open();
    let appended = work(|| {
        for n in 0..KEYS {
            (0..=n % 3).for_each(|element| lists.append(BUCKET, &key(n), element).unwrap());
        }
    });
    // Two appends for each key, in two looks that compare it with half of all keys, and some more in the first window.
    assert!(appended <= 22 * KEYS * KEYS / 10, "{appended}");
    let (all, used) = (0..=u64::MAX, account.used());
    let (mut seen, mut elements, mut fails) = (BTreeSet::new(), 0, false);
    let looks = work(|| {
        let mut cursor = Cursor::default();
        while !cursor.done {
            let mut told = 0;
            fails = !fails;
            let visit = &mut |key: &Alike, from: u64, run: &[u64]| {
                assert_eq!(account.used(), used, "nothing is booked for lists of one hash");
                if fails {
                    return Err(Error::new(ErrorKind::Backpressure, "no more"));
                }
                assert!(run.iter().enumerate().all(|(n, element)| *element == from + n as u64));
                seen.insert(key.n);
                told += run.len() as u64;
                Ok(())
            };
            let visited = in_order(&mut lists).visit_hashes(BUCKET, &all, &mut cursor, 1, visit);
            assert!(told <= 1 && (visited.is_ok() || fails));
            elements += told;
        }
    });
    assert_eq!((seen.len() as u64, elements), (KEYS, (0..KEYS).map(|n| n % 3 + 1).sum()));
    assert!(looks <= LOOKS_PER_LIST_MAX * KEYS, "{looks} looks");
    let looks = work(|| {
        let mut cursor = Cursor::default();
        while !cursor.done {
            let before = lists.len();
            in_order(&mut lists).remove_hashes(BUCKET, &all, &mut cursor, 1).unwrap();
            assert!(before - lists.len() <= 3, "more than a list was removed");
        }
    });
    assert_eq!((lists.len(), lists.next_bucket(Time::MIN)), (0, None));
    assert!(looks <= LOOKS_PER_LIST_MAX * KEYS, "{looks} looks");
}

/// Of several hashes, the first of which many keys have, while others come: chains are split.
#[test]
fn while_other_keys_come() {
    let (mut lists, mut model, mut dice) = (open().0, Model::new(), Dice(3));
    let mut next = 0;
    let mut add = |lists: &mut _, model: &mut Model<Alike, u64>, hash: u64| {
        next += 1;
        let key = Alike { hash, n: next };
        for element in 0..=next % 3 {
            Lists::<Alike, u64>::append(lists, BUCKET, &key, element).unwrap();
            model.entry((BUCKET, key.clone())).or_default().push(element);
        }
    };
    // Lists that are visited, and others near them or anywhere.
    let hashes = [1 << 50, (1 << 50) + 1, 3 << 49];
    let asked = (1 << 50)..=(1 << 51) - 1;
    for _ in 0..900 {
        add(&mut lists, &mut model, hashes[dice.below(3) as usize]);
    }
    for round in 0..20 {
        let what = format!("round {round}");
        let mut meanwhile = |lists: &mut _, model: &mut Model<Alike, u64>| {
            let near = (1 << 51) + dice.below(1 << 40);
            let hash = if dice.below(2) == 0 { near } else { hash_word(dice.below(1 << 20)) };
            if !asked.contains(&hash) {
                (0..50).for_each(|_| add(lists, model, hash));
            }
        };
        let dice = &mut Dice(100 + round);
        fold_group(&mut lists, &mut model, (BUCKET, &asked), dice, &mut meanwhile, &what);
        // One that is left half way, before lists change.
        let mut cursor = Cursor::default();
        let fuel = 1 + dice.below(600) as usize;
        let visit = &mut |_: &Alike, _, _: &[u64]| Ok(());
        in_order(&mut lists).visit_hashes(BUCKET, &asked, &mut cursor, fuel, visit).unwrap();
        let some = hashes[dice.below(3) as usize];
        match round % 4 {
            3 => {
                let removed = (BUCKET, &(some..=some), 0);
                remove_group(&mut lists, &mut model, removed, dice, &mut meanwhile);
            }
            _ => (0..200).for_each(|_| add(&mut lists, &mut model, some)),
        }
        let longer: Vec<_> = model.keys().filter(|(_, key)| key.hash == some).cloned().collect();
        for at in longer.into_iter().filter(|_| dice.below(3) == 0) {
            lists.append(BUCKET, &at.1, 7).unwrap();
            model.entry(at).or_default().push(7);
        }
    }
}
