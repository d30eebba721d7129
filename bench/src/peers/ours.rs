//! Our own map, through the public API.

use alluvium::Map;

use super::{Engine, Record, Said, digest_of};
use crate::{Error, Result};

/// A map of a store.
#[derive(Debug)]
pub struct Ours<V: Record>(pub Map<u64, V>);

impl<V: Record> Engine<V> for Ours<V> {
    #[inline]
    fn load(&mut self, key: u64) -> Result<()> {
        self.0.put(key, V::new(key)).map_err(|rejected| Error::Store(rejected.error))?;
        Ok(())
    }

    #[inline(always)]
    fn update(&mut self, key: u64) -> Said {
        self.0.update(&key, || V::new(key), V::touch).map_err(|error| Box::new(error.into()))
    }

    #[inline]
    fn update_batch(&mut self, keys: &[u64]) -> Result<()> {
        let done = self.0.update_batch(keys, |key| key, |&key| V::new(key), |_, v| _ = v.touch());
        Ok(done.map_err(alluvium::Error::from)?)
    }

    fn checksum(&mut self) -> Result<(u64, u64)> {
        let (mut sum, mut count) = (0u64, 0);
        self.0.for_each(|&key, value| {
            sum = sum.wrapping_add(digest_of(key, value));
            count += 1;
            Ok(())
        })?;
        Ok((sum, count))
    }
}
