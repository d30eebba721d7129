//! hashbrown with foldhash: native values in a hash table, all in memory.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::{Engine, Record, Said, digest_of};
use crate::Result;

/// A hash table.
#[derive(Debug)]
pub struct Hashbrown<V>(HashMap<u64, V, FixedState>);

impl<V> Default for Hashbrown<V> {
    fn default() -> Self {
        Hashbrown(HashMap::with_hasher(FixedState::default()))
    }
}

impl<V: Record> Engine<V> for Hashbrown<V> {
    #[inline]
    fn load(&mut self, key: u64) -> Result<()> {
        self.0.insert(key, V::new(key));
        Ok(())
    }

    #[inline(always)]
    fn update(&mut self, key: u64) -> Said {
        // Faster than the entry API, which makes room before it looks.
        match self.0.get_mut(&key) {
            Some(value) => Ok(value.touch()),
            None => Ok(self.0.entry(key).or_insert_with(|| V::new(key)).touch()),
        }
    }

    #[inline]
    fn update_batch(&mut self, keys: &[u64]) -> Result<()> {
        keys.iter().try_for_each(|&key| self.update(key).map(drop)).map_err(|error| *error)
    }

    fn checksum(&mut self) -> Result<(u64, u64)> {
        let digests = self.0.iter().map(|(&key, value)| digest_of(key, value));
        Ok((digests.fold(0, u64::wrapping_add), self.0.len() as u64))
    }
}
