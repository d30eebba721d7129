//! Where the records of timers are, beside the timers: four bytes each.
//!
//! Places are of an epoch (`Remembered::epoch`): those of another one are none, and are made so when a block is
//! written to. So whoever forgets all of them looks at none. Of a block that no checkpoint has anything of the places are
//! not touched when timers come and go.

use alluvium_layouts::RecordPosition;
use alluvium_pagestore::rounded;

use crate::api::sorted_blocks::{BLOCK_ITEMS, Notes};

/// The epoch of a block without any places; no other one is 0.
const NO_EPOCH: u32 = 0;

/// The places of a block's timers, and behind them none; the default of `P` is none.
#[derive(Debug)]
pub(crate) struct TimerPlaces<P = RecordPosition> {
    places: Box<[P; BLOCK_ITEMS]>,
    epoch: u32,
}

impl<P: Copy + Default> TimerPlaces<P> {
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
        self.places.fill(P::default());
        self.epoch = epoch;
    }
}

impl<P: Copy + Default> Notes for TimerPlaces<P> {
    fn new() -> Self {
        Self { places: Box::new([P::default(); BLOCK_ITEMS]), epoch: NO_EPOCH }
    }

    fn bytes() -> usize {
        rounded(size_of::<[P; BLOCK_ITEMS]>())
    }

    fn insert(&mut self, at: usize) {
        if self.epoch != NO_EPOCH {
            self.places.copy_within(at..BLOCK_ITEMS - 1, at + 1);
            self.places[at] = P::default();
        }
    }

    fn remove(&mut self, at: usize, count: usize) {
        if self.epoch != NO_EPOCH {
            self.places.copy_within(at + count.., at);
            self.places[BLOCK_ITEMS - count..].fill(P::default());
        }
    }

    fn take(&mut self, at: usize, next: &mut Self, from: usize, count: usize) {
        if next.epoch > self.epoch {
            self.forget(next.epoch);
        }
        // Of an older epoch nothing counts any more.
        if next.epoch == self.epoch && self.epoch != NO_EPOCH {
            self.places[at..at + count].copy_from_slice(&next.places[from..from + count]);
        }
        next.remove(from, count);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;

    use proptest::prelude::*;

    use super::*;
    use crate::api::sorted_blocks::SortedBlocks;

    proptest! {
        /// Against a map, with all places forgotten now and then.
        #[test]
        fn places_go_where_their_items_go(
            steps in prop::collection::vec((0u32..900, 0..6u8), 0..4000),
        ) {
            let mut blocks = SortedBlocks::<u32, TimerPlaces<usize>>::new();
            let (mut model, mut epoch) = (BTreeMap::new(), 1);
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
