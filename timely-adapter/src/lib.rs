//! Alluvium state in Timely dataflow operators.
//!
//! Give rows a key, then choose an operator. Each worker has one store, and [`KeyBy::key_by`]
//! routes a row to the worker that owns its key group. Operators emit changes, `(row, time, diff)`.
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
//! # Operators
//!
//! | you want | call |
//! |---|---|
//! | an aggregate that answers on each row | [`Rolling::rolling`] |
//! | windows and sessions, late rows | [`Windowing::window`] |
//! | joins | [`Join`], [`IntervalJoin`], [`LookupJoin`], [`Windowed::join`] |
//! | state and timers of your own | [`Stateful::stateful`] |
//! | a read-only table in each process | [`NodeConfig::table`], [`SharedTable`] |
//! | rows written exactly once | [`WriteTo::write_to`] a [`JobSink`], such as [`FileSink`] |
//! | key groups that move while the job runs | [`Keyed::migratable`] |
//!
//! # Time
//!
//! Timely's timestamp is event time ([`EventTime`]). The frontier of an operator is its watermark:
//! no earlier event is still to come. Rows carry event times of their own. A row is late if its
//! event time is before the timestamp it was sent with.
//!
//! # Running a job
//!
//! [`execute()`] runs a job on all workers of a process, or of a cluster of processes. Configure
//! state for the node ([`NodeConfig`]), the worker ([`WorkerOverrides`]) or the operator
//! ([`Spec`]); the inner setting wins. Bound each input by a [`Gate`] or a [`GatedSource`], since
//! Timely's queues are unbounded.
//!
//! Workers fail together. A panic, an error of a job or of state, or a lost process ends the run on
//! every worker with the first error. Pass on the errors of [`WorkerState::step`],
//! [`WorkerState::run_until`] and [`WorkerState::meet`] with `?`. Results up to then are right.
//! Start all processes again: they resume from the last checkpoint. [`Fault`] says which errors are
//! waited out.
//!
//! # Checkpoints
//!
//! [`JobCheckpoints`] takes checkpoints of all workers at one event time and commits them as one.
//! [`WorkerState::restored`] tells where each input resumes, also with another number of workers.

#[cfg(doctest)]
mod book;
mod event_time;
mod external;
mod intake;
mod job;
mod migration;
mod operators;

use timely::dataflow::StreamVec;

pub use alluvium::{Aggregate, Counting};
pub use event_time::EventTime;
pub use external::{
    Answer, External, ExternalTable, LookupCounts, LookupExternal, OnThread, Question, Told,
};
#[cfg(feature = "redis")]
pub use external::{RedisConfig, redis_slot};
pub use intake::admission::{Gate, IN_FLIGHT_BYTES_MAX};
pub use intake::fault::Fault;
pub use intake::gated_source::{GatedSource, Watermarks};
pub use job::checkpoints::{JobCheckpoint, JobCheckpoints, JobInput, Turn, WorkerCheckpoint};
pub use job::execute::{execute, execute_with};
pub use job::group::{Meeting, Met};
pub use job::node::{DEFAULT_CONNECT_WITHIN, NodeConfig, install};
pub use job::sink::{CommittedFile, FileSink, JobSink, Sink, SinkWork, WriteTo, committed_files};
pub use job::stats_log::{STORE_LOG, StoreEvent, StoreEventBuilder};
pub use job::worker::{Parked, WorkerOverrides, WorkerState};
pub use migration::{Migratable, MoveGroup};
pub use operators::interval_join::IntervalJoin;
pub use operators::join::Join;
pub use operators::join_sides::JoinSides;
pub use operators::key_by::{KeyBy, Keyed};
pub use operators::lookup_join::LookupJoin;
pub use operators::placing::{Fixed, Moved, Placing};
pub use operators::rolling::Rolling;
pub use operators::shared_table::{SharedTable, TableLoader};
pub use operators::spec::{OperatorState, Spec};
pub use operators::stateful::{Context, Stateful};
pub use operators::windows::{Fired, Paired, Windowed, Windowing};

/// A stream of changes: a row, when it changes and how many times more (or fewer) it occurs from
/// then on.
pub type Changes<'scope, T, R> = StreamVec<'scope, T, (R, T, i64)>;
