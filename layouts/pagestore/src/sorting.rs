//! Sorting and sets for lists that are short, or rarely made, by little code.
//!
//! The standard library's sorts take 4 to 7 KB of code for each type and order, its ordered sets 8. Here
//! a sort is compiled once, and a use of it takes some 100 bytes.

use std::borrow::Borrow;

/// Sorts items by a key. Items of equal keys come in any order, but in the same one each time.
///
/// Cost: O(n log n) indirect calls, some ten times a sort of the standard library.
pub fn sort_rarely<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    heap_sort(&mut ByKey(items, key));
}

/// A set in order, for few items or few changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortedSet<T>(Vec<T>);

impl<T: Ord> SortedSet<T> {
    /// Makes a set of items in any order. Cost: O(n) if they are in order, else O(n log n).
    pub fn of(items: impl IntoIterator<Item = T>) -> Self {
        let mut items: Vec<T> = items.into_iter().collect();
        if !items.is_sorted() {
            heap_sort(&mut InOrder(&mut items));
        }
        items.dedup();
        Self(items)
    }

    /// Returns whether an item is there. Cost: O(log n).
    pub fn contains<Q: Ord + ?Sized>(&self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.place_of(item).is_ok()
    }

    /// Adds an item. Cost: O(n).
    pub fn insert(&mut self, item: T) {
        if let Err(at) = self.place_of(&item) {
            self.0.insert(at, item);
        }
    }

    /// Removes an item, and returns whether it was there. Cost: O(n).
    pub fn remove<Q: Ord + ?Sized>(&mut self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.place_of(item).map(|at| self.0.remove(at)).is_ok()
    }

    fn place_of<Q: Ord + ?Sized>(&self, item: &Q) -> Result<usize, usize>
    where
        T: Borrow<Q>,
    {
        self.0.binary_search_by(|known| known.borrow().cmp(item))
    }
}

impl<T> SortedSet<T> {
    /// Returns the items, in order.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    /// Returns whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps the items of which `stays` is true.
    pub fn retain(&mut self, stays: impl FnMut(&T) -> bool) {
        self.0.retain(stays);
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T> IntoIterator for SortedSet<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A list that can be sorted without its type.
trait Sorted {
    fn len(&self) -> usize;
    fn is_less(&self, one: usize, other: usize) -> bool;
    fn swap(&mut self, one: usize, other: usize);
}

struct ByKey<'a, T, F>(&'a mut [T], F);

impl<T, K: Ord, F: Fn(&T) -> K> Sorted for ByKey<'_, T, F> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_less(&self, one: usize, other: usize) -> bool {
        (self.1)(&self.0[one]) < (self.1)(&self.0[other])
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.0.swap(one, other);
    }
}

struct InOrder<'a, T>(&'a mut [T]);

impl<T: Ord> Sorted for InOrder<'_, T> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_less(&self, one: usize, other: usize) -> bool {
        self.0[one] < self.0[other]
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.0.swap(one, other);
    }
}

fn heap_sort(list: &mut dyn Sorted) {
    let len = list.len();
    for top in (0..len / 2).rev() {
        sink(list, top, len);
    }
    for end in (1..len).rev() {
        list.swap(0, end);
        sink(list, 0, end);
    }
}

/// Moves an item of the heap `..end` down until no item below is greater.
fn sink(list: &mut dyn Sorted, mut at: usize, end: usize) {
    loop {
        let mut greater = 2 * at + 1;
        if greater >= end {
            return;
        }
        if greater + 1 < end && list.is_less(greater, greater + 1) {
            greater += 1;
        }
        if !list.is_less(at, greater) {
            return;
        }
        list.swap(at, greater);
        at = greater;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn items_are_sorted_as_the_standard_library_does(mut items: Vec<(u8, i16)>) {
            let mut expected = items.clone();
            expected.sort();
            sort_rarely(&mut items, |item| *item);
            prop_assert_eq!(&items, &expected);
            // By a part of each item, the other one comes along.
            sort_rarely(&mut items, |item| std::cmp::Reverse(item.1));
            prop_assert!(items.is_sorted_by_key(|item| std::cmp::Reverse(item.1)));
            items.sort();
            prop_assert_eq!(items, expected);
        }

        #[test]
        fn a_set_has_what_a_tree_has(begin: Vec<u8>, changes: Vec<(u8, bool)>, kept: u8) {
            let (mut set, mut tree) = (SortedSet::of(begin.clone()), BTreeSet::from_iter(begin));
            for (item, comes) in changes {
                prop_assert_eq!(set.contains(&item), tree.contains(&item));
                match comes {
                    true => {
                        set.insert(item);
                        tree.insert(item);
                    }
                    false => prop_assert_eq!(set.remove(&item), tree.remove(&item)),
                }
                prop_assert!(set.as_slice().iter().eq(&tree));
                prop_assert_eq!(set.is_empty(), tree.is_empty());
            }
            set.retain(|item| *item < kept);
            prop_assert!(set.clone().into_iter().eq(tree.into_iter().filter(|item| *item < kept)));
            set.clear();
            prop_assert!(set.is_empty());
        }
    }
}
