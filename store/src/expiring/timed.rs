//! A value and when it was touched last.

use alluvium_derive::State;
use alluvium_pagestore::Time;

/// What a state whose entries expire keeps per key: the value, and when it was touched last, which is
/// 8 bytes more. In memory it is this struct; on storage its archive.
#[derive(Clone, Debug, PartialEq, Eq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
#[state(crate = alluvium_pagestore)]
pub struct Timed<V> {
    /// When it was written, or also read, last: the time of the state then.
    pub touched: Time,
    /// The value.
    pub value: V,
}

impl<V> Timed<V> {
    pub(crate) fn touched(&self) -> Time {
        self.touched
    }
}
