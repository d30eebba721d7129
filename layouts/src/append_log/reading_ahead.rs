//! Runs that are read ahead: their blocks are in memory until a read has used them, or memory is short.

use std::sync::Arc;

use alluvium_pagestore::block::AlignedVec;
use alluvium_pagestore::io::BLOCK_BYTES;
use alluvium_pagestore::{MemoryKind, Result, Time, rounded};

use super::core::ListsCore;
use super::run::{CachedBlocks, StoredRun, window_bytes_min};

impl ListsCore {
    /// Has the runs of buckets before `until` read ahead, as far as memory goes.
    pub(super) fn read_ahead(&mut self, until: Time) {
        let Some(source) = &self.source else { return };
        let (state, chunk) = (source.state, self.sizes.chunk_bytes as u64);
        let mut room = self.account.available().saturating_sub(self.sizes.want_free);
        for (time, bucket) in self.buckets.range_mut(..until) {
            for run in &mut bucket.runs {
                let wanted = run.memory.is_none() && run.cached.is_none() && !run.busy;
                let Some(stored) = run.stored.as_ref().filter(|_| wanted) else { continue };
                let (bytes, window) = (cached_bytes(stored), window_ahead(stored, chunk));
                if room < bytes + window + 2 * stored.longest() {
                    return;
                }
                // All of it is booked until the helper has read the run.
                room -= bytes + window;
                run.busy = true;
                let name = (*time, run.number);
                self.account.charge(MemoryKind::Buffers, bytes + window);
                self.jobs.read_ahead(name, (**stored).clone(), (bytes, window), state);
            }
        }
    }

    /// A run was read ahead, or could not be; then whoever needs it reads it, and is told.
    pub(super) fn take_read_ahead(
        &mut self,
        (time, number): (Time, u64),
        (bytes, window): (u64, u64),
        result: Result<Vec<AlignedVec>>,
    ) {
        self.account.release(MemoryKind::Buffers, window);
        let read = result.is_ok();
        let cached =
            result.ok().map(|blocks| CachedBlocks { blocks: Arc::new(blocks), bytes, used: false });
        if read {
            self.stats.prefetched_bytes += bytes;
        }
        match (self.run_mut(time, number), cached) {
            (Some(run), Some(cached)) => {
                run.busy = false;
                run.cached = Some(cached);
                self.may_be_clean = true;
            }
            (Some(run), None) => {
                run.busy = false;
                self.account.release(MemoryKind::Buffers, bytes);
            }
            (None, Some(cached)) => self.drop_cached(cached),
            (None, None) => self.account.release(MemoryKind::Buffers, bytes),
        }
    }

    pub(super) fn drop_cached(&mut self, cached: CachedBlocks) {
        if !cached.used {
            self.stats.prefetch_wasted_bytes += cached.bytes;
        }
        self.account.release(MemoryKind::Buffers, cached.bytes);
    }
}

/// Bytes of the window that a run is read ahead through: no longer than the run.
fn window_ahead(stored: &StoredRun, chunk_bytes: u64) -> u64 {
    let all = stored.bytes().next_multiple_of(BLOCK_BYTES as u64) + BLOCK_BYTES as u64;
    chunk_bytes.min(all).max(window_bytes_min(stored))
}

/// Bytes that the blocks of a run take in memory.
fn cached_bytes(stored: &StoredRun) -> u64 {
    let blocks = stored.blocks.iter().map(|block| rounded(block.record.len as usize + 16) as u64);
    blocks.sum::<u64>() + rounded(stored.blocks.len() * 32) as u64
}
