//! The part of the log that is in memory: records in frames, frames by age, and the memory that frames and index share.

pub(super) mod address;
pub(super) mod frame_set;
pub(super) mod frame_unsafe;
pub(super) mod frames_unsafe;
pub(super) mod log;
pub(super) mod marks;
pub(super) mod pool_unsafe;
pub(super) mod slots_unsafe;
