//! Reads that run ahead of the calls which need them, so that nobody has to wait for storage.

/// Names one read that was started ahead by [`Table::fetch`](crate::Table::fetch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// What [`Table::fetch`](crate::Table::fetch) can say of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// A call for the key does not wait for storage now. (Unless other calls come before it and
    /// need the memory; and but for the rest of a record longer than a first read, and for a key
    /// whose hash agrees with another's in the index's 31 bits.)
    Ready,
    /// The key's record is being read. Once the ticket is told by
    /// [`Table::fetched`](crate::Table::fetched), ask again or make the call.
    Pending(Ticket),
    /// As many reads are under way as there are buffers: ask again when one has been used.
    Busy,
}
