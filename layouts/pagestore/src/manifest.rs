//! The manifest: what a checkpoint consists of.
//!
//! A file of a short binary header (magic, format version, length, checksum) and a JSON body, so
//! that a person can read it. It is written beside the old one, synced, and renamed over it: a
//! crash leaves the old or the new manifest, never a mixture.

use serde::{Deserialize, Serialize};

use crate::io::{BLOCK_BYTES, Device, IoBuffer, Operation, run_blocking};
use crate::segment::{FORMAT_VERSION, StateImage};
use crate::{Error, ErrorKind, HASH_VERSION, Result};

/// Name of the committed manifest.
pub const MANIFEST: &str = "MANIFEST";
/// Name of a manifest being written.
pub const MANIFEST_NEW: &str = "MANIFEST.new";

const MAGIC: &[u8; 8] = b"ALVMANI\0";
const HEADER_BYTES: usize = 32;

/// What rkyv's format depends on; a directory written with another one is refused.
pub const CODEC: &str = "rkyv-0.8 little-endian pointer-32 aligned";

/// A committed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Number of the checkpoint, from 1.
    pub checkpoint: u64,
    /// Every segment id given so far is below this.
    pub next_segment: u64,
    /// Version of the key hash.
    pub hash_version: u32,
    /// What records are encoded with: [`CODEC`].
    pub codec: String,
    /// Key groups of the job.
    pub key_groups: u16,
    /// The first key group of this store and the one after its last.
    pub owned: (u16, u16),
    /// File with the sets of live records.
    pub blobs: String,
    /// A position the caller gave, such as how much of the input the state reflects.
    pub position: u64,
    /// The states, by name.
    pub states: Vec<StateManifest>,
}

/// What a manifest says of one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateManifest {
    /// The state's name.
    pub name: String,
    /// The primitive: `map`, `count`, `value`, `timers`.
    pub primitive: String,
    /// The layout that wrote it.
    pub layout: String,
    /// Description of the key type.
    pub key: String,
    /// Description of the value type.
    pub value: String,
    /// Where its records are.
    pub image: StateImage,
}

impl Manifest {
    /// Replaces the directory's manifest by this one. What the manifest names must be durable.
    pub fn commit(&self, device: &dyn Device) -> Result<()> {
        let body = serde_json::to_vec_pretty(self).map_err(|e| {
            Error::new(ErrorKind::Config, "the manifest cannot be written").caused_by(e)
        })?;
        let mut buffer = IoBuffer::zeroed(HEADER_BYTES + body.len());
        let bytes = buffer.as_mut_slice();
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        bytes[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        bytes[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(&body);
        if device.list()?.iter().any(|name| name == MANIFEST_NEW) {
            device.remove(MANIFEST_NEW)?;
        }
        let file = device.create(MANIFEST_NEW)?;
        run_blocking(device, &file, Operation::Write { offset: 0 }, buffer).1?;
        run_blocking(device, &file, Operation::Sync, IoBuffer::empty()).1?;
        // The names of the data files must not be lost when the manifest's is not.
        device.sync_directory()?;
        device.rename(MANIFEST_NEW, MANIFEST)?;
        device.sync_directory()
    }

    /// Reads the directory's manifest; `None` if there is none.
    pub fn load(device: &dyn Device) -> Result<Option<Manifest>> {
        if !device.list()?.iter().any(|name| name == MANIFEST) {
            return Ok(None);
        }
        let file = device.open(MANIFEST)?;
        let len = device.len(&file)?;
        let whole = len / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if whole == 0 || len > 1 << 30 {
            return Err(corrupt(&format!("the manifest has {len} bytes")));
        }
        let buffer = IoBuffer::zeroed(whole as usize);
        let (buffer, done) = run_blocking(device, &file, Operation::Read { offset: 0 }, buffer);
        done?;
        Manifest::parse(buffer.as_slice()).map(Some)
    }

    /// Verifies and parses the bytes of a manifest file.
    pub fn parse(bytes: &[u8]) -> Result<Manifest> {
        if bytes.len() < HEADER_BYTES || &bytes[..8] != MAGIC {
            return Err(corrupt("this is not a manifest of Alluvium"));
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let version = u32_at(8);
        if version != FORMAT_VERSION {
            let what = format!("format {version}; this build reads format {FORMAT_VERSION}");
            return Err(Error::new(ErrorKind::FormatVersion, what).with("file", MANIFEST));
        }
        if u32_at(28) != crc32c::crc32c(&bytes[..28]) {
            return Err(corrupt("the manifest's header is damaged"));
        }
        let len = u64::from_le_bytes(bytes[16..24].try_into().expect("eight"));
        let body = usize::try_from(len)
            .ok()
            .and_then(|len| bytes[HEADER_BYTES..].get(..len))
            .ok_or_else(|| corrupt("the manifest is cut short"))?;
        if u32_at(12) != crc32c::crc32c(body) {
            return Err(corrupt("the manifest's body is damaged"));
        }
        let manifest: Manifest = serde_json::from_slice(body)
            .map_err(|e| corrupt("the manifest does not parse").caused_by(e))?;
        if manifest.hash_version != HASH_VERSION || manifest.codec != CODEC {
            let what = format!(
                "written with key hash {} and {}; this build has key hash {HASH_VERSION} and {CODEC}",
                manifest.hash_version, manifest.codec
            );
            return Err(Error::new(ErrorKind::FormatVersion, what).with("file", MANIFEST));
        }
        Ok(manifest)
    }
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what).with("file", MANIFEST)
}
