//! The traits of a type that is stored as state.

use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

use crate::hash::KeyHash;
use crate::heap_size::HeapSize;
use crate::schema::Schema;

/// The serializer of [`State`] values.
pub type RecordSerializer<'a> = HighSerializer<AlignedVec, ArenaHandle<'a>, rancor::Error>;

/// A value that a store can keep: native in memory, a checked rkyv archive on a page, with a heap
/// size for the budget and a schema for the manifest.
///
/// Every type with the supertraits implements it. Get them with `#[derive(Clone, rkyv::Archive,
/// rkyv::Serialize, rkyv::Deserialize, alluvium::State)]`. Values must not share mutable parts
/// (`Arc<Mutex<_>>`): helper threads read them while a page is written. A clone must be deep.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be state",
    label = "`State` is not implemented for `{Self}`",
    note = "write `#[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, alluvium::State)]` over a type of yours",
    note = "or `#[derive(Clone, serde::Serialize, serde::Deserialize, alluvium::State)]` and `#[state(serde)]`",
    note = "state owns all that it has and can go to another thread"
)]
pub trait State:
    Archive<
        Archived: for<'a> CheckBytes<HighValidator<'a, rancor::Error>>
                      + Deserialize<Self, HighDeserializer<rancor::Error>>,
    > + for<'a> Serialize<RecordSerializer<'a>>
    + HeapSize
    + Schema
    + Clone
    + Send
    + Sync
    + 'static
{
}

// What is said is that the type is no state, and what to write; not each bound of rkyv's.
#[diagnostic::do_not_recommend]
impl<T> State for T where
    T: Archive<
            Archived: for<'a> CheckBytes<HighValidator<'a, rancor::Error>>
                          + Deserialize<T, HighDeserializer<rancor::Error>>,
        > + for<'a> Serialize<RecordSerializer<'a>>
        + HeapSize
        + Schema
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// A [`State`] that can be a key: comparable, with a portable hash.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key",
    label = "`Key` is not implemented for `{Self}`",
    note = "a key is `State`, `Eq` and `KeyHash`"
)]
pub trait Key: State + Eq + KeyHash {}

impl<T: State + Eq + KeyHash> Key for T {}

/// A borrowed form of a key that look-ups accept, such as `str` for `String`.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` does not look a key `{K}` up",
    label = "expected a reference to `{K}`, or to a borrowed form of it"
)]
pub trait Lookup<K>: KeyHash + Eq + ToOwned<Owned = K> {
    /// Returns whether `key` equals this.
    fn is(&self, key: &K) -> bool;
}

#[diagnostic::do_not_recommend]
impl<K, Q> Lookup<K> for Q
where
    K: std::borrow::Borrow<Q>,
    Q: KeyHash + Eq + ToOwned<Owned = K> + ?Sized,
{
    #[inline(always)]
    fn is(&self, key: &K) -> bool {
        self == key.borrow()
    }
}
