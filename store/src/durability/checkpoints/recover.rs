//! What an open finds in a directory: its checkpoints, the one to restore, and what is left over.
//!
//! What it keeps true:
//! - An open removes no file that a listed checkpoint may name, also if that cannot be read.
//! - Restoring a checkpoint by its number removes no other: the manifest lists all that are whole, the
//!   restored one last, until a new one is confirmed. In a directory whose manifest is lost
//!   or damaged restoring removes nothing at all.
//! - The last in the manifest is what an open goes on from. It is the last that was confirmed or
//!   restored by its number, and need not have the greatest number.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::io::{ASIDE, Device, Patient};
use alluvium_pagestore::{
    CheckpointFile, CheckpointImage, Error, ErrorKind, FileKind, FileName, MANIFEST, MANIFEST_NEW,
    Manifest, Result, SegmentStore, SortedSet, StateManifest, checkpoint_of_file, sort_rarely,
};

use super::{Checkpoints, Retained, pin, pinned_by};
use crate::store::config::StoreConfig;

impl Checkpoints {
    /// Reads the manifest and the checkpoints it lists, and removes files that none of them names;
    /// says how many. If a checkpoint is asked for by its number, all that are whole are listed.
    pub(crate) fn recover(
        device: Arc<dyn Device>,
        config: &StoreConfig,
        owned: &Range<u16>,
        restore: Option<u64>,
    ) -> Result<(Self, SegmentStore, u64)> {
        let patience = Duration::from_millis(config.patience_ms);
        let reads = Patient::new(device.clone(), patience);
        let stored = match Manifest::load(&reads) {
            Err(damage) if damage.kind() == ErrorKind::Corrupt => {
                check_restored_is_whole(&reads, restore, damage)?;
                None
            }
            stored => stored?,
        };
        let had_none = stored.is_none();
        if had_none && restore.is_none() {
            check_never_had_one(&reads)?;
        }
        let mut manifest = stored.unwrap_or_default();
        let mut found = Self::default();
        let mut unreadable = Vec::new();
        for file in &manifest.checkpoints {
            match CheckpointImage::load(&reads, file.number, Some(file.crc)) {
                Ok((image, file)) => found.retained.push(Retained { file, image: Arc::new(image) }),
                // It may be whole.
                Err(error) if error.kind() == ErrorKind::Backpressure => return Err(error),
                Err(error) => unreadable.push((file.number, error)),
            }
        }
        if let Some(asked) = restore {
            found.find_unlisted(&manifest, asked, &reads)?;
        }
        sort_rarely(&mut found.retained, |retained| retained.file.number);
        found.base = found.choose(&manifest, &reads, unreadable.as_mut(), restore)?;
        let mut next_segment = 1;
        for Retained { image, .. } in &found.retained {
            next_segment = next_segment.max(image.next_segment);
            found.last = found.last.max(image.number);
        }
        found.last = unreadable.iter().fold(found.last, |last, (number, _)| last.max(*number));
        if let Some(base) = &found.base {
            check_groups(base, config, owned)?;
        }
        let listed = restore.map(|number| found.list_with_last(&manifest, number));
        let is_changed = listed.as_ref().is_some_and(|listed| *listed != manifest);
        manifest = listed.unwrap_or(manifest);
        let needed =
            SortedSet::of(found.retained.iter().flat_map(|retained| retained.image.file_names()));
        let newest = found.retained.last();
        let newest = newest.map_or((0, 0), |r| (r.image.number, r.image.next_segment));
        let (mut begun, mut older) = (Vec::new(), Vec::new());
        for name in device.list()?.into_iter().filter(|name| name != MANIFEST) {
            let file = FileName::from(&*name);
            let of = |kinds: &[FileKind]| {
                file.number().filter(|(kind, _)| kinds.contains(kind)).map(|(_, number)| number)
            };
            let id = of(&[FileKind::Segment, FileKind::Run]);
            let checkpoint = of(&[FileKind::Checkpoint]);
            let number = checkpoint.or(of(&[FileKind::LiveRecords]));
            next_segment = id.map_or(next_segment, |id| next_segment.max(id + 1));
            found.last = checkpoint.map_or(found.last, |number| found.last.max(number));
            let listed = |number| manifest.checkpoints.iter().any(|file| file.number == number);
            if needed.contains(&file) || checkpoint.is_some_and(listed) {
                continue;
            }
            if [MANIFEST_NEW, ASIDE].contains(&&*name)
                || number.is_some_and(|number| number > newest.0)
                || id.is_some_and(|id| id >= newest.1)
            {
                begun.push(name);
            } else if id.is_some() || number.is_some() {
                older.push(name);
            }
        }
        // What a checkpoint names that cannot be read, nobody knows: then nothing is left over. Nor is
        // it while somebody looks for the right one in a directory that has lost its manifest.
        let is_known = unreadable.is_empty() && !(had_none && restore.is_some());
        let mut removed = 0;
        if is_known {
            removed += remove_all(&begun, &*device)?;
        }
        let is_sure = if manifest.checkpoints.is_empty() {
            true
        } else {
            let writes = Patient::new(device.clone(), patience).in_all();
            make_sure(&manifest, is_changed, &writes)?
        };
        if is_known && is_sure {
            removed += remove_all(&older, &*device)?;
        }
        let segments = SegmentStore::new(device, next_segment).opened_within(patience);
        found.pin_all(&segments);
        Ok((found, segments, removed))
    }

    /// Adds the checkpoints that are whole, as far as names tell, and that the manifest does not list:
    /// sealed and not confirmed, or in a directory that has lost its manifest. One that is older than a
    /// listed one is left over, unless it is the one `asked` for.
    fn find_unlisted(
        &mut self,
        manifest: &Manifest,
        asked: u64,
        device: &dyn Device,
    ) -> Result<()> {
        let names = device.list()?;
        let newest = manifest.checkpoints.iter().map(|file| file.number).max().unwrap_or(0);
        for number in names.iter().filter_map(|name| checkpoint_of_file(name)) {
            let is_listed = manifest.checkpoints.iter().any(|file| file.number == number);
            if is_listed || (number < newest && number != asked) {
                continue;
            }
            match CheckpointImage::load(device, number, None) {
                Ok((image, file)) if check_files(&image, &names).is_ok() => {
                    self.retained.push(Retained { file, image: Arc::new(image) });
                }
                Err(error) if error.kind() == ErrorKind::Backpressure => return Err(error),
                // Half written, or half removed.
                _ => {}
            }
        }
        Ok(())
    }

    /// The manifest that lists all that are there, by number, but for `last`: that is what an open
    /// goes on from.
    fn list_with_last(&self, manifest: &Manifest, last: u64) -> Manifest {
        let found = self.retained.iter().map(|retained| retained.file);
        // Those that cannot be read stay listed.
        let mut checkpoints = manifest.checkpoints.clone();
        checkpoints.extend(found.filter(|file| !manifest.checkpoints.contains(file)));
        sort_rarely(&mut checkpoints, |file| (file.number == last, file.number));
        Manifest { checkpoints }
    }

    /// The checkpoint to restore: the one asked for, or the last that the manifest lists.
    fn choose(
        &self,
        manifest: &Manifest,
        device: &dyn Device,
        unreadable: &mut [(u64, Error)],
        restore: Option<u64>,
    ) -> Result<Option<Arc<CheckpointImage>>> {
        let last = manifest.checkpoints.last().map(|file| file.number);
        let Some(number) = restore.or(last) else { return Ok(None) };
        if let Some(found) = self.retained.iter().find(|r| r.file.number == number) {
            return Ok(Some(found.image.clone()));
        }
        let there: Vec<_> = self.retained.iter().map(|r| r.file.number.to_string()).collect();
        let there = if there.is_empty() { "no other".into() } else { there.join(", ") };
        if let Some((_, error)) = unreadable.iter_mut().find(|(damaged, _)| *damaged == number) {
            let error = std::mem::replace(error, Error::new(ErrorKind::Corrupt, "told"));
            return Err(error.with("checkpoint", number).with("can be restored", there));
        }
        // It is not there, or not whole.
        let loaded = CheckpointImage::load(device, number, None);
        let loaded = loaded.map_err(|error| match error.kind() {
            ErrorKind::Missing => {
                let message = format!("checkpoint {number} is not in the directory");
                Error::new(ErrorKind::Missing, message)
            }
            _ => error,
        });
        let why = loaded.and_then(|(image, _)| check_files(&image, &device.list()?));
        let message = "the directory changed while it was being opened";
        let error = why.err().unwrap_or_else(|| Error::new(ErrorKind::Io, message));
        Err(error.with("can be restored", there))
    }

    /// Pins what the checkpoints name. What the one restored names belongs to its states; the rest
    /// is kept by its pins only.
    fn pin_all(&self, segments: &SegmentStore) {
        let base = self.base.iter().flat_map(|image| &image.states);
        let base = base.flat_map(StateManifest::file_names).filter(|name| !is_blobs(name));
        let base = SortedSet::of(base);
        for state in self.retained.iter().flat_map(|retained| &retained.image.states) {
            pin(segments, state);
            for name in pinned_by(state).as_slice().iter().filter(|name| !base.contains(*name)) {
                // It is pinned, so that nothing is removed that could fail.
                let _ = segments.remove_file(&name.to_string());
            }
        }
    }
}

/// Whether the checkpoint asked for can be restored although the manifest is damaged: all its files
/// are there.
///
/// # Errors
/// None was asked for, or that one is not whole: the damage, with those that can be restored.
fn check_restored_is_whole(device: &dyn Device, restore: Option<u64>, damage: Error) -> Result<()> {
    let whole = whole_checkpoints(device)?;
    match restore {
        Some(number) if whole.iter().any(|file| file.number == number) => Ok(()),
        _ => Err(damaged_manifest(&whole, damage)),
    }
}

/// The error of a damaged manifest: with the checkpoints that can be restored, and how.
pub(crate) fn damaged_manifest(whole: &[CheckpointFile], damage: Error) -> Error {
    let numbers: Vec<_> = whole.iter().map(|file| file.number.to_string()).collect();
    let (what, numbers) = match numbers.is_empty() {
        true => ("no checkpoint in the directory is whole", "none".into()),
        false => {
            ("a checkpoint can be restored by its number, with restore(number)", numbers.join(", "))
        }
    };
    Error::new(ErrorKind::Corrupt, format!("the manifest is damaged; {what}"))
        .with("file", MANIFEST)
        .with("can be restored", numbers)
        .caused_by(damage)
}

/// The checkpoints of a directory that can be read and whose files are all there, the oldest first,
/// whatever the manifest says. The newest may have been sealed and not confirmed.
pub(crate) fn whole_checkpoints(device: &dyn Device) -> Result<Vec<CheckpointFile>> {
    let names = device.list()?;
    let numbers = SortedSet::of(names.iter().filter_map(|name| checkpoint_of_file(name)));
    let mut whole = Vec::new();
    for number in numbers {
        match CheckpointImage::load(device, number, None) {
            Ok((image, file)) if check_files(&image, &names).is_ok() => whole.push(file),
            Err(error) if error.kind() == ErrorKind::Backpressure => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(whole)
}

/// Whether a directory without a manifest has never had one: else a checkpoint in it says that another
/// was confirmed before. Nothing of it is taken for left over then.
fn check_never_had_one(device: &dyn Device) -> Result<()> {
    let names = device.list()?;
    let numbers = SortedSet::of(names.iter().filter_map(|name| checkpoint_of_file(name)));
    let mut had_one = false;
    for number in numbers.as_slice() {
        match CheckpointImage::load(device, *number, None) {
            Ok((image, _)) => had_one |= image.after > 0,
            Err(error) if error.kind() == ErrorKind::Backpressure => return Err(error),
            // One that cannot be read tells nothing.
            Err(_) => {}
        }
    }
    if !had_one {
        return Ok(());
    }
    let there: Vec<_> = numbers.as_slice().iter().map(u64::to_string).collect();
    let message = "the directory has lost its manifest; a checkpoint can be restored by its number";
    let error = Error::new(ErrorKind::Missing, message).with("file", MANIFEST);
    Err(error.with("can be restored", there.join(", ")))
}

/// Replaces the manifest by what it says. The one that was found may have its name by a rename that
/// was never made durable: a crash after this open would bring back the one before, which has another
/// position, and needs files that are left over now. Says whether that went well: on a full device it
/// may not, unless it `must`.
fn make_sure(manifest: &Manifest, must: bool, device: &dyn Device) -> Result<bool> {
    match manifest.commit(device) {
        Err(error) if error.kind() == ErrorKind::DiskFull && !must => {
            device.sync_directory().map(|()| false)
        }
        done => done.map(|()| true),
    }
}

/// Removes these files, and says how many.
fn remove_all(names: &[String], device: &dyn Device) -> Result<u64> {
    names.iter().try_for_each(|name| device.remove(name))?;
    Ok(names.len() as u64)
}

fn check_groups(image: &CheckpointImage, config: &StoreConfig, owned: &Range<u16>) -> Result<()> {
    if (image.key_groups, image.owned) == (config.key_groups, (owned.start, owned.end)) {
        return Ok(());
    }
    let message = format!(
        "the directory has key groups {}..{} of {}, requested are {}..{} of {}",
        image.owned.0, image.owned.1, image.key_groups, owned.start, owned.end, config.key_groups
    );
    Err(Error::new(ErrorKind::Mismatch, message))
}

/// Whether every file is there that a checkpoint names.
fn check_files(image: &CheckpointImage, names: &[String]) -> Result<()> {
    let there = SortedSet::of(names.iter().map(|name| FileName::from(&**name)));
    match image.file_names().find(|file| !there.contains(file)) {
        Some(file) => {
            let message = format!("checkpoint {} needs a file that is not there", image.number);
            Err(Error::new(ErrorKind::Missing, message).with("file", file.to_string()))
        }
        None => Ok(()),
    }
}

/// Whether this is the name of a file of live records.
fn is_blobs(name: &FileName) -> bool {
    name.number().is_some_and(|(kind, _)| kind == FileKind::LiveRecords)
}
