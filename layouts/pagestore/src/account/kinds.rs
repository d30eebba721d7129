//! Kinds of memory, and a reading of an account by kind.

use serde::{Deserialize, Serialize};

/// Kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum MemoryKind {
    /// Indexes and directories.
    Index,
    /// Pages of native records, resident, frozen or waiting for the reaper.
    Pages,
    /// Heap memory owned by keys and values.
    Values,
    /// Buffers for reads, writes and serialization.
    Buffers,
    /// Tables of pages and segments.
    Tables,
}

impl MemoryKind {
    /// Returns the kind's name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Index => "index",
            MemoryKind::Pages => "pages",
            MemoryKind::Values => "values",
            MemoryKind::Buffers => "buffers",
            MemoryKind::Tables => "tables",
        }
    }
}

/// All kinds, in the order of [`AccountStats`].
pub const MEMORY_KINDS: [MemoryKind; 5] = [
    MemoryKind::Index,
    MemoryKind::Pages,
    MemoryKind::Values,
    MemoryKind::Buffers,
    MemoryKind::Tables,
];

/// A reading of an [`Account`](super::Account), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountStats {
    /// The limit.
    pub limit: u64,
    /// Reserved now.
    pub used: u64,
    /// Most that was ever reserved.
    pub peak: u64,
    /// Reserved now by kind, in the order of [`MEMORY_KINDS`]; serialized by name.
    #[serde(with = "KindsByName")]
    pub by_kind: [u64; MEMORY_KINDS.len()],
}

impl AccountStats {
    /// Returns what is reserved now for one kind.
    pub fn used_for(&self, kind: MemoryKind) -> u64 {
        self.by_kind[kind as usize]
    }
}

/// The serialized form of [`AccountStats::by_kind`].
#[derive(Serialize, Deserialize)]
struct KindsByName {
    index: u64,
    pages: u64,
    values: u64,
    buffers: u64,
    tables: u64,
}

impl KindsByName {
    fn serialize<S: serde::Serializer>(
        by_kind: &[u64; MEMORY_KINDS.len()],
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        let [index, pages, values, buffers, tables] = *by_kind;
        Serialize::serialize(&Self { index, pages, values, buffers, tables }, serializer)
    }

    fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<[u64; MEMORY_KINDS.len()], D::Error> {
        let Self { index, pages, values, buffers, tables } =
            <Self as Deserialize>::deserialize(deserializer)?;
        Ok([index, pages, values, buffers, tables])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Account;

    #[test]
    fn kinds_are_serialized_by_name() {
        let account = Account::root(100);
        for (i, kind) in MEMORY_KINDS.into_iter().enumerate() {
            account.charge(kind, i as u64 + 1);
        }
        let stats = account.stats();
        let json = serde_json::to_value(stats).unwrap();
        for kind in MEMORY_KINDS {
            assert_eq!(json["by_kind"][kind.name()], stats.used_for(kind));
        }
        assert_eq!(serde_json::from_value::<AccountStats>(json).unwrap(), stats);
    }
}
