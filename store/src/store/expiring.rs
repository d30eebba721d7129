//! Opening state whose entries expire.

use alluvium_layouts::Layout;
use alluvium_pagestore::{Key, Result, State, Time, description_of};

use super::opening::manifest;
use super::{StateBuilder, Store};
use crate::api::expiring::{
    ExpiringMap, ExpiringMapOf, ExpiringValue, ExpiringValueOf, Lifetime, Timed, Ttl, TtlRules,
};
use crate::cells::cell_handle::CellHandle;
use crate::durability::moving::Mover;

impl Store {
    /// The map `name`, whose entries expire.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use alluvium::{SECOND, Store, Time, Ttl};
    /// let store = Store::in_memory().open()?;
    /// let ttl = Ttl::event_time(Duration::from_secs(30));
    /// let mut seen = store.expiring_map::<u64, u32>("seen").open(ttl)?;
    /// seen.advance(Time(100 * SECOND))?;
    /// seen.update(&7, || 0, |times| *times += 1)?;
    /// seen.advance(Time(130 * SECOND - 1))?;
    /// assert_eq!(seen.get(&7)?.as_deref(), Some(&1));
    /// seen.advance(Time(130 * SECOND))?;
    /// assert_eq!(seen.get(&7)?.as_deref(), None);
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    pub fn expiring_map<K: Key, V: 'static>(
        &self,
        name: &str,
    ) -> StateBuilder<'_, ExpiringMapOf<K, V>> {
        StateBuilder::new(self, name)
    }

    /// Returns a builder for the single value `name`, which expires.
    pub fn expiring_value<V: State>(&self, name: &str) -> StateBuilder<'_, ExpiringValueOf<V>> {
        StateBuilder::new(self, name)
    }

    /// The time of the state `name`, a state of its own.
    fn open_lifetime(
        &self,
        name: &str,
        ttl: Ttl,
        mover: Option<&Mover>,
    ) -> Result<CellHandle<Lifetime>> {
        let (state, name) = (name, format!("{name}/time"));
        let types = (description_of::<()>(), description_of::<crate::api::expiring::TimesSeen>());
        let manifest = manifest(&name, "progress", "heap", types);
        if let Some(left) = self.0.left::<Lifetime>(&manifest, None)? {
            left.go_on(ttl)?;
            return Ok(left);
        }
        let mut opening = self.0.begin_opening(manifest, None, None)?;
        opening.go_along_with(mover);
        let (is_own, stored) = self.0.stored(&name);
        let over = match (is_own, stored, &self.0.sources) {
            (true, stored, _) => stored.and_then(|stored| stored.over),
            (false, Some(_), Some(sources)) => sources.over(&name),
            _ => None,
        };
        let rules = TtlRules {
            ttl,
            nanos: ttl.nanos()?,
            clock: ttl.by_clock().then(|| self.0.clock.clone()),
            jump_max: self.0.config.time_jump_max_nanos(),
            over: over.unwrap_or(Time::MIN),
        };
        let opened = Lifetime::open(state, rules, opening.context().clone());
        let lifetime = opened.map_err(|e| e.with("state", &name))?;
        opening.take_parts(0, &mut |part| part.read(|part| lifetime.take(part)))?;
        Ok(opening.register(lifetime))
    }
}

impl<P, L> StateBuilder<'_, P, L> {
    fn open_expiring<K: Key, V: 'static>(
        self,
        primitive: &str,
        ttl: Ttl,
    ) -> Result<ExpiringMap<K, V, L>>
    where
        L: Layout<K, Timed<V>>,
    {
        ttl.nanos().map_err(|e| e.with("state", self.name()))?;
        let (store, name, mover) = (self.store(), self.name().to_owned(), self.mover().cloned());
        let primitive = format!("{primitive} expiring in {}", ttl.kind());
        let mut opened = None;
        let map = self.open_map_with(&primitive, Some(Timed::touched), &mut || {
            let lifetime = store.open_lifetime(&name, ttl, mover.as_ref())?;
            opened = Some(lifetime.clone());
            Ok(Some(lifetime))
        })?;
        Ok(ExpiringMap::new(map, opened.expect("opened with the map")))
    }
}

impl<K, V, L> StateBuilder<'_, ExpiringMapOf<K, V>, L> {
    /// As for a map. Its time goes with each group: where that comes, what was over is over. While a
    /// group is being given away, reads that refresh its entries are refused like writes.
    #[must_use]
    pub fn moved_by(self, mover: &Mover) -> Self {
        self.in_unit_of(mover)
    }
}

impl<K: Key, V: 'static, L: Layout<K, Timed<V>>> StateBuilder<'_, ExpiringMapOf<K, V>, L> {
    /// Opens the map and restores it from the last checkpoint. The time to live may differ from
    /// before: it applies to all entries that have not expired.
    ///
    /// # Errors
    /// As for a map. [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) also for a state that
    /// expires in another kind of time, or not at all.
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a time to live of 0, or of 292 years or
    /// more. [`ErrorKind::Input`](crate::ErrorKind::Input) if the clock, or the time of a store
    /// whose keys are taken over, is further ahead than
    /// [`StoreConfig::time_jump_max_ms`](crate::StoreConfig::time_jump_max_ms).
    pub fn open(self, ttl: Ttl) -> Result<ExpiringMap<K, V, L>> {
        self.open_expiring("map", ttl)
    }
}

impl<V: State, L: Layout<(), Timed<V>>> StateBuilder<'_, ExpiringValueOf<V>, L> {
    /// Opens the value; errors as for a map whose entries expire.
    pub fn open(self, ttl: Ttl) -> Result<ExpiringValue<V, L>> {
        self.open_expiring("value", ttl).map(ExpiringValue)
    }
}
