//! The states: what a user of the store calls.

pub(crate) mod aggregate;
pub(crate) mod batch;
pub(crate) mod count;
pub(crate) mod expiring;
pub(crate) mod explain;
pub(crate) mod fetcher;
pub(crate) mod list;
pub(crate) mod map;
pub(crate) mod own_keys;
pub(crate) mod sizing;
mod sizing_slices;
pub(crate) mod sorted_blocks;
pub(crate) mod time_map;
pub(crate) mod timers;
pub(crate) mod value;
pub(crate) mod windows;
