//! The first rows of an order, kept sorted in a vector: what top-n queries keep of a group.
//!
//! Rows are only ever added, so a row that is not among the first is never among them later and
//! need not be kept.

/// What has a place in an order: the lower its rank, the further in front.
pub(super) trait Ranked {
    /// Different for any two rows of a group.
    type Rank: Ord;

    /// The rank.
    fn rank(&self) -> Self::Rank;
}

/// Where a row of this rank comes among `rows`, which are in order; `None` if that is not among
/// the first `limit`. Cost: O(log n).
pub(super) fn place<R: Ranked>(rows: &[R], rank: &R::Rank, limit: usize) -> Option<usize> {
    let place = rows.partition_point(|row| row.rank() < *rank);
    (place < limit).then_some(place)
}

/// Puts `row` where [`place`] says and gives back the last row if it is one too many.
pub(super) fn put<R>(rows: &mut Vec<R>, place: usize, row: R, limit: usize) -> Option<R> {
    let last = if rows.len() < limit { None } else { rows.pop() };
    rows.insert(place, row);
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Ranked for u32 {
        type Rank = u32;

        fn rank(&self) -> u32 {
            *self
        }
    }

    #[test]
    fn the_first_of_all_are_kept_whatever_the_order_of_arrival() {
        let (mut top, mut all) = (Vec::new(), Vec::new());
        for n in 0..200u32 {
            let row = n.wrapping_mul(0x9E37_79B1) >> 8;
            all.push(row);
            all.sort_unstable();
            let before = top.clone();
            if let Some(place) = place(&top, &row, 10) {
                let last = put(&mut top, place, row, 10);
                assert_eq!(last, before.get(9).copied());
            }
            assert_eq!(top, all[..all.len().min(10)]);
        }
    }
}
