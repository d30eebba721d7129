//! Physical layouts of state, behind small traits: plain [`heap`](Heap), and (next) the hybrid log.
//!
//! A layout opens a [`Table`]: one keyed state of one worker. The traits are public and small, so
//! that a user can add a backend; [`write_entries`] and [`read_entries`] give it checkpoints.

mod full_image;
mod heap;
mod table;

pub use full_image::{Images, read_entries, write_entries};
pub use heap::{Heap, HeapTable, Stored, Volatile, VolatileHeap};
pub use table::{BatchError, CheckpointOutcome, Cursor, Layout, Peek, StateContext, Table, TableStats};
