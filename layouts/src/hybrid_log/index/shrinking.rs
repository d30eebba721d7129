//! How the index gives memory back: two sibling segments with few entries become one.
//!
//! What it keeps true: an entry that stays is found as before. Siblings whose entries have no room together stay apart.

use alluvium_pagestore::MemoryKind;

use super::bucket::{DISTANCE_MAX, IndexBucket, IndexEntry, SLOTS};
use super::growing::segment_bytes;
use super::{Index, IndexHash, PREFIX_BITS};
use crate::support::system_page::page_bytes;

/// Siblings become one segment if that is full to so many eighths at most: it is to take new entries for a while before it
/// is split again.
const FULL_EIGHTHS: usize = 6;
/// Of so many buckets of each sibling it is seen whether it is worth to count the rest: not if they are full to so many
/// eighths together.
const SAMPLED: usize = 16;
const SAMPLED_EIGHTHS: usize = 7;
/// After all were looked at in vain, none is until as many entries have gone as one segment in so many has slots, or one
/// in so many segments one.
const GONE_SHARE: usize = 4;
/// An index is sparse with entries for less than so many sixteenths of its slots. One that grows has more.
const SPARSE_SIXTEENTHS: u64 = 5;

impl Index {
    /// Pairs of segments that became one.
    pub fn joins(&self) -> u64 {
        self.joins
    }

    /// Segments that were looked at to join them.
    #[cfg(test)]
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Looks at so many segments from where it stopped before, and joins siblings that have few entries. Positions are not
    /// valid any more. Returns the bytes that were given back. Cost: some lines of two segments, for each.
    pub fn shrink(&mut self, segments: usize) -> u64 {
        let before = self.segments.len();
        for _ in 0..segments {
            if self.segments.bits() == 0 {
                break;
            }
            let number = self.segment_of(IndexHash::new(self.looked_to, 0));
            let (depth, prefix) = self.segments.shape(number);
            let next = prefix + 1;
            let is_joined = prefix & 1 == 0 && self.join(number);
            let end = (u64::from(next) + u64::from(is_joined)) << (PREFIX_BITS - depth);
            self.looked_to = if end < 1 << PREFIX_BITS { end as u32 } else { 0 };
        }
        let bytes = (before - self.segments.len()) as u64 * segment_bytes(self.buckets);
        self.account.release(MemoryKind::Index, bytes);
        bytes
    }

    /// Whether there are so few entries that many segments can be joined.
    pub fn is_sparse(&self) -> bool {
        let slots = (self.segments.len() * self.buckets * SLOTS) as u64;
        self.segments.bits() > 0 && 16 * self.len < SPARSE_SIXTEENTHS * slots
    }

    /// Whether the memory of a segment has a whole page wherever it begins, so that none of it stays resident for nothing
    /// when it is given back alone.
    pub fn gives_pages_back(&self) -> bool {
        self.buckets * size_of::<IndexBucket>() >= 2 * page_bytes()
    }

    /// Joins two segments, for one that has to be split, of so many that it looks at. Says whether there were two with few
    /// entries. Where all were looked at in vain, no more are until some entries have gone. Positions are not valid any
    /// more. Cost: some 2 KiB of the processor's cache for each.
    pub fn shrink_to_split(&mut self, looks: usize) -> bool {
        if self.looked_in_vain == 0 {
            let enough = (self.buckets * SLOTS).max(self.segments.len()) / GONE_SHARE;
            if self.all_in_vain && self.gone < enough as u64 {
                return false;
            }
            self.gone = 0;
        }
        let left = self.segments.len().saturating_sub(self.looked_in_vain);
        for _ in 0..left.min(looks) {
            if self.shrink(1) > 0 {
                return true;
            }
        }
        self.looked_in_vain += left.min(looks);
        if left <= looks {
            (self.looked_in_vain, self.all_in_vain) = (0, true);
        }
        false
    }

    /// Marks the homes of strays, which stand in no segment.
    fn mark_strays(&mut self, number: u32) {
        for (hash, _) in &self.strays {
            if self.segments.number_of(hash.0) == number {
                let home = hash.bucket() & (self.buckets - 1);
                self.segments.buckets_mut(number)[home].set_overflowed(true);
            }
        }
    }

    /// Joins a segment with its upper sibling, if that is no deeper and their entries have room together.
    fn join(&mut self, lower: u32) -> bool {
        let (depth, prefix) = self.segments.shape(lower);
        let upper = self.segment_of(IndexHash::new((prefix | 1) << (PREFIX_BITS - depth), 0));
        let is_sibling = self.segments.shape(upper) == (depth, prefix | 1);
        #[cfg(test)]
        {
            self.looked_at += 2 * u64::from(is_sibling);
        }
        let is_full = |buckets: usize, eighths: usize| {
            let entries_of = |number| -> usize {
                let buckets = &self.segments.buckets(number)[..buckets];
                buckets.iter().map(|bucket| bucket.used().count_ones() as usize).sum()
            };
            8 * (entries_of(lower) + entries_of(upper)) > eighths * buckets * SLOTS
        };
        if !is_sibling
            || is_full(SAMPLED.min(self.buckets), SAMPLED_EIGHTHS)
            || is_full(self.buckets, FULL_EIGHTHS)
        {
            return false;
        }
        let mut joined = self.segments.copy_of(lower);
        let has_room = put_all(self.segments.buckets(upper), &mut joined);
        if has_room {
            self.segments.buckets_mut(lower).copy_from_slice(&joined);
            self.segments.join(lower, upper);
            self.joins += 1;
            (self.looked_in_vain, self.all_in_vain) = (0, false);
            // The joined one may be the last, which takes the number of the upper one.
            self.mark_strays(self.segment_of(IndexHash::new(prefix << (PREFIX_BITS - depth), 0)));
        }
        self.segments.recycle(joined);
        has_room
    }
}

/// Puts the entries of one segment into another one. Says whether all had room.
fn put_all(from: &[IndexBucket], to: &mut [IndexBucket]) -> bool {
    let mask = to.len() - 1;
    let mut put = |at: usize, entry: IndexEntry| {
        let home = at.wrapping_sub(entry.distance as usize) & mask;
        let vacancy = (0..=DISTANCE_MAX).find_map(|distance| {
            let at = (home + distance) & mask;
            to[at].vacant().map(|slot| (distance, at, slot))
        });
        let Some((distance, at, slot)) = vacancy else { return false };
        to[at].put(slot, IndexEntry { distance: distance as u8, ..entry });
        if distance > 0 {
            to[home].set_overflowed(true);
        }
        true
    };
    from.iter().enumerate().all(|(at, bucket)| {
        let mut are_put = true;
        bucket.for_each(|_, entry| are_put = are_put && put(at, entry));
        are_put
    })
}
