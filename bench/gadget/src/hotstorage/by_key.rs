//! Windows as values of an engine of bytes, by their start.

use super::play::Windows;
use super::{Answer, Job, Question, digest};
use crate::Result;
use crate::engine::Engine;
use crate::value::{sums, sums_bytes};

/// Windows on an engine.
pub struct ByKey {
    job: Job,
    engine: Box<dyn Engine>,
    /// A merge adds to a counter, or appends to it: then no record reads it.
    adds: bool,
    /// When the next window is over.
    next_end: i64,
    values: Vec<u64>,
}

impl ByKey {
    /// Windows on an engine. COUNT updates its counters, or merges into them where the engine `adds`.
    pub fn new(job: Job, engine: Box<dyn Engine>, adds: bool) -> Self {
        ByKey { next_end: job.first_end(), job, engine, adds, values: Vec::new() }
    }

    /// The answer of a window, which is read and deleted.
    fn answer(&mut self, start: i64) -> Result<Option<u64>> {
        let (key, question, values) = (start.to_be_bytes(), self.job.question, &mut self.values);
        let mut answer = None;
        self.engine.get(&key, &mut |value| {
            answer = value.map(|value| match question {
                Question::Count => sums(value)[0],
                Question::Rank => {
                    values.clear();
                    values.extend(value.as_chunks::<8>().0.iter().map(|v| u64::from_le_bytes(*v)));
                    digest(values)
                }
            });
        })?;
        if answer.is_some() {
            self.engine.delete(&key)?;
        }
        Ok(answer)
    }
}

impl Windows for ByKey {
    fn add(&mut self, at: i64, value: u64) -> Result<()> {
        for start in self.job.starts(at) {
            let key = start.to_be_bytes();
            match self.job.question {
                Question::Rank => self.engine.merge(&key, &value.to_le_bytes())?,
                Question::Count if self.adds => {
                    self.engine.merge(&key, &sums_bytes([1, value]))?;
                }
                Question::Count => self.engine.update(&key, [1, value], &mut |_| {})?,
            }
        }
        Ok(())
    }

    fn next_end(&self) -> i64 {
        self.next_end
    }

    fn advance(&mut self, at: i64, told: &mut Vec<Answer>) -> Result<()> {
        while self.next_end <= at {
            let start = self.next_end - self.job.length;
            told.extend(self.answer(start)?.map(|answer| (start, answer)));
            self.next_end += self.job.slide;
        }
        Ok(())
    }
}
