//! Steps of a dataflow that take rows one by one.
//!
//! They do what Timely's of the same names do. Those sort batches by time first, which is compiled
//! anew for each closure, 6 KB a time; here batches are taken as they come. As there, batches that
//! follow each other with one time leave as one.

use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::InputCapability;
use timely::dataflow::operators::generic::operator::Operator;

/// Steps of a stream of rows `D`.
pub(crate) trait RowByRow<'scope, D: 'static>: Sized {
    /// Makes rows of each row.
    fn flat_map<I: IntoIterator<Item: 'static>>(
        self,
        rows: impl FnMut(D) -> I + 'static,
    ) -> StreamVec<'scope, i64, I::Item>;

    /// Makes a row of each row.
    fn map<R: 'static>(self, mut row: impl FnMut(D) -> R + 'static) -> StreamVec<'scope, i64, R> {
        self.flat_map(move |one| Some(row(one)))
    }

    /// Looks at each row.
    fn inspect(self, look: impl FnMut(&D) + 'static) -> Self;
}

impl<'scope, D: 'static> RowByRow<'scope, D> for StreamVec<'scope, i64, D> {
    fn flat_map<I: IntoIterator<Item: 'static>>(
        self,
        mut rows: impl FnMut(D) -> I + 'static,
    ) -> StreamVec<'scope, i64, I::Item> {
        self.unary(Pipeline, "FlatMap", |_, _| {
            let (mut rights, mut batches) = (Vec::new(), Vec::new());
            move |input, output| {
                input.for_each(|right, batch| {
                    rights.push(right);
                    batches.push(std::mem::take(batch));
                });
                let mut at = 0;
                while let Some(right) = rights.get(at) {
                    let end = at + of_one_time(&rights[at..]);
                    let batches = batches[at..end].iter_mut();
                    let taken = batches.flat_map(|batch: &mut Vec<D>| batch.drain(..));
                    output.session(right).give_iterator(taken.flat_map(&mut rows));
                    at = end;
                }
                rights.clear();
                batches.clear();
            }
        })
    }

    fn inspect(self, mut look: impl FnMut(&D) + 'static) -> Self {
        self.unary(Pipeline, "Inspect", |_, _| {
            move |input, output| {
                input.for_each(|right, batch| {
                    batch.iter().for_each(&mut look);
                    output.session(&right).give_container(batch);
                });
            }
        })
    }
}

/// How many of the first batches have one time.
fn of_one_time(rights: &[InputCapability<i64>]) -> usize {
    rights.iter().take_while(|right| right.time() == rights[0].time()).count()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use timely::dataflow::operators::vec::Input;
    use timely::dataflow::operators::{Inspect, Probe};

    use super::*;

    /// As an iterator does it, at the time of each row, whatever the order in which times come.
    #[test]
    fn rows_are_made_and_seen_at_their_times() {
        timely::execute_directly(|worker| {
            let (seen, made) = (Rc::new(RefCell::new(0)), Rc::new(RefCell::new(Vec::new())));
            let (sum, rows) = (seen.clone(), made.clone());
            let (mut input, probe) = worker.dataflow::<i64, _, _>(|scope| {
                let (input, numbers) = scope.new_input::<u64>();
                let several = RowByRow::inspect(numbers, move |number| *sum.borrow_mut() += number);
                let several =
                    RowByRow::flat_map(several, |number| (0..number % 3).map(move |n| (number, n)));
                let texts = RowByRow::map(several, |(number, n)| format!("{number}/{n}"));
                let texts = Inspect::inspect_time(texts, move |time, row| {
                    rows.borrow_mut().push((*time, row.clone()));
                });
                (input, texts.probe().0)
            });
            let mut expected = Vec::new();
            for time in 0..4 {
                // The first timestamp of all is the least number.
                input.advance_to(time);
                for number in 0..3000 {
                    input.send(number);
                    expected.extend((0..number % 3).map(|n| (time, format!("{number}/{n}"))));
                }
                // Batches of two times wait where time 1 is not stepped to.
                if time != 1 {
                    worker.step_while(|| probe.less_than(&time));
                }
            }
            input.close();
            worker.step_while(|| !probe.done());
            assert_eq!(*seen.borrow(), 4 * (0..3000).sum::<u64>());
            made.borrow_mut().sort();
            expected.sort();
            assert!(*made.borrow() == expected);
        });
    }
}
