//! Maps and sets inside of values: hash tables and B-trees of rkyv.
//!
//! A hash table is `{ pointer, length, capacity }`; the pointer leads to a control byte per slot
//! (255: empty), rounded up to groups of 16 and 15 more that repeat the first; the slots stand
//! before it, the first one last. A B-tree is `{ pointer, length }`; a node is `{ kind u8, keys [K;
//! 5], values [V; 5] }`, then in a leaf its length, in an inner node five pointers to what is less
//! and one to what is greater, where a pointer to itself plus one is none.

use super::decode::{Archive, refuse};
use super::description::TypeId;
use super::layout::{NODE_ENTRIES, ValueLayout};
use super::value::ArchiveValue;

type Result<T> = std::result::Result<T, super::Undecodable>;

/// Control bytes that are looked at together.
const GROUP: usize = 16;
const EMPTY: u8 = 0xff;

/// Where a pair's value stands, and the pair's layout.
fn pair(key: ValueLayout, value: ValueLayout) -> Option<(usize, ValueLayout)> {
    let mut pair = ValueLayout { size: 0, align: 1 };
    pair.push(key)?;
    let at = pair.push(value)?;
    Some((at, pair.padded()))
}

impl Archive<'_> {
    pub(super) fn hash_map(
        &mut self,
        key: TypeId,
        value: TypeId,
        at: usize,
    ) -> Result<ArchiveValue> {
        let Some((value_at, slot)) = pair(self.layout(key)?, self.layout(value)?) else {
            return refuse("a type that is too large");
        };
        let mut entries = Vec::new();
        for place in self.slots(slot, at)? {
            entries.push((self.value(key, place)?, self.value(value, place + value_at)?));
        }
        entries.sort_by_cached_key(|(key, _)| key.to_json());
        Ok(ArchiveValue::Map(entries))
    }

    pub(super) fn hash_set(&mut self, of: TypeId, at: usize) -> Result<ArchiveValue> {
        // A set is a map without values, whose layout changes nothing.
        let slot = self.layout(of)?;
        let mut values = Vec::new();
        for place in self.slots(slot, at)? {
            values.push(self.value(of, place)?);
        }
        values.sort_by_cached_key(ArchiveValue::to_json);
        Ok(ArchiveValue::List(values))
    }

    /// The places of the slots that are used.
    fn slots(&mut self, slot: ValueLayout, at: usize) -> Result<Vec<usize>> {
        let (length, capacity) = (self.u32_at(at + 4)?, self.u32_at(at + 8)?);
        if length == 0 {
            return Ok(Vec::new());
        }
        let controls = self.pointer(at, at)?;
        let bytes = slot.size.checked_mul(capacity).filter(|bytes| *bytes <= controls);
        let Some(bytes) = bytes else {
            return refuse("a hash table that begins before its archive");
        };
        let repeated = capacity.next_multiple_of(GROUP) + GROUP - 1;
        self.claim(controls - bytes, bytes, slot.align)?;
        self.claim(controls, repeated, 1)?;
        let mut places = Vec::new();
        for i in 0..capacity {
            if self.take::<1>(controls + i)? != [EMPTY] {
                places.push(controls - (i + 1) * slot.size);
            }
        }
        if places.len() != length {
            return refuse(format!("a hash table of {length} with {} slots used", places.len()));
        }
        Ok(places)
    }

    pub(super) fn btree_map(
        &mut self,
        key: TypeId,
        value: TypeId,
        at: usize,
    ) -> Result<ArchiveValue> {
        self.btree(key, Some(value), at).map(ArchiveValue::Map)
    }

    pub(super) fn btree_set(&mut self, of: TypeId, at: usize) -> Result<ArchiveValue> {
        let keys = self.btree(of, None, at)?;
        Ok(ArchiveValue::List(keys.into_iter().map(|(key, _)| key).collect()))
    }

    fn btree(
        &mut self,
        key: TypeId,
        value: Option<TypeId>,
        at: usize,
    ) -> Result<Vec<(ArchiveValue, ArchiveValue)>> {
        let length = self.u32_at(at + 4)?;
        let mut entries = Vec::new();
        if length > 0 {
            let root = self.pointer(at, at)?;
            let node = self.node(key, value)?;
            self.visit(&node, root, 0, &mut entries)?;
        }
        if entries.len() != length {
            return refuse(format!("a B-tree of {length} with {} entries", entries.len()));
        }
        Ok(entries)
    }

    fn node(&self, key: TypeId, value: Option<TypeId>) -> Result<TreeNode> {
        let none = ValueLayout { size: 0, align: 1 };
        let (key_layout, value_layout) =
            (self.layout(key)?, value.map_or(Ok(none), |value| self.layout(value))?);
        let five =
            |of: ValueLayout| ValueLayout { size: of.size.saturating_mul(NODE_ENTRIES), ..of };
        let mut layout = ValueLayout { size: 1, align: 1 };
        let places = layout.push(five(key_layout)).zip(layout.push(five(value_layout)));
        let Some((keys, values)) = places else { return refuse("a type that is too large") };
        let (key, value) = ((key, key_layout.size, keys), (value, value_layout.size, values));
        Ok(TreeNode { key, value, layout: layout.padded() })
    }

    fn visit(
        &mut self,
        node: &TreeNode,
        at: usize,
        depth: usize,
        entries: &mut Vec<(ArchiveValue, ArchiveValue)>,
    ) -> Result<()> {
        // Five to the power of this is more than there is.
        if depth > 32 {
            return refuse("a B-tree that is too deep");
        }
        let word = ValueLayout { size: 4, align: 4 };
        let mut layout = node.layout;
        match self.take(at)? {
            [0] => {
                let Some(length) = layout.push(word) else { return refuse("a node too large") };
                self.claim(at, layout.padded().size, layout.align)?;
                let length = self.u32_at(at + length)?;
                if length > NODE_ENTRIES {
                    return refuse(format!("a node of a B-tree with {length} entries"));
                }
                (0..length).try_for_each(|i| self.entry(node, at, i, entries))
            }
            [1] => {
                let pointers = ValueLayout { size: 4 * (NODE_ENTRIES + 1), align: 4 };
                let Some(pointers) = layout.push(pointers) else {
                    return refuse("a node too large");
                };
                self.claim(at, layout.padded().size, layout.align)?;
                for i in 0..=NODE_ENTRIES {
                    let pointer = at + pointers + 4 * i;
                    // Nothing is archived at a pointer's second byte, which stands for no pointer.
                    let target = self.pointer(pointer, pointer)?;
                    if target != pointer + 1 {
                        self.visit(node, target, depth + 1, entries)?;
                    }
                    if i < NODE_ENTRIES {
                        self.entry(node, at, i, entries)?;
                    }
                }
                Ok(())
            }
            [other] => refuse(format!("{other} is no kind of a node")),
        }
    }

    fn entry(
        &mut self,
        node: &TreeNode,
        at: usize,
        i: usize,
        entries: &mut Vec<(ArchiveValue, ArchiveValue)>,
    ) -> Result<()> {
        let ((key, key_size, keys), (value, value_size, values)) = (node.key, node.value);
        let key = self.value(key, at + keys + i * key_size)?;
        let value = match value {
            Some(value) => self.value(value, at + values + i * value_size)?,
            None => ArchiveValue::Null,
        };
        entries.push((key, value));
        Ok(())
    }
}

/// How nodes of a B-tree look: type, size and place of keys and of values, and the layout of both.
struct TreeNode {
    key: (TypeId, usize, usize),
    value: (Option<TypeId>, usize, usize),
    layout: ValueLayout,
}
