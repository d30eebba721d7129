//! A counter per key.

use std::rc::Rc;

use alluvium_layouts::Layout;
use alluvium_pagestore::{Key, Lookup, Result};

use crate::api::fetcher::Fetcher;
use crate::api::map::Map;
use crate::backend::any_layout::AnyLayout;

/// A signed counter per key; an absent key counts 0. Open one with [`Store::count`](crate::Store::count).
///
/// ```
/// use alluvium::{MIB, Store};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let mut words = store.count::<String>("words").open()?;
/// assert_eq!(words.add("be", 1)?, 1);
/// assert_eq!(words.add("be", 1)?, 2);
/// assert_eq!(words.get("question")?, 0);
/// assert_eq!(words.reset("be")?, 2);
/// assert_eq!(words.get("be")?, 0);
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Debug)]
pub struct Count<K: Key, L: Layout<K, i64> = AnyLayout>(pub(crate) Map<K, i64, L>);

impl<K: Key, L: Layout<K, i64>> Count<K, L> {
    /// Adds `amount`, saturating, and returns the new count.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    #[inline]
    pub fn add<Q: Lookup<K> + ?Sized>(&mut self, key: &Q, amount: i64) -> Result<i64> {
        self.0.update(
            key,
            || 0,
            |count| {
                *count = count.saturating_add(amount);
                *count
            },
        )
    }

    /// Returns the count of `key`.
    ///
    /// # Errors
    /// Those of [a read](Map#errors-of-calls).
    pub fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<i64> {
        self.0.read(key, |count| count.copied().unwrap_or(0))
    }

    /// Removes `key` and returns its count.
    ///
    /// # Errors
    /// Those of [a write](Map#errors-of-calls).
    pub fn reset<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<i64> {
        Ok(self.0.take(key)?.unwrap_or(0))
    }

    /// See [`Map::fetcher`].
    pub fn fetcher(&self) -> Rc<dyn Fetcher<K>> {
        self.0.fetcher()
    }

    /// Returns the counters as a map, for batches, scans and statistics.
    pub fn as_map(&mut self) -> &mut Map<K, i64, L> {
        &mut self.0
    }
}
