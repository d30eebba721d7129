//! Encodes blocks of lists: one rkyv archive of several keys, each with elements of its list.
//!
//! A block is the payload of one record of a segment, and one checksum covers it. The encoder
//! borrows its elements. The decoder reads a block whole and takes about its size in memory.

use rkyv::api::deserialize_using;
use rkyv::api::high::to_bytes_in;
use rkyv::de::Pool;
use rkyv::rancor::{Error as RkyvError, Fallible};
use rkyv::ser::{Allocator, Writer};
use rkyv::vec::{ArchivedVec, VecResolver};
use rkyv::{Archive, Deserialize, Place, Serialize};

pub use rkyv::util::AlignedVec;

use crate::{Error, ErrorKind, Result, State, rounded};

/// A key with elements of its list, read from a block.
#[derive(Debug, Archive, Serialize, Deserialize)]
#[rkyv(crate = rkyv)]
pub struct BlockEntry<K, E> {
    /// The key.
    pub key: K,
    /// Position of these elements among the key's: after all elements with a lower rank.
    pub rank: i64,
    /// The elements, in order.
    pub elements: Vec<E>,
}

/// Returns the bytes of an entry with so many elements, decoded and on storage, without what keys and elements own.
pub const fn entry_bytes<K: Archive, E: Archive>(elements: usize) -> (usize, usize) {
    let decoded = size_of::<BlockEntry<K, E>>() + rounded(elements * size_of::<E>());
    let stored = size_of::<ArchivedBlockEntry<K, E>>() + elements * size_of::<E::Archived>();
    (decoded, stored)
}

/// A key with elements of its list, to be written to a block.
#[derive(Clone, Debug)]
pub struct BorrowedEntry<'a, K, I> {
    /// The key.
    pub key: &'a K,
    /// As in [`BlockEntry`].
    pub rank: i64,
    /// The elements, in order.
    pub elements: I,
}

impl<'a, K: Archive, E: Archive + 'a, I: ExactSizeIterator<Item = &'a E>> Archive
    for BorrowedEntry<'a, K, I>
{
    type Archived = ArchivedBlockEntry<K, E>;
    type Resolver = (K::Resolver, VecResolver);

    fn resolve(&self, (key, elements): Self::Resolver, out: Place<Self::Archived>) {
        rkyv::munge::munge!(
            let ArchivedBlockEntry { key: key_out, rank: rank_out, elements: elements_out } = out
        );
        self.key.resolve(key, key_out);
        self.rank.resolve((), rank_out);
        ArchivedVec::resolve_from_len(self.elements.len(), elements, elements_out);
    }
}

impl<'a, K, E, I, S> Serialize<S> for BorrowedEntry<'a, K, I>
where
    S: Fallible + Allocator + Writer + ?Sized,
    K: Serialize<S>,
    E: Serialize<S> + 'a,
    I: ExactSizeIterator<Item = &'a E> + Clone,
{
    fn serialize(&self, serializer: &mut S) -> std::result::Result<Self::Resolver, S::Error> {
        let key = self.key.serialize(serializer)?;
        let elements = ArchivedVec::<E::Archived>::serialize_from_iter::<E, _, S>(
            self.elements.clone(),
            serializer,
        )?;
        Ok((key, elements))
    }
}

/// Encodes a block into `scratch`, replacing what it holds.
///
/// # Errors
/// [`ErrorKind::Config`] if a key or an element cannot be encoded.
pub fn encode<'a, K: State, E: State, I: ExactSizeIterator<Item = &'a E> + Clone>(
    scratch: &mut AlignedVec,
    entries: &Vec<BorrowedEntry<'a, K, I>>,
) -> Result<()> {
    scratch.clear();
    let buffer = std::mem::take(scratch);
    *scratch = to_bytes_in::<_, RkyvError>(entries, buffer)
        .map_err(|e| Error::new(ErrorKind::Config, "a list cannot be encoded").caused_by(e))?;
    Ok(())
}

/// Decodes a block.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the bytes are not a block of these types.
pub fn decode<K: State, E: State>(payload: &[u8]) -> Result<Vec<BlockEntry<K, E>>> {
    let failed =
        |e: RkyvError| Error::new(ErrorKind::Corrupt, "a block does not decode").caused_by(e);
    let archived = rkyv::access::<ArchivedVec<ArchivedBlockEntry<K, E>>, RkyvError>(payload)
        .map_err(failed)?;
    rkyv::deserialize::<Vec<BlockEntry<K, E>>, RkyvError>(archived).map_err(failed)
}

/// Memory that is booked while a block is decoded.
pub struct DecodeMemory<'b> {
    /// Bytes that are booked.
    pub bytes: u64,
    /// Books up to so many bytes. Returns how many are booked then.
    pub more: &'b mut dyn FnMut(u64) -> Result<u64>,
}

impl DecodeMemory<'_> {
    /// Sees to it that so many bytes are booked.
    ///
    /// # Errors
    /// Those of booking.
    #[inline]
    pub fn has(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            self.bytes = (self.more)(bytes)?;
        }
        Ok(())
    }
}

/// Decodes a block element by element. What the table of entries and their elements take is booked before; what a key or an
/// element owns, before the next one is decoded.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the bytes are not a block of these types; those of booking.
pub fn decode_within<K: State, E: State>(
    payload: &[u8],
    room: &mut DecodeMemory<'_>,
) -> Result<Vec<BlockEntry<K, E>>> {
    let failed =
        |e: RkyvError| Error::new(ErrorKind::Corrupt, "a block does not decode").caused_by(e);
    let archived = rkyv::access::<ArchivedVec<ArchivedBlockEntry<K, E>>, RkyvError>(payload)
        .map_err(failed)?;
    let mut pool = Pool::new();
    let mut taken = rounded(archived.len() * size_of::<BlockEntry<K, E>>()) as u64;
    room.has(taken)?;
    let mut entries = Vec::with_capacity(archived.len());
    for entry in archived.iter() {
        let count = entry.elements.len();
        taken += rounded(count * size_of::<E>()) as u64;
        room.has(taken)?;
        let key: K = deserialize_using(&entry.key, &mut pool).map_err(failed)?;
        taken += key.heap_bytes() as u64;
        let mut elements = Vec::with_capacity(count);
        for element in entry.elements.iter() {
            room.has(taken)?;
            let element: E = deserialize_using(element, &mut pool).map_err(failed)?;
            taken += element.heap_bytes() as u64;
            elements.push(element);
        }
        entries.push(BlockEntry { key, rank: entry.rank.to_native(), elements });
    }
    room.has(taken)?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeapSize;

    #[test]
    fn blocks_round_trip() {
        let words = ["a".to_string(), "long enough to be out of line".repeat(3)];
        let keys = [7u64, 9];
        let mut scratch = AlignedVec::new();
        let entries = vec![
            BorrowedEntry { key: &keys[0], rank: -3, elements: words.iter() },
            BorrowedEntry { key: &keys[1], rank: 4, elements: words[1..].iter() },
        ];
        encode(&mut scratch, &entries).unwrap();
        let read = decode::<u64, String>(&scratch).unwrap();
        let read: Vec<_> = read.into_iter().map(|e| (e.key, e.rank, e.elements)).collect();
        assert_eq!(read, [(7, -3, words.to_vec()), (9, 4, words[1..].to_vec())]);
    }

    /// What a block takes is booked before it does, but for one element; and one that has no room is not decoded.
    #[test]
    fn a_block_is_decoded_in_the_memory_that_is_booked() {
        let lists: Vec<Vec<String>> =
            (0..20).map(|n| (0..n).map(|m| "x".repeat(m * 7 % 40)).collect()).collect();
        let keys: Vec<String> = (0..20).map(|n| format!("{n:020}")).collect();
        let entries: Vec<_> = keys
            .iter()
            .zip(&lists)
            .map(|(key, list)| BorrowedEntry { key, rank: 1, elements: list.iter() })
            .collect();
        let mut bytes = AlignedVec::new();
        encode(&mut bytes, &entries).unwrap();
        let taken = |entries: &Vec<BlockEntry<String, String>>| {
            let heap = |entry: &BlockEntry<String, String>| {
                entry.key.heap_bytes() + entry.elements.heap_bytes()
            };
            let table = rounded(entries.capacity() * size_of::<BlockEntry<String, String>>());
            (table + entries.iter().map(heap).sum::<usize>()) as u64
        };
        let mut asked = Vec::new();
        let mut more = |bytes| {
            asked.push(bytes);
            Ok(bytes)
        };
        let mut room = DecodeMemory { bytes: 0, more: &mut more };
        let read = decode_within::<String, String>(&bytes, &mut room).unwrap();
        let all = taken(&read);
        assert_eq!(room.bytes, all);
        assert!(asked.windows(2).all(|two| two[0] < two[1]), "{asked:?}");
        let longest = lists.iter().map(|list| rounded(list.len() * 24)).max().unwrap() as u64;
        assert!(asked.windows(2).all(|two| two[1] - two[0] <= longest + 64), "{asked:?}");
        let read: Vec<_> = read.into_iter().map(|entry| (entry.key, entry.elements)).collect();
        assert!(read.into_iter().eq(keys.iter().cloned().zip(lists.iter().cloned())));
        for most in (0..all).step_by(97) {
            let mut more = |bytes| match bytes <= most {
                true => Ok(bytes),
                false => Err(Error::new(ErrorKind::OverBudget, "no room")),
            };
            let mut room = DecodeMemory { bytes: 0, more: &mut more };
            let error = decode_within::<String, String>(&bytes, &mut room).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OverBudget);
        }
    }

    #[test]
    fn impossible_bytes_are_errors() {
        let kind = |bytes: &[u8]| decode::<u64, bool>(bytes).err().map(|e| e.kind());
        assert_eq!(kind(&[9; 3]), Some(ErrorKind::Corrupt));
        let mut scratch = AlignedVec::new();
        let entries = vec![BorrowedEntry { key: &7u64, rank: 0, elements: [true].iter() }];
        encode(&mut scratch, &entries).unwrap();
        assert_eq!(kind(&scratch), None);
        scratch[0] = 7;
        assert_eq!(kind(&scratch), Some(ErrorKind::Corrupt));
    }
}
