//! The segments of the index and the directory to them.
//!
//! The directory leads to a segment's buckets in one load. It pays: through a number and a table of
//! segments a probe takes two more loads, one of them beyond the first cache at 10 M keys.
//!
//! What makes it sound: a directory entry is the start of the buckets of a segment in `all`:
//! segments are added, or dropped once no entry leads to them. Buckets are reached through `&self` or `&mut self`
//! of this struct only, and never through a reference that is kept.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::bucket::IndexBucket;
use crate::hybrid_log::pool_unsafe::{PiecePool, PoolPiece};

/// One segment.
#[derive(Debug)]
pub struct IndexSegment {
    piece: PoolPiece,
    /// Levels below the root.
    pub depth: u32,
    /// The top `depth` bits of the hashes in it.
    pub prefix: u32,
}

/// All segments.
#[derive(Debug)]
pub struct Segments {
    all: Vec<IndexSegment>,
    /// Room for the buckets of a segment that is being split.
    old: Vec<IndexBucket>,
    /// Buckets per segment, a power of two.
    buckets: usize,
    /// `buckets - 1`.
    mask: usize,
    /// The first bucket of the segment of each value of the top `bits` of the hash, and its number.
    homes: Vec<NonNull<IndexBucket>>,
    numbers: Vec<u32>,
    /// `32 - bits`; both vectors have `1 << bits` entries.
    shift: u32,
}

impl Segments {
    /// Bytes that one entry of the directory takes.
    pub const ENTRY_BYTES: [usize; 2] = [size_of::<NonNull<IndexBucket>>(), size_of::<u32>()];

    /// The memory of a segment.
    pub fn layout(buckets: usize) -> Layout {
        Layout::array::<IndexBucket>(buckets).expect("up to 256 buckets")
    }

    /// One empty segment of `buckets`.
    pub fn new(buckets: usize, pool: &mut PiecePool) -> Self {
        assert!(buckets.is_power_of_two(), "{buckets} buckets");
        let mut new = Self {
            all: Vec::new(),
            old: Vec::with_capacity(buckets),
            buckets,
            mask: buckets - 1,
            homes: Vec::new(),
            numbers: Vec::new(),
            shift: 32,
        };
        new.all.reserve_exact(1);
        new.all.push(new.empty(0, 0, pool));
        new.homes = vec![new.all[0].piece.start().cast()];
        new.numbers = vec![0];
        new
    }

    fn empty(&self, depth: u32, prefix: u32, pool: &mut PiecePool) -> IndexSegment {
        let piece = pool.take();
        let layout = Self::layout(self.buckets);
        assert!(piece.bytes() == layout.size(), "the pool is for other segments");
        let start = piece.start().cast::<IndexBucket>();
        assert!(start.is_aligned(), "the pool is for other segments");
        for bucket in 0..self.buckets {
            // SAFETY: the piece is ours and has room for so many buckets.
            unsafe { start.add(bucket).write(IndexBucket::EMPTY) };
        }
        IndexSegment { piece, depth, prefix }
    }

    /// Back to one empty segment, to which all of the directory leads; the others are [dropped](Segments::drop_last) one
    /// by one.
    pub fn leave_all(&mut self) {
        self.homes = vec![self.all[0].piece.start().cast()];
        (self.numbers, self.shift) = (vec![0], 32);
        (self.all[0].depth, self.all[0].prefix) = (0, 0);
        self.buckets_mut(0).fill(IndexBucket::EMPTY);
    }

    /// Gives the memory of a segment back that was [left](Segments::leave_all), and at last that of the table of them; says
    /// whether there was one.
    pub fn drop_last(&mut self) -> bool {
        assert!(self.homes.len() == 1, "the directory leads to others");
        if self.all.len() > 1 {
            self.all.pop();
            return true;
        }
        self.all.shrink_to_fit();
        false
    }

    /// Segments.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Segments that there is room for before the table of them grows.
    pub fn capacity(&self) -> usize {
        self.all.capacity()
    }

    /// Entries of the directory, and how many its vectors have room for.
    pub fn directory(&self) -> (usize, [usize; 2]) {
        (self.homes.len(), [self.homes.capacity(), self.numbers.capacity()])
    }

    /// Bits of the hash that choose an entry of the directory.
    pub fn bits(&self) -> u32 {
        32 - self.shift
    }

    /// A segment's depth and prefix.
    pub fn shape(&self, number: u32) -> (u32, u32) {
        let segment = &self.all[number as usize];
        (segment.depth, segment.prefix)
    }

    #[inline(always)]
    fn entry(&self, top: u32) -> usize {
        // Shifting in 64 bits makes zero bits safe.
        (u64::from(top) >> self.shift) as usize
    }

    /// The number of the segment that a hash, from its top bits on, belongs to.
    #[inline(always)]
    pub fn number_of(&self, top: u32) -> u32 {
        self.numbers[self.entry(top)]
    }

    /// A bucket of the segment that a hash belongs to; the bucket's number is taken modulo.
    #[inline(always)]
    pub fn bucket_of(&self, top: u32, bucket: usize) -> &IndexBucket {
        let entry = self.entry(top);
        debug_assert!(entry < self.homes.len());
        // SAFETY: the top `bits` of 32 are below `1 << bits`, the length. The directory leads to live
        // segments of `mask + 1` buckets, which are written through `&mut self` only.
        unsafe { self.homes.get_unchecked(entry).add(bucket & self.mask).as_ref() }
    }

    /// A segment's buckets.
    #[inline(always)]
    pub fn buckets(&self, number: u32) -> &[IndexBucket] {
        let start = self.all[number as usize].piece.start().cast::<IndexBucket>();
        // SAFETY: the piece holds so many buckets, initialised when it was taken.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.buckets) }
    }

    /// A segment's buckets, to be changed.
    #[inline(always)]
    pub fn buckets_mut(&mut self, number: u32) -> &mut [IndexBucket] {
        let start = self.all[number as usize].piece.start().cast::<IndexBucket>();
        // SAFETY: as above; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.buckets) }
    }

    /// Splits a segment into two empty halves: one in its place, one with the next number. Returns
    /// that and the buckets it had.
    pub fn split(&mut self, number: u32, pool: &mut PiecePool) -> (u32, Vec<IndexBucket>) {
        let (depth, prefix) = self.shape(number);
        let old = self.copy_of(number);
        self.buckets_mut(number).fill(IndexBucket::EMPTY);
        let lower = &mut self.all[number as usize];
        (lower.depth, lower.prefix) = (depth + 1, prefix << 1);
        let upper = self.empty(depth + 1, prefix << 1 | 1, pool);
        self.all.push(upper);
        let upper = self.all.len() as u32 - 1;
        if depth == self.bits() {
            self.homes = self.homes.iter().flat_map(|&home| [home, home]).collect();
            self.numbers = self.numbers.iter().flat_map(|&number| [number, number]).collect();
            self.shift -= 1;
        }
        self.point(upper);
        (upper, old)
    }

    /// A copy of a segment's buckets.
    pub fn copy_of(&mut self, number: u32) -> Vec<IndexBucket> {
        let mut copy = std::mem::take(&mut self.old);
        copy.extend_from_slice(self.buckets(number));
        copy
    }

    /// Has a segment stand for its upper sibling too, and drops that. The last segment takes its number.
    pub fn join(&mut self, lower: u32, upper: u32) {
        let (depth, prefix) = self.shape(lower);
        assert!(
            prefix & 1 == 0 && self.shape(upper) == (depth, prefix | 1),
            "{lower} and {upper} are no siblings"
        );
        let both = &mut self.all[lower as usize];
        (both.depth, both.prefix) = (depth - 1, prefix >> 1);
        // From here on no entry of the directory leads to the upper one.
        self.point(lower);
        self.all.swap_remove(upper as usize).piece.give_back();
        if (upper as usize) < self.all.len() {
            self.point(upper);
        }
    }

    /// Takes back what [`split`](Segments::split) or [`copy_of`](Segments::copy_of) gave.
    pub fn recycle(&mut self, mut old: Vec<IndexBucket>) {
        old.clear();
        self.old = old;
    }

    /// Points the directory's entries for a segment's prefix to it.
    fn point(&mut self, number: u32) {
        let IndexSegment { depth, prefix, .. } = self.all[number as usize];
        let width = 1usize << (self.bits() - depth);
        let first = prefix as usize * width;
        let home = self.all[number as usize].piece.start().cast();
        self.homes[first..first + width].fill(home);
        self.numbers[first..first + width].fill(number);
    }
}
