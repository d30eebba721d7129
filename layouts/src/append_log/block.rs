//! The types of lists: what code that is compiled once knows of them, and the blocks that their runs have.
//!
//! What is made for each type of keys and elements is this file's [`ListType`], and nothing else of runs: cursors, merges
//! and folds go by blocks that say what they have.

use std::any::{Any, TypeId};
use std::fmt;
use std::iter::Take;
use std::marker::PhantomData;
use std::ops::Range;

use alluvium_pagestore::block::{self, AlignedVec, BlockEntry, BorrowedEntry, DecodeMemory};
use alluvium_pagestore::{HeapSize, Key, Result, State, Trials, codec, rounded};

use super::chain_unsafe::{ElementChain, ElementChunks, ElementIter};
use super::checkpoint::NoteValue;
use super::element_type_unsafe::{ElementSlice, ElementType};
use super::heads_unsafe::HeadType;
use super::jobs::ENTRY_BYTES;
use super::key_unsafe::{KeyRef, OwnedKey};
use crate::checkpoint::BatchWriter;
use crate::contract::lists::Elements;

/// The types of a state's lists.
pub struct ListType {
    pub heads: HeadType,
    pub elements: &'static ElementType,
    /// Whether neither keys nor elements ever own heap.
    pub is_plain: bool,
    /// See [`expansion`], [`cut_expansion`] and [`long_expansion`].
    expansion: u64,
    cut_expansion: u64,
    long_expansion: u64,
    id: fn() -> TypeId,
    decode: DecodeBlock,
    decode_within: DecodeWithin,
    empty: fn() -> Box<dyn ListBlock>,
    encode: EncodeEntries,
    encode_key: fn(KeyRef<'_>, &mut AlignedVec) -> Result<()>,
    push_note: fn(&mut BatchWriter, KeyRef<'_>, &NoteValue) -> Result<()>,
    decode_note: fn(&[u8]) -> Result<(OwnedKey, NoteValue)>,
}

/// Encodes some entries.
type EncodeEntries = fn(&mut Trials, &mut AlignedVec, Range<usize>, EntryAt<'_, '_>) -> Result<()>;
/// Decodes a block.
type DecodeBlock = fn(&[u8]) -> Result<Box<dyn ListBlock>>;
/// Decodes a block and books what that takes.
type DecodeWithin = fn(&[u8], &mut DecodeMemory<'_>) -> Result<Box<dyn ListBlock>>;

impl fmt::Debug for ListType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListType({:?})", self.elements)
    }
}

/// The entries of a block, in memory: each a key, a rank, and elements.
pub trait ListBlock: Send {
    /// Entries.
    fn len(&self) -> usize;
    fn key(&self, at: usize) -> KeyRef<'_>;
    fn rank(&self, at: usize) -> i64;
    fn elements(&self, at: usize) -> ElementSlice<'_>;
    /// Bytes that the entries take.
    fn bytes(&self) -> u64;
    /// Takes the elements of an entry of another block of the same types: as those of a new entry, or behind those of the
    /// last one.
    ///
    /// # Panics
    /// If the other is of other types.
    fn take(&mut self, from: &mut dyn ListBlock, at: usize, to: ElementTarget<'_>);
    /// Takes the elements of an entry out, as a chain, which `grow` gives chunks.
    fn pour(&mut self, at: usize, grow: &mut dyn FnMut(&mut ElementChain)) -> ElementChain;
    /// Forgets all entries.
    fn clear(&mut self);
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Where elements go that a block takes.
pub enum ElementTarget<'k> {
    /// To its last entry, which gets this rank.
    Last(i64),
    /// To a new one of this key and rank.
    New(KeyRef<'k>, i64),
}

impl fmt::Debug for dyn ListBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListBlock({} entries)", self.len())
    }
}

/// Elements that stand one behind the other, to be written.
#[derive(Clone)]
pub enum ElementStretch<'a> {
    /// So many of a chain.
    Chain(ElementChunks<'a>, usize),
    Slice(ElementSlice<'a>),
}

impl<'a> ElementStretch<'a> {
    pub fn len(&self) -> usize {
        match self {
            ElementStretch::Chain(_, count) => *count,
            ElementStretch::Slice(slice) => slice.len(),
        }
    }

    /// Bytes that they own.
    fn heap_bytes(&self) -> u64 {
        match self {
            ElementStretch::Chain(chunks, count) => {
                let (mut rest, mut left, mut bytes) = (chunks.clone(), *count, 0);
                while left > 0
                    && let Some(slice) = rest.next_slice()
                {
                    let here = slice.split_at(left.min(slice.len()))[0];
                    bytes += here.heap_bytes();
                    left -= here.len();
                }
                bytes
            }
            ElementStretch::Slice(slice) => slice.heap_bytes(),
        }
    }

    /// The first so many, and the others.
    fn split(&self, at: usize) -> [Self; 2] {
        match self {
            ElementStretch::Chain(chunks, count) => {
                let mut rest = chunks.clone();
                rest.pass(at);
                [ElementStretch::Chain(chunks.clone(), at), ElementStretch::Chain(rest, count - at)]
            }
            ElementStretch::Slice(slice) => slice.split_at(at).map(ElementStretch::Slice),
        }
    }
}

/// An entry of a block that is to be written.
#[derive(Clone)]
pub struct NewEntry<'a> {
    pub key: KeyRef<'a>,
    pub rank: i64,
    pub elements: ElementStretch<'a>,
}

/// Tells entries that are to be written, by their numbers.
pub type EntryAt<'e, 'a> = &'e dyn Fn(usize) -> NewEntry<'a>;

impl<'a> NewEntry<'a> {
    /// Bytes that it takes in memory, where a block is cut.
    pub fn native_bytes(&self, list_type: &ListType) -> u64 {
        let elements = self.elements.len() * list_type.elements.layout().size();
        let own = (list_type.key_bytes(self.key) + ENTRY_BYTES + elements) as u64;
        own + if list_type.is_plain { 0 } else { self.elements.heap_bytes() }
    }

    /// Both halves of the elements.
    pub fn halves(&self) -> [Self; 2] {
        let (key, rank) = (self.key, self.rank);
        self.elements.split(self.elements.len() / 2).map(|elements| NewEntry {
            key,
            rank,
            elements,
        })
    }
}

/// Makes the [`ListType`] of two types.
struct ListTypeOf<K, E>(PhantomData<(K, E)>);

impl<K: Key, E: State> ListTypeOf<K, E> {
    const TYPE: ListType = ListType {
        heads: HeadType::of::<K>(),
        elements: ElementType::of::<E>(),
        is_plain: K::NO_HEAP && E::NO_HEAP,
        expansion: expansion::<K, E>(),
        cut_expansion: cut_expansion::<K, E>(),
        long_expansion: long_expansion::<K, E>(),
        id: TypeId::of::<(K, E)>,
        decode: decode::<K, E>,
        decode_within: decode_within::<K, E>,
        empty: || Box::new(TypedBlock::<K, E>(Vec::new())),
        encode: encode::<K, E>,
        encode_key: |key, to| codec::encode_one(to, key.native::<K>()),
        push_note: |to, key, note| to.push(key.key_hash(), key.native::<K>(), note),
        decode_note: |payload| {
            let (key, note) = codec::decode::<K, NoteValue>(payload)?;
            Ok((KeyRef::of(&key).to_owned(), note))
        },
    };
}

impl ListType {
    /// That of keys `K` and elements `E`.
    #[inline(always)]
    pub const fn of<K: Key, E: State>() -> &'static Self {
        const { &ListTypeOf::<K, E>::TYPE }
    }

    /// Whether keys are `K` and elements `E`.
    pub fn is<K: 'static, E: 'static>(&self) -> bool {
        (self.id)() == TypeId::of::<(K, E)>()
    }

    /// Bytes that a key takes as a value.
    pub fn key_bytes(&self, key: KeyRef<'_>) -> usize {
        self.heads.key().layout().size() + key.heap_bytes() as usize
    }

    /// Encodes a key.
    ///
    /// # Errors
    /// Those of the key's own code.
    pub fn encode_key(&self, key: KeyRef<'_>, to: &mut AlignedVec) -> Result<()> {
        (self.encode_key)(key, to)
    }

    /// Puts what is noted of a key into a catalog.
    ///
    /// # Errors
    /// Those of encoding.
    pub fn push_note(&self, to: &mut BatchWriter, key: KeyRef<'_>, note: &NoteValue) -> Result<()> {
        (self.push_note)(to, key, note)
    }

    /// What a catalog has of a key.
    ///
    /// # Errors
    /// Of bytes that are none of these types.
    pub fn decode_note(&self, payload: &[u8]) -> Result<(OwnedKey, NoteValue)> {
        (self.decode_note)(payload)
    }

    /// Decodes a block.
    ///
    /// # Errors
    /// Of bytes that are none of these types.
    pub fn decode(&self, payload: &[u8]) -> Result<Box<dyn ListBlock>> {
        (self.decode)(payload)
    }

    /// Decodes a block of elements that own heap one by one, and books what they take before: an element that takes more
    /// than is booked is booked before the next one. For others the caller has booked what the block takes at most.
    ///
    /// # Errors
    /// Of bytes that are none of these types; those of booking.
    pub fn decode_within(
        &self,
        payload: &[u8],
        room: &mut DecodeMemory<'_>,
    ) -> Result<Box<dyn ListBlock>> {
        if self.is_plain {
            return self.decode(payload);
        }
        (self.decode_within)(payload, room)
    }

    /// Decodes a [long](ListType::long_decoded_bytes) block. What it takes is counted and booked before.
    ///
    /// # Errors
    /// Those of [`decode_within`](ListType::decode_within).
    pub fn decode_long(
        &self,
        payload: &[u8],
        room: &mut DecodeMemory<'_>,
    ) -> Result<Box<dyn ListBlock>> {
        (self.decode_within)(payload, room)
    }

    /// The most that a block of so many bytes takes once it is decoded: lists of one short element take more than twice
    /// their bytes. Blocks of keys or elements that own heap take no more than they are cut at, of so many bytes in
    /// memory, and an element that is longer: short strings take seven times their bytes.
    pub fn one_decoded_bytes_max(&self, block_bytes: u64, cut_bytes: usize) -> u64 {
        if !self.is_plain {
            let cut = cut_bytes as u64 * self.cut_expansion;
            return block_bytes + cut.div_ceil(EXPANSION_UNIT) + DECODED_BYTES;
        }
        (block_bytes * self.expansion).div_ceil(EXPANSION_UNIT) + DECODED_BYTES
    }

    /// What is booked for a long block before it is decoded. Few of these have lists of short elements: what takes more is
    /// booked when it has been counted.
    pub fn long_decoded_bytes(&self, block_bytes: u64, cut_bytes: usize) -> u64 {
        match self.is_plain {
            true => block_bytes + DECODED_BYTES,
            false => self.one_decoded_bytes_max(block_bytes, cut_bytes),
        }
    }

    /// The same, with room for the next one beside it if it does not expand.
    pub fn decoded_bytes_max(&self, block_bytes: u64, cut_bytes: usize) -> u64 {
        let one = self.one_decoded_bytes_max(block_bytes, cut_bytes);
        if self.is_plain { one.max(2 * block_bytes + DECODED_BYTES) } else { one }
    }

    /// The most that a packed record of so many bytes takes once it is decoded: a block of one entry.
    pub fn record_decoded_bytes_max(&self, record_bytes: u64, cut_bytes: usize) -> u64 {
        if !self.is_plain {
            return self.one_decoded_bytes_max(record_bytes, cut_bytes);
        }
        (record_bytes * self.long_expansion).div_ceil(EXPANSION_UNIT) + 2 * DECODED_BYTES
    }

    /// A block without entries.
    pub fn empty(&self) -> Box<dyn ListBlock> {
        (self.empty)()
    }

    /// Encodes entries as a block, those with these numbers.
    ///
    /// # Errors
    /// Those of user code, and of values that come back changed.
    pub fn encode(
        &self,
        trials: &mut Trials,
        to: &mut AlignedVec,
        numbers: Range<usize>,
        entries: EntryAt<'_, '_>,
    ) -> Result<()> {
        (self.encode)(trials, to, numbers, entries)
    }
}

/// What [`ListType`]s have expansions in parts of.
const EXPANSION_UNIT: u64 = 64;
/// A decoded block beside its entries.
const DECODED_BYTES: u64 = 128;

/// How many times its bytes on storage an entry takes at most, without what keys and elements own, in parts of
/// [`EXPANSION_UNIT`].
const fn expansion<K: Key, E: State>() -> u64 {
    let (mut most, mut count) = (0, 1);
    // From some elements on the table of entries and what the allocator rounds hardly count.
    while count <= 1 << 16 {
        let (native, archived) = block::entry_bytes::<K, E>(count);
        let times = (native as u64 * EXPANSION_UNIT).div_ceil(archived as u64);
        most = if times > most { times } else { most };
        count = if count < 8 { count + 1 } else { 2 * count };
    }
    most
}

/// How many times what it [counts](ENTRY_BYTES) for where a block is cut an entry takes at most once it is decoded, in
/// parts of [`EXPANSION_UNIT`]. What keys and elements own counts as much as it takes.
const fn cut_expansion<K: Key, E: State>() -> u64 {
    let (mut most, mut count) = (0, 1);
    while count <= 1 << 16 {
        let element = if size_of::<E>() == 0 { 1 } else { size_of::<E>() };
        let counted = size_of::<K>() + ENTRY_BYTES + count * element;
        let (native, _) = block::entry_bytes::<K, E>(count);
        let times = (native as u64 * EXPANSION_UNIT).div_ceil(counted as u64);
        most = if times > most { times } else { most };
        count = if count < 8 { count + 1 } else { 2 * count };
    }
    most
}

/// How many times their bytes on storage many elements of an entry take, and no less than once, in parts of
/// [`EXPANSION_UNIT`].
const fn long_expansion<K: Key, E: State>() -> u64 {
    let (few, many) = (block::entry_bytes::<K, E>(1 << 10), block::entry_bytes::<K, E>(1 << 20));
    let (native, archived) = ((many.0 - few.0) as u64, (many.1 - few.1) as u64);
    let times = if archived == 0 { 0 } else { (native * EXPANSION_UNIT).div_ceil(archived) };
    if times < EXPANSION_UNIT { EXPANSION_UNIT } else { times }
}

fn decode_within<K: Key, E: State>(
    payload: &[u8],
    room: &mut DecodeMemory<'_>,
) -> Result<Box<dyn ListBlock>> {
    let own = DECODED_BYTES;
    let mut inner = DecodeMemory {
        bytes: room.bytes.saturating_sub(own),
        more: &mut |bytes| Ok((room.more)(bytes + own)?.saturating_sub(own)),
    };
    Ok(Box::new(TypedBlock::<K, E>(block::decode_within(payload, &mut inner)?)))
}

fn decode<K: Key, E: State>(payload: &[u8]) -> Result<Box<dyn ListBlock>> {
    Ok(Box::new(TypedBlock::<K, E>(block::decode(payload)?)))
}

fn encode<K: Key, E: State>(
    trials: &mut Trials,
    to: &mut AlignedVec,
    numbers: Range<usize>,
    entries: EntryAt<'_, '_>,
) -> Result<()> {
    let native = numbers.map(entries).map(|NewEntry { key, rank, elements }| BorrowedEntry {
        key: key.native::<K>(),
        rank,
        elements: match elements {
            ElementStretch::Chain(chunks, count) => {
                NativeElements::<E>::Chain(chunks.native().take(count))
            }
            ElementStretch::Slice(slice) => NativeElements::Slice(slice.native().iter()),
        },
    });
    trials.encode_block(to, &native.collect())
}

/// Elements by their type.
enum NativeElements<'a, E> {
    Chain(Take<ElementIter<'a, E>>),
    Slice(std::slice::Iter<'a, E>),
}

impl<E> Clone for NativeElements<'_, E> {
    fn clone(&self) -> Self {
        match self {
            NativeElements::Chain(elements) => NativeElements::Chain(elements.clone()),
            NativeElements::Slice(elements) => NativeElements::Slice(elements.clone()),
        }
    }
}

impl<'a, E> Iterator for NativeElements<'a, E> {
    type Item = &'a E;

    #[inline]
    fn next(&mut self) -> Option<&'a E> {
        match self {
            NativeElements::Chain(elements) => elements.next(),
            NativeElements::Slice(elements) => elements.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            NativeElements::Chain(elements) => elements.size_hint(),
            NativeElements::Slice(elements) => elements.size_hint(),
        }
    }
}

impl<E> ExactSizeIterator for NativeElements<'_, E> {}

/// The entries of a block, by their types.
struct TypedBlock<K, E>(Vec<BlockEntry<K, E>>);

impl<K: Key, E: State> ListBlock for TypedBlock<K, E> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn key(&self, at: usize) -> KeyRef<'_> {
        KeyRef::of(&self.0[at].key)
    }

    fn rank(&self, at: usize) -> i64 {
        self.0[at].rank
    }

    fn elements(&self, at: usize) -> ElementSlice<'_> {
        ElementSlice::of(&self.0[at].elements)
    }

    fn bytes(&self) -> u64 {
        let heap = |entry: &BlockEntry<K, E>| entry.key.heap_bytes() + entry.elements.heap_bytes();
        let table = rounded(self.0.capacity() * size_of::<BlockEntry<K, E>>());
        let own = rounded(size_of::<Self>());
        (own + table + self.0.iter().map(heap).sum::<usize>()) as u64
    }

    fn take(&mut self, from: &mut dyn ListBlock, at: usize, to: ElementTarget<'_>) {
        let from = from.as_any().downcast_mut::<Self>().expect("blocks of the same types");
        let mut elements = std::mem::take(&mut from.0[at].elements);
        match to {
            ElementTarget::Last(rank) => {
                let last = self.0.last_mut().expect("there is an entry");
                last.rank = rank;
                last.elements.append(&mut elements);
            }
            ElementTarget::New(key, rank) => {
                let key = key.native::<K>().clone();
                self.0.push(BlockEntry { key, rank, elements });
            }
        }
    }

    fn pour(&mut self, at: usize, grow: &mut dyn FnMut(&mut ElementChain)) -> ElementChain {
        let mut chain = ElementChain::default();
        for element in std::mem::take(&mut self.0[at].elements) {
            if !chain.has_room() {
                grow(&mut chain);
            }
            chain.push_checked(element);
        }
        chain
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// The elements of one list as they are read: all in one chain, most often.
pub enum ListElements<'t, 'a> {
    Chain(ElementChunks<'a>),
    Other(&'t mut dyn NextElements),
}

/// Elements of one list that are read one after the other.
pub trait NextElements {
    /// The next element; none at the end.
    ///
    /// # Errors
    /// Those of reading.
    fn next_one(&mut self) -> Result<Option<ElementSlice<'_>>>;
    /// The next elements that stand side by side; none at the end.
    ///
    /// # Errors
    /// Those of reading.
    fn next_slice(&mut self) -> Result<Option<ElementSlice<'_>>>;
}

impl ListElements<'_, '_> {
    /// The next elements that stand side by side; none at the end.
    ///
    /// # Errors
    /// Those of reading.
    pub fn next_slice(&mut self) -> Result<Option<ElementSlice<'_>>> {
        match self {
            ListElements::Chain(chunks) => Ok(chunks.next_slice()),
            ListElements::Other(slices) => slices.next_slice(),
        }
    }
}

/// The elements of one list as they are read, by their type.
pub enum NativeList<'t, 'a, E> {
    Chain(ElementIter<'a, E>),
    Other(&'t mut dyn NextElements),
}

impl<'t, 'a, E: State> NativeList<'t, 'a, E> {
    /// The elements, if they are `E`.
    ///
    /// # Panics
    /// If they are of another type; of those on storage when they are told.
    #[inline]
    pub fn new(told: ListElements<'t, 'a>) -> Self {
        match told {
            ListElements::Chain(chunks) => NativeList::Chain(chunks.native()),
            ListElements::Other(list) => NativeList::Other(list),
        }
    }
}

impl<E: State> Elements<E> for NativeList<'_, '_, E> {
    #[inline]
    fn next(&mut self) -> Result<Option<&E>> {
        match self {
            NativeList::Chain(elements) => Ok(elements.next()),
            NativeList::Other(list) => Ok(list.next_one()?.and_then(|one| one.native().first())),
        }
    }

    #[inline]
    fn next_chunk(&mut self) -> Result<&[E]> {
        match self {
            NativeList::Chain(elements) => Ok(elements.next_chunk()),
            NativeList::Other(list) => Ok(list.next_slice()?.map_or(&[], ElementSlice::native)),
        }
    }
}
