//! Segments: files of page images, written once, sealed, and dropped as one.

mod footers;
mod format;
mod image;
mod live;
mod packed;
mod parts;
mod pass;
mod pins;
mod placing;
mod reader;
mod removals;
mod whole;
mod writer;

pub use footers::{Footer, FooterPass};
pub use format::{
    FORMAT_VERSION, FooterEntry, GRAIN_BYTES, ImageInfo, RECORD_BYTES_MAX, RECORD_HEADER_BYTES,
    RecordBytes, SEGMENT_BYTES_MAX, SegmentId, UNSPLIT_BYTES, Verified, damaged, verify_record,
};
pub use image::Image;
pub use live::{Death, LiveSet, Liveness};
pub use parts::{ImagePart, PartRange, RECORDS, StateImage};
pub use pass::{PassVisitor, PassedRecord, SegmentPass};
pub use placing::{PlacedAt, Placing};
pub use reader::{SegmentDirectory, SegmentReader};
pub use whole::WholeSegment;
pub use writer::{SegmentWriter, WrittenPage};

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::io::{BLOCK_BYTES, Device, FileHandle, IoBuffer, Operation, Patient, run_blocking};
use crate::{ErrorKind, Helper, Result, Time};
use format::{TRAILER_BYTES, Tail};
use pins::Pins;
use removals::Removals;

/// Where segments live: a device and the source of segment ids. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SegmentStore {
    device: Arc<dyn Device>,
    next_id: Arc<AtomicU64>,
    pins: Arc<Pins>,
    removals: Option<Arc<Removals>>,
    /// What states are opened with, by the thread that does not wait for ever.
    opening: Option<Arc<Patient>>,
}

impl SegmentStore {
    /// A store whose next segment has the id `next_id`. Who removes files waits for the device.
    pub fn new(device: Arc<dyn Device>, next_id: u64) -> Self {
        let next_id = Arc::new(AtomicU64::new(next_id));
        Self { device, next_id, pins: Arc::default(), removals: None, opening: None }
    }

    /// The same store, whose files are removed by a helper if that has a thread: nobody else waits.
    #[must_use]
    pub fn removing_by(self, helper: &Helper) -> Self {
        let removals = (!helper.is_inline()).then(|| Arc::new(Removals::by(helper.weak())));
        Self { removals, ..self }
    }

    /// The same store for a thread that waits so long for reads of a device that does nothing, this one.
    #[must_use]
    pub fn patient(self, most: Duration) -> Self {
        let device = Arc::new(Patient::new(self.device, most));
        Self { device, ..self }
    }

    /// The same store, of which this thread opens and exports states, and waits so long for each request while
    /// the device does nothing.
    #[must_use]
    pub fn opened_within(self, most: Duration) -> Self {
        let opening = Some(Arc::new(Patient::new(self.device.clone(), most).in_all()));
        Self { opening, ..self }
    }

    /// The store to open a state with, or to write files that are of no use after an error: one whose requests are
    /// [not waited for for ever](SegmentStore::opened_within), if that was asked for.
    #[must_use]
    pub fn for_opening(&self) -> Self {
        let device: Arc<dyn Device> = match &self.opening {
            Some(opening) => opening.clone(),
            None => self.shared_device(),
        };
        Self { device, ..self.clone() }
    }

    /// How long this thread waits for reads, if not for ever.
    pub fn patience(&self) -> Option<Duration> {
        self.device.patient().map(Patient::patience)
    }

    /// Bytes of buffers that a device has of reads that this thread has not waited for.
    pub fn left_bytes(&self) -> u64 {
        self.device.patient().map_or(0, Patient::left_bytes)
    }

    /// Waits for these, as long as this thread waits for a read.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`] if they have not ended.
    pub fn wait_for_left(&self) -> Result<()> {
        self.device.patient().map_or(Ok(()), Patient::wait_for_left)
    }

    /// Removes the file of a segment that its owner needs no more: now, or when the last checkpoint
    /// that names it is dropped. A file that is not there is no error. If a helper removes files, this
    /// does not wait, and one that cannot be removed is tried again with the next.
    pub fn remove(&self, id: SegmentId) -> Result<()> {
        self.remove_file(&id.file_name())
    }

    /// [`remove`](SegmentStore::remove) for any file.
    pub fn remove_file(&self, name: &str) -> Result<()> {
        if self.pins.doom(name) { Ok(()) } else { self.remove_now(name) }
    }

    fn remove_now(&self, name: &str) -> Result<()> {
        match &self.removals {
            Some(removals) => removals.remove(&self.device, name),
            None => remove_file(&*self.device, name),
        }
    }

    /// A checkpoint names these files: they stay until it is [unpinned](SegmentStore::unpin).
    pub fn pin<'a>(&self, names: impl Iterator<Item = &'a str>) {
        self.pins.pin(names);
    }

    /// A checkpoint that named these files is dropped: those that nobody else needs are removed. One
    /// that cannot be removed now is removed at the next open.
    pub fn unpin<'a>(&self, names: impl Iterator<Item = &'a str>) {
        for name in self.pins.unpin(names) {
            let _ = self.remove_now(&name);
        }
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The device, shared.
    pub fn shared_device(&self) -> Arc<dyn Device> {
        self.device.clone()
    }

    /// A new segment id; never given twice.
    pub fn next_id(&self) -> SegmentId {
        SegmentId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// The id that [`next_id`](SegmentStore::next_id) will give.
    pub fn peek_id(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed)
    }
}

/// Removes a file, if it is there.
fn remove_file(device: &dyn Device, name: &str) -> Result<()> {
    match device.remove(name) {
        Err(error) if error.kind() != ErrorKind::Missing => Err(error),
        _ => Ok(()),
    }
}

/// A segment and where it is.
#[derive(Clone, Debug)]
pub struct SegmentInfo {
    /// The segment.
    pub id: SegmentId,
    /// Its file.
    pub file: FileHandle,
    /// Bytes of the file.
    pub bytes: u64,
    /// Records in it, live or not.
    pub records: u64,
    /// Its longest record, with header.
    pub max_record_bytes: u64,
    /// What its tail says of its records' checksums; 0 if that is not known.
    pub digest: u32,
    /// When the last of its records was touched, of a state whose entries expire; [`Time::MAX`] if
    /// nobody knows.
    pub latest: Time,
    /// Whether it has its directory and will never change.
    pub sealed: bool,
}

/// What a checkpoint says of one segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentImage {
    /// The segment.
    pub id: SegmentId,
    /// Bytes of the file.
    pub bytes: u64,
    /// Records in it, live or not.
    pub records: u64,
    /// Its longest record, with header.
    pub max_record_bytes: u64,
    /// Records that belong to the checkpoint.
    pub live_records: u64,
    /// What its tail says of its records' checksums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<u32>,
    /// When the last of its records was touched, of a state whose entries expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<Time>,
    /// Which ones they were when the segment was last looked at in full, a bit per grain; `None` if
    /// all did. Those of [`ImagePart::deaths`] do not any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<crate::blob::BlobRef>,
}

impl SegmentInfo {
    /// The image of a sealed segment all of whose records belong to the checkpoint.
    pub fn all_live(&self) -> SegmentImage {
        SegmentImage {
            id: self.id,
            bytes: self.bytes,
            records: self.records,
            max_record_bytes: self.max_record_bytes,
            live_records: self.records,
            digest: Some(self.digest).filter(|digest| *digest != 0),
            latest: (self.latest < Time::MAX).then_some(self.latest),
            live: None,
        }
    }
}

impl SegmentImage {
    /// Opens the segment's file, and reads from its tail whether it is the one that the checkpoint
    /// means: in a copy of the directory that has gone on there may be another with the same id. Takes
    /// a block of memory meanwhile, which is less than a store keeps for files of checkpoints.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if it is not; those of the device.
    pub fn open(&self, store: &SegmentStore) -> Result<SegmentInfo> {
        let info = self.open_unchecked(store)?;
        if let Some(digest) = self.digest {
            self.check_tail(store, &info.file, digest)?;
        }
        Ok(info)
    }

    /// Opens the segment's file, whatever is in it: for whoever looks for all that is damaged.
    ///
    /// # Errors
    /// Those of the device.
    pub fn open_unchecked(&self, store: &SegmentStore) -> Result<SegmentInfo> {
        let file = store.device().open(&self.id.file_name())?;
        Ok(SegmentInfo {
            id: self.id,
            file,
            digest: self.digest.unwrap_or(0),
            bytes: self.bytes,
            records: self.records,
            max_record_bytes: self.max_record_bytes,
            latest: self.latest.unwrap_or(Time::MAX),
            sealed: true,
        })
    }

    fn check_tail(&self, store: &SegmentStore, file: &FileHandle, digest: u32) -> Result<()> {
        let (len, block) = (store.device().len(file)?, BLOCK_BYTES as u64);
        if len < self.bytes || self.bytes < 2 * block {
            let what = format!("the file has {len} bytes, {} were written", self.bytes);
            return Err(damaged(file, len, &what));
        }
        let operation = Operation::Read { offset: self.bytes - block };
        let buffer = IoBuffer::zeroed(BLOCK_BYTES);
        let (buffer, done) = run_blocking(store.device(), file, operation, buffer);
        done?;
        let tail = &buffer.as_slice()[BLOCK_BYTES - TRAILER_BYTES..];
        let tail = Tail::from_bytes(file, self.id, self.bytes, tail)?;
        if (tail.records, tail.digest) != (self.records, digest) {
            let what = "the segment is another one than the checkpoint names";
            return Err(damaged(file, self.bytes - TRAILER_BYTES as u64, what));
        }
        Ok(())
    }
}
