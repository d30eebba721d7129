//! What several layouts use: records without their types, booked memory, bounded reads, written runs, panics.

pub(crate) mod booked;
pub(crate) mod by_time_unsafe;
pub(crate) mod first_panic;
pub(crate) mod gaps;
pub(crate) mod key_unsafe;
pub(crate) mod mapped_unsafe;
pub(crate) mod oversize;
pub(crate) mod pages_unsafe;
pub(crate) mod patient_reads;
pub(crate) mod prefetch_unsafe;
pub(crate) mod record_run_unsafe;
pub(crate) mod record_type_unsafe;
pub(crate) mod run_storage;
pub(crate) mod system_page;
pub(crate) mod trace;
pub(crate) mod tree_bytes;
pub(crate) mod typed_core;

/// Nanoseconds since then.
pub(crate) fn nanos_since(start: std::time::Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

pub(crate) use alluvium_pagestore::out_of_line_unsafe;
