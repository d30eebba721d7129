//! The manifest: the list of a directory's checkpoints.
//!
//! Each checkpoint is a file of its own, written once. The manifest lists the checkpoints that can
//! be restored, each with its checksum. A new manifest is written to another file, synced, and
//! renamed over the old one: a crash leaves the old list or the new one, never a mixture.

use rkyv::primitive::{ArchivedU32, ArchivedUsize};
use serde::{Deserialize, Serialize};

use crate::framed::Framed;
use crate::io::Device;
use crate::segment::{FORMAT_VERSION, StateImage};
use crate::{Error, ErrorKind, FileKind, FileName, HASH_VERSION, KeyGroups, Result, Time};

/// Name of the committed manifest.
pub const MANIFEST: &str = "MANIFEST";
/// Name of a manifest being written.
pub const MANIFEST_NEW: &str = "MANIFEST.new";

/// The features that rkyv's format depends on, as this build compiled rkyv. A directory written
/// with other features is refused. Cargo unifies features over all dependencies of a program: one
/// that enables rkyv's `pointer_width_64` or `unaligned` changes the format of all state in the
/// program.
pub const CODEC: &str = codec_of(size_of::<ArchivedUsize>(), align_of::<ArchivedUsize>());

/// The codec whose archived `usize` has this size and alignment.
const fn codec_of(size: usize, align: usize) -> &'static str {
    match (size, align) {
        (2, 2) => "rkyv-0.8 little-endian pointer-16 aligned",
        (4, 4) => "rkyv-0.8 little-endian pointer-32 aligned",
        (8, 8) => "rkyv-0.8 little-endian pointer-64 aligned",
        (2, 1) => "rkyv-0.8 little-endian pointer-16 unaligned",
        (4, 1) => "rkyv-0.8 little-endian pointer-32 unaligned",
        (8, 1) => "rkyv-0.8 little-endian pointer-64 unaligned",
        _ => panic!("rkyv is compiled in a way whose format has no name"),
    }
}

/// How a number of rkyv's stands in bytes.
trait Order {
    const IS_LITTLE: bool;
}

macro_rules! orders {
    ($($number:ty => $is_little:literal),* $(,)?) => {$(
        impl Order for $number {
            const IS_LITTLE: bool = $is_little;
        }
    )*};
}
orders!(
    rkyv::rend::u32_le => true, rkyv::rend::unaligned::u32_ule => true,
    rkyv::rend::u32_be => false, rkyv::rend::unaligned::u32_ube => false,
);

const _: () = assert!(
    <ArchivedU32 as Order>::IS_LITTLE,
    "rkyv is compiled with big-endian numbers: state is written with little-endian ones",
);

/// The format of checkpoints: each state is a list of parts. Up to 4 it was one part.
const FORMAT_OF_CHECKPOINTS: u32 = 5;

const MANIFEST_FILE: Framed =
    Framed { magic: b"ALVMANI\0", what: "the manifest", newest: FORMAT_VERSION };
const CHECKPOINT_FILE: Framed =
    Framed { magic: b"ALVCHKP\0", what: "the checkpoint", newest: FORMAT_OF_CHECKPOINTS };

/// The checkpoints of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The checkpoints that can be restored. Opening restores the last: it was confirmed last, or
    /// has since been restored by its number. The others are in the order of their numbers.
    pub checkpoints: Vec<CheckpointFile>,
}

/// The manifest's entry for one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointFile {
    /// Number of the checkpoint, from 1.
    pub number: u64,
    /// CRC-32C of the body of the checkpoint's file.
    pub crc: u32,
}

/// The contents of a checkpoint: the body of its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointImage {
    /// Number of the checkpoint, from 1; greater than that of every earlier checkpoint in the
    /// directory.
    pub number: u64,
    /// All segment ids given so far are below this.
    pub next_segment: u64,
    /// Version of the key hash.
    pub hash_version: u32,
    /// The encoding of records: [`CODEC`].
    pub codec: String,
    /// Number of key groups of the job.
    pub key_groups: u16,
    /// First key group of this store, and the one after its last.
    pub owned: (u16, u16),
    /// The checkpoint confirmed last when this one was taken; 0 if there was none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub after: u64,
    /// A position that the caller gave, for instance in the input.
    pub position: u64,
    /// The states, by name.
    pub states: Vec<StateManifest>,
}

fn is_none(number: &u64) -> bool {
    *number == 0
}

/// A checkpoint's entry for one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateManifest {
    /// The state's name.
    pub name: String,
    /// The primitive: `map`, `count`, `value`, `timers`.
    pub primitive: String,
    /// Name of the layout that wrote the state.
    pub layout: String,
    /// Description of the key type.
    pub key: String,
    /// Description of the value type.
    pub value: String,
    /// Parameters that the state's answers depend on beside its types, such as the length of
    /// windows. Builds before this field recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<serde_json::Value>,
    /// The unit of states that this state moves with, if its key groups move. Builds before this
    /// field recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The expiry bound of a state with expiring entries: those last touched before this time stay
    /// expired, whatever the time to live becomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Time>,
    /// The key groups that the state has, if they move; otherwise they are the store's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<KeyGroups>,
    /// Key groups that the state gave away. Its records may still contain their entries.
    #[serde(default, skip_serializing_if = "KeyGroups::is_empty")]
    pub going: KeyGroups,
    /// The image: where the records are.
    pub image: StateImage,
}

/// Returns the name of a checkpoint's file.
pub fn checkpoint_name(number: u64) -> String {
    FileName::numbered(FileKind::Checkpoint, number).to_string()
}

/// Returns the number of the checkpoint with this file name.
pub fn checkpoint_of_file(name: &str) -> Option<u64> {
    FileKind::Checkpoint.number_in(name)
}

impl Manifest {
    /// Replaces the directory's manifest by this one. The files of its checkpoints and the files
    /// they name must be durable first, apart from their names.
    pub fn commit(&self, device: &dyn Device) -> Result<()> {
        MANIFEST_FILE.replace(device, MANIFEST, MANIFEST_NEW, self)
    }

    /// Reads the directory's manifest. Returns `None` if there is none.
    pub fn load(device: &dyn Device) -> Result<Option<Manifest>> {
        MANIFEST_FILE.load(device, MANIFEST)
    }

    /// Verifies and parses the bytes of a manifest file.
    pub fn parse(bytes: &[u8]) -> Result<Manifest> {
        Ok(MANIFEST_FILE.parse(MANIFEST, bytes)?.0)
    }
}

impl CheckpointImage {
    /// Writes the checkpoint's file and makes it and its name durable.
    pub fn write(&self, device: &dyn Device) -> Result<CheckpointFile> {
        let name = checkpoint_name(self.number);
        let crc = CHECKPOINT_FILE.write(device, &name, FORMAT_OF_CHECKPOINTS, self)?;
        device.sync_directory()?;
        Ok(CheckpointFile { number: self.number, crc })
    }

    /// Reads the file of the checkpoint `number`. If the manifest lists the checkpoint, the file
    /// must have the listed checksum.
    pub fn load(
        device: &dyn Device,
        number: u64,
        crc: Option<u32>,
    ) -> Result<(Self, CheckpointFile)> {
        let name = checkpoint_name(number);
        let (mut image, found) = CHECKPOINT_FILE.read::<CheckpointImage>(device, &name)?;
        if image.number != number || crc.is_some_and(|crc| crc != found) {
            let what = "the checkpoint is not the one that was committed";
            return Err(Error::new(ErrorKind::Corrupt, what).with("file", name));
        }
        image.check()?;
        Ok((image, CheckpointFile { number, crc: found }))
    }

    /// Verifies and parses the bytes of a checkpoint's file.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<CheckpointImage> {
        let mut image: CheckpointImage = CHECKPOINT_FILE.parse(name, bytes)?.0;
        image.check()?;
        Ok(image)
    }

    fn check(&mut self) -> Result<()> {
        if self.hash_version != HASH_VERSION || self.codec != CODEC {
            let (hash, codec) = (self.hash_version, &self.codec);
            let what = format!(
                "written with key hash {hash} and {codec}; this build has key hash {HASH_VERSION} \
                 and {CODEC}"
            );
            let name = checkpoint_name(self.number);
            return Err(Error::new(ErrorKind::FormatVersion, what).with("file", name));
        }
        for state in &mut self.states {
            state.image.tell_layout(&state.layout);
            state.image.check().map_err(|what| {
                let error = Error::new(ErrorKind::Corrupt, what).with("state", &state.name);
                error.with("file", checkpoint_name(self.number))
            })?;
        }
        Ok(())
    }

    /// Returns the names of all files that the checkpoint needs, without its own; some twice.
    pub fn files(&self) -> impl Iterator<Item = String> + '_ {
        self.file_names().map(|name| name.to_string())
    }

    /// Returns the same names, as they are kept.
    pub fn file_names(&self) -> impl Iterator<Item = FileName> + '_ {
        self.states.iter().flat_map(StateManifest::file_names)
    }
}

impl StateManifest {
    /// Returns the names of all files that the state needs; some twice.
    pub fn files(&self) -> impl Iterator<Item = String> + '_ {
        self.file_names().map(|name| name.to_string())
    }

    /// Returns the same names, as they are kept.
    pub fn file_names(&self) -> impl Iterator<Item = FileName> + '_ {
        let segments = self.image.segments().map(|segment| segment.id.name());
        let runs = self.image.runs().map(|run| run.id.name());
        let live = |number| FileName::numbered(FileKind::LiveRecords, number);
        segments.chain(runs).chain(self.image.blob_files().map(live))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that `docs/format.md` tells. Built with other features of rkyv, this fails.
    #[test]
    fn the_codec_tells_what_rkyv_is_compiled_with() {
        assert_eq!(CODEC, "rkyv-0.8 little-endian pointer-32 aligned");
        let bytes = rkyv::to_bytes::<rkyv::rancor::Error>(&(7usize, 1u8)).unwrap();
        assert_eq!(bytes[..], [7, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(codec_of(8, 1), "rkyv-0.8 little-endian pointer-64 unaligned");
    }
}
