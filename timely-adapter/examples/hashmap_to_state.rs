//! From a `HashMap` in an operator to managed state: the same plain Timely operator twice.
//!
//! It keeps the highest price per item and reports, for each time, the items whose highest price
//! rose. What changes is marked: opening the state, and `?`. The state can then outgrow memory,
//! and survives a restart once the store is given a directory.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;

use alluvium::{KeyHash, Result};
use alluvium_timely::{NodeConfig, WorkerState, execute};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Inspect;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::ToStream;

type Offer = (u64, i64);
type Builder = CapacityContainerBuilder<Vec<Offer>>;

fn with_hash_map<'s>(offers: StreamVec<'s, u64, Offer>) -> StreamVec<'s, u64, Offer> {
    let mut highest = HashMap::new();
    offers.unary_frontier::<Builder, _, _, _>(Exchange::new(|o: &Offer| o.0), "highest", |_, _| {
        let mut risen = BTreeMap::new();
        move |(input, frontier), output| {
            input.for_each_time(|capability, batches| {
                for (item, price) in batches.flat_map(|batch| batch.drain(..)) {
                    let best = highest.entry(item).or_insert(i64::MIN);
                    if price > *best {
                        *best = price;
                        risen.insert((*capability.time(), item), (capability.retain(0), price));
                    }
                }
            });
            while let Some(first) = risen.first_entry().filter(|e| !frontier.less_equal(&e.key().0))
            {
                let ((_, item), (capability, price)) = first.remove_entry();
                output.session(&capability).give((item, price));
            }
        }
    })
}

fn with_state<'s>(
    offers: StreamVec<'s, u64, Offer>,
    worker: &WorkerState,
) -> Result<StreamVec<'s, u64, Offer>> {
    // Changed: the map is opened in the worker's store, under a name of its own.
    let mut highest = worker.store().map::<u64, i64>("highest").open()?;
    // Changed: rows go to the worker that owns their key.
    let (route, worker) = (worker.clone(), worker.clone());
    let pact = Exchange::new(move |o: &Offer| route.owner(o.0.key_hash()) as u64);
    Ok(offers.unary_frontier::<Builder, _, _, _>(pact, "highest", |_, _| {
        let mut risen = BTreeMap::new();
        move |(input, frontier), output| {
            input.for_each_time(|capability, batches| {
                for (item, price) in batches.flat_map(|batch| batch.drain(..)) {
                    // Changed: the entry is updated in a closure, and that may fail.
                    let rose = highest.update(
                        &item,
                        || i64::MIN,
                        |best| {
                            let rose = price > *best;
                            *best = price.max(*best);
                            rose
                        },
                    );
                    let rose = rose.unwrap_or_else(|error| {
                        worker.fail(error);
                        false
                    });
                    if rose {
                        risen.insert((*capability.time(), item), (capability.retain(0), price));
                    }
                }
            });
            while let Some(first) = risen.first_entry().filter(|e| !frontier.less_equal(&e.key().0))
            {
                let ((_, item), (capability, price)) = first.remove_entry();
                output.session(&capability).give((item, price));
            }
        }
    }))
}

fn main() -> Result<()> {
    let (sender, results) = mpsc::channel();
    execute(timely::Config::process(2), NodeConfig::default(), move |worker, state| {
        let sender = sender.clone();
        worker.dataflow::<u64, _, _>(|scope| -> Result<()> {
            let share = worker_share(scope.index() as u64, scope.peers());
            let offers = share.to_stream(scope).container::<Vec<_>>();
            let plain = sender.clone();
            with_hash_map(offers.clone()).inspect_time(move |at, row| {
                let _ = plain.send(("hash map", *at, *row));
            });
            with_state(offers, state)?.inspect_time(move |at, row| {
                let _ = sender.send(("state", *at, *row));
            });
            Ok(())
        })
    })?;
    let (mut plain, mut managed): (Vec<_>, Vec<_>) =
        results.iter().partition(|(from, ..)| *from == "hash map");
    plain.iter_mut().chain(&mut managed).for_each(|row| row.0 = "");
    plain.sort_unstable();
    managed.sort_unstable();
    assert_eq!(plain, managed);
    println!("{} items, the same from a HashMap and from managed state", plain.len());
    Ok(())
}

/// Every `peers`th offer.
fn worker_share(index: u64, peers: usize) -> impl Iterator<Item = Offer> {
    let offers = (index..10_000).step_by(peers);
    offers.map(|n| (n * n % 1_009, (n * 7_919 % 10_007).cast_signed()))
}
