//! The faults of a simulated device, by chance or by script.

use crate::io::Operation;

/// A fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails. A failed write may have moved some of its sectors. After a failed sync
    /// of a file or of the directory, the changes it should have covered stay live but never become
    /// durable, as on Linux: a later sync covers only bytes written again and names made again.
    Error,
    /// The operation succeeds, but only this many bytes, rounded down to sectors, are moved.
    /// A sync or directory sync does nothing.
    Torn {
        /// Bytes moved.
        bytes: usize,
    },
    /// The operation succeeds, but nothing happens.
    Lost,
    /// The operation succeeds, but at another place of the file. Only for reads and writes.
    Misdirected {
        /// The place, a multiple of [`BLOCK_BYTES`](crate::io::BLOCK_BYTES).
        offset: u64,
    },
    /// The operation succeeds, but one bit is wrong: on storage after a write, only in the
    /// buffer after a read.
    FlippedBit {
        /// The bit of the buffer, modulo its length.
        bit: u64,
    },
    /// The operation fails for lack of space and moves nothing.
    DiskFull,
    /// The operation does not end until [`release_stuck`](super::Simulated::release_stuck). The
    /// caller of a directory operation waits in it.
    Stuck,
}

/// The kinds of operation a script can aim at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FaultAim {
    Read,
    Write,
    Sync,
    Directory,
}

impl From<Operation> for FaultAim {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Read { .. } => Self::Read,
            Operation::Write { .. } => Self::Write,
            Operation::Sync => Self::Sync,
        }
    }
}

/// The probability of each fault, from 0 (never) to 1 (always), and the latency of requests.
///
/// ```
/// use alluvium_pagestore::io::Faults;
/// let faults = Faults { latency_max: 8, torn_writes: 0.01, ..Faults::none() };
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Longest latency of a request, in later submits or [`drive`](crate::io::Device::drive)
    /// calls; requests overtake each other. At 0 a request ends within `submit`.
    pub latency_max: u32,
    /// Fraction of reads that fail.
    pub read_errors: f64,
    /// Fraction of writes that fail after moving some of their sectors.
    pub write_errors: f64,
    /// Fraction of syncs that fail.
    pub sync_errors: f64,
    /// Fraction of creations, opens, renames, removals and directory syncs that fail.
    pub directory_errors: f64,
    /// Fraction of writes that only store some of their first sectors, without an error.
    pub torn_writes: f64,
    /// Fraction of writes that do not reach storage, without an error.
    pub lost_writes: f64,
    /// Fraction of writes that reach another block of the file, without an error.
    pub misdirected_writes: f64,
    /// Fraction of writes that store one wrong bit.
    pub flipped_bits: f64,
    /// Fraction of reads that return one wrong bit, while storage is intact.
    pub flipped_reads: f64,
}

impl Faults {
    /// No faults; every request ends within `submit`.
    pub fn none() -> Self {
        Self::default()
    }

    /// No faults, but requests end late and overtake each other.
    pub fn late(latency_max: u32) -> Self {
        Self { latency_max, ..Self::default() }
    }

    /// Rolls the dice for one request of `len` bytes on a file of `file_blocks` blocks.
    pub(super) fn roll(
        &self,
        aim: FaultAim,
        len: usize,
        file_blocks: u64,
        dice: &mut Dice,
    ) -> Option<Fault> {
        match aim {
            FaultAim::Read if dice.hits(self.read_errors) => Some(Fault::Error),
            FaultAim::Read if dice.hits(self.flipped_reads) => {
                Some(Fault::FlippedBit { bit: dice.next() })
            }
            FaultAim::Write if dice.hits(self.write_errors) => Some(Fault::Error),
            FaultAim::Write if dice.hits(self.torn_writes) => {
                Some(Fault::Torn { bytes: dice.below(len as u64) as usize })
            }
            FaultAim::Write if dice.hits(self.lost_writes) => Some(Fault::Lost),
            FaultAim::Write if dice.hits(self.misdirected_writes) => {
                let block = dice.below(file_blocks + 1);
                Some(Fault::Misdirected { offset: block * crate::io::BLOCK_BYTES as u64 })
            }
            FaultAim::Write if dice.hits(self.flipped_bits) => {
                Some(Fault::FlippedBit { bit: dice.next() })
            }
            FaultAim::Sync if dice.hits(self.sync_errors) => Some(Fault::Error),
            FaultAim::Directory if dice.hits(self.directory_errors) => Some(Fault::Error),
            _ => None,
        }
    }
}

/// Seeded chance (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, or 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// Whether something of this likelihood happens.
    pub(super) fn hits(&mut self, likelihood: f64) -> bool {
        likelihood > 0.0 && ((self.next() >> 11) as f64) < likelihood * (1u64 << 53) as f64
    }

    /// Heads or tails.
    pub(super) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}
