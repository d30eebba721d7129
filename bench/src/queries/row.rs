//! Rows of results.

/// A row as text, column by column; `None` is NULL.
pub type Fields = Vec<Option<String>>;

/// A row of a query's result.
pub trait Row: Clone + 'static {
    /// The columns, named and ordered as in the SQL query.
    const COLUMNS: &'static [&'static str];

    /// The columns as text; times are milliseconds since 1970.
    fn fields(&self) -> Fields;

    /// A hash of all columns. Weighted by the rows' changes and summed, wrapping, it tells
    /// results apart without consolidating them.
    fn digest(&self) -> u64;
}
