//! A query without the type of its rows: so a run is compiled once, and not for each query.

use alluvium_timely::{NodeConfig, WorkerState};

use super::output::Output;
use crate::Result;
use crate::args::NexmarkArgs;
use crate::queries::{Events, Query, Row, SideTable};

/// What a run needs to know of a [`Query`].
pub(super) struct ErasedQuery {
    pub(super) name: &'static str,
    pub(super) is_in_processing_time: bool,
    pub(super) no_checkpoints: Option<&'static str>,
    /// Names of the columns of its rows.
    pub(super) columns: &'static [&'static str],
    /// How many of them name a partition.
    pub(super) partition_columns: usize,
    pub(super) tables: fn(NodeConfig, &SideTable) -> Result<NodeConfig>,
    /// Builds its dataflow with the outputs that are asked for.
    pub(super) build: for<'s> fn(Events<'s>, &WorkerState, &NexmarkArgs, u64) -> Result<Output>,
}

impl ErasedQuery {
    pub(super) fn of<Q: Query>() -> &'static Self {
        const {
            &Self {
                name: Q::NAME,
                is_in_processing_time: Q::IN_PROCESSING_TIME,
                no_checkpoints: Q::NO_CHECKPOINTS,
                columns: Q::Row::COLUMNS,
                partition_columns: Q::Row::PARTITION_COLUMNS,
                tables: Q::tables,
                build: build::<Q>,
            }
        }
    }
}

fn build<Q: Query>(
    events: Events<'_>,
    state: &WorkerState,
    args: &NexmarkArgs,
    ledger_bytes: u64,
) -> Result<Output> {
    Output::attach(Q::build(events, state)?, args, state, ledger_bytes)
}
