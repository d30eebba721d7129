//! q22: `SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url,
//! '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3 FROM bid`: parts are counted from 0, and one that
//! is not there is NULL.

use alluvium::KeyHash;
use alluvium::types::hash_bytes;
use alluvium_timely::{Changes, WorkerState};

use super::{Events, Fields, Query, Row, bids};
use crate::nexmark::Bid;

/// Adds to bids the directories of their page.
#[derive(Clone, Copy, Debug)]
pub struct Q22;

/// A bid and its directories.
#[derive(Clone, Debug)]
pub struct DirectoriesRow(Bid);

/// The first of the three parts.
const FIRST: usize = 3;

/// The three parts.
fn directories(url: &str) -> [Option<&str>; 3] {
    let mut parts = url.split('/').skip(FIRST);
    std::array::from_fn(|_| parts.next())
}

impl Row for DirectoriesRow {
    const COLUMNS: &'static [&'static str] =
        &["auction", "bidder", "price", "channel", "dir1", "dir2", "dir3"];

    fn fields(&self) -> Fields {
        let Bid { auction, bidder, price, .. } = &self.0;
        let numbers = [auction.to_string(), bidder.to_string(), price.to_string()];
        let texts = numbers.into_iter().chain([self.0.channel().into_owned()]).map(Some);
        let url = self.0.url();
        texts.chain(directories(&url).map(|part| part.map(str::to_owned))).collect()
    }

    fn digest(&self) -> u64 {
        let Bid { auction, bidder, price, .. } = &self.0;
        let (channel, url) = (hash_bytes(self.0.channel().as_bytes()), self.0.url());
        // NULL is no hash of a text.
        let parts =
            directories(&url).map(|part| part.map_or(0, |part| hash_bytes(part.as_bytes())));
        ((*auction, *bidder, *price), channel, parts).key_hash()
    }
}

impl Query for Q22 {
    type Row = DirectoriesRow;
    const NAME: &'static str = "q22";

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, DirectoriesRow>> {
        Ok(bids(events, |bid| Some(DirectoriesRow(bid))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_from_0_and_may_be_missing_or_empty() {
        for (url, expected) in [
            ("https://example.com/a/b/c/d", [Some("a"), Some("b"), Some("c")]),
            ("https://example.com/a", [Some("a"), None, None]),
            ("https://example.com//b/", [Some(""), Some("b"), Some("")]),
            ("Google", [None; 3]),
            ("", [None; 3]),
        ] {
            assert_eq!(directories(url), expected, "{url}");
        }
    }
}
