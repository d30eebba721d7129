//! Changes of a map that is [watched](CellHandle::is_watched): recorded, or one that refuses some keys. They call the
//! layout with the caller's own closures, as other changes do: so both share its code, and the others need only
//! one test. What a recorded change wrote is measured by a second look-up.

use alluvium_layouts::{BatchError, Peek, Table};
use alluvium_pagestore::{Key, Lookup, Rejected, Result};

use super::{Access, Recorder};
use crate::cells::MapCell;
use crate::cells::cell_handle::CellHandle;

impl<K: Key, V: 'static, T: Table<K, V>> CellHandle<MapCell<K, V, T>> {
    /// [`Table::update`].
    #[inline(never)]
    pub(crate) fn update_watched<Q: Lookup<K> + ?Sized, R>(
        &self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        let recorder = self.check_hash(key.key_hash())?;
        let result = self.run_to_write(1, |table| table.update(key, init, change))??;
        if let Some(recorder) = recorder {
            self.record_change(recorder, key);
        }
        Ok(result)
    }

    /// [`Table::modify`].
    #[inline(never)]
    pub(crate) fn modify_watched<Q: Lookup<K> + ?Sized, R>(
        &self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        let recorder = self.check_hash(key.key_hash())?;
        let result = self.run_to_write(1, |table| table.modify(key, change))??;
        match (recorder, &result) {
            (Some(recorder), Some(_)) => self.record_change(recorder, key),
            (Some(recorder), None) => recorder.record(Access::Get, key, None, 0),
            (None, _) => {}
        }
        Ok(result)
    }

    /// [`Table::touch`].
    #[inline(never)]
    pub(crate) fn touch_watched<Q: Lookup<K> + ?Sized, R>(
        &self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        let recorder = self.check_hash(key.key_hash())?;
        let touched = self.run_to_write(1, |table| table.touch(key, change))??;
        if let Some(recorder) = recorder {
            recorder.record(Access::Get, key, None, 0);
        }
        Ok(touched)
    }

    /// [`Table::take`].
    #[inline(never)]
    pub(crate) fn take_watched<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<Option<V>> {
        let recorder = self.check_hash(key.key_hash())?;
        let taken = self.enter_to_write(1)?.take(key)?;
        if let Some(recorder) = recorder {
            recorder.record(Access::Get, key, None, 0);
            recorder.record(Access::Delete, key, None, 0);
        }
        Ok(taken)
    }

    /// [`Table::remove`].
    #[inline(never)]
    pub(crate) fn remove_watched<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<bool> {
        let recorder = self.check_hash(key.key_hash())?;
        let removed = self.enter_to_write(1)?.remove(key)?;
        if let Some(recorder) = recorder {
            recorder.record(Access::Delete, key, None, 0);
        }
        Ok(removed)
    }

    /// [`Table::put`].
    #[inline(never)]
    pub(crate) fn put_watched(
        &self,
        key: K,
        value: V,
    ) -> std::result::Result<bool, Rejected<(K, V)>> {
        match self.check_hash(key.key_hash()) {
            Ok(recorder) => self.put_and_record(recorder, key, value),
            Err(error) => Err(Rejected::new(error, (key, value))),
        }
    }
}

impl<K: Key, V: 'static, T: Table<K, V>> MapCell<K, V, T> {
    /// Writes the line of a read that [found](crate::cells::state_cell::StateCell::count_read) that the state is recorded. It counts again,
    /// finds no trace, and reads.
    pub(crate) fn record_apart<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Result<()> {
        let recorder = self.count_recorded(1);
        self.look()?;
        if let Some(recorder) = recorder {
            recorder.record(Access::Get, key, None, 0);
        }
        self.pass_next_read();
        Ok(())
    }

    /// Writes the lines of a change that was made. The value is in memory, unless other changes of its batch
    /// have moved it out; then its heap is left out.
    #[inline(never)]
    fn record_change<Q: Lookup<K> + ?Sized>(&self, recorder: &Recorder, key: &Q) {
        let Some(word) = recorder.word(key, None) else { return };
        let measured = self.look().and_then(|table| match table.peek(key) {
            Peek::Resident(value) => Ok(self.ways()?.bytes_of(value)),
            Peek::Absent | Peek::Unknown => Ok(size_of::<V>() as u64),
        });
        // Nobody else is inside between two calls of the handle.
        let bytes = measured.unwrap_or(size_of::<V>() as u64);
        recorder.write(word, &[(Access::Get, 0), (Access::Put, bytes)]);
    }

    fn put_and_record(
        &self,
        recorder: Option<&Recorder>,
        key: K,
        value: V,
    ) -> std::result::Result<bool, Rejected<(K, V)>> {
        let line = recorder.and_then(|recorder| {
            let (word, ways) = (recorder.word(&key, None)?, self.ways().ok()?);
            Some((recorder, word, ways.bytes_of(&value)))
        });
        let was_there = match self.enter_to_write(1) {
            Ok(mut table) => table.put(key, value)?,
            Err(error) => return Err(Rejected::new(error, (key, value))),
        };
        if let Some((recorder, word, bytes)) = line {
            recorder.write(word, &[(Access::Put, bytes)]);
        }
        Ok(was_there)
    }

    /// [`Table::put_batch`], one entry after the other.
    #[cold]
    #[inline(never)]
    pub(crate) fn put_batch_recorded(
        &self,
        recorder: &Recorder,
        batch: &mut Vec<(K, V)>,
    ) -> Result<()> {
        let mut rest = std::mem::take(batch).into_iter();
        while let Some((key, value)) = rest.next() {
            if let Err(Rejected { error, value, .. }) =
                self.put_and_record(Some(recorder), key, value)
            {
                batch.push(value);
                batch.extend(rest);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes the lines of the items of a batch that were applied. Each has the value as the whole batch left it.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_batch<I, Q: Lookup<K> + ?Sized>(
        &self,
        recorder: &Recorder,
        batch: &[I],
        key: impl Fn(&I) -> &Q,
        done: &std::result::Result<(), BatchError>,
    ) {
        let applied = done.as_ref().err().map_or(batch.len(), |error| error.applied);
        batch.iter().take(applied).for_each(|item| self.record_change(recorder, key(item)));
    }
}
