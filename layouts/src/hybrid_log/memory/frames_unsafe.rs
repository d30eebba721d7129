//! All frames of a table by number, and a short cut to those whose records change in place.
//!
//! The short cut pays: a point update finds frame and permission in one load of eight bytes, all
//! of which stay in the cache, where the state of a frame takes a line each; a tenth of the time.
//!
//! What makes it sound: an entry of `bases` is that of a frame that is here, unfrozen and mutable.
//! Whoever can change that goes through [`Frames::state_mut`], which forgets the entry; the other
//! methods leave frame and stage as they are.
//!
//! A record that a checkpoint is to have, as it is fresh since an epoch before, has no short cut: that its
//! mark is another is all there is to it, so that a barrier touches no frame.
//!
//! Frames are not generic. The calls of the record path name the types of the records, which their callers promise.

use crate::hybrid_log::frame_unsafe::{Frame, MarkEpoch};
use crate::hybrid_log::index::{Index, IndexHash};
use crate::hybrid_log::slots_unsafe::{FrameBase, SlotEntry};

/// What a frame is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameStage {
    /// Not in use.
    Vacant,
    /// Records change in place.
    Mutable,
    /// A changed record moves out; nothing is on storage.
    Cooling,
    /// With the helper.
    Frozen,
    /// The helper could not write it: as cooling, to be frozen again.
    Failed,
    /// On storage.
    Clean,
}

/// A number that no frame has.
pub const NO_FRAME: u32 = u32::MAX;

/// A frame and what is known of it; one cache line.
#[repr(align(64))]
pub struct FrameState {
    pub frame: Option<Frame>,
    pub stage: FrameStage,
    /// Heap that its entries own.
    pub heap_bytes: u64,
    /// The epoch it was begun in, or copied in for a checkpoint.
    pub epoch: u32,
    /// Records in it that are marked as dead.
    pub dead: u32,
    /// Whether copies of its records are on their way to storage.
    pub is_awaited: bool,
    /// The frame whose copies stand behind its own; [`NO_FRAME`] if there is none.
    pub next_copied: u32,
}

const _: () = assert!(size_of::<FrameState>() == 64);

/// The frames of one table.
pub struct Frames {
    states: Vec<FrameState>,
    bases: Vec<FrameBase>,
    /// What records that change are fresh since.
    epoch: MarkEpoch,
    /// Whether there was another one: records may not be fresh, and those that change are counted beside their frame.
    had_barrier: bool,
    /// Frames of which copies are on their way: while there is none, nobody asks which records are touched.
    awaited: u32,
    slots: u32,
    /// Bits of an address that name the slot.
    slot_bits: u32,
    /// As many ones.
    slot_mask: u32,
}

impl Frames {
    /// Bytes that one more frame takes here.
    pub const BYTES_EACH: usize = size_of::<FrameState>() + size_of::<FrameBase>();

    /// Room for `frames_max` frames of `slots` slots.
    pub fn new(frames_max: usize, slots: u32) -> Self {
        let (states, bases) = (Vec::with_capacity(frames_max), Vec::with_capacity(frames_max));
        let slot_bits = slots.next_power_of_two().trailing_zeros();
        let (epoch, had_barrier, slot_mask) = (MarkEpoch::FIRST, false, (1 << slot_bits) - 1);
        Self { states, bases, epoch, had_barrier, awaited: 0, slots, slot_bits, slot_mask }
    }

    /// The address of a slot.
    #[inline(always)]
    pub fn address_of(&self, number: u32, slot: u32) -> u64 {
        u64::from(number) << self.slot_bits | u64::from(slot)
    }

    /// Frame number and slot of an address in memory.
    #[inline(always)]
    pub fn slot_of(&self, address: u64) -> (u32, u32) {
        ((address >> self.slot_bits) as u32, address as u32 & self.slot_mask)
    }

    /// Adds a frame and returns its number.
    ///
    /// # Panics
    /// If there are as many as there is room for.
    pub fn push(&mut self, state: FrameState) -> u32 {
        assert!(self.states.len() < self.states.capacity(), "more frames than memory");
        self.states.push(state);
        self.bases.push(FrameBase::NONE);
        self.states.len() as u32 - 1
    }

    /// How many numbers there are.
    pub fn count(&self) -> usize {
        self.states.len()
    }

    /// A frame and what is known of it.
    #[inline(always)]
    pub fn state(&self, number: u32) -> &FrameState {
        &self.states[number as usize]
    }

    /// The same, to be changed in any way. The short cut to the frame is gone until
    /// [`shorten`](Frames::shorten).
    #[inline(always)]
    pub fn state_mut(&mut self, number: u32) -> &mut FrameState {
        self.bases[number as usize] = FrameBase::NONE;
        &mut self.states[number as usize]
    }

    /// Key and value in a used slot of a frame that is not frozen, and the heap that the frame's
    /// entries own, to be changed; keeps the short cut.
    ///
    /// # Safety
    /// The records are of these types.
    // SAFETY: the types are the caller's to promise, as said above.
    #[inline(always)]
    pub unsafe fn entry_and_heap<K: 'static, V: 'static>(
        &mut self,
        number: u32,
        slot: u32,
    ) -> (&K, &mut V, &mut u64) {
        let state = &mut self.states[number as usize];
        let (key, value) = state
            .frame
            .as_mut()
            // SAFETY: the types are the caller's promise.
            .and_then(|frame| unsafe { frame.entry_mut(slot) })
            .expect("a used slot of a frame in use");
        (key, value, &mut state.heap_bytes)
    }

    /// Makes the short cut to a frame, if its records change in place.
    pub fn shorten(&mut self, number: u32) {
        let state = &self.states[number as usize];
        let frame = state
            .frame
            .as_ref()
            .filter(|frame| state.stage == FrameStage::Mutable && frame.slots() == self.slots);
        self.bases[number as usize] = frame.map_or(FrameBase::NONE, Frame::base);
    }

    /// What records that change are fresh since.
    pub(in crate::hybrid_log) fn epoch(&self) -> MarkEpoch {
        self.epoch
    }

    /// Another epoch begins: what is fresh is so since others. Cost: O(1).
    pub fn next_epoch(&mut self) {
        self.epoch = self.epoch.next();
        self.had_barrier = true;
    }

    /// What is at an address of a frame that there is a short cut to, if the record is fresh since this
    /// epoch, or if it is not fresh.
    ///
    /// # Safety
    /// The records are of these types.
    #[inline(always)]
    // SAFETY: the types are the caller's to promise, as said above.
    unsafe fn spot<K, V>(
        &self,
        address: u64,
        fresh: Option<MarkEpoch>,
    ) -> Option<SlotEntry<'_, K, V>> {
        let base = *self.bases.get((address >> self.slot_bits) as usize)?;
        let slot = address as u32 & self.slot_mask;
        if base.is_none() || slot >= self.slots {
            return None;
        }
        // SAFETY: a base is that of a frame that is here, unfrozen, and has `slots` slots; whoever
        // changes its entries has `&mut self`. The types are the caller's promise.
        unsafe { base.spot(slot, fresh) }
    }

    /// Whether there is a short cut to the frame of an address.
    #[inline(always)]
    pub fn is_short(&self, address: u64) -> bool {
        self.bases.get((address >> self.slot_bits) as usize).is_some_and(|base| !base.is_none())
    }

    /// Whether there is a short cut to an address and it holds this key in a record that is fresh since
    /// this epoch.
    ///
    /// # Safety
    /// The records are of these types.
    // SAFETY: the types are the caller's to promise, as said above.
    #[inline(always)]
    pub unsafe fn is_at<K, V>(&self, address: u64, is_it: impl FnOnce(&K) -> bool) -> bool {
        // SAFETY: the types are the caller's promise.
        let spot: Option<SlotEntry<'_, K, V>> = unsafe { self.spot(address, Some(self.epoch)) };
        spot.is_some_and(|spot| is_it(spot.key))
    }

    /// Copies of records of a frame are on their way from now on.
    pub fn await_copies(&mut self, number: u32) {
        let state = self.state_mut(number);
        assert!(!state.is_awaited, "the marks are those of one copy");
        (state.is_awaited, state.next_copied) = (true, NO_FRAME);
        self.awaited += 1;
    }

    /// They have come back; says of which frame copies stand behind them.
    pub fn end_copies(&mut self, number: u32) -> u32 {
        let state = self.state_mut(number);
        assert!(std::mem::take(&mut state.is_awaited), "no copies are on their way");
        let next = std::mem::replace(&mut state.next_copied, NO_FRAME);
        self.awaited -= 1;
        next
    }

    /// A frame of which copies have come back: it is there until then.
    pub fn copied(&mut self, number: u32) -> &mut Frame {
        self.state_mut(number).frame.as_mut().expect("an awaited frame")
    }

    /// [`Frame::freshen`], keeping the short cut.
    #[inline]
    pub fn freshen(&mut self, number: u32, slot: u32) -> Option<(u32, u32)> {
        let frame = self.states[number as usize].frame.as_mut();
        frame.expect("a frame in use").freshen(slot, self.epoch)
    }

    /// The value at an address, if there is a short cut to it and it holds this key in a record
    /// that is fresh since this epoch.
    ///
    /// # Safety
    /// The records are of these types.
    // SAFETY: the types are the caller's to promise, as said above.
    #[inline(always)]
    pub unsafe fn value_at<K, V>(
        &mut self,
        address: u64,
        is_it: impl FnOnce(&K) -> bool,
    ) -> Option<&mut V> {
        // SAFETY: the types are the caller's promise.
        let spot: Option<SlotEntry<'_, K, V>> = unsafe { self.spot(address, Some(self.epoch)) };
        let spot = spot.filter(|spot| is_it(spot.key))?;
        if self.awaited > 0 {
            spot.touch();
        }
        let value = spot.value;
        // SAFETY: the value is in a frame that is not frozen; `&mut self` is the only way to it.
        Some(unsafe { &mut *value })
    }

    /// [`value_at`](Frames::value_at) of a record that is not fresh, and is from now on; with it, where
    /// it was on storage.
    ///
    /// # Safety
    /// The records are of these types.
    // SAFETY: the types are the caller's to promise, as said above.
    #[inline(always)]
    pub unsafe fn freshen_at<K, V>(
        &mut self,
        address: u64,
        is_it: impl FnOnce(&K) -> bool,
    ) -> Option<(&mut V, (u32, u32))> {
        // SAFETY: the types are the caller's promise.
        let spot: Option<SlotEntry<'_, K, V>> = unsafe { self.spot(address, None) };
        let value = spot.filter(|spot| is_it(spot.key))?.value;
        let (number, slot) = self.slot_of(address);
        let stored = self.freshen(number, slot).expect("looked at above");
        // SAFETY: as above; only the slot's header was changed since.
        Some((unsafe { &mut *value }, stored))
    }

    /// The value of a key whose record is fresh since this epoch, by its home's index entries that there are short
    /// cuts to.
    ///
    /// # Safety
    /// The records are of these types.
    // SAFETY: the types are the caller's to promise, as said above.
    #[inline(always)]
    pub unsafe fn find<K, V>(
        &mut self,
        index: &Index,
        hash: IndexHash,
        mut is_it: impl FnMut(&K) -> bool,
    ) -> Option<&mut V> {
        let mut found = std::ptr::null_mut();
        index.any_at_home(hash, |address| {
            // SAFETY: the types are the caller's promise.
            let spot: Option<SlotEntry<'_, K, V>> = unsafe { self.spot(address, Some(self.epoch)) };
            match spot {
                Some(spot) if is_it(spot.key) => {
                    if self.awaited > 0 {
                        spot.touch();
                    }
                    found = spot.value;
                    true
                }
                _ => false,
            }
        });
        // SAFETY: null, or of an entry that is there since the closure found it, in a frame that
        // is not frozen; `&mut self` is the only way to it.
        unsafe { found.as_mut() }
    }

    /// Hints the processor to load a slot of so many bytes: the lines of its first byte and of its last, or of the
    /// 64th if it is longer; and what is known of its frame, where that is going to be needed.
    #[inline(always)]
    pub fn prefetch(&self, slot_bytes: usize, address: u64) {
        let (number, slot) = self.slot_of(address);
        if let Some(&short) = self.bases.get(number as usize) {
            // Of a frame that cools or is frozen there is none.
            let base = if short.is_none() { self.base_of(number) } else { short };
            let start = base.hint(slot_bytes, slot);
            crate::support::prefetch_unsafe::prefetch(start);
            let last = (slot_bytes - 1).min(63);
            crate::support::prefetch_unsafe::prefetch(start.wrapping_add(last));
            if self.had_barrier {
                crate::support::prefetch_unsafe::prefetch(std::ptr::from_ref(self.state(number)));
            }
        }
    }

    /// Where a frame is that there is no short cut to.
    #[inline]
    fn base_of(&self, number: u32) -> FrameBase {
        self.state(number).frame.as_ref().map_or(FrameBase::NONE, Frame::base)
    }

    /// [`Frame::vacant`], keeping the short cut.
    pub fn vacant(&mut self, number: u32) -> Option<u32> {
        self.states[number as usize].frame.as_mut().expect("a frame in use").vacant()
    }

    /// [`Frame::put`] of an entry that owns `heap` bytes, keeping the short cut.
    ///
    /// # Safety
    /// The records are of these types.
    // SAFETY: the types are the caller's to promise, as said above.
    #[inline]
    pub unsafe fn put<K: 'static, V: 'static>(
        &mut self,
        at: (u32, u32),
        record: (K, V),
        heap: u64,
    ) {
        let state = &mut self.states[at.0 as usize];
        let frame = state.frame.as_mut().expect("a fill frame");
        // SAFETY: the types are the caller's promise.
        unsafe { frame.put(at.1, record, self.epoch) };
        state.heap_bytes += heap;
    }

    /// All frames, by number.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &FrameState> {
        self.states.iter()
    }

    /// Takes all frames out.
    pub fn take_all(&mut self) -> impl Iterator<Item = Frame> {
        self.bases.clear();
        std::mem::take(&mut self.states).into_iter().filter_map(|state| state.frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hybrid_log::pool_unsafe::PoolPiece;

    use crate::support::record_type_unsafe::RecordType;

    // Every frame of this test has keys of u64 and values of String.
    fn value(frames: &mut Frames, number: u32, slot: u32) -> Option<&mut String> {
        // SAFETY: the records are of these types.
        unsafe { frames.value_at::<u64, String>(frames.address_of(number, slot), |_| true) }
    }

    fn is_at(frames: &Frames, address: u64, wanted: u64) -> bool {
        // SAFETY: the records are of these types.
        unsafe { frames.is_at::<u64, String>(address, |&key| key == wanted) }
    }

    fn find<'a>(frames: &'a mut Frames, index: &Index, wanted: u64) -> Option<&'a mut String> {
        // SAFETY: the records are of these types.
        unsafe { frames.find::<u64, String>(index, IndexHash(7), |&key| key == wanted) }
    }

    #[test]
    fn the_short_cut_is_there_exactly_while_records_change_in_place() {
        let mut frames = Frames::new(2, 3);
        let types = RecordType::of::<u64, String>();
        let piece = || PoolPiece::allocated(Frame::layout(types, 3));
        let state = || FrameState {
            frame: Some(Frame::new(types, 3, piece())),
            stage: FrameStage::Mutable,
            heap_bytes: 0,
            epoch: 0,
            dead: 0,
            is_awaited: false,
            next_copied: NO_FRAME,
        };
        let (one, two) = (frames.push(state()), frames.push(state()));
        let slot = frames.vacant(one).unwrap();
        assert!(value(&mut frames, one, slot).is_none(), "no short cut was made");
        frames.shorten(one);
        frames.shorten(two);
        // SAFETY: the records are of these types.
        unsafe { frames.put((one, slot), (1u64, String::from("a")), 1) };
        value(&mut frames, one, slot).unwrap().push('b');
        let address = frames.address_of(one, slot);
        assert!(is_at(&frames, address, 1) && !is_at(&frames, address, 2));
        let record = frames.state(one).frame.as_ref().unwrap().get(slot).unwrap();
        assert_eq!(record.get::<u64, String>().1, "ab");
        let mut index = Index::new(alluvium_pagestore::Account::root(1 << 20), 8, None).unwrap();
        index.prepare(IndexHash(7)).unwrap();
        index.insert(IndexHash(7), crate::hybrid_log::Address::memory(address));
        find(&mut frames, &index, 1).unwrap().push('c');
        assert!(find(&mut frames, &index, 2).is_none());
        assert_eq!(value(&mut frames, one, slot).unwrap().pop(), Some('c'));
        for (number, slot) in [(one, 1), (one, 3), (two, 0), (2, 0), (9, 3)] {
            assert!(value(&mut frames, number, slot).is_none());
        }
        frames.next_epoch();
        assert!(value(&mut frames, one, slot).is_none(), "a checkpoint is to have it");
        assert_eq!(frames.freshen(one, slot), None, "it was fresh before");
        assert_eq!(value(&mut frames, one, slot).unwrap(), "ab");
        let frozen = frames.state_mut(one).frame.as_mut().unwrap().freeze();
        frames.shorten(one);
        assert!(value(&mut frames, one, slot).is_none(), "a frozen frame");
        frames.state_mut(one).frame.as_mut().unwrap().thaw(frozen);
        frames.state_mut(one).stage = FrameStage::Cooling;
        frames.shorten(one);
        assert!(value(&mut frames, one, slot).is_none(), "a cooling frame");
        frames.state_mut(one).stage = FrameStage::Mutable;
        frames.shorten(one);
        assert_eq!(value(&mut frames, one, slot).unwrap(), "ab");
        let taken = frames.state_mut(one).frame.take();
        frames.shorten(one);
        assert!(value(&mut frames, one, slot).is_none());
        drop(taken);
    }
}
