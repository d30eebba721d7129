//! How elements are folded into a result.

use alluvium_pagestore::State;

/// A fold of elements of type `E`: an accumulator per key, or per key and window.
///
/// Elements and accumulators are folded in the order in which they arrived where that is known,
/// so that [`merge`](Aggregate::merge) has to be associative and need not be commutative. Of a
/// sliding window the parts are folded in the order of event time; of sessions that an event
/// joins, in the order of their starts. A late event may have to wait until windows have fired: events
/// that come meanwhile are folded before it.
///
/// ```
/// use alluvium::Aggregate;
///
/// /// The highest price.
/// struct Highest;
///
/// impl Aggregate<i64> for Highest {
///     type Acc = i64;
///     type Out = i64;
///
///     fn init(&self) -> i64 {
///         i64::MIN
///     }
///
///     fn add(&self, highest: &mut i64, price: &i64) {
///         *highest = (*price).max(*highest);
///     }
///
///     fn merge(&self, highest: &mut i64, later: &i64) {
///         *highest = (*later).max(*highest);
///     }
///
///     fn out(&self, highest: &i64) -> Option<i64> {
///         Some(*highest)
///     }
/// }
/// ```
pub trait Aggregate<E>: 'static {
    /// Accumulator that the state keeps.
    type Acc: State;
    /// Result.
    type Out: Clone + PartialEq + 'static;

    /// Returns the accumulator of no elements.
    fn init(&self) -> Self::Acc;

    /// Folds one element in.
    fn add(&self, acc: &mut Self::Acc, element: &E);

    /// Folds in the elements of `later`, as if they came now.
    fn merge(&self, acc: &mut Self::Acc, later: &Self::Acc);

    /// Returns the result, or `None` if there is none, as before the first element.
    fn out(&self, acc: &Self::Acc) -> Option<Self::Out>;

    /// Folds one element in and tells how the result changes: the old one goes, the new one comes.
    #[inline]
    fn fold(&self, acc: &mut Self::Acc, element: &E, mut change: impl FnMut(Self::Out, i64)) {
        let old = self.out(acc);
        self.add(acc, element);
        let new = self.out(acc);
        if old != new {
            if let Some(old) = old {
                change(old, -1);
            }
            if let Some(new) = new {
                change(new, 1);
            }
        }
    }

    /// Removes the elements of `first`, the oldest of `acc`, from `acc` and returns `true`. A slide
    /// then costs two steps per key, whatever the window's length. The default returns `false`: long
    /// sliding windows take three merges per slice and key. With `subtract`, a late event is merged
    /// last, wherever its time is: do not implement it if that makes a difference.
    fn subtract(&self, acc: &mut Self::Acc, first: &Self::Acc) -> bool {
        let _ = (acc, first);
        false
    }
}

/// Counts elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

impl<E> Aggregate<E> for Counting {
    type Acc = i64;
    type Out = i64;

    fn init(&self) -> i64 {
        0
    }

    #[inline]
    fn add(&self, acc: &mut i64, _: &E) {
        *acc = acc.saturating_add(1);
    }

    #[inline]
    fn merge(&self, acc: &mut i64, later: &i64) {
        *acc = acc.saturating_add(*later);
    }

    #[inline]
    fn out(&self, acc: &i64) -> Option<i64> {
        (*acc != 0).then_some(*acc)
    }

    fn subtract(&self, acc: &mut i64, first: &i64) -> bool {
        *acc -= first;
        true
    }
}
