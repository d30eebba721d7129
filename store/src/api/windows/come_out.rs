//! Rows that a function gives while it still reads, so that a read that fails leaves some of them given.
//!
//! The function is called again then, from the beginning, and gives the same rows: they depend on its
//! arguments alone. Those that came out before do not come out again. Only their number is kept.

/// How many rows of one call came out, over all tries.
#[derive(Debug, Default)]
pub(crate) struct ComeOut {
    /// In all tries.
    rows: u64,
    /// In this try.
    again: u64,
}

impl ComeOut {
    /// Begins another try.
    pub(crate) fn try_again(&mut self) {
        self.again = 0;
    }

    /// Counts a row; says whether it comes out for the first time.
    #[inline]
    pub(crate) fn is_new(&mut self) -> bool {
        self.again += 1;
        let is_new = self.again > self.rows;
        self.rows = self.rows.max(self.again);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows that come out of a try that is left after so many.
    fn try_to(rows: u64, come_out: &mut ComeOut) -> Vec<u64> {
        come_out.try_again();
        (0..rows).filter(|_| come_out.is_new()).collect()
    }

    #[test]
    fn each_row_comes_out_in_the_first_try_that_has_it() {
        let mut come_out = ComeOut::default();
        assert_eq!(try_to(3, &mut come_out), [0, 1, 2]);
        assert_eq!(try_to(1, &mut come_out), [0; 0]);
        assert_eq!(try_to(5, &mut come_out), [3, 4]);
        assert_eq!(try_to(0, &mut come_out), [0; 0]);
        assert_eq!(try_to(6, &mut come_out), [5]);
    }
}
