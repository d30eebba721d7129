//! Hash table of byte vectors, the upper limit of what a store of bytes can be.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::{Directory, Engine, See, Visit};
use crate::Result;
use crate::value::{Sums, sums, sums_bytes};

/// Values by key.
#[derive(Debug, Default)]
pub(super) struct Hash {
    values: HashMap<Vec<u8>, Vec<u8>, FixedState>,
    keys: Directory,
}

impl Hash {
    pub(super) fn new(ranges: bool) -> Self {
        Hash { values: HashMap::default(), keys: Directory::new(ranges) }
    }
}

impl Engine for Hash {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        see(self.values.get(key).map(Vec::as_slice));
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keys.insert(key);
        let place = self.values.entry_ref(key).or_default();
        place.clear();
        place.extend_from_slice(value);
        Ok(())
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.keys.insert(key);
        self.values.entry_ref(key).or_default().extend_from_slice(operand);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.keys.remove(key);
        self.values.remove(key);
        Ok(())
    }

    fn update(&mut self, key: &[u8], more: Sums, see: See<'_>) -> Result<()> {
        self.keys.insert(key);
        match self.values.entry_ref(key) {
            hashbrown::hash_map::EntryRef::Occupied(mut place) => {
                let value = place.get_mut();
                see(Some(value));
                let [count, sum] = sums(value);
                value.clear();
                let now = [count.wrapping_add(more[0]), sum.wrapping_add(more[1])];
                value.extend_from_slice(&sums_bytes(now));
            }
            hashbrown::hash_map::EntryRef::Vacant(place) => {
                see(None);
                place.insert(sums_bytes(more).to_vec());
            }
        }
        Ok(())
    }

    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        for key in self.keys.range(from, to) {
            if let Some(value) = self.values.get(key) {
                visit(key, value);
            }
        }
        Ok(())
    }
}
