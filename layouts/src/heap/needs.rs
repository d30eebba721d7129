//! What memory a heap map wants for a number of keys.

use std::alloc::Layout;

use alluvium_pagestore::{Key, State, hash_word, rounded};

use super::Heap;
use super::core::{Durability, HeapCore};
use super::group_unsafe::{
    BLOCK_ENTRIES_MAX, BlockPointer, BlockShape, SLOTS, SLOTS_MIN, entries_max_of,
};
use super::marks_unsafe::BEGIN_SHARE;
use crate::contract::needs::{ContextOf, ExpectedKeys, HotPlacement, MemoryNeeds, MemoryParts};
use crate::support::record_type_unsafe::RecordType;

/// Blocks of as many entries are counted, or of up to twice as many.
const COUNTED: u64 = 1 << 15;

/// A table of so many entries.
#[derive(Clone, Copy, Debug)]
struct TableBlocks {
    blocks: u64,
    /// Slots of each.
    slots: usize,
    bytes: u64,
}

impl Heap {
    /// Says what memory a heap map wants for so many keys, hot or cold. None: no memory is enough. `context_of` gives each
    /// memory that is tried. Cost: some milliseconds.
    pub fn memory_for<K: Key, V: State>(
        &self,
        keys: &ExpectedKeys,
        context_of: ContextOf<'_>,
    ) -> Option<MemoryNeeds> {
        memory_for(RecordType::of::<K, V>(), keys, context_of)
    }
}

fn memory_for(
    record_type: &'static RecordType,
    keys: &ExpectedKeys,
    context_of: ContextOf<'_>,
) -> Option<MemoryNeeds> {
    let all = keys.all();
    let table = TableBlocks::of(record_type.layout(), all);
    // One that is full splits into two.
    let growth = BlockShape::of(record_type.layout()).block_bytes(table.slots);
    let places = table.blocks * BlockShape::places_bytes(table.slots.div_ceil(SLOTS));
    MemoryNeeds::find(context_of, &mut |context, hot| {
        let core = HeapCore::new(context.clone(), record_type, Durability::Stored);
        let kept = core.kept_for(table.capacity() + BLOCK_ENTRIES_MAX);
        // With places checkpoints write only what has changed: they are taken where so many times that is free.
        let places = if hot == HotPlacement::InMemory { BEGIN_SHARE * places } else { 0 };
        Some(MemoryParts {
            index: table.bytes,
            records: all.saturating_mul(keys.owned_bytes),
            work: kept + growth + places,
            ..MemoryParts::default()
        })
    })
}

impl TableBlocks {
    /// The table of so many entries of evenly spread hashes. Blocks split alike at each doubling of the entries.
    fn of(entry: Layout, entries: u64) -> Self {
        let shape = BlockShape::of(entry);
        let full = entries_max_of(shape.slots_max());
        if entries <= full as u64 {
            let mut slots = SLOTS_MIN;
            while entries_max_of(slots) < entries as usize {
                slots *= 2;
            }
            let bytes = shape.block_bytes(slots) + rounded(2 * size_of::<BlockPointer>()) as u64;
            return Self { blocks: 1, slots, bytes };
        }
        let halvings = (entries / COUNTED).checked_ilog2().unwrap_or(0);
        let mut hashes: Vec<u64> = (0..entries >> halvings).map(hash_word).collect();
        hashes.sort_unstable();
        let (blocks, depth) = blocks_of(&hashes, 0, full);
        let bytes = blocks * shape.block_bytes(shape.slots_max());
        let directory = rounded((1 << depth) * size_of::<BlockPointer>()) as u64;
        Self {
            blocks: blocks << halvings,
            slots: shape.slots_max(),
            bytes: (bytes + directory) << halvings,
        }
    }

    /// Entries that it has room for.
    fn capacity(&self) -> u64 {
        self.blocks * entries_max_of(self.slots) as u64
    }
}

/// Blocks of these hashes, which agree in so many bits, and the bits that the deepest agree in.
fn blocks_of(hashes: &[u64], depth: u32, full: usize) -> (u64, u32) {
    if hashes.len() <= full || depth == u64::BITS - 1 {
        return (1, depth);
    }
    let (zeros, ones) = hashes.split_at(hashes.partition_point(|hash| hash << depth >> 63 == 0));
    let (left, right) = (blocks_of(zeros, depth + 1, full), blocks_of(ones, depth + 1, full));
    (left.0 + right.0, left.1.max(right.1))
}
