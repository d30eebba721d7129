//! Frames: page-sized memory for native records, with a header of 8 bytes per slot.
//!
//! The `unsafe` of the hybrid log's memory is all here. It pays: a slot is reached by arithmetic
//! and a record is neither boxed nor zeroed; a checked `Vec<Option<_>>` per page costs a third of
//! the point updates.
//!
//! What makes it sound:
//! - A slot's `place` word has the `USED` bit exactly while its entry is initialised. The word is
//!   initialised when the frame is made and is checked before the entry is touched.
//! - A frame is owned by one thread. While it is frozen, that is while a [`FrozenFrame`] of it
//!   exists, nobody writes to entries or `USED` bits: [`Frame::thaw`] takes the frozen handle back
//!   before `frozen` is cleared, and every write asserts that it is.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::index::IndexHash;
use super::pool_unsafe::{Piece, piece_bytes};

#[repr(C)]
struct Slot<K, V> {
    hash: u32,
    /// `USED`, the epoch in which the record died if it has, and where it is in the frame's page
    /// image once that is written.
    place: AtomicU32,
    entry: std::mem::MaybeUninit<Entry<K, V>>,
}

#[repr(C)]
struct Entry<K, V> {
    key: K,
    value: V,
}

const USED: u32 = 1 << 31;
/// The record has died, but stays for whoever writes it: in an even epoch, or in an odd one.
const DIED: [u32; 2] = [1 << 30, 1 << 29];
const GRAIN: u32 = DIED[1] - 1;

/// Where a frame's slots are. Valid while a [`Memory`] of it lives.
struct Slots<K, V> {
    base: NonNull<Slot<K, V>>,
    slots: u32,
}

/// The memory of a frame, shared with the helper that writes it. Does not drop entries.
struct Memory<K, V> {
    slots: Slots<K, V>,
    _piece: Piece,
}

impl<K, V> Clone for Slots<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, V> Copy for Slots<K, V> {}

// SAFETY: through shared slots, entries are only read (`FrozenFrame`), which `Sync` allows; the
// frame that may write them belongs to one thread at a time, which `Send` allows.
unsafe impl<K: Send + Sync, V: Send + Sync> Send for Slots<K, V> {}
// SAFETY: as above; the `place` words are atomic.
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for Slots<K, V> {}

impl<K, V> Slots<K, V> {
    #[inline(always)]
    fn slot(&self, slot: u32) -> *mut Slot<K, V> {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        // SAFETY: `slot` is below the number of slots that `base` was allocated with.
        unsafe { self.base.add(slot as usize).as_ptr() }
    }

    #[inline(always)]
    fn place(&self, slot: u32) -> &AtomicU32 {
        // SAFETY: the word was initialised when the memory was made and is never written but
        // atomically.
        unsafe { &(*self.slot(slot)).place }
    }

    #[inline(always)]
    fn is_used(&self, slot: u32) -> bool {
        self.place(slot).load(Ordering::Relaxed) & USED != 0
    }

    #[inline(always)]
    fn entry(&self, slot: u32) -> Option<&Entry<K, V>> {
        // SAFETY: a used slot's entry is initialised; it is not written while `self` is borrowed:
        // a frame's writers take `&mut Frame`, and a frozen frame has none.
        self.is_used(slot).then(|| unsafe { (*self.slot(slot)).entry.assume_init_ref() })
    }
}

/// A frame's slots without its owner: for [`Frames`](super::frames_unsafe::Frames), which sees to
/// it that the frame is there. Null for no frame.
pub(super) struct Base<K, V>(*mut Slot<K, V>);

impl<K, V> Clone for Base<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, V> Copy for Base<K, V> {}

impl<K, V> Base<K, V> {
    pub(super) const NONE: Self = Self(std::ptr::null_mut());

    #[inline(always)]
    pub(super) fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// A place in the slot, for a prefetch.
    #[inline(always)]
    pub(super) fn hint(self, slot: u32) -> *const u8 {
        self.0.wrapping_add(slot as usize).cast()
    }

    /// The entry in a slot, if it is used.
    ///
    /// # Safety
    /// The frame that this came from lives and has more than `slot` slots; during `'a` its entries
    /// are reached through nothing that conflicts with the use of the entry.
    #[inline(always)]
    // SAFETY: the frame and what reaches its entries are the caller's to promise, as said above.
    pub(super) unsafe fn entry<'a>(self, slot: u32) -> Option<(&'a K, *mut V)> {
        // SAFETY: the slot is in the frame; its `place` is initialised, and with `USED` its entry.
        unsafe {
            let slot = self.0.add(slot as usize);
            if (*slot).place.load(Ordering::Relaxed) & USED == 0 {
                return None;
            }
            let entry = (&raw mut (*slot).entry).cast::<Entry<K, V>>();
            Some((&(*entry).key, &raw mut (*entry).value))
        }
    }
}

/// A page of native records in memory, owned by one table.
pub struct Frame<K, V> {
    /// The same as in `memory`, to save a load per access.
    memory: Slots<K, V>,
    owner: Arc<Memory<K, V>>,
    used: u32,
    /// Where the search for an unused slot goes on.
    next: u32,
    frozen: bool,
}

/// A frame as the helper sees it that writes it: read-only.
pub struct FrozenFrame<K, V>(Arc<Memory<K, V>>);

impl<K, V> Frame<K, V> {
    /// Bytes of one slot.
    pub const SLOT_BYTES: usize = size_of::<Slot<K, V>>();

    /// The piece of memory that a frame of so many slots takes.
    pub fn layout(slots: u32) -> Layout {
        let bytes = piece_bytes(slots as usize * Self::SLOT_BYTES);
        Layout::from_size_align(bytes, align_of::<Slot<K, V>>()).expect("a page's size")
    }

    /// Bytes that a frame of so many slots takes.
    pub fn memory_bytes(slots: u32) -> usize {
        // The shared handle has two counters, two pointers and three numbers.
        alluvium_pagestore::rounded(Self::layout(slots).size())
            + alluvium_pagestore::rounded(56)
            + if align_of::<Slot<K, V>>() > 16 { align_of::<Slot<K, V>>() } else { 0 }
    }

    /// An empty frame in a piece of the [`layout`](Frame::layout) for so many slots. Touches all of
    /// its memory.
    pub fn new(slots: u32, piece: Piece) -> Self {
        assert_eq!(piece.bytes(), Self::layout(slots).size(), "the piece is of another layout");
        let base = piece.start().cast::<Slot<K, V>>();
        assert!(base.is_aligned(), "the piece is of another layout");
        for slot in 0..slots as usize {
            // SAFETY: `slot` is within the piece; the word is written before it is read.
            unsafe { (&raw mut (*base.add(slot).as_ptr()).place).write(AtomicU32::new(0)) };
        }
        let memory = Slots { base, slots };
        let owner = Arc::new(Memory { slots: memory, _piece: piece });
        Self { memory, owner, used: 0, next: 0, frozen: false }
    }

    /// Where its slots are, while entries may be changed.
    pub(super) fn base(&self) -> Base<K, V> {
        if self.frozen { Base::NONE } else { Base(self.memory.base.as_ptr()) }
    }

    /// Slots, used or not.
    pub fn slots(&self) -> u32 {
        self.memory.slots
    }

    /// Used slots.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// The slot that the next [`put`](Frame::put) should take. Cost: the slots passed over, each
    /// of which is passed over once per round.
    pub fn vacant(&mut self) -> Option<u32> {
        if self.used == self.memory.slots {
            return None;
        }
        let slots = self.memory.slots;
        let found = (0..slots)
            .map(|step| self.next + step)
            .map(|slot| if slot >= slots { slot - slots } else { slot })
            .find(|&slot| !self.memory.is_used(slot));
        self.next = found?;
        found
    }

    /// Key and value in a slot.
    #[inline(always)]
    pub fn get(&self, slot: u32) -> Option<(&K, &V)> {
        self.memory.entry(slot).map(|entry| (&entry.key, &entry.value))
    }

    /// Key and value in a slot, to be changed. The key must stay equal.
    ///
    /// # Panics
    /// If the frame is frozen.
    #[inline(always)]
    pub fn get_mut(&mut self, slot: u32) -> Option<(&K, &mut V)> {
        assert!(!self.frozen, "a frozen frame is never changed");
        // SAFETY: a used slot's entry is initialised; the frame is not frozen, so that `&mut self`
        // is the only way to it.
        self.memory.is_used(slot).then(|| unsafe {
            let entry = (*self.memory.slot(slot)).entry.assume_init_mut();
            (&entry.key, &mut entry.value)
        })
    }

    /// The hash that a used slot was put with.
    #[inline]
    pub fn hash(&self, slot: u32) -> Option<IndexHash> {
        // SAFETY: a used slot's hash was written before its `USED` bit.
        self.memory.is_used(slot).then(|| IndexHash(unsafe { (*self.memory.slot(slot)).hash }))
    }

    /// Where the record is in the frame's page image, in grains; of use once it is written.
    pub fn grain(&self, slot: u32) -> u32 {
        self.memory.place(slot).load(Ordering::Relaxed) & GRAIN
    }

    /// Notes that the record in a used slot has died in this epoch, and leaves it there: it is being
    /// written, or is yet to be.
    pub fn mark_dead(&mut self, slot: u32, epoch: u32) {
        debug_assert!(self.memory.is_used(slot) && self.death(slot).is_none());
        let (place, died) = (self.memory.place(slot), DIED[epoch as usize % 2]);
        if self.frozen {
            place.fetch_or(died, Ordering::Relaxed);
        } else {
            // No helper changes the word meanwhile.
            place.store(place.load(Ordering::Relaxed) | died, Ordering::Relaxed);
        }
    }

    /// If the record in a slot was [marked](Frame::mark_dead): whether its epoch was an odd one.
    pub fn death(&self, slot: u32) -> Option<bool> {
        match self.memory.place(slot).load(Ordering::Relaxed) & (DIED[0] | DIED[1]) {
            0 => None,
            died => Some(died == DIED[1]),
        }
    }

    /// Puts an entry into an unused slot.
    ///
    /// # Panics
    /// If the frame is frozen or the slot used.
    #[inline]
    pub fn put(&mut self, slot: u32, hash: IndexHash, key: K, value: V) {
        assert!(!self.frozen && !self.memory.is_used(slot), "slot {slot} is not free");
        let target = self.memory.slot(slot);
        // SAFETY: the slot is unused and the frame not frozen: nobody else reads or writes it.
        unsafe {
            (&raw mut (*target).hash).write(hash.0);
            (*target).entry.write(Entry { key, value });
        }
        self.memory.place(slot).store(USED, Ordering::Relaxed);
        self.used += 1;
        self.next = slot + 1;
        if self.next == self.memory.slots {
            self.next = 0;
        }
    }

    /// Takes the entry out of a used slot.
    ///
    /// # Panics
    /// If the frame is frozen or the slot unused.
    pub fn take(&mut self, slot: u32) -> (IndexHash, K, V) {
        assert!(!self.frozen && self.memory.is_used(slot), "slot {slot} holds nothing to take");
        self.memory.place(slot).store(0, Ordering::Relaxed);
        self.used -= 1;
        let source = self.memory.slot(slot);
        // SAFETY: the entry was initialised, and the cleared bit says that it is not any more.
        unsafe {
            let Entry { key, value } = (*source).entry.assume_init_read();
            (IndexHash((*source).hash), key, value)
        }
    }

    /// Lets a helper read the frame. Until [`thaw`](Frame::thaw) nothing in it changes.
    ///
    /// # Panics
    /// If it is frozen already.
    pub fn freeze(&mut self) -> FrozenFrame<K, V> {
        assert!(!self.frozen, "a frame is frozen once");
        self.frozen = true;
        FrozenFrame(self.owner.clone())
    }

    /// Takes back what [`freeze`](Frame::freeze) gave.
    ///
    /// # Panics
    /// If it is another frame's.
    pub fn thaw(&mut self, frozen: FrozenFrame<K, V>) {
        assert!(Arc::ptr_eq(&self.owner, &frozen.0), "the frozen handle of another frame");
        self.frozen = false;
    }

    /// Drops all entries. Cost: one drop per entry; nothing if entries need none.
    pub fn clear(&mut self) {
        assert!(!self.frozen, "a frozen frame is never changed");
        for slot in 0..self.memory.slots {
            if self.used == 0 {
                break;
            }
            if self.memory.is_used(slot) {
                drop(self.take(slot));
            }
        }
        self.next = 0;
    }
}

impl<K, V> Drop for Frame<K, V> {
    fn drop(&mut self) {
        if self.frozen {
            // The helper was lost or has not answered: its values cannot be dropped safely now.
            return;
        }
        self.clear();
    }
}

impl<K, V> FrozenFrame<K, V> {
    /// Slots, used or not.
    pub fn slots(&self) -> u32 {
        self.0.slots.slots
    }

    /// Key and value in a slot.
    pub fn get(&self, slot: u32) -> Option<(&K, &V)> {
        self.0.slots.entry(slot).map(|entry| (&entry.key, &entry.value))
    }

    /// Says where the record in a used slot is in the page image.
    pub fn set_grain(&self, slot: u32, grain: u32) {
        debug_assert!(grain <= GRAIN);
        // The owner may mark the record as dead meanwhile.
        let place = self.0.slots.place(slot);
        let _ = place
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(old & !GRAIN | grain));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn frame<K, V>(slots: u32) -> Frame<K, V> {
        Frame::new(slots, Piece::allocated(Frame::<K, V>::layout(slots)))
    }

    struct Counted(Arc<AtomicUsize>, u64);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn entries_are_dropped_once_whatever_happens_to_them() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut frame = frame(4);
        for i in 0..4 {
            let slot = frame.vacant().unwrap();
            frame.put(slot, IndexHash(i as u32), i, Counted(dropped.clone(), i));
        }
        assert_eq!(frame.vacant(), None);
        let (hash, key, value) = frame.take(2);
        assert_eq!((hash, key, value.1), (IndexHash(2), 2, 2));
        drop(value);
        assert_eq!(frame.vacant(), Some(2));
        let frozen = frame.freeze();
        assert_eq!(frozen.get(3).map(|(key, value)| (*key, value.1)), Some((3, 3)));
        assert!(frozen.get(2).is_none());
        frozen.set_grain(3, 99);
        frame.thaw(frozen);
        assert_eq!(frame.grain(3), 99);
        assert_eq!(frame.get(3).map(|(_, value)| value.1), Some(3));
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        drop(frame);
        assert_eq!(dropped.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn a_frozen_frame_is_read_from_two_threads() {
        let mut frame = frame(64);
        for i in 0..64u32 {
            frame.put(i, IndexHash(i), u64::from(i), vec![String::from("value"); i as usize]);
        }
        let frozen = frame.freeze();
        let helper = std::thread::spawn(move || {
            let strings: usize = (0..64).filter_map(|s| frozen.get(s)).map(|(_, v)| v.len()).sum();
            (0..64).for_each(|slot| frozen.set_grain(slot, slot + 1));
            (frozen, strings)
        });
        let strings: usize = (0..64).filter_map(|s| frame.get(s)).map(|(_, v)| v.len()).sum();
        let (frozen, theirs) = helper.join().unwrap();
        assert_eq!((strings, theirs), (2016, 2016));
        frame.thaw(frozen);
        assert_eq!((frame.grain(5), frame.take(5).2.len()), (6, 5));
    }

    #[test]
    fn a_record_marked_dead_is_there_until_it_is_taken() {
        let mut frame = frame(2);
        frame.put(0, IndexHash(0), 1u8, 1u8);
        frame.put(1, IndexHash(1), 2u8, 2u8);
        let frozen = frame.freeze();
        frame.mark_dead(0, 4);
        frozen.set_grain(0, 77);
        frozen.set_grain(1, 78);
        frame.mark_dead(1, 7);
        assert_eq!((frozen.get(0), frozen.get(1)), (Some((&1, &1)), Some((&2, &2))));
        frame.thaw(frozen);
        assert_eq!((frame.death(0), frame.death(1)), (Some(false), Some(true)));
        assert_eq!((frame.grain(0), frame.grain(1)), (77, 78));
        frame.take(0);
        assert_eq!((frame.death(0), frame.get(0), frame.used()), (None, None, 1));
    }

    #[test]
    #[should_panic(expected = "a frozen frame is never changed")]
    fn a_frozen_frame_cannot_be_written() {
        let mut frame = frame(1);
        frame.put(0, IndexHash(0), 1u8, 1u8);
        let _frozen = frame.freeze();
        frame.get_mut(0);
    }
}
