//! Memory of a heap table: blocks of groups of slots.
//!
//! ```text
//! block:  [ head, 64 bytes ][ group ][ group ] ...      a power of two of groups
//! group:  [ tags: 14 | overflow | - ][ epoch, changed, captured, owed ][ slot 0 ] ... [ slot 13 ]
//! ```
//!
//! A tag is 0 for an empty slot, else 7 bits of the hash and the highest bit. `overflow` counts the entries that an
//! insert had to put behind this group as it was full; a look-up stops at a group where it is 0. It stays at 255 once it
//! was there. The bits that say what has changed stand beside the tags, so that a change touches no other cache line.
//!
//! What it keeps true: a slot with a tag holds an initialised entry, and no other slot does; groups and blocks are
//! reached by the table that owns them only.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use alluvium_pagestore::rounded;

/// Slots of a group: with its head a group of entries of 16 bytes is 256 bytes.
pub(crate) const SLOTS: usize = 14;
/// A bit for each slot.
pub(crate) const ALL: u16 = (1 << SLOTS) - 1;
/// Bytes of a group before its entries.
const GROUP_HEAD_BYTES: usize = 32;
/// Bytes of a block before its groups.
const BLOCK_HEAD_BYTES: usize = 64;
/// Most groups of a block, and about the most bytes of one.
pub(super) const GROUPS_MAX: usize = 32;
const BLOCK_BYTES: usize = 64 << 10;
/// Most slots of a block.
pub(super) const BLOCK_SLOTS_MAX: u64 = (GROUPS_MAX * SLOTS) as u64;

/// Where things stand in a block of entries of some layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Of a block.
    align: usize,
    /// From the start of a block to its first group, and from a group to the next.
    first: usize,
    stride: usize,
    /// From the start of a group to its first entry, and from an entry to the next.
    entries: usize,
    size: usize,
    /// Most groups of a block.
    pub groups_max: usize,
}

impl Shape {
    pub const fn of(entry: Layout) -> Self {
        let align = if entry.align() > 64 { entry.align() } else { 64 };
        let entries = GROUP_HEAD_BYTES.next_multiple_of(entry.align());
        let unit = if entry.align() > 16 { entry.align() } else { 16 };
        let stride = (entries + SLOTS * entry.size()).next_multiple_of(unit);
        let mut groups_max = GROUPS_MAX;
        while groups_max > 1 && groups_max * stride > BLOCK_BYTES {
            groups_max /= 2;
        }
        let first = BLOCK_HEAD_BYTES.next_multiple_of(unit);
        Self { align, first, stride, entries, size: entry.size(), groups_max }
    }

    fn layout(self, groups: usize) -> Layout {
        let bytes = self.first + groups * self.stride;
        Layout::from_size_align(bytes, self.align).expect("no more than there is memory")
    }

    /// Memory that a block of so many groups takes: the allocator may need more for its alignment.
    pub fn block_bytes(self, groups: usize) -> u64 {
        (rounded(self.layout(groups).size()) + self.align) as u64
    }

    /// Memory that the places of a block's records take.
    pub fn places_bytes(groups: usize) -> u64 {
        rounded(groups * SLOTS * size_of::<u32>()) as u64
    }
}

/// The head of a block.
#[repr(C)]
pub(super) struct BlockHead {
    /// What has no room here, as too many hashes agree, is there.
    pub next: Option<Block>,
    /// Of the records of entries, by group and slot.
    places: Option<NonNull<u32>>,
    /// Groups that may have a bit set.
    pub dirty: u64,
    /// Entries.
    pub len: u32,
    /// Bits of the prefix that all hashes here share.
    pub depth: u32,
    /// Groups.
    groups: u32,
}

/// The head of a group.
#[repr(C)]
pub(super) struct GroupHead {
    tags: [u8; 16],
    /// The barrier since which `changed` tells what has changed.
    pub epoch: u32,
    /// Entries that have changed since.
    pub changed: u16,
    /// Entries that the checkpoint of that barrier is to have still.
    pub captured: u16,
    /// Entries that it has, but whose records are not there yet.
    pub owed: u16,
}

const _: () = assert!(size_of::<GroupHead>() <= GROUP_HEAD_BYTES);
const _: () = assert!(size_of::<BlockHead>() <= BLOCK_HEAD_BYTES);

impl GroupHead {
    /// Slots with an entry.
    #[inline]
    pub fn occupied(&self) -> u16 {
        !matches(&self.tags, 0) & ALL
    }

    #[inline]
    pub fn free_slot(&self) -> Option<usize> {
        let free = matches(&self.tags, 0) & ALL;
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    #[inline]
    pub fn has(&self, slot: usize) -> bool {
        self.tags[slot] != 0
    }

    /// Counts an entry that goes behind this group.
    pub fn pass(&mut self) {
        self.tags[SLOTS] = self.tags[SLOTS].saturating_add(1);
    }

    /// An entry behind this group is gone.
    pub fn unpass(&mut self) {
        if self.tags[SLOTS] < u8::MAX {
            self.tags[SLOTS] -= 1;
        }
    }

    /// Whether any bit is set.
    #[inline]
    pub fn has_bits(&self) -> bool {
        self.changed | self.captured | self.owed != 0
    }
}

/// The tag of a hash.
#[inline(always)]
pub(super) fn tag_of(hash: u64) -> u8 {
    (hash >> 24) as u8 | 0x80
}

/// Slots with a tag, and bits of what is behind the slots.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn matches(tags: &[u8; 16], tag: u8) -> u16 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: all processors of this kind have SSE2, and 16 bytes are there.
    unsafe {
        let tags = _mm_loadu_si128(tags.as_ptr().cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8(tag.cast_signed()))) as u16
    }
}

#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
fn matches(tags: &[u8; 16], tag: u8) -> u16 {
    tags.iter().rev().fold(0, |bits, found| bits << 1 | u16::from(*found == tag))
}

/// Slots of a group with a tag, and whether an entry may be behind the group.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn look(tags: &[u8; 16], tag: u8) -> (u16, bool) {
    use std::arch::x86_64::{_mm_extract_epi16, _mm_loadu_si128};
    // SAFETY: as above. Of the last two bytes the second is always 0.
    let behind = unsafe { _mm_extract_epi16::<7>(_mm_loadu_si128(tags.as_ptr().cast())) };
    (matches(tags, tag) & ALL, behind != 0)
}

#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
fn look(tags: &[u8; 16], tag: u8) -> (u16, bool) {
    (matches(tags, tag) & ALL, tags[SLOTS] != 0)
}

/// A block, which its table owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Block(NonNull<u8>);

/// A place of a block that exists, and of its shape.
///
/// # Safety
/// Whoever calls a method of a block promises that it was made with this shape, was not freed, and that nobody else
/// holds a reference into it; and that a group it names is below the block's groups, a slot below [`SLOTS`].
impl Block {
    /// An empty one.
    pub fn new(shape: Shape, groups: usize, depth: u32, epoch: u32) -> Self {
        let layout = shape.layout(groups);
        // SAFETY: it has a size, as a head has one.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        let block = Self(start);
        let head =
            BlockHead { next: None, places: None, dirty: 0, len: 0, depth, groups: groups as u32 };
        // SAFETY: the head is within the block, whose alignment is greater.
        unsafe { start.cast::<BlockHead>().write(head) };
        for group in 0..groups {
            let head = GroupHead { tags: [0; 16], epoch, changed: 0, captured: 0, owed: 0 };
            // SAFETY: within the new block; a group without entries is its head.
            unsafe { block.at(shape, group).cast::<GroupHead>().write(head) };
        }
        block
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

    #[inline(always)]
    // SAFETY: as said above.
    unsafe fn at(self, shape: Shape, group: usize) -> NonNull<u8> {
        // SAFETY: the group is within the block.
        unsafe { self.0.add(shape.first + group * shape.stride) }
    }

    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn group<'a>(self, shape: Shape, group: usize) -> &'a GroupHead {
        // SAFETY: as said above; a group starts with its head.
        unsafe { self.at(shape, group).cast().as_ref() }
    }

    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn group_mut<'a>(self, shape: Shape, group: usize) -> &'a mut GroupHead {
        // SAFETY: as said above; a group starts with its head.
        unsafe { self.at(shape, group).cast().as_mut() }
    }

    /// Slots of a group with a tag, and whether an entry may be behind the group.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn look(self, shape: Shape, group: usize, tag: u8) -> (u16, bool) {
        // SAFETY: as said above.
        look(&unsafe { self.group(shape, group) }.tags, tag)
    }

    /// The memory of a slot.
    #[inline(always)]
    // SAFETY: as said above.
    pub unsafe fn entry(self, shape: Shape, group: usize, slot: usize) -> NonNull<u8> {
        // SAFETY: the slot is within the group.
        unsafe { self.at(shape, group).add(shape.entries + slot * shape.size) }
    }

    /// A slot gets an entry, which the caller writes before anything else happens.
    // SAFETY: as said above.
    pub unsafe fn fill(self, shape: Shape, (group, slot): (usize, usize), tag: u8) {
        // SAFETY: as said above.
        unsafe {
            self.group_mut(shape, group).tags[slot] = tag;
            self.head_mut().len += 1;
        }
    }

    /// The entry of a slot is not there any more: the caller has taken it.
    // SAFETY: as said above.
    pub unsafe fn vacate(self, shape: Shape, (group, slot): (usize, usize)) {
        // SAFETY: as said above.
        unsafe {
            self.group_mut(shape, group).tags[slot] = 0;
            self.head_mut().len -= 1;
        }
    }

    // SAFETY: as said above.
    #[inline]
    pub unsafe fn has_places(self) -> bool {
        // SAFETY: as said above.
        unsafe { self.head() }.places.is_some()
    }

    /// The place of a record; 0 if there are none.
    #[inline]
    // SAFETY: as said above.
    pub unsafe fn place(self, group: usize, slot: usize) -> u32 {
        // SAFETY: as said above; places are as many as slots.
        unsafe { self.head().places.map_or(0, |places| places.add(group * SLOTS + slot).read()) }
    }

    /// Notes the place of a record, if there are places.
    #[inline]
    // SAFETY: as said above.
    pub unsafe fn set_place(self, group: usize, slot: usize, place: u32) {
        // SAFETY: as said above; places are as many as slots.
        unsafe {
            if let Some(places) = self.head().places {
                places.add(group * SLOTS + slot).write(place);
            }
        }
    }

    /// Makes places, which are all none.
    // SAFETY: as said above.
    pub unsafe fn make_places(self) {
        // SAFETY: as said above; a block has a group at least.
        unsafe {
            let layout = places_layout(self.head().groups);
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
                dealloc(places.as_ptr().cast(), places_layout(self.head().groups));
            }
        }
    }

    /// Gives the memory back; entries that are there still are not dropped.
    // SAFETY: as said above, and the block is not used again.
    pub unsafe fn free(self, shape: Shape) {
        // SAFETY: as said above; it was made with this layout.
        unsafe {
            self.drop_places();
            let groups = self.head().groups as usize;
            dealloc(self.0.as_ptr(), shape.layout(groups));
        }
    }
}

fn places_layout(groups: u32) -> Layout {
    Layout::array::<u32>(groups as usize * SLOTS).expect("no more than there is memory")
}
