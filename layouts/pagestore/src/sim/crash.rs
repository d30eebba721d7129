//! What a crash leaves of a disk: the durable part, plus the subset of the rest that the
//! [`CrashPolicy`] picks. Less if storage has lied ([`Lie`]).
//!
//! Images share the bytes of files with their disk: an image costs only the difference.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::disk::{Bytes, Content, Disk, DiskChange, SECTOR_BYTES, new_number, put};
use super::faults::Dice;
use super::lies::Lie;

/// Selects the changes without a completed sync that survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPolicy {
    /// None.
    Nothing,
    /// All changes that ended, and none in flight: the process died, the machine did not.
    Everything,
    /// All changes before some point in time, and none after.
    Prefix {
        /// Selects the point.
        seed: u64,
    },
    /// Some of the changes, each whole.
    Subset {
        /// Selects the survivors.
        seed: u64,
    },
    /// Some sectors of each write, and some changes of names.
    Torn {
        /// Selects the survivors.
        seed: u64,
    },
}

/// A file that survives a crash.
pub(super) struct Surviving {
    pub(super) name: String,
    /// What syncs vouch for.
    pub(super) durable: Bytes,
    /// The writes which that was made of, if they were kept.
    pub(super) past: Vec<(u64, Bytes)>,
    /// Writes beyond those, in order.
    pub(super) writes: Vec<(u64, Bytes)>,
}

impl Disk {
    /// The disk a crash leaves. `in_flight` are changes that had not ended, in order of submission.
    pub(super) fn crash(&self, policy: CrashPolicy, in_flight: &[DiskChange]) -> Self {
        Self::of(&self.surviving(policy, in_flight))
    }

    /// The same, of storage that lies about one of the writes: those that syncs vouch for, and
    /// those that survive. `None` if there is no write. Only of a disk that
    /// [keeps](Self::keep_past) them.
    pub(super) fn crash_lying(
        &self,
        policy: CrashPolicy,
        in_flight: &[DiskChange],
        lie: Lie,
        dice: &mut Dice,
    ) -> Option<Self> {
        let mut files = self.surviving(policy, in_flight);
        lie.tell(&mut files, dice).then(|| Self::of(&files))
    }

    /// What survives a crash, by name.
    fn surviving(&self, policy: CrashPolicy, in_flight: &[DiskChange]) -> Vec<Surviving> {
        // While the machine lives, names are there also if a sync has given them up.
        let keeps_names = policy == CrashPolicy::Everything;
        let names = if keeps_names { &self.names } else { &self.durable_names };
        let (mut names, mut writes) = (names.clone(), BTreeMap::<u64, Vec<(u64, Bytes)>>::new());
        for change in self.choose(policy, in_flight) {
            if !keeps_names {
                change.apply_to_names(&mut names);
            }
            if let DiskChange::Write { file, offset, bytes } = change {
                writes.entry(file).or_default().push((offset, bytes));
            }
        }
        let nothing = Content::default();
        let surviving = names.into_iter().map(|(name, file)| {
            let content = self.files.get(&file).unwrap_or(&nothing);
            let (durable, past) = (content.durable.clone(), content.past.clone());
            Surviving { name, durable, past, writes: writes.remove(&file).unwrap_or_default() }
        });
        surviving.collect()
    }

    /// The changes that a crash does not take.
    fn choose(&self, policy: CrashPolicy, in_flight: &[DiskChange]) -> Vec<DiskChange> {
        let ended = || self.unsynced.iter().map(|d| &d.change);
        let all = || ended().chain(in_flight);
        match policy {
            CrashPolicy::Nothing => Vec::new(),
            CrashPolicy::Everything => ended().cloned().collect(),
            CrashPolicy::Prefix { seed } => {
                let count = Dice::new(seed).below(all().count() as u64 + 1) as usize;
                all().take(count).cloned().collect()
            }
            CrashPolicy::Subset { seed } => {
                let mut dice = Dice::new(seed);
                all().filter(|_| dice.coin()).cloned().collect()
            }
            CrashPolicy::Torn { seed } => {
                let mut dice = Dice::new(seed);
                all().flat_map(|change| change.tear(&mut dice)).collect()
            }
        }
    }

    /// A fresh disk of these files.
    fn of(surviving: &[Surviving]) -> Self {
        let mut disk = Self::default();
        for file in surviving {
            let number = new_number();
            disk.files.insert(number, Content::settled(file.bytes()));
            disk.names.insert(file.name.clone(), number);
        }
        disk.durable_names.clone_from(&disk.names);
        disk
    }
}

impl DiskChange {
    /// The parts of a change that a crash leaves.
    fn tear(&self, dice: &mut Dice) -> Vec<Self> {
        let Self::Write { file, offset, bytes } = self else {
            return if dice.coin() { vec![self.clone()] } else { Vec::new() };
        };
        let sectors = bytes.chunks(SECTOR_BYTES).enumerate();
        let surviving = sectors.filter(|_| dice.coin()).map(|(i, sector)| Self::Write {
            file: *file,
            offset: offset + (i * SECTOR_BYTES) as u64,
            bytes: Arc::new(sector.to_vec()),
        });
        surviving.collect()
    }
}

impl Surviving {
    pub(super) fn bytes(&self) -> Bytes {
        let mut bytes = self.durable.clone();
        if !self.writes.is_empty() {
            let bytes = Arc::make_mut(&mut bytes);
            self.writes.iter().for_each(|(offset, written)| put(bytes, *offset, written));
        }
        bytes
    }
}
