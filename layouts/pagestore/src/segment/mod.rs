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
mod runs;
mod whole;
mod writer;

pub use footers::{Footer, FooterPass};
pub use format::{
    FORMAT_VERSION, FooterEntry, GRAIN_BYTES, ImageInfo, RECORD_BYTES_MAX, RECORD_HEADER_BYTES,
    RecordBytes, SEGMENT_BYTES_MAX, SegmentId, UNSPLIT_BYTES, VerifiedRecord, damaged,
    verify_record,
};
pub use image::Image;
pub use live::{Death, LiveSet, Liveness};
pub use parts::{ImagePart, PartRange, RECORDS, RUNS, StateImage, TouchedKeys};
pub use pass::{PassVisitor, PassedRecord, SegmentPass};
pub use placing::{PlacedAt, RecordPlacing};
pub use reader::{SegmentDirectory, SegmentReader};
pub use runs::{RunId, RunInfo};
pub use whole::WholeSegment;
pub use writer::{SegmentWriter, WrittenPage};

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::io::{BLOCK_BYTES, Device, FileHandle, IoBuffer, Operation, Patient, run_blocking};
use crate::{ErrorKind, FileName, Helper, Result, Time};
use format::{SegmentTail, TRAILER_BYTES};
use pins::Pins;
use removals::Removals;

/// The storage of segments: a device and the source of segment ids. Cheap to clone.
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
    /// Creates a store whose next segment has the id `next_id`. Removing files waits for the
    /// device.
    pub fn new(device: Arc<dyn Device>, next_id: u64) -> Self {
        let next_id = Arc::new(AtomicU64::new(next_id));
        Self { device, next_id, pins: Arc::default(), removals: None, opening: None }
    }

    /// Lets a helper remove files, if it has a thread. Callers then do not wait.
    #[must_use]
    pub fn removing_by(self, helper: &Helper) -> Self {
        let removals = (!helper.is_inline()).then(|| Arc::new(Removals::by(helper.weak())));
        Self { removals, ..self }
    }

    /// Limits how long this thread waits for reads of a device that makes no progress.
    #[must_use]
    pub fn patient(self, most: Duration) -> Self {
        let device = Arc::new(Patient::new(self.device, most));
        Self { device, ..self }
    }

    /// Limits how long this thread waits for each request while it opens or exports states and the
    /// device makes no progress.
    #[must_use]
    pub fn opened_within(self, most: Duration) -> Self {
        let opening = Some(Arc::new(Patient::new(self.device.clone(), most).in_all()));
        Self { opening, ..self }
    }

    /// Returns the store for opening a state, or for writing files that an error makes useless:
    /// requests [time out](SegmentStore::opened_within) if that was set.
    #[must_use]
    pub fn for_opening(&self) -> Self {
        let device: Arc<dyn Device> = match &self.opening {
            Some(opening) => opening.clone(),
            None => self.shared_device(),
        };
        Self { device, ..self.clone() }
    }

    /// Returns how long this thread waits for reads, if it is limited.
    pub fn patience(&self) -> Option<Duration> {
        self.device.patient().map(Patient::patience)
    }

    /// Returns the bytes of buffers that the device still holds for reads that this thread left.
    pub fn left_bytes(&self) -> u64 {
        self.device.patient().map_or(0, Patient::left_bytes)
    }

    /// Waits for the reads that this thread left, up to its time limit.
    ///
    /// # Errors
    /// [`ErrorKind::Backpressure`] if some have not ended.
    pub fn wait_for_left(&self) -> Result<()> {
        self.device.patient().map_or(Ok(()), Patient::wait_for_left)
    }

    /// Removes the file of a segment that its owner no longer needs: now, or when the last
    /// checkpoint that names it is dropped. Succeeds if there is no such file. If a helper removes
    /// files, this call does not wait, and a file that cannot be removed is tried again with the
    /// next.
    pub fn remove(&self, id: SegmentId) -> Result<()> {
        self.remove_named(&id.name())
    }

    /// Removes any file, as [`remove`](SegmentStore::remove) does.
    pub fn remove_file(&self, name: &str) -> Result<()> {
        self.remove_named(&name.into())
    }

    fn remove_named(&self, name: &FileName) -> Result<()> {
        if self.pins.doom(name) { Ok(()) } else { self.remove_now(name) }
    }

    fn remove_now(&self, name: &FileName) -> Result<()> {
        match &self.removals {
            Some(removals) => removals.remove(&self.device, name),
            None => remove_file(&*self.device, &name.to_string()),
        }
    }

    /// Pins these files for a checkpoint that names them. They stay until it is
    /// [unpinned](SegmentStore::unpin).
    pub fn pin<N: Into<FileName>>(&self, names: impl Iterator<Item = N>) {
        self.pins.pin(names.map(Into::into));
    }

    /// Unpins the files of a dropped checkpoint, and removes those that nothing else needs. The
    /// next open removes files that cannot be removed now.
    pub fn unpin<N: Into<FileName>>(&self, names: impl Iterator<Item = N>) {
        for name in self.pins.unpin(names.map(Into::into)) {
            let _ = self.remove_now(&name);
        }
    }

    /// Returns the device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Returns the device, shared.
    pub fn shared_device(&self) -> Arc<dyn Device> {
        self.device.clone()
    }

    /// Returns a new segment id, never reused.
    pub fn next_id(&self) -> SegmentId {
        SegmentId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the id that [`next_id`](SegmentStore::next_id) will return.
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

/// A segment, its file and its sizes.
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
    /// Checksum over its records' checksums, from its tail; 0 if unknown.
    pub digest: u32,
    /// Latest time that one of its records was touched, if the state's entries expire;
    /// [`Time::MAX`] if unknown.
    pub latest: Time,
    /// Whether the segment has its directory and never changes again.
    pub sealed: bool,
}

/// A checkpoint's entry for one segment.
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
    /// Checksum over its records' checksums, from its tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<u32>,
    /// Latest time that one of its records was touched, if the state's entries expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<Time>,
    /// The live set when the segment was last examined whole, a bit per grain; `None` if all
    /// records were live. The records in [`ImagePart::deaths`] have died since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<crate::blob::BlobRef>,
}

impl SegmentInfo {
    /// Bytes that the open file of a segment takes.
    pub const FILE_BYTES: u64 = FileHandle::FILE_BYTES;
    /// Bytes that the store keeps for a segment whose file is open and that one checkpoint names.
    pub const NAMED_BYTES: u64 =
        Self::FILE_BYTES + Pins::BYTES_EACH + size_of::<SegmentImage>() as u64;

    /// Returns the entry of a sealed segment whose records all belong to the checkpoint.
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
    /// Opens the segment's file and checks by its tail that it is the checkpoint's: a copy of the
    /// directory that has continued may have another segment with the same id. Takes a block of
    /// memory meanwhile, less than a store reserves for checkpoint files.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if it is another segment; those of the
    /// device.
    pub fn open(&self, store: &SegmentStore) -> Result<SegmentInfo> {
        let info = self.open_unchecked(store)?;
        if let Some(digest) = self.digest {
            self.check_tail(store, &info.file, digest)?;
        }
        Ok(info)
    }

    /// Opens the segment's file without this check: for finding all damage.
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
        let tail = SegmentTail::from_bytes(file, self.id, self.bytes, tail)?;
        if (tail.records, tail.digest) != (self.records, digest) {
            let what = "the segment is another one than the checkpoint names";
            return Err(damaged(file, self.bytes - TRAILER_BYTES as u64, what));
        }
        Ok(())
    }
}
