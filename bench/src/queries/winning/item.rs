//! What is kept of one auction id: its auctions, with the best bid of each, and the bids that an
//! auction may still come for.

use std::mem;

use alluvium::{State, Time};

use super::{Raise, Rules, Winner};

/// An auction that is not over.
#[derive(Clone, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(in crate::queries) struct Auction<L, B> {
    pub(in crate::queries) lot: L,
    pub(in crate::queries) date_time: Time,
    pub(in crate::queries) expires: Time,
    /// The best of the bids that count for it.
    pub(super) best: Option<B>,
}

pub(in crate::queries) type AuctionOf<R> = Auction<<R as Rules>::Lot, <R as Rules>::Best>;

/// What is kept of one auction id.
#[derive(Clone, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(in crate::queries) struct Item<L, O, B> {
    /// The auction; nearly always there is one.
    auction: Option<Auction<L, B>>,
    /// Further auctions of the same id.
    others: Vec<Auction<L, B>>,
    bids: Vec<O>,
}

pub(in crate::queries) type ItemOf<R> =
    Item<<R as Rules>::Lot, <R as Rules>::Bid, <R as Rules>::Best>;

impl<L, O, B> Default for Item<L, O, B> {
    fn default() -> Self {
        Self { auction: None, others: Vec::new(), bids: Vec::new() }
    }
}

impl<L, O, B> Item<L, O, B> {
    fn auctions(&self) -> impl Iterator<Item = &Auction<L, B>> {
        self.auction.iter().chain(&self.others)
    }

    fn auction_at(&mut self, place: usize) -> Option<&mut Auction<L, B>> {
        match place.checked_sub(1) {
            None => self.auction.as_mut(),
            Some(place) => self.others.get_mut(place),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.auction.is_none() && self.bids.is_empty()
    }

    /// The auctions that have one winner together with that of `lot`.
    fn group<R>(&self, lot: &L) -> impl Iterator<Item = &Auction<L, B>>
    where
        R: Rules<Lot = L, Bid = O, Best = B>,
    {
        self.auctions().filter(|auction| R::same_group(&auction.lot, lot))
    }

    fn winner<R>(&self, lot: &L) -> Option<Winner<'_, R>>
    where
        R: Rules<Lot = L, Bid = O, Best = B>,
    {
        let winners = self.group::<R>(lot).filter_map(|auction| {
            Some(Winner::<R> { lot: &auction.lot, best: auction.best.as_ref()? })
        });
        winners.min_by_key(Winner::rank)
    }

    /// When the last auction of the group closes.
    fn group_expires<R>(&self, lot: &L) -> Time
    where
        R: Rules<Lot = L, Bid = O, Best = B>,
    {
        self.group::<R>(lot).map(|auction| auction.expires).max().unwrap_or(Time::MIN)
    }

    /// Tells what happened to the group of the auction at `place`, whose winner was `from`.
    fn tell<R>(&mut self, id: u64, place: usize, from: Option<(L, B)>, out: impl FnMut(R::Out, i64))
    where
        R: Rules<Lot = L, Bid = O, Best = B>,
    {
        let Some(auction) = self.auctions().nth(place) else { return };
        if let Some(to) = self.winner::<R>(&auction.lot) {
            let expires = self.group_expires::<R>(&auction.lot);
            let from = from.as_ref().map(|(lot, best)| Winner { lot, best });
            R::raised(Raise { auction: id, expires, from, to }, out);
        }
    }

    /// Adds an auction, to which bids that came before it apply.
    pub(super) fn open<R>(
        &mut self,
        id: u64,
        mut auction: Auction<L, B>,
        out: impl FnMut(R::Out, i64),
    ) where
        R: Rules<Lot = L, Bid = O, Best = B>,
        L: Clone,
        B: Clone,
    {
        let bids = self.bids.iter().filter(|bid| R::counts(&auction, bid));
        auction.best = bids.min_by_key(|bid| R::rank_of_bid(&auction.lot, bid)).map(R::best);
        let from = self.winner::<R>(&auction.lot);
        let from = from.map(|Winner { lot, best }| (lot.clone(), best.clone()));
        let place = self.auctions().count();
        match &self.auction {
            None => self.auction = Some(auction),
            Some(_) => self.others.push(auction),
        }
        self.tell::<R>(id, place, from, out);
    }

    /// Adds a bid, and keeps it for auctions to come.
    pub(super) fn bid<R>(
        &mut self,
        id: u64,
        bid: O,
        watermark: Time,
        mut out: impl FnMut(R::Out, i64),
    ) where
        R: Rules<Lot = L, Bid = O, Best = B>,
        L: Clone,
        B: Clone,
    {
        for place in 0..=self.others.len() {
            let Some(auction) = self.auctions().nth(place) else { break };
            let is_better = |best| R::rank_of_bid(&auction.lot, &bid) < R::rank(&auction.lot, best);
            if R::counts(auction, &bid) && auction.best.as_ref().is_none_or(is_better) {
                let from = self.winner::<R>(&auction.lot);
                let from = from.map(|Winner { lot, best }| (lot.clone(), best.clone()));
                if let Some(auction) = self.auction_at(place) {
                    auction.best = Some(R::best(&bid));
                }
                self.tell::<R>(id, place, from, &mut out);
            }
        }
        if R::time(&bid) >= watermark {
            if self.bids.len() == self.bids.capacity() {
                self.bids.retain(|bid| R::time(bid) >= watermark);
            }
            self.bids.push(bid);
        }
    }

    /// Drops what nothing can come for.
    pub(super) fn expire<R>(&mut self, watermark: Time, mut over: impl FnMut(Winner<'_, R>, Time))
    where
        R: Rules<Lot = L, Bid = O, Best = B>,
    {
        self.bids.retain(|bid| R::time(bid) >= watermark);
        if self.bids.is_empty() {
            self.bids = Vec::new();
        }
        let ends = self.auctions().map(|auction| self.group_expires::<R>(&auction.lot));
        let mut is_over: Vec<bool> = ends.map(|end| end < watermark).collect();
        for (auction, _) in self.auctions().zip(&is_over).filter(|(_, over)| **over) {
            // Once for each group: at the auction that has the winner.
            if let Some(winner) = self.winner::<R>(&auction.lot)
                && std::ptr::eq(winner.lot, &auction.lot)
                && auction.best.is_some()
            {
                over(winner, self.group_expires::<R>(&auction.lot));
            }
        }
        if is_over.contains(&true) {
            let all = self.auction.take().into_iter().chain(mem::take(&mut self.others));
            let mut left = all.zip(is_over.drain(..)).filter(|(_, over)| !over);
            self.auction = left.next().map(|(auction, _)| auction);
            self.others = left.map(|(auction, _)| auction).collect();
        }
    }

    /// Whether a bid of this time would be the first that may go.
    pub(super) fn needs_alarm<R>(&self, at: Time) -> bool
    where
        R: Rules<Lot = L, Bid = O, Best = B>,
    {
        self.auction.is_none() && self.bids.iter().all(|bid| R::time(bid) > at)
    }

    /// When the item has to be looked at for its bids: when the first of them may go. Auctions
    /// have timers of their own, and bids stay as long as they do.
    pub(super) fn bids_due<R>(&self) -> Option<Time>
    where
        R: Rules<Lot = L, Bid = O, Best = B>,
    {
        let first = self.bids.iter().map(R::time).min();
        first.filter(|_| self.auction.is_none())
    }
}
