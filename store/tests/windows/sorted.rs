//! An aggregate that forgets nothing but order.

use alluvium::Aggregate;

/// Keeps the sorted values: a fold that shows what it was folded from. Says whether they can be taken out
/// again.
pub struct Sorted(pub bool);

impl Aggregate<i64> for Sorted {
    type Acc = Vec<i64>;
    type Out = Vec<i64>;

    fn init(&self) -> Vec<i64> {
        Vec::new()
    }

    fn add(&self, acc: &mut Vec<i64>, element: &i64) {
        acc.insert(acc.partition_point(|value| value < element), *element);
    }

    fn merge(&self, acc: &mut Vec<i64>, later: &Vec<i64>) {
        later.iter().for_each(|element| self.add(acc, element));
    }

    fn out(&self, acc: &Vec<i64>) -> Option<Vec<i64>> {
        (!acc.is_empty()).then(|| acc.clone())
    }

    /// As good as a sum's: what is taken out need not have been folded in before.
    fn subtract(&self, acc: &mut Vec<i64>, first: &Vec<i64>) -> bool {
        if self.0 {
            for element in first {
                match acc.binary_search(element) {
                    Ok(place) => drop(acc.remove(place)),
                    Err(_) => panic!("{element} was never added"),
                }
            }
        }
        self.0
    }
}
