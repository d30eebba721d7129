//! The second buffer of a writer of runs, whose bytes are written while the first is filled.
//!
//! What it keeps true: it waits for the device before it goes, so that its memory is its own as long as it is booked. On
//! the thread of an owner that is patient for reads it waits no longer than for these: the device has the memory then, and
//! the owner books it with that of reads that were left.

use alluvium_pagestore::io::{FileHandle, IoBuffer, Operation, UnderWay, run_blocking};
use alluvium_pagestore::{Error, ErrorKind, Result, SegmentStore};

/// The second buffer.
#[derive(Debug)]
pub(super) enum WriteBehind {
    /// There is none: each write is waited for.
    Nothing,
    /// It has room for what comes next.
    Room(IoBuffer),
    /// It is being written at an offset.
    UnderWay(UnderWay, u64),
    /// It could not be written at an offset. Without memory, if the device has kept it.
    Unwritten(IoBuffer, u64),
}

impl WriteBehind {
    /// One of so many bytes, if there is to be one.
    pub fn new(bytes: Option<usize>) -> Self {
        bytes.map_or(Self::Nothing, |bytes| Self::Room(IoBuffer::zeroed(bytes)))
    }

    /// Writes a buffer at an offset of a file, and gives one with room. With two buffers the write is under way then: the
    /// caller has had the one before [ended](WriteBehind::end).
    pub fn write(
        &mut self,
        (store, file): (&SegmentStore, &FileHandle),
        offset: u64,
        buffer: IoBuffer,
    ) -> (IoBuffer, Result<()>) {
        let operation = Operation::Write { offset };
        match std::mem::replace(self, Self::Nothing) {
            Self::Room(room) => {
                let under_way = UnderWay::start(store.shared_device(), file, operation, buffer);
                *self = Self::UnderWay(under_way, offset);
                (room, Ok(()))
            }
            other => {
                debug_assert!(matches!(other, Self::Nothing), "the write before has ended");
                let (buffer, done) = run_blocking(store.device(), file, operation, buffer);
                (whole(buffer), done)
            }
        }
    }

    /// Waits for the write that is under way, and makes one that failed before again.
    ///
    /// # Errors
    /// Those of the device. The call can be made again, unless the device has [kept](WriteBehind::is_lost) the buffer.
    pub fn end(&mut self, (store, file): (&SegmentStore, &FileHandle)) -> Result<()> {
        let (offset, (buffer, done)) = match std::mem::replace(self, Self::Nothing) {
            Self::UnderWay(under_way, offset) => (offset, under_way.wait()),
            Self::Unwritten(buffer, offset) if buffer.capacity() == 0 => {
                *self = Self::Unwritten(buffer, offset);
                return Err(Error::new(ErrorKind::Io, "a write of a run was lost"));
            }
            Self::Unwritten(buffer, offset) => {
                (offset, run_blocking(store.device(), file, Operation::Write { offset }, buffer))
            }
            other => {
                *self = other;
                return Ok(());
            }
        };
        *self = match done.is_ok() {
            true => Self::Room(whole(buffer)),
            false => Self::Unwritten(buffer, offset),
        };
        done
    }

    /// Whether the device has kept the buffer of a write that was not waited for any longer.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Unwritten(buffer, _) if buffer.capacity() == 0)
    }
}

/// A buffer as long as it can be.
fn whole(mut buffer: IoBuffer) -> IoBuffer {
    buffer.set_len(buffer.capacity());
    buffer
}
