//! q5 and q7: windows of bids.

use std::collections::{BTreeMap, HashMap};

use alluvium::{SECOND, Time};

use super::super::q5::{HottestOfWindowRow, LENGTH as COUNTED, SLIDE};
use super::super::q7::{HighestPriceRow, LENGTH, prices};
use super::{Alarm, Ask, Maps, on_maps, plain_query};
use crate::nexmark::Event;
use crate::queries::row_by_row::RowByRow;

const _: () = assert!(COUNTED % SLIDE == 0 && SLIDE == SECOND);

plain_query! {
    /// The testbed's q5 on maps of the standard library.
    Q5Plain, "q5-hotstorage-plain", HottestOfWindowRow: |events| {
        let bids = events.flat_map(|record| match record.event {
            Event::Bid(bid) => Some((bid.auction, bid.date_time)),
            _ => None,
        });
        let most = on_maps(bids, "plain-bids", |bid: &(u64, Time)| bid.0, Counts::default());
        let most = most.map(|(row, ..)| row);
        let by_end = |(end, ..): &MostOfWindow| end.cast_unsigned();
        on_maps(most, "plain-hottest", by_end, Hottest::default())
    }
}

/// The end of a window, the most bids of a worker, and the largest auction with so many.
type MostOfWindow = (i64, u64, u64);

/// Bids by the start of their slice, and those of the window that ended last.
#[derive(Default)]
struct Counts {
    slices: BTreeMap<i64, HashMap<u64, u64>>,
    window: HashMap<u64, u64>,
}

impl Maps<(u64, Time)> for Counts {
    type Out = MostOfWindow;

    fn take(&mut self, (auction, at): (u64, Time), _: i64, ask: Ask<'_>) {
        let start = at.0.div_euclid(SLIDE) * SLIDE;
        let slice = self.slices.entry(start).or_insert_with(|| {
            let ends = (1..=COUNTED / SLIDE).map(|n| start + n * SLIDE);
            ends.for_each(|end| ask(end - 1, 0));
            HashMap::new()
        });
        *slice.entry(auction).or_default() += 1;
    }

    fn due(&mut self, alarm: Alarm, emit: &mut dyn FnMut(i64, MostOfWindow), _: Ask<'_>) {
        let end = alarm.at + 1;
        for (auction, count) in self.slices.get(&(end - SLIDE)).into_iter().flatten() {
            *self.window.entry(*auction).or_default() += count;
        }
        let most = self.window.iter().map(|(auction, count)| (*count, *auction)).max();
        if let Some((count, auction)) = most {
            emit(alarm.at, (end, count, auction));
        }
        for (auction, count) in self.slices.remove(&(end - COUNTED)).into_iter().flatten() {
            if let Some(all) = self.window.get_mut(&auction) {
                *all -= count;
                if *all == 0 {
                    self.window.remove(&auction);
                }
            }
        }
    }
}

/// The most bids and their auction by the end of a window.
#[derive(Default)]
struct Hottest(HashMap<i64, (u64, u64)>);

impl Maps<MostOfWindow> for Hottest {
    type Out = HottestOfWindowRow;

    fn take(&mut self, (end, count, auction): MostOfWindow, _: i64, ask: Ask<'_>) {
        let most = self.0.entry(end).or_insert_with(|| {
            ask(end - 1, end.cast_unsigned());
            (0, 0)
        });
        *most = (*most).max((count, auction));
    }

    fn due(&mut self, alarm: Alarm, emit: &mut dyn FnMut(i64, HottestOfWindowRow), _: Ask<'_>) {
        let end = alarm.key.cast_signed();
        if let Some((count, auction)) = self.0.remove(&end) {
            emit(alarm.at, HottestOfWindowRow::new(Time(end), auction, count));
        }
    }
}

plain_query! {
    /// The testbed's q7 on a map of the standard library.
    Q7Plain, "q7-hotstorage-plain", HighestPriceRow: |events| {
        let by_window = |(_, at): &(i64, Time)| at.0.div_euclid(LENGTH).cast_unsigned();
        on_maps(prices(events), "plain-highest", by_window, Highest::default())
    }
}

/// The highest price by the end of a window.
#[derive(Default)]
struct Highest(HashMap<i64, i64>);

impl Maps<(i64, Time)> for Highest {
    type Out = HighestPriceRow;

    fn take(&mut self, (price, at): (i64, Time), _: i64, ask: Ask<'_>) {
        let end = (at.0.div_euclid(LENGTH) + 1) * LENGTH;
        let highest = self.0.entry(end).or_insert_with(|| {
            ask(end - 1, end.cast_unsigned());
            price
        });
        *highest = price.max(*highest);
    }

    fn due(&mut self, alarm: Alarm, emit: &mut dyn FnMut(i64, HighestPriceRow), _: Ask<'_>) {
        let end = alarm.key.cast_signed();
        if let Some(price) = self.0.remove(&end) {
            emit(alarm.at, HighestPriceRow { end: Time(end), price });
        }
    }
}
