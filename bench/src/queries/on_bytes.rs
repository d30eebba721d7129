//! q3 to q8 of the testbed with their states on an engine of bytes: the same operators, with another
//! layout. Which engine is decided once a process, by [`plan`].

use std::cell::RefCell;
use std::sync::OnceLock;

use alluvium::{Error, ErrorKind};
use alluvium_gadget::by_bytes::{ByBytes, Plan};
use alluvium_timely::{Changes, Spec, WorkerState};

use super::hotstorage::{BidderAverageRow, q4_in, q6_in};
use super::q3::{SellerRow, local_sellers};
use super::q4::AverageRow;
use super::q5::{HottestOfWindowRow, hottest_of_windows};
use super::q7::{HighestPriceRow, highest_prices};
use super::q8::{SellerRow as SellerIdRow, sellers};
use super::{Events, Query};

static PLAN: OnceLock<Plan> = OnceLock::new();

thread_local! {
    /// The layout of this worker.
    static LAYOUT: RefCell<Option<ByBytes>> = const { RefCell::new(None) };
}

/// Decides for all queries of this process where their states are.
///
/// # Errors
/// [`crate::Error::Usage`] if that was decided before.
pub fn plan(plan: Plan) -> crate::Result<()> {
    let again = |_| crate::Error::Usage("a process has one engine of bytes".to_owned());
    PLAN.set(plan).map_err(again)
}

/// The layout of this worker.
fn layout() -> alluvium::Result<ByBytes> {
    let plan = PLAN.get().ok_or_else(|| {
        Error::new(ErrorKind::Config, "states on an engine of bytes need its name: --engine")
    })?;
    LAYOUT.with_borrow_mut(|layout| {
        Ok(layout.get_or_insert_with(|| ByBytes::new(plan.clone())).clone())
    })
}

/// Memory of the states of a query in parts of 16, as Table 2 of the paper divides it.
pub fn parts(query: &str) -> &'static [(&'static str, u64)] {
    match query {
        "q3" => &[("local-sellers/left", 2), ("local-sellers/right", 14)],
        "q4-hotstorage" | "q6-hotstorage" => {
            &[("winning-bids/items", 15), ("running-averages/prices", 1)]
        }
        "q5-hotstorage" => &[("bids/windows", 14), ("hottest/windows", 1)],
        "q7-hotstorage" => &[("highest/windows", 16)],
        "q8-hotstorage" => &[("sellers/left", 8), ("sellers/right", 8)],
        _ => &[],
    }
}

macro_rules! on_bytes {
    ($($(#[$doc:meta])* $query:ident $name:literal: $row:ty = $build:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $query;

        impl Query for $query {
            type Row = $row;
            const NAME: &'static str = $name;
            const NO_CHECKPOINTS: Option<&'static str> = Some("is on an engine of bytes");

            fn build<'scope>(
                events: Events<'scope>,
                state: &WorkerState,
            ) -> alluvium::Result<Changes<'scope, i64, $row>> {
                let layout = layout()?;
                ($build)(events, state, &layout)
            }
        }
    )+};
}

on_bytes! {
    /// q3 on an engine of bytes.
    Q3OnBytes "q3-on-bytes": SellerRow = |events, state, layout: &ByBytes| {
        local_sellers(events, state, Spec::new("local-sellers").layout(layout.clone()))
    };
    /// The testbed's q4 on an engine of bytes.
    Q4OnBytes "q4-hotstorage-on-bytes": AverageRow = q4_in;
    /// The testbed's q5 on an engine of bytes.
    Q5OnBytes "q5-hotstorage-on-bytes": HottestOfWindowRow = |events, state, layout: &ByBytes| {
        hottest_of_windows(events, state, |id| Spec::new(id).layout(layout.clone()))
    };
    /// The testbed's q6 on an engine of bytes.
    Q6OnBytes "q6-hotstorage-on-bytes": BidderAverageRow = q6_in;
    /// The testbed's q7 on an engine of bytes.
    Q7OnBytes "q7-hotstorage-on-bytes": HighestPriceRow = |events, state, layout: &ByBytes| {
        highest_prices(events, state, Spec::new("highest").layout(layout.clone()))
    };
    /// The testbed's q8 on an engine of bytes.
    Q8OnBytes "q8-hotstorage-on-bytes": SellerIdRow = |events, state, layout: &ByBytes| {
        sellers(events, state, Spec::new("sellers").layout(layout.clone()))
    };
}
