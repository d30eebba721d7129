//! Which bids win which auctions: the core of q4, q6, q9 and q106, and of the HotStorage'20
//! variants of q4 and q6.
//!
//! The operator `winning-bids` keeps, per auction id, the auctions that a bid may still be for and
//! the bids that an auction may still come for. A query says by [`Rules`] what it keeps of both,
//! which bids count, which is the best, and what it wants to know. Auctions are a multiset: those
//! of one id that a query does not tell apart are a group, which has one winner.
//!
//! # When state goes
//!
//! An auction goes when W > expires, and when no other auction of its group is open: no bid for it
//! can come. A bid is for any auction of its id that began before it, so once W > its time no
//! auction can come that it is for: then it goes if its id has no auction, or else when room is
//! needed or the last auction of its id goes. An auction id is forgotten with its last auction and
//! bid; a further auction of the same group would be counted as another one.

mod item;
mod operator;
mod plain;
mod straight;

use alluvium::{State, Time};
use timely::ExchangeData;

use crate::nexmark;

pub(super) use item::{AuctionOf, ItemOf};
pub(super) use operator::{WINNING, winning, winning_in};
pub(super) use plain::winning_plain;
pub(super) use straight::StraightWinning;

/// What a query makes of auctions and bids.
pub(super) trait Rules: 'static {
    /// What is kept of an auction beside its period.
    type Lot: ExchangeData + State;
    /// What is kept of a bid that an auction may still come for.
    type Bid: ExchangeData + State;
    /// What is kept of an auction's best bid.
    type Best: State;
    /// Where a bid stands among those for an auction: the lower, the better.
    type Rank: Ord;
    /// What comes out.
    type Out: Clone + 'static;

    /// What is kept of the auction.
    fn lot(auction: &nexmark::Auction, ordinal: u64) -> Self::Lot;

    /// What is kept of the bid.
    fn bid(bid: &nexmark::Bid, ordinal: u64) -> Self::Bid;

    /// When the bid was made.
    fn time(bid: &Self::Bid) -> Time;

    /// Whether a bid counts for an auction of its id.
    fn counts(auction: &AuctionOf<Self>, bid: &Self::Bid) -> bool {
        (auction.date_time..=auction.expires).contains(&Self::time(bid))
    }

    /// Whether two auctions of the same id have one winner together.
    fn same_group(one: &Self::Lot, other: &Self::Lot) -> bool;

    /// What is kept of a bid that is the best.
    fn best(bid: &Self::Bid) -> Self::Best;

    /// Where a bid that counts for the auction stands.
    fn rank_of_bid(lot: &Self::Lot, bid: &Self::Bid) -> Self::Rank;

    /// Where the best bid of the auction stands.
    fn rank(lot: &Self::Lot, best: &Self::Best) -> Self::Rank;

    /// A group may have a new winner, or be open for longer: says what comes out of that.
    fn raised(raise: Raise<'_, Self>, out: impl FnMut(Self::Out, i64));

    /// A group with a winner is over: says what comes out of that, from its end on.
    fn over(_winner: Winner<'_, Self>, _expires: Time, _out: impl FnMut(Self::Out, i64)) {}
}

/// An auction and the bid that wins its group.
pub(super) struct Winner<'a, R: Rules + ?Sized> {
    pub(super) lot: &'a R::Lot,
    pub(super) best: &'a R::Best,
}

impl<R: Rules + ?Sized> Winner<'_, R> {
    /// Where it stands.
    pub(super) fn rank(&self) -> R::Rank {
        R::rank(self.lot, self.best)
    }
}

/// What happened to a group.
pub(super) struct Raise<'a, R: Rules + ?Sized> {
    /// The auctions' id.
    pub(super) auction: u64,
    /// When the last auction of the group closes.
    pub(super) expires: Time,
    /// The winner before, if there was one.
    pub(super) from: Option<Winner<'a, R>>,
    /// The winner from now on.
    pub(super) to: Winner<'a, R>,
}

impl<R: Rules + ?Sized> Raise<'_, R> {
    /// Whether another bid, or the same for another auction, wins now.
    pub(super) fn is_new(&self) -> bool {
        self.from.as_ref().is_none_or(|from| from.rank() != self.to.rank())
    }
}
