//! Checkpoints that can be restored, the last three, with what each should hold.

use std::collections::BTreeSet;

use alluvium_pagestore::{SegmentStore, StateImage, blobs_name};

const RETAINED: usize = 3;

/// Their files are pinned.
pub struct Retained<M> {
    store: SegmentStore,
    all: Vec<(StateImage, M)>,
}

impl<M> Retained<M> {
    pub fn none(store: &SegmentStore) -> Self {
        Self { store: store.clone(), all: Vec::new() }
    }

    /// Another one, in place of the oldest.
    pub fn push(&mut self, image: StateImage, then: M) {
        let files = |image: &StateImage| -> BTreeSet<String> {
            let blobs = image.blob_files().map(blobs_name);
            image.segments().map(|segment| segment.id.file_name()).chain(blobs).collect()
        };
        self.store.pin(files(&image).iter().map(String::as_str));
        self.all.push((image, then));
        if self.all.len() > RETAINED {
            let (image, _) = self.all.remove(0);
            self.store.unpin(files(&image).iter().map(String::as_str));
        }
    }

    /// The oldest first.
    pub fn all(&self) -> &[(StateImage, M)] {
        &self.all
    }
}
