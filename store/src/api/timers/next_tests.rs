//! The next timers beside a sorted set of all, with passes that see them in any order.

use std::collections::BTreeSet;

use super::*;

type Set = NextTimers<u64, ()>;

fn timer(at: i64, key: u64) -> PendingTimer<u64, ()> {
    PendingTimer { at: Time(at), key, namespace: () }
}

/// A pass that ends with this step, over all, the last first.
fn pass(next: &mut Set, all: &BTreeSet<PendingTimer<u64, ()>>) -> Result<()> {
    let cursor = next.begin_step(all.len());
    all.iter().rev().for_each(|timer| next.look_at(timer, || true));
    next.end_step(Cursor { done: true, ..cursor })
}

/// Sets a timer at each time before this one, as far as there is room.
fn set_before(next: &mut Set, end: i64) {
    for at in 0..end {
        if next.admits(&timer(at, 0)) {
            next.insert(timer(at, 0));
        }
    }
}

fn open(memory: u64, is_empty: bool) -> (Rc<Account>, Set) {
    let account = Account::root(memory);
    let next = Set::open(account.clone(), is_empty).unwrap();
    (account, next)
}

#[test]
fn of_many_timers_the_first_ones_are_known_and_all_come_in_order() {
    let (account, mut next) = open(64 << 10, true);
    let mut all = BTreeSet::new();
    for n in 0..10_000u64 {
        let timer = timer((n * 7919 % 100) as i64, n);
        if next.admits(&timer) {
            next.insert(timer.clone());
        }
        all.insert(timer);
    }
    assert!(next.len() > 100 && next.len() < 1000, "{}", next.len());
    let mut passes = 0;
    while let Some(first) = all.first().cloned() {
        match next.known(None) {
            Known::Due => {
                assert_eq!(next.pop(), Some(first.clone()));
                all.remove(&first);
            }
            Known::Unknown => {
                pass(&mut next, &all).unwrap();
                passes += 1;
            }
            Known::NoneDue => panic!("{} are left", all.len()),
        }
        assert!(account.used() <= 8 << 10, "{}", account.used());
    }
    assert!((10..100).contains(&passes), "{passes} passes");
    assert_eq!(next.counts().passes, passes);
    assert_eq!(next.known(None), Known::NoneDue);
    drop(next);
    assert_eq!(account.used(), 0);
}

#[test]
fn what_is_set_while_a_pass_goes_on_is_kept_where_the_pass_has_been() {
    let (_, mut next) = open(1 << 20, false);
    let cursor = next.begin_step(1);
    next.look_at(&timer(5, 1), || true);
    next.end_step(Cursor { done: false, ..cursor }).unwrap();
    assert_eq!(next.known(None), Known::Unknown);
    assert!(next.admits(&timer(3, 2)));
    next.insert(timer(3, 2));
    next.remove(&timer(5, 1));
    assert_eq!(next.known(Some(Time(9))), Known::Unknown, "the pass is not over");
    let cursor = next.begin_step(1);
    next.look_at(&timer(4, 3), || true);
    next.look_at(&timer(1, 4), || false);
    next.end_step(Cursor { done: true, ..cursor }).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| next.pop()).collect();
    assert_eq!(all, [timer(3, 2), timer(4, 3)]);
}

#[test]
fn none_is_due_where_the_bound_is_behind_the_watermark() {
    let (_, mut next) = open(64 << 10, true);
    set_before(&mut next, 2000);
    let bound = next.len() as i64;
    assert!(bound < 2000);
    (0..bound).for_each(|at| assert_eq!(next.pop(), Some(timer(at, 0))));
    assert_eq!(next.earliest(), Some(Time(bound)));
    assert_eq!(next.known(Some(Time(bound))), Known::NoneDue);
    assert_eq!(next.known(Some(Time(bound + 1))), Known::Unknown);
    assert_eq!(next.known(None), Known::Unknown);
}

#[test]
fn the_last_timers_give_way_where_others_lack_memory() {
    let (account, mut next) = open(1 << 20, true);
    set_before(&mut next, 6000);
    let mut ways = 0;
    loop {
        let (kept, used) = (next.len(), account.used());
        if !next.give_way() {
            break;
        }
        ways += 1;
        assert!(next.len() < kept && account.used() < used && next.len() > 50);
        let after = next.len() as i64;
        assert!(!next.admits(&timer(after, 0)), "it has just gone");
        assert_eq!(next.first(), Some(&timer(0, 0)));
    }
    assert!(ways > 2, "{ways}");
    let kept = next.len() as i64;
    (0..kept).for_each(|at| assert_eq!(next.pop(), Some(timer(at, 0))));
    assert_eq!(next.earliest(), Some(Time(kept)));
}

#[test]
fn after_changes_elsewhere_nothing_is_known() {
    let (_, mut next) = open(1 << 20, true);
    assert!(next.admits(&timer(1, 1)));
    next.insert(timer(1, 1));
    next.refresh((0, 0));
    assert_eq!(next.known(None), Known::Due);
    for number in [(1, 0), (1, 1)] {
        next.refresh(number);
        assert_eq!((next.known(None), next.len()), (Known::Unknown, 0));
        pass(&mut next, &[timer(1, 1)].into()).unwrap();
        assert_eq!(next.known(None), Known::Due);
    }
}

#[test]
fn a_timer_that_memory_has_no_room_for_is_told_and_comes_when_there_is() {
    let account = Account::root(256 << 10);
    let mut next = NextTimers::<String, ()>::open(account.clone(), false).unwrap();
    let long = |at: i64| PendingTimer { at: Time(at), key: "k".repeat(100 << 10), namespace: () };
    let all = [long(1), long(2)];
    account.charge(MemoryKind::Pages, 192 << 10);
    let pass = |next: &mut NextTimers<String, ()>| {
        let cursor = next.begin_step(2);
        all.iter().rev().for_each(|timer| next.look_at(timer, || true));
        next.end_step(Cursor { done: true, ..cursor })
    };
    assert!(pass(&mut next).is_err());
    assert_eq!(next.known(None), Known::Unknown);
    account.release(MemoryKind::Pages, 192 << 10);
    pass(&mut next).unwrap();
    pass(&mut next).unwrap();
    assert_eq!(next.known(None), Known::Due);
    assert_eq!(next.pop(), Some(long(1)));
    drop(next);
    assert_eq!(account.used(), 0);
}
