//! One value that expires.

use std::marker::PhantomData;

use alluvium_layouts::Layout;
use alluvium_pagestore::{Rejected, Result, State, Time};

use super::{ExpiringMap, Timed};
use crate::backend::any_layout::AnyLayout;
use crate::cells::state_cell::ValueRef;

/// Type parameter of a [`StateBuilder`](crate::states::StateBuilder) for [`ExpiringValue`].
#[derive(Debug)]
pub struct ExpiringValueOf<V>(PhantomData<V>);

/// One value that expires some time after it was last touched. Open one with
/// [`Store::expiring_value`](crate::Store::expiring_value).
///
/// ```
/// use std::time::Duration;
/// use alluvium::{SECOND, Store, Time, Ttl};
///
/// let store = Store::in_memory().open()?;
/// let ttl = Ttl::event_time(Duration::from_secs(60));
/// let mut rate = store.expiring_value::<u64>("rate").open(ttl)?;
/// rate.advance(Time(0))?;
/// rate.set(42)?;
/// rate.advance(Time(60 * SECOND))?;
/// assert!(rate.get()?.is_none());
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Debug)]
pub struct ExpiringValue<V: State, L: Layout<(), Timed<V>> = AnyLayout>(
    pub(crate) ExpiringMap<(), V, L>,
);

impl<V: State, L: Layout<(), Timed<V>>> ExpiringValue<V, L> {
    /// Advances the state's time; see [`ExpiringMap::advance`].
    ///
    /// # Errors
    /// Those of [`ExpiringMap::advance`].
    pub fn advance(&mut self, to: Time) -> Result<()> {
        self.0.advance(to)
    }

    /// Returns the value, unless it has expired.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](crate::Map#errors-of-calls).
    pub fn get(&mut self) -> Result<Option<ValueRef<'_, V>>> {
        self.0.get(&())
    }

    /// Sets the value. An error returns it.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](crate::Map#errors-of-calls).
    pub fn set(&mut self, value: V) -> std::result::Result<(), Rejected<V>> {
        self.0
            .put((), value)
            .map(drop)
            .map_err(|rejected| Rejected::new(rejected.error, rejected.value.1))
    }

    /// Changes the value in place. Inserts `init()` first if it is absent or expired.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](crate::Map#errors-of-calls).
    pub fn update<R>(
        &mut self,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.0.update(&(), init, change)
    }

    /// Removes and returns the value, unless it has expired.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](crate::Map#errors-of-calls).
    pub fn take(&mut self) -> Result<Option<V>> {
        self.0.take(&())
    }

    /// Removes the value.
    ///
    /// # Errors
    /// As for the same call of a [`Map`](crate::Map#errors-of-calls).
    pub fn clear(&mut self) -> Result<()> {
        self.0.clear()
    }

    /// Returns whether a closure has panicked in this state since it was opened or last cleared.
    pub fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    /// Allows checkpoints again after a closure has panicked.
    pub fn clear_poison(&mut self) {
        self.0.clear_poison();
    }
}
