//! q3 and q8: joins of two sides that are kept for ever.

use alluvium::Time;
use timely::dataflow::operators::core::OkErr;

use super::super::q3::{Item, Seller, SellerRow, relevant};
use super::super::q8::{SellerRow as SellerIdRow, deeds, is_seller};
use super::{join, plain_query};
use crate::queries::row_by_row::RowByRow;

plain_query! {
    /// q3 on maps of the standard library.
    Q3Plain, "q3-plain", SellerRow: |events| {
        let (sellers, items) = events.flat_map(|record| relevant(record.event)).ok_err(|side| side);
        join(
            (sellers, |seller: &Seller| seller.id),
            (items, |item: &Item| item.seller),
            "plain-local-sellers",
            |seller, item| Some(SellerRow::of(seller, item)),
        )
    }
}

plain_query! {
    /// The testbed's q8 on maps of the standard library.
    Q8Plain, "q8-hotstorage-plain", SellerIdRow: |events| {
        let key = |row: &(u64, Time)| row.0;
        let (people, auctions) = deeds(events);
        join((people, key), (auctions, key), "plain-sellers", is_seller)
    }
}
