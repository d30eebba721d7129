//! What a layout of your own implements and is given.
//!
//! | for | implement |
//! |---|---|
//! | values by key: maps, counters, single values, sessions | [`Layout`], [`Table`] |
//! | elements by key and time: lists, time-ordered maps | [`ListsLayout`], [`Lists`] |
//! | accumulators by key and time: windows that fold their events | [`PanesLayout`], [`Panes`] |
//! | windows, which put such parts together | [`WindowLayout`], [`HolisticLayout`] |
//! | all of them: checkpoints, statistics, memory that others need | [`Upkeep`] |
//! | key groups that move, and files in order of hashes | [`ByHash`] |
//!
//! Such a layout goes wherever a built-in one does: to [`StateBuilder::layout`](crate::states::StateBuilder::layout),
//! and to the operators of `alluvium-timely`. It is compiled only for the states that name it.
//!
//! Reserve each byte through the [`Account`] of the [`StateContext`] before you allocate it. A call happens in
//! full or changes nothing. [`write_entries`], [`read_entries`] and [`Images`] are full checkpoints, ready made;
//! [`EntryWriter`] writes them in steps.

pub(crate) mod any_layout;
pub(crate) mod any_windows;

pub use alluvium_layouts::{
    BatchError, ByHash, CheckpointOutcome, Cursor, Elements, EntryWriter, ExpiryPass, Fetch,
    HasUpkeep, Images, Layout, Lists, ListsLayout, Merge, Pace, PaneRun, Panes, PanesLayout, Peek,
    RunStats, StateContext, Table, TablePanes, TableStats, Ticket, Touched, Upkeep, VisitRun,
    VolatileHeap, read_entries, write_entries,
};
pub use alluvium_pagestore::{
    Account, AccountStats, BlobReader, BlobWriter, Encoded, EntryCodec, Error, ErrorKind, Key,
    Lookup, MemoryKind, Rejected, Result, Rewrite, State, StateImage, Time, description_of,
};

pub use crate::api::windows::{HolisticLayout, SessionSet, WindowLayout};
pub use crate::backend::any_layout::AnyTable;
pub use crate::backend::any_windows::{AnyLists, AnyPanes};
