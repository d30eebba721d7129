//! An aggregate that shows in which order it was folded.

use std::cell::Cell;
use std::rc::Rc;

use alluvium::Aggregate;

/// A value of a slice: later slices have higher ones.
pub fn value(slice: i64, number: i64) -> i64 {
    slice * 1_000_000 + number
}

fn slice(value: i64) -> i64 {
    value.div_euclid(1_000_000)
}

/// Keeps all values: sorted within a slice, but the slices in the order in which they were merged.
#[derive(Default)]
pub struct InOrder {
    pub merges: Rc<Cell<u64>>,
    /// Merges until one panics.
    pub panics_after: Rc<Cell<Option<u64>>>,
}

impl Aggregate<i64> for InOrder {
    type Acc = Vec<i64>;
    type Out = Vec<i64>;

    fn init(&self) -> Vec<i64> {
        Vec::new()
    }

    fn add(&self, acc: &mut Vec<i64>, element: &i64) {
        let of_others = acc.iter().rposition(|value| slice(*value) != slice(*element));
        let own = of_others.map_or(0, |place| place + 1);
        let place = own + acc[own..].partition_point(|value| value < element);
        acc.insert(place, *element);
    }

    fn merge(&self, acc: &mut Vec<i64>, later: &Vec<i64>) {
        self.merges.set(self.merges.get() + 1);
        if let Some(left) = self.panics_after.get() {
            self.panics_after.set(left.checked_sub(1));
            assert!(left > 0, "this merge panics");
        }
        later.iter().for_each(|element| self.add(acc, element));
    }

    fn out(&self, acc: &Vec<i64>) -> Option<Vec<i64>> {
        (!acc.is_empty()).then(|| acc.clone())
    }
}
