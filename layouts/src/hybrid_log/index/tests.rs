//! The index against a map: through growth, collisions and a budget that is used up.

use std::collections::BTreeMap;

use alluvium_pagestore::{Account, ErrorKind};
use proptest::prelude::*;

use super::{Index, IndexHash};
use crate::hybrid_log::Address;
use crate::hybrid_log::address::StoredAt;

fn index(buckets: usize) -> Index {
    Index::new(Account::root(1 << 30), buckets, None).unwrap()
}

fn hash(key: u64) -> IndexHash {
    let hash = alluvium_pagestore::hash_word(key);
    IndexHash::of(hash, hash)
}

/// What is imported comes so: the first of four million keys were all taken for alike, and kept
/// in a list until that was full.
#[test]
#[cfg_attr(miri, ignore = "many keys")]
fn keys_in_the_order_of_their_hashes_are_no_strays_if_they_are_expected() {
    let keys = 60_000u64;
    let mut hashes: Vec<u64> = (0..keys).map(alluvium_pagestore::hash_word).collect();
    hashes.sort_unstable();
    let most_strays = |expected: u64| {
        let mut index = index(8);
        index.expect(expected);
        let mut most = 0;
        for (n, hash) in hashes.iter().enumerate() {
            let hash = IndexHash::of(*hash, *hash);
            index.prepare(hash).unwrap();
            index.insert(hash, Address(n as u64));
            most = most.max(index.strays.len());
        }
        for (n, hash) in hashes.iter().enumerate() {
            let hash = IndexHash::of(*hash, *hash);
            assert!(index.find(hash, |a| a == Address(n as u64)).is_some());
        }
        most
    };
    let (expected, not) = (most_strays(keys), most_strays(0));
    assert!(expected < 1000 && not > 10 * expected, "{expected} and {not} strays");
}

/// Every entry is found, nothing else is, and a visit sees each once.
fn check(index: &Index, model: &BTreeMap<u64, (IndexHash, u64)>) {
    for (hash, address) in model.values() {
        assert!(index.find(*hash, |a| a == Address(*address)).is_some(), "{hash:?}");
    }
    let mut seen = Vec::new();
    let mut from = Some(0);
    while let Some(prefix) = from {
        from = index.visit(prefix, |address| seen.push(address.0));
    }
    seen.sort_unstable();
    let mut expected: Vec<_> = model.values().map(|(_, address)| *address).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    assert_eq!(index.len(), model.len() as u64);
}

fn grow(index: &mut Index, keys: u64, hash: impl Fn(u64) -> IndexHash) {
    let mut model = BTreeMap::new();
    for key in 0..keys {
        let splits = index.splits();
        index.prepare(hash(key)).unwrap();
        assert!(index.splits() - splits <= 1, "an insert splits one segment at most");
        index.insert(hash(key), Address(key));
        model.insert(key, (hash(key), key));
        if index.splits() != splits && keys < 5000 {
            check(index, &model);
        }
    }
    check(index, &model);
    for key in (0..keys).step_by(2) {
        let (at, _) = index.find(hash(key), |a| a == Address(key)).unwrap();
        index.remove(at);
        model.remove(&key);
    }
    check(index, &model);
}

#[test]
fn entries_survive_growth_whatever_the_parameters() {
    if cfg!(miri) {
        grow(&mut index(8), 70, hash);
        return;
    }
    for buckets in [8, 16, 256] {
        grow(&mut index(buckets), 4000, hash);
    }
    grow(&mut index(256), 300_000, hash);
}

#[test]
#[cfg_attr(miri, ignore = "many entries; joins are in another test")]
fn siblings_with_few_entries_become_one_segment_and_give_memory_back() {
    for (buckets, keys) in [(8, if cfg!(miri) { 300 } else { 5_000 }), (256, 100_000)] {
        if cfg!(miri) && buckets > 8 {
            continue;
        }
        let mut index = index(buckets);
        let (mut model, most) = (BTreeMap::new(), index.account.used());
        for round in 0..3 {
            for key in 0..keys {
                index.prepare(hash(key)).unwrap();
                index.insert(hash(key), Address(key));
                model.insert(key, (hash(key), key));
            }
            let full = (index.segments(), index.account.used());
            assert_eq!(index.shrink(full.0), 0, "round {round}: they are full");
            // Some are left, of which all are found while segments are joined.
            for key in (0..keys).filter(|key| key % 10 != round) {
                let (at, _) = index.find(hash(key), |a| a == Address(key)).unwrap();
                index.remove(at);
                model.remove(&key);
            }
            let mut given = 0;
            for nth in 0..20 {
                given += index.shrink(full.0 / 4 + 1);
                if buckets == 8 || nth == 19 {
                    check(&index, &model);
                }
            }
            assert!(3 * index.segments() < full.0, "{} of {}", index.segments(), full.0);
            assert_eq!(full.1 - index.account.used(), given, "what is given back is booked");
            for key in (0..keys).filter(|key| key % 10 == round) {
                let (at, _) = index.find(hash(key), |a| a == Address(key)).unwrap();
                index.remove(at);
                model.remove(&key);
            }
            while index.shrink(100) > 0 {}
            check(&index, &model);
        }
        assert_eq!(index.segments(), 1);
        let account = index.account.clone();
        index.clear();
        assert!(account.used() <= most + 64 * 1024, "{} of {most}", account.used());
    }
}

#[test]
#[cfg_attr(miri, ignore = "many entries; joins are in another test")]
fn segments_for_which_none_can_be_joined_are_looked_at_once() {
    let mut index = index(8);
    let keys = if cfg!(miri) { 400 } else { 20_000 };
    for key in 0..keys {
        index.prepare(hash(key)).unwrap();
        index.insert(hash(key), Address(key));
    }
    let segments = index.segments();
    assert!(!index.shrink_to_split(10) && !index.is_sparse());
    assert!(index.looked_at() <= 20, "{}", index.looked_at());
    assert!(!index.shrink_to_split(usize::MAX));
    let looked_at = index.looked_at();
    assert!(looked_at <= 2 * segments as u64, "{looked_at}");
    for _ in 0..10 {
        assert!(!index.shrink_to_split(usize::MAX));
    }
    assert_eq!(index.looked_at(), looked_at, "nothing has gone");
    // Those of a part of the hashes go: there is room for as many segments elsewhere.
    let is_first = |key: &u64| hash(*key).0 < u32::MAX / 4;
    let gone: Vec<u64> = (0..keys).filter(is_first).collect();
    for key in &gone {
        let (at, _) = index.find(hash(*key), |a| a == Address(*key)).unwrap();
        index.remove(at);
    }
    let mut joined = 0;
    while index.shrink_to_split(usize::MAX) {
        joined += 1;
    }
    assert_eq!(index.segments(), segments - joined);
    assert!(joined > segments / 5, "{joined} of {segments}");
    let looked_at = index.looked_at();
    assert!(!index.shrink_to_split(usize::MAX));
    assert_eq!(index.looked_at(), looked_at);
    for key in (0..keys).filter(|key| !is_first(key)) {
        assert!(index.find(hash(key), |a| a == Address(key)).is_some());
    }
}

fn remove(index: &mut Index, keys: impl Iterator<Item = u64>) {
    for key in keys {
        let (at, _) = index.find(hash(key), |a| a == Address(key)).unwrap();
        index.remove(at);
    }
}

#[test]
fn segments_are_looked_at_again_when_as_many_entries_have_come_as_have_gone() {
    let mut index = index(8);
    let keys = if cfg!(miri) { 400 } else { 20_000 };
    let add = |index: &mut Index, key: u64| {
        index.prepare(hash(key)).unwrap();
        index.insert(hash(key), Address(key));
    };
    (0..keys).for_each(|key| add(&mut index, key));
    assert!(!index.shrink_to_split(usize::MAX));
    // All entries have the upper half of the hashes then, and the segments of the lower half none.
    let is_lower = |key: &u64| hash(*key).0 < u32::MAX / 2;
    remove(&mut index, (0..keys).filter(is_lower));
    let others = (keys..).filter(|key| !is_lower(key));
    others.take((keys / 2) as usize).for_each(|key| add(&mut index, key));
    assert!(index.len() >= keys / 20 * 19);
    let (segments, mut joined) = (index.segments(), 0);
    while index.shrink_to_split(usize::MAX) {
        joined += 1;
    }
    assert!(joined > segments / 5, "{joined} of {segments}");
}

#[test]
fn segments_that_lose_their_entries_behind_a_pass_are_looked_at_again() {
    let mut index = index(8);
    let keys = if cfg!(miri) { 1_600 } else { 20_000 };
    for key in 0..keys {
        index.prepare(hash(key)).unwrap();
        index.insert(hash(key), Address(key));
    }
    // All but the last are looked at, then what has gone is among these.
    assert!(!index.shrink_to_split(index.segments() - 10));
    remove(&mut index, (0..keys).filter(|key| hash(*key).0 < u32::MAX / 4));
    assert!(!index.shrink_to_split(10), "the last have their entries");
    assert!(index.shrink_to_split(usize::MAX));
    // Nor is a pass over with segments that others have joined.
    while index.shrink_to_split(usize::MAX) {}
    let (segments, is_kept) = (index.segments(), |key: &u64| hash(*key).0 >= u32::MAX / 4);
    // A few go in all segments, so that a pass begins, of which some may be joined.
    remove(&mut index, (0..keys).filter(is_kept).step_by(32));
    while index.looked_in_vain == 0 {
        index.shrink_to_split(index.segments() / 4 * 3);
    }
    let is_last = |key: &u64| hash(*key).0 > u32::MAX / 4 * 3;
    let left = || (0..keys).filter(is_kept).enumerate().filter(|(nth, _)| nth % 32 != 0);
    let left = || left().map(|(_, key)| key);
    remove(&mut index, left().filter(is_last));
    while index.shrink(segments) > 0 {}
    assert!(index.segments() < segments / 4 * 3 || cfg!(miri));
    remove(&mut index, left().filter(|key| !is_last(key)));
    assert!(index.shrink_to_split(usize::MAX));
}

#[test]
fn keys_of_one_hash_split_no_segment() {
    for expected in [0, 1 << 24] {
        let account = Account::root(Index::memory_bytes_min(8) + (16 << 10));
        let mut index = Index::new(account, 8, None).unwrap();
        index.expect(expected);
        // A few others first, which are elsewhere or in the same buckets.
        for key in 0..200 {
            let hash = if key < 10 { hash(key) } else { IndexHash::new(0x1234, 0) };
            index.prepare(hash).unwrap();
            index.insert(hash, Address(key));
        }
        assert!(index.splits() <= 16, "{} for {expected}", index.splits());
        for key in 10..200 {
            assert!(index.find(IndexHash::new(0x1234, 0), |a| a == Address(key)).is_some());
        }
    }
}

#[test]
fn strays_are_found_when_segments_are_joined() {
    let keys = if cfg!(miri) { 600 } else { 30_000 };
    let mut hashes: Vec<(IndexHash, u64)> = (0..keys).map(|key| (hash(key), key)).collect();
    hashes.sort_unstable_by_key(|(hash, _)| hash.0);
    let (mut index, mut model) = (index(8), BTreeMap::new());
    for (hash, key) in &hashes {
        index.prepare(*hash).unwrap();
        index.insert(*hash, Address(*key));
        model.insert(*key, (*hash, *key));
    }
    assert!(index.strays.len() > 30 || cfg!(miri), "{}", index.strays.len());
    for kept in [3, 16] {
        let gone: Vec<u64> = model.keys().copied().filter(|key| key % kept != 0).collect();
        for key in gone {
            let (hash, _) = model.remove(&key).unwrap();
            let (at, _) = index.find(hash, |a| a == Address(key)).unwrap();
            // Most strays stay.
            match at.stray && key % 4 != 0 {
                true => _ = model.insert(key, (hash, key)),
                false => index.remove(at),
            }
        }
        let before = index.segments();
        for _ in 0..before {
            index.shrink(3);
        }
        assert!(index.segments() < before && !index.strays.is_empty() || cfg!(miri));
        check(&index, &model);
    }
}

#[test]
fn a_visit_sees_each_entry_once_while_segments_are_split_and_joined() {
    let mut index = index(8);
    let keys = if cfg!(miri) { 200 } else { 4_000 };
    let add = |index: &mut Index, key: u64| {
        index.prepare(hash(key)).unwrap();
        index.insert(hash(key), Address(key));
    };
    (0..keys).for_each(|key| add(&mut index, key));
    for round in 0..6 {
        let (mut seen, mut from, mut other) = (Vec::new(), Some(0), keys);
        while let Some(prefix) = from {
            from = index.visit(prefix, |address| seen.push(address.0));
            // Others come and go meanwhile.
            if round % 2 == 0 {
                for key in (0..keys).filter(|key| key % 8 != 0) {
                    if let Some((at, _)) = index.find(hash(key), |a| a == Address(key)) {
                        index.remove(at);
                    }
                }
                index.shrink(3);
            } else {
                (0..40).for_each(|nth| add(&mut index, other + nth));
                other += 40;
            }
        }
        let mut stay: Vec<u64> =
            seen.iter().copied().filter(|key| *key < keys && key % 8 == 0).collect();
        stay.sort_unstable();
        assert!(stay.into_iter().eq((0..keys).step_by(8)), "round {round}");
        seen.sort_unstable();
        seen.dedup();
        for key in keys..other {
            let (at, _) = index.find(hash(key), |a| a == Address(key)).unwrap();
            index.remove(at);
        }
        (0..keys).filter(|key| key % 8 != 0).for_each(|key| {
            if index.find(hash(key), |a| a == Address(key)).is_none() {
                add(&mut index, key);
            }
        });
    }
}

#[test]
fn entries_of_records_on_storage_are_counted() {
    let mut index = index(8);
    let mut model: Vec<(IndexHash, Address)> = Vec::new();
    let mut random = 88_172_645_463_325_252_u64;
    for step in 0..if cfg!(miri) { 200 } else { 20_000 } {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (pick, coin) = ((random >> 33) as usize, random >> 20 & 1);
        let at = StoredAt { segment: 3, grain: step + 1 };
        let address = if coin == 0 { Address(step.into()) } else { Address::stored(at) };
        match pick % 4 {
            0 | 1 => {
                // Some of one hash, so that there are strays.
                let hash = if step % 3 == 0 { IndexHash(5) } else { hash(step.into()) };
                index.prepare(hash).unwrap();
                index.insert(hash, address);
                model.push((hash, address));
            }
            2 if !model.is_empty() => {
                let nth = pick / 4 % model.len();
                let (hash, old) = &mut model[nth];
                assert!(index.replace(*hash, *old, address));
                *old = address;
            }
            3 if !model.is_empty() => {
                let (hash, address) = model.swap_remove(pick / 4 % model.len());
                let (at, _) = index.find(hash, |a| a == address).unwrap();
                index.remove(at);
            }
            _ => {}
        }
        let stored = model.iter().filter(|(_, address)| !address.is_memory()).count();
        assert_eq!(index.stored(), stored as u64, "step {step}");
    }
    index.clear();
    assert_eq!(index.stored(), 0);
}

#[test]
fn hashes_that_collide_are_kept_apart_by_address() {
    let keys = if cfg!(miri) { 40 } else { 500 };
    grow(&mut index(8), keys, |_| IndexHash(0x1234_5678));
    grow(&mut index(8), keys, |key| IndexHash((key as u32 & 1) << 31));
    grow(&mut index(8), keys, |key| IndexHash((key as u32 & 1) << 9));
}

#[test]
#[cfg_attr(miri, ignore = "a million keys")]
fn an_index_costs_11_to_21_bytes_a_key() {
    let mut index = index(256);
    let mut worst: f64 = 0.0;
    for key in 0..1_000_000 {
        index.prepare(hash(key)).unwrap();
        index.insert(hash(key), Address(key));
        if key > 200_000 {
            worst = worst.max(index.account.used() as f64 / key as f64);
        }
    }
    let bytes = index.account.used() as f64 / 1e6;
    println!("{bytes:.1} bytes a key at 1 M keys, {worst:.1} at worst");
    assert!(worst < 22.0, "{bytes} {worst}");
}

#[test]
fn a_split_that_does_not_fit_the_budget_changes_nothing() {
    let account = Account::root(Index::memory_bytes_min(16) + 1000);
    let mut index = Index::new(account, 16, None).unwrap();
    let mut model = BTreeMap::new();
    for key in 0..400 {
        if let Err(refused) = index.prepare(hash(key)) {
            assert_eq!(refused.kind(), ErrorKind::OverBudget);
            assert!(refused.to_string().starts_with("index needs "), "{refused}");
            check(&index, &model);
            return;
        }
        index.insert(hash(key), Address(key));
        model.insert(key, (hash(key), key));
    }
    panic!("16 buckets hold no 400 entries");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 }))]
    #[test]
    fn random_histories_match_a_map(
        steps in prop::collection::vec(
            (0u64..400, 0..3u8),
            1..if cfg!(miri) { 80 } else { 1500 },
        ),
    ) {
        let mut index = index(8);
        let mut model = BTreeMap::new();
        for (key, what) in steps {
            let found = index.find(hash(key), |a| a == Address(key));
            prop_assert_eq!(found.is_some(), model.contains_key(&key));
            match (what, found) {
                (0, Some((at, _))) => {
                    index.remove(at);
                    model.remove(&key);
                }
                (_, None) => {
                    index.prepare(hash(key)).unwrap();
                    index.insert(hash(key), Address(key));
                    model.insert(key, (hash(key), key));
                }
                _ => {}
            }
        }
        check(&index, &model);
    }
}
