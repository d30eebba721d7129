//! What a `BTreeMap` of the standard library takes.

use alluvium_pagestore::rounded;

// Nodes are private to the standard library. `values_by_time_take_what_is_said`, a test of the store,
// compares what an allocator counts: it fails if a node of a newer compiler takes more.
/// Most entries of a node, and the fewest of one that is not the root.
const ENTRIES_MAX: usize = 11;
const ENTRIES_MIN: usize = 5;

/// A leaf, as the standard library has it.
#[allow(dead_code, reason = "only its size is of interest")]
struct LeafNode<K, V> {
    parent: *const (),
    place: [u16; 2],
    keys: [K; ENTRIES_MAX],
    values: [V; ENTRIES_MAX],
}

/// A node that is no leaf.
#[allow(dead_code, reason = "only its size is of interest")]
struct InnerNode<K, V> {
    leaf: LeafNode<K, V>,
    children: [*const (); ENTRIES_MAX + 1],
}

/// Returns the most that a tree of `len` entries takes, without what they own. A tree that was
/// emptied by removals may keep a node: its owner drops it.
///
/// Nodes other than the root have five entries at least, and a tree of ten or fewer is one leaf.
pub const fn tree_bytes<K, V>(len: usize) -> u64 {
    let leaf = rounded(size_of::<LeafNode<K, V>>()) as u64;
    match len {
        0 => 0,
        1..=10 => leaf,
        _ => {
            // An entry stands between two leaves. Six children at least have each node but the root.
            let leaves = ((len + 1) / (ENTRIES_MIN + 1)) as u64;
            let inner = 1 + leaves / ENTRIES_MIN as u64;
            leaves * leaf + inner * rounded(size_of::<InnerNode<K, V>>()) as u64
        }
    }
}
