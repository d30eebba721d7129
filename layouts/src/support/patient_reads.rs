//! Reads of a state that its owner does not wait for for ever, and what is booked for those that were left.
//!
//! What it keeps true: the buffer of a read that was left is booked until the device is done with it; at most
//! the reads of one call are left. A later call waits for them before it reads anything.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use alluvium_pagestore::{Account, MemoryKind, Result, SegmentStore};

/// Where an owner reads the runs of a state.
#[derive(Debug)]
pub struct PatientReads {
    store: SegmentStore,
    account: Rc<Account>,
    /// What is booked for reads that were left.
    booked: Cell<u64>,
}

impl PatientReads {
    /// Reads of a store that are waited for so long while the device does nothing.
    pub fn new(store: &SegmentStore, patience: Duration, account: Rc<Account>) -> Self {
        Self { store: store.clone().patient(patience), account, booked: Cell::new(0) }
    }

    /// The store to read with.
    pub fn store(&self) -> &SegmentStore {
        &self.store
    }

    /// Bytes that the device has of reads that were left.
    pub fn left_bytes(&self) -> u64 {
        self.store.left_bytes()
    }

    /// Whether something is booked for reads that were left.
    pub fn is_booked(&self) -> bool {
        self.booked.get() > 0
    }

    /// Bytes that are booked for reads that were left.
    pub fn booked_bytes(&self) -> u64 {
        self.booked.get()
    }

    /// Books so many bytes for reads that were left. For who has just given as much back.
    pub fn book(&self, bytes: u64) {
        self.account.adjust(MemoryKind::Buffers, self.booked.replace(bytes), bytes);
    }

    /// Waits for the reads that were left before all memory is given back, and no longer than a call.
    pub fn wait_to_close(&self) {
        if self.left_bytes() > 0 {
            let _ = self.wait();
        }
    }

    /// Waits for the reads that were left, if there are any.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`](alluvium_pagestore::ErrorKind::Backpressure) if they have not ended.
    pub fn wait(&self) -> Result<()> {
        self.store.wait_for_left()
    }
}
