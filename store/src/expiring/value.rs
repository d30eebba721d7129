//! One value that expires.

use std::marker::PhantomData;

use alluvium_layouts::Layout;
use alluvium_pagestore::{Rejected, Result, State, Time};

use super::{ExpiringMap, Timed};
use crate::any_layout::AnyLayout;
use crate::state_cell::ValueRef;

/// The primitive of [`ExpiringValue`].
#[derive(Debug)]
pub struct ExpiringValueOf<V>(PhantomData<V>);

/// One value that expires a time after it was touched last. Open one with
/// [`Store::expiring_value`](crate::Store::expiring_value).
#[derive(Debug)]
pub struct ExpiringValue<V: State, L: Layout<(), Timed<V>> = AnyLayout>(
    pub(crate) ExpiringMap<(), V, L>,
);

impl<V: State, L: Layout<(), Timed<V>>> ExpiringValue<V, L> {
    /// Tells the time; see [`ExpiringMap::advance`].
    ///
    /// # Errors
    /// Those of [`ExpiringMap::advance`].
    pub fn advance(&mut self, to: Time) -> Result<()> {
        self.0.advance(to)
    }

    /// The value, unless it is over.
    pub fn get(&mut self) -> Result<Option<ValueRef<'_, V>>> {
        self.0.get(&())
    }

    /// Sets the value; on an error it comes back.
    pub fn set(&mut self, value: V) -> std::result::Result<(), Rejected<V>> {
        self.0
            .put((), value)
            .map(drop)
            .map_err(|rejected| Rejected::new(rejected.error, rejected.value.1))
    }

    /// Changes the value in place, after setting it to `init()` if it is absent or over.
    pub fn update<R>(
        &mut self,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.0.update(&(), init, change)
    }

    /// Removes and returns the value, unless it is over.
    pub fn take(&mut self) -> Result<Option<V>> {
        self.0.take(&())
    }

    /// Removes the value.
    pub fn clear(&mut self) -> Result<()> {
        self.0.clear()
    }
}
