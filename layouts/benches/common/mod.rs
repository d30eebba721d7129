//! What benches share: a state to open, and rounds to tell of.

use std::fmt;
use std::rc::Rc;

use alluvium_layouts::StateContext;
use alluvium_pagestore::{Account, Helper, SegmentStore};

/// A new state of all key groups.
pub fn context(
    account: Rc<Account>,
    segments: Option<SegmentStore>,
    helper: Helper,
) -> StateContext {
    StateContext {
        name: "bench".into(),
        account,
        segments,
        helper,
        max_value_bytes: 4096,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    }
}

/// What each round gave. Shown as the median, with the least and the most.
#[derive(Default)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    pub fn add(&mut self, figure: f64) {
        let at = self.0.partition_point(|there| *there < figure);
        self.0.insert(at, figure);
    }

    pub fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(1);
        let (median, least, most) = (self.median(), self.0[0], self.0[self.0.len() - 1]);
        write!(f, "{median:.digits$} ({least:.digits$} to {most:.digits$})")
    }
}
