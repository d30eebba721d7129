//! Records on their way into a state, so many at a time that their memory accesses overlap.
//!
//! What it keeps true: what they take is booked before, by upper bound, unless one alone is larger.

use std::rc::Rc;

use alluvium_pagestore::{Account, MemoryKind, Result};

/// Records of a batch, and bytes of them, unless one is larger.
const RECORDS: usize = 64;
const BYTES: usize = 16 << 10;

/// A batch.
#[derive(Debug)]
pub(crate) struct BookedBatch<T> {
    /// Those that were pushed, in order. Whoever takes them leaves none.
    pub(crate) items: Vec<T>,
    bytes: usize,
    account: Rc<Account>,
}

impl<T> BookedBatch<T> {
    /// Memory for one: what an item owns is about as long as its record.
    pub(crate) fn memory_bytes() -> u64 {
        (RECORDS * size_of::<T>() + 2 * BYTES) as u64
    }

    /// An empty one, whose memory is booked while it lives.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget).
    pub(crate) fn begin(account: &Rc<Account>) -> Result<Self> {
        account.reserve(MemoryKind::Buffers, Self::memory_bytes(), "a batch of records")?;
        Ok(Self { items: Vec::with_capacity(RECORDS), bytes: 0, account: account.clone() })
    }

    /// Adds an item whose record has so many bytes, and says whether that is enough.
    pub(crate) fn push(&mut self, item: T, bytes: usize) -> bool {
        if self.items.is_empty() {
            self.bytes = 0;
        }
        self.items.push(item);
        self.bytes += bytes;
        self.items.len() == RECORDS || self.bytes >= BYTES
    }
}

impl<T> Drop for BookedBatch<T> {
    fn drop(&mut self) {
        self.items = Vec::new();
        self.account.release(MemoryKind::Buffers, Self::memory_bytes());
    }
}
