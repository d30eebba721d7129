//! The entries of one state on their way from a canonical file into it.

use std::io::Read;
use std::rc::Rc;

use alluvium_pagestore::{Account, Error, ErrorKind, KeyGroup, Result};

use super::file::{FileItem, FileReader, StateHeader};
use super::{CanonicalEntry, Imported};
use crate::store::{OpenState, Store};

/// Entries of one state.
pub(crate) trait ImportEntries {
    /// The next one, if there is one.
    fn next(&mut self) -> Option<CanonicalEntry<'_>>;
    /// Where who takes them books what that takes.
    fn account(&self) -> &Rc<Account>;
}

/// A batch of entries on their way into a state.
pub(crate) trait ImportBatch {
    /// Takes an entry, decoded; says whether that is enough.
    fn take(&mut self, entry: CanonicalEntry<'_>) -> Result<bool>;
    /// Puts what was taken.
    fn put(&mut self) -> Result<()>;
}

/// Puts entries one by one.
pub(crate) fn each(
    entries: &mut dyn ImportEntries,
    put: &mut dyn FnMut(CanonicalEntry<'_>) -> Result<()>,
) -> Result<()> {
    while let Some(entry) = entries.next() {
        put(entry)?;
    }
    Ok(())
}

/// Puts entries in batches: all, or those before one that cannot be decoded.
pub(crate) fn in_batches(
    entries: &mut dyn ImportEntries,
    batch: &mut dyn ImportBatch,
) -> Result<()> {
    let mut taken = Ok(());
    while let Some(entry) = entries.next() {
        match batch.take(entry) {
            Ok(true) => batch.put()?,
            Ok(false) => {}
            Err(error) => {
                taken = Err(error);
                break;
            }
        }
    }
    batch.put().and(taken)
}

/// What comes after the entries of a state.
enum After {
    State(StateHeader),
    End,
}

/// The entries of a state that the store has the key groups of.
struct OfState<'f, R> {
    store: &'f Store,
    state: &'f OpenState,
    file: &'f mut FileReader<R>,
    imported: &'f mut Imported,
    after: Option<Result<After>>,
}

impl<R: Read> OfState<'_, R> {
    fn is_here(&self, hash: u64) -> bool {
        // How far windows have come is not a key's.
        if self.state.manifest.primitive == "progress" {
            return true;
        }
        let config = &self.store.0.config;
        let group = KeyGroup::of(hash, config.key_groups).0;
        match &self.state.groups {
            Some(groups) => groups.has(group),
            None => self.store.0.owned.contains(&group),
        }
    }
}

impl<R: Read> ImportEntries for OfState<'_, R> {
    fn next(&mut self) -> Option<CanonicalEntry<'_>> {
        while self.after.is_none() {
            let hash = match self.file.next() {
                Ok(FileItem::Entry(entry)) => entry.hash,
                Ok(FileItem::State(header)) => {
                    self.after = Some(Ok(After::State(header)));
                    break;
                }
                Ok(FileItem::End) => {
                    self.after = Some(Ok(After::End));
                    break;
                }
                Err(error) => {
                    self.after = Some(Err(error));
                    break;
                }
            };
            if self.is_here(hash) {
                self.imported.taken += 1;
                return Some(self.file.at_hand());
            }
            self.imported.passed_over += 1;
        }
        None
    }

    fn account(&self) -> &Rc<Account> {
        self.store.root()
    }
}

impl Store {
    pub(super) fn import_from(&self, file: &mut FileReader<impl Read>) -> Result<Imported> {
        let mut imported = Imported::default();
        let states = self.0.states.borrow();
        let mut after = match file.next()? {
            FileItem::State(header) => After::State(header),
            _ => After::End,
        };
        while let After::State(header) = after {
            let found = states.iter().find(|state| state.manifest.name == header.name);
            let Some(state) = found else {
                let message = "the file contains a state that is not open";
                let error = Error::new(ErrorKind::UnknownState, message);
                return Err(error.with("state", header.name));
            };
            header.check(&state.manifest)?;
            let share = self.0.owned.len() as u64 * header.entries;
            state.hooks.expect(share / u64::from(self.0.config.key_groups))?;
            let mut entries =
                OfState { store: self, state, file, imported: &mut imported, after: None };
            let put = state.hooks.import_all(&mut entries);
            let next = entries.after.take();
            put.map_err(|error| error.with("state", &state.manifest.name))?;
            after = next.expect("a state takes all entries")?;
        }
        Ok(imported)
    }
}
