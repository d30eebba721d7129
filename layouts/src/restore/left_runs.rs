//! Sorted runs of the checkpoint that a state was restored from, which its layout does not use.
//!
//! What it keeps true: their files stay until a checkpoint without them is confirmed. Earlier checkpoints that are retained
//! pin them.

use std::rc::Rc;

use alluvium_pagestore::{Account, ImagePart, MemoryKind, Result, RunId, SegmentStore};

use crate::support::booked::Booked;

/// The runs.
#[derive(Debug)]
pub(crate) struct LeftRuns {
    ids: Vec<RunId>,
    booked: Booked,
}

impl LeftRuns {
    /// None.
    pub fn none(account: Rc<Account>) -> Self {
        Self { ids: Vec::new(), booked: Booked::none(account, MemoryKind::Tables) }
    }

    /// Adds those of a part.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](alluvium_pagestore::ErrorKind::OverBudget) without room for their ids.
    pub fn add(&mut self, part: &ImagePart) -> Result<()> {
        let count = part.levels.iter().map(Vec::len).sum::<usize>();
        let bytes = (count * size_of::<RunId>()) as u64;
        self.booked.reserve_more(bytes, "the names of sorted runs")?;
        self.ids.reserve_exact(count);
        self.ids.extend(part.levels.iter().flatten().map(|run| run.id));
        Ok(())
    }

    /// A checkpoint without them is confirmed. A file that cannot be removed is left over until the next open.
    pub fn remove(&mut self, store: Option<&SegmentStore>) {
        let ids = std::mem::take(&mut self.ids);
        self.booked.give_back();
        for id in ids {
            let _ = store.map(|store| store.remove_file(&id.file_name()));
        }
    }
}
