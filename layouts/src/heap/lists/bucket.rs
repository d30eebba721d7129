//! The lists of a bucket: a table of vectors, what is booked for them, and how they are dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};

use alluvium_pagestore::{Account, HeapSize, Key, MemoryKind, State};

use super::reading::UnreadBucket;
use super::records::{ListRecord, ListRecords};
use crate::heap::entry_table_unsafe::{EntryTable, KeyedEntry};
use crate::heap::record_position::RecordPosition;
use crate::support::by_time_unsafe::ByTime;

/// Bytes booked for a bucket without lists: with a node of the tree of times, which the first bucket takes.
pub(super) const BUCKET_BYTES: u64 = ByTime::<ListBucket<(), ()>>::memory_bytes(1);
const _: () = assert!(ByTime::<ListBucket<(), ()>>::fits_in(BUCKET_BYTES));

/// The elements of a key, and where they are in the last checkpoint.
#[derive(Debug)]
pub(crate) struct HeapList<K, E> {
    pub(crate) key: K,
    pub(crate) elements: Vec<E>,
    pub(crate) records: ListRecords,
}

#[derive(Debug)]
pub(crate) struct ListBucket<K, E> {
    pub(crate) lists: EntryTable<HeapList<K, E>>,
    pub(super) elements: u64,
    /// Bytes booked for keys and vectors, and for what lists remember.
    pub(crate) values: u64,
    /// What a checkpoint has to read of it still.
    pub(crate) captured: Option<Box<UnreadBucket<K, E>>>,
}

impl<K, E> ListBucket<K, E> {
    /// Shows the records of its lists.
    pub(crate) fn for_each_record(&self, epoch: u32, see: &mut dyn FnMut(RecordPosition)) {
        for list in self.lists.places().flat_map(|place| self.lists.part_at(place).0) {
            list.records.of(epoch).iter().for_each(|record| see(record.place));
        }
    }

    /// Drops it, and gives back what is booked for it; the table gives back its own.
    pub(crate) fn release(self, account: &Account) {
        let values = self.values;
        drop(self);
        account.release(MemoryKind::Values, values);
        account.release(MemoryKind::Tables, BUCKET_BYTES);
    }
}

/// Drops a part of the last of these buckets, of which no checkpoint reads anything, or what is
/// left of one without any; shows the records of its lists. Gives how many elements they had;
/// `None` if there are no buckets. What panics when it is dropped does so for nobody.
pub(crate) fn drop_part<K: Key, E: State>(
    buckets: &mut Vec<ListBucket<K, E>>,
    account: &Account,
    epoch: u32,
    see: &mut dyn FnMut(RecordPosition),
) -> Option<u64> {
    let bucket = buckets.last_mut()?;
    let Some(part) = bucket.lists.take_part() else {
        buckets.pop().into_iter().for_each(|bucket| bucket.release(account));
        return Some(0);
    };
    let mut elements = 0;
    for list in part {
        elements += list.elements.len() as u64;
        list.records.of(epoch).iter().for_each(|record| see(record.place));
        let bytes = list_bytes(&list.key, &list.elements) + list.records.memory_bytes();
        let _panic = catch_unwind(AssertUnwindSafe(|| drop(list)));
        bucket.values -= bytes;
        account.release(MemoryKind::Values, bytes);
    }
    Some(elements)
}

impl<K: Key, E: 'static> KeyedEntry for HeapList<K, E> {
    fn hash_of_key(&self) -> u64 {
        self.key.key_hash()
    }
}

/// Bytes that a list and its key own.
pub(super) fn list_bytes<K: Key, E: State>(key: &K, list: &Vec<E>) -> u64 {
    (key.heap_bytes() + list.heap_bytes()) as u64
}

/// Notes a record of a list, and books it; says whether there was room.
pub(crate) fn add_record(
    account: &Account,
    values: &mut u64,
    records: &mut ListRecords,
    (epoch, record): (u32, ListRecord),
) -> bool {
    if account.available() < records.growth_bytes() {
        return false;
    }
    let before = records.memory_bytes();
    records.push(epoch, record);
    let after = records.memory_bytes();
    account.adjust(MemoryKind::Values, before, after);
    *values = *values + after - before;
    true
}
