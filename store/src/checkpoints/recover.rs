//! What an open finds in a directory: its checkpoints, the one to restore, and what is left over.
//!
//! What it keeps true: nothing is removed that a listed checkpoint may name, also one that cannot be
//! read; of a directory whose manifest is lost or damaged, nothing at all.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use alluvium_pagestore::io::{Device, Patient};
use alluvium_pagestore::{
    CheckpointFile, CheckpointImage, Error, ErrorKind, MANIFEST, MANIFEST_NEW, Manifest, Result,
    SegmentId, SegmentStore, blobs_name, checkpoint_of_file,
};

use super::{Checkpoints, Retained, pinned_by};
use crate::config::StoreConfig;

impl Checkpoints {
    /// Reads the manifest and the checkpoints it lists, and removes files that none of them names;
    /// says how many.
    pub(crate) fn recover(
        device: Arc<dyn Device>,
        config: &StoreConfig,
        owned: &Range<u16>,
        restore: Option<u64>,
    ) -> Result<(Self, SegmentStore, u64)> {
        let patience = Duration::from_millis(config.patience_ms);
        let reads = Patient::new(device.clone(), patience);
        let mut is_rebuilt = false;
        let mut manifest = match Manifest::load(&reads) {
            Ok(Some(manifest)) => manifest,
            Ok(None) if restore.is_none() => {
                check_never_had_one(&reads)?;
                Manifest::default()
            }
            Ok(None) => Manifest::default(),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                is_rebuilt = true;
                rebuilt(&reads, restore, error)?
            }
            Err(error) => return Err(error),
        };
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
        if !manifest.checkpoints.is_empty() {
            // It may have been renamed by who could not make that durable: a crash after this open would
            // bring back the one before, whose files are removed below, and whose position is another.
            device.sync_directory()?;
        }
        let listed_before = manifest.checkpoints.len();
        found.base = found.choose(&mut manifest, &reads, unreadable.as_mut(), restore)?;
        let mut next_segment = 1;
        for Retained { image, .. } in &found.retained {
            next_segment = next_segment.max(image.next_segment);
            found.last = found.last.max(image.number);
        }
        found.last = unreadable.iter().fold(found.last, |last, (number, _)| last.max(*number));
        if let Some(base) = &found.base {
            check_groups(base, config, owned)?;
        }
        if is_rebuilt {
            manifest.commit(&*device)?;
        } else if manifest.checkpoints.len() > listed_before {
            // One that was sealed and not confirmed. It is what an open finds from now on, so that
            // it has to be whole.
            check_files(found.base.as_ref().expect("it was chosen"), &device.list()?)?;
            manifest.commit(&*device)?;
        }
        let needed: BTreeSet<String> =
            found.retained.iter().flat_map(|retained| retained.image.files()).collect();
        let mut leftovers = Vec::new();
        for name in device.list()?.into_iter().filter(|name| name != MANIFEST) {
            let id = SegmentId::of_file(&name).map(|id| id.0);
            let checkpoint = checkpoint_of_file(&name);
            next_segment = id.map_or(next_segment, |id| next_segment.max(id + 1));
            found.last = checkpoint.map_or(found.last, |number| found.last.max(number));
            let listed = |number| manifest.checkpoints.iter().any(|file| file.number == number);
            let ours = id.is_some() || checkpoint.is_some() || is_blobs(&name);
            if (ours || name == MANIFEST_NEW)
                && !needed.contains(&name)
                && !checkpoint.is_some_and(listed)
            {
                leftovers.push(name);
            }
        }
        // What a checkpoint names that cannot be read, nobody knows: then nothing is left over. Beside
        // a rebuilt manifest, later checkpoints may be what is wanted after all.
        if !unreadable.is_empty() || is_rebuilt {
            leftovers.clear();
        }
        leftovers.iter().try_for_each(|name| device.remove(name))?;
        let removed = leftovers.len() as u64;
        let segments = SegmentStore::new(device, next_segment).opened_within(patience);
        found.pin_all(&segments);
        Ok((found, segments, removed))
    }

    /// The checkpoint to restore: the newest, or the one asked for, which is added to those listed if
    /// it is not among them.
    fn choose(
        &mut self,
        manifest: &mut Manifest,
        device: &dyn Device,
        unreadable: &mut [(u64, Error)],
        restore: Option<u64>,
    ) -> Result<Option<Arc<CheckpointImage>>> {
        let newest = manifest.checkpoints.last().map(|file| file.number);
        let Some(number) = restore.or(newest) else { return Ok(None) };
        if let Some(found) = self.retained.iter().find(|r| r.file.number == number) {
            return Ok(Some(found.image.clone()));
        }
        let there: Vec<_> = self.retained.iter().map(|r| r.file.number.to_string()).collect();
        let there = if there.is_empty() { "no other".into() } else { there.join(", ") };
        if let Some((_, error)) = unreadable.iter_mut().find(|(damaged, _)| *damaged == number) {
            let error = std::mem::replace(error, Error::new(ErrorKind::Corrupt, "told"));
            return Err(error.with("checkpoint", number).with("can be restored", there));
        }
        // One that was sealed and not confirmed.
        let loaded = CheckpointImage::load(device, number, None);
        let (image, file) = loaded.map_err(|error| match error.kind() {
            ErrorKind::Missing => {
                let message = format!("checkpoint {number} is not in the directory");
                Error::new(ErrorKind::Missing, message).with("can be restored", there)
            }
            _ => error,
        })?;
        manifest.checkpoints.push(file);
        manifest.checkpoints.sort_by_key(|file| file.number);
        let image = Arc::new(image);
        self.retained.push(Retained { file, image: image.clone() });
        self.retained.sort_by_key(|retained| retained.file.number);
        Ok(Some(image))
    }

    /// Pins what the checkpoints name. What the one restored names belongs to its states; the rest
    /// is kept by its pins only.
    fn pin_all(&self, segments: &SegmentStore) {
        let base: BTreeSet<String> =
            self.base.iter().flat_map(|image| image.files()).filter(|n| !is_blobs(n)).collect();
        for Retained { image, .. } in &self.retained {
            let files = pinned_by(image);
            segments.pin(files.iter().map(String::as_str));
            for name in files.iter().filter(|name| !base.contains(*name)) {
                // It is pinned, so that nothing is removed that could fail.
                let _ = segments.remove_file(name);
            }
        }
    }
}

/// What a damaged manifest may have said: the checkpoints up to the one asked for whose files are
/// all there.
///
/// # Errors
/// None was asked for, or that one is not among them: the damage, with those that can be restored.
fn rebuilt(device: &dyn Device, restore: Option<u64>, damage: Error) -> Result<Manifest> {
    let mut checkpoints = whole_checkpoints(device)?;
    let is_there = |number: &u64| checkpoints.iter().any(|file| file.number == *number);
    match restore.filter(is_there) {
        Some(number) => {
            checkpoints.retain(|file| file.number <= number);
            Ok(Manifest { checkpoints })
        }
        None => Err(damaged_manifest(&checkpoints, damage)),
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
    let numbers: BTreeSet<u64> = names.iter().filter_map(|name| checkpoint_of_file(name)).collect();
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
    let numbers: BTreeSet<u64> = names.iter().filter_map(|name| checkpoint_of_file(name)).collect();
    let mut had_one = false;
    for number in &numbers {
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
    let there: Vec<_> = numbers.iter().map(u64::to_string).collect();
    let message = "the directory has lost its manifest; a checkpoint can be restored by its number";
    let error = Error::new(ErrorKind::Missing, message).with("file", MANIFEST);
    Err(error.with("can be restored", there.join(", ")))
}

fn check_groups(image: &CheckpointImage, config: &StoreConfig, owned: &Range<u16>) -> Result<()> {
    if (image.key_groups, image.owned) == (config.key_groups, (owned.start, owned.end)) {
        return Ok(());
    }
    let message = format!(
        "the directory has key groups {}..{} of {}, asked for are {}..{} of {}",
        image.owned.0, image.owned.1, image.key_groups, owned.start, owned.end, config.key_groups
    );
    Err(Error::new(ErrorKind::Mismatch, message))
}

/// Whether every file is there that a checkpoint names.
fn check_files(image: &CheckpointImage, names: &[String]) -> Result<()> {
    let there: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    match image.files().find(|file| !there.contains(&**file)) {
        Some(file) => {
            let message = format!("checkpoint {} needs a file that is not there", image.number);
            Err(Error::new(ErrorKind::Missing, message).with("file", file))
        }
        None => Ok(()),
    }
}

/// Whether this is the name of a file of live records.
fn is_blobs(name: &str) -> bool {
    let number = name.strip_prefix("live-").and_then(|n| u64::from_str_radix(n, 16).ok());
    number.is_some_and(|number| blobs_name(number) == name)
}
