//! Blocks of erased elements against vectors, and elements by places in memory.

use std::alloc::Layout;

use alluvium_pagestore::block::{self, AlignedVec, BorrowedEntry};
use alluvium_pagestore::{Key, State, Trials};

use super::arena_unsafe::{Arena, PIECE_BYTES_MAX};
use super::block::{ElementStretch, ElementTarget, ListBlock, ListType, NewEntry};
use super::chain_unsafe::ElementChain;
use super::element_type_unsafe::{ElementSlice, ElementType};
use super::key_unsafe::KeyRef;

fn chain<E: State + Clone>(elements: &[E]) -> ElementChain {
    let (layout, mut chain) = (Layout::new::<E>(), ElementChain::default());
    let mut arena = Arena::new(ElementType::of::<E>(), PIECE_BYTES_MAX);
    for element in elements {
        if !chain.has_room() {
            chain.grow(layout, &mut arena);
        }
        chain.push_checked(element.clone());
    }
    chain
}

/// The bytes of a block that has these elements of one key.
fn encoded<E: State>(rank: i64, elements: &ElementStretch<'_>) -> AlignedVec {
    let (mut bytes, entry) = (AlignedVec::new(), |_: usize| NewEntry {
        key: KeyRef::of(&7u64),
        rank,
        elements: elements.clone(),
    });
    ListType::of::<u64, E>().encode(&mut Trials::default(), &mut bytes, 0..1, &entry).unwrap();
    bytes
}

/// The same from native ones.
fn expected<E: State>(rank: i64, elements: &[E]) -> AlignedVec {
    let mut bytes = AlignedVec::new();
    let entry = BorrowedEntry { key: &7u64, rank, elements: elements.iter() };
    block::encode(&mut bytes, &vec![entry]).unwrap();
    bytes
}

fn elements_of<E: State + Clone>(block: &dyn ListBlock, at: usize) -> Vec<E> {
    block.elements(at).native::<E>().to_vec()
}

/// Elements are encoded alike from a chain, from a slice and by their types, in whole and in parts.
fn is_encoded_alike<E: State + Clone + PartialEq + std::fmt::Debug>(make: impl Fn(u64) -> E) {
    for len in [1, 2, 3, 7, 20, 150] {
        let native: Vec<E> = (0..len).map(&make).collect();
        let chain = chain(&native);
        for from in [0, 1, native.len() / 2] {
            let (mut chunks, rest) = (chain.chunks(), &native[from.min(native.len())..]);
            chunks.pass(from);
            let count = rest.len() - rest.len() / 3;
            let (whole, part) = (expected(-3, rest), expected(-3, &rest[..count]));
            let slice = ElementStretch::Slice(ElementSlice::of(rest));
            assert_eq!(
                encoded::<E>(-3, &ElementStretch::Chain(chunks.clone(), rest.len()))[..],
                whole[..]
            );
            assert_eq!(encoded::<E>(-3, &slice)[..], whole[..]);
            assert_eq!(
                encoded::<E>(-3, &ElementStretch::Chain(chunks.clone(), count))[..],
                part[..]
            );
            for elements in [ElementStretch::Chain(chunks, rest.len()), slice] {
                let halves = NewEntry { key: KeyRef::of(&7u64), rank: -3, elements }.halves();
                let middle = rest.len() / 2;
                for (half, of) in halves.iter().zip([&rest[..middle], &rest[middle..]]) {
                    assert_eq!(half.elements.len(), of.len());
                    assert_eq!(encoded::<E>(-3, &half.elements)[..], expected(-3, of)[..]);
                }
            }
        }
    }
}

#[test]
fn elements_of_any_type_are_encoded_as_by_their_type() {
    is_encoded_alike(|n| n);
    is_encoded_alike(|n| n as u8);
    is_encoded_alike(|n| n % 2 == 0);
    is_encoded_alike(|n| (n, n as u32));
    is_encoded_alike(|n| "word".repeat(n as usize % 5));
    is_encoded_alike(|n| vec![n; n as usize % 4]);
}

#[test]
fn a_block_takes_elements_of_others_as_new_entries_and_behind_its_last() {
    let block_type = ListType::of::<u64, String>();
    let words: Vec<String> = (0..9).map(|n| n.to_string()).collect();
    let (mut gathered, mut bytes) = (block_type.empty(), Vec::new());
    for (n, some) in words.chunks(3).enumerate() {
        let mut from = block_type.decode(&expected(n as i64, some)).unwrap();
        assert_eq!((from.len(), *from.key(0).native::<u64>(), from.rank(0)), (1, 7, n as i64));
        assert_eq!(elements_of::<String>(&*from, 0), some);
        let to = if n == 1 {
            ElementTarget::Last(5)
        } else {
            ElementTarget::New(KeyRef::of(&8u64), 2 * n as i64)
        };
        gathered.take(&mut *from, 0, to);
        assert_eq!(elements_of::<String>(&*from, 0), [""; 0]);
        bytes.push(gathered.bytes());
    }
    let entries: Vec<_> = (0..gathered.len())
        .map(|at| {
            (
                *gathered.key(at).native::<u64>(),
                gathered.rank(at),
                elements_of::<String>(&*gathered, at),
            )
        })
        .collect();
    assert_eq!(entries, [(8, 5, words[..6].to_vec()), (8, 4, words[6..].to_vec())]);
    assert!(bytes.is_sorted() && bytes[0] > block_type.empty().bytes(), "{bytes:?}");
    gathered.clear();
    assert_eq!(gathered.len(), 0);
}

#[test]
#[should_panic(expected = "blocks of the same types")]
fn a_block_takes_nothing_of_other_types() {
    let mut from = ListType::of::<u64, u32>().decode(&expected(0, &[1u32])).unwrap();
    ListType::of::<u64, u64>().empty().take(
        &mut *from,
        0,
        ElementTarget::New(KeyRef::of(&1u64), 0),
    );
}

#[test]
#[should_panic(expected = "elements of another type")]
fn a_slice_of_elements_of_another_type_is_not_told() {
    ElementSlice::of(&[1u64]).native::<i64>();
}

#[test]
fn a_slice_is_split_and_measured_as_its_elements_are() {
    let words: Vec<String> = ["a", "long enough to own heap", "c", ""].map(str::to_owned).into();
    let slice = ElementSlice::of(&words);
    for at in 0..=words.len() {
        let [before, after] = slice.split_at(at);
        assert_eq!(before.native::<String>(), &words[..at]);
        assert_eq!(after.native::<String>(), &words[at..]);
        let mut measured = Vec::new();
        let count = slice.take_while(&mut |heap| {
            measured.push(heap as u64);
            measured.len() <= at
        });
        assert_eq!(count, at.min(words.len()));
        let heap: u64 = measured[..count].iter().sum();
        assert_eq!(heap, before.heap_bytes());
    }
    let plain = ElementSlice::of(&[1u64, 2]);
    assert_eq!((plain.heap_bytes(), plain.len()), (0, 2));
    assert_eq!(chain(&words).heap_bytes(), slice.heap_bytes());
}

/// Many lists of so many elements each, decoded, beside the most that is reserved for them.
fn decoded<E: State + Clone>(elements: &[E]) -> (u64, u64, u64) {
    let (block_type, mut bytes) = (ListType::of::<u64, E>(), AlignedVec::new());
    let keys: Vec<u64> = (0..400).collect();
    let entry = |nth: usize| NewEntry {
        key: KeyRef::of(&keys[nth]),
        rank: 5,
        elements: ElementStretch::Slice(ElementSlice::of(elements)),
    };
    block_type.encode(&mut Trials::default(), &mut bytes, 0..keys.len(), &entry).unwrap();
    let stored = bytes.len() as u64;
    let taken = block_type.decode(&bytes).unwrap().bytes();
    (stored, taken, block_type.decoded_bytes_max(stored, 0))
}

/// Lists of one short element take more than twice their bytes once they are decoded.
#[test]
fn decoded_blocks_take_no_more_than_is_reserved_for_them() {
    for count in [1, 2, 3, 5, 8, 13, 60] {
        let all = [
            decoded(&vec![7u8; count]),
            decoded(&vec![7u32; count]),
            decoded(&vec![7u64; count]),
            decoded(&vec![(7u64, true); count]),
            decoded(&vec![[7u64; 4]; count]),
            decoded(&vec![Some(7u16); count]),
        ];
        for (n, (stored, taken, most)) in all.into_iter().enumerate() {
            assert!(taken <= most, "{n}, {count} each: {taken} of {most} for {stored}");
            assert!(most <= 4 * stored, "{n}, {count} each: {most} for {stored}");
            assert!(count > 1 || n > 2 || taken > 2 * stored, "{n}: {taken} for {stored}");
        }
    }
}

/// A block of many lists that is cut as runs are, and decoded: its bytes on storage, those that it takes, and the most
/// that is reserved for it.
fn cut_and_decoded<K: Key, E: State>(key: impl Fn(u64) -> K, elements: &[E]) -> (u64, u64, u64) {
    const CUT_BYTES: usize = 4 << 10;
    let (block_type, mut bytes) = (ListType::of::<K, E>(), AlignedVec::new());
    let keys: Vec<K> = (0..CUT_BYTES as u64).map(key).collect();
    let of = |nth: usize, count: usize| NewEntry {
        key: KeyRef::of(&keys[nth]),
        rank: 5,
        elements: ElementStretch::Slice(ElementSlice::of(&elements[..count])),
    };
    let (mut counts, mut native) = (Vec::new(), 0);
    while native < CUT_BYTES as u64 {
        // One element at least, and then as many as there is room for.
        let has_room = |count: &usize| {
            native + of(counts.len(), *count).native_bytes(block_type) <= CUT_BYTES as u64
        };
        let count = 1 + (2..=elements.len()).take_while(has_room).count();
        native += of(counts.len(), count).native_bytes(block_type);
        native = if count < elements.len() { CUT_BYTES as u64 } else { native };
        counts.push(count);
    }
    let entry = |nth: usize| of(nth, counts[nth]);
    block_type.encode(&mut Trials::default(), &mut bytes, 0..counts.len(), &entry).unwrap();
    let stored = bytes.len() as u64;
    let taken = block_type.decode(&bytes).unwrap().bytes();
    (stored, taken, block_type.decoded_bytes_max(stored, CUT_BYTES))
}

/// Strings of some letters take seven times their bytes once they are decoded.
#[test]
fn decoded_blocks_of_what_owns_heap_take_no_more_than_is_reserved_for_them() {
    for count in [1, 2, 5, 20, 60] {
        for letters in [0, 3, 8, 9, 40, 200] {
            let (word, name) = ("x".repeat(letters), |n: u64| format!("{n:03}"));
            let all = [
                cut_and_decoded(|n| n, &vec![word.clone(); count]),
                cut_and_decoded(|n| n, &vec![(word.clone(), 1u8); count]),
                cut_and_decoded(name, &vec![word.clone(); count]),
                cut_and_decoded(name, &vec![7u64; count]),
                cut_and_decoded(name, &vec![7u8; count]),
                cut_and_decoded(|_| word.clone(), &vec![vec![1u16; letters]; count]),
            ];
            for (n, (stored, taken, most)) in all.into_iter().enumerate() {
                let what = format!("{n}, {count} of {letters}: {taken} of {most} for {stored}");
                assert!(taken <= most, "{what}");
                assert!(most <= 2 * taken + 2 * stored, "{what}");
            }
        }
    }
    let (stored, taken, _) = cut_and_decoded(|n| n, &vec!["abc".to_owned(); 60]);
    assert!(taken > 4 * stored, "{taken} for {stored}");
}
