//! A value and when it was touched last.

use alluvium_derive::State;
use alluvium_pagestore::Time;

/// The entry of an expiring state: the value and when it was last touched, which takes 8 bytes. In
/// memory it is this struct, on storage its archive.
#[derive(Clone, Debug, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
#[state(crate = alluvium_pagestore)]
pub struct Timed<V> {
    /// The state's time at the last write, or the last read that touched it.
    pub touched: Time,
    /// The value.
    pub value: V,
}

impl<V> Timed<V> {
    pub(crate) fn touched(&self) -> Time {
        self.touched
    }
}
