//! Keys whose type is erased: borrowed from where they stand, or owned.
//!
//! A key is known by the [`RecordType`] of itself and nothing, so its hash, comparison, clone, drop and heap bytes are one
//! indirect call. Heads have native keys; notes, early parts and merges, which are few, own theirs. Window segments keep
//! whole records in the same way, known by their own record type.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use alluvium_pagestore::{HeapSize, Key, KeyHash, rounded};

use super::record_type_unsafe::{NativeEntry, RecordRef, RecordType};

/// The type of keys, erased.
pub type KeyType = &'static RecordType;

/// That of keys `K`.
pub const fn key_type<K: Key>() -> KeyType {
    RecordType::key::<K>()
}

/// A key where it stands.
#[derive(Clone, Copy)]
pub struct KeyRef<'a>(RecordRef<'a>);

impl<'a> KeyRef<'a> {
    /// Of a native key.
    #[inline]
    pub fn of<K: Key>(key: &'a K) -> Self {
        const { assert!(size_of::<NativeEntry<K, ()>>() == size_of::<K>()) };
        // SAFETY: an entry of a key and `()` has the key first and nothing else; it is borrowed during `'a`.
        Self(unsafe { RecordRef::new(key_type::<K>(), std::ptr::from_ref(key).cast()) })
    }

    /// The key at a place.
    ///
    /// # Safety
    /// A key of this type is there, which is not changed or dropped during `'a`.
    // SAFETY: the key is the caller's to promise.
    #[inline(always)]
    pub unsafe fn at(key_type: KeyType, key: *const u8) -> Self {
        // SAFETY: as said above.
        Self(unsafe { RecordRef::new(key_type, key) })
    }

    /// A whole record, as if it were a key: its value goes with it.
    pub fn whole(record: RecordRef<'a>) -> Self {
        Self(record)
    }

    /// The key as a record, or the [whole](Self::whole) record.
    pub fn record(self) -> RecordRef<'a> {
        self.0
    }

    /// Whether it is of this type.
    pub fn is_of(self, key_type: KeyType) -> bool {
        self.0.record_type().is_like(key_type)
    }

    /// Bytes that an owned copy takes outside, with the heap that it owns.
    pub fn owned_bytes(self) -> u64 {
        OwnedKey::own_bytes(self.0.record_type()) + self.heap_bytes()
    }

    /// The native key.
    ///
    /// # Panics
    /// If it is of another type.
    #[inline]
    pub fn native<K: Key>(self) -> &'a K {
        self.0.key()
    }

    /// Heap that the key owns.
    pub fn heap_bytes(self) -> u64 {
        self.0.heap_bytes()
    }

    /// The key as a message names it.
    #[cold]
    pub fn text(self) -> String {
        self.0.key_text()
    }

    #[inline]
    pub fn key_hash(self) -> u64 {
        self.0.hash()
    }
}

impl PartialEq for KeyRef<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0.has_key_of(other.0)
    }
}

impl std::fmt::Debug for KeyRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

/// Memory of a short key, or where a longer one is.
union KeyStorage {
    short: MaybeUninit<[u64; 2]>,
    long: NonNull<u8>,
}

/// Whether keys of a type stand in the [`OwnedKey`] itself.
#[inline]
fn is_short(key_type: KeyType) -> bool {
    let layout = key_type.layout();
    layout.size() <= size_of::<[u64; 2]>() && layout.align() <= align_of::<u64>()
}

/// Whether a key is among others.
pub fn has(keys: &[OwnedKey], key: KeyRef<'_>) -> bool {
    keys.iter().any(|known| known.get() == key)
}

/// A key that is owned.
pub struct OwnedKey {
    key_type: KeyType,
    /// Of a short key the key itself, else memory that has it.
    place: KeyStorage,
}

// SAFETY: only records of types that are `Send` can be cloned, and the key is owned.
unsafe impl Send for OwnedKey {}
// SAFETY: they are `Sync` too, and shared access only reads the key.
unsafe impl Sync for OwnedKey {}

/// An [`OwnedKey`] in which there is no key: it gives its memory back.
struct Vacant(ManuallyDrop<OwnedKey>);

impl Vacant {
    fn new(key_type: KeyType) -> Self {
        let place = match is_short(key_type) {
            true => KeyStorage { short: MaybeUninit::uninit() },
            false => {
                let layout = key_type.layout();
                // SAFETY: a key that is not short has a size, or an alignment that its size is a multiple of.
                let long = unsafe { alloc(nonzero(layout)) };
                KeyStorage {
                    long: NonNull::new(long).unwrap_or_else(|| handle_alloc_error(layout)),
                }
            }
        };
        Self(ManuallyDrop::new(OwnedKey { key_type, place }))
    }

    /// The key was written.
    ///
    /// # Safety
    /// It was, to its place.
    // SAFETY: the key is the caller's to promise.
    unsafe fn filled(self) -> OwnedKey {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `self` is not used again.
        ManuallyDrop::into_inner(unsafe { std::ptr::read(&raw mut this.0) })
    }
}

impl Drop for Vacant {
    fn drop(&mut self) {
        if !is_short(self.0.key_type) {
            // SAFETY: it was allocated with this layout, and is not used again.
            unsafe { dealloc(self.0.place.long.as_ptr(), nonzero(self.0.key_type.layout())) };
        }
    }
}

/// The layout, of one byte at least.
fn nonzero(layout: Layout) -> Layout {
    Layout::from_size_align(layout.size().max(1), layout.align()).expect("as small as before")
}

impl OwnedKey {
    /// A native key.
    #[cfg(test)]
    pub fn new<K: Key>(key: K) -> Self {
        let mut vacant = Vacant::new(key_type::<K>());
        // SAFETY: memory for a key, which nobody else reaches, and which has one then.
        unsafe {
            vacant.0.place_mut().cast::<K>().write(key);
            vacant.filled()
        }
    }

    /// Where the key is, or will be.
    #[inline]
    fn place(&self) -> *const u8 {
        match is_short(self.key_type) {
            true => (&raw const self.place).cast(),
            // SAFETY: of a key that is not short it is this one.
            false => unsafe { self.place.long }.as_ptr(),
        }
    }

    #[inline]
    fn place_mut(&mut self) -> *mut u8 {
        match is_short(self.key_type) {
            true => (&raw mut self.place).cast(),
            // SAFETY: as above.
            false => unsafe { self.place.long }.as_ptr(),
        }
    }

    /// The key.
    #[inline]
    pub fn get(&self) -> KeyRef<'_> {
        // SAFETY: a key of this type is there while `self` is borrowed.
        KeyRef(unsafe { RecordRef::new(self.key_type, self.place()) })
    }

    /// Moves the key to a place.
    ///
    /// # Safety
    /// The target is memory for a key of this type, which nobody else reaches, and that holds none.
    // SAFETY: the target is the caller's to promise.
    pub unsafe fn move_to(self, target: *mut u8) {
        let from = Vacant(ManuallyDrop::new(self));
        // SAFETY: the key is copied once and not touched again where it was, whose memory `Vacant` gives back.
        unsafe { from.0.place().copy_to_nonoverlapping(target, from.0.key_type.layout().size()) };
    }

    /// Bytes that an owned key of this type takes outside, but for the heap it owns.
    pub fn own_bytes(key_type: KeyType) -> u64 {
        if is_short(key_type) { 0 } else { rounded(key_type.layout().size().max(1)) as u64 }
    }
}

impl KeyRef<'_> {
    /// A clone of the key.
    pub fn to_owned(self) -> OwnedKey {
        let key_type = self.0.record_type();
        let mut vacant = Vacant::new(key_type);
        // SAFETY: memory for a key of this type, which nobody else reaches, and which has one then.
        unsafe {
            key_type.clone_into(self.0, vacant.0.place_mut());
            vacant.filled()
        }
    }
}

impl Drop for OwnedKey {
    fn drop(&mut self) {
        let key_type = self.key_type;
        // SAFETY: a copy that only gives memory back, also if the key's drop panics; `self` is not used after this.
        let mut vacant = Vacant(ManuallyDrop::new(unsafe { std::ptr::read(self) }));
        if key_type.needs_drop() {
            // SAFETY: the key is owned, and not touched again.
            unsafe { key_type.drop_entry(vacant.0.place_mut()) };
        }
    }
}

impl Clone for OwnedKey {
    fn clone(&self) -> Self {
        self.get().to_owned()
    }
}

impl PartialEq for OwnedKey {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for OwnedKey {}

impl std::fmt::Debug for OwnedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

impl KeyHash for OwnedKey {
    fn key_hash(&self) -> u64 {
        self.get().key_hash()
    }
}

impl HeapSize for OwnedKey {
    const NO_HEAP: bool = false;

    fn heap_bytes(&self) -> usize {
        (Self::own_bytes(self.key_type) + self.get().heap_bytes()) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rkyv::{Archive, Deserialize, Serialize};

    use super::*;

    /// A key that is aligned further than an allocator does by itself.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[derive(alluvium_derive::State, Archive, Serialize, Deserialize)]
    #[state(crate = alluvium_pagestore)]
    #[repr(align(64))]
    struct Aligned(u8);

    impl KeyHash for Aligned {
        fn key_hash(&self) -> u64 {
            self.0.key_hash()
        }
    }

    const CLONE: u64 = 1;
    const DROP: u64 = 2;

    /// A key in memory of its own whose clone or drop panics, by its number.
    #[derive(Debug, PartialEq, Eq)]
    #[derive(alluvium_derive::State, Archive, Serialize, Deserialize)]
    #[state(crate = alluvium_pagestore)]
    struct Fragile([u64; 4]);

    impl KeyHash for Fragile {
        fn key_hash(&self) -> u64 {
            self.0.key_hash()
        }
    }

    impl Clone for Fragile {
        fn clone(&self) -> Self {
            assert!(self.0[0] != CLONE, "clone");
            Self(self.0)
        }
    }

    impl Drop for Fragile {
        fn drop(&mut self) {
            assert!(self.0[0] != DROP || std::thread::panicking(), "drop");
        }
    }

    /// Its memory is given back: Miri tells of what is not.
    #[test]
    fn a_key_that_panics_leaves_nothing() {
        let fragile = OwnedKey::new(Fragile([CLONE; 4]));
        assert!(catch_unwind(AssertUnwindSafe(|| fragile.clone())).is_err());
        assert_eq!(fragile.get().native::<Fragile>(), &Fragile([CLONE; 4]));
        let fragile = OwnedKey::new(Fragile([DROP; 4]));
        assert!(catch_unwind(AssertUnwindSafe(|| drop(fragile))).is_err());
    }

    #[test]
    fn an_owned_key_is_that_key() {
        fn is<K: Key + Clone + std::fmt::Debug>(keys: [K; 2]) {
            let [a, b] = keys;
            let (owned, other) = (OwnedKey::new(a.clone()), KeyRef::of(&b).to_owned());
            assert_eq!(owned.get().native::<K>(), &a);
            assert_eq!(other.get().native::<K>(), &b);
            assert_eq!(owned, KeyRef::of(&a).to_owned());
            assert_eq!(owned.clone(), owned);
            assert_eq!(owned == other, a == b);
            assert_eq!(owned.key_hash(), a.key_hash());
            let own = OwnedKey::own_bytes(key_type::<K>()) as usize;
            let is_beside = size_of::<K>() > 16 || align_of::<K>() > 8;
            assert_eq!(own, if is_beside { rounded(size_of::<K>()) } else { 0 });
            assert_eq!(HeapSize::heap_bytes(&owned), own + a.heap_bytes());
        }
        is([1u64, 2]);
        is([1u8, 2]);
        is(["a".to_string(), "a longer one that owns heap".to_string()]);
        is([(1u64, "b".to_string()), (1, "c".to_string())]);
        is([[0u8; 0], []]);
        is([1u128, 2]);
        is([[1u8; 3], [2; 3]]);
        is([[1u64; 2], [2; 2]]);
        is([[1u64; 8], [2; 8]]);
        is([Aligned(1), Aligned(2)]);
    }

    #[test]
    #[should_panic(expected = "a record of other types")]
    fn a_key_of_another_type_is_not_told() {
        OwnedKey::new(1u64).get().native::<i64>();
    }

    #[test]
    fn keys_outlive_those_that_they_were_cloned_of() {
        let words: Vec<OwnedKey> = (0..10).map(|n| OwnedKey::new(n.to_string())).collect();
        let more = words.clone();
        drop(words);
        assert!(
            more.iter().enumerate().all(|(n, key)| *key.get().native::<String>() == n.to_string())
        );
    }
}
