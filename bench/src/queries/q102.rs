//! q102: `SELECT A.id AS auction_id, A.item_name AS auction_item_name, COUNT(B.auction) AS
//! bid_count FROM auction A JOIN bid B ON A.id = B.auction GROUP BY A.id, A.item_name
//! HAVING COUNT(B.auction) >= (SELECT COUNT(*) / COUNT(DISTINCT auction) FROM bid)`, the average
//! truncated, bids for auctions that there are not counted in it.
//!
//! Two operators. `bid-counts` (see `bid_counts.rs`) keeps the numbers of all auctions.
//! `over-average` has one key, so one worker: it keeps, for ever, both totals and all auctions with
//! bids, those of equal number in a list. When the average passes a number, the auctions in its
//! list leave or join the result; nothing else is looked at. Its lists are keyed by number and its
//! auctions by id, not by the operator's key, so they are looked up one by one.

use alluvium::{Map, State};
use alluvium_timely::{Changes, Context, KeyBy, OperatorState, Spec, Stateful, WorkerState};
use serde::{Deserialize, Serialize};

use super::bid_counts::{CountRow, Counted, Group, bid_counts};
use super::{Events, Query};

/// The auctions with at least as many bids as the average.
#[derive(Clone, Copy, Debug)]
pub struct Q102;

/// What the second operator is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum News {
    /// How many bids auctions have.
    Counted(Counted),
    /// There is one more bid, perhaps the first for its auction.
    Bid { is_first: bool },
}

/// The totals of all bids.
#[derive(Clone, Copy, Debug, Default, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Totals {
    bids: u64,
    auctions: u64,
}

impl Totals {
    /// What is too few; no number is while there are no bids.
    fn average(&self) -> u64 {
        self.bids.checked_div(self.auctions).unwrap_or(0)
    }
}

/// Auctions in the list of their number.
#[derive(Clone, Debug, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Member {
    item_name: String,
    bids: u64,
    before: Option<Group>,
    after: Option<Group>,
}

impl Member {
    fn row(&self, (id, _): Group) -> CountRow {
        CountRow { id, item_name: self.item_name.clone(), bids: self.bids }
    }
}

/// The one key.
const KEY: u64 = 0;

/// The state of `over-average`.
struct Auctions {
    totals: Map<u64, Totals>,
    members: Map<Group, Member>,
    /// The first of the list of each number.
    lists: Map<u64, Group>,
}

type Cx<'a> = Context<'a, i64, u64, CountRow>;
type Keyed = (u64, (News, i64, i64));

impl Auctions {
    fn open(states: &OperatorState<'_>) -> alluvium::Result<Self> {
        let (totals, members) = (states.map("totals")?, states.map("members")?);
        Ok(Self { totals, members, lists: states.map("lists")? })
    }

    fn apply(&mut self, rows: &[Keyed], context: &mut Cx<'_>) -> alluvium::Result<()> {
        let old = self.totals.read(&KEY, |totals| totals.copied())?.unwrap_or_default();
        let mut new = old;
        for (_, (news, ..)) in rows {
            match news {
                News::Counted(counted) => self.grow(counted, old.average(), context)?,
                News::Bid { is_first } => {
                    new.bids += 1;
                    new.auctions += u64::from(*is_first);
                }
            }
        }
        self.totals.update(&KEY, Totals::default, |totals| *totals = new)?;
        for number in old.average()..new.average() {
            self.for_each(number, |row| context.emit(row, -1))?;
        }
        for number in new.average()..old.average() {
            self.for_each(number, |row| context.emit(row, 1))?;
        }
        Ok(())
    }

    /// Moves auctions to the list of their number, unless that is known or overtaken.
    fn grow(
        &mut self,
        counted: &Counted,
        average: u64,
        context: &mut Cx<'_>,
    ) -> alluvium::Result<()> {
        let group = counted.group;
        if let Some(member) = self.members.read(&group, |member| member.cloned())? {
            if member.bids >= counted.bids {
                return Ok(());
            }
            self.unlink(&member)?;
            if member.bids >= average {
                context.emit(member.row(group), -1);
            }
        }
        self.link(counted)?;
        if counted.bids >= average {
            context.emit(counted.row(), 1);
        }
        Ok(())
    }

    /// Takes a member out of its list; its own links stay.
    fn unlink(&mut self, &Member { bids, before, after, .. }: &Member) -> alluvium::Result<()> {
        match (before, after) {
            (Some(before), _) => {
                self.members.modify(&before, |member| member.after = after)?;
            }
            (None, Some(after)) => self.lists.update(&bids, || after, |first| *first = after)?,
            (None, None) => {
                self.lists.remove(&bids)?;
            }
        }
        if let Some(after) = after {
            self.members.modify(&after, |member| member.before = before)?;
        }
        Ok(())
    }

    /// Makes auctions the first in the list of their number.
    fn link(&mut self, counted: &Counted) -> alluvium::Result<()> {
        let &Counted { group, bids, .. } = counted;
        let after = self.lists.read(&bids, |first| first.copied())?;
        let new = || {
            let item_name = counted.item_name.clone();
            Member { item_name, bids, before: None, after }
        };
        self.members.update(&group, new, |member| {
            (member.bids, member.before, member.after) = (bids, None, after);
        })?;
        if let Some(after) = after {
            self.members.modify(&after, |member| member.before = Some(group))?;
        }
        self.lists.update(&bids, || group, |first| *first = group)
    }

    /// Visits the auctions with this number of bids.
    fn for_each(&mut self, number: u64, mut visit: impl FnMut(CountRow)) -> alluvium::Result<()> {
        let mut next = self.lists.read(&number, |first| first.copied())?;
        while let Some(group) = next {
            next = self.members.read(&group, |member| {
                let member = member?;
                visit(member.row(group));
                member.after
            })?;
        }
        Ok(())
    }
}

impl Query for Q102 {
    type Row = CountRow;
    const NAME: &'static str = "q102";

    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, CountRow>> {
        bid_counts(events, state, News::Counted, |is_first| Some(News::Bid { is_first }))?
            .key_by(state, |_: &(News, i64, i64)| KEY)
            .stateful(
                // What it keeps by id is all on one worker.
                Spec::new("over-average").any_keys(),
                Auctions::open,
                |auctions, rows, context| {
                    // A batch that was applied in part cannot be tried again: also an error that
                    // would pass ends the run.
                    let message = "q102 cannot go on in the middle of a batch";
                    auctions.apply(rows, context).map_err(|error| {
                        alluvium::Error::new(alluvium::ErrorKind::Io, message).caused_by(error)
                    })
                },
                |_, _, _| Ok(()),
            )
    }
}
