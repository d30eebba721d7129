//! Reads ahead of the calls that need them, which then do not wait for storage.

/// Identifies a read that [`Table::fetch`](crate::Table::fetch) started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// The answer of [`Table::fetch`](crate::Table::fetch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// A call for the key does not wait for storage now. Three cases still can: other calls come
    /// first and take the memory, the record is longer than the first read, or the index's 31 bits
    /// of hash match another key's. So does a call for a key in a [sorted
    /// run](crate::HybridLog::cold_runs) that memory has no room to read ahead.
    Ready,
    /// The record is being read. Once [`Table::fetched`](crate::Table::fetched) reports the ticket,
    /// ask again or make the call.
    Pending(Ticket),
    /// All read buffers are in use. Ask again after a call has used one.
    Busy,
}
