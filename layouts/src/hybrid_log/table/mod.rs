//! The hybrid log as a table: keys to values.
//!
//! Every call follows one pattern: hash, look in memory, and only if that does not settle it make
//! room, look again (making room moves records) and read storage. A changed record that is not in
//! a mutable frame moves to the fill frame: its value is moved, or cloned while its page is being
//! written. One that a checkpoint is yet to have is cloned there too.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use alluvium_pagestore::io::Waker;
use alluvium_pagestore::{
    EntryCodec, Error, ErrorKind, Key, Lookup, MemoryKind, Rejected, Result, State, Time,
    description_of,
};

use self::reaching::ValueLocation;
use super::config::HybridLog;
use super::core::{LogCore, VisitRecords};
use super::index::IndexHash;
use super::log::{NOWHERE, RecordLocation};
use super::typed_unsafe::TypedLog;
use crate::contract::by_hash::ByHash;
use crate::contract::expiry::{ExpiryPass, Touched};
use crate::contract::fetch::{Fetch, Ticket};
use crate::contract::loading::LoadRoom;
use crate::contract::table::{BatchError, Cursor, Layout, Peek, StateContext, Table};
use crate::contract::upkeep::{HasUpkeep, Upkeep};
use crate::support::record_type_unsafe::{ErasedTouched, RecordRun};

pub(super) mod batches;
mod by_hash;
mod changing;
pub(super) mod core;
pub(super) mod expiring;
pub(super) mod fetches;
mod loading;
mod passing;
mod putting;
mod reaching;
mod removing;
mod risen;
mod sought;
pub(super) mod typed_unsafe;

/// An open [`HybridLog`].
pub struct HybridLogTable<K: Key, V: State> {
    pub(super) core: TypedLog<K, V>,
    /// The value that the last cold `get` read, unless a write came after it.
    scratch: Option<Scratch<K, V>>,
    /// Tells when a value was touched last, if entries expire.
    last_touch: Option<Touched<V>>,
}

struct Scratch<K, V> {
    key: K,
    value: V,
    heap: u64,
}

impl<K: Key, V: State> fmt::Debug for HybridLogTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, account) = (self.core.log.index.len(), &self.core.log.account);
        write!(f, "HybridLogTable({}: {keys} keys, {account:?})", self.core.context.name)
    }
}

impl<K: Key, V: State> Layout<K, V> for HybridLog {
    type Table = HybridLogTable<K, V>;

    fn name(&self) -> &'static str {
        "hybrid-log"
    }

    fn value_description(&self) -> String {
        description_of::<V>()
    }

    fn codec(&self) -> Option<EntryCodec<K, V>> {
        Some(EntryCodec::new())
    }

    fn memory_limit(&self) -> Option<u64> {
        self.limit()
    }

    fn open(&self, context: StateContext) -> Result<Self::Table> {
        Ok(HybridLogTable { core: TypedLog::open(self, context)?, scratch: None, last_touch: None })
    }
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    #[inline(always)]
    pub(super) fn hash<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> IndexHash {
        self.core.log.index_hash(key.key_hash())
    }

    /// Forgets the value that the last cold `get` lent.
    #[inline(always)]
    fn drop_scratch(&mut self) {
        if self.scratch.is_some() {
            self.forget_scratch();
        }
    }

    #[cold]
    pub(super) fn forget_scratch(&mut self) {
        if let Some(scratch) = self.scratch.take() {
            self.core.log.account.release(MemoryKind::Values, scratch.heap);
        }
    }
}

impl<K: Key, V: State> Table<K, V> for HybridLogTable<K, V> {
    fn len(&self) -> u64 {
        self.core.log.len()
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>> {
        let hash = self.hash(key);
        let found = self.find(hash, key, &mut None)?;
        Ok(self.found(found))
    }

    fn peek<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Peek<'_, V> {
        let hash = self.hash(key);
        let found = match self.core.locate(hash, key) {
            RecordLocation::Absent if !self.core.log.may_be_in_runs(key.key_hash()) => {
                return Peek::Absent;
            }
            RecordLocation::Resident { number, slot, .. } => ValueLocation::Slot(number, slot),
            RecordLocation::Absent | RecordLocation::Cold
                if self.scratch.as_ref().is_some_and(|s| key.is(&s.key)) =>
            {
                ValueLocation::Scratch
            }
            RecordLocation::Absent | RecordLocation::Cold => return Peek::Unknown,
        };
        self.found(found).map_or(Peek::Absent, Peek::Resident)
    }

    #[inline]
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        self.drop_scratch();
        let hash = self.hash(key);
        if V::NO_HEAP {
            if let Some(value) = self.core.find_value(hash, key) {
                return Ok(change(value));
            }
        }
        self.update_hashed(hash, key, init, change, &mut None)
    }

    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.drop_scratch();
        if !V::NO_HEAP {
            self.core.log.make_headroom()?;
        }
        let slot = self.own(self.hash(key), key, &mut None)?;
        slot.map(|slot| self.change(slot, change)).transpose()
    }

    fn touch<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        self.drop_scratch();
        let hash = self.hash(key);
        if let RecordLocation::Resident { number, slot, .. } = self.core.locate(hash, key) {
            if self.core.log.is_in_place(number, slot) {
                self.core.change_in_place(number, slot);
                return Ok(Some(self.change_unchecked((number, slot), change)));
            }
            if self.core.log.oversize.is_seen() {
                // A record that a checkpoint still needs is copied.
                let record = self.core.log.frame(number).get(slot).expect("an indexed slot");
                let heap = record.heap_bytes();
                self.core.log.make_free((heap, "a copy of a value for a checkpoint"))?;
            }
        }
        if !V::NO_HEAP {
            self.core.log.make_headroom()?;
        }
        let slot = self.own(hash, key, &mut None)?;
        Ok(slot.map(|slot| self.change_unchecked(slot, change)))
    }

    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        self.drop_scratch();
        let hash = self.hash::<K>(&key);
        self.put_hashed(hash, key, value)
    }

    fn put_batch(&mut self, batch: &mut Vec<(K, V)>) -> Result<()> {
        self.drop_scratch();
        self.put_in_order(batch)
    }

    fn room_to_load(&mut self, more: u64) -> Option<LoadRoom> {
        self.core.log.room_to_load(size_of::<(K, V)>(), more)
    }

    fn load_batch(&mut self, batch: &mut Vec<(K, V)>, room: LoadRoom) -> Result<()> {
        self.drop_scratch();
        self.load_all(batch, room)
    }

    fn expect(&mut self, keys: u64) {
        self.core.log.expect(keys);
    }

    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        self.drop_scratch();
        let hash = self.hash(key);
        if self.core.log.cold.is_some() {
            return self.take_elsewhere(hash, key);
        }
        match self.core.locate(hash, key) {
            RecordLocation::Absent => Ok(None),
            RecordLocation::Resident { at, number, slot } => {
                Ok(Some(self.take_resident(at, number, slot)))
            }
            RecordLocation::Cold => self.take_elsewhere(hash, key),
        }
    }

    fn clear(&mut self) -> Result<()> {
        self.drop_scratch();
        self.core.clear()
    }

    fn scan(
        &mut self,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        self.guarded(visit, &mut |core, visit| core.scan_entries(cursor, fuel, visit))
    }

    fn visit_all(&mut self, visit: &mut dyn FnMut(&K, &V) -> Result<()>) -> Result<()> {
        self.guarded(visit, &mut |core, visit| core.visit_where_they_are(visit))
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, V>> {
        if self.core.knows_hashes() { Some(self) } else { None }
    }

    fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut init: impl FnMut(&T) -> V,
        mut change: impl FnMut(&T, &mut V),
    ) -> std::result::Result<(), BatchError> {
        self.drop_scratch();
        self.in_groups(batch, &key, |table, item, (hash, likely), read| {
            if V::NO_HEAP {
                if let Some(value) = table.core.value_at(likely, key(item)) {
                    change(item, value);
                    return Ok(());
                }
                // The first change of a record that is on storage.
                if let Some(value) = table.core.freshen_at(likely, key(item)) {
                    change(item, value);
                    return Ok(());
                }
                // Without a short cut to where it is likely to be there is hardly one elsewhere.
                if likely == NOWHERE || table.core.log.frames.is_short(likely) {
                    if let Some(value) = table.core.find_value(hash, key(item)) {
                        change(item, value);
                        return Ok(());
                    }
                }
            }
            table.update_hashed(hash, key(item), || init(item), |v| change(item, v), read)
        })
    }

    fn read_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        key: impl Fn(&T) -> &Q,
        mut read: impl FnMut(&T, Option<&V>),
    ) -> std::result::Result<(), BatchError> {
        self.in_groups(batch, &key, |table, item, (hash, _), ahead| {
            let found = table.find(hash, key(item), ahead)?;
            read(item, table.found(found));
            Ok(())
        })
    }

    fn has_storage(&self) -> bool {
        self.core.log.stored.is_some()
    }

    fn is_resident(&self) -> bool {
        let stored = self.core.log.stored.as_ref();
        stored.is_none_or(|stored| stored.live_records() == 0) && !self.has_cold()
    }

    fn fetch<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Fetch {
        let hash = self.hash(key);
        let located = self.core.locate(hash, key);
        if matches!(located, RecordLocation::Resident { .. })
            || self.scratch.as_ref().is_some_and(|scratch| key.is(&scratch.key))
        {
            return Fetch::Ready;
        }
        if matches!(located, RecordLocation::Absent) {
            return self.core.log.fetch_from_runs(key.key_hash());
        }
        let Some((_, place)) = self.core.log.candidate(hash, 0) else { return Fetch::Ready };
        self.core.log.stored.as_mut().expect("a stored record has a store").fetch(place)
    }

    fn fetched(&mut self, tell: &mut dyn FnMut(Ticket)) {
        if let Some(stored) = &mut self.core.log.stored {
            stored.fetched(tell);
        }
        if let Some(cold) = &mut self.core.log.cold {
            cold.fetched(tell);
        }
    }

    fn release(&mut self, ticket: Ticket) {
        if self.core.log.cold.as_mut().is_some_and(|cold| cold.release(ticket)) {
            return;
        }
        if let Some(stored) = &mut self.core.log.stored {
            stored.release_fetch(ticket);
        }
    }

    fn wake_with(&mut self, waker: Arc<Waker>) {
        if let Some(cold) = &mut self.core.log.cold {
            cold.wake_with(waker.clone());
        }
        if let Some(later) = &mut self.core.log.later {
            later.wake_with(waker.clone());
        }
        if let Some(stored) = &mut self.core.log.stored {
            stored.wake_with(waker);
        }
    }

    fn can_expire(&self) -> Result<()> {
        self.core.can_expire()
    }

    fn stamp_with(&mut self, touched: Touched<V>, now: Time) {
        self.last_touch = Some(touched);
        self.core.begin_expiring(ErasedTouched::new::<K, V>(touched), now);
    }

    fn live_for(&mut self, nanos: u64) {
        self.core.live_for(nanos);
    }

    fn expire(&mut self, pass: &mut ExpiryPass<V>, fuel: usize) -> Result<()> {
        self.core.expire_to(pass.to);
        // A cold tier may be behind.
        let to = pass.to;
        pass.to = to.min(self.core.expired_to());
        // While a checkpoint is taken nothing is removed that nobody asks for.
        if !self.core.is_capturing() {
            self.forget_scratch();
            let mut at = pass.cursor;
            let (mut removed, mut is_whole) = (0, true);
            self.core.expire_in_memory(
                &mut at,
                fuel,
                (&mut removed, &mut is_whole),
                &mut |record| pass.has_expired(record.get::<K, V>().1),
            );
            pass.cursor = at;
            pass.removed += removed;
            pass.is_whole &= is_whole;
        }
        pass.to = to;
        Ok(())
    }
}

impl<K: Key, V: State> HasUpkeep for HybridLogTable<K, V> {
    fn upkeep(&self) -> &dyn Upkeep {
        self.core.as_upkeep()
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        self.drop_scratch();
        self.core.as_upkeep_mut()
    }
}

impl<K: Key, V: State> HybridLogTable<K, V> {
    /// Runs a scan. A panic of `visit` goes on once the reads under way have ended and their memory is
    /// given back.
    pub(super) fn guarded(
        &mut self,
        visit: &mut dyn FnMut(&K, &V) -> Result<()>,
        scan: &mut dyn FnMut(&mut LogCore, VisitRecords<'_>) -> Result<()>,
    ) -> Result<()> {
        self.core.clear_group();
        let mut panicked = None;
        let mut guarded = |run: &RecordRun<'_>| {
            let mut each = || run.native::<K, V>().try_for_each(|(key, value)| visit(key, value));
            catch_unwind(AssertUnwindSafe(&mut each)).unwrap_or_else(|panic| {
                panicked = Some(panic);
                Err(Error::new(ErrorKind::Poisoned, "the closure of a scan panicked"))
            })
        };
        let scanned = scan(&mut self.core, &mut guarded);
        match panicked {
            Some(panic) => resume_unwind(panic),
            None => scanned,
        }
    }
}
