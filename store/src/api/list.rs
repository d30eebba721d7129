//! Keyed state that is appended to: a list per key.

use std::fmt;

use alluvium_layouts::{Cursor, Lists, ListsLayout, TableStats};
use alluvium_pagestore::{Key, Lookup, Rejected, Result, State, Time};

use crate::backend::any_layout::AnyLayout;
use crate::cells::ListsCell;
use crate::cells::cell_handle::CellHandle;
use crate::cells::recording::{Access, Recorder};
use crate::cells::state_cell::Hooks;

/// The bucket of lists that stay until they are cleared.
const STAYING: Time = Time::MAX;
/// Elements that a layout is given at a time.
const BATCH: usize = 256;

/// A list per key. Open one with [`Store::list`](crate::Store::list).
///
/// Elements are native Rust values in order of arrival. They never change. An append never reads
/// storage. With the default layout, lists that do not fit memory go to storage; a read merges
/// their stored and resident parts.
///
/// ```
/// use alluvium::{MIB, Store};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let mut pages = store.list::<u64, String>("pages").open()?;
/// for page in ["/", "/cart", "/pay"] {
///     pages.append(&7, page.to_owned())?;
/// }
/// assert_eq!(pages.drain(&7)?, ["/", "/cart", "/pay"]);
/// assert!(pages.is_empty()?);
/// # Ok::<(), alluvium::Error>(())
/// ```
pub struct List<K: Key, E: State, L: ListsLayout<K, E> = AnyLayout> {
    cell: CellHandle<ListsCell<K, E, L::Lists>>,
}

impl<K: Key, E: State, L: ListsLayout<K, E>> List<K, E, L> {
    pub(crate) fn new(cell: CellHandle<ListsCell<K, E, L::Lists>>) -> Self {
        Self { cell }
    }

    /// Returns the state's name.
    pub fn name(&self) -> &str {
        self.cell.name()
    }

    /// Returns the number of elements in all lists. Cleared elements on storage may count until a
    /// merge drops them. Cost: O(1).
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) from a closure of the same state.
    pub fn len(&self) -> Result<u64> {
        Ok(self.cell.enter()?.len())
    }

    /// Returns whether [`len`](List::len) is 0.
    ///
    /// # Errors
    /// As for [`len`](List::len).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Appends an element to the list of `key`. Never reads storage. If memory is full it may wait
    /// until storage has taken older elements.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](crate::ErrorKind::OverBudget) if nothing can be spilled.
    /// [`ErrorKind::Backpressure`](crate::ErrorKind::Backpressure) and
    /// [`ErrorKind::DiskFull`](crate::ErrorKind::DiskFull) if storage does not take what is
    /// spilled. [`ErrorKind::InUse`](crate::ErrorKind::InUse) while the key's group moves,
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) if another store owns it. Each returns
    /// the element and changes nothing.
    #[inline]
    pub fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        if self.cell.is_watched() {
            return self.append_watched(key, element);
        }
        match self.cell.enter_for(1) {
            Ok(mut lists) => lists.append(STAYING, key, element),
            Err(error) => Err(Rejected::new(error, element)),
        }
    }

    /// [`append`](List::append) to a state whose calls are looked at. It goes another way, so that others keep
    /// nothing for it.
    #[inline(never)]
    fn append_watched<Q: Lookup<K> + ?Sized>(
        &self,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        let checked = self.cell.check_hash(key.key_hash());
        match checked.and_then(|recorder| Ok((recorder, self.cell.enter_for(1)?))) {
            Ok((None, mut lists)) => lists.append(STAYING, key, element),
            Ok((Some(recorder), mut lists)) => {
                let bytes = bytes_of(&element);
                lists.append(STAYING, key, element)?;
                recorder.record(Access::Merge, key, None, bytes);
                Ok(())
            }
            Err(error) => Err(Rejected::new(error, element)),
        }
    }

    /// Does [`append`](List::append) for each item of `batch`, in order. After an error the batch
    /// holds the items that were not appended.
    ///
    /// # Errors
    /// As for [`append`](List::append).
    pub fn append_batch(&mut self, batch: &mut Vec<(K, E)>) -> Result<()> {
        self.cell.check_all(batch.iter().map(|(key, _)| key.key_hash()))?;
        if let Some(recorder) = self.cell.recorder() {
            return self.append_recorded(recorder, batch);
        }
        let mut lists = self.cell.enter_for(batch.len())?;
        let mut rest = std::mem::take(batch).into_iter();
        let mut some = Vec::with_capacity(rest.len().min(BATCH));
        loop {
            some.extend(rest.by_ref().take(BATCH).map(|(key, element)| (key, STAYING, element)));
            if some.is_empty() {
                return Ok(());
            }
            if let Err(error) = lists.append_batch(&mut some) {
                batch.extend(some.into_iter().map(|(key, _, element)| (key, element)));
                batch.extend(rest);
                return Err(error);
            }
        }
    }

    /// [`append_batch`](List::append_batch) one by one.
    #[cold]
    fn append_recorded(&self, recorder: &Recorder, batch: &mut Vec<(K, E)>) -> Result<()> {
        let mut lists = self.cell.enter_for(batch.len())?;
        let mut rest = std::mem::take(batch).into_iter();
        while let Some((key, element)) = rest.next() {
            let bytes = bytes_of(&element);
            if let Err(Rejected { error, value, .. }) = lists.append(STAYING, &key, element) {
                batch.push((key, value));
                batch.extend(rest);
                return Err(error);
            }
            recorder.record(Access::Merge, &key, None, bytes);
        }
        Ok(())
    }

    /// Visits the elements of `key` in order and returns their number. Cost: about one read of
    /// storage for each of the few stored runs.
    ///
    /// # Errors
    /// Those of `visit` and of storage. [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for
    /// damaged segments.
    pub fn read<Q: Lookup<K> + ?Sized>(
        &mut self,
        key: &Q,
        mut visit: impl FnMut(&E) -> Result<()>,
    ) -> Result<u64> {
        let record = |recorder: &Recorder| recorder.record(Access::Get, key, None, 0);
        self.cell.run_to_read(1, record, |lists| lists.read(STAYING, key, &mut visit))?
    }

    /// Returns the elements of `key`. Their memory is not reserved; use [`read`](List::read) for
    /// long lists.
    ///
    /// # Errors
    /// As for [`read`](List::read).
    pub fn to_vec<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Vec<E>> {
        let mut all = Vec::new();
        self.read(key, |element| {
            all.push(element.clone());
            Ok(())
        })?;
        Ok(all)
    }

    /// Folds the elements of `key` in order without keeping them: a merge at read time. Elements
    /// may be your own partial results if their merge is associative.
    ///
    /// ```
    /// # use alluvium::Store;
    /// let store = Store::in_memory().open()?;
    /// let mut bids = store.list::<u64, u64>("bids").open()?;
    /// for price in [3, 9, 4] {
    ///     bids.append(&7, price)?;
    /// }
    /// assert_eq!(bids.fold_with(&7, 0, |best, price| best.max(*price))?, 9);
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`read`](List::read).
    pub fn fold_with<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: R,
        mut merge: impl FnMut(R, &E) -> R,
    ) -> Result<R> {
        let mut folded = Some(init);
        self.read(key, |element| {
            folded = folded.take().map(|folded| merge(folded, element));
            Ok(())
        })?;
        Ok(folded.expect("put back by each merge"))
    }

    /// Removes the list of `key` and returns its elements.
    ///
    /// # Errors
    /// As for [`read`](List::read) and [`clear`](List::clear). An error removes nothing.
    pub fn drain<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Vec<E>> {
        let all = self.to_vec(key)?;
        if !all.is_empty() {
            self.clear(key)?;
        }
        Ok(all)
    }

    /// Removes the list of `key` without reading it. Frees memory at once, and storage at the next
    /// merge of its run.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](crate::ErrorKind::OverBudget) and those of storage if memory has
    /// no room to record the removal.
    pub fn clear<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<()> {
        if self.cell.is_watched() {
            return self.clear_watched(key);
        }
        self.cell.enter_for(1)?.clear_key(STAYING, key)
    }

    /// [`clear`](List::clear) of a state whose calls are looked at.
    #[inline(never)]
    fn clear_watched<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<()> {
        let recorder = self.cell.check_hash(key.key_hash())?;
        self.cell.enter_for(1)?.clear_key(STAYING, key)?;
        if let Some(recorder) = recorder {
            recorder.record(Access::Delete, key, None, 0);
        }
        Ok(())
    }

    /// Visits all elements: those of a key together and in order, keys in unspecified order. Cost:
    /// a pass over the state with all its reads.
    ///
    /// # Errors
    /// As for [`read`](List::read).
    pub fn for_each(&mut self, mut visit: impl FnMut(&K, &E) -> Result<()>) -> Result<()> {
        let mut lists = self.cell.enter()?;
        let (recorder, mut cursor) = (self.cell.recorder(), Cursor::default());
        while !cursor.done {
            lists.fold(STAYING..STAYING, &mut cursor, 4096, &mut |key, elements| {
                if let Some(recorder) = recorder {
                    recorder.record(Access::Get, key, None, 0);
                }
                loop {
                    let chunk = elements.next_chunk()?;
                    if chunk.is_empty() {
                        return Ok(());
                    }
                    chunk.iter().try_for_each(|element| visit(key, element))?;
                }
            })?;
        }
        Ok(())
    }

    /// Returns counters and gauges.
    ///
    /// # Errors
    /// As for [`len`](List::len).
    pub fn stats(&self) -> Result<TableStats> {
        self.cell.stats()
    }

    /// Returns whether a closure has panicked in this state since it was opened or last cleared.
    pub fn is_poisoned(&self) -> bool {
        self.cell.is_poisoned()
    }

    /// Allows checkpoints again after a closure has panicked.
    pub fn clear_poison(&mut self) {
        self.cell.clear_poison();
    }
}

/// What an element takes in memory.
fn bytes_of<E: State>(element: &E) -> u64 {
    (size_of::<E>() + element.heap_bytes()) as u64
}

impl<K: Key, E: State, L: ListsLayout<K, E>> fmt::Debug for List<K, E, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "List({})", self.cell.name())
    }
}
