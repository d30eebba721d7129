//! Dropping states that the job has no more.
//!
//! What it keeps true: a dropped state is in no checkpoint that begins after the call, and in every one
//! from before for as long as that is retained; its files go with the last checkpoint that names them.

use alluvium_pagestore::{CheckpointImage, Error, ErrorKind, Result, SortedSet, StateManifest};

use super::Store;

/// The states that windows are kept in beside the one of their name.
const PARTS_OF_WINDOWS: [&str; 7] =
    ["progress", "late", "timers", "told", "sessions", "totals", "stacks"];

impl Store {
    /// Drops a state that the job no longer has, whatever its type, with all its parts, such as the
    /// timers of windows. The next checkpoint does not contain it. Its name is free at once. Older
    /// retained checkpoints still contain it and restore it. A crash before the next checkpoint
    /// brings it back. The last checkpoint that names its files removes them.
    ///
    /// In a store made from others, this does [`leave_out`](Store::leave_out) for all its parts.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownState`] if the last checkpoint has no such state. [`ErrorKind::InUse`]
    /// if it was opened since the store was opened, even if its handle is gone: drop it before
    /// opening it. [`ErrorKind::Config`] if it is a part of another state.
    pub fn drop_state(&self, name: &str) -> Result<()> {
        let inner = &*self.0;
        let refuse = |kind, message: &str| Err(Error::new(kind, message).with("state", name));
        let checkpoints = inner.checkpoints.borrow();
        let base = checkpoints.base().cloned();
        let there: Vec<StateManifest> = match (&base, &inner.sources) {
            (Some(base), _) => base.states.clone(),
            (None, Some(sources)) => sources.states(),
            (None, None) => Vec::new(),
        };
        drop(checkpoints);
        let mut dropped = inner.dropped.borrow_mut();
        let there: Vec<_> =
            there.into_iter().filter(|state| !dropped.contains(&state.name)).collect();
        if let Some(whole) = whole_of(&there, name) {
            let message = format!("it is a part of the state {whole}: drop that");
            return refuse(ErrorKind::Config, &message);
        }
        let parts = parts_of(&there, name);
        let is_open =
            |part: &str| inner.states.borrow().iter().any(|state| state.manifest.name == part);
        if is_open(name) || parts.iter().any(|part| is_open(&part.name)) {
            return refuse(ErrorKind::InUse, "the state is open: drop it before it is opened");
        }
        if parts.is_empty() {
            return refuse(ErrorKind::UnknownState, "the last checkpoint has no such state");
        }
        for part in parts {
            dropped.insert(part.name.clone());
            match (&base, &inner.sources, &inner.segments) {
                (Some(_), _, Some(segments)) => {
                    // Nobody but checkpoints needs them; they are pinned, so that nothing is removed
                    // that could fail.
                    part.files().try_for_each(|file| segments.remove_file(&file))?;
                }
                (None, Some(sources), _) => drop(sources.done_with(&part.name)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The states that `name` is kept in.
fn parts_of<'s>(states: &'s [StateManifest], name: &str) -> Vec<&'s StateManifest> {
    let find = |name: &str| states.iter().find(|state| state.name == name);
    let Some(state) = find(name) else { return Vec::new() };
    let mut parts = vec![state];
    if is_of_windows(states, name) {
        parts.extend(PARTS_OF_WINDOWS.iter().filter_map(|part| find(&format!("{name}/{part}"))));
    } else if expires(state) {
        parts.extend(find(&format!("{name}/time")));
    }
    parts
}

/// The state that `name` is a part of.
fn whole_of<'n>(states: &[StateManifest], name: &'n str) -> Option<&'n str> {
    let (whole, _) = name.rsplit_once('/')?;
    parts_of(states, whole).iter().any(|part| part.name == name).then_some(whole)
}

fn is_of_windows(states: &[StateManifest], name: &str) -> bool {
    let progress = format!("{name}/progress");
    states.iter().any(|state| state.name == progress && state.primitive == "progress")
}

fn expires(state: &StateManifest) -> bool {
    state.primitive.contains(" expiring in ")
}

/// States that were dropped, until a checkpoint without them is confirmed.
pub(crate) type Dropped = SortedSet<String>;

/// The states of a checkpoint that were not dropped since.
pub(crate) fn kept<'i>(
    image: &'i CheckpointImage,
    dropped: &'i Dropped,
) -> impl Iterator<Item = &'i StateManifest> {
    image.states.iter().filter(|state| !dropped.contains(&state.name))
}
