//! Encodes blocks of lists: one rkyv archive of several keys, each with elements of its list.
//!
//! A block is the payload of one record of a segment, and one checksum covers it. The encoder
//! borrows its elements. The decoder reads a block whole and takes about its size in memory.

use rkyv::api::high::to_bytes_in;
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

#[cfg(test)]
mod tests {
    use super::*;

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
