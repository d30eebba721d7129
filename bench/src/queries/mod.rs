//! The Nexmark queries with the semantics of the SQL ones, on managed state.
//!
//! Timely's timestamp is event time (but for `q12-processing-time`), and the frontier is the watermark W: no event before it is
//! still to come. Input tables are multisets of rows. A query emits changes of its result, which
//! at any time add up to what SQL gives for the events so far. Where SQL leaves open which of
//! several rows comes first, the ordinals of events decide. The two queries of `hotstorage.rs` are
//! not SQL.

mod bid_counts;
mod day;
mod distinct;
mod hotstorage;
mod on_bytes;
mod per_auction;
mod plain;
mod q0;
mod q1;
mod q10;
mod q101;
mod q102;
mod q103;
mod q104;
mod q105;
mod q106;
mod q11;
mod q13;
mod q14;
mod q15;
mod q16;
mod q17;
mod q18;
mod q19;
mod q2;
mod q20;
mod q21;
mod q22;
mod q3;
mod q4;
mod q5;
mod q6;
mod q7;
mod q8;
mod q9;
mod row;
pub(crate) mod row_by_row;
mod side_table;
mod straight;
mod top;
mod whole;
mod winning;

use alluvium_timely::{Changes, NodeConfig, WorkerState};
use timely::dataflow::StreamVec;

use crate::nexmark::Record;

pub use hotstorage::{Q4HotStorage, Q4Plain, Q6HotStorage, Q6Plain};
pub use on_bytes::{Q3OnBytes, Q4OnBytes, Q5OnBytes, Q6OnBytes, Q7OnBytes, Q8OnBytes, parts, plan};
pub use plain::{Q3Plain, Q5Plain, Q7Plain, Q8Plain};
pub use q0::Q0;
pub use q1::Q1;
pub use q2::Q2;
pub use q3::Q3;
pub use q4::{Q4, StraightQ4};
pub use q5::{Q5, Q5HotStorage};
pub use q6::Q6;
pub use q7::{Q7, Q7HotStorage};
pub use q8::{Q8, Q8HotStorage};
pub use q9::Q9;
pub use q10::Q10;
pub use q11::{Q11, Q12, Q12ProcessingTime};
pub use q13::Q13;
pub use q14::Q14;
pub use q15::Q15;
pub use q16::Q16;
pub use q17::Q17;
pub use q18::Q18;
pub use q19::Q19;
pub use q20::{Q20, StraightQ20};
pub use q21::Q21;
pub use q22::Q22;
pub use q101::Q101;
pub use q102::Q102;
pub use q103::Q103;
pub use q104::Q104;
pub use q105::Q105;
pub use q106::Q106;
pub use row::{Fields, Partition, Row};
pub use side_table::SideTable;
pub use straight::Straight;

/// A stream of events, each not before the timestamp it is sent with.
pub type Events<'scope> = StreamVec<'scope, i64, Record>;

/// A query.
pub trait Query: 'static {
    /// A row of its result.
    type Row: Row;

    /// Its name, such as `q4`.
    const NAME: &'static str;

    /// Timestamps are when events arrive, by a clock of the caller's, and not when they happened.
    const IN_PROCESSING_TIME: bool = false;
    /// Why a run of it cannot have checkpoints, if so.
    const NO_CHECKPOINTS: Option<&'static str> = None;

    /// Declares the tables that the query's workers share.
    ///
    /// # Errors
    /// A file of `side_input` cannot be read or is malformed.
    fn tables(node: NodeConfig, side_input: &SideTable) -> crate::Result<NodeConfig> {
        let _ = side_input;
        Ok(node)
    }

    /// Builds its dataflow; states are in the store of `state`, named by operators of the query.
    ///
    /// # Errors
    /// A state cannot be opened.
    fn build<'scope>(
        events: Events<'scope>,
        state: &WorkerState,
    ) -> alluvium::Result<Changes<'scope, i64, Self::Row>>;
}

/// Something to be done for a query that is known by name only at run time.
pub trait ForQuery {
    /// What comes out.
    type Output;

    /// Does it.
    fn run<Q: Query>(self) -> Self::Output;
}

/// Makes the list of names and the choice by name from one list of queries.
macro_rules! registry {
    ($($query:ident),* $(,)?) => {
        /// Names of the queries that there are.
        pub const NAMES: &[&str] = &[$($query::NAME),*];

        /// Does `work` for the query with this name, if there is one.
        pub fn with_query<W: ForQuery>(name: &str, work: W) -> Option<W::Output> {
            Some(match name {
                $($query::NAME => work.run::<$query>(),)*
                _ => return None,
            })
        }
    };
}

registry!(
    Q0,
    Q1,
    Q2,
    Q3,
    Q3Plain,
    Q4,
    Q4HotStorage,
    Q4Plain,
    Q5,
    Q5HotStorage,
    Q5Plain,
    Q6,
    Q6HotStorage,
    Q6Plain,
    Q7,
    Q7HotStorage,
    Q7Plain,
    Q8,
    Q8HotStorage,
    Q8Plain,
    Q9,
    Q10,
    Q11,
    Q12,
    Q12ProcessingTime,
    Q13,
    Q14,
    Q15,
    Q16,
    Q17,
    Q18,
    Q19,
    Q20,
    Q21,
    Q22,
    Q101,
    Q102,
    Q103,
    Q104,
    Q105,
    Q106,
    Q3OnBytes,
    Q4OnBytes,
    Q5OnBytes,
    Q6OnBytes,
    Q7OnBytes,
    Q8OnBytes,
);

/// The bids among the events, as `row` makes rows of them; no state, nothing moves.
fn bids<'scope, R: Row>(
    events: Events<'scope>,
    mut row: impl FnMut(crate::nexmark::Bid) -> Option<R> + 'static,
) -> Changes<'scope, i64, R> {
    use timely::container::CapacityContainerBuilder;
    use timely::dataflow::channels::pact::Pipeline;
    use timely::dataflow::operators::generic::operator::Operator;

    type Builder<R> = CapacityContainerBuilder<Vec<(R, i64, i64)>>;
    events.unary::<Builder<R>, _, _, _>(Pipeline, "bids", |_, _| {
        move |input, output| {
            input.for_each_time(|capability, batches| {
                let time = *capability.time();
                let events = batches.flat_map(|batch| batch.drain(..));
                let rows = events.filter_map(|record| match record.event {
                    crate::nexmark::Event::Bid(bid) => Some((row(bid)?, time, 1)),
                    _ => None,
                });
                output.session(&capability).give_iterator(rows);
            });
        }
    })
}
