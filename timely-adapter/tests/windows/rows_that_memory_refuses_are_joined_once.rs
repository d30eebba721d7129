//! A join whose memory others take for a while: a call that fails has paired and kept some rows, and left
//! the others in its vector, which is added again. Each pair comes out once.

use std::collections::BTreeMap;

use alluvium::{AnyLayout, ErrorKind, MIB, Result, Store};
use alluvium_timely::JoinSides;

use crate::dice::Dice;
use crate::taken::take_all_but;

/// Adds rows until none is left, of which memory is taken for the first `refusals` tries.
fn outlast(
    store: &Store,
    (free, refusals): (u64, u64),
    rows: &mut Vec<(u64, u64)>,
    mut add: impl FnMut(&mut Vec<(u64, u64)>) -> Result<()>,
) -> u64 {
    let mut taken = take_all_but(store, free);
    for failed in 0.. {
        if failed == refusals {
            taken.clear();
        }
        match add(rows) {
            Ok(()) => {
                assert!(rows.is_empty());
                return failed;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}"),
        }
    }
    unreachable!()
}

#[test]
fn pairs_come_out_once_whatever_is_refused() {
    for layout in ["heap", "hybrid-log"] {
        let (mut dice, mut failed) = (Dice(3), 0);
        let mut below = |limit| dice.below(limit);
        let store = Store::in_memory().memory(4 * MIB).open().unwrap();
        let open = |name: &str| {
            let layout = AnyLayout::named(layout).unwrap();
            store.map::<u64, Vec<u64>>(name).layout(layout).open().unwrap()
        };
        let mut sides = JoinSides::new(open("left"), open("right"));
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let mut found: BTreeMap<(u64, u64, u64), u32> = BTreeMap::new();
        for number in 0..300 {
            let count = 1 + below(12);
            let mut rows: Vec<_> = (0..count).map(|n| (below(200), number * 100 + n)).collect();
            let trouble = (below(4000), [1, 3][below(2) as usize]);
            let note = &mut |pair| *found.entry(pair).or_default() += 1;
            if below(2) == 0 {
                left.extend_from_slice(&rows);
                failed += outlast(&store, trouble, &mut rows, |rows| {
                    sides.add_left(rows, |key, a, b| (*key, *a, *b), &mut *note)
                });
            } else {
                right.extend_from_slice(&rows);
                failed += outlast(&store, trouble, &mut rows, |rows| {
                    sides.add_right(rows, |key, a, b| (*key, *a, *b), &mut *note)
                });
            }
        }
        let mut expected = BTreeMap::new();
        for (key, a) in &left {
            let others = right.iter().filter(|(other, _)| other == key);
            expected.extend(others.map(|(_, b)| ((*key, *a, *b), 1)));
        }
        assert!(found == expected, "{layout}: {} of {} pairs", found.len(), expected.len());
        assert!(failed > 15, "{layout}: {failed} calls failed");
    }
}
