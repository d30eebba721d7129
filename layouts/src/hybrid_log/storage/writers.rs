//! The writers of a log's segments: pages go through the first, what a rewrite copies through the second, to
//! segments of its own, the old generation. With one generation both go through the first.
//!
//! What it keeps true:
//! - A seal ends the open segments of both, and has succeeded only if both are durable.
//! - What was sealed through either is told with the next page, or the next seal. No page of a segment of the old
//!   generation is on its way to the index by then: the next copy that might end it waits for the answer of the one
//!   before, and a checkpoint gives up the rewrite that waits for one.

use alluvium_pagestore::{Result, SegmentInfo, SegmentStore, SegmentWriter};

use crate::hybrid_log::config::LogSizes;

/// One writer for each generation.
pub struct Writers {
    young: SegmentWriter,
    old: Option<SegmentWriter>,
}

impl Writers {
    /// Those that `sizes` are for, and book, of a state known by its fingerprint.
    pub fn new(store: &SegmentStore, state: u64, sizes: &LogSizes) -> Self {
        let of = |chunk| SegmentWriter::new(store.clone(), state, chunk, sizes.segment_bytes);
        let old = sizes.old_chunk_bytes.map(|chunk| of(chunk).images_max(sizes.old_images_max));
        Self { young: of(sizes.chunk_bytes), old }
    }

    /// For pages.
    pub fn for_pages(&mut self) -> &mut SegmentWriter {
        &mut self.young
    }

    /// For what a rewrite copies.
    pub fn for_copies(&mut self) -> &mut SegmentWriter {
        self.old.as_mut().unwrap_or(&mut self.young)
    }

    /// Ends the open segments, and makes them durable.
    pub fn seal(&mut self) -> Result<()> {
        let sealed = self.young.seal();
        // Also if that has failed: the next seal has less to do then.
        sealed.and(self.old.as_mut().map_or(Ok(()), SegmentWriter::seal))
    }

    /// The segments sealed since the last call.
    pub fn take_sealed(&mut self) -> Vec<SegmentInfo> {
        let mut sealed = self.young.take_sealed();
        sealed.extend(self.old.iter_mut().flat_map(SegmentWriter::take_sealed));
        sealed
    }

    /// Removes the open segments, and those that nobody was told are sealed.
    pub fn abandon(&mut self) {
        for writer in std::iter::once(&mut self.young).chain(&mut self.old) {
            writer.abandon();
            writer.remove_sealed();
        }
    }
}
