//! A state store for stream processors: typed states in native Rust values, one writer, one memory budget, and a
//! layout per state.
//!
//! A [`Store`] is one worker's states under one directory and one memory budget. Open states from it, use them on the
//! same thread, and take checkpoints:
//!
//! ```
//! use alluvium::{MIB, Store};
//!
//! let store = Store::in_memory().memory(64 * MIB).open()?;
//! let mut words = store.count::<String>("words").open()?;
//! for word in "to be or not to be".split(' ') {
//!     words.add(word, 1)?;
//! }
//! assert_eq!(words.get("be")?, 2);
//! # Ok::<(), alluvium::Error>(())
//! ```
//!
//! # States
//!
//! | you keep | state |
//! |---|---|
//! | a value per key | [`Map`]; [`Count`] for counters; [`Value`] for one value; [`ExpiringMap`] with a [`Ttl`] |
//! | elements per key | [`List`]; [`TimeMap`] reads them by ranges of event time |
//! | calls at a time | [`Timers`] |
//! | windows | [`Aggregated`] folds events by an [`Aggregate`]; [`Holistic`] keeps them for a [`Process`]. [`Windows`] says which, [`Emit`] when results come |
//!
//! Keys are any [`Key`], values any [`State`]: derive both with `#[derive(State)]` and `#[derive(KeyHash)]` beside rkyv's
//! derives, or use serde with `#[state(serde)]`.
//!
//! # Layouts
//!
//! Each state lies in one [`Layout`]: [`HybridLog`] (the default of maps), [`AppendLog`] (of lists and holistic windows),
//! [`WindowSegments`] (of folded windows), or [`Heap`]. Choose by `.layout(..)` or, with [`AnyLayout`], in the
//! configuration ([`StoreConfig`]). All but the heap hold more than memory. A layout of your own goes wherever these do:
//! see [`backend`].
//!
//! # Memory
//!
//! Every byte that the store allocates is reserved before it is used. A write that does not fit is refused with
//! [`ErrorKind::OverBudget`], which names the state and the memory that would do; nothing is changed then.
//! [`Store::stats`] shows what each state holds.
//!
//! # Checkpoints
//!
//! [`Store::checkpoint`] makes all states durable at a position of the input; [`Store::seal`] does it in bounded steps
//! while the stream goes on. Opening the directory again restores the last one, and
//! [`Store::restored_position`] tells where the input resumes. A crash loses what came after it.
//!
//! # Moving state
//!
//! Key groups restore into any number of stores ([`StoreBuilder::restore_from`]), and [`Mover`] moves them between running
//! ones. [`Store::export`] and [`Store::import`] move states between layouts and machines.
//!
//! # Errors
//!
//! One [`Error`], with an [`ErrorKind`] that says what to do. An operation happens in full or changes nothing, unless its
//! page says otherwise. A closure that panics poisons its state: checkpoints are refused until you clear it.

mod api;
mod durability;
pub mod backend;
mod cells;
mod store;

pub use api::aggregate::{Aggregate, Counting};
pub use alluvium_derive::{KeyHash, State};
pub use alluvium_layouts::{
    AppendLog, BatchError, ByHash, CheckpointOutcome, Cursor, Elements, ExpiryPass, Fetch, Heap,
    HybridLog, Images, Layout, Lists, ListsLayout, Merge, Panes, PanesLayout, Peek, SplitHeap,
    SplitHeapTable, StateContext, Table, TableStats, Ticket, Touched, Upkeep, VisitRun,
    VolatileHeap, WindowSegments, read_entries, write_entries,
};
#[doc(hidden)]
pub use alluvium_pagestore::derived;
pub use alluvium_pagestore::io;
pub use alluvium_pagestore::{
    Account, AccountStats, BlobReader, BlobWriter, ByteSize, EntryCodec, Error, ErrorKind, GIB,
    HeapSize, IntoByteSize, KIB, Key, KeyGroup, KeyGroups, KeyHash, Lookup, MEMORY_KINDS, MIB,
    MILLISECOND, MemoryKind, Rejected, Result, SECOND, SERDE_CODEC, Schema, Serde, SerdeBytes,
    SerdeResolver, State, StateImage, Time, combine, description_of, hash_bytes, hash_word, nanos,
    rounded,
};
// For whoever commits the checkpoints of several stores as one.
#[doc(hidden)]
pub use alluvium_pagestore::{FORMAT_VERSION, Framed, checkpoint_name, checkpoint_of_file};
pub use backend::any_layout::{AnyLayout, AnyTable};
pub use backend::any_windows::{AnyLists, AnyPanes};
#[doc(hidden)]
pub use store::aside::Aside;
pub use store::builder::{MEMORY_BYTES_MIN, StoreBuilder};
pub use durability::checkpoints::{Checkpoint, RetainedCheckpoint, Seal};
pub use store::config::{
    DEFAULT_MEMORY_BYTES, DEFAULT_PATIENCE_MS, DEFAULT_RETAIN, DEFAULT_SPACE_AMPLIFICATION,
    DEFAULT_TIME_JUMP_MAX_MS, Helpers, StoreConfig,
};
pub use api::count::Count;
pub use store::crowded::{
    APPEND_LOG_BYTES_MIN, CROWDED_PERCENT, HEAP_BYTES_MIN, HYBRID_LOG_BYTES_MIN,
    HYBRID_LOGS_BY_MEMORY, WINDOW_SEGMENTS_BYTES_MIN,
};
pub use api::expiring::{
    Clock, ExpiringMap, ExpiringMapOf, ExpiringValue, ExpiringValueOf, Timed, Ttl, WallClock,
};
pub use api::explain::{Explanation, Fit};
pub use durability::export::{Exported, Imported};
pub use api::fetcher::Fetcher;
pub use api::list::List;
pub use api::map::Map;
pub use durability::moving::{Extraction, Mover, Standing};
pub use api::own_keys::RowKeys;
pub use cells::recording::{TRACE_BUFFER_BYTES, TRACE_WAIT_MS, TraceOptions, TraceStats};
pub use durability::sources::{RestoredFrom, Source};
pub use cells::state_cell::ValueRef;
pub use store::stats::{StateStats, StoreStats};
pub use store::{CountOf, ListOf, MapOf, Reservation, StateBuilder, Store, ValueOf};
pub use api::time_map::{TimeMap, TimeMapOf};
pub use api::timers::{Sweep, Timers};
pub use api::value::Value;
pub use api::windows::{
    Advanced, Aggregated, AggregatedOf, Emit, Holistic, HolisticLayout, HolisticOf, Late, Out,
    Process, Processing, SessionSet, Window, WindowLayout, Windows, process,
};
