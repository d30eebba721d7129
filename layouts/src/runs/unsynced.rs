//! Files of runs that nobody has synced yet.
//!
//! A checkpoint has them synced before it names them. A sync that fails leaves the file doubtful: see [`Appended`], which
//! writes it again before the next.

use std::sync::{Arc, Mutex, PoisonError};

use alluvium_pagestore::io::{Appended, Device, IoBuffer};
use alluvium_pagestore::{Result, RunId};

/// A file of a run that the device may not keep yet.
#[derive(Clone, Debug)]
pub struct UnsyncedRun {
    id: RunId,
    file: Arc<Mutex<Appended>>,
}

impl UnsyncedRun {
    pub(super) fn new(id: RunId, file: Appended) -> Self {
        Self { id, file: Arc::new(Mutex::new(file)) }
    }

    /// The run.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Has the device keep the file, but for its name. `chunk` is memory to write it again with, if a sync failed before.
    ///
    /// # Errors
    /// Those of the device. It can be tried again.
    pub fn sync(&self, device: &dyn Device, chunk: &mut IoBuffer) -> Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).sync(device, chunk)
    }
}
