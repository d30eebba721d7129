//! Chains and their arena against vectors; elements that panic when they are dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::arena_unsafe::{Arena, PIECE_BYTES_MAX};
use super::chain_unsafe::Chain;

const PIECE: usize = PIECE_BYTES_MAX;
/// Miri runs a hundred times slower, and looks at each access instead of many.
const SLOWER: u64 = if cfg!(miri) { 20 } else { 1 };

fn extend<E>(chain: &mut Chain<E>, arena: &mut Arena<E>, elements: impl IntoIterator<Item = E>) {
    for element in elements {
        if !chain.has_room() {
            let (before, missing) = (arena.bytes(), arena.missing(chain.next_capacity()));
            chain.grow(arena);
            assert_eq!(arena.bytes(), before + missing);
        }
        chain.push(element);
    }
}

fn chain<E>(arena: &mut Arena<E>, elements: impl IntoIterator<Item = E>) -> Chain<E> {
    let mut chain = Chain::default();
    extend(&mut chain, arena, elements);
    chain
}

#[test]
fn chunks_double_and_fill_their_lines_of_the_cache() {
    let (mut arena, mut chain) = (Arena::new(PIECE), Chain::default());
    let mut capacities = Vec::new();
    for n in 0..5_000u64 {
        if !chain.has_room() {
            capacities.push(chain.next_capacity());
            chain.grow(&mut arena);
        }
        chain.push(n);
    }
    // With a header of 16 bytes: 64 bytes, 128, 256, 512 and so on.
    assert_eq!(capacities[..6], [6, 14, 30, 62, 62, 62]);
    assert_eq!(capacities.last(), Some(&510));
    assert!(chain.iter().copied().eq(0..5_000));
    assert_eq!((chain.len(), chain.iter().len()), (5_000, 5_000));
}

#[test]
fn elements_come_in_the_chunks_they_stand_in_wherever_a_reader_stands() {
    let mut arena = Arena::new(PIECE);
    for len in [0, 1, 5, 6, 7, 20, 21, 50, 300, 2_000 / SLOWER] {
        let chain = chain(&mut arena, (0..len).map(|n: u64| n.to_string()));
        let words: Vec<String> = (0..len).map(|n| n.to_string()).collect();
        // Some one by one, then a chunk, in turns.
        for singly in 0..5 {
            let (mut iter, mut told) = (chain.iter(), Vec::new());
            loop {
                told.extend(iter.by_ref().take(singly).cloned());
                let left = iter.len();
                let chunk = iter.next_chunk();
                assert_eq!((chunk.is_empty(), left - chunk.len()), (left == 0, iter.len()));
                if chunk.is_empty() {
                    break;
                }
                told.extend_from_slice(chunk);
            }
            assert_eq!(told, words, "{singly} singly");
        }
        let mut iter = chain.iter();
        if let Some(first) = iter.next().cloned() {
            let chunk = iter.rest_of_chunk();
            assert_eq!((&chunk[0], iter.len()), (&first, len as usize - chunk.len()));
        }
    }
}

#[test]
fn a_list_takes_no_more_than_is_said_before() {
    fn fits<E: Clone>(element: E, piece: usize) {
        for len in [1, 3, 4, 7, 20, 63, 64, 200, 1_025, 3_000 / SLOWER] {
            let mut arena = Arena::new(piece);
            let most = arena.bytes_max(len);
            chain(&mut arena, (0..len).map(|_| element.clone()));
            assert!(arena.bytes() <= most, "{len} of {}: {arena:?}, {most}", size_of::<E>());
        }
    }
    for piece in [512, 4096, PIECE] {
        fits(1u8, piece);
        fits(1u64, piece);
        fits([1u64; 3], piece);
        fits([1u64; 9], piece);
        fits([1u8; 700], piece);
        fits(1u128, piece);
    }
}

#[test]
fn chunks_of_a_large_piece_begin_with_a_line_of_the_cache() {
    let mut arena = Arena::new(PIECE);
    let mut chains: Vec<Chain<u64>> = Vec::new();
    let count = 5_000 / SLOWER;
    for n in 0..count {
        chains.push(chain(&mut arena, 0..1 + n % 40));
    }
    let skipped = count as usize * 4 / 5;
    let starts = chains.iter().skip(skipped).filter_map(|chain| chain.iter().next());
    assert!(starts.into_iter().all(|first| std::ptr::from_ref(first).addr() % 64 == 16));
}

#[test]
fn chains_joined_keep_the_order_of_both() {
    for (a, b) in [(0, 0), (0, 5), (5, 0), (1, 1), (3, 3), (40, 100), (200, 7)] {
        let arena = &mut Arena::new(PIECE);
        let mut later = chain(arena, (a..a + b).map(|n: u64| n.to_string()));
        later.prepend(chain(arena, (0..a).map(|n: u64| n.to_string())));
        assert!(later.iter().cloned().eq((0..a + b).map(|n| n.to_string())));
        extend(&mut later, arena, ["more".to_string()]);
        assert_eq!(later.iter().last().map(String::as_str), Some("more"));
        assert_eq!(later.len(), a + b + 1);
    }
}

#[test]
fn elements_of_any_size_and_alignment_are_kept() {
    #[derive(Clone, Debug, PartialEq)]
    #[repr(align(32))]
    struct Aligned(u8);
    let mut arena = Arena::new(PIECE);
    let chains = [0, 1, 2].map(|_| chain(&mut arena, (0..200).map(Aligned)));
    for chain in &chains {
        assert!(chain.iter().all(|e| std::ptr::from_ref(e).addr() % 32 == 0));
        assert!(chain.iter().cloned().eq((0..200).map(Aligned)));
    }
    assert_eq!(chain(&mut Arena::new(PIECE), [(); 100]).iter().count(), 100);
    let large = chain(&mut Arena::new(PIECE), (0..5).map(|n| [n; 20_000]));
    assert!(large.iter().map(|e| e[19_999]).eq(0..5));
}

#[test]
fn many_chains_in_one_arena_do_not_disturb_each_other_and_reuse_what_is_given_back() {
    let mut arena = Arena::new(4096);
    let mut lists: Vec<(Chain<String>, Vec<String>)> = Vec::new();
    lists.resize_with(50, Default::default);
    let mut most = 0;
    for step in 0..40_000 / SLOWER {
        let dice = alluvium_pagestore::hash_word(step);
        let (chain, model) = &mut lists[(dice % 50) as usize];
        if dice >> 32 & 0x1ff == 0 {
            arena.recycle(std::mem::take(chain).drain());
            model.clear();
        } else {
            let word = step.to_string();
            extend(chain, &mut arena, [word.clone()]);
            model.push(word);
        }
        if step == 20_000 / SLOWER {
            most = arena.bytes();
        }
    }
    for (chain, model) in &lists {
        assert!(chain.iter().eq(model));
    }
    let grown = arena.bytes() - most;
    assert!(cfg!(miri) || grown < most / 2, "{most} bytes, and {grown} more for as many elements");
    // The chains keep what they are in.
    drop(arena);
    assert!(lists.iter().all(|(chain, model)| chain.iter().eq(model)));
}

#[test]
fn elements_taken_out_come_in_order_and_their_chunks_are_used_again() {
    let mut arena = Arena::new(PIECE);
    let list = chain(&mut arena, (0..500).map(|n| n.to_string()));
    let bytes = arena.bytes();
    let mut taken = list.drain();
    assert!(taken.by_ref().take(300).eq((0..300).map(|n| n.to_string())));
    arena.recycle(taken);
    let again = chain(&mut arena, (0..500).map(|n| n.to_string()));
    assert_eq!((again.len(), arena.bytes()), (500, bytes));
    // Of another arena nothing is kept.
    let mut other = Arena::new(PIECE);
    other.recycle(again.drain());
    assert_eq!((other.bytes(), other.missing(3) > 0), (0, true));
}

#[test]
fn each_element_is_dropped_once_whatever_panics() {
    struct Counted(Rc<std::cell::Cell<u32>>, bool);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            assert!(!self.1, "planned");
        }
    }
    let count = Rc::new(std::cell::Cell::new(0));
    let mut arena = Arena::new(PIECE);
    drop(chain(&mut arena, (0..100).map(|_| Counted(count.clone(), false))));
    assert_eq!(count.replace(0), 100);
    for recycled in [false, true] {
        let one_panics = chain(&mut arena, (0..100).map(|n| Counted(count.clone(), n == 4)));
        let gone = catch_unwind(AssertUnwindSafe(|| {
            if recycled { arena.recycle(one_panics.drain()) } else { drop(one_panics) }
        }));
        assert!(gone.is_err());
        assert_eq!(count.replace(0), 100);
    }
    let mut half = chain(&mut arena, (0..100).map(|_| Counted(count.clone(), false))).drain();
    let taken: Vec<Counted> = half.by_ref().take(50).collect();
    drop(half);
    assert_eq!(count.get(), 50);
    drop(taken);
    assert_eq!(count.replace(0), 100);
}
