//! What states give up is what others ask for.

use alluvium_pagestore::ReclaimScope;

use crate::config::Helpers;
use crate::time::nanos;
use crate::{Aggregate, MIB, Store, Time, Windows};

struct Last;

impl Aggregate<u64> for Last {
    type Acc = u64;
    type Out = u64;

    fn init(&self) -> u64 {
        0
    }

    fn add(&self, acc: &mut u64, element: &u64) {
        *acc = *element;
    }

    fn merge(&self, acc: &mut u64, later: &u64) {
        *acc = *later;
    }

    fn out(&self, acc: &u64) -> Option<u64> {
        Some(*acc)
    }
}

#[test]
fn what_can_be_made_again_goes_only_where_all_is_asked_for() {
    let store = Store::in_memory().memory(4 * MIB).helpers(Helpers::Inline).open().unwrap();
    let windows = Windows::sliding(nanos(30), nanos(1));
    let mut sums = store.aggregated::<u64, u64, _>("sums").open(windows, Last).unwrap();
    for at in 0..40 {
        let mut events: Vec<_> = (0..50).map(|key| (key, Time(at), key)).collect();
        sums.add_batch(Time(at), &mut events, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
        while !sums.advance(Time(at + 1), 500, &mut |_, _, _, _| ()).unwrap().done {}
    }
    let kept = || {
        let stats = store.stats().unwrap();
        let stacks = stats.states.iter().find(|state| state.name == "sums/stacks");
        stacks.expect("sums of windows are kept").table.live_keys
    };
    let (before, root) = (kept(), &store.0.root);
    assert!(before > 0);
    for asked in [ReclaimScope::Unknown, ReclaimScope::Pages] {
        assert!(!root.ensure_of(asked, root.limit()), "not all can be given up");
        assert_eq!(kept(), before, "{asked:?}");
    }
    assert!(root.ensure(root.limit(), "all of it").is_err());
    assert_eq!(kept(), 0);
    // They are made again.
    let mut rows = 0;
    let mut events = vec![(7, Time(40), 70)];
    sums.add_batch(Time(40), &mut events, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
    let mut seen = |_: &u64, _, row: u64, _| rows += row;
    while !sums.advance(Time(41), 500, &mut seen).unwrap().done {}
    assert_eq!(rows, (0..50).sum::<u64>() - 7 + 70);
    assert!(kept() > 0);
}
