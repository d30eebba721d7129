//! What is asked of each window.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// A question of a window's values; there is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// How many they are.
    Count,
    /// Of each of them, how many are smaller, and one: SQL's RANK, with gaps after ties.
    Rank,
    /// The lower median.
    Median,
    /// The ten most frequent, the smaller of equally frequent ones first, and how often each comes.
    Top,
}

impl Question {
    /// All there are.
    pub const ALL: [Question; 4] =
        [Question::Count, Question::Rank, Question::Median, Question::Top];

    /// Values that [`Question::Top`] gives at most.
    pub const TOP: usize = 10;

    /// The columns of an answer behind key and window.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Question::Count => &["count"],
            Question::Rank => &["value", "rank"],
            Question::Median => &["median"],
            Question::Top => &["place", "value", "count"],
        }
    }
}

impl FromStr for Question {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Question::ALL.into_iter().find(|question| question.to_string() == text);
        let unknown = || format!("query {text:?} is none of count, rank, median and top");
        found.ok_or_else(|| Error::Usage(unknown()))
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Question::Count => "count",
            Question::Rank => "rank",
            Question::Median => "median",
            Question::Top => "top",
        })
    }
}
