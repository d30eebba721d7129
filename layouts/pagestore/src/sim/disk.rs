//! What a simulated device holds: bytes and names as the living see them, and what of both would
//! survive a crash.
//!
//! A file has *live* bytes, which reads see, *durable* bytes, which a completed sync vouches for,
//! and the list of writes in between. Names are kept alike. Nothing depends on anything but the
//! order of calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use crate::hash::{combine, hash_bytes};
use crate::io::{FileHandle, OpenFile};
use crate::{Error, ErrorKind, Result};

/// Unit in which storage keeps or loses parts of a write.
pub(super) const SECTOR_BYTES: usize = 512;

/// A change that a crash may lose.
#[derive(Clone, Debug)]
pub(super) enum DiskChange {
    /// Bytes written to a file.
    Write { file: u64, offset: u64, bytes: Bytes },
    /// `name` now means `file`; its former name, if any, nothing.
    Name { name: String, file: u64 },
    /// `name` means nothing any more.
    Unname { name: String },
}

/// A [`DiskChange`] and its place in time.
#[derive(Clone, Debug)]
pub(super) struct DatedChange {
    sequence: u64,
    pub(super) change: DiskChange,
}

/// Bytes that are shared until someone changes them.
pub(super) type Bytes = Arc<Vec<u8>>;

/// Bytes of one file.
#[derive(Debug, Default)]
pub(super) struct Content {
    live: Bytes,
    pub(super) durable: Bytes,
    /// What was written to make `durable`, in order, if the disk keeps that.
    pub(super) past: Vec<(u64, Bytes)>,
    handles: Vec<Weak<OpenFile>>,
}

impl Content {
    /// Bytes that are live and durable at once.
    pub(super) fn settled(bytes: Bytes) -> Self {
        let past = vec![(0, bytes.clone())];
        Self { live: bytes.clone(), durable: bytes, past, handles: Vec::new() }
    }
}

/// All files of a device.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// Whether the writes are kept that durable bytes were made of.
    keeps_past: bool,
    pub(super) files: BTreeMap<u64, Content>,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    /// Changes since the syncs that would cover them, oldest first.
    pub(super) unsynced: Vec<DatedChange>,
    sequence: u64,
}

impl Disk {
    /// Makes an empty file.
    pub(super) fn create(&mut self, name: &str) -> Result<FileHandle> {
        if self.names.contains_key(name) {
            let exists = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(Error::io("create", name, exists));
        }
        let file = new_number();
        self.files.insert(file, Content::default());
        self.change_name(DiskChange::Name { name: name.into(), file });
        self.open(name)
    }

    /// What a crash within [`create`](Self::create) may leave.
    pub(super) fn attempt_create(&self, name: &str) -> Option<DiskChange> {
        let free = !self.names.contains_key(name);
        free.then(|| DiskChange::Name { name: name.into(), file: new_number() })
    }

    /// A handle of an existing file.
    pub(super) fn open(&mut self, name: &str) -> Result<FileHandle> {
        let number = self.number_of(name, "open")?;
        let content = self.files.get_mut(&number).expect("named files have contents");
        let open = OpenFile { name: name.into(), descriptor: None, number, direct: true };
        let open = Arc::new(open);
        content.handles.retain(|handle| handle.strong_count() > 0);
        content.handles.push(Arc::downgrade(&open));
        Ok(FileHandle(open))
    }

    /// Number of the file of that name.
    pub(super) fn number_of(&self, name: &str, what: &str) -> Result<u64> {
        self.names.get(name).copied().ok_or_else(|| {
            Error::io(what, name, std::io::Error::from(std::io::ErrorKind::NotFound))
        })
    }

    /// Live bytes of a file.
    pub(super) fn live(&self, file: u64) -> Result<&[u8]> {
        let content = self.files.get(&file);
        content.map(|c| c.live.as_slice()).ok_or_else(of_another_device)
    }

    /// Bytes of a file that a crash cannot take.
    pub(super) fn durable(&self, file: u64) -> Result<&[u8]> {
        let content = self.files.get(&file);
        content.map(|c| c.durable.as_slice()).ok_or_else(of_another_device)
    }

    /// Names of all files.
    pub(super) fn list(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    /// Bytes taken by files that have a name or a handle.
    pub(super) fn used_bytes(&self) -> u64 {
        let open = |c: &Content| c.handles.iter().any(|handle| handle.strong_count() > 0);
        let named: BTreeSet<&u64> = self.names.values().collect();
        let in_use = |(number, c): &(&u64, &Content)| named.contains(number) || open(c);
        self.files.iter().filter(in_use).map(|(_, c)| c.live.len() as u64).sum()
    }

    /// Point in time up to which a sync submitted now vouches.
    pub(super) fn now(&self) -> u64 {
        self.sequence
    }

    /// Writes live bytes.
    pub(super) fn write(&mut self, file: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        let content = self.files.get_mut(&file).ok_or_else(of_another_device)?;
        put(Arc::make_mut(&mut content.live), offset, bytes);
        self.note(DiskChange::Write { file, offset, bytes: Arc::new(bytes.to_vec()) });
        Ok(())
    }

    /// Keeps what durable bytes are made of from now on, for [`crash_lying`](Self::crash_lying).
    pub(super) fn keep_past(&mut self) {
        if !std::mem::replace(&mut self.keeps_past, true) {
            for content in self.files.values_mut() {
                content.past = vec![(0, content.durable.clone())];
            }
        }
    }

    /// Makes the writes to `file` up to `until` durable.
    pub(super) fn sync(&mut self, file: u64, until: u64) {
        for DatedChange { change, .. } in self.take_writes(file, until) {
            if let (DiskChange::Write { offset, bytes, .. }, Some(content)) =
                (change, self.files.get_mut(&file))
            {
                put(Arc::make_mut(&mut content.durable), offset, &bytes);
                if self.keeps_past {
                    content.past.push((offset, bytes));
                }
            }
        }
    }

    /// Gives up the writes to `file` up to `until`: they stay live but never become durable.
    pub(super) fn fail_sync(&mut self, file: u64, until: u64) {
        drop(self.take_writes(file, until));
    }

    fn take_writes(&mut self, file: u64, until: u64) -> Vec<DatedChange> {
        let covered = |d: &mut DatedChange| {
            d.sequence <= until
                && matches!(d.change, DiskChange::Write { file: f, .. } if f == file)
        };
        self.unsynced.extract_if(.., covered).collect()
    }

    /// Renames a file, replacing `target`.
    pub(super) fn rename(&mut self, source: &str, target: &str) -> Result<()> {
        let file = self.number_of(source, "rename")?;
        self.change_name(DiskChange::Name { name: target.into(), file });
        Ok(())
    }

    /// Removes a name.
    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        self.number_of(name, "remove")?;
        self.change_name(DiskChange::Unname { name: name.into() });
        Ok(())
    }

    /// Makes all changes of names durable since the last sync of names.
    pub(super) fn sync_names(&mut self) {
        for DatedChange { change, .. } in self.take_changes_of_names() {
            change.apply_to_names(&mut self.durable_names);
        }
        self.forget_unreachable();
    }

    /// Gives up the changes of names since the last sync of names: they stay live but never become
    /// durable, unless they are made again.
    pub(super) fn fail_sync_names(&mut self) {
        drop(self.take_changes_of_names());
        self.forget_unreachable();
    }

    fn take_changes_of_names(&mut self) -> Vec<DatedChange> {
        let of_names = |d: &mut DatedChange| !matches!(d.change, DiskChange::Write { .. });
        self.unsynced.extract_if(.., of_names).collect()
    }

    fn change_name(&mut self, change: DiskChange) {
        change.apply_to_names(&mut self.names);
        self.note(change);
        self.forget_unreachable();
    }

    fn note(&mut self, change: DiskChange) {
        self.sequence += 1;
        self.unsynced.push(DatedChange { sequence: self.sequence, change });
    }

    /// Frees files that no name, no crash and no handle can bring back.
    fn forget_unreachable(&mut self) {
        let named_by_change = |d: &DatedChange| match d.change {
            DiskChange::Name { file, .. } => Some(file),
            _ => None,
        };
        let mut kept: Vec<u64> = self.unsynced.iter().filter_map(named_by_change).collect();
        kept.extend(self.names.values().chain(self.durable_names.values()));
        kept.sort_unstable();
        let before = self.files.len();
        self.files.retain(|number, content| {
            kept.binary_search(number).is_ok()
                || content.handles.iter().any(|handle| handle.strong_count() > 0)
        });
        // Looking each write's file up takes a tenth of a test's time: only if one has gone.
        let files = &self.files;
        if files.len() < before {
            self.unsynced.retain(
                |d| !matches!(d.change, DiskChange::Write { file, .. } if !files.contains_key(&file)),
            );
        }
    }

    /// Flips one bit of the byte at `offset`, wherever it is kept.
    pub(super) fn flip(&mut self, file: u64, offset: u64, bit: u32) -> Result<()> {
        let content = self.files.get_mut(&file).ok_or_else(of_another_device)?;
        let (at, mask) = (offset as usize, 1u8 << (bit % 8));
        let end = content.live.len();
        let byte = Arc::make_mut(&mut content.live).get_mut(at).ok_or_else(|| {
            Error::new(ErrorKind::Input, format!("byte {offset} is past the end at {end}"))
        })?;
        *byte ^= mask;
        if let Some(byte) = Arc::make_mut(&mut content.durable).get_mut(at) {
            *byte ^= mask;
        }
        for dated in &mut self.unsynced {
            if let DiskChange::Write { file: f, offset: from, bytes } = &mut dated.change
                && *f == file
                && let Some(byte) =
                    offset.checked_sub(*from).and_then(|i| Arc::make_mut(bytes).get_mut(i as usize))
            {
                *byte ^= mask;
            }
        }
        Ok(())
    }

    /// Cuts a file, wherever it is kept.
    pub(super) fn truncate(&mut self, file: u64, len: u64) -> Result<()> {
        let content = self.files.get_mut(&file).ok_or_else(of_another_device)?;
        Arc::make_mut(&mut content.live).truncate(len as usize);
        Arc::make_mut(&mut content.durable).truncate(len as usize);
        for dated in &mut self.unsynced {
            if let DiskChange::Write { file: f, offset, bytes } = &mut dated.change
                && *f == file
            {
                Arc::make_mut(bytes).truncate(len.saturating_sub(*offset) as usize);
            }
        }
        Ok(())
    }

    /// Gives `name` these bytes, live and durable at once.
    pub(super) fn place(&mut self, name: &str, bytes: Bytes) {
        let file = new_number();
        self.files.insert(file, Content::settled(bytes));
        let change = DiskChange::Name { name: name.into(), file };
        change.apply_to_names(&mut self.names);
        change.apply_to_names(&mut self.durable_names);
        self.forget_unreachable();
    }

    /// A hash of all names and live bytes.
    pub(super) fn digest(&self) -> u64 {
        self.names.iter().fold(0, |hash, (name, file)| {
            let bytes = self.files.get(file).map_or(0, |content| hash_bytes(&content.live));
            combine(combine(hash, hash_bytes(name.as_bytes())), bytes)
        })
    }
}

impl DiskChange {
    /// Applies a change of names; a file keeps one name.
    pub(super) fn apply_to_names(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Write { .. } => {}
            Self::Name { name, file } => {
                names.retain(|_, other| other != file);
                names.insert(name.clone(), *file);
            }
            Self::Unname { name } => drop(names.remove(name)),
        }
    }
}

/// The next file number; never given twice, so that a handle of one device means nothing to
/// another.
pub(super) fn new_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    NUMBERS.fetch_add(1, Relaxed)
}

/// Writes `bytes` at `offset`, growing the file; a hole reads as zeroes.
pub(super) fn put(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let start = offset as usize;
    if content.len() < start {
        content.resize(start, 0);
    }
    // What is appended is not zeroed before: Miri takes a step for each byte of that.
    let (over, behind) = bytes.split_at(bytes.len().min(content.len() - start));
    content[start..start + over.len()].copy_from_slice(over);
    content.extend_from_slice(behind);
}

fn of_another_device() -> Error {
    Error::new(ErrorKind::Input, "the file is of another device")
}
