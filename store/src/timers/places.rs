//! Where the records of timers are, beside the timers: four bytes each.
//!
//! Places are of an epoch (`Remembered::epoch`): those of another one are none, and are made so when a block is
//! written to. So whoever forgets all of them looks at none.

use std::collections::VecDeque;

use alluvium_layouts::Place;
use alluvium_pagestore::rounded;

use crate::sorted_blocks::Notes;

/// The places of a block's timers; the default of `P` is none.
#[derive(Debug)]
pub(crate) struct Places<P = Place> {
    places: VecDeque<P>,
    epoch: u32,
}

impl<P: Copy + Default> Places<P> {
    /// Where the record of the timer is that has this number in its block.
    pub(crate) fn get(&self, at: usize, epoch: u32) -> P {
        if self.epoch == epoch { self.places[at] } else { P::default() }
    }

    pub(crate) fn set(&mut self, at: usize, place: P, epoch: u32) {
        if self.epoch != epoch {
            self.forget(epoch);
        }
        self.places[at] = place;
    }

    fn forget(&mut self, epoch: u32) {
        self.places.iter_mut().for_each(|place| *place = P::default());
        self.epoch = epoch;
    }
}

impl<P: Copy + Default> Notes for Places<P> {
    fn new(items: usize) -> Self {
        Self { places: VecDeque::with_capacity(items), epoch: 0 }
    }

    fn bytes(items: usize) -> usize {
        rounded(items * size_of::<P>())
    }

    fn insert(&mut self, at: usize) {
        self.places.insert(at, P::default());
    }

    fn remove(&mut self, at: usize) {
        self.places.remove(at);
    }

    fn split_off(&mut self, at: usize) -> Self {
        // Not the one of `VecDeque`, which makes the other as long as what it is given.
        let mut next = Self::new(self.places.capacity());
        next.places.extend(self.places.drain(at..));
        next.epoch = self.epoch;
        next
    }

    fn append(&mut self, next: &mut Self, count: usize) {
        // Of the older epoch nothing counts any more.
        match self.epoch.cmp(&next.epoch) {
            std::cmp::Ordering::Less => self.forget(next.epoch),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => next.forget(self.epoch),
        }
        self.places.extend(next.places.drain(..count));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;

    use proptest::prelude::*;

    use super::*;
    use crate::sorted_blocks::SortedBlocks;

    proptest! {
        /// Against a map, with all places forgotten now and then.
        #[test]
        fn places_go_where_their_items_go(
            steps in prop::collection::vec((0u32..900, 0..6u8), 0..4000),
        ) {
            let mut blocks = SortedBlocks::<u32, Places<usize>>::new();
            let (mut model, mut epoch) = (BTreeMap::new(), 0);
            for (nth, (item, what)) in steps.into_iter().enumerate() {
                match what {
                    0 => {
                        let removed = blocks.remove_noted(&item, |notes, at| notes.get(at, epoch));
                        prop_assert_eq!(removed, model.remove_entry(&item));
                    }
                    1 if item % 8 == 0 => {
                        let popped = blocks.pop_first_noted(|notes, at| notes.get(at, epoch));
                        prop_assert_eq!(popped, model.pop_first());
                    }
                    2 if item % 100 == 0 => {
                        epoch += 1;
                        model.values_mut().for_each(|place| *place = 0);
                    }
                    2 if item % 100 == 1 => blocks.pack(),
                    3 => {
                        // What is at it, or above.
                        let below = item.checked_sub(1);
                        let _ = blocks.scan(below.as_ref(), |seen, notes, at| {
                            notes.set(at, nth, epoch);
                            model.insert(*seen, nth);
                            ControlFlow::Break(())
                        });
                    }
                    _ => {
                        let is_new = blocks.insert(item);
                        prop_assert_eq!(is_new, !model.contains_key(&item));
                        model.entry(item).or_insert(0);
                    }
                }
                prop_assert_eq!(blocks.len(), model.len());
            }
            let mut found = BTreeMap::new();
            let _ = blocks.scan(None, |item, notes, at| {
                found.insert(*item, notes.get(at, epoch));
                ControlFlow::<()>::Continue(())
            });
            prop_assert_eq!(found, model);
        }
    }
}
