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
//! The store reserves memory before it allocates it. A value that a closure grows is counted when the closure returns;
//! [`max_value`](StoreBuilder::max_value) bounds it. A write that does not fit is refused with
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
//! Key groups restore into any number of stores ([`StoreBuilder::restore_from`]), and [`moving::Mover`] moves them between running
//! ones. [`Store::export`] and [`Store::import`] move states between layouts and machines.
//!
//! # Errors
//!
//! One [`Error`], with an [`ErrorKind`] that says what to do. An operation happens in full or changes nothing, unless its
//! page says otherwise. A closure that panics poisons its state: checkpoints are refused until you clear it.

mod api;
pub mod backend;
mod cells;
mod durability;
mod store;

/// A key of two fields:
///
/// ```
/// use alluvium::{KeyHash, State};
///
/// #[derive(Clone, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
/// #[derive(State, KeyHash)]
/// struct Seller {
///     country: [u8; 2],
///     id: u64,
/// }
/// # fn is_key<T: alluvium::Key>() {}
/// # is_key::<Seller>();
/// ```
pub use alluvium_derive::KeyHash;
/// A value that rkyv stores:
///
/// ```
/// # use alluvium_pagestore::{HeapSize, description_of};
/// use alluvium::State;
///
/// #[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
/// #[state(version = 2)]
/// struct BestBid {
///     price: u64,
///     bidder: Option<String>,
/// }
/// # fn is_state<T: alluvium::State>() {}
/// # is_state::<BestBid>();
/// assert_eq!(description_of::<BestBid>(), "BestBid@2{price:u64,bidder:Option<String>,}");
/// assert_eq!(BestBid { price: 7, bidder: None }.heap_bytes(), 0);
/// ```
///
/// One that serde stores:
///
/// ```
/// # use alluvium_pagestore::description_of;
/// use alluvium::State;
///
/// #[derive(Clone, serde::Serialize, serde::Deserialize, State)]
/// #[state(serde)]
/// struct Upload {
///     file: std::path::PathBuf,
///     parts: Vec<u64>,
/// }
/// # fn is_state<T: alluvium::State>() {}
/// # is_state::<Upload>();
/// assert_eq!(description_of::<Upload>(), "postcard-1(Upload@1{file:PathBuf,parts:Vec<u64>,})");
/// ```
pub use alluvium_derive::State;
pub use alluvium_layouts::{AppendLog, Elements, Heap, HybridLog, Layout, WindowSegments};
#[doc(hidden)]
pub use alluvium_pagestore::derived;
pub use alluvium_pagestore::io;
pub use alluvium_pagestore::{
    Error, ErrorKind, GIB, KIB, Key, KeyHash, MIB, MILLISECOND, Result, SECOND, State, Time,
};
pub use api::aggregate::{Aggregate, Counting};
pub use api::count::Count;
pub use api::expiring::{ExpiringMap, ExpiringValue, Ttl};
pub use api::list::List;
pub use api::map::Map;
pub use api::time_map::TimeMap;
pub use api::timers::Timers;
pub use api::value::Value;
pub use api::windows::{Aggregated, Emit, Holistic, Process, Window, Windows, process};
pub use backend::any_layout::AnyLayout;
pub use store::Store;
pub use store::builder::StoreBuilder;
pub use store::config::StoreConfig;

/// Checkpoints of a store: sealing them in steps, and those it retains.
pub mod checkpoints {
    // For whoever commits the checkpoints of several stores as one.
    #[doc(hidden)]
    pub use alluvium_pagestore::{FORMAT_VERSION, Framed, checkpoint_name, checkpoint_of_file};

    pub use crate::durability::checkpoints::{Checkpoint, RetainedCheckpoint, Seal};
}

/// What the configuration of a store consists of, its defaults and lower bounds, and which layouts fit.
pub mod config {
    pub use alluvium_layouts::{
        COLD_RUNS_MEMORY_MIN, ExpectedKeys, ExpectedSlices, MemoryNeeds, MemoryParts,
    };
    pub use alluvium_pagestore::{ByteSize, IntoByteSize};

    pub use crate::api::explain::{Explanation, Fit};
    pub use crate::api::sizing::{MemoryExplanation, MemoryRow};
    pub use crate::cells::recording::{TRACE_BUFFER_BYTES, TRACE_WAIT_MS, TraceOptions};
    pub use crate::store::Reservation;
    pub use crate::store::builder::MEMORY_BYTES_MIN;
    pub use crate::store::config::{
        DEFAULT_MEMORY_BYTES, DEFAULT_PATIENCE_MS, DEFAULT_RETAIN, DEFAULT_SPACE_AMPLIFICATION,
        DEFAULT_TIME_JUMP_MAX_MS, Helpers,
    };
    pub use crate::store::crowded::{
        APPEND_LOG_BYTES_MIN, CROWDED_PERCENT, HEAP_BYTES_MIN, HYBRID_LOG_BYTES_MIN,
        HYBRID_LOGS_BY_MEMORY, WINDOW_SEGMENTS_BYTES_MIN,
    };
}

/// Key groups that move between stores, restoring from the checkpoints of others, and exports.
pub mod moving {
    pub use alluvium_pagestore::{KeyGroup, KeyGroups};

    pub use crate::api::own_keys::RowKeys;
    pub use crate::durability::export::{Exported, Imported};
    pub use crate::durability::moving::{Extraction, Mover, Standing};
    pub use crate::durability::sources::{RestoredFrom, Source};
}

/// Types that states are opened by and answer with.
pub mod states {
    pub use alluvium_layouts::{BatchError, Fetch, Ticket};
    pub use alluvium_pagestore::Lookup;

    pub use crate::api::expiring::{ExpiringMapOf, ExpiringValueOf, Timed};
    pub use crate::api::fetcher::Fetcher;
    pub use crate::api::time_map::TimeMapOf;
    pub use crate::api::timers::{Due, PendingTimer, StoredTimers, Sweep};
    pub use crate::cells::state_cell::ValueRef;
    #[doc(hidden)]
    pub use crate::store::aside::Aside;
    pub use crate::store::{CountOf, ListOf, MapOf, StateBuilder, StoredTimersOf, ValueOf};
}

/// What a store holds and has done.
pub mod stats {
    pub use alluvium_layouts::{RunStats, RunTimes, TableStats};
    pub use alluvium_pagestore::{AccountStats, MEMORY_KINDS, MemoryKind};

    pub use crate::api::timers::StoredTimersStats;
    pub use crate::cells::recording::TraceStats;
    pub use crate::store::stats::{StateStats, StoreStats};
}

/// Clocks, and spans of time.
pub mod time {
    #[doc(hidden)]
    pub use alluvium_layouts::ByTime;
    pub use alluvium_pagestore::nanos;

    pub use crate::api::expiring::{Clock, WallClock};
}

/// What the types of keys and values provide: hashes, the heap they own, their schema and codec.
pub mod types {
    pub use alluvium_pagestore::{
        EntryCodec, HeapSize, SERDE_CODEC, Schema, Serde, SerdeBytes, SerdeResolver, combine,
        description_of, hash_bytes, hash_word, rounded,
    };
}

/// What windows answer with.
pub mod windows {
    pub use crate::api::windows::{Advanced, AggregatedOf, HolisticOf, Late, Out, Processing};
}
