//! Taking a value out, from memory, storage or both. Where there may be copies in the runs, a tombstone is put
//! first.

use alluvium_pagestore::{ErrorKind, Key, Lookup, Result, State};

use super::HybridLogTable;
use crate::hybrid_log::index::{IndexHash, Position};
use crate::hybrid_log::log::RecordLocation;

impl<K: Key, V: State> HybridLogTable<K, V> {
    #[inline(always)]
    pub(super) fn take_resident(&mut self, at: Position, number: u32, slot: u32) -> V {
        let (_, value, _) = match self.core.log.is_kept(number, slot) {
            true => self.core.copy(number, slot),
            false => self.core.take(number, slot),
        };
        self.core.log.index.remove(at);
        value
    }

    /// Takes a value of which there may be copies in the runs.
    #[cold]
    #[inline(never)]
    pub(super) fn take_and_bury<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
    ) -> Result<Option<V>> {
        let prepared = self.prepare_to_bury(key.key_hash());
        let taken = match self.core.locate_again(hash, key) {
            RecordLocation::Absent => self.take_from_runs(key),
            RecordLocation::Resident { .. } => self.take_buried(hash, key),
            RecordLocation::Cold => self.take_cold(hash, key),
        };
        match (taken, prepared) {
            // There is no room for a tombstone, since storage takes none.
            (Err(error), Err(cause)) if error.kind() == ErrorKind::OverBudget => Err(cause),
            (taken, _) => taken,
        }
    }

    /// Takes a value that has an index entry, and of which there may be copies in the runs.
    #[cold]
    fn take_buried<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
    ) -> Result<Option<V>> {
        self.bury(key)?;
        // Reading may have made room, which moves records.
        match self.core.locate_again(hash, key) {
            RecordLocation::Resident { at, number, slot } => {
                Ok(Some(self.take_resident(at, number, slot)))
            }
            RecordLocation::Cold => self.take_cold(hash, key),
            RecordLocation::Absent => unreachable!("to bury a key takes no entry out of the index"),
        }
    }

    /// Takes a value that is not in memory.
    #[cold]
    #[inline(never)]
    pub(super) fn take_cold<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
    ) -> Result<Option<V>> {
        self.core.log.make_headroom()?;
        let Some((mut at, place, _, value)) = self.read_cold_in_room(hash, key, None)? else {
            return self.take_from_runs(key);
        };
        if self.core.log.cold.is_some() {
            self.bury(key)?;
            let mut candidates = (0..).map_while(|nth| self.core.log.candidate(hash, nth));
            let Some((found, _)) = candidates.find(|(_, at)| *at == place) else {
                // Making room for a guide has let a rewriter's step end: the record is elsewhere.
                return self.take_cold(hash, key);
            };
            at = found;
        }
        self.core.log.stored.as_mut().expect("a store").record_died(place);
        self.core.log.index.remove(at);
        Ok(Some(value))
    }
}
