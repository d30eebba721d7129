//! The second buffer of a cursor: what comes next is read into it while the first is shown.

use alluvium_pagestore::io::{FileHandle, IoBuffer, Operation, UnderWay};
use alluvium_pagestore::{Result, SegmentStore};

/// The second buffer.
#[derive(Debug)]
pub(super) enum SecondBuffer {
    /// There is none: each read is waited for.
    Nothing,
    /// It has room.
    Room(IoBuffer),
    /// So many bytes at an offset are being read.
    UnderWay(UnderWay, (u64, usize)),
}

impl SecondBuffer {
    /// One of so many bytes, if there is to be one.
    pub fn new(bytes: Option<usize>) -> Self {
        bytes.map_or(Self::Nothing, |bytes| Self::Room(IoBuffer::zeroed(bytes)))
    }

    /// Starts reading, if it has room.
    pub fn start(
        &mut self,
        (store, file): (&SegmentStore, &FileHandle),
        (offset, bytes): (u64, usize),
    ) {
        *self = match std::mem::replace(self, Self::Nothing) {
            Self::Room(mut room) => {
                room.set_len(bytes);
                let (device, operation) = (store.shared_device(), Operation::Read { offset });
                let under_way = UnderWay::start(device, file, operation, room);
                Self::UnderWay(under_way, (offset, bytes))
            }
            other => other,
        };
    }

    /// What came of reading so many bytes at an offset, if that was started. Something else that was started is forgotten.
    /// The buffer is without memory, if the device has kept it.
    pub fn take(&mut self, offset: u64, bytes: usize) -> Option<(IoBuffer, Result<()>)> {
        let (under_way, of) = match std::mem::replace(self, Self::Nothing) {
            Self::UnderWay(under_way, of) => (under_way, of),
            other => {
                *self = other;
                return None;
            }
        };
        let (buffer, done) = under_way.wait();
        if of == (offset, bytes) {
            return Some((buffer, done));
        }
        self.give(buffer);
        None
    }

    /// Takes the first buffer instead of the second, which was [taken](SecondBuffer::take).
    pub fn give(&mut self, buffer: IoBuffer) {
        if buffer.capacity() > 0 {
            *self = Self::Room(buffer);
        }
    }
}
