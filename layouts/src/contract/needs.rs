//! What memory a state wants for a number of keys, found without filling one.
//!
//! A layout adds up what it takes in a given memory. Buffers and shares follow from the memory, so the least memory that
//! is enough is searched for. The sums are made by the functions that a state of that layout books by.

use alluvium_pagestore::KIB;

use super::table::StateContext;

/// Keys that a state is going to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedKeys {
    /// Keys whose records are used again and again, and are to stay in memory.
    pub hot: u64,
    /// Keys that are rarely used.
    pub cold: u64,
    /// Heap that a key and its value own together, on average.
    pub owned_bytes: u64,
    /// Whether entries expire; set for state whose entries do.
    pub expire: bool,
}

impl ExpectedKeys {
    /// So many hot and cold keys, which own no heap.
    pub fn new(hot: u64, cold: u64) -> Self {
        Self { hot, cold, ..Self::default() }
    }

    /// The same where a key and its value own so many bytes of heap together, on average.
    #[must_use]
    pub fn owning(self, bytes: u64) -> Self {
        Self { owned_bytes: bytes, ..self }
    }

    /// All keys.
    pub fn all(&self) -> u64 {
        self.hot.saturating_add(self.cold)
    }
}

/// Slices of time that lists are going to have, each with as many lists of as many elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedSlices {
    /// Slices that are there at a time.
    pub slices: u64,
    /// Lists of a slice.
    pub lists: u64,
    /// Elements of a list.
    pub elements: u64,
    /// Heap that the key and the elements of a list own together, on average.
    pub owned_bytes: u64,
}

impl ExpectedSlices {
    /// So many slices, each of so many lists of so many elements, which own no heap.
    pub fn new(slices: u64, lists: u64, elements: u64) -> Self {
        Self { slices, lists, elements, owned_bytes: 0 }
    }

    /// The same where the key and the elements of a list own so many bytes of heap together, on average.
    #[must_use]
    pub fn owning(self, bytes: u64) -> Self {
        Self { owned_bytes: bytes, ..self }
    }
}

/// Memory that a layout wants for a number of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeeds {
    /// Memory in which the state works. Hot keys may have to be read from storage.
    pub smallest: u64,
    /// Memory in which hot records stay in memory, and cold ones take one read.
    pub wanted: u64,
    /// What takes that memory.
    pub parts: MemoryParts,
}

/// Bytes of memory by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryParts {
    /// Index entries and hash tables.
    pub index: u64,
    /// Records in memory, and room for those that come.
    pub records: u64,
    /// Filters and fences of sorted runs.
    pub filters: u64,
    /// Directories of sorted runs, and the table of segments.
    pub directories: u64,
    /// Buffers and tables from opening on.
    pub buffers: u64,
    /// Memory that is kept free for checkpoints, or reserved for moves and merges.
    pub work: u64,
}

impl MemoryParts {
    /// Returns the sum.
    pub fn total(&self) -> u64 {
        let Self { index, records, filters, directories, buffers, work } = *self;
        [index, records, filters, directories, buffers, work]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Makes the context of a state that has so much memory, and an account of its own.
pub type ContextOf<'a> = &'a dyn Fn(u64) -> StateContext;

/// What a state takes of the memory of its context, if it can be opened in it; with hot records in memory or not.
pub(crate) type PartsIn<'a> = &'a mut dyn FnMut(&StateContext, HotPlacement) -> Option<MemoryParts>;

/// Where hot records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HotPlacement {
    InMemory,
    Anywhere,
}

/// Memory that is tried first, and last.
const LEAST: u64 = 16 * KIB;
const MOST: u64 = 1 << 50;
/// The result is this much too large, at most.
const EXACT_SHARE: u64 = 256;

impl MemoryNeeds {
    /// Finds the memory that is enough for its own parts. None: no memory is.
    pub(crate) fn find(context_of: ContextOf<'_>, parts_in: PartsIn<'_>) -> Option<Self> {
        // What the store has for itself is not there.
        let parts_in = &mut |memory, hot| {
            let context = context_of(memory);
            let own = context.account.used();
            let parts = parts_in(&context, hot)?;
            Some(MemoryParts { buffers: parts.buffers + own, ..parts })
        };
        let (smallest, _) = least(&mut |memory| parts_in(memory, HotPlacement::Anywhere))?;
        let (wanted, parts) = least(&mut |memory| parts_in(memory, HotPlacement::InMemory))?;
        Some(Self { smallest: smallest.min(wanted), wanted, parts })
    }
}

fn least(parts_in: &mut dyn FnMut(u64) -> Option<MemoryParts>) -> Option<(u64, MemoryParts)> {
    let mut enough = |memory| parts_in(memory).filter(|parts| parts.total() <= memory);
    let mut high = LEAST;
    let mut found = loop {
        match enough(high) {
            Some(parts) => break parts,
            None if high >= MOST => return None,
            None => high *= 2,
        }
    };
    let mut low = high / 2;
    while high - low > (high / EXACT_SHARE).max(KIB) {
        let middle = low.midpoint(high);
        match enough(middle) {
            Some(parts) => (high, found) = (middle, parts),
            None => low = middle,
        }
    }
    Some((high, found))
}
