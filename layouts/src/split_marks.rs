//! What a heap table in the order of hashes remembers of its last checkpoint: [marks](crate::heap_marks) of the entries
//! of some parts at a time, made as parts come.
//!
//! A barrier counts, whatever the number of parts; the marks of some parts swap roles when they are first used after it.
//! Most changes are of an entry that has changed before since the barrier: beside the parts stands which ones have, for the
//! record path to look at nothing else.
//!
//! What it keeps true: what is known of an entry moves with it. A part that is longer than it should be, as its hashes
//! agree in too many bits, has no marks, nor has one for whose marks there is no memory: then all of them
//! are [lost](SplitMarks::take_lost), and the next checkpoint is full.

use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, PlacedAt};

use crate::heap_marks::{EntryMarks, Mark, Marks, Place, may_begin};
use crate::split_table::{Beside, bucket_of, part_and_place};

/// Buckets of a part that has marks.
pub(crate) const PART_BUCKETS: usize = 128;
/// Parts whose marks are made together.
const PARTS: usize = 16;
const CHUNK_BUCKETS: usize = PARTS * PART_BUCKETS;

/// The marks of a table in parts; off if there are none.
#[derive(Debug)]
pub struct SplitMarks {
    account: Rc<Account>,
    is_on: bool,
    /// Of some parts each. Those that are not made have no bit, and no place.
    chunks: Vec<Option<Box<Marks>>>,
    /// Of each part.
    seen: Vec<Seen>,
    /// The how manieth checkpoint is, or was, taken.
    capture: u32,
    /// Bits that are set.
    count: u64,
    booked: u64,
    is_lost: bool,
}

/// Entries of a part of which it is known that they have changed since a barrier.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    words: [u64; PART_BUCKETS / 64],
    /// The how manieth.
    capture: u32,
}

impl SplitMarks {
    /// Whether they were lost since they were [begun](EntryMarks::begin), which is told once.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.is_lost)
    }

    #[cold]
    fn lose(&mut self) {
        self.give_up();
        self.is_lost = true;
    }

    fn chunk_bytes() -> u64 {
        let seen = PARTS * size_of::<Seen>();
        Marks::memory_bytes(CHUNK_BUCKETS) + (size_of::<Marks>() + seen) as u64 + 16
    }

    /// The chunk of a bucket, and the bucket there; `None` if there is none.
    #[inline(always)]
    fn number(bucket: usize) -> Option<(usize, usize)> {
        let (part, place) = part_and_place(bucket);
        (place < PART_BUCKETS).then(|| (part / PARTS, part % PARTS * PART_BUCKETS + place))
    }

    /// Reads the marks of a bucket, if they are made.
    #[inline]
    fn of<R>(&self, bucket: usize, read: impl FnOnce(&Marks, usize) -> R) -> Option<R> {
        let (chunk, at) = Self::number(bucket)?;
        Some(read(self.chunks.get(chunk)?.as_deref()?, at))
    }

    /// Changes the marks of a bucket, which are made if that `makes` them. Without room for them, they are all lost.
    #[inline]
    fn change_of<R: Default>(
        &mut self,
        bucket: usize,
        makes: bool,
        change: impl FnOnce(&mut Marks, usize) -> R,
    ) -> R {
        if !self.is_on {
            return R::default();
        }
        let Some((chunk, at)) = Self::number(bucket) else {
            if makes {
                self.lose();
            }
            return R::default();
        };
        let is_made = matches!(self.chunks.get(chunk), Some(Some(_)));
        if !is_made && (!makes || !self.make(chunk)) {
            return R::default();
        }
        let marks = self.chunks[chunk].as_deref_mut().expect("made above");
        let before = marks.count();
        marks.follow(self.capture);
        let result = change(marks, at);
        self.count = self.count + marks.count() - before;
        result
    }

    /// Makes the marks of some parts; says whether there was room.
    #[cold]
    fn make(&mut self, chunk: usize) -> bool {
        if !self.book(chunk + 1) {
            self.lose();
            return false;
        }
        let marks = Marks::booked_elsewhere(&self.account, CHUNK_BUCKETS, self.capture);
        self.chunks[chunk] = Some(Box::new(marks));
        true
    }

    /// Books the marks of so many chunks; says whether there was room.
    fn book(&mut self, chunks: usize) -> bool {
        let bytes = chunks.saturating_sub(self.chunks.len()) as u64 * Self::chunk_bytes();
        if bytes == 0 {
            return true;
        }
        let has_room = self.account.available() >= bytes;
        if !has_room || !self.account.try_reserve(MemoryKind::Index, bytes) {
            return false;
        }
        self.booked += bytes;
        self.chunks.resize_with(chunks, || None);
        self.seen.resize_with(chunks * PARTS, Seen::default);
        true
    }

    /// Whether the entry in a bucket has changed before since the barrier, as far as that was seen; it is seen now.
    #[inline(always)]
    fn see(&mut self, bucket: usize) -> bool {
        let (part, place) = part_and_place(bucket);
        let Some(seen) = self.seen.get_mut(part) else { return false };
        if seen.capture != self.capture {
            *seen = Seen { capture: self.capture, ..Seen::default() };
        }
        let Some(word) = seen.words.get_mut(place / 64) else { return false };
        let bit = 1 << (place % 64);
        let was_seen = *word & bit != 0;
        *word |= bit;
        was_seen
    }

    /// Entries of a part go, or move.
    fn unsee(&mut self, part: usize) {
        self.seen.get_mut(part).into_iter().for_each(|seen| seen.words = Default::default());
    }
}

impl EntryMarks for SplitMarks {
    fn off(account: Rc<Account>) -> Self {
        let (chunks, seen, is_on, is_lost) = (Vec::new(), Vec::new(), false, false);
        Self { account, is_on, chunks, seen, capture: 0, count: 0, booked: 0, is_lost }
    }

    #[inline]
    fn is_on(&self) -> bool {
        self.is_on
    }

    /// Cost: 25 bytes for each part.
    fn begin(&mut self, buckets: usize) {
        self.give_up();
        let chunks = buckets.div_ceil(CHUNK_BUCKETS);
        let bytes = chunks as u64 * Self::chunk_bytes();
        self.is_on = may_begin(&self.account, bytes) && self.book(chunks);
    }

    fn restored(&mut self, bucket: usize, at: PlacedAt) {
        self.unsee(part_and_place(bucket).0);
        self.change_of(bucket, true, |marks, bucket| marks.restored(bucket, at));
    }

    fn add(&mut self, bucket: usize) {
        self.change_of(bucket, true, EntryMarks::add);
    }

    #[inline]
    fn change(&mut self, bucket: usize) {
        if self.is_on && !self.see(bucket) {
            self.change_of(bucket, true, EntryMarks::change);
        }
    }

    fn remove(&mut self, bucket: usize) -> Place {
        self.unsee(part_and_place(bucket).0);
        self.change_of(bucket, false, EntryMarks::remove)
    }

    fn look_ahead_at_record(&self, bucket: usize) {
        self.of(bucket, EntryMarks::look_ahead_at_record);
    }

    fn take(&mut self, bucket: usize) -> Place {
        self.change_of(bucket, false, EntryMarks::take)
    }

    fn place(&self, bucket: usize) -> Place {
        self.of(bucket, EntryMarks::place).unwrap_or_default()
    }

    fn set_place(&mut self, bucket: usize, place: Place) {
        self.change_of(bucket, true, |marks, bucket| marks.set_place(bucket, place));
    }

    fn capture(&mut self) -> u64 {
        self.capture += 1;
        self.count
    }

    fn merge(&mut self, bucket: usize) {
        self.change_of(bucket, false, EntryMarks::merge);
    }

    fn end_capture(&mut self) {}

    fn is_captured(&self, bucket: usize) -> bool {
        self.of(bucket, EntryMarks::is_captured).unwrap_or(false)
    }

    fn captured_word(&self, bucket: usize) -> u64 {
        if !self.is_on {
            return u64::MAX;
        }
        self.of(bucket, EntryMarks::captured_word).unwrap_or(0)
    }

    fn owe(&mut self, bucket: usize) {
        self.change_of(bucket, true, EntryMarks::owe);
    }

    fn settle(&mut self, bucket: usize) {
        self.change_of(bucket, false, EntryMarks::settle);
    }

    fn give_up(&mut self) {
        *self = Self::off(self.account.clone());
    }
}

/// Marks that move with entries, and how often some have moved.
pub(crate) struct Moving<'a> {
    marks: &'a mut SplitMarks,
    moved: &'a mut u64,
    /// The marks of the part whose entries move.
    lifted: Option<[Mark; PART_BUCKETS]>,
}

impl<'a> Moving<'a> {
    pub fn new(marks: &'a mut SplitMarks, moved: &'a mut u64) -> Self {
        Self { marks, moved, lifted: None }
    }
}

impl Beside for Moving<'_> {
    fn lift(&mut self, part: u32) {
        *self.moved += 1;
        self.marks.unsee(part as usize);
        let chunk = self.marks.chunks.get(part as usize / PARTS);
        self.lifted = chunk.and_then(Option::as_ref).is_some().then(|| {
            let lift = |place| bucket_of(part as usize, place);
            std::array::from_fn(|place| self.marks.change_of(lift(place), false, Marks::lift))
        });
    }

    fn put(&mut self, from: usize, bucket: usize) {
        let lifted = self.lifted.as_ref().and_then(|lifted| lifted.get(from));
        let mark = lifted.copied().unwrap_or_default();
        if mark != Mark::default() {
            self.marks.change_of(bucket, true, |marks, bucket| marks.put(bucket, mark));
        }
    }
}

impl Drop for SplitMarks {
    fn drop(&mut self) {
        (self.chunks, self.seen) = (Vec::new(), Vec::new());
        self.account.release(MemoryKind::Index, self.booked);
    }
}
