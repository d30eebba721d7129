//! The heads of a bucket's lists, each a key and its elements in memory, in a table of the heap.
//!
//! [`ListHeads`] are compiled once: they know a key by its type's functions. An append reaches native
//! keys by [`NativeHeads`].
//!
//! What makes it sound: the table's records are a native key and an [`ElementChain`], and `chain_at` leads
//! from a record to its chain; both come from one [`HeadType`].

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use alluvium_pagestore::{Account, Key, Result};

use super::chain_unsafe::ElementChain;
use super::key_unsafe::{KeyRef, KeyType, OwnedKey, key_type};
use crate::heap::hash_range::HashRange;
use crate::heap::probing_unsafe::SlotHint;
use crate::heap::raw_table_unsafe::RawTable;
use crate::support::record_type_unsafe::{NativeEntry, RecordRef, RecordType};

/// Groups of a block: a walk reads the heads of a block at a time.
const GROUPS_MAX: usize = 8;

/// The types of heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadType {
    key: KeyType,
    record: &'static RecordType,
    chain_at: usize,
}

impl HeadType {
    /// That of heads whose keys are `K`.
    pub const fn of<K: Key>() -> Self {
        let chain_at = std::mem::offset_of!(NativeEntry<K, ElementChain>, value);
        Self { key: key_type::<K>(), record: RecordType::volatile::<K, ElementChain>(), chain_at }
    }

    /// The type of their keys.
    pub fn key(self) -> KeyType {
        self.key
    }
}

/// Takes the hash of a head, its key and its elements.
pub type VisitHead<'v, 'a> = &'v mut dyn FnMut(u64, KeyRef<'a>, &'a ElementChain);

/// A native head.
pub type ListHead<K> = NativeEntry<K, ElementChain>;

/// Heads that come and go.
pub struct ListHeads {
    table: RawTable,
    key: KeyType,
    /// From a record to its chain.
    chain_at: usize,
}

impl fmt::Debug for ListHeads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListHeads({})", self.table.len())
    }
}

impl ListHeads {
    /// No heads, whose keys may be of few of so many key groups.
    pub fn new(
        head_type: HeadType,
        account: &Rc<Account>,
        range: HashRange,
        few_of: Option<u16>,
    ) -> Self {
        let table = RawTable::new(head_type.record, account.clone(), range);
        let table = table.with_groups_max(GROUPS_MAX);
        let table = match few_of {
            Some(groups) => table.expect_few_of(groups),
            None => table,
        };
        Self { table, key: head_type.key, chain_at: head_type.chain_at }
    }

    pub fn len(&self) -> u64 {
        self.table.len()
    }

    /// Bytes booked for the table itself.
    pub fn memory_bytes(&self) -> u64 {
        self.table.memory_bytes()
    }

    /// The key of a head.
    #[inline]
    fn key<'a>(&self, head: RecordRef<'a>) -> KeyRef<'a> {
        // SAFETY: a head begins with a key of this type, which is there as long as the head is.
        unsafe { KeyRef::at(self.key, head.as_ptr()) }
    }

    /// The elements of a head.
    #[inline]
    fn chain<'a>(&self, head: RecordRef<'a>) -> &'a ElementChain {
        // SAFETY: a head has a chain there, as long as it is there itself.
        unsafe { &*head.as_ptr().add(self.chain_at).cast() }
    }

    /// The head of a key.
    pub fn find(&self, hash: u64, key: KeyRef<'_>) -> Option<(KeyRef<'_>, &ElementChain)> {
        let spot = self.table.find(hash, &mut |head| self.key(head) == key)?;
        let head = self.table.entry(spot)?;
        Some((self.key(head), self.chain(head)))
    }

    /// The elements of a key's head, to be changed.
    pub fn chain_mut(&mut self, hash: u64, key: KeyRef<'_>) -> Option<&mut ElementChain> {
        let spot = self.table.find(hash, &mut |head| self.key(head) == key)?;
        let head = self.table.entry_mut(spot)?;
        // SAFETY: a head has a chain there, and the table is borrowed as long.
        Some(unsafe { head.add(self.chain_at).cast().as_mut() })
    }

    /// Adds a key that is not there yet; says what heap it owns there.
    ///
    /// # Errors
    /// If the table cannot grow.
    pub fn insert(&mut self, hash: u64, key: KeyRef<'_>) -> Result<u64> {
        self.table.make_room(hash)?;
        let (key, heap) = (key.to_owned(), key.heap_bytes());
        // SAFETY: room was made; a key of the table's type and a chain are written at once.
        unsafe {
            let (head, _) = self.table.claim(hash);
            key.move_to(head.as_ptr());
            head.add(self.chain_at).cast().write(ElementChain::default());
        }
        Ok(heap)
    }

    /// Removes a key; its elements. `gone` is told the heap of the key, and what its elements are.
    pub fn remove(
        &mut self,
        hash: u64,
        key: KeyRef<'_>,
        gone: impl FnOnce(u64, &ElementChain),
    ) -> Option<ElementChain> {
        let spot = self.table.find(hash, &mut |head| self.key(head) == key)?;
        let heap = key.heap_bytes();
        // SAFETY: key and chain are taken out of the memory of a head, once each.
        unsafe {
            let (head, _) = self.table.remove(spot, hash)?;
            let chain = head.add(self.chain_at).cast::<ElementChain>().read();
            gone(heap, &chain);
            self.key.drop_entry(head.as_ptr());
            Some(chain)
        }
    }

    /// Visits the heads of the part at `place`, in no order; where the next part begins.
    pub fn visit_part<'a>(&'a self, place: u64, visit: VisitHead<'_, 'a>) -> Option<u64> {
        let (index, end) = self.table.part_at(place);
        for head in index.into_iter().flat_map(|index| self.table.entries_at(index)) {
            visit(head.hash(), self.key(head), self.chain(head));
        }
        end
    }

    /// The hashes of heads from `place` to `last`, those of the part at `place`, sorted; and where
    /// the next part begins, if that is not after `last`. What they take, the caller books: see
    /// [`hashes_bytes`](ListHeads::hashes_bytes).
    pub fn hashes_at(&self, place: u64, last: u64) -> (Vec<u64>, Option<u64>) {
        self.table.hashes_at(place, last)
    }

    /// Bytes of the hashes of the part at `place`.
    pub fn hashes_bytes(&self, place: u64) -> u64 {
        self.table.hashes_bytes(place)
    }

    /// The key of some head with this hash.
    pub fn first_of(&self, hash: u64) -> Option<OwnedKey> {
        let spot = self.table.find(hash, &mut |head| head.hash() == hash)?;
        self.table.entry(spot).map(|head| self.key(head).to_owned())
    }

    /// Takes all out, as heads that are only read. Cost: O(1).
    pub fn freeze(&mut self) -> FrozenHeads {
        let (key, chain_at) = (self.key, self.chain_at);
        FrozenHeads(ListHeads { table: self.table.detach(), key, chain_at })
    }

    /// Heads whose keys are `K`, to be read.
    ///
    /// # Safety
    /// They are.
    // SAFETY: the type of keys is the caller's promise.
    #[inline(always)]
    pub unsafe fn native<K: Key>(&self) -> ReadHeads<'_, K> {
        ReadHeads { table: &self.table, keys: PhantomData }
    }

    /// Heads whose keys are `K`.
    ///
    /// # Safety
    /// They are.
    // SAFETY: the type of keys is the caller's promise.
    #[inline(always)]
    pub unsafe fn native_mut<K: Key>(&mut self) -> NativeHeads<'_, K> {
        NativeHeads { table: &mut self.table, keys: PhantomData }
    }
}

/// Heads that do not change any more, and may go to other threads. What was booked for their table
/// [stays booked](ListHeads::memory_bytes): their owner gives it back.
#[derive(Debug)]
pub struct FrozenHeads(ListHeads);

// SAFETY: the table was detached: it has no account. Keys and chains are `Send`.
unsafe impl Send for FrozenHeads {}
// SAFETY: shared access only reads keys and chains, which are `Sync`.
unsafe impl Sync for FrozenHeads {}

impl Deref for FrozenHeads {
    type Target = ListHeads;

    #[inline]
    fn deref(&self) -> &ListHeads {
        &self.0
    }
}

/// Heads by native keys, to be read.
pub struct ReadHeads<'h, K> {
    table: &'h RawTable,
    keys: PhantomData<fn() -> K>,
}

impl<K> Clone for ReadHeads<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for ReadHeads<'_, K> {}

impl<'h, K: Key> ReadHeads<'h, K> {
    pub fn len(self) -> u64 {
        self.table.len()
    }

    /// Where the head with this hash probably is, which is fetched into the cache.
    #[inline(always)]
    pub fn look_ahead(self, hash: u64) -> SlotHint {
        // SAFETY: the records are heads of such keys.
        unsafe { self.table.look_ahead_native::<K, ElementChain>(hash, false) }
    }

    /// The elements of a head that is probably the one with this hash.
    #[inline(always)]
    pub fn at(self, hash: u64, near: SlotHint) -> Option<&'h ElementChain> {
        // SAFETY: the records are heads of such keys, and stay as long as the table is borrowed.
        let head = unsafe { self.table.near::<K, ElementChain>(hash, near)?.as_ref() };
        Some(&head.value)
    }
}

/// Heads by native keys.
pub struct NativeHeads<'h, K> {
    table: &'h mut RawTable,
    keys: PhantomData<fn() -> K>,
}

impl<'h, K: Key> NativeHeads<'h, K> {
    /// The head with this hash whose key `is` it; where it was looked ahead for, first.
    #[inline(always)]
    pub fn find(
        self,
        hash: u64,
        near: Option<SlotHint>,
        is: impl Fn(&K) -> bool,
    ) -> Option<&'h mut ListHead<K>> {
        let is = |head: &ListHead<K>| is(&head.key);
        // SAFETY: the records are heads of such keys, and the table is borrowed as long.
        unsafe {
            let found = match near {
                Some(near) => self.table.probe_near(hash, near, is),
                None => self.table.probe(hash, is),
            };
            Some(&mut *found?.entry.as_ptr())
        }
    }

    /// Adds a key that is not there yet.
    ///
    /// # Errors
    /// If the table cannot grow.
    #[inline]
    pub fn insert(self, hash: u64, key: K) -> Result<&'h mut ListHead<K>> {
        self.table.make_room(hash)?;
        // SAFETY: room was made; the records are heads of such keys, and one is written at once.
        unsafe {
            let mut head: NonNull<ListHead<K>> = self.table.claim(hash).0.cast();
            head.write(NativeEntry { key, value: ElementChain::default() });
            Ok(head.as_mut())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use alluvium_pagestore::hash_word;

    use super::*;

    fn heads<K: Key>(account: &Rc<Account>) -> ListHeads {
        ListHeads::new(HeadType::of::<K>(), account, HashRange::of(&(0..256), 256), Some(256))
    }

    /// Adds a key with erased or with native calls.
    fn add<K: Key>(heads: &mut ListHeads, hash: u64, key: K, erased: bool) {
        if erased {
            let heap = heads.insert(hash, KeyRef::of(&key)).unwrap();
            assert_eq!(heap, key.heap_bytes() as u64);
            return;
        }
        // SAFETY: the heads are of such keys.
        unsafe { heads.native_mut::<K>() }.insert(hash, key).unwrap();
    }

    /// Keys of a table, part by part, which are found where they are.
    fn walked<K: Key + Ord>(heads: &ListHeads) -> BTreeSet<K> {
        let (mut from, mut keys) = (Some(0), BTreeSet::new());
        while let Some(place) = from {
            let mut hashes = Vec::new();
            from = heads.visit_part(place, &mut |hash, key, chain| {
                let (found, same) = heads.find(hash, key).unwrap();
                assert!(found == key && std::ptr::eq(same, chain));
                assert!(keys.insert(key.native::<K>().clone()));
                hashes.push(hash);
            });
            hashes.sort_unstable();
            let (told, next) = heads.hashes_at(place, u64::MAX);
            assert_eq!((told, next), (hashes, from));
        }
        keys
    }

    fn answer_like_a_set<K: Key + Ord>(key_of: impl Fn(u64) -> K) {
        let account = Account::root(1 << 30);
        let (mut heads, mut model) = (heads::<K>(&account), BTreeSet::new());
        let steps = if cfg!(miri) { 400 } else { 20_000 };
        for n in 0..steps {
            let key = key_of(hash_word(n) % (steps / 10));
            let (hash, is_there) = (key.key_hash(), model.contains(&key));
            if n % 3 == 0 {
                let mut gone = None;
                let chain = heads.remove(hash, KeyRef::of(&key), |heap, _| gone = Some(heap));
                assert_eq!((chain.is_some(), gone.is_some()), (is_there, is_there));
                assert!(gone.is_none_or(|heap| heap == key.heap_bytes() as u64));
                model.remove(&key);
            } else if !is_there {
                add(&mut heads, hash, key.clone(), n % 2 == 0);
                model.insert(key.clone());
            }
            // SAFETY: the heads are of such keys.
            let near = unsafe { heads.native::<K>() }.look_ahead(hash);
            let is_there = model.contains(&key);
            assert_eq!(heads.find(hash, KeyRef::of(&key)).is_some(), is_there);
            assert_eq!(heads.chain_mut(hash, KeyRef::of(&key)).is_some(), is_there);
            for near in [None, Some(near)] {
                // SAFETY: the heads are of such keys.
                let native = unsafe { heads.native_mut::<K>() };
                assert_eq!(native.find(hash, near, |known| *known == key).is_some(), is_there);
            }
        }
        assert_eq!(heads.len(), model.len() as u64);
        assert!(model.iter().all(|key| heads.first_of(key.key_hash()).is_some()));
        let booked = heads.memory_bytes();
        let frozen = heads.freeze();
        assert_eq!((heads.len(), heads.memory_bytes(), account.used()), (0, 0, booked));
        std::thread::spawn(move || assert!(walked::<K>(&frozen) == model)).join().unwrap();
        assert_eq!(account.used(), booked);
    }

    #[test]
    fn heads_of_any_keys_answer_like_a_set() {
        answer_like_a_set(|n| n);
        answer_like_a_set(|n| n as u8);
        answer_like_a_set(|n| n.to_string());
        answer_like_a_set(|n| (n, [n; 5], n.to_string()));
        answer_like_a_set(|_| ());
    }
}
