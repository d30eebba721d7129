//! The hash maps that one writes by hand: every record updates each window that it is in.
//!
//! Nothing is shared between the windows of a record, nothing is booked, nothing survives: what a
//! store has to keep up with. Counts are folded, the other questions keep all values.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use alluvium::Time;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::sessions::SessionsByHand;
use super::windows::starts;
use super::{Answer, Engine, Event, Question, Windows};
use crate::Result;

/// A map as fast as they come.
pub(super) type FastMap<K, V> = HashMap<K, V, FixedState>;

/// Windows in hash maps.
#[derive(Debug)]
pub struct ByHand(Kind);

#[derive(Debug)]
enum Kind {
    Aligned(Aligned),
    Sessions(SessionsByHand),
}

#[derive(Debug)]
struct Aligned {
    length: i64,
    slide: i64,
    question: Question,
    /// By start; each has its keys.
    windows: BTreeMap<Time, FastMap<u64, Contents>>,
}

impl ByHand {
    /// No windows yet.
    pub fn new(windows: Windows, question: Question) -> Self {
        ByHand(match windows {
            Windows::Aligned { length, slide } => {
                Kind::Aligned(Aligned { length, slide, question, windows: BTreeMap::new() })
            }
            Windows::Sessions { gap } => Kind::Sessions(SessionsByHand::new(gap, question)),
        })
    }
}

impl Engine for ByHand {
    fn push(&mut self, events: &[Event]) -> Result<()> {
        match &mut self.0 {
            Kind::Aligned(aligned) => events.iter().for_each(|event| aligned.push(*event)),
            Kind::Sessions(sessions) => events.iter().for_each(|event| sessions.push(*event)),
        }
        Ok(())
    }

    fn advance(&mut self, watermark: Time, tell: &mut dyn FnMut(Answer)) -> Result<bool> {
        match &mut self.0 {
            Kind::Aligned(aligned) => aligned.advance(watermark, tell),
            Kind::Sessions(sessions) => sessions.advance(watermark, tell),
        }
        Ok(true)
    }
}

impl Aligned {
    fn push(&mut self, event: Event) {
        for start in starts(event.time, self.length, self.slide) {
            let keys = self.windows.entry(start).or_default();
            let contents = keys.entry(event.key).or_insert_with(|| Contents::new(self.question));
            contents.add(event.value);
        }
    }

    fn advance(&mut self, watermark: Time, tell: &mut dyn FnMut(Answer)) {
        while let Some(first) = self.windows.first_entry() {
            let start = *first.key();
            let end = Time(start.0.saturating_add(self.length));
            if end > watermark {
                return;
            }
            for (key, contents) in first.remove() {
                contents.answer(self.question, |figures| tell(Answer { key, start, end, figures }));
            }
        }
    }
}

/// What is kept of one key's window.
#[derive(Debug)]
pub(super) enum Contents {
    Count(i64),
    Values(Vec<i64>),
}

impl Contents {
    pub(super) fn new(question: Question) -> Self {
        match question {
            Question::Count => Contents::Count(0),
            _ => Contents::Values(Vec::new()),
        }
    }

    pub(super) fn add(&mut self, value: i64) {
        match self {
            Contents::Count(count) => *count += 1,
            Contents::Values(values) => values.push(value),
        }
    }

    /// Takes in what another one of the same question has.
    pub(super) fn merge(&mut self, other: Contents) {
        match (self, other) {
            (Contents::Count(count), Contents::Count(other)) => *count += other,
            (Contents::Values(values), Contents::Values(mut other)) => values.append(&mut other),
            (ours, other) => unreachable!("{ours:?} and {other:?} answer different questions"),
        }
    }

    pub(super) fn answer(self, question: Question, mut tell: impl FnMut([i64; 3])) {
        match self {
            Contents::Count(count) => tell([count, 0, 0]),
            Contents::Values(mut values) => figures_of(&mut values, question, tell),
        }
    }
}

/// The figures of a window's values, which it orders as it likes.
pub(super) fn figures_of(values: &mut [i64], question: Question, mut tell: impl FnMut([i64; 3])) {
    match question {
        Question::Count => tell([values.len() as i64, 0, 0]),
        Question::Rank => {
            values.sort_unstable();
            let mut smaller = 0;
            for ties in values.chunk_by(|one, other| one == other) {
                ties.iter().for_each(|value| tell([*value, 1 + smaller, 0]));
                smaller += ties.len() as i64;
            }
        }
        Question::Median => {
            let middle = values.len().saturating_sub(1) / 2;
            if let Some(median) =
                (!values.is_empty()).then(|| *values.select_nth_unstable(middle).1)
            {
                tell([median, 0, 0]);
            }
        }
        Question::Top => {
            let mut counts: FastMap<i64, i64> = FastMap::default();
            values.iter().for_each(|value| *counts.entry(*value).or_default() += 1);
            let mut ranked: Vec<_> = counts.into_iter().collect();
            let rank = |&(value, count): &(i64, i64)| (Reverse(count), value);
            if ranked.len() > Question::TOP {
                ranked.select_nth_unstable_by_key(Question::TOP, rank);
                ranked.truncate(Question::TOP);
            }
            ranked.sort_unstable_by_key(rank);
            for (place, (value, count)) in (1..).zip(ranked) {
                tell([place, value, count]);
            }
        }
    }
}
