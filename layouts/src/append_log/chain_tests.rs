//! Chains and their arena against vectors; elements that panic when they are dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::arena_unsafe::{Arena, PIECE_BYTES_MAX};
use super::chain_unsafe::Chain;

const PIECE: usize = PIECE_BYTES_MAX;

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
fn chunks_double_up_to_63_and_to_511_in_a_heavy_list() {
    let (mut arena, mut chain) = (Arena::new(PIECE), Chain::default());
    let mut capacities = Vec::new();
    for n in 0..5_000u64 {
        if !chain.has_room() {
            capacities.push(chain.next_capacity());
            chain.grow(&mut arena);
        }
        chain.push(n);
    }
    assert_eq!(capacities[..7], [3, 6, 12, 24, 48, 63, 63]);
    assert_eq!(capacities.last(), Some(&511));
    assert!(chain.iter().copied().eq(0..5_000));
    assert_eq!((chain.len(), chain.iter().len()), (5_000, 5_000));
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
    for step in 0..40_000u64 {
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
        if step == 20_000 {
            most = arena.bytes();
        }
    }
    for (chain, model) in &lists {
        assert!(chain.iter().eq(model));
    }
    let grown = arena.bytes() - most;
    assert!(grown < most / 2, "{most} bytes, and {grown} more for as many elements");
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
