//! The dataflow of `weight-job` with state in hash maps, on plain Timely: what Timely itself costs.

use std::collections::{BTreeMap, HashMap};

use timely::dataflow::ProbeHandle;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};

/// A key and an event time.
type Row = (u64, i64);

const LENGTH: i64 = 10;
const GAP: i64 = 5;

fn main() -> Result<(), String> {
    let guards = timely::execute(timely::Config::process(1), |worker| {
        let probe = ProbeHandle::new();
        let mut rows = worker.dataflow::<i64, _, _>(|scope| {
            let (input, rows) = scope.new_input::<Row>();
            let by_key = || Exchange::new(|row: &Row| row.0);
            rows.clone()
                .unary_frontier(by_key(), "tumbling", |_, _| {
                    let mut windows: BTreeMap<i64, (_, HashMap<u64, u64>)> = BTreeMap::new();
                    move |(input, frontier), output| {
                        input.for_each_time(|time, batches| {
                            for &mut (key, at) in batches.flatten() {
                                let end = (at.div_euclid(LENGTH) + 1) * LENGTH;
                                let window = windows.entry(end);
                                let right = time.delayed(&end, 0);
                                let (_, counts) = window.or_insert_with(|| (right, HashMap::new()));
                                *counts.entry(key).or_default() += 1;
                            }
                        });
                        while let Some(first) = windows.first_entry() {
                            if frontier.less_than(first.key()) {
                                break;
                            }
                            let (end, (right, counts)) = first.remove_entry();
                            output.session(&right).give_iterator(
                                counts.into_iter().map(|(key, count)| (key, end, count)),
                            );
                        }
                    }
                })
                .container::<Vec<_>>()
                .inspect(|change| println!("window {change:?}"))
                .probe_with(&probe);
            rows.clone()
                .unary_frontier(by_key(), "sessions", |_, _| {
                    let mut sessions: HashMap<u64, (_, i64)> = HashMap::new();
                    move |(input, frontier), output| {
                        input.for_each_time(|time, batches| {
                            for &mut (key, at) in batches.flatten() {
                                let end = at + GAP;
                                let session = sessions
                                    .entry(key)
                                    .or_insert_with(|| (time.delayed(&end, 0), at));
                                session.1 = session.1.max(at);
                            }
                        });
                        sessions.retain(|key, (right, last)| {
                            let is_open = frontier.less_equal(&(*last + GAP));
                            if !is_open {
                                output.session(&*right).give((*key, *last));
                            }
                            is_open
                        });
                    }
                })
                .container::<Vec<_>>()
                .inspect(|change| println!("session {change:?}"))
                .probe_with(&probe);
            rows.unary(by_key(), "rolling", |_, _| {
                let mut counts: HashMap<u64, u64> = HashMap::new();
                move |input, output| {
                    input.for_each_time(|time, batches| {
                        let mut session = output.session(&time);
                        for &mut (key, _) in batches.flatten() {
                            let count = counts.entry(key).or_default();
                            *count += 1;
                            session.give((key, *count));
                        }
                    });
                }
            })
            .container::<Vec<_>>()
            .inspect(|change| println!("rolling {change:?}"))
            .probe_with(&probe);
            input
        });
        for time in 0..100 {
            rows.send((time as u64 % 7, time));
            rows.advance_to(time + 1);
            while probe.less_equal(&time) {
                worker.step();
            }
        }
    })?;
    guards.join().into_iter().collect::<Result<Vec<()>, _>>()?;
    Ok(())
}
