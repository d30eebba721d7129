//! Answers: rows of results.

use alluvium::{KeyHash, Time};

use super::Question;

/// One row of a window's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Answer {
    /// Whose window.
    pub key: u64,
    /// Where it starts: a session with its first event.
    pub start: Time,
    /// Where it ends.
    pub end: Time,
    /// As many figures as the question has columns; the rest are 0.
    pub figures: [i64; 3],
}

impl Answer {
    /// The columns of all answers, before those of the question.
    pub const COLUMNS: [&'static str; 3] = ["key", "window_start_ms", "window_end_ms"];

    /// The row as text.
    pub fn fields(&self, question: Question) -> Vec<String> {
        let mut fields = vec![self.key.to_string(), shown_ms(self.start), shown_ms(self.end)];
        let figures = self.figures.iter().take(question.columns().len());
        fields.extend(figures.map(i64::to_string));
        fields
    }

    /// A hash of all columns; their sum, wrapping, tells results apart whatever their order.
    pub fn digest(&self) -> u64 {
        (self.key, self.start.0, self.end.0, self.figures.map(i64::cast_unsigned)).key_hash()
    }
}

/// The sum of the digests of answers.
pub fn digest_of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> u64 {
    answers.into_iter().fold(0, |sum, answer| sum.wrapping_add(answer.digest()))
}

/// Milliseconds, with a fraction where they are not whole.
fn shown_ms(Time(nanos): Time) -> String {
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (ms, rest) = (nanos / 1_000_000, nanos % 1_000_000);
    match rest {
        0 => format!("{sign}{ms}"),
        _ => format!("{sign}{ms}.{}", format!("{rest:06}").trim_end_matches('0')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_with_all_their_digits() {
        for (nanos, expected) in [
            (0, "0"),
            (1_000_000, "1"),
            (1_500_000, "1.5"),
            (46_680_590_000, "46680.59"),
            (100, "0.0001"),
            (-1, "-0.000001"),
            (-2_000_000, "-2"),
        ] {
            assert_eq!(shown_ms(Time(nanos)), expected);
        }
    }
}
