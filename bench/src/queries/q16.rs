//! q16: q15 by channel: `SELECT channel, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS day,
//! MAX(DATE_FORMAT(date_time, 'HH:mm')) AS minute, ... FROM bid GROUP BY channel, day`: the minute is
//! the latest time of day, not that of the latest bid.

use alluvium::KeyHash;
use alluvium_timely::{Changes, Spec, WorkerState};

use super::day::{Day, date, day};
use super::distinct::{Figures, Group, figures};
use super::{Events, Fields, Query, Row};
use crate::nexmark::Bid;
use crate::queries::row_by_row::RowByRow;

/// Bids, bidders and auctions of a channel on a day.
#[derive(Clone, Copy, Debug)]
pub struct Q16;

/// A channel and a day.
type ChannelDay = (String, Day);

/// A channel, a day and the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelRow {
    group: ChannelDay,
    figures: Figures,
}

impl Row for ChannelRow {
    const COLUMNS: &'static [&'static str] = &[
        "channel",
        "day",
        "minute",
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
        let ((channel, day), minute) = (&self.group, self.figures.minute);
        let minute = format!("{:02}:{:02}", minute / 60, minute % 60);
        let figures = self.figures.columns().map(|figure| figure.to_string());
        [channel.clone(), date(*day), minute].into_iter().chain(figures).map(Some).collect()
    }

    fn digest(&self) -> u64 {
        let ((channel, day), figures) = (&self.group, &self.figures);
        ((channel.as_str(), *day, figures.minute), figures.columns()).key_hash()
    }
}

impl Group for ChannelDay {
    fn of(bid: &Bid) -> Self {
        (bid.channel().into_owned(), day(bid.date_time))
    }
}

impl Query for Q16 {
    type Row = ChannelRow;
    const NAME: &'static str = "q16";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, ChannelRow>> {
        let figures = figures::<ChannelDay>(events, state, Spec::new("group-figures"))?;
        Ok(figures
            .map(|((group, figures), time, diff)| (ChannelRow { group, figures }, time, diff)))
    }
}
