//! Pages, codecs, I/O, memory budget, segments, manifest and errors: the ground floor of Alluvium.
//!
//! Nothing here knows a layout. See `docs/design.md` for the reasons and `docs/format.md` for the
//! bytes.

mod error;
mod hash;
mod heap_size;
pub mod io;
mod rewrite;
mod schema;
mod state;
mod time;

pub use error::{Error, ErrorKind, Rejected, Result};
pub use hash::{HASH_VERSION, KeyGroup, KeyHash, combine, hash_bytes, hash_word};
pub use heap_size::{HeapSize, rounded};
pub use rewrite::{Progress, Rewrite, SegmentMeta};
pub use schema::{Schema, description_of, fingerprint};
pub use state::{Key, Lookup, RecordSerializer, State};
pub use time::{MILLISECOND, SECOND, Time};
