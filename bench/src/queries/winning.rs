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

use std::mem;

use alluvium::{Map, State, Time};
use alluvium_timely::{Changes, Context, KeyBy, Spec, Stateful, WorkerState};
use serde::{Deserialize, Serialize};
use timely::ExchangeData;
use timely::dataflow::operators::vec::Map as _;

use super::Events;
use crate::nexmark::{self, Event, Record};

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

/// What the operator sees of an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Input<L, O> {
    Auction { id: u64, date_time: Time, expires: Time, lot: L },
    Bid { auction: u64, bid: O },
}

impl<L, O> Input<L, O> {
    fn of<R: Rules<Lot = L, Bid = O>>(Record { ordinal, event }: &Record) -> Option<Self> {
        match event {
            Event::Auction(auction) => Some(Input::Auction {
                id: auction.id,
                date_time: auction.date_time,
                expires: auction.expires,
                lot: R::lot(auction, *ordinal),
            }),
            Event::Bid(bid) => {
                Some(Input::Bid { auction: bid.auction, bid: R::bid(bid, *ordinal) })
            }
            Event::Person(_) => None,
        }
    }

    fn auction_id(&self) -> u64 {
        match self {
            Input::Auction { id, .. } => *id,
            Input::Bid { auction, .. } => *auction,
        }
    }
}

/// An auction that is not over.
#[derive(Clone, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct Auction<L, B> {
    pub(super) lot: L,
    pub(super) date_time: Time,
    pub(super) expires: Time,
    /// The best of the bids that count for it.
    best: Option<B>,
}

pub(super) type AuctionOf<R> = Auction<<R as Rules>::Lot, <R as Rules>::Best>;

/// What is kept of one auction id.
#[derive(Clone, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
pub(super) struct Item<L, O, B> {
    /// The auction; nearly always there is one.
    auction: Option<Auction<L, B>>,
    /// Further auctions of the same id.
    others: Vec<Auction<L, B>>,
    bids: Vec<O>,
}

pub(super) type ItemOf<R> = Item<<R as Rules>::Lot, <R as Rules>::Bid, <R as Rules>::Best>;

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

    fn is_empty(&self) -> bool {
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
    fn open<R>(&mut self, id: u64, mut auction: Auction<L, B>, out: impl FnMut(R::Out, i64))
    where
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
    fn bid<R>(&mut self, id: u64, bid: O, watermark: Time, mut out: impl FnMut(R::Out, i64))
    where
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
    fn expire<R>(&mut self, watermark: Time, mut over: impl FnMut(Winner<'_, R>, Time))
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
    fn needs_alarm<R>(&self, at: Time) -> bool
    where
        R: Rules<Lot = L, Bid = O, Best = B>,
    {
        self.auction.is_none() && self.bids.iter().all(|bid| R::time(bid) > at)
    }

    /// When the item has to be looked at for its bids: when the first of them may go. Auctions
    /// have timers of their own, and bids stay as long as they do.
    fn bids_due<R>(&self) -> Option<Time>
    where
        R: Rules<Lot = L, Bid = O, Best = B>,
    {
        let first = self.bids.iter().map(R::time).min();
        first.filter(|_| self.auction.is_none())
    }
}

/// The state of `winning-bids`.
struct Winning<R: Rules> {
    items: Map<u64, ItemOf<R>>,
    alarms: Vec<(Time, u64)>,
    emptied: Vec<u64>,
}

type Cx<'a, R> = Context<'a, i64, u64, <R as Rules>::Out>;
type InputOf<R> = Input<<R as Rules>::Lot, <R as Rules>::Bid>;

impl<R: Rules> Winning<R>
where
    ItemOf<R>: State,
{
    /// Applies auctions and bids.
    fn apply(
        &mut self,
        rows: &mut Vec<(u64, InputOf<R>)>,
        context: &mut Cx<'_, R>,
    ) -> alluvium::Result<()> {
        let (alarms, watermark) = (&mut self.alarms, context.watermark());
        let change = |(id, input): &(u64, InputOf<R>), item: &mut ItemOf<R>| match input {
            Input::Auction { date_time, expires, lot, .. } => {
                alarms.push((*expires, *id));
                let (lot, date_time, expires) = (lot.clone(), *date_time, *expires);
                let auction = Auction { lot, date_time, expires, best: None };
                item.open::<R>(*id, auction, |row, diff| context.emit(row, diff));
            }
            Input::Bid { bid, .. } => {
                let at = R::time(bid);
                if item.needs_alarm::<R>(at) {
                    alarms.push((at, *id));
                }
                let out = |row, diff| context.emit(row, diff);
                item.bid::<R>(*id, bid.clone(), watermark, out);
            }
        };
        let done = self.items.update_batch(rows, |row| &row.0, |_| Item::default(), change);
        let done = done.map_err(|error| error.leave_rest(rows));
        self.set_alarms(context).and(done)
    }

    /// Looks at the items whose time has come.
    fn expire(
        &mut self,
        due: &mut Vec<(Time, u64)>,
        context: &mut Cx<'_, R>,
    ) -> alluvium::Result<()> {
        // Those that an error kept from being removed may have got bids since.
        due.extend(self.emptied.drain(..).map(|id| (Time::MIN, id)));
        let (alarms, emptied) = (&mut self.alarms, &mut self.emptied);
        let watermark = context.watermark();
        let change = |(_, id): &(Time, u64), item: &mut ItemOf<R>| {
            item.expire::<R>(watermark, |winner, expires| {
                R::over(winner, expires, |row, diff| context.emit_at(expires, row, diff));
            });
            alarms.extend(item.bids_due::<R>().map(|at| (at, *id)));
            if item.is_empty() {
                emptied.push(*id);
            }
        };
        let done = self.items.update_batch(due, |timer| &timer.1, |_| Item::default(), change);
        let done = done.map_err(|error| error.leave_rest(due));
        while let Some(id) = self.emptied.pop() {
            self.items.remove(&id).inspect_err(|_| self.emptied.push(id))?;
        }
        self.set_alarms(context).and(done)
    }

    fn set_alarms(&mut self, context: &mut Cx<'_, R>) -> alluvium::Result<()> {
        self.alarms.drain(..).try_for_each(|(at, id)| context.set_timer(at, id))
    }
}

/// What `R` makes of the winners among the events.
///
/// # Errors
/// A state cannot be opened.
pub(super) fn winning<'scope, R: Rules>(
    events: Events<'scope>,
    state: &WorkerState,
) -> alluvium::Result<Changes<'scope, i64, R::Out>>
where
    ItemOf<R>: State,
{
    events
        .flat_map(|record| Input::of::<R>(&record))
        .key_by(state, InputOf::<R>::auction_id)
        .stateful(
            Spec::new("winning-bids"),
            |states| {
                let items = states.map("items")?;
                Ok(Winning::<R> { items, alarms: Vec::new(), emptied: Vec::new() })
            },
            |winning, rows, context| winning.apply(rows, context),
            Winning::expire,
        )
}
