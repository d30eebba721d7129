//! Calls on a map that is recorded. Each of them is compiled once for a type of map and key: the caller's
//! closures are called by pointer.

use alluvium_layouts::{BatchError, Table};
use alluvium_pagestore::{Key, Lookup, Rejected, Result};

use super::{Access, Recorder};
use crate::cells::MapCell;

impl<K: Key, V: 'static, T: Table<K, V>> MapCell<K, V, T> {
    /// [`Table::update`].
    #[cold]
    #[inline(never)]
    pub(crate) fn update_recorded<Q: Lookup<K> + ?Sized, R>(
        &self,
        recorder: &Recorder,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        let (mut init, mut change, mut result) = (Some(init), Some(change), None);
        self.record_update(
            recorder,
            key,
            &mut || (init.take().expect("a value is begun once"))(),
            &mut |value| result = change.take().map(|change| change(value)),
        )?;
        Ok(result.expect("a change that succeeds is made"))
    }

    fn record_update<Q: Lookup<K> + ?Sized>(
        &self,
        recorder: &Recorder,
        key: &Q,
        init: &mut dyn FnMut() -> V,
        change: &mut dyn FnMut(&mut V),
    ) -> Result<()> {
        let (ways, mut bytes) = (self.ways()?, 0);
        let measured = |value: &mut V| {
            change(value);
            bytes = ways.bytes_of(value);
        };
        self.run_to_write(1, |table| table.update(key, init, measured))??;
        if let Some(word) = recorder.word(key, None) {
            recorder.write(word, &[(Access::Get, 0), (Access::Put, bytes)]);
        }
        Ok(())
    }

    /// [`Table::modify`].
    #[cold]
    #[inline(never)]
    pub(crate) fn modify_recorded<Q: Lookup<K> + ?Sized, R>(
        &self,
        recorder: &Recorder,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        let (mut change, mut result) = (Some(change), None);
        self.record_modify(recorder, key, &mut |value| {
            result = change.take().map(|change| change(value));
        })?;
        Ok(result)
    }

    fn record_modify<Q: Lookup<K> + ?Sized>(
        &self,
        recorder: &Recorder,
        key: &Q,
        change: &mut dyn FnMut(&mut V),
    ) -> Result<()> {
        let ways = self.ways()?;
        let measured = |value: &mut V| {
            change(value);
            ways.bytes_of(value)
        };
        let bytes = self.run_to_write(1, |table| table.modify(key, measured))??;
        if let Some(word) = recorder.word(key, None) {
            let accesses = [(Access::Get, 0), (Access::Put, bytes.unwrap_or(0))];
            recorder.write(word, if bytes.is_some() { &accesses } else { &accesses[..1] });
        }
        Ok(())
    }

    /// [`Table::put`].
    #[cold]
    #[inline(never)]
    pub(crate) fn put_recorded(
        &self,
        recorder: &Recorder,
        key: K,
        value: V,
    ) -> std::result::Result<bool, Rejected<(K, V)>> {
        let ways = match self.ways() {
            Ok(ways) => ways,
            Err(error) => return Err(Rejected::new(error, (key, value))),
        };
        let (word, bytes) = (recorder.word(&key, None), ways.bytes_of(&value));
        let was_there = match self.enter_to_write(1) {
            Ok(mut table) => table.put(key, value)?,
            Err(error) => return Err(Rejected::new(error, (key, value))),
        };
        if let Some(word) = word {
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
            if let Err(Rejected { error, value, .. }) = self.put_recorded(recorder, key, value) {
                batch.push(value);
                batch.extend(rest);
                return Err(error);
            }
        }
        Ok(())
    }

    /// [`Table::update_batch`], one item after the other.
    #[cold]
    #[inline(never)]
    pub(crate) fn update_batch_recorded<I, Q: Lookup<K> + ?Sized>(
        &self,
        recorder: &Recorder,
        batch: &[I],
        key: impl Fn(&I) -> &Q,
        mut init: impl FnMut(&I) -> V,
        mut change: impl FnMut(&I, &mut V),
    ) -> std::result::Result<(), BatchError> {
        for (applied, item) in batch.iter().enumerate() {
            let (init, change) = (&mut || init(item), &mut |value: &mut V| change(item, value));
            let done = self.record_update(recorder, key(item), init, change);
            done.map_err(|error| BatchError { applied, error })?;
        }
        Ok(())
    }
}
