//! The system's page: what it maps and takes back. 4 KiB on most machines, 16 or 64 KiB on some.

/// Bytes of a page of the system's.
#[cfg(all(unix, not(miri)))]
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Bytes of a page, where nothing is mapped.
#[cfg(not(all(unix, not(miri))))]
pub fn page_bytes() -> usize {
    4096
}
