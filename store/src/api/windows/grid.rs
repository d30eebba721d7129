//! The arithmetic of aligned windows.
//!
//! Windows begin at `offset` plus multiples of the slide; a slice is as long as the greatest
//! common divisor of length and slide, so that each window is a whole number of slices. Computed in
//! 128 bits: nothing overflows at the ends of time, where slices and windows are clipped.

use alluvium_pagestore::Time;

use super::{Window, clipped};

/// Aligned windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    length: i128,
    slide: i128,
    offset: i128,
    slice: i128,
}

impl Grid {
    pub(crate) fn new(length: i64, slide: i64, offset: i64) -> Self {
        let (mut a, mut b) = (length, slide);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let [length, slide, offset, slice] = [length, slide, offset, a].map(i128::from);
        Self { length, slide, offset, slice }
    }

    /// The slice that `at` is in, named by its start.
    pub(crate) fn slice_of(&self, at: Time) -> Time {
        clipped(self.slice_start(at))
    }

    /// Where the slice that `at` is in begins, also before the beginning of time.
    fn slice_start(&self, at: Time) -> i128 {
        let at = i128::from(at.0);
        (at - self.offset).div_euclid(self.slice) * self.slice + self.offset
    }

    /// The times that `at` shares its slice with.
    pub(crate) fn slice_span(&self, at: Time) -> (Time, Time) {
        let start = self.slice_start(at);
        (clipped(start), clipped(start + self.slice))
    }

    /// How long a window is.
    pub(crate) fn length(&self) -> i128 {
        self.length
    }

    /// How many slices a window has.
    pub(crate) fn slices(&self) -> i128 {
        self.length / self.slice
    }

    /// The end of the first window that has `at`.
    pub(crate) fn first_end(&self, at: Time) -> i128 {
        let origin = self.offset + self.length;
        (i128::from(at.0) - origin).div_euclid(self.slide) * self.slide + self.slide + origin
    }

    /// The end of the last window that has `at`.
    pub(crate) fn last_end(&self, at: Time) -> i128 {
        let start = (i128::from(at.0) - self.offset).div_euclid(self.slide) * self.slide;
        start + self.offset + self.length
    }

    /// The end of the window after the one that ends at `end`.
    pub(crate) fn next_end(&self, end: i128) -> i128 {
        end + self.slide
    }

    /// The window that ends at `end`.
    pub(crate) fn window(&self, end: i128) -> Window {
        Window { start: clipped(end - self.length), end: clipped(end) }
    }

    /// The slices of the window that ends at `end`.
    pub(crate) fn slices_of(&self, end: i128) -> std::ops::Range<Time> {
        let window = self.window(end);
        window.start..window.end
    }

    /// The ends of the windows that have `at`.
    pub(crate) fn ends(&self, at: Time) -> impl Iterator<Item = i128> + use<> {
        let (mut end, last, slide) = (self.first_end(at), self.last_end(at), self.slide);
        std::iter::from_fn(move || {
            let this = end;
            end += slide;
            (this <= last).then_some(this)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of all windows that have `at`, by the definition.
    fn ends_by_definition(length: i64, slide: i64, offset: i64, at: i64) -> Vec<i128> {
        let (near, [length, slide, offset, at]) =
            (at / slide, [length, slide, offset, at].map(i128::from));
        let starts = (near - 40..near + 40).map(|n| i128::from(n) * slide + offset);
        let ends = starts.filter(|start| (*start..start + length).contains(&at));
        ends.map(|start| start + length).collect()
    }

    #[test]
    fn an_event_is_in_the_windows_that_the_definition_says() {
        for (length, slide) in [(10, 10), (10, 2), (10, 4), (7, 3), (30, 1), (1, 1)] {
            for offset in [-13, -1, 0, 1, 5] {
                let grid = Grid::new(length, slide, offset);
                for at in -60..60 {
                    let expected = ends_by_definition(length, slide, offset, at);
                    let ends: Vec<_> = grid.ends(Time(at)).collect();
                    assert_eq!(ends, expected, "{length} {slide} {offset} {at}");
                    assert_eq!(grid.first_end(Time(at)), expected[0]);
                    assert_eq!(grid.last_end(Time(at)), *expected.last().unwrap());
                    let slice = grid.slice_of(Time(at));
                    assert!(slice <= Time(at) && grid.slice_of(slice) == slice);
                    let (from, to) = grid.slice_span(Time(at));
                    assert!(from == slice && Time(at) < to && grid.slice_of(to) == to);
                    for end in ends {
                        let slices = grid.slices_of(end);
                        assert!(slices.contains(&slice));
                        assert!(
                            !slices.contains(&Time(slice.0 - grid.slice as i64))
                                || slice > slices.start
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_ends_of_time_have_windows_too() {
        let grid = Grid::new(10, 3, 0);
        for at in [Time::MIN, Time(i64::MIN + 1), Time(i64::MAX - 1)] {
            assert_eq!(grid.ends(at).count(), if at.0.rem_euclid(3) == 0 { 4 } else { 3 });
            assert!(grid.slice_of(at) <= at);
            for end in grid.ends(at) {
                assert!(grid.slices_of(end).contains(&grid.slice_of(at)), "{at:?} {end}");
            }
        }
        assert_eq!(grid.slice_of(Time::MIN), Time::MIN);
        assert_eq!(grid.window(grid.first_end(Time::MIN)).start, Time::MIN);
    }
}
