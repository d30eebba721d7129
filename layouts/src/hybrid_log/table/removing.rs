//! Taking a value out, from memory, storage or both. Where there may be copies in the runs, a tombstone is put
//! first.

use alluvium_pagestore::{ErrorKind, Key, Lookup, Result, State};

use super::HybridLogTable;
use super::core::LogCore;
use super::sought::Sought;
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

    /// Takes a value that is not in memory, or of which there may be copies in the runs.
    #[cold]
    #[inline(never)]
    pub(super) fn take_elsewhere<Q: Lookup<K> + ?Sized>(
        &mut self,
        hash: IndexHash,
        key: &Q,
    ) -> Result<Option<V>> {
        let (is_there, taken) = self.seek(hash, key, LogCore::take_elsewhere);
        Ok(if is_there? { taken.map(|(_, value, _)| value) } else { None })
    }
}

/// Compiled once. These say whether the key was there: then its record is taken.
impl LogCore {
    fn take_elsewhere(&mut self, sought: &mut Sought<'_>) -> Result<bool> {
        match self.log.cold.is_some() {
            true => self.take_and_bury(sought),
            false => self.take_cold(sought),
        }
    }

    /// Takes a record of which there may be copies in the runs.
    fn take_and_bury(&mut self, sought: &mut Sought<'_>) -> Result<bool> {
        let prepared = self.prepare_to_bury(sought.whole_hash);
        let taken = match sought.locate(self) {
            RecordLocation::Absent => self.take_from_runs(sought),
            RecordLocation::Resident { .. } => self.take_buried(sought),
            RecordLocation::Cold => self.take_cold(sought),
        };
        match (taken, prepared) {
            // There is no room for a tombstone, since storage takes none.
            (Err(error), Err(cause)) if error.kind() == ErrorKind::OverBudget => Err(cause),
            (taken, _) => taken,
        }
    }

    /// Takes a record that has an index entry, and of which there may be copies in the runs.
    fn take_buried(&mut self, sought: &mut Sought<'_>) -> Result<bool> {
        self.bury(sought)?;
        // Reading may have made room, which moves records.
        match sought.locate(self) {
            RecordLocation::Resident { at, number, slot } => {
                sought.record.take(self, (number, slot));
                self.log.index.remove(at);
                Ok(true)
            }
            RecordLocation::Cold => self.take_cold(sought),
            RecordLocation::Absent => unreachable!("to bury a key takes no entry out of the index"),
        }
    }

    /// Takes a record that is not in memory.
    fn take_cold(&mut self, sought: &mut Sought<'_>) -> Result<bool> {
        self.log.make_headroom()?;
        let Some((mut at, place, _)) = self.read_cold_in_room(sought, None)? else {
            return self.take_from_runs(sought);
        };
        if self.log.cold.is_some() {
            self.bury(sought)?;
            let mut candidates = (0..).map_while(|nth| self.log.candidate(sought.hash, nth));
            let Some((found, _)) = candidates.find(|(_, at)| *at == place) else {
                // Making room for a guide has let a rewriter's step end: the record is elsewhere.
                return self.take_cold(sought);
            };
            at = found;
        }
        self.log.stored.as_mut().expect("a store").record_died(place);
        self.log.index.remove(at);
        Ok(true)
    }
}
