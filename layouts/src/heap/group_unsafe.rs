//! Memory of a heap table: blocks of slots, with a tag for each.
//!
//! ```text
//! block:  ... [ slot 1 ][ slot 0 ] | [ head, 64 bytes ][ tags ][ the first 16 tags again ][ bits ]
//!                                  ^ a pointer to a block leads here
//! bits:   [ changed, captured, owed ] for each group of 16 slots
//! ```
//!
//! A tag is 0 for an empty slot, else 7 bits of the hash and the highest bit. A block of few entries has fewer slots than
//! a group: the others have a tag without the highest bit. A hash names the slot where its *window*
//! begins: 16 slots, whose tags are compared at once. An insert takes the first empty slot of the window, or of the one
//! behind it. `passed` counts, for each group, the entries that went past a full window that begins there. A look-up ends
//! at a window where it is 0, so there are no tombstones. It stays at 255 once it was there.
//!
//! Slots are before the head, so that the way from a block to an entry does not depend on the length of the block. Tags
//! are close together: those of 100 K entries take 150 KB and stay in the second cache, whatever entries take.
//!
//! What it keeps true: a slot with a tag holds an initialised entry, and no other slot does; blocks are reached by the
//! table that owns them only.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use alluvium_pagestore::rounded;

/// Slots of a group, and of a window.
pub(crate) const SLOTS: usize = 16;
/// Most groups of a block, and the most bytes of the entries of one with several groups.
pub(super) const GROUPS_MAX: usize = 32;
const BLOCK_BYTES: usize = 64 << 10;
/// Most entries of a block.
pub(super) const BLOCK_ENTRIES_MAX: u64 = entries_max(GROUPS_MAX) as u64;
/// Fewest slots of a block.
pub(super) const SLOTS_MIN: usize = 4;
/// The tag of a slot that a block lacks.
const LACKING: u8 = 1;
/// From a block to its tags.
const TAGS: usize = size_of::<BlockHead>();

/// Returns the number of entries of a full block of `groups` groups. With more than 7 in 8 slots, windows are full too
/// often.
#[inline]
pub(super) const fn entries_max(groups: usize) -> usize {
    groups * SLOTS * 7 / 8
}

/// Returns the number of entries of a full block of `slots` slots.
pub(super) const fn entries_max_of(slots: usize) -> usize {
    if slots < SLOTS { slots } else { entries_max(slots / SLOTS) }
}

/// Sizes of a block for entries of some layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockShape {
    /// Alignment of a block.
    align: u32,
    /// Size of an entry.
    size: u32,
    /// Most groups of a block.
    groups_max: u32,
}

impl BlockShape {
    pub const fn of(entry: Layout) -> Self {
        let align = if entry.align() > TAGS { entry.align() } else { TAGS };
        let mut groups_max = GROUPS_MAX;
        while groups_max > 1 && groups_max * SLOTS * entry.size() > BLOCK_BYTES {
            groups_max /= 2;
        }
        assert!(entry.size() <= i32::MAX as usize, "an entry is no larger than 2 GiB");
        Self { align: align as u32, size: entry.size() as u32, groups_max: groups_max as u32 }
    }

    /// Returns the size of an entry.
    #[inline(always)]
    pub const fn size(self) -> usize {
        self.size as usize
    }

    /// Returns the most slots of a block.
    pub fn slots_max(self) -> usize {
        self.groups_max() * SLOTS
    }

    /// Returns the most groups of a block.
    pub fn groups_max(self) -> usize {
        self.groups_max as usize
    }

    /// Limits the number of groups of a block.
    pub fn with_groups_max(self, groups_max: usize) -> Self {
        Self { groups_max: self.groups_max.min(groups_max as u32), ..self }
    }

    /// Returns the bytes before the head of a block: its entries.
    fn entries_bytes(self, slots: usize) -> usize {
        (slots * self.size()).next_multiple_of(self.align as usize)
    }

    fn layout(self, slots: usize) -> Layout {
        let groups = slots.div_ceil(SLOTS);
        let bits = groups * size_of::<GroupBits>();
        let bytes = self.entries_bytes(slots) + bits_at(groups * SLOTS) + bits;
        Layout::from_size_align(bytes, self.align as usize).expect("no more than there is memory")
    }

    /// Returns the memory of a block of `slots` slots, with what the allocator may need to align it.
    pub fn block_bytes(self, slots: usize) -> u64 {
        (rounded(self.layout(slots).size()) + self.align as usize) as u64
    }

    /// Returns the memory of a block's places.
    pub fn places_bytes(groups: usize) -> u64 {
        rounded(groups * SLOTS * size_of::<u32>()) as u64
    }
}

/// Returns the distance from a block of `slots` slots to the bits of its first group.
#[inline(always)]
fn bits_at(slots: usize) -> usize {
    TAGS + slots + SLOTS
}

/// The head of a block.
#[repr(C)]
pub(super) struct BlockHead {
    /// The next block of a chain, for entries whose hashes agree in too many bits.
    pub next: Option<BlockPointer>,
    /// Places of records, by slot.
    places: Option<NonNull<u32>>,
    /// Groups that may have a bit set.
    pub dirty: u64,
    /// The barrier that `changed` counts from.
    pub epoch: u32,
    /// Entries.
    pub len: u16,
    /// Bits of the prefix that all hashes here share.
    pub depth: u8,
    /// Groups.
    groups: u8,
    /// Entries that went past a full window that begins in a group.
    passed: [u8; GROUPS_MAX],
}

/// Bits for checkpoints, one for each slot of a group.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct GroupBits {
    /// Entries that changed since the barrier of the block's epoch.
    pub changed: u16,
    /// Entries that the checkpoint of that barrier still has to read.
    pub captured: u16,
    /// Entries that it has read, but not written yet.
    pub owed: u16,
}

const _: () = assert!(size_of::<BlockHead>() == 64);

impl GroupBits {
    /// Returns whether any bit is set.
    #[inline]
    pub fn any(self) -> bool {
        self.count() > 0
    }

    /// Counts the bits that are set.
    #[inline]
    pub fn count(self) -> u32 {
        self.changed.count_ones() + self.captured.count_ones() + self.owed.count_ones()
    }
}

/// Returns the tag of a hash.
#[inline(always)]
pub(super) fn tag_of(hash: u64) -> u8 {
    (hash >> 24) as u8 | 0x80
}

/// The tags of a window.
#[derive(Clone, Copy)]
pub(super) struct TagWindow([u8; SLOTS]);

impl TagWindow {
    /// Returns the slots that have `tag`, as bits from the start of the window.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub fn matches(self, tag: u8) -> u16 {
        use std::arch::x86_64::{
            _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
        };
        // SAFETY: all processors of this kind have SSE2, and 16 bytes are there.
        unsafe {
            let tags = _mm_loadu_si128(self.0.as_ptr().cast());
            _mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8(tag.cast_signed()))) as u16
        }
    }

    /// Returns the slots that have an entry.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub fn occupied(self) -> u16 {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_movemask_epi8};
        // SAFETY: all processors of this kind have SSE2, and 16 bytes are there.
        unsafe { _mm_movemask_epi8(_mm_loadu_si128(self.0.as_ptr().cast())) as u16 }
    }

    #[inline(always)]
    #[cfg(not(target_arch = "x86_64"))]
    pub fn occupied(self) -> u16 {
        self.0.iter().rev().fold(0, |bits, found| bits << 1 | u16::from(*found >> 7))
    }

    #[inline(always)]
    #[cfg(not(target_arch = "x86_64"))]
    pub fn matches(self, tag: u8) -> u16 {
        self.0.iter().rev().fold(0, |bits, found| bits << 1 | u16::from(*found == tag))
    }
}

/// A pointer to a block. The table owns the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct BlockPointer(NonNull<u8>);

/// Access to a block.
///
/// # Safety
/// The caller of a method promises that the block was made with this shape and not freed, that nobody else holds a
/// reference into it, and that `group` and `slot` are below the block's numbers of groups and slots.
impl BlockPointer {
    /// Allocates an empty block of whole groups, or of fewer slots than one.
    pub fn new(shape: BlockShape, slots: usize, depth: u32, epoch: u32) -> Self {
        let groups = slots.div_ceil(SLOTS);
        let (layout, entries) = (shape.layout(slots), shape.entries_bytes(slots));
        // SAFETY: it has a size, as a head has one.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        let (depth, passed) = (depth as u8, [0; GROUPS_MAX]);
        let (next, places, dirty, len, groups) = (None, None, 0, 0, groups as u8);
        let head = BlockHead { next, places, dirty, epoch, len, depth, groups, passed };
        // SAFETY: head, tags and bits are behind the entries, within the block; the head is aligned as the block is.
        unsafe {
            let block = Self(start.add(entries));
            block.0.cast::<BlockHead>().write(head);
            block.0.add(TAGS).write_bytes(0, layout.size() - entries - TAGS);
            (slots..usize::from(groups) * SLOTS).for_each(|slot| block.set_tag(slot, LACKING));
            block
        }
    }

    /// Returns the address of the head, to be prefetched.
    #[inline(always)]
    pub fn as_ptr(self) -> *const u8 {
        self.0.as_ptr()
    }

    // SAFETY: as said above, here and below.
    #[inline(always)]
    pub unsafe fn head<'a>(self) -> &'a BlockHead {
        // SAFETY: as said above.
        unsafe { self.0.cast().as_ref() }
    }

    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn head_mut<'a>(self) -> &'a mut BlockHead {
        // SAFETY: as said above.
        unsafe { self.0.cast().as_mut() }
    }

    /// Returns the number of groups.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn groups(self) -> usize {
        // SAFETY: as said above.
        usize::from(unsafe { self.head() }.groups)
    }

    /// Returns the number of slots.
    // SAFETY: as said above.
    unsafe fn slots(self) -> usize {
        // SAFETY: as said above. Only a block of one group lacks some.
        unsafe { self.groups() * SLOTS - self.window(0).matches(LACKING).count_ones() as usize }
    }

    /// Returns the window that begins at a slot.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn window(self, slot: usize) -> TagWindow {
        // SAFETY: 16 more tags are behind the last.
        TagWindow(unsafe { self.0.add(TAGS + slot).cast().read() })
    }

    /// Returns whether a look-up has to go past a window.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn is_passed(self, window: usize) -> bool {
        // SAFETY: as said above.
        unsafe { self.head() }.passed[window / SLOTS % GROUPS_MAX] != 0
    }

    /// Counts an entry that is put past a window.
    // SAFETY: as said above.
    unsafe fn pass(self, window: usize) {
        // SAFETY: as said above.
        let passed = &mut unsafe { self.head_mut() }.passed[window / SLOTS % GROUPS_MAX];
        *passed = passed.saturating_add(1);
    }

    /// Counts an entry past a window out.
    // SAFETY: as said above.
    unsafe fn unpass(self, window: usize) {
        // SAFETY: as said above.
        let passed = &mut unsafe { self.head_mut() }.passed[window / SLOTS % GROUPS_MAX];
        if *passed < u8::MAX {
            *passed -= 1;
        }
    }

    /// Counts an entry that is put into a later block of the chain.
    // SAFETY: as said above.
    pub unsafe fn pass_all(self) {
        // SAFETY: as said above.
        unsafe { (0..self.groups()).for_each(|group| self.pass(group * SLOTS)) }
    }

    /// Counts an entry of a later block of the chain out.
    // SAFETY: as said above.
    pub unsafe fn unpass_all(self) {
        // SAFETY: as said above.
        unsafe { (0..self.groups()).for_each(|group| self.unpass(group * SLOTS)) }
    }

    /// Returns the slots of a group that have an entry, as bits.
    #[inline]
    // SAFETY: as said above.
    pub unsafe fn occupied(self, group: usize) -> u16 {
        // SAFETY: as said above.
        unsafe { self.window(group * SLOTS) }.occupied()
    }

    /// Returns whether a slot has an entry.
    #[inline]
    // SAFETY: as said above.
    pub unsafe fn has(self, slot: usize) -> bool {
        // SAFETY: as said above.
        unsafe { self.0.add(TAGS + slot).read() & 0x80 != 0 }
    }

    /// Returns whether a slot has this tag.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn has_tag(self, slot: usize, tag: u8) -> bool {
        // SAFETY: as said above.
        unsafe { self.0.add(TAGS + slot).read() == tag }
    }

    /// Returns the bits of a group.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn bits<'a>(self, group: usize) -> &'a GroupBits {
        // SAFETY: as said above; the bits are at an even address.
        unsafe { self.bits_at(self.groups() * SLOTS, group).as_ref() }
    }

    /// Returns where the bits of a group are in a block of `slots` slots.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn bits_at(self, slots: usize, group: usize) -> NonNull<GroupBits> {
        // SAFETY: as said above.
        unsafe { self.0.add(bits_at(slots)).cast::<GroupBits>().add(group) }
    }

    /// Returns whether the entry of a slot has changed since the barrier `epoch`, in a block of `slots` slots.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn has_changed(self, slots: usize, slot: usize, epoch: u32) -> bool {
        // SAFETY: as said above; the bits are at an even address.
        let bits = unsafe { self.bits_at(slots, slot / SLOTS).as_ref() };
        // SAFETY: as said above.
        let is_known = unsafe { self.head() }.epoch == epoch;
        is_known && bits.changed >> (slot % SLOTS) & 1 == 1
    }

    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn bits_mut<'a>(self, group: usize) -> &'a mut GroupBits {
        // SAFETY: as said above; the bits are at an even address.
        unsafe { self.bits_at(self.groups() * SLOTS, group).as_mut() }
    }

    /// Returns the address of a slot, to be prefetched. The block may lack it.
    #[inline(always)]
    pub fn address(self, shape: BlockShape, slot: usize) -> *const u8 {
        self.0.as_ptr().wrapping_sub((slot + 1) * shape.size())
    }

    /// Returns the memory of a slot that the block has.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn entry(self, shape: BlockShape, slot: usize) -> NonNull<u8> {
        // SAFETY: the slot is within the block, before its head.
        unsafe { self.0.sub((slot + 1) * shape.size()) }
    }

    #[inline(always)]
    // SAFETY: as said above.
    unsafe fn set_tag(self, slot: usize, tag: u8) {
        // SAFETY: as said above; the first 16 tags are there again behind the last.
        unsafe {
            self.0.add(TAGS + slot).write(tag);
            if slot < SLOTS {
                self.0.add(TAGS + slot + self.groups() * SLOTS).write(tag);
            }
        }
    }

    /// Takes the first empty slot for a hash. The block has one, and the caller writes the entry before anything else
    /// happens.
    // SAFETY: as said above.
    pub unsafe fn fill(self, hash: u64) -> usize {
        // SAFETY: as said above.
        unsafe {
            let last = self.groups() * SLOTS - 1;
            let mut window = hash as usize & last;
            let mut empty = self.window(window).matches(0);
            while empty == 0 {
                self.pass(window);
                window = (window + SLOTS) & last;
                empty = self.window(window).matches(0);
            }
            let slot = (window + empty.trailing_zeros() as usize) & last;
            self.take(slot, hash);
            slot
        }
    }

    /// Takes an empty slot of the window of a hash. The caller writes the entry before anything else happens.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn take(self, slot: usize, hash: u64) {
        // SAFETY: as said above.
        unsafe {
            self.set_tag(slot, tag_of(hash));
            self.head_mut().len += 1;
        }
    }

    /// Empties a slot. The caller has taken its entry, which has this hash.
    // SAFETY: as said above.
    pub unsafe fn vacate(self, slot: usize, hash: u64) {
        // SAFETY: as said above.
        unsafe {
            let last = self.groups() * SLOTS - 1;
            let mut window = hash as usize & last;
            while slot.wrapping_sub(window) & last >= SLOTS {
                self.unpass(window);
                window = (window + SLOTS) & last;
            }
            self.set_tag(slot, 0);
            self.head_mut().len -= 1;
        }
    }

    // SAFETY: as said above.
    #[inline]
    pub unsafe fn has_places(self) -> bool {
        // SAFETY: as said above.
        unsafe { self.head() }.places.is_some()
    }

    /// Returns the place of a slot's record; 0 without places.
    #[inline]
    // SAFETY: as said above.
    pub unsafe fn place(self, slot: usize) -> u32 {
        // SAFETY: as said above; places are as many as slots.
        unsafe { self.head().places.map_or(0, |places| places.add(slot).read()) }
    }

    /// Notes the place of a slot's record, if the block has places.
    #[inline]
    // SAFETY: as said above.
    pub unsafe fn set_place(self, slot: usize, place: u32) {
        // SAFETY: as said above; places are as many as slots.
        unsafe {
            if let Some(places) = self.head().places {
                places.add(slot).write(place);
            }
        }
    }

    /// Allocates places, all of them none.
    // SAFETY: as said above.
    pub unsafe fn make_places(self) {
        // SAFETY: as said above; a block has a group at least.
        unsafe {
            let layout = places_layout(self.groups());
            let Some(places) = NonNull::new(alloc_zeroed(layout)) else {
                handle_alloc_error(layout)
            };
            self.drop_places();
            self.head_mut().places = Some(places.cast());
        }
    }

    // SAFETY: as said above.
    pub unsafe fn drop_places(self) {
        // SAFETY: as said above; they were made with this layout.
        unsafe {
            if let Some(places) = self.head_mut().places.take() {
                dealloc(places.as_ptr().cast(), places_layout(self.groups()));
            }
        }
    }

    /// Frees the memory, without dropping entries.
    // SAFETY: as said above, and the block is not used again.
    pub unsafe fn free(self, shape: BlockShape) {
        // SAFETY: as said above; it was made with this layout.
        unsafe {
            self.drop_places();
            let slots = self.slots();
            let start = self.0.sub(shape.entries_bytes(slots));
            dealloc(start.as_ptr(), shape.layout(slots));
        }
    }
}

fn places_layout(groups: usize) -> Layout {
    Layout::array::<u32>(groups * SLOTS).expect("no more than there is memory")
}
