//! A checkpoint of lists on the heap goes in bounded steps, however long a list is, and within the
//! budget, however little is left of it.
//!
//! What this catches: a list that is written whole in one call, or as it was later; elements twice, or
//! in another order; copies and purged buckets that are not booked, or stay.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_layouts::{CheckpointOutcome, Heap, Lists};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{ErrorKind, Result, Time};

use crate::common::{Dice, Ground, Model, folded, folded_model, read};

fn ground(seed: u64, memory: u64) -> (Ground, Simulated) {
    let device = Simulated::new(seed, Faults::none());
    (Ground::new(Some(Arc::new(device.clone())), memory, false), device)
}

#[test]
fn a_long_list_is_written_a_record_at_a_time_as_it_was() {
    const LEN: u64 = 60_000;
    // What becomes of it after the third step, and what it then is.
    type Change = fn(&mut <Heap as alluvium_layouts::ListsLayout<u64, u64>>::Lists) -> Result<()>;
    let changes: [(Change, u64, u64); 4] = [
        (|lists| (0..9).try_for_each(|_| Ok(lists.append(Time(1), &7, 0)?)), LEN + 9, 0),
        (|lists| lists.clear_key(Time(1), &7), 0, 0),
        (|lists| lists.relocate(Time(1), Time(2), &7), 0, LEN + 1),
        (|lists| lists.purge(Time(2), 10).map(drop), 0, 0),
    ];
    for (number, (change, first, second)) in changes.into_iter().enumerate() {
        let (mut ground, device) = ground(1, 4 << 20);
        let (mut lists, account) = ground.open::<u64, u64, _>(&Heap::new()).unwrap();
        for n in 0..LEN {
            lists.append(Time(1), &7, n).unwrap();
        }
        lists.append(Time(2), &7, LEN).unwrap();
        let mut taken = ground.begin(&mut lists).unwrap();
        let (mut steps, mut written) = (0, 0);
        while !ground.advance(&mut lists, &mut taken).unwrap() {
            steps += 1;
            let now = device.stats().bytes_written;
            assert!(now - written <= 128 << 10, "{} bytes in a step", now - written);
            written = now;
            if steps == 3 {
                change(&mut lists).unwrap();
            }
        }
        assert!(steps >= 20, "{steps} steps");
        ground.decide(&mut lists, taken, CheckpointOutcome::Committed).unwrap();
        let len = |lists: &mut _, bucket| read::<u64, u64>(lists, bucket, &7).unwrap().len() as u64;
        assert_eq!(len(&mut lists, Time(1)), first, "change {number}");
        if second > 0 {
            assert_eq!(len(&mut lists, Time(2)), second, "change {number}");
        }
        drop(lists);
        assert_eq!(account.used(), 0, "change {number}");
        let (mut lists, _) = ground.open::<u64, u64, _>(&Heap::new()).unwrap();
        let restored = read::<u64, u64>(&mut lists, Time(1), &7).unwrap();
        assert!(restored.iter().copied().eq(0..LEN), "change {number}: {}", restored.len());
        assert_eq!(read::<u64, u64>(&mut lists, Time(2), &7).unwrap(), [LEN], "change {number}");
    }
}

/// A seeded change of both; what is refused has changed nothing.
fn change(
    lists: &mut impl Lists<u64, String>,
    model: &mut Model<u64, String>,
    dice: &mut Dice,
) -> Result<()> {
    let (time, key) = (Time(1 + dice.below(6) as i64), dice.below(40));
    let word = dice.next().to_string().repeat(dice.below(6) as usize);
    match dice.below(40) {
        0..=31 => {
            lists.append(time, &key, word.clone()).map_err(|rejected| {
                assert_eq!(rejected.value, word);
                rejected.error
            })?;
            model.entry((time, key)).or_default().push(word);
        }
        32..=35 => {
            lists.clear_key(time, &key)?;
            model.remove(&(time, key));
        }
        36..=38 => {
            let to = Time(time.0 + 1 + dice.below(3) as i64);
            lists.relocate(time, to, &key)?;
            if let Some(mut moved) = model.remove(&(time, key)) {
                let later = model.entry((to, key)).or_default();
                moved.append(later);
                *later = moved;
            }
        }
        _ if dice.below(4) == 0 => {
            while !lists.purge(time, 50)? {}
            model.retain(|(other, _), _| *other >= time);
        }
        _ => {}
    }
    Ok(())
}

#[test]
fn what_it_keeps_is_within_the_budget_and_what_it_takes_is_of_its_barrier() {
    let (mut taken_whole, mut given_up) = (0, 0);
    for seed in 0..60 {
        // Just enough for the writer and a little more, to plenty.
        let memory = (90 << 10) + (seed % 20) * 16 * 517;
        let (mut ground, _) = ground(seed, memory);
        let (mut lists, account) = ground.open::<u64, String, _>(&Heap::new()).unwrap();
        let (mut model, mut dice) = (BTreeMap::new(), Dice(seed));
        let step = |lists: &mut _, model: &mut _, dice: &mut _, when: &str| {
            match change(lists, model, dice) {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget, "{when}: {error:?}"),
            }
            let peak = account.stats().peak;
            assert!(peak <= memory, "{when}: {peak} of {memory}");
        };
        for round in 0..6 {
            let when = format!("seed {seed}, round {round}");
            for _ in 0..150 {
                step(&mut lists, &mut model, &mut dice, &when);
            }
            let then = model.clone();
            let all = Time::MIN..Time::MAX;
            let Ok(mut taken) = ground.begin(&mut lists) else {
                given_up += 1;
                give_up(&mut lists);
                continue;
            };
            let ended = loop {
                for _ in 0..dice.below(40) {
                    step(&mut lists, &mut model, &mut dice, &when);
                }
                match ground.advance(&mut lists, &mut taken) {
                    Ok(true) => break true,
                    Ok(false) => {}
                    Err(error) => {
                        let kinds = [ErrorKind::OverBudget, ErrorKind::Overtaken];
                        assert!(kinds.contains(&error.kind()), "{when}: {error:?}");
                        break false;
                    }
                }
            };
            if !ended {
                given_up += 1;
                give_up(&mut lists);
                continue;
            }
            taken_whole += 1;
            ground.decide(&mut lists, taken, CheckpointOutcome::Committed).unwrap();
            let found = folded(&mut lists, all.clone(), 9).unwrap();
            assert_eq!(found, folded_model(&model, &all), "{when}");
            let beside = ground.open_beside::<u64, String, _>(&Heap::new());
            let (mut restored, other) = beside.unwrap();
            for ((time, key), wanted) in &then {
                assert_eq!(read(&mut restored, *time, key).unwrap(), *wanted, "{when}");
            }
            assert_eq!(folded(&mut restored, all.clone(), 50).unwrap(), folded_model(&then, &all));
            drop(restored);
            assert_eq!(other.used(), 0, "{when}");
        }
        drop(lists);
        assert_eq!(account.used(), 0, "seed {seed}");
    }
    // Lists leave what a checkpoint takes free, so that few are given up.
    assert!(taken_whole > 100 && given_up > 0, "{taken_whole} taken, {given_up} given up");
}

fn give_up(lists: &mut impl Lists<u64, String>) {
    lists.checkpointed(CheckpointOutcome::Abandoned);
}
