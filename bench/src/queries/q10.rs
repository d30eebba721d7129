//! q10: `SELECT auction, bidder, price, date_time, extra, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS date,
//! DATE_FORMAT(date_time, 'HH:mm') AS time FROM bid`, into a table that is partitioned by date and
//! time, in UTC. There is no state: a run writes the partitions to files.

use alluvium::KeyHash;
use alluvium::types::hash_bytes;
use alluvium_timely::{Changes, WorkerState};

use super::day::{date, day, minute_of_day};
use super::{Events, Fields, Partition, Query, Row, bids};
use crate::nexmark::Bid;

/// Logs bids to files by day and minute.
#[derive(Clone, Copy, Debug)]
pub struct Q10;

/// A bid with its day and minute.
#[derive(Clone, Debug)]
pub struct LoggedRow(Bid);

const MINUTE_NS: i64 = 60_000_000_000;

impl LoggedRow {
    /// Date and time as text.
    fn partition_columns(&self) -> [String; 2] {
        let (at, minute) = (self.0.date_time, minute_of_day(self.0.date_time));
        [date(day(at)), format!("{:02}:{:02}", minute / 60, minute % 60)]
    }
}

impl Row for LoggedRow {
    const COLUMNS: &'static [&'static str] =
        &["auction", "bidder", "price", "date_time", "extra", "date", "time"];
    const PARTITION_COLUMNS: usize = 2;

    fn fields(&self) -> Fields {
        let Bid { auction, bidder, price, date_time, .. } = &self.0;
        let [date, time] = self.partition_columns();
        vec![
            Some(auction.to_string()),
            Some(bidder.to_string()),
            Some(price.to_string()),
            Some(date_time.as_ms().to_string()),
            Some(self.0.extra().into_owned()),
            Some(date),
            Some(time),
        ]
    }

    fn digest(&self) -> u64 {
        let Bid { auction, bidder, price, date_time, .. } = &self.0;
        // Date and time are functions of the time.
        let numbers = (*auction, *bidder, *price, *date_time);
        (numbers, hash_bytes(self.0.extra().as_bytes())).key_hash()
    }

    fn partition(&self) -> Option<Partition> {
        let at = self.0.date_time.0;
        let start = at.div_euclid(MINUTE_NS).saturating_mul(MINUTE_NS);
        Some(Partition { start, end: start.saturating_add(MINUTE_NS) })
    }
}

impl Query for Q10 {
    type Row = LoggedRow;
    const NAME: &'static str = "q10";
    const NO_CHECKPOINTS: Option<&'static str> = Some("writes partitions to files");

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, LoggedRow>> {
        Ok(bids(events, |bid| Some(LoggedRow(bid))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexmark::{BidText, Text};
    use alluvium::Time;

    #[test]
    fn a_bid_is_in_the_minute_of_its_time() {
        for (ms, date, time, start_ms) in [
            (0, "1970-01-01", "00:00", 0),
            (59_999, "1970-01-01", "00:00", 0),
            (60_000, "1970-01-01", "00:01", 60_000),
            (-1, "1969-12-31", "23:59", -60_000),
            (1_436_918_400_000 + 13 * 3_600_000, "2015-07-15", "13:00", 1_436_965_200_000),
        ] {
            let text = Text::Owned(BidText::default().into());
            let date_time = Time::from_ms(ms);
            let row = LoggedRow(Bid { auction: 1, bidder: 2, price: 3, date_time, text });
            assert_eq!(row.partition_columns(), [date, time], "{ms} ms");
            let start = start_ms * 1_000_000;
            assert_eq!(row.partition(), Some(Partition { start, end: start + MINUTE_NS }));
        }
    }
}
