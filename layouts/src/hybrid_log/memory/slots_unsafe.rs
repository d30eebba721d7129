//! Slots: where in a frame's memory a record is, and the words that say what is known of it.
//!
//! A slot is a header of 8 bytes and an entry. Its `place` word is initialised when the frame is made and has the
//! `USED` bit exactly while the entry is initialised: it is looked at before the entry is touched. Who may touch it
//! when is for [frames](super::frame_unsafe) to see to.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::hybrid_log::marks::{FreshFilter, MarkEpoch};
use crate::hybrid_log::marks::{SINCE, TOUCHED, USED};
use crate::support::record_type_unsafe::{NativeEntry, RecordRef, RecordType};

/// What a slot begins with.
#[repr(C)]
pub(super) struct Header {
    /// The segment that has the record, once it is written: the owner's alone. Of no meaning while the
    /// record is fresh. In a frame of copies the slot that a record was copied from.
    pub(super) segment: u32,
    /// What is known of the record, see [`marks`](crate::hybrid_log::marks), and where it is in its segment once it is written.
    pub(super) place: AtomicU32,
}

/// Where things are in a slot: a header, then the entry. The same as in a `repr(C)` struct of the two.
#[derive(Clone, Copy)]
pub(in crate::hybrid_log) struct SlotLayout {
    /// Bytes of a slot.
    pub(in crate::hybrid_log) stride: usize,
    /// Where the entry is.
    entry: usize,
    pub(super) align: usize,
}

impl SlotLayout {
    /// That of slots for such entries.
    #[inline(always)]
    pub(in crate::hybrid_log) const fn of(entry: Layout) -> Self {
        let header = Layout::new::<Header>();
        let align = if entry.align() > header.align() { entry.align() } else { header.align() };
        let at = rounded_up(header.size(), entry.align());
        Self { stride: rounded_up(at + entry.size(), align), entry: at, align }
    }

    /// That of slots for these types, known to the compiler.
    #[inline(always)]
    pub(in crate::hybrid_log) const fn for_types<K, V>() -> Self {
        const { Self::of(Layout::new::<NativeEntry<K, V>>()) }
    }
}

/// Up to a multiple of an alignment, which is a power of two: without a division, as erased records ask each time.
#[inline(always)]
const fn rounded_up(bytes: usize, align: usize) -> usize {
    (bytes + align - 1) & !(align - 1)
}

/// Where a frame's slots are. Valid while a [`Memory`] of it lives. Packed, so that a frame's state stays
/// in one line.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(super) struct FrameSlots {
    pub(super) base: NonNull<u8>,
    pub(super) slots: u32,
}

// SAFETY: through shared slots, entries are only read (`FrozenFrame`), and those of a record type are
// `Sync`; the frame that may write them belongs to one thread at a time, and they are `Send`.
unsafe impl Send for FrameSlots {}
// SAFETY: as above; the `place` words are atomic.
unsafe impl Sync for FrameSlots {}

impl FrameSlots {
    #[inline(always)]
    pub(super) fn header(&self, stride: usize, slot: u32) -> *mut Header {
        let (base, slots) = (self.base, self.slots);
        assert!(slot < slots, "slot {slot} of {slots}");
        // SAFETY: `slot` is below the number of slots that `base` was allocated with, of this stride.
        unsafe { base.add(slot as usize * stride).as_ptr().cast() }
    }

    #[inline(always)]
    pub(super) fn place(&self, stride: usize, slot: u32) -> &AtomicU32 {
        // SAFETY: the word was initialised when the memory was made and is never written but
        // atomically.
        unsafe { &(*self.header(stride, slot)).place }
    }

    #[inline(always)]
    pub(super) fn is_used(&self, stride: usize, slot: u32) -> bool {
        self.place(stride, slot).load(Ordering::Relaxed) & USED != 0
    }

    /// Whether a record is fresh, and one of these.
    #[inline(always)]
    pub(super) fn is_due(&self, stride: usize, slot: u32, due: FreshFilter) -> bool {
        let word = self.place(stride, slot).load(Ordering::Relaxed);
        let since = word & SINCE;
        word & USED != 0 && since != 0 && since != due.not_since
    }

    /// Where the entry of a slot is.
    #[inline(always)]
    pub(super) fn entry_at(&self, shape: SlotLayout, slot: u32) -> *mut u8 {
        // SAFETY: a slot has its entry behind its header.
        unsafe { self.header(shape.stride, slot).cast::<u8>().add(shape.entry) }
    }

    /// The record in a used slot.
    #[inline]
    pub(super) fn record(
        &self,
        record_type: &'static RecordType,
        slot: u32,
    ) -> Option<RecordRef<'_>> {
        let shape = SlotLayout::of(record_type.layout());
        // SAFETY: a used slot's entry is initialised; it is not written while `self` is borrowed:
        // a frame's writers take `&mut Frame`, and a frozen frame has none.
        self.is_used(shape.stride, slot)
            .then(|| unsafe { RecordRef::new(record_type, self.entry_at(shape, slot)) })
    }
}

/// A frame's slots without its owner: for [`Frames`](crate::hybrid_log::frames_unsafe::Frames), which sees to
/// it that the frame is there. Null for no frame.
#[derive(Clone, Copy)]
pub(in crate::hybrid_log) struct FrameBase(pub(super) *mut u8);

impl FrameBase {
    pub(in crate::hybrid_log) const NONE: Self = Self(std::ptr::null_mut());

    #[inline(always)]
    pub(in crate::hybrid_log) fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// A place in the slot, for a prefetch.
    #[inline(always)]
    pub(in crate::hybrid_log) fn hint(self, stride: usize, slot: u32) -> *const u8 {
        self.0.wrapping_add(slot as usize * stride)
    }

    /// What is in a slot, if it is used and the record is fresh since this epoch, or is not fresh.
    ///
    /// # Safety
    /// The frame that this came from lives, has records of these types and more than `slot` slots; during `'a` its
    /// entries are reached through nothing that conflicts with the use of the entry.
    #[inline(always)]
    // SAFETY: the frame and what reaches its entries are the caller's to promise, as said above.
    pub(in crate::hybrid_log) unsafe fn spot<'a, K, V>(
        self,
        slot: u32,
        fresh: Option<MarkEpoch>,
    ) -> Option<SlotEntry<'a, K, V>> {
        let shape = SlotLayout::for_types::<K, V>();
        // SAFETY: the slot is in the frame; its `place` is initialised, and with `USED` its entry.
        unsafe {
            let slot = self.0.add(slot as usize * shape.stride);
            let wanted = USED | fresh.map_or(0, MarkEpoch::mark);
            let place = &(*slot.cast::<Header>()).place;
            let word = place.load(Ordering::Relaxed);
            if word & (USED | SINCE) != wanted {
                return None;
            }
            let entry = slot.add(shape.entry).cast::<NativeEntry<K, V>>();
            Some(SlotEntry { key: &(*entry).key, value: &raw mut (*entry).value, place, word })
        }
    }
}

/// An entry, and what its slot says of its record.
pub(in crate::hybrid_log) struct SlotEntry<'a, K, V> {
    pub(in crate::hybrid_log) key: &'a K,
    pub(in crate::hybrid_log) value: *mut V,
    place: &'a AtomicU32,
    word: u32,
}

impl<K, V> SlotEntry<'_, K, V> {
    /// The value of this fresh record is about to be changed.
    #[inline(always)]
    pub(in crate::hybrid_log) fn touch(&self) {
        // No helper changes the words of a frame that is not frozen.
        self.place.store(self.word | TOUCHED, Ordering::Relaxed);
    }
}
