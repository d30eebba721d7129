//! Chains and their arena against vectors; elements that panic when they are dropped.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::arena_unsafe::{Arena, PIECE_BYTES_MAX};
use super::chain_unsafe::{ChainDrain, ElementChain};
use super::element_type_unsafe::{ElementSlice, in_memory};

const PIECE: usize = PIECE_BYTES_MAX;
/// Miri runs a hundred times slower, and looks at each access instead of many.
const SLOWER: u64 = if cfg!(miri) { 20 } else { 1 };

fn arena<E: 'static>(piece: usize) -> Arena {
    Arena::new(in_memory::of::<E>(), piece)
}

fn extend<E: 'static>(
    chain: &mut ElementChain,
    arena: &mut Arena,
    elements: impl IntoIterator<Item = E>,
) {
    let layout = Layout::new::<E>();
    for element in elements {
        if !chain.has_room() {
            let missing = arena.missing(layout, chain.next_capacity(layout));
            let before = arena.bytes();
            chain.grow(layout, arena);
            assert_eq!(arena.bytes(), before + missing);
        }
        chain.push_checked(element);
    }
}

fn chain<E: 'static>(arena: &mut Arena, elements: impl IntoIterator<Item = E>) -> ElementChain {
    let mut chain = ElementChain::default();
    extend(&mut chain, arena, elements);
    chain
}

/// The next elements of a chain that is taken apart, as a chain of another arena.
fn moved(from: &mut ChainDrain, most: u64, arena: &mut Arena) -> ElementChain {
    let (mut chain, layout) = (ElementChain::default(), arena.elements().layout());
    while chain.len() < most && from.len() > 0 {
        if !chain.has_room() {
            chain.grow(layout, arena);
        }
        let left = u32::try_from(most - chain.len()).unwrap();
        from.move_some(&mut chain, left);
    }
    chain
}

/// The elements of a chain.
fn strings(chain: &ElementChain) -> impl Iterator<Item = &String> {
    chain.iter::<String>()
}

#[test]
fn chunks_double_and_fill_their_lines_of_the_cache() {
    let (mut arena, mut chain) = (arena::<u64>(PIECE), ElementChain::default());
    let layout = Layout::new::<u64>();
    let mut capacities = Vec::new();
    for n in 0..5_000u64 {
        if !chain.has_room() {
            capacities.push(chain.next_capacity(layout));
            chain.grow(layout, &mut arena);
        }
        chain.push_checked(n);
    }
    // With a header of 16 bytes: 64 bytes, 128, 256, 512 and so on.
    assert_eq!(capacities[..6], [6, 14, 30, 62, 62, 62]);
    assert_eq!(capacities.last(), Some(&510));
    assert!(chain.iter::<u64>().copied().eq(0..5_000));
    assert_eq!((chain.len(), chain.iter::<u64>().len()), (5_000, 5_000));
}

#[test]
fn elements_come_in_the_chunks_they_stand_in_wherever_a_reader_stands() {
    let mut arena = arena::<String>(PIECE);
    for len in [0, 1, 5, 6, 7, 20, 21, 50, 300, 2_000 / SLOWER] {
        let chain = chain(&mut arena, (0..len).map(|n: u64| n.to_string()));
        let words: Vec<String> = (0..len).map(|n| n.to_string()).collect();
        // Some one by one, then a chunk, in turns.
        for singly in 0..5 {
            let (mut chunks, mut told) = (chain.chunks(), Vec::<String>::new());
            loop {
                for _ in 0..singly {
                    told.extend_from_slice(chunks.next_one().map_or(&[], ElementSlice::native));
                }
                let left = chunks.len();
                let chunk = chunks.next_slice().map_or(&[][..], ElementSlice::native);
                assert_eq!((chunk.is_empty(), left - chunk.len()), (left == 0, chunks.len()));
                if chunk.is_empty() {
                    break;
                }
                told.extend_from_slice(chunk);
            }
            assert_eq!(told, words, "{singly} singly");
            // The same by their type.
            let (mut iter, mut told) = (chain.iter::<String>(), Vec::<String>::new());
            loop {
                told.extend(iter.by_ref().take(singly).cloned());
                let chunk = iter.next_chunk();
                if chunk.is_empty() {
                    break;
                }
                told.extend_from_slice(chunk);
            }
            assert_eq!(told, words, "{singly} singly");
        }
        for passed in [0, 1, 6, 7, 30, 299, 300] {
            let mut chunks = chain.chunks();
            chunks.pass(passed);
            let left = words.get(passed..).unwrap_or_default();
            assert_eq!(chunks.len(), left.len());
            assert!(chunks.native::<String>().eq(left));
            let first = chunks.next_slice().map(|slice| &slice.native::<String>()[0]);
            assert_eq!(first, left.first());
        }
    }
}

#[test]
fn a_list_takes_no_more_than_is_said_before() {
    fn fits<E: Clone + 'static>(element: E, piece: usize) {
        for len in [1, 3, 4, 7, 20, 63, 64, 200, 1_025, 3_000 / SLOWER] {
            let mut arena = arena::<E>(piece);
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
    let mut arena = arena::<u64>(PIECE);
    let mut chains: Vec<ElementChain> = Vec::new();
    let count = 5_000 / SLOWER;
    for n in 0..count {
        chains.push(chain(&mut arena, 0..1 + n % 40));
    }
    let skipped = count as usize * 4 / 5;
    let starts = chains.iter().skip(skipped).filter_map(|chain| chain.iter::<u64>().next());
    assert!(starts.into_iter().all(|first| std::ptr::from_ref(first).addr() % 64 == 16));
}

#[test]
fn chains_joined_keep_the_order_of_both() {
    for (a, b) in [(0, 0), (0, 5), (5, 0), (1, 1), (3, 3), (40, 100), (200, 7)] {
        let arena = &mut arena::<String>(PIECE);
        let mut later = chain(arena, (a..a + b).map(|n: u64| n.to_string()));
        later.prepend(chain(arena, (0..a).map(|n: u64| n.to_string())));
        assert!(strings(&later).cloned().eq((0..a + b).map(|n| n.to_string())));
        extend(&mut later, arena, ["more".to_string()]);
        assert_eq!(strings(&later).last().map(String::as_str), Some("more"));
        assert_eq!(later.len(), a + b + 1);
    }
}

#[test]
fn elements_of_any_size_and_alignment_are_kept() {
    #[derive(Clone, Debug, PartialEq)]
    #[repr(align(32))]
    struct Aligned(u8);
    let mut own = arena::<Aligned>(PIECE);
    let chains = [0, 1, 2].map(|_| chain(&mut own, (0..200).map(Aligned)));
    for chain in &chains {
        assert!(chain.iter::<Aligned>().all(|e| std::ptr::from_ref(e).addr() % 32 == 0));
        assert!(chain.iter::<Aligned>().cloned().eq((0..200).map(Aligned)));
    }
    assert_eq!(chain(&mut arena::<()>(PIECE), [(); 100]).iter::<()>().count(), 100);
    let large = chain(&mut arena::<[i32; 20_000]>(PIECE), (0..5).map(|n| [n; 20_000]));
    assert!(large.iter::<[i32; 20_000]>().map(|e| e[19_999]).eq(0..5));
}

#[test]
fn many_chains_in_one_arena_do_not_disturb_each_other_and_reuse_what_is_given_back() {
    let mut arena = arena::<String>(4096);
    let mut lists: Vec<(ElementChain, Vec<String>)> = Vec::new();
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
        assert!(strings(chain).eq(model));
    }
    let grown = arena.bytes() - most;
    assert!(cfg!(miri) || grown < most / 2, "{most} bytes, and {grown} more for as many elements");
    // The chains keep what they are in.
    drop(arena);
    assert!(lists.iter().all(|(chain, model)| strings(chain).eq(model)));
}

#[test]
fn elements_taken_out_come_in_order_and_their_chunks_are_used_again() {
    let (mut own, mut other) = (arena::<String>(PIECE), arena::<String>(PIECE));
    let list = chain(&mut own, (0..500).map(|n| n.to_string()));
    let bytes = own.bytes();
    let mut taken = list.drain();
    let first = moved(&mut taken, 300, &mut other);
    assert!(strings(&first).cloned().eq((0..300).map(|n| n.to_string())));
    assert_eq!((first.len(), taken.len()), (300, 200));
    own.recycle(taken);
    let again = chain(&mut own, (0..500).map(|n| n.to_string()));
    assert_eq!((again.len(), own.bytes()), (500, bytes));
    // Of another arena nothing is kept.
    let mut other = arena::<String>(PIECE);
    other.recycle(again.drain());
    let missing = other.missing(Layout::new::<String>(), 3);
    assert_eq!((other.bytes(), missing > 0), (0, true));
}

#[test]
fn elements_of_any_size_move_to_another_arena() {
    fn moves<E: Clone + PartialEq + std::fmt::Debug + 'static>(made: impl Fn(u64) -> E) {
        for (head, len) in [(0, 1), (1, 0), (5, 7), (3, 200 / SLOWER), (30, 70)] {
            let (mut own, mut other) = (arena::<E>(4096), arena::<E>(4096));
            let mut list = chain(&mut own, (0..head + len).map(&made)).drain();
            let first = moved(&mut list, head, &mut other);
            // What the first part left is moved in chunks as long as both have room.
            let rest = moved(&mut list, len, &mut other);
            assert_eq!((first.len(), rest.len(), list.len()), (head, len, 0));
            assert!(first.iter::<E>().cloned().eq((0..head).map(&made)));
            assert!(rest.iter::<E>().cloned().eq((head..head + len).map(&made)));
        }
    }
    #[derive(Clone, Debug, PartialEq)]
    #[repr(align(64))]
    struct Lined(u64);
    moves(|_| ());
    moves(|n| n as u8);
    moves(|n| [n as u8; 3]);
    moves(|n| n.to_string());
    moves(Lined);
}

#[test]
#[should_panic(expected = "elements of another type")]
fn elements_of_another_type_are_not_read() {
    chain(&mut arena::<u64>(PIECE), [1u64]).iter::<i64>();
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
    let mut own = arena::<Counted>(PIECE);
    drop(chain(&mut own, (0..100).map(|_| Counted(count.clone(), false))));
    assert_eq!(count.replace(0), 100);
    for recycled in [false, true] {
        let one_panics = chain(&mut own, (0..100).map(|n| Counted(count.clone(), n == 4)));
        let gone = catch_unwind(AssertUnwindSafe(|| {
            if recycled { own.recycle(one_panics.drain()) } else { drop(one_panics) }
        }));
        assert!(gone.is_err());
        assert_eq!(count.replace(0), 100);
    }
    let mut half = chain(&mut own, (0..100).map(|_| Counted(count.clone(), false))).drain();
    let taken = moved(&mut half, 50, &mut arena::<Counted>(PIECE));
    drop(half);
    assert_eq!(count.get(), 50);
    drop(taken);
    assert_eq!(count.replace(0), 100);
}
