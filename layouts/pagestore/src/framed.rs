//! Small files that a person can read: a short binary header (magic, format version, length,
//! checksum) and a JSON body.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::io::{BLOCK_BYTES, Device, IoBuffer, Operation, run_blocking};
use crate::segment::FORMAT_VERSION;
use crate::{Error, ErrorKind, Result};

const HEADER_BYTES: usize = 32;
/// No such file is longer.
const BYTES_MAX: u64 = 1 << 30;

/// A kind of framed files: its magic, and its name in messages.
#[derive(Clone, Copy, Debug)]
pub struct Framed {
    /// The first bytes of a file of this kind.
    pub magic: &'static [u8; 8],
    /// The name of such a file in messages.
    pub what: &'static str,
    /// Newest format version that this build reads; the oldest is [`FORMAT_VERSION`].
    pub newest: u32,
}

impl Framed {
    /// Replaces the file `name` by one with `body`. Writes the file `new` first and renames it: a
    /// crash leaves the old file or the new one, never a mixture.
    ///
    /// # Errors
    /// Those of the device. The old file is in place, unless the last step failed: then either file
    /// may be.
    pub fn replace(
        &self,
        device: &dyn Device,
        name: &str,
        new: &str,
        body: &impl Serialize,
    ) -> Result<()> {
        self.write(device, new, FORMAT_VERSION, body)?;
        // The names of files made before this one must not be lost when its own is not.
        device.sync_directory()?;
        device.rename(new, name)?;
        device.sync_directory()
    }

    /// Reads and verifies the file `name`. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::FormatVersion`], which name the file; those of the
    /// device.
    pub fn load<T: DeserializeOwned>(&self, device: &dyn Device, name: &str) -> Result<Option<T>> {
        if !device.list()?.iter().any(|found| found == name) {
            return Ok(None);
        }
        Ok(Some(self.read(device, name)?.0))
    }

    /// Writes `body`, of this format, to a new file `name` and syncs it; the name is not durable
    /// yet. Gives the checksum of the body. What an attempt before has left is removed: after a
    /// sync that failed its bytes are doubtful.
    pub(crate) fn write(
        &self,
        device: &dyn Device,
        name: &str,
        format: u32,
        body: &impl Serialize,
    ) -> Result<u32> {
        let body = serde_json::to_vec(body).map_err(|e| {
            Error::new(ErrorKind::Config, format!("{} cannot be written", self.what)).caused_by(e)
        })?;
        let body_crc = crc32c::crc32c(&body);
        let mut buffer = IoBuffer::zeroed(HEADER_BYTES + body.len());
        let bytes = buffer.as_mut_slice();
        bytes[..8].copy_from_slice(self.magic);
        bytes[8..12].copy_from_slice(&format.to_le_bytes());
        bytes[12..16].copy_from_slice(&body_crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        bytes[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(&body);
        match device.remove(name) {
            Err(error) if error.kind() != ErrorKind::Missing => return Err(error),
            _ => {}
        }
        let file = device.create(name)?;
        run_blocking(device, &file, Operation::Write { offset: 0 }, buffer).1?;
        run_blocking(device, &file, Operation::Sync, IoBuffer::empty()).1?;
        Ok(body_crc)
    }

    /// Reads and verifies the file `name`; gives the body and its checksum.
    pub(crate) fn read<T: DeserializeOwned>(
        &self,
        device: &dyn Device,
        name: &str,
    ) -> Result<(T, u32)> {
        let file = device.open(name)?;
        let len = device.len(&file)?;
        let whole = len / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if whole == 0 || len > BYTES_MAX {
            return Err(self.damaged(name, &format!("has {len} bytes")));
        }
        let buffer = IoBuffer::zeroed(whole as usize);
        let (buffer, done) = run_blocking(device, &file, Operation::Read { offset: 0 }, buffer);
        done?;
        self.parse(name, buffer.as_slice())
    }

    /// Verifies and parses the bytes of the file `name`.
    pub(crate) fn parse<T: DeserializeOwned>(&self, name: &str, bytes: &[u8]) -> Result<(T, u32)> {
        if bytes.len() < HEADER_BYTES || &bytes[..8] != self.magic {
            return Err(self.damaged(name, "is not one of Alluvium"));
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let version = u32_at(8);
        if !(FORMAT_VERSION..=self.newest).contains(&version) {
            let newest = self.newest;
            let what = format!("format {version}; this build reads format {newest}");
            return Err(Error::new(ErrorKind::FormatVersion, what).with("file", name));
        }
        if u32_at(28) != crc32c::crc32c(&bytes[..28]) {
            return Err(self.damaged(name, "has a damaged header"));
        }
        let len = u64::from_le_bytes(bytes[16..24].try_into().expect("eight"));
        let body = usize::try_from(len)
            .ok()
            .and_then(|len| bytes[HEADER_BYTES..].get(..len))
            .ok_or_else(|| self.damaged(name, "is cut short"))?;
        if u32_at(12) != crc32c::crc32c(body) {
            return Err(self.damaged(name, "has a damaged body"));
        }
        let parsed = serde_json::from_slice(body)
            .map_err(|e| self.damaged(name, "does not parse").caused_by(e))?;
        Ok((parsed, u32_at(12)))
    }

    /// Returns the offset where the body ends and padding starts; `None` if the file is shorter.
    pub fn end_of(bytes: &[u8]) -> Option<usize> {
        let len = u64::from_le_bytes(bytes.get(16..24)?.try_into().expect("eight"));
        let end = usize::try_from(len).ok()?.checked_add(HEADER_BYTES)?;
        (end <= bytes.len()).then_some(end)
    }

    fn damaged(&self, name: &str, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("{} {what}", self.what)).with("file", name)
    }
}
