//! Record types of tests, whose records are never hashed and never leave memory.

use super::*;

impl<K: Clone + Send + Sync + 'static, V: Clone + Send + Sync + 'static> RecordTypeOf<K, V> {
    const IN_MEMORY: RecordType = RecordType {
        is_sendable: true,
        heap_bytes: |_| 0,
        key_text: |_| String::new(),
        clone_into: Self::clone_into,
        ..Self::BARE
    };
}

/// Tells the hash of a key.
pub(crate) trait HashBy<K> {
    fn hash(key: &K) -> u64;

    /// Tells the heap that a record owns.
    fn heap_bytes(_: &K) -> u64 {
        0
    }
}

struct Hashed<K, V, H>(PhantomData<(K, V, H)>);

impl<K, V, H: HashBy<K>> Hashed<K, V, H>
where
    K: Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    const TYPE: RecordType = RecordType {
        hash: Self::hash,
        heap_bytes: Self::heap_bytes,
        ..RecordTypeOf::<K, V>::IN_MEMORY
    };

    // SAFETY: an entry of these types is there.
    unsafe fn heap_bytes(entry: *const u8) -> u64 {
        // SAFETY: as said above.
        H::heap_bytes(&unsafe { RecordTypeOf::<K, V>::entry(entry) }.key)
    }

    // SAFETY: an entry of these types is there.
    unsafe fn hash(entry: *const u8) -> u64 {
        // SAFETY: as said above.
        H::hash(&unsafe { RecordTypeOf::<K, V>::entry(entry) }.key)
    }
}

/// That of any keys and values, which are hashed as `H` does.
pub(crate) fn hashed<K, V, H: HashBy<K>>() -> &'static RecordType
where
    K: Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    const { &Hashed::<K, V, H>::TYPE }
}

/// That of any keys and values.
pub(crate) fn of<K, V>() -> &'static RecordType
where
    K: Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    const { &RecordTypeOf::<K, V>::IN_MEMORY }
}
