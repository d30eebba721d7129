//! Canonical files: the contents of states, sorted, in a form that knows no layout.
//!
//! What it keeps true: equal states give equal bytes, whatever their layout, history, memory and
//! number of key groups; what does not fit into memory is sorted through files of the store's own,
//! which are gone afterwards. `docs/format.md` has the bytes.

mod file;
mod importing;
mod runs;
mod sort;

use std::io::{Read, Write};
use std::rc::Rc;

use alluvium_pagestore::{
    Account, Encoded, Error, ErrorKind, MemoryKind, Result, SegmentStore, StateManifest,
    has_no_order,
};

use crate::store::{OpenState, Store};
use file::{FileReader, FileWriter, StateHeader};
use sort::Sorter;

pub(crate) use importing::{ImportBatch, ImportEntries, each, in_batches};

/// One entry of a state in its canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CanonicalEntry<'a> {
    /// The key's hash.
    pub(crate) hash: u64,
    /// Tells entries of a key apart: a timer's time, a list's bucket, a slice; 0 for maps.
    pub(crate) order: i64,
    /// The key's archive.
    pub(crate) key: &'a [u8],
    /// The archive of the value, of one element, of an accumulator.
    pub(crate) value: &'a [u8],
}

impl<'a> CanonicalEntry<'a> {
    /// An entry whose key has this hash.
    pub(crate) fn of(hash: u64, order: i64, encoded: &'a Encoded) -> Self {
        Self { hash, order, key: &encoded.key, value: &encoded.value }
    }

    /// The lengths of key and value, as files and chunks say them.
    ///
    /// # Errors
    /// [`ErrorKind::ValueTooLarge`] if 32 bits have no room for one, or for the block that the entry
    /// makes alone.
    pub(crate) fn lengths(&self) -> Result<[u32; 2]> {
        let bytes = self.key.len().saturating_add(self.value.len());
        let fits = bytes <= ENTRY_BYTES_MAX;
        match (u32::try_from(self.key.len()), u32::try_from(self.value.len())) {
            (Ok(key), Ok(value)) if fits => Ok([key, value]),
            _ => {
                let message = format!(
                    "a key and its value take {bytes} bytes; {ENTRY_BYTES_MAX} is the most that is \
                     exported or moved"
                );
                let error = Error::new(ErrorKind::ValueTooLarge, message);
                Err(error.with("key", format_args!("with hash {:#018x}", self.hash)))
            }
        }
    }
}

/// The most bytes of an entry: with its headers they are a length of 32 bits, and none that has another meaning.
pub(crate) const ENTRY_BYTES_MAX: usize = u32::MAX as usize - 64;

/// What is booked for the entry that is encoded at the moment: that of one within `max_value`, and more from the first
/// that is longer.
pub(crate) struct Encoding {
    account: Rc<Account>,
    bytes: u64,
}

impl Encoding {
    /// Books so many bytes.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] naming `what`.
    pub(crate) fn begin(account: &Rc<Account>, bytes: u64, what: &str) -> Result<Self> {
        let account = account.clone();
        account.reserve(MemoryKind::Buffers, bytes, what)?;
        Ok(Self { account, bytes })
    }

    /// Books what this entry takes beyond what is.
    ///
    /// # Errors
    /// As for [`begin`](Encoding::begin).
    fn holds(&mut self, entry: &CanonicalEntry<'_>) -> Result<()> {
        let bytes = (entry.key.len() + entry.value.len()) as u64;
        self.is_for(bytes, "encoding a value that is larger than max_value")
    }

    /// Books what lacks of so many bytes.
    ///
    /// # Errors
    /// As for [`begin`](Encoding::begin).
    pub(crate) fn is_for(&mut self, bytes: u64, what: &str) -> Result<()> {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 {
            self.account.reserve(MemoryKind::Buffers, more, what)?;
            self.bytes += more;
        }
        Ok(())
    }
}

impl Drop for Encoding {
    fn drop(&mut self) {
        self.account.release(MemoryKind::Buffers, self.bytes);
    }
}

/// Takes the entries of a state one by one.
pub(crate) type VisitCanonical<'v> = &'v mut dyn FnMut(CanonicalEntry<'_>) -> Result<()>;

/// Takes the entries of a state in parts: all of a part come before all of the next one in a canonical
/// file.
pub(crate) trait Parts {
    /// So many entries are to come.
    fn begin(&mut self, entries: u64) -> Result<()>;
    /// How many the next part had best have.
    fn fuel(&self) -> usize;
    /// An entry of the part.
    fn entry(&mut self, entry: CanonicalEntry<'_>) -> Result<()>;
    /// That was the part.
    fn end(&mut self) -> Result<()>;
}

/// Sorts part after part, and writes each.
struct SortedParts<'a, W> {
    sorter: Sorter,
    file: &'a mut FileWriter<W>,
    state: &'a OpenState,
    encoded: Encoding,
}

impl<W: Write> Parts for SortedParts<'_, W> {
    fn begin(&mut self, entries: u64) -> Result<()> {
        self.file.begin_state(&StateHeader::of(self.state, entries))
    }

    fn fuel(&self) -> usize {
        self.sorter.entries_at_once()
    }

    fn entry(&mut self, entry: CanonicalEntry<'_>) -> Result<()> {
        self.encoded.holds(&entry)?;
        self.sorter.push(entry)
    }

    fn end(&mut self) -> Result<()> {
        self.sorter.give_part(&mut |entry| self.file.push(entry))
    }
}

/// Result of [`Store::export`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Number of states.
    pub states: u64,
    /// Number of keys of maps, timers, elements of lists, and accumulators of slices.
    pub entries: u64,
}

/// Result of [`Store::import`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Number of entries that are now in the states.
    pub taken: u64,
    /// Number of entries of key groups that this store does not own.
    pub passed_over: u64,
}

/// The most memory for entries that come in parts.
const PART_BYTES_MAX: u64 = 4 << 20;

/// The primitive of what can be made again from other states.
const DERIVED: &str = "derived panes";

impl Store {
    /// Writes all states to a canonical file: sorted by key group, hash and key, with equal bytes
    /// for equal contents. [`import`](Store::import) reads it in any layout, on any machine. All
    /// states must be open.
    ///
    /// Cost: reads, sorts and writes all states before it returns. Takes an eighth of the store's
    /// memory, or less if that is not free, and sorts larger states through files of the directory.
    /// State that its layout keeps in memory in hash order is sorted in small parts. To export
    /// while a job runs, restore its checkpoint elsewhere
    /// ([`restore_from`](crate::StoreBuilder::restore_from)).
    ///
    /// ```
    /// use alluvium::{MIB, Store};
    ///
    /// let store = Store::in_memory().memory(16 * MIB).open()?;
    /// let mut counts = store.count::<String>("counts").open()?;
    /// counts.add("be", 2)?;
    /// let mut file = Vec::new();
    /// assert_eq!(store.export(&mut file)?.entries, 1);
    ///
    /// let other = Store::in_memory().memory(16 * MIB).open()?;
    /// let mut counts = other.count::<String>("counts").open()?;
    /// other.import(&file[..])?;
    /// assert_eq!(counts.get("be")?, 2);
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] naming states of the store that are not open.
    /// [`ErrorKind::Unsupported`] for a layout without a codec, and for types that contain a
    /// `HashMap` or `HashSet`: these have no order, so equal states would give different files.
    /// [`ErrorKind::Poisoned`]. [`ErrorKind::InUse`]. [`ErrorKind::OverBudget`] if memory has no
    /// room for the largest entry. Those of storage and of `out`. After an error the written bytes
    /// are useless.
    pub fn export(&self, out: impl Write) -> Result<Exported> {
        let unopened = self.unopened();
        if !unopened.is_empty() {
            let message = "the file would miss states that are not open";
            let error = Error::new(ErrorKind::Mismatch, message);
            return Err(error.with("states", unopened.join(", ")));
        }
        self.export_where(out, |_| true)
    }

    /// Does [`export`](Store::export) for these states only.
    ///
    /// # Errors
    /// Those of [`export`](Store::export). [`ErrorKind::UnknownState`] for one that is not open.
    pub fn export_states(&self, names: &[&str], out: impl Write) -> Result<Exported> {
        for name in names {
            self.account_of(name)?;
        }
        self.export_where(out, |name| names.contains(&name))
    }

    fn export_where(&self, out: impl Write, is_wanted: impl Fn(&str) -> bool) -> Result<Exported> {
        self.0.kept_back.lend();
        let states = self.0.states.borrow();
        let mut wanted: Vec<&OpenState> = states
            .iter()
            .filter(|state| state.manifest.primitive != DERIVED && is_wanted(&state.manifest.name))
            .collect();
        wanted.sort_by(|a, b| a.manifest.name.cmp(&b.manifest.name));
        wanted.iter().try_for_each(|state| check_order(&state.manifest))?;
        let mut file = FileWriter::begin(out, self.root())?;
        let mut exported = Exported::default();
        for state in wanted {
            let name = &state.manifest.name;
            if state.hooks.poisoned() {
                let message = "a closure panicked in this state; clear the poison or restore";
                return Err(Error::new(ErrorKind::Poisoned, message).with("state", name));
            }
            let entries = self.write_sorted(state, &mut file);
            if entries.is_err() {
                self.0.book_left();
            }
            exported.entries += entries.map_err(|error| error.with("state", name))?;
            exported.states += 1;
        }
        file.end()?;
        self.0.kept_back.fill();
        Ok(exported)
    }

    fn write_sorted(&self, state: &OpenState, file: &mut FileWriter<impl Write>) -> Result<u64> {
        // An entry is encoded beside what it is copied to.
        let encoded = self.0.config.max_value_bytes();
        let what = "encoding an entry of an export";
        let mut encoded = Encoding::begin(self.root(), encoded, what)?;
        // What is written to sort is of no use after an error.
        let segments = self.0.segments.as_ref().map(SegmentStore::for_opening);
        // Keys of groups that are not the store's, if there are any, stand in no order; nor is all told
        // of a state whose groups come and go.
        let is_all = self.0.owned.len() == usize::from(self.0.config.key_groups);
        if is_all && state.groups.is_none() && state.hooks.has_parts()? {
            let memory = (self.root().limit() / 64).min(PART_BYTES_MAX);
            let sorter = Sorter::within(self.root(), segments, memory)?;
            let mut parts = SortedParts { sorter, file, state, encoded };
            state.hooks.export_in_parts(&mut parts)?;
            return file.end_state();
        }
        let mut sorter = Sorter::begin(self.root(), segments)?;
        // What a store has not in full, or not any more, is another one's to tell.
        let groups = state.groups.as_deref();
        let is_here = |hash| groups.is_none_or(|groups| groups.has(groups.group_of(hash)));
        state.hooks.export(&mut |entry| match is_here(entry.hash) {
            true => encoded.holds(&entry).and_then(|()| sorter.push(entry)),
            false => Ok(()),
        })?;
        drop(encoded);
        file.begin_state(&StateHeader::of(state, sorter.entries()))?;
        sorter.give_part(&mut |entry| file.push(entry))?;
        file.end_state()
    }

    /// Puts the entries of a canonical file into the open states of the same names and types, if
    /// this store owns their key groups. So each worker of a job can read the same file, and
    /// several files in turn. A key of a map is replaced, a timer set, list elements are appended
    /// and accumulators merged: import a file once. Windows must have the same progress in all
    /// files, and in the store unless it is new.
    ///
    /// Cost: decodes its entries and puts them in batches. Takes the memory of a batch and of a
    /// block: 64 KiB, or the largest entry.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownState`] for a state that is not open. [`ErrorKind::Mismatch`] for other
    /// types, naming both. [`ErrorKind::Corrupt`] for a damaged file. [`ErrorKind::FormatVersion`]
    /// for another format. Those of the states and of `input`. The entries before the error are in
    /// the states, except for windows on the heap that lack the memory to complete them: start with
    /// a new store.
    pub fn import(&self, input: impl Read) -> Result<Imported> {
        self.import_from(&mut FileReader::begin(input, self.root())?)
    }
}

/// Refuses types of which equal values have different bytes.
fn check_order(state: &StateManifest) -> Result<()> {
    let Some(types) = [&state.key, &state.value].into_iter().find(|types| has_no_order(types))
    else {
        return Ok(());
    };
    let message = format!(
        "values of {types} have no order, so that equal states would give different files; keep a \
         BTreeMap or a BTreeSet instead of a HashMap or a HashSet"
    );
    Err(Error::new(ErrorKind::Unsupported, message).with("state", &state.name))
}

/// Checks that a key is the one whose hash the file tells.
pub(crate) fn check_hash(told: u64, hash: u64) -> Result<()> {
    match told == hash {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Corrupt, "an entry has the hash of another key")),
    }
}

#[cfg(test)]
mod tests {
    use super::file::FileWriter;
    use super::*;

    /// What is too long is refused before it is copied: its bytes are never looked at.
    #[test]
    fn lengths_beyond_32_bits_are_refused_and_never_cut() {
        let root = Account::root(1 << 20);
        let long = vec![0u8; (1 << 32) + 7];
        let (most, one) = (ENTRY_BYTES_MAX, &b"k"[..]);
        let of = |key, value| CanonicalEntry { hash: 0x77, order: 0, key, value };
        let refused = [of(one, &long), of(&long, one), of(one, &long[..most])];
        for entry in refused {
            let mut sorter = Sorter::begin(&root, None).unwrap();
            let mut file = FileWriter::begin(Vec::new(), &root).unwrap();
            for error in [sorter.push(entry), file.push(entry)] {
                let error = error.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ValueTooLarge, "{error}");
                assert_eq!(error.context("key"), Some("with hash 0x0000000000000077"));
            }
            assert_eq!(sorter.entries(), 0);
        }
        assert_eq!(of(one, &long[..most - 1]).lengths().unwrap(), [1, most as u32 - 1]);
        assert_eq!(root.used(), 0);
    }

    #[test]
    fn what_no_archive_has_room_for_is_refused_by_its_key() {
        let (long, mut encoded) = (vec![0u8; 1 << 31], Encoded::default());
        let error = encoded.set(&5u64, &long).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ValueTooLarge, "{error}");
        assert_eq!(error.context("key"), Some("5"), "{error}");
        encoded.set(&5u64, &vec![1u8]).unwrap();
        assert_eq!(
            Encoded::get::<u64, Vec<u8>>(&encoded.key, &encoded.value).unwrap(),
            (5, vec![1])
        );
    }
}
