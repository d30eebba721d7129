//! Answers from how often each value came, to check others by: plain arrays, whatever the windows'
//! size, where the events themselves would not fit memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use alluvium::Time;

use super::by_hand::FastMap;
use super::windows::starts;
use super::{Answer, Engine, Event, Question, Windows};
use crate::{Error, Result};

/// Values must be below this.
const VALUES_MAX: i64 = 1 << 16;

/// Counts of values by window and key.
#[derive(Debug)]
pub struct ByCounting {
    length: i64,
    slide: i64,
    question: Question,
    /// By start; of each key, how often each value came.
    windows: BTreeMap<Time, FastMap<u64, Vec<u32>>>,
}

impl ByCounting {
    /// No windows yet.
    ///
    /// # Errors
    /// [`Error::Usage`] for sessions, which cannot be told by counts when they merge.
    pub fn new(windows: Windows, question: Question) -> Result<Self> {
        let Windows::Aligned { length, slide } = windows else {
            return Err(Error::Usage("answers of sessions are not checked by counting".to_owned()));
        };
        Ok(ByCounting { length, slide, question, windows: BTreeMap::new() })
    }
}

impl Engine for ByCounting {
    fn push(&mut self, events: &[Event]) -> Result<()> {
        for event in events {
            if !(0..VALUES_MAX).contains(&event.value) {
                let message = format!("{} is no value to count: 0 to {VALUES_MAX}", event.value);
                return Err(Error::Usage(message));
            }
            let value = event.value.cast_unsigned() as usize;
            for start in starts(event.time, self.length, self.slide) {
                let counts = self.windows.entry(start).or_default().entry(event.key).or_default();
                if counts.len() <= value {
                    counts.resize(value + 1, 0);
                }
                counts[value] += 1;
            }
        }
        Ok(())
    }

    fn advance(&mut self, watermark: Time, tell: &mut dyn FnMut(Answer)) -> Result<bool> {
        while let Some(first) = self.windows.first_entry() {
            let start = *first.key();
            let end = Time(start.0.saturating_add(self.length));
            if end > watermark {
                break;
            }
            for (key, counts) in first.remove() {
                let counted = (0..).zip(&counts).filter(|(_, count)| **count > 0);
                let counted = counted.map(|(value, count)| (value, i64::from(*count)));
                figures_of(counted, self.question, |figures| {
                    tell(Answer { key, start, end, figures });
                });
            }
        }
        Ok(true)
    }
}

/// The figures of values, in order, with their counts.
fn figures_of(
    counted: impl Iterator<Item = (i64, i64)> + Clone,
    question: Question,
    mut tell: impl FnMut([i64; 3]),
) {
    let all: i64 = counted.clone().map(|(_, count)| count).sum();
    let mut smaller = 0;
    match question {
        Question::Count => tell([all, 0, 0]),
        Question::Rank => {
            for (value, count) in counted {
                (0..count).for_each(|_| tell([value, 1 + smaller, 0]));
                smaller += count;
            }
        }
        Question::Median => {
            let median = counted.into_iter().find(|(_, count)| {
                smaller += count;
                smaller > (all - 1) / 2
            });
            median.into_iter().for_each(|(value, _)| tell([value, 0, 0]));
        }
        Question::Top => {
            let mut ranked: Vec<_> = counted.collect();
            ranked.sort_unstable_by_key(|&(value, count)| (Reverse(count), value));
            let places = (1..).zip(ranked).take(Question::TOP);
            places.for_each(|(place, (value, count))| tell([place, value, count]));
        }
    }
}
