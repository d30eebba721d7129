//! Results of windows and rows that were late, in two streams.

use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::InputCapability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::operate::FrontierInterest;

use crate::event_time::EventTime;
use crate::operators::key_by::Builder;

/// Rows that wait for more of their time, before the batch that makes them so many.
const ROWS_MAX: usize = 4096;

/// Splits results from rows that were late. Batches that follow each other with one time leave as
/// one. `ok_err` of Timely sorts batches by time first; that is compiled for each type of row, and
/// again for each caller.
pub(super) fn split<'scope, T: EventTime, R: 'static, L: 'static>(
    told: StreamVec<'scope, T, Result<R, L>>,
) -> (StreamVec<'scope, T, R>, StreamVec<'scope, T, L>) {
    let mut builder = OperatorBuilder::new("Split".to_owned(), told.scope());
    let mut told = builder.new_input(told, Pipeline);
    builder.set_notify_for(0, FrontierInterest::Never);
    let (results, result_stream) = builder.new_output();
    let (late, late_stream) = builder.new_output();
    let mut results = OutputBuilder::<_, Builder<R>>::from(results);
    let mut late = OutputBuilder::<_, Builder<L>>::from(late);
    builder.build(move |_| {
        move |_frontiers| {
            let (mut results, mut late) = (results.activate(), late.activate());
            let mut send = |right: &InputCapability<T>, rows: &mut Vec<Result<R, L>>| {
                let (mut results, mut late) = (results.session(right), late.session(right));
                for row in rows.drain(..) {
                    match row {
                        Ok(result) => results.give(result),
                        Err(row) => late.give(row),
                    }
                }
            };
            // Rows of the time that came last, a message of them at the most.
            let (mut rows, mut of) = (Vec::new(), None);
            told.for_each(|right, batch| {
                if let Some(before) = of.take_if(|of: &mut InputCapability<T>| {
                    of.time() != right.time() || rows.len() >= ROWS_MAX
                }) {
                    send(&before, &mut rows);
                }
                rows.append(batch);
                of.get_or_insert(right);
            });
            if let Some(of) = of {
                send(&of, &mut rows);
            }
        }
    });
    (result_stream, late_stream)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use timely::dataflow::InputHandle;
    use timely::dataflow::operators::generic::Operator;
    use timely::dataflow::operators::{Input, Probe};

    use super::*;

    type Row = Result<u64, &'static str>;
    type Sent<D> = Vec<(i64, Vec<D>)>;
    type Messages<D> = Rc<RefCell<Sent<D>>>;

    /// Notes each message of a stream, with its time.
    fn noted<'scope, D: Clone + 'static>(
        stream: StreamVec<'scope, i64, D>,
        messages: &Messages<D>,
    ) -> StreamVec<'scope, i64, D> {
        let messages = messages.clone();
        stream.unary::<Builder<D>, _, _, _>(Pipeline, "Noted", move |_, _| {
            move |input, _output| {
                input.for_each(|right, batch| {
                    messages.borrow_mut().push((*right.time(), batch.clone()));
                });
            }
        })
    }

    /// Sends batches, all in one schedule, and returns the messages of both streams.
    fn split_of(batches: Sent<Row>) -> (Sent<u64>, Sent<&'static str>) {
        timely::execute_directly(move |worker| {
            let (results, late) = (Messages::default(), Messages::default());
            let mut input = InputHandle::new();
            let probe = worker.dataflow::<i64, _, _>(|scope| {
                let (one, two) = split(scope.input_from(&mut input));
                let (probe, _) = noted(one, &results).probe();
                noted(two, &late).probe_with(&probe);
                probe
            });
            for (time, mut rows) in batches {
                input.advance_to(time);
                input.send_batch(&mut rows);
            }
            input.close();
            worker.step_while(|| !probe.done());
            (results.take(), late.take())
        })
    }

    #[test]
    fn rows_keep_their_order_and_time_and_go_to_their_stream() {
        let (results, late) = split_of(vec![
            (1, vec![Ok(10), Err("a"), Ok(11)]),
            (4, vec![Err("b"), Err("c")]),
            (5, vec![Ok(12)]),
            (9, vec![]),
        ]);
        assert_eq!(results, [(1, vec![10, 11]), (5, vec![12])]);
        assert_eq!(late, [(1, vec!["a"]), (4, vec!["b", "c"])]);
    }

    /// A stream to which a batch gives nothing gets no message.
    #[test]
    fn batches_of_one_time_leave_as_one() {
        let mut batches: Vec<_> = (0..20).map(|n| (3, vec![Ok(n)])).collect();
        batches.insert(7, (3, vec![Err("late")]));
        batches.push((6, vec![Ok(20)]));
        let (results, late) = split_of(batches);
        assert_eq!(results, [(3, (0..20).collect()), (6, vec![20])]);
        assert_eq!(late, [(3, vec!["late"])]);
    }

    #[test]
    fn nothing_is_lost_of_more_than_a_message_holds() {
        let rows = |n: u64| if n.is_multiple_of(3) { Err("late") } else { Ok(n) };
        let batches = (0..50)
            .map(|at| (at / 10, (at as u64 * 700..(at as u64 + 1) * 700).map(rows).collect()));
        let (results, late) = split_of(batches.collect());
        let told: Vec<_> = results.iter().flat_map(|(_, rows)| rows.clone()).collect();
        assert_eq!(told, (0..35_000).filter(|n| n % 3 != 0).collect::<Vec<_>>());
        assert_eq!(
            late.iter().map(|(_, rows)| rows.len()).sum::<usize>(),
            35_000_usize.div_ceil(3)
        );
        for (time, rows) in results {
            assert!(rows.iter().all(|n| *n as i64 / 7000 == time));
        }
    }
}
