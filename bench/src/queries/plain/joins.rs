//! q3 and q8: joins of two sides that are kept for ever.

use alluvium::Time;
use alluvium_timely::{Changes, WorkerState};
use timely::dataflow::operators::core::OkErr;
use timely::dataflow::operators::vec::Map;

use super::super::q3::{Item, Seller, SellerRow, relevant};
use super::super::q8::{SellerRow as SellerIdRow, deeds, is_seller};
use super::super::{Events, Query};
use super::{NO_CHECKPOINTS, join};

/// q3 on maps of the standard library.
#[derive(Clone, Copy, Debug)]
pub struct Q3Plain;

impl Query for Q3Plain {
    type Row = SellerRow;
    const NAME: &'static str = "q3-plain";
    const NO_CHECKPOINTS: Option<&'static str> = NO_CHECKPOINTS;

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, SellerRow>> {
        let (sellers, items) = events.flat_map(|record| relevant(record.event)).ok_err(|side| side);
        Ok(join(
            (sellers, |seller: &Seller| seller.id),
            (items, |item: &Item| item.seller),
            "plain-local-sellers",
            |seller, item| Some(SellerRow::of(seller, item)),
        ))
    }
}

/// The testbed's q8 on maps of the standard library.
#[derive(Clone, Copy, Debug)]
pub struct Q8Plain;

impl Query for Q8Plain {
    type Row = SellerIdRow;
    const NAME: &'static str = "q8-hotstorage-plain";
    const NO_CHECKPOINTS: Option<&'static str> = NO_CHECKPOINTS;

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, SellerIdRow>> {
        let key = |row: &(u64, Time)| row.0;
        let (people, auctions) = deeds(events);
        Ok(join((people, key), (auctions, key), "plain-sellers", is_seller))
    }
}
