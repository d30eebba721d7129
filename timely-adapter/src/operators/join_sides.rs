//! What a join keeps of its two streams, and how it pairs them.

use std::cell::Cell;

use alluvium::{AnyLayout, Key, Layout, Map, Result, State};

/// The two sides of a [`join`](crate::Join::join) without a dataflow: for loops of your own, and
/// for measuring what the dataflow costs. Both sides are multisets of rows, kept for ever.
///
/// ```
/// use alluvium::{MIB, Store};
/// use alluvium_timely::JoinSides;
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let left = store.map::<u64, Vec<String>>("left").open()?;
/// let right = store.map::<u64, Vec<i64>>("right").open()?;
/// let mut sides = JoinSides::new(left, right);
/// let mut pairs = Vec::new();
/// let pair = |_: &u64, name: &String, day: &i64| (name.clone(), *day);
/// sides.add_left(&mut vec![(1, "ann".to_owned())], pair, |pair| pairs.push(pair))?;
/// sides.add_right(&mut vec![(1, 30)], pair, |pair| pairs.push(pair))?;
/// assert_eq!(pairs, [("ann".to_owned(), 30)]);
/// # Ok::<(), alluvium::Error>(())
/// ```
pub struct JoinSides<K, A, B, R, L = AnyLayout>
where
    K: Key,
    A: State,
    B: State,
    L: Layout<K, Vec<A>> + Layout<K, Vec<B>>,
{
    pub(crate) left: Side<K, A, R, L>,
    pub(crate) right: Side<K, B, R, L>,
}

impl<K, A, B, R, L> std::fmt::Debug for JoinSides<K, A, B, R, L>
where
    K: Key,
    A: State,
    B: State,
    L: Layout<K, Vec<A>> + Layout<K, Vec<B>>,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinSides")
            .field("left", &self.left.rows)
            .field("right", &self.right.rows)
            .finish_non_exhaustive()
    }
}

impl<K, A, B, R, L> JoinSides<K, A, B, R, L>
where
    K: Key,
    A: State,
    B: State,
    L: Layout<K, Vec<A>> + Layout<K, Vec<B>>,
{
    /// Makes a join whose rows so far are in the two states.
    pub fn new(left: Map<K, Vec<A>, L>, right: Map<K, Vec<B>, L>) -> Self {
        Self { left: Side::new(left), right: Side::new(right) }
    }

    /// Takes `rows` out of the vector, emits what `pair` makes of each with the rows of the right
    /// side that have its key, and keeps it. Accesses of the batch overlap.
    ///
    /// # Errors
    /// Of a row that an error leaves no pair is emitted, and it stays in `rows`.
    pub fn add_left(
        &mut self,
        rows: &mut Vec<(K, A)>,
        pair: impl Fn(&K, &A, &B) -> R,
        emit: impl FnMut(R),
    ) -> Result<()> {
        self.left.apply(rows, Ok, |row| row, &mut self.right.rows, pair, emit)
    }

    /// [`add_left`](JoinSides::add_left) with the sides exchanged.
    ///
    /// # Errors
    /// As [`add_left`](JoinSides::add_left).
    pub fn add_right(
        &mut self,
        rows: &mut Vec<(K, B)>,
        pair: impl Fn(&K, &A, &B) -> R,
        emit: impl FnMut(R),
    ) -> Result<()> {
        let pair = |key: &K, b: &B, a: &A| pair(key, a, b);
        self.right.apply(rows, Ok, |row| row, &mut self.left.rows, pair, emit)
    }
}

/// One side of a join: its rows so far, the batch that is being added to them, and the pairs that
/// the batch makes.
pub(crate) struct Side<K: Key, A: State, R, L: Layout<K, Vec<A>>> {
    pub(crate) rows: Map<K, Vec<A>, L>,
    /// Rows are moved out through a shared reference, once each.
    batch: Vec<(K, Cell<Option<A>>)>,
    /// Pairs, and which row of the batch made each.
    pairs: Vec<(usize, R)>,
}

impl<K: Key, A: State, R, L: Layout<K, Vec<A>>> Side<K, A, R, L> {
    fn new(rows: Map<K, Vec<A>, L>) -> Self {
        Self { rows, batch: Vec::new(), pairs: Vec::new() }
    }

    /// Takes this side's rows from the front of `rows`, pairs each with the rows of `others`, and
    /// keeps it. Of rows that an error leaves no pair is emitted, and they stay in `rows`.
    pub(crate) fn apply<B: State, E>(
        &mut self,
        rows: &mut Vec<(K, E)>,
        mine: impl Fn(E) -> std::result::Result<A, E>,
        row_of: impl Fn(A) -> E,
        others: &mut Map<K, Vec<B>, L>,
        mut pair: impl FnMut(&K, &A, &B) -> R,
        mut emit: impl FnMut(R),
    ) -> Result<()>
    where
        L: Layout<K, Vec<B>>,
    {
        let mut rest = None;
        let mut taken = rows.drain(..);
        for (key, row) in taken.by_ref() {
            match mine(row) {
                Ok(row) => self.batch.push((key, Cell::new(Some(row)))),
                Err(other) => {
                    rest = Some((key, other));
                    break;
                }
            }
        }
        let rest: Vec<(K, E)> = rest.into_iter().chain(taken).collect();
        let (mut nth, pairs) = (0, &mut self.pairs);
        let met = others.read_batch(
            &self.batch,
            |row| &row.0,
            |(key, row), others| {
                if let Some(taken) = row.take() {
                    let others = others.into_iter().flatten();
                    pairs.extend(others.map(|other| (nth, pair(key, &taken, other))));
                    row.set(Some(taken));
                }
                nth += 1;
            },
        );
        let (met, mut done) = match met {
            Ok(()) => (self.batch.len(), Ok(())),
            Err(error) => (error.applied, Err(error.error)),
        };
        let push = |(_, row): &(K, Cell<Option<A>>), rows: &mut Vec<A>| rows.extend(row.take());
        let kept = self.rows.update_batch(&self.batch[..met], |row| &row.0, |_| Vec::new(), push);
        let kept = match kept {
            Ok(()) => met,
            Err(error) => {
                done = Err(error.error);
                error.applied
            }
        };
        let emitted = self.pairs.drain(..).take_while(|&(nth, _)| nth < kept);
        emitted.for_each(|(_, row)| emit(row));
        let left = self.batch.drain(..).skip(kept);
        rows.extend(left.filter_map(|(key, row)| Some((key, row_of(row.into_inner()?)))));
        rows.extend(rest);
        done
    }
}
