//! An ordered set of keys beside a store that has no order: how users of hash tables visit ranges.

use std::collections::BTreeSet;

/// Keys in order; keeps nothing if ranges are not asked for.
#[derive(Debug, Default)]
pub struct Directory(Option<BTreeSet<Box<[u8]>>>);

impl Directory {
    /// One that keeps keys if `ranges`.
    pub fn new(ranges: bool) -> Self {
        Directory(ranges.then(BTreeSet::new))
    }

    /// Notes that a key is there.
    #[inline]
    pub fn insert(&mut self, key: &[u8]) {
        if let Some(keys) = &mut self.0
            && !keys.contains(key)
        {
            keys.insert(key.into());
        }
    }

    /// Notes that a key is gone.
    #[inline]
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(keys) = &mut self.0 {
            keys.remove(key);
        }
    }

    /// The keys from one to another, both included.
    pub fn range(&self, from: &[u8], to: &[u8]) -> impl Iterator<Item = &[u8]> {
        let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Included(to));
        let keys = self.0.iter().flat_map(move |keys| keys.range::<[u8], _>(bounds));
        keys.map(|key| &key[..])
    }
}
