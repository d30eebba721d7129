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
//! use alluvium_timely::{Counting, KeyBy, NodeConfig, Rolling, Spec, execute};
//! use timely::dataflow::operators::{Inspect, ToStream};
//!
//! execute(timely::Config::process(2), NodeConfig::default(), |worker, state| {
//!     worker.dataflow::<i64, _, _>(|scope| {
//!         let words = ["to", "be", "or", "not", "to", "be"].map(String::from);
//!         words.to_stream(scope)
//!             .container::<Vec<_>>()
//!             .key_by(state, |word: &String| word.clone())
//!             .rolling(Spec::new("words"), Counting)?
//!             .inspect(|((word, count), time, diff)| println!("{time} {word} {count} {diff:+}"));
//!         Ok(())
//!     })
//! })?;
//! # Ok::<(), alluvium::Error>(())
//! ```
//!
//! # Driving the workers
//!
//! [`execute()`] runs a job on all workers of a process, and of a cluster of processes: each is
//! started with the same list of addresses, its own number and a directory of its own. The workers
//! of all processes are one group, numbered through, that own the key groups together.
//!
//! The group ends as one. When a worker panics, returns an error, or state fails in one of its
//! operators, or when a process is killed, every other worker would wait for its share of the
//! dataflow for ever. Instead the calls that a job steps its worker with fail, on every worker of
//! every process, with the first error: [`WorkerState::step`], [`WorkerState::run_until`],
//! [`WorkerState::meet`]. A job passes the error on, with `?`; `execute` drops the dataflows, then
//! the stores, which gives their directories and memory back, and returns it. No results are wrong,
//! they end early: start all processes again, and they go on at their last checkpoint. A helper
//! thread of a store that panics makes the state it worked for fail, and so the group.
//!
//! What workers have to agree on beside the dataflow they say at [meetings](WorkerState::meet).
//!
//! Jobs that are started by [`timely::execute()`], after [`install`], ask
//! [`WorkerState::has_failed`] themselves and hear nothing of panics and other processes.
//!
//! Timely's queues are unbounded: whoever feeds an input has to bound what is under way, which is
//! what a [`Gate`] is for. And in Timely 0.31 rows that were sent to an exchanging operator stay in the
//! sender's buffers if the worker steps between the last `send` and the `advance_to` (or `close`)
//! that leaves their time, until something else is sent: `Counter` passes a flush on only while
//! it has produced rows that were not reported yet, and stepping reports them. `flush` does not
//! help. So send, advance, then step.
//!
//! # Checkpoints
//!
//! [`JobCheckpoints`] takes checkpoints of all workers' stores at one time of the input and commits
//! them as one. A run in the same directories goes on from the last; [`WorkerState::restored`] says
//! where each input goes on.
//!
//! # Results once each
//!
//! Rows that are [written to](WriteTo::write_to) a [`JobSink`] become visible with the checkpoint that
//! has them. [`FileSink`] writes files; [`Sink`] is for other places.
//!
//! # Moving key groups
//!
//! Key groups of an operator move between workers while it runs, as a control stream says
//! ([`Keyed::migratable`]): maps, counters and pending timers together, or windows that fold their
//! rows. Checkpoints know where each group is.
//!
//! # Tables
//!
//! A table that does not change is loaded once per process and read by all its workers
//! ([`NodeConfig::table`], [`SharedTable`]); one that changes is keyed state. [`LookupJoin`] joins
//! with both. A table of another program is asked while rows wait ([`LookupExternal`]); the feature
//! `redis` has one for Redis.
//!
//! # When state fails
//!
//! A state call that fails inside an operator (memory, storage) never panics and never gives a
//! wrong result: the operator notes the error in [`WorkerState::fault`], applies nothing more, and
//! keeps a capability, so that no probe behind it passes the failed time. The group ends with it.
//! Errors that pass by themselves, a full disk and storage that cannot keep up, are waited out
//! instead, as [`Fault`] says.
//!
//! # State on storage
//!
//! A row whose key has to be read from storage is parked with its capability, and so is what comes
//! for its key after it; rows of other keys go on, and the worker sleeps when there are none. When
//! the read has ended, an I/O thread wakes the operator, which applies the rows in the order in
//! which they came, at the times they came with. A key's timers wait for its parked rows. How many
//! may wait is bounded ([`Spec::parked_max`]); then the operator takes no further input.
//! [`WorkerState::parked`] shows it.
//!
//! # Order
//!
//! Operators apply the rows of a key in the order in which they arrive, also those that wait. Timely's
//! own operators before them (`map`, `filter`) take what has come at one time together, and may change
//! the order of its batches.
//!
//! # Sources
//!
//! [`Gate`] bounds how far an input is ahead of what is done, in time and bytes; a [`GatedSource`] has one
//! and may be declared idle, so that it does not hold back the watermark.

mod admission;
#[cfg(doctest)]
mod book;
mod checkpoints;
mod event_time;
mod execute;
mod external;
mod fault;
mod gated_source;
mod group;
mod intake;
mod interval_join;
mod join;
mod join_sides;
mod key_by;
mod lookup_join;
mod migration;
mod node;
mod parking;
mod place;
mod rolling;
mod shared_table;
mod sink;
mod spec;
mod staged;
mod stateful;
mod stats_log;
mod windows;
mod worker;

use timely::dataflow::StreamVec;

pub use admission::{Gate, IN_FLIGHT_BYTES_MAX};
pub use alluvium::{Aggregate, Counting};
pub use checkpoints::{JobCheckpoint, JobCheckpoints, JobInput, Turn, WorkerCheckpoint};
pub use event_time::EventTime;
pub use execute::{execute, execute_with};
pub use external::{
    Answer, External, ExternalTable, LookupCounts, LookupExternal, OnThread, Question, Told,
};
#[cfg(feature = "redis")]
pub use external::{RedisConfig, redis_slot};
pub use fault::Fault;
pub use gated_source::{GatedSource, Watermarks};
pub use group::{Meeting, Met};
pub use interval_join::IntervalJoin;
pub use join::Join;
pub use join_sides::JoinSides;
pub use key_by::{KeyBy, Keyed};
pub use lookup_join::LookupJoin;
pub use migration::{Migratable, MoveGroup};
pub use node::{DEFAULT_CONNECT_WITHIN, NodeConfig, install};
pub use rolling::Rolling;
pub use shared_table::{SharedTable, TableLoader};
pub use sink::{CommittedFile, FileSink, JobSink, Sink, SinkWork, WriteTo, committed_files};
pub use spec::{OperatorState, Spec};
pub use stateful::{Context, Stateful};
pub use stats_log::{STORE_LOG, StoreEvent, StoreEventBuilder};
pub use windows::{Fired, Paired, Windowed, Windowing};
pub use worker::{Parked, WorkerOverrides, WorkerState};

/// A stream of changes: a row, when it changes and how many times more (or fewer) it occurs from
/// then on.
pub type Changes<'scope, T, R> = StreamVec<'scope, T, (R, T, i64)>;
