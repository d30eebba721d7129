//! Rows of results.

/// A row as text, column by column; `None` is NULL.
pub type Fields = Vec<Option<String>>;

/// A span of event time whose rows are written to files of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    /// Where it begins, in nanoseconds.
    pub start: i64,
    /// Where the next one begins.
    pub end: i64,
}

/// A row of a query's result.
pub trait Row: Clone + 'static {
    /// The columns, named and ordered as in the SQL query.
    const COLUMNS: &'static [&'static str];
    /// How many of them, at the end, are the names of a row's partition.
    const PARTITION_COLUMNS: usize = 0;

    /// The columns as text; times are milliseconds since 1970.
    fn fields(&self) -> Fields;

    /// A hash of all columns. Weighted by the rows' changes and summed, wrapping, it tells
    /// results apart without consolidating them.
    fn digest(&self) -> u64;

    /// The partition that it is written to, if the query has partitions.
    fn partition(&self) -> Option<Partition> {
        None
    }
}
