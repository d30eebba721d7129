//! A list of copies of records whose types are erased, in [pages](crate::support::pages_unsafe) of its own. It pays: an
//! allocator gave all pages of many lists back with whatever went last, which took 10 to 29 ms of a call while a checkpoint
//! of 10 M entries on the heap was taken.

use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;

use alluvium_pagestore::PlacedAt;

use crate::support::first_panic::FirstPanic;
use crate::support::pages_unsafe::PageMemory;
use crate::support::record_type_unsafe::{RecordRef, RecordType};

/// What is known of a copy beside itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyNote {
    pub hash: u64,
    /// Where its record is, once it is written.
    pub at: PlacedAt,
}

/// A list of so many copies at most.
///
/// What it keeps true: the first `len` items are there, each a note and an entry of the record type, and `capacity` have
/// room.
pub(crate) struct RecordCopies {
    record_type: &'static RecordType,
    pages: PageMemory,
    len: usize,
    capacity: usize,
}

// SAFETY: it owns its records, whose types are `Send`, as no others can be cloned; nobody else has a pointer to them.
unsafe impl Send for RecordCopies {}

impl RecordCopies {
    /// An empty one.
    pub fn with_capacity(record_type: &'static RecordType, capacity: usize) -> Self {
        let pages = PageMemory::new(layout_of(record_type, capacity));
        Self { record_type, pages, len: 0, capacity }
    }

    /// Memory that one takes.
    pub fn memory_bytes(record_type: &'static RecordType, capacity: usize) -> usize {
        PageMemory::memory_bytes(layout_of(record_type, capacity))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The note and the entry of an item that has room.
    fn item(&self, nth: usize) -> (NonNull<CopyNote>, NonNull<u8>) {
        assert!(nth < self.capacity, "there is room");
        let (item, entry) = item_of(self.record_type);
        // SAFETY: within the capacity.
        unsafe {
            let start = self.pages.start().add(nth * item.size());
            (start.cast(), start.add(entry))
        }
    }

    /// Adds a copy of a record at the end. Its clone may panic, and then nothing has changed.
    ///
    /// # Panics
    /// Without room for it; if the record is of other types.
    pub fn push(&mut self, hash: u64, record: RecordRef<'_>) {
        let (note, entry) = self.item(self.len);
        // SAFETY: nothing is there yet.
        unsafe {
            self.record_type.clone_into(record, entry.as_ptr());
            note.write(CopyNote { hash, at: PlacedAt { segment: 0, grain: 0 } });
        }
        self.len += 1;
    }

    /// An item.
    ///
    /// # Panics
    /// If it is not there.
    pub fn get(&self, nth: usize) -> (CopyNote, RecordRef<'_>) {
        assert!(nth < self.len, "it is there");
        let (note, entry) = self.item(nth);
        // SAFETY: the item is there, and `self` is borrowed.
        unsafe { (note.read(), RecordRef::new(self.record_type, entry.as_ptr())) }
    }

    /// The record of an item is there.
    ///
    /// # Panics
    /// If the item is not there.
    pub fn set_place(&mut self, nth: usize, at: PlacedAt) {
        assert!(nth < self.len, "it is there");
        // SAFETY: the item is there.
        unsafe { self.item(nth).0.as_mut() }.at = at;
    }

    /// Makes room for so many more. Cost: in the number of items.
    pub fn grow(&mut self, more: usize) {
        let mut grown = Self::with_capacity(self.record_type, self.capacity + more);
        let bytes = self.len * item_of(self.record_type).0.size();
        // SAFETY: both have room for as many, and are apart; from here on the items are those of the new one.
        unsafe { grown.pages.start().copy_from_nonoverlapping(self.pages.start(), bytes) };
        grown.len = std::mem::take(&mut self.len);
        *self = grown;
    }

    /// Drops the items, each once. The first panic of one goes on when all are dropped.
    pub fn clear(&mut self) {
        let len = std::mem::take(&mut self.len);
        if !self.record_type.needs_drop() {
            return;
        }
        let mut panic = FirstPanic::default();
        for nth in 0..len {
            let entry = self.item(nth).1.as_ptr();
            // SAFETY: they were there, and are not any more.
            panic.catch(|| unsafe { self.record_type.drop_entry(entry) });
        }
        panic.resume();
    }
}

/// The layout of a note and an entry, and where the entry is.
fn item_of(record_type: &RecordType) -> (Layout, usize) {
    let both = Layout::new::<CopyNote>().extend(record_type.layout());
    let (item, entry) = both.expect("no larger than memory");
    (item.pad_to_align(), entry)
}

fn layout_of(record_type: &RecordType, capacity: usize) -> Layout {
    let item = item_of(record_type).0;
    let bytes = item.size().checked_mul(capacity.max(1)).expect("no more than there is memory");
    Layout::from_size_align(bytes, item.align()).expect("no more than there is memory")
}

impl fmt::Debug for RecordCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordCopies({})", self.len)
    }
}

impl Drop for RecordCopies {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::support::record_type_unsafe::{NativeEntry, in_memory};

    type Item = (u64, Arc<()>);

    fn push(list: &mut RecordCopies, key: u64, item: &Arc<()>) {
        let entry = NativeEntry { key, value: item.clone() };
        // SAFETY: the entry is of these types, and lives as long.
        let record =
            unsafe { RecordRef::new(in_memory::of::<u64, Arc<()>>(), (&raw const entry).cast()) };
        list.push(key + 1, record);
    }

    fn keys(list: &RecordCopies) -> Vec<u64> {
        let of = |nth| {
            let (note, record) = list.get(nth);
            let (key, _) = record.native::<u64, Arc<()>>();
            assert_eq!(note.hash, key + 1);
            *key
        };
        (0..list.len()).map(of).collect()
    }

    #[test]
    fn items_come_in_order_and_are_dropped_once() {
        let (item, of) = (Arc::new(()), in_memory::of::<u64, Arc<()>>());
        let mut list = RecordCopies::with_capacity(of, 3);
        assert_eq!(size_of::<Item>() + size_of::<CopyNote>(), 32);
        for (page, bytes) in [(4 << 10, 160 << 10), (16 << 10, 160 << 10), (64 << 10, 192 << 10)] {
            assert_eq!(PageMemory::memory_bytes_on(layout_of(of, 3), page), 96);
            assert_eq!(PageMemory::memory_bytes_on(layout_of(of, 5003), page), bytes);
        }
        for round in 0..3 {
            (0..3).for_each(|i| push(&mut list, i + round, &item));
            assert_eq!(keys(&list), [round, 1 + round, 2 + round]);
            assert_eq!(Arc::strong_count(&item), 4);
            list.clear();
            assert_eq!((list.len(), Arc::strong_count(&item)), (0, 1));
        }
        push(&mut list, 7, &item);
        let more = if cfg!(miri) { 300 } else { 5000 };
        list.grow(more);
        (0..more + 2).for_each(|i| push(&mut list, i as u64, &item));
        assert_eq!((list.len(), list.capacity(), keys(&list)[0]), (more + 3, more + 3, 7));
        list.set_place(more + 2, PlacedAt { segment: 3, grain: 4 });
        assert_eq!(list.get(more + 2).0.at, PlacedAt { segment: 3, grain: 4 });
        drop(list);
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    #[should_panic(expected = "there is room")]
    fn a_full_one_takes_no_more() {
        let mut list = RecordCopies::with_capacity(in_memory::of::<u64, Arc<()>>(), 1);
        (0..2).for_each(|i| push(&mut list, i, &Arc::new(())));
    }
}
