//! Alluvium state in Timely dataflow operators.
//!
//! State is configured at three levels, the inner one winning: the node ([`install`] on Timely's
//! configuration), the worker ([`WorkerState::new`]) and the operator ([`Spec`]). Each worker has
//! one store, which owns the key groups that [`KeyBy::key_by`] routes to it. Operators emit
//! changes, `(row, time, diff)`.
//!
//! Timely's timestamp is event time ([`EventTime`]): the frontier of an operator is its watermark,
//! the promise that no event before it is still to come. Records carry event times of their own,
//! which are not before the timestamp they are sent with.
//!
//! ```
//! use alluvium::Store;
//! use alluvium_timely::{Counting, KeyBy, NodeConfig, Rolling, Spec, WorkerState, install};
//! use timely::dataflow::operators::{Inspect, ToStream};
//!
//! let mut config = timely::Config::process(2);
//! install(&mut config, NodeConfig::default())?;
//! let workers = timely::execute(config, |worker| {
//!     let state = WorkerState::new(worker, Default::default()).unwrap();
//!     worker.dataflow::<i64, _, _>(|scope| {
//!         vec!["to", "be", "or", "not", "to", "be"].into_iter().map(String::from)
//!             .to_stream(scope)
//!             .container::<Vec<_>>()
//!             .key_by(&state, |word: &String| word.clone())
//!             .rolling(Spec::new("words"), Counting)
//!             .unwrap()
//!             .inspect(|((word, count), time, diff)| println!("{time} {word} {count} {diff:+}"));
//!     });
//!     while worker.has_dataflows() && !state.has_failed() {
//!         worker.step();
//!     }
//!     state.abandon_if_failed(worker)
//! })?;
//! for result in workers.join() {
//!     result??;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Driving the workers
//!
//! Timely's queues are unbounded: whoever feeds an input has to bound how far its time runs ahead
//! of a probe. And in Timely 0.31 rows that were sent to an exchanging operator stay in the
//! sender's buffers if the worker steps between the last `send` and the `advance_to` (or `close`)
//! that leaves their time, until something else is sent: `Counter` passes a flush on only while
//! it has produced rows that were not reported yet, and stepping reports them. `flush` does not
//! help. So send, advance, then step.
//!
//! # When state fails
//!
//! A state call that fails inside an operator (memory, storage) never panics and never gives a
//! wrong result: the operator notes the error in [`WorkerState::fault`], applies nothing more, and
//! keeps a capability, so that no probe behind it passes the failed time. Whoever drives the
//! workers asks [`WorkerState::has_failed`] and ends the run with the error. What else could be
//! done about a failure (waiting, dropping a key) is not configurable yet.

mod admission;
#[cfg(doctest)]
mod book;
mod event_time;
mod fault;
mod intake;
mod join;
mod key_by;
mod node;
mod parking;
mod rolling;
mod source;
mod spec;
mod stateful;
mod stats_log;
mod worker;

use timely::dataflow::StreamVec;

pub use admission::{Gate, IN_FLIGHT_BYTES_MAX};
pub use event_time::EventTime;
pub use fault::Fault;
pub use join::Join;
pub use key_by::{KeyBy, Keyed};
pub use node::{NodeConfig, install};
pub use rolling::{Aggregate, Counting, Rolling};
pub use source::{Source, Watermarks};
pub use spec::{OperatorState, Spec};
pub use stateful::{Context, Stateful};
pub use stats_log::{STORE_LOG, StoreEvent, StoreEventBuilder};
pub use worker::{Parked, WorkerOverrides, WorkerState};

/// A stream of changes: a row, when it changes and how many times more (or fewer) it occurs from
/// then on.
pub type Changes<'scope, T, R> = StreamVec<'scope, T, (R, T, i64)>;
