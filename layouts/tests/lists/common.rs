//! Lists of one state, opened and reopened on a device, and the model they are compared with.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alluvium_layouts::{CheckpointOutcome, Cursor, Lists, ListsLayout, StateContext};
use alluvium_pagestore::io::Device;
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, ErrorKind, Helper, Key, Result, SegmentStore, State,
    StateImage, Time, WeakHelper, blobs_name,
};

pub use crate::dice::Dice;

/// What a state is opened on.
pub struct Ground {
    pub device: Option<Arc<dyn Device>>,
    pub memory: u64,
    pub threads: bool,
    /// Whether key groups come and go.
    pub movable: bool,
    segments: Option<SegmentStore>,
    /// The committed checkpoint.
    committed: Option<StateImage>,
    blobs: u64,
    /// The helper with a thread that the last state was opened with.
    helper: Option<WeakHelper>,
}

impl Ground {
    pub fn new(device: Option<Arc<dyn Device>>, memory: u64, threads: bool) -> Self {
        let segments = device.clone().map(|device| SegmentStore::new(device, 1));
        let (committed, helper) = (None, None);
        Self { device, memory, threads, movable: false, segments, committed, blobs: 0, helper }
    }

    /// Opens the state from the committed checkpoint, removing files that it does not name.
    pub fn open<K: Key, E: State, L: ListsLayout<K, E>>(
        &mut self,
        layout: &L,
    ) -> Result<(L::Lists, Rc<Account>)> {
        let mut restored = None;
        if let Some(device) = &self.device {
            let named = |name: &String| {
                self.committed.as_ref().is_some_and(|image| {
                    image.segments().any(|s| s.id.file_name() == *name)
                        || image.runs().any(|run| run.id.file_name() == *name)
                        || image.blob_files().any(|number| blobs_name(number) == *name)
                })
            };
            for name in device.list()?.into_iter().filter(|name| !named(name)) {
                device.remove(&name)?;
            }
            if let Some(image) = &self.committed {
                restored = Some((image.clone(), BlobReader::new(device.clone())));
            }
        }
        let helper = if self.threads { Helper::thread()? } else { Helper::inline() };
        self.helper = self.threads.then(|| helper.weak());
        self.open_in(layout, self.memory, helper, restored)
    }

    /// Waits until the helper has done the jobs that it has. Not for the lists to take in what it did.
    pub fn wait_for_helper(&self) {
        let (tell, told) = std::sync::mpsc::channel();
        let told_by = |helper: &WeakHelper| {
            let job = move || {
                let _ = tell.send(());
            };
            helper.submit(job).is_none()
        };
        if self.helper.as_ref().is_some_and(told_by) {
            told.recv_timeout(Duration::from_secs(60)).expect("the helper works");
        }
    }

    /// Opens the committed checkpoint once more, in plenty of memory, beside the one that is in use.
    pub fn open_beside<K: Key, E: State, L: ListsLayout<K, E>>(
        &self,
        layout: &L,
    ) -> Result<(L::Lists, Rc<Account>)> {
        let (image, device) = (self.committed.clone(), self.device.clone());
        let restored = image.zip(device.map(BlobReader::new));
        let helper = if self.threads { Helper::thread()? } else { Helper::inline() };
        self.open_in(layout, 1 << 30, helper, restored)
    }

    fn open_in<K: Key, E: State, L: ListsLayout<K, E>>(
        &self,
        layout: &L,
        memory: u64,
        helper: Helper,
        restored: Option<(StateImage, BlobReader)>,
    ) -> Result<(L::Lists, Rc<Account>)> {
        let root = Account::root(memory);
        let limit = layout.memory_limit().unwrap_or(u64::MAX);
        let account = Account::below(&root, "lists", limit);
        let context = StateContext {
            name: "lists".into(),
            account: account.clone(),
            segments: self.segments.clone(),
            helper,
            max_value_bytes: 4096,
            key_groups: 256,
            owned: 0..256,
            movable: self.movable,
            restored,
        };
        Ok((layout.open_lists(context)?, account))
    }

    /// Takes a checkpoint and tells its outcome.
    pub fn checkpoint<K: Key, E: State>(
        &mut self,
        lists: &mut impl Lists<K, E>,
        outcome: CheckpointOutcome,
    ) -> Result<()> {
        let device = self.device.clone().expect("a checkpoint needs a device");
        self.blobs += 1;
        let mut blobs = BlobWriter::new(device.clone(), self.blobs, 4096);
        let taken = lists.checkpoint(&mut blobs).and_then(|image| {
            blobs.finish()?;
            Ok(image)
        });
        match taken {
            Ok(image) => {
                if outcome == CheckpointOutcome::Committed {
                    self.committed = Some(image);
                }
                lists.checkpointed(outcome);
                Ok(())
            }
            Err(error) => {
                lists.checkpointed(CheckpointOutcome::Abandoned);
                Err(error)
            }
        }
    }
}

/// A checkpoint being taken in steps.
pub struct Sealing {
    blobs: BlobWriter,
    image: Option<StateImage>,
}

impl Ground {
    /// Begins a checkpoint.
    pub fn begin<K: Key, E: State>(&mut self, lists: &mut impl Lists<K, E>) -> Result<Sealing> {
        let device = self.device.clone().expect("a checkpoint needs a device");
        self.blobs += 1;
        let mut blobs = BlobWriter::new(device, self.blobs, 4096);
        let image = lists.begin_checkpoint(&mut blobs)?;
        Ok(Sealing { blobs, image })
    }

    /// Does a step of it, and says whether it is taken.
    pub fn advance<K: Key, E: State>(
        &mut self,
        lists: &mut impl Lists<K, E>,
        sealing: &mut Sealing,
    ) -> Result<bool> {
        if sealing.image.is_none() {
            sealing.image = lists.continue_checkpoint(&mut sealing.blobs)?;
            if sealing.image.is_none() {
                std::thread::yield_now();
            }
        }
        Ok(sealing.image.is_some())
    }

    /// Decides it, taken or not.
    pub fn decide<K: Key, E: State>(
        &mut self,
        lists: &mut impl Lists<K, E>,
        sealing: Sealing,
        outcome: CheckpointOutcome,
    ) -> Result<()> {
        let Sealing { image, blobs } = sealing;
        if outcome == CheckpointOutcome::Committed {
            blobs.finish()?;
            self.committed = Some(image.expect("it is taken"));
        }
        lists.checkpointed(outcome);
        Ok(())
    }

    /// The same on what a crash has left.
    pub fn on(self, device: Arc<dyn Device>) -> Self {
        // Ids are not given twice, whatever is there.
        let segments = Some(SegmentStore::new(device.clone(), 1 << 20));
        Self { device: Some(device), segments, ..self }
    }

    /// Names of the segment files that are there.
    pub fn segment_files(&self) -> Vec<String> {
        let mut names = self.device.as_ref().expect("a device").list().unwrap();
        names.retain(|name| name.starts_with("seg-"));
        names
    }

    /// Whether the committed checkpoint names all of these files, and no other.
    pub fn names_just(&self, files: &[String]) -> bool {
        let image = self.committed.as_ref().expect("a checkpoint");
        let mut named: Vec<_> = image.segments().map(|s| s.id.file_name()).collect();
        let mut files = files.to_vec();
        named.sort();
        files.sort();
        named == files
    }
}

/// What lists should hold.
pub type Model<K, E> = BTreeMap<(Time, K), Vec<E>>;

/// All lists of some buckets, each key's joined, by folds with `fuel`.
///
/// One key may have its pieces in more runs than there is room to read beside what storage has yet
/// to take: the fold is begun again when it has.
pub fn folded<K: Key + Ord, E: State>(
    lists: &mut impl Lists<K, E>,
    buckets: Range<Time>,
    fuel: usize,
) -> Result<BTreeMap<K, Vec<E>>> {
    let mut found = BTreeMap::new();
    let (mut cursor, mut tries) = (Cursor::default(), 0);
    while !cursor.done {
        let step = lists.fold(buckets.clone(), &mut cursor, fuel, &mut |key, elements| {
            let mut all = Vec::new();
            // One by one and in chunks, in turns.
            while let Some(element) = elements.next()? {
                all.push(element.clone());
                if all.len() % 3 != 0 {
                    all.extend_from_slice(elements.next_chunk()?);
                }
            }
            assert!(elements.next_chunk()?.is_empty(), "what has ended stays so");
            assert!(found.insert(key.clone(), all).is_none(), "a key is visited once");
            Ok(())
        });
        match step {
            Err(error) if error.kind() == ErrorKind::OverBudget && tries < 1000 => {
                tries += 1;
                found.clear();
                cursor = Cursor::default();
                lists.tick(100)?;
                std::thread::yield_now();
            }
            step => step?,
        }
    }
    Ok(found)
}

/// What [`folded`] should find.
pub fn folded_model<K: Key + Ord, E: State>(
    model: &Model<K, E>,
    buckets: &Range<Time>,
) -> BTreeMap<K, Vec<E>> {
    let mut found: BTreeMap<K, Vec<E>> = BTreeMap::new();
    for ((time, key), list) in model {
        let last = *time == Time::MAX && buckets.end == Time::MAX;
        if (buckets.contains(time) || last) && !list.is_empty() {
            found.entry(key.clone()).or_default().extend(list.iter().cloned());
        }
    }
    found
}

/// One list.
pub fn read<K: Key, E: State>(
    lists: &mut impl Lists<K, E>,
    bucket: Time,
    key: &K,
) -> Result<Vec<E>> {
    let mut all = Vec::new();
    let count = lists.read(bucket, key, &mut |element: &E| {
        all.push(element.clone());
        Ok(())
    })?;
    assert_eq!(count, all.len() as u64);
    Ok(all)
}
