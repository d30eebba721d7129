//! Who is who: the kinds of events, and which ids exist at each of them.
//!
//! Events come in cycles of 50: one person, three auctions, 46 bids. Ids are dense from
//! [`FIRST_ID`] in order of appearance. References go to a hot id, or to one of the recent ids
//! or a few that are not there yet: joins must be ready for either side first. All functions
//! take the event number and give ids without the offset [`FIRST_ID`] unless they say so.

use super::random::Random;

/// Events in a cycle.
pub const CYCLE: u64 = 50;
/// People in a cycle, at its beginning.
pub const PEOPLE_PER_CYCLE: u64 = 1;
/// Auctions in a cycle, after the people.
pub const AUCTIONS_PER_CYCLE: u64 = 3;
/// The first person's and the first auction's id.
pub const FIRST_ID: u64 = 1_000;
/// The first of five categories.
pub const FIRST_CATEGORY: u64 = 10;

const CATEGORIES: u64 = 5;
/// Recent people who sell and bid.
const ACTIVE_PEOPLE: u64 = 1_000;
/// References reach this many ids into the future.
const LEAD: u64 = 10;
/// A hot id is the first of a run of this many.
const HOT_RUN: u64 = 100;
/// One reference in so many is not to the hot auction, seller or bidder.
const HOT_AUCTION_RATIO: u64 = 2;
const HOT_SELLER_RATIO: u64 = 4;
const HOT_BIDDER_RATIO: u64 = 4;

/// What an event number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Person,
    Auction,
    Bid,
}

pub(super) fn kind(number: u64) -> Kind {
    match number % CYCLE {
        0 => Kind::Person,
        1..=AUCTIONS_PER_CYCLE => Kind::Auction,
        _ => Kind::Bid,
    }
}

/// The newest person at event `number`: there is one from the first event on.
pub(super) fn last_person(number: u64) -> u64 {
    number / CYCLE
}

/// The newest auction at event `number`; for an auction, itself. Event 0 has none, and names the
/// first so that nothing here is negative: no bid and no auction ever asks it.
pub(super) fn last_auction(number: u64) -> u64 {
    let (cycle, within) = (number / CYCLE, number % CYCLE);
    let seen = cycle * AUCTIONS_PER_CYCLE + within.min(AUCTIONS_PER_CYCLE);
    seen.saturating_sub(1)
}

/// The auction that a bid at event `number` is for, with `in_flight` auctions to choose from.
pub(super) fn bid_auction(number: u64, in_flight: u64, random: &mut Random) -> u64 {
    let last = last_auction(number);
    if random.below(HOT_AUCTION_RATIO) > 0 {
        return last / HOT_RUN * HOT_RUN;
    }
    let oldest = last.saturating_sub(in_flight);
    oldest + random.below(last - oldest + 1 + LEAD)
}

/// The person who bids at event `number`: beside the hot seller, not the same.
pub(super) fn bidder(number: u64, random: &mut Random) -> u64 {
    if random.below(HOT_BIDDER_RATIO) > 0 {
        return last_person(number) / HOT_RUN * HOT_RUN + 1;
    }
    recent_person(number, random)
}

/// The person who opens an auction at event `number`.
pub(super) fn seller(number: u64, random: &mut Random) -> u64 {
    if random.below(HOT_SELLER_RATIO) > 0 {
        return last_person(number) / HOT_RUN * HOT_RUN;
    }
    recent_person(number, random)
}

/// A category's id.
pub(super) fn category(random: &mut Random) -> u64 {
    FIRST_CATEGORY + random.below(CATEGORIES)
}

fn recent_person(number: u64, random: &mut Random) -> u64 {
    let people = last_person(number) + 1;
    let active = people.min(ACTIVE_PEOPLE);
    people - active + random.below(active + LEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_one_person_three_auctions_and_46_bids() {
        let kinds: Vec<_> = (0..CYCLE).map(kind).collect();
        let count = |k| kinds.iter().filter(|&&found| found == k).count();
        assert_eq!((count(Kind::Person), count(Kind::Auction), count(Kind::Bid)), (1, 3, 46));
    }

    #[test]
    fn auction_ids_are_dense() {
        let opened: Vec<_> =
            (0..5_000).filter(|&n| kind(n) == Kind::Auction).map(last_auction).collect();
        assert!(opened.iter().copied().eq(0..300));
        assert_eq!((last_auction(4), last_auction(49), last_auction(50)), (2, 2, 2));
    }
}
