//! Where a helper writes runs: a store of segments, and one writer at a time.
//!
//! What is written runs user code, which may panic. Of a run that fails or panics nothing is left.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use alluvium_pagestore::{Error, ErrorKind, Result, SegmentId, SegmentStore, SegmentWriter};

/// Where runs are written.
#[derive(Clone)]
pub(crate) struct RunStorage {
    pub store: SegmentStore,
    writer: Arc<Mutex<SegmentWriter>>,
}

impl RunStorage {
    /// Runs are written with `writer` to `store`.
    pub fn new(store: SegmentStore, writer: SegmentWriter) -> Self {
        Self { store, writer: Arc::new(Mutex::new(writer)) }
    }

    /// Runs `write` with the writer.
    ///
    /// # Errors
    /// Those of `write`; [`ErrorKind::Poisoned`] with the message `panicked` if it panics.
    pub fn with<R>(
        &self,
        panicked: &'static str,
        write: impl FnOnce(&mut SegmentWriter, &SegmentStore) -> Result<R>,
    ) -> Result<R> {
        let mut writer = self.writer.lock().expect("a writer's user does not panic");
        let written = catch_unwind(AssertUnwindSafe(|| write(&mut writer, &self.store)))
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Poisoned, panicked)));
        if written.is_err() {
            // What could not be finished is of no use, and may fill the device.
            remove_files(&self.store, given_up(&mut writer));
        }
        written
    }
}

/// Gives up what was written of a run. Returns the files of it, which are of no use.
pub(crate) fn given_up(writer: &mut SegmentWriter) -> impl Iterator<Item = SegmentId> + use<> {
    writer.abandon();
    writer.take_sealed().into_iter().map(|segment| segment.id)
}

/// Removes files. One that cannot be removed now is removed, and counted, at the next open.
pub(crate) fn remove_files(store: &SegmentStore, ids: impl IntoIterator<Item = SegmentId>) {
    for id in ids {
        let _ = store.remove(id);
    }
}
