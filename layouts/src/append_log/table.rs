//! Lists kept in an append log: what callers see, by the types of keys and elements. All but appending and reading a chunk
//! is done by a [`ListsCore`].

use std::ops::{Range, RangeInclusive};

use alluvium_pagestore::{Key, Lookup, Rejected, Result, State, Time};

use super::block::{ListElements, ListType, NativeList};
use super::config::AppendLog;
use super::core::ListsCore;
use super::element_type_unsafe::ElementSlice;
use super::key_unsafe::KeyRef;
use super::typed_unsafe::TypedLists;
use crate::contract::by_hash::{ByHash, VisitRun};
use crate::contract::lists::{Elements, Lists, ListsLayout};
use crate::contract::table::{Cursor, StateContext};
use crate::contract::upkeep::{HasUpkeep, Upkeep};

/// An open [`AppendLog`].
pub struct AppendLogLists<K, E> {
    pub(super) core: TypedLists<K, E>,
}

impl<K, E> std::fmt::Debug for AppendLogLists<K, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.core.fmt(f)
    }
}

impl<K: Key, E: State> AppendLogLists<K, E> {
    /// Packed slices, and pages of them, that were looked at one by one, to find out whether more has room beside them:
    /// for tests.
    #[doc(hidden)]
    pub fn packed_looked_at(&self) -> u64 {
        self.core.packed.as_ref().map_or(0, |packed| packed.looked_at())
    }
}

impl<K: Key, E: State> ListsLayout<K, E> for AppendLog {
    type Lists = AppendLogLists<K, E>;

    fn name(&self) -> &'static str {
        super::LAYOUT
    }

    fn memory_limit(&self) -> Option<u64> {
        self.limit()
    }

    fn open_lists(&self, context: StateContext) -> Result<Self::Lists> {
        let core = ListsCore::open(self, ListType::of::<K, E>(), context)?;
        Ok(AppendLogLists { core: TypedLists::new(core) })
    }
}

impl<K: Key, E: State> Lists<K, E> for AppendLogLists<K, E> {
    fn fold_at_once(&mut self, span: i128) {
        self.core.fold_at_once(span);
    }

    #[inline]
    fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        self.core.append_found(bucket, (key.key_hash(), None), key, element)
    }

    fn append_batch(&mut self, batch: &mut Vec<(K, Time, E)>) -> Result<()> {
        self.core.append_all(batch)
    }

    fn stream<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        visit: &mut dyn FnMut(&mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()> {
        let native = &mut |list: ListElements<'_, '_>| visit(&mut NativeList::<E>::new(list));
        self.core.stream(bucket, KeyRef::of(&key.to_owned()), native)
    }

    fn clear_key<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, key: &Q) -> Result<()> {
        self.core.clear_list(bucket, KeyRef::of(&key.to_owned()))
    }

    fn relocate<Q: Lookup<K> + ?Sized>(&mut self, from: Time, to: Time, key: &Q) -> Result<()> {
        self.core.relocate_list(from, to, KeyRef::of(&key.to_owned()))
    }

    fn next_bucket(&self, from: Time) -> Option<Time> {
        self.core.next_bucket(from)
    }

    fn fold(
        &mut self,
        buckets: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()> {
        let native = &mut |key: KeyRef<'_>, list: ListElements<'_, '_>| {
            visit(key.native(), &mut NativeList::<E>::new(list))
        };
        self.core.fold(buckets, cursor, fuel, native)
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, E, Time>> {
        Some(self)
    }

    fn purge(&mut self, before: Time, _: usize) -> Result<bool> {
        self.core.purge(before)
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        self.core.prefetch(until)
    }

    fn len(&self) -> u64 {
        self.core.len()
    }
}

impl<K: Key, E: State> ByHash<K, E, Time> for AppendLogLists<K, E> {
    /// Visits lists in runs of as many elements as a value may have bytes, or one.
    fn visit_hashes(
        &mut self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: VisitRun<'_, K, E>,
    ) -> Result<()> {
        let native = &mut |key: KeyRef<'_>, before: u64, run: ElementSlice<'_>| {
            visit(key.native(), before, run.native())
        };
        self.core.visit_hashes(bucket, hashes, cursor, fuel, native)
    }

    fn remove_hashes(
        &mut self,
        bucket: Time,
        hashes: &RangeInclusive<u64>,
        cursor: &mut Cursor,
        fuel: usize,
    ) -> Result<usize> {
        self.core.remove_hashes(bucket, hashes, cursor, fuel)
    }
}

impl<K: Key, E: State> HasUpkeep for AppendLogLists<K, E> {
    fn upkeep(&self) -> &dyn Upkeep {
        self.core.as_upkeep()
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self.core.as_upkeep_mut()
    }
}
