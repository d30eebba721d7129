//! `q3-plain`: q3 as it is written in Timely without managed state: two `HashMap`s in one operator.
//! What managed state costs shows beside it. Nothing of it is in a checkpoint.

use std::collections::HashMap;

use alluvium::KeyHash;
use alluvium_timely::{Changes, WorkerState};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::core::OkErr;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Map;

use super::q3::{Item, Seller, SellerRow, relevant};
use super::{Events, Query};

/// q3 on maps of the standard library.
#[derive(Clone, Copy, Debug)]
pub struct Q3Plain;

impl Query for Q3Plain {
    type Row = SellerRow;
    const NAME: &'static str = "q3-plain";
    const NO_CHECKPOINTS: Option<&'static str> = Some("keeps its state in plain maps");

    fn build<'scope>(
        events: Events<'scope>,
        _: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, SellerRow>> {
        type Builder = CapacityContainerBuilder<Vec<(SellerRow, i64, i64)>>;
        let (sellers, items) = events.flat_map(|record| relevant(record.event)).ok_err(|side| side);
        let by_id = Exchange::new(|seller: &Seller| seller.id.key_hash());
        let by_seller = Exchange::new(|item: &Item| item.seller.key_hash());
        let mut sellers_by_id: HashMap<u64, Vec<Seller>> = HashMap::new();
        let mut items_by_seller: HashMap<u64, Vec<Item>> = HashMap::new();
        let mut rows = Vec::new();
        let name = "plain-local-sellers";
        Ok(sellers.binary::<_, Builder, _, _, _, _>(items, by_id, by_seller, name, |_, _| {
            move |left, right, output| {
                left.for_each_time(|capability, batches| {
                    let time = *capability.time();
                    for seller in batches.flat_map(|batch| batch.drain(..)) {
                        let items = items_by_seller.get(&seller.id).into_iter().flatten();
                        rows.extend(items.map(|item| (SellerRow::of(&seller, item), time, 1)));
                        sellers_by_id.entry(seller.id).or_default().push(seller);
                    }
                    output.session(&capability).give_iterator(rows.drain(..));
                });
                right.for_each_time(|capability, batches| {
                    let time = *capability.time();
                    for item in batches.flat_map(|batch| batch.drain(..)) {
                        let sellers = sellers_by_id.get(&item.seller).into_iter().flatten();
                        rows.extend(sellers.map(|seller| (SellerRow::of(seller, &item), time, 1)));
                        items_by_seller.entry(item.seller).or_default().push(item);
                    }
                    output.session(&capability).give_iterator(rows.drain(..));
                });
            }
        }))
    }
}
