//! The manifest: which checkpoints a directory has.
//!
//! Each checkpoint is a file of its own, written once. The manifest lists those that can be
//! restored, each with its checksum. It is written beside the old one, synced, and renamed over it:
//! a crash leaves the old list or the new, never a mixture.

use rkyv::primitive::{ArchivedU32, ArchivedUsize};
use serde::{Deserialize, Serialize};

use crate::framed::Framed;
use crate::io::Device;
use crate::segment::{FORMAT_VERSION, StateImage};
use crate::{Error, ErrorKind, HASH_VERSION, KeyGroups, Result, Time};

/// Name of the committed manifest.
pub const MANIFEST: &str = "MANIFEST";
/// Name of a manifest being written.
pub const MANIFEST_NEW: &str = "MANIFEST.new";

/// What rkyv's format depends on, as rkyv was compiled here; a directory written with another one
/// is refused. Features add up over all dependencies of a program: one that asks rkyv for
/// `pointer_width_64` or `unaligned` changes the format of all state of the program.
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
    /// Those that can be restored. The last is what an open restores: the one that was confirmed
    /// last, or restored by its number since. The others are in the order of their numbers.
    pub checkpoints: Vec<CheckpointFile>,
}

/// What the manifest says of one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointFile {
    /// Its number, from 1.
    pub number: u64,
    /// CRC-32C of the body of its file.
    pub crc: u32,
}

/// What a checkpoint consists of: the body of its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointImage {
    /// Its number, from 1; greater than that of any checkpoint before it in the directory.
    pub number: u64,
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
    /// The checkpoint that was confirmed last when it was taken; 0 if none was.
    #[serde(default, skip_serializing_if = "is_none")]
    pub after: u64,
    /// A position the caller gave, such as how much of the input the state reflects.
    pub position: u64,
    /// The states, by name.
    pub states: Vec<StateManifest>,
}

fn is_none(number: &u64) -> bool {
    *number == 0
}

/// What a checkpoint says of one state.
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
    /// What its answers depend on beside its types, such as the length of windows. A build from before
    /// there was any recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<serde_json::Value>,
    /// The unit of states that it moves with, if its key groups come and go. Checkpoints of builds
    /// from before do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Of the time of a state whose entries expire: those touched last before this are over for good,
    /// whatever the time to live becomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Time>,
    /// The key groups that it has, if they come and go; else they are those of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<KeyGroups>,
    /// Key groups that it does not have any more; some of their entries may be among its records.
    #[serde(default, skip_serializing_if = "KeyGroups::is_empty")]
    pub going: KeyGroups,
    /// Where its records are.
    pub image: StateImage,
}

/// Name of the file of a checkpoint.
pub fn checkpoint_name(number: u64) -> String {
    format!("checkpoint-{number:016x}")
}

/// The number of the checkpoint whose file this is.
pub fn checkpoint_of_file(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix("checkpoint-")?, 16).ok()?;
    (checkpoint_name(number) == name).then_some(number)
}

impl Manifest {
    /// Replaces the directory's manifest by this one. The files of its checkpoints, and what they
    /// name, must be durable, but for their names.
    pub fn commit(&self, device: &dyn Device) -> Result<()> {
        MANIFEST_FILE.replace(device, MANIFEST, MANIFEST_NEW, self)
    }

    /// Reads the directory's manifest; `None` if there is none.
    pub fn load(device: &dyn Device) -> Result<Option<Manifest>> {
        MANIFEST_FILE.load(device, MANIFEST)
    }

    /// Verifies and parses the bytes of a manifest file.
    pub fn parse(bytes: &[u8]) -> Result<Manifest> {
        Ok(MANIFEST_FILE.parse(MANIFEST, bytes)?.0)
    }
}

impl CheckpointImage {
    /// Writes the checkpoint's file, durable with its name.
    pub fn write(&self, device: &dyn Device) -> Result<CheckpointFile> {
        let name = checkpoint_name(self.number);
        let crc = CHECKPOINT_FILE.write(device, &name, FORMAT_OF_CHECKPOINTS, self)?;
        device.sync_directory()?;
        Ok(CheckpointFile { number: self.number, crc })
    }

    /// Reads the file of the checkpoint `number`, which has this checksum if the manifest lists it.
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

    /// Names of all files that the checkpoint needs, its own not among them; some twice.
    pub fn files(&self) -> impl Iterator<Item = String> + '_ {
        self.states.iter().flat_map(StateManifest::files)
    }
}

impl StateManifest {
    /// Names of all files that the state needs; some twice.
    pub fn files(&self) -> impl Iterator<Item = String> + '_ {
        let segments = self.image.segments().map(|segment| segment.id.file_name());
        segments.chain(self.image.blob_files().map(crate::blob::blobs_name))
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
