//! Queries without a dataflow: the same states, reached by the same code in the same batches, in
//! one loop. What a dataflow costs shows beside it.

use alluvium::{Store, Time};

use super::Query;
use crate::nexmark::Record;

/// The state of a query that is driven straight.
pub trait Straight: Sized + 'static {
    /// The query.
    type Query: Query;

    /// Opens the states.
    ///
    /// # Errors
    /// A state cannot be opened.
    fn open(store: &Store) -> alluvium::Result<Self>;

    /// Applies events, none of which is before the watermark, and tells how the result changes.
    ///
    /// # Errors
    /// A state's; the run is over.
    fn apply(
        &mut self,
        events: Vec<Record>,
        change: impl FnMut(<Self::Query as Query>::Row, i64),
    ) -> alluvium::Result<()>;

    /// Moves the watermark on, which is when state that is bound to time goes.
    ///
    /// # Errors
    /// A state's; the run is over.
    fn advance(&mut self, watermark: Time) -> alluvium::Result<()> {
        let _ = watermark;
        Ok(())
    }
}
