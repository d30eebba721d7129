//! q15: `SELECT DATE_FORMAT(date_time, 'yyyy-MM-dd') AS day, COUNT(*) AS total_bids,
//! COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
//! COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
//! COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids, COUNT(DISTINCT bidder) AS total_bidders,
//! ... and so for the ranks, COUNT(DISTINCT auction) AS total_auctions, ... FROM bid GROUP BY day`,
//! days in UTC. How distinct ids are kept: see `distinct.rs`.

use alluvium::{AnyLayout, Heap, KeyHash};
use alluvium_timely::{Changes, Spec, WorkerState};

use super::day::{Day, date, day};
use super::distinct::{Figures, Group, figures};
use super::{Events, Fields, Query, Row};
use crate::nexmark::Bid;
use crate::queries::row_by_row::RowByRow;

/// Bids, bidders and auctions of a day.
#[derive(Clone, Copy, Debug)]
pub struct Q15;

/// A day and its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DayRow {
    day: Day,
    figures: Figures,
}

impl Row for DayRow {
    const COLUMNS: &'static [&'static str] = &[
        "day",
        "total_bids",
        "rank1_bids",
        "rank2_bids",
        "rank3_bids",
        "total_bidders",
        "rank1_bidders",
        "rank2_bidders",
        "rank3_bidders",
        "total_auctions",
        "rank1_auctions",
        "rank2_auctions",
        "rank3_auctions",
    ];

    fn fields(&self) -> Fields {
        let figures = self.figures.columns().map(|figure| figure.to_string());
        std::iter::once(date(self.day)).chain(figures).map(Some).collect()
    }

    fn digest(&self) -> u64 {
        (self.day, self.figures.columns()).key_hash()
    }
}

impl Group for Day {
    fn of(bid: &Bid) -> Self {
        day(bid.date_time)
    }
}

impl Query for Q15 {
    type Row = DayRow;
    const NAME: &'static str = "q15";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, DayRow>> {
        // A few bytes a day.
        let spec = Spec::new("group-figures").layout(AnyLayout::from(Heap::new()));
        let figures = figures::<Day>(events, state, spec)?;
        Ok(figures.map(|((day, figures), time, diff)| (DayRow { day, figures }, time, diff)))
    }
}
