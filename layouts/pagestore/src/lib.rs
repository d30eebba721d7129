//! The lowest layer of Alluvium: pages, codecs, I/O, the memory budget, segments, the manifest and
//! errors.
//!
//! It depends on no layout. `docs/design.md` has the reasons, `docs/format.md` the bytes.

mod account;
mod blob;
pub mod block;
pub mod channel;
pub mod codec;
mod entry_codec;
mod error;
mod file_name;
mod framed;
mod hash;
mod heap_size;
mod helper;
pub mod io;
mod key_groups;
mod key_text;
pub mod mailbox;
mod manifest;
pub mod out_of_line_unsafe;
mod process;
mod rewrite;
mod schema;
mod segment;
mod serde_codec;
#[cfg(feature = "sim")]
mod sim;
mod size;
mod sorting;
mod state;
mod time;
mod trial;
mod turns;

pub use account::{
    Account, AccountStats, LenientCall, MEMORY_KINDS, MemoryKind, Reclaim, ReclaimScope,
};
pub use blob::{BlobReader, BlobRef, BlobWriter, blobs_name};
pub use entry_codec::{Encoded, EntryCodec};
pub use error::{Error, ErrorKind, Rejected, Result};
pub use file_name::{FileKind, FileName};
pub use framed::Framed;
pub use hash::{HASH_VERSION, KeyGroup, KeyHash, combine, hash_bytes, hash_word};
pub use heap_size::{HeapSize, rounded};
pub use helper::{Helper, Served, WeakHelper};
pub use key_groups::KeyGroups;
pub use key_text::{key_text, key_word};
pub use manifest::{
    CODEC, CheckpointFile, CheckpointImage, MANIFEST, MANIFEST_NEW, Manifest, StateManifest,
    checkpoint_name, checkpoint_of_file,
};
pub use rewrite::{PATIENT_FUEL, Rewrite, RewriteProgress, SegmentMeta};
pub use schema::{Schema, description_of, fingerprint, has_no_order, refused_attributes};
pub use segment::{
    Death, FORMAT_VERSION, Footer, FooterEntry, FooterPass, GRAIN_BYTES, Image, ImageInfo,
    ImagePart, LiveSet, Liveness, PartRange, PassVisitor, PassedRecord, PlacedAt, RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES, RECORDS, RUNS, RecordBytes, RecordPlacing, RunId, RunInfo,
    SEGMENT_BYTES_MAX, SegmentDirectory, SegmentId, SegmentImage, SegmentInfo, SegmentPass,
    SegmentReader, SegmentStore, SegmentWriter, StateImage, TouchedKeys, UNSPLIT_BYTES,
    VerifiedRecord, WholeSegment, WrittenPage, damaged, verify_record,
};
pub use serde_codec::{SERDE_CODEC, Serde, SerdeBytes, SerdeResolver};
pub use size::{ByteSize, GIB, IntoByteSize, KIB, MIB};
pub use sorting::{SortedSet, sort_rarely};
pub use state::{Key, Lookup, RecordSerializer, State};
pub use time::{MILLISECOND, SECOND, Time, count_nanos, nanos};
pub use trial::Trials;
pub use turns::Turns;

/// Names for the code that the derive macros emit. No part of the API.
#[doc(hidden)]
pub mod derived {
    pub use crate::schema::{Schema, describe_refused};
    pub use crate::serde_codec::{SerdeBytes, SerdeResolver, describe_by_serde};
    pub use crate::{HeapSize, KeyHash, combine, hash_word};
    pub use {rkyv, serde};
}
