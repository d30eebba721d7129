//! RocksDB's windows: a blind merge for each window of a record, under the window's start and the
//! key, so that a window is a range of keys, which is read when it is over and deleted at once.
//!
//! Counts are merged by addition, the values of other questions by appending.

use std::collections::BTreeSet;
use std::path::Path;

use alluvium::Time;

use super::by_hand::figures_of;
use super::windows::starts;
use super::{Answer, Engine, Event, Question, Windows};
use crate::peers::{Db, Merge, open_merging};
use crate::{Error, Result};

/// Windows in a database.
pub struct RocksDbWindows {
    db: Db,
    length: i64,
    slide: i64,
    question: Question,
    /// Starts of the windows that have records.
    live: BTreeSet<Time>,
}

impl RocksDbWindows {
    /// Opens a database that takes about `memory_bytes`.
    ///
    /// # Errors
    /// The database's; windows are sessions, which merge, and a merge of two keys is not blind.
    pub fn open(
        path: &Path,
        memory_bytes: u64,
        windows: Windows,
        question: Question,
    ) -> Result<Self> {
        let Windows::Aligned { length, slide } = windows else {
            return Err(Error::Usage("there are no sessions on rocksdb".to_owned()));
        };
        let merge = match question {
            Question::Count => Merge::Add,
            _ => Merge::Append,
        };
        let db = open_merging(path, memory_bytes, merge)?;
        Ok(RocksDbWindows { db, length, slide, question, live: BTreeSet::new() })
    }

    fn merge(&mut self, event: &Event) -> Result<()> {
        let operand = match self.question {
            Question::Count => 1,
            _ => event.value,
        };
        let mut key = [0; 16];
        key[8..].copy_from_slice(&event.key.to_be_bytes());
        for start in starts(event.time, self.length, self.slide) {
            key[..8].copy_from_slice(&ordered(start));
            self.db.merge(&key, &operand.to_le_bytes())?;
            self.live.insert(start);
        }
        Ok(())
    }

    fn fire(&mut self, start: Time, tell: &mut dyn FnMut(Answer)) -> Result<()> {
        let end = Time(start.0.saturating_add(self.length));
        let (question, mut broken) = (self.question, Ok(()));
        let prefix = ordered(start);
        self.db.for_each_with(&prefix, |key, value| {
            match parsed(key, value) {
                Some((key, numbers)) => {
                    let mut tell = |figures| tell(Answer { key, start, end, figures });
                    match question {
                        Question::Count => numbers.for_each(|count| tell([count, 0, 0])),
                        _ => figures_of(&mut numbers.collect::<Vec<_>>(), question, tell),
                    }
                }
                None => broken = Err(Error::Wrong("rocksdb gave back other bytes".to_owned())),
            };
        })?;
        broken?;
        self.db.delete_range(&prefix, &ordered(Time(start.0.saturating_add(1))))
    }
}

/// The time as bytes whose order is that of time.
fn ordered(Time(at): Time) -> [u8; 8] {
    (at.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// The key in a record's key, and the numbers in its value.
fn parsed<'a>(key: &[u8], value: &'a [u8]) -> Option<(u64, impl Iterator<Item = i64> + 'a)> {
    let key = key.get(8..)?.try_into().ok().map(u64::from_be_bytes)?;
    let (numbers, rest) = value.as_chunks::<8>();
    rest.is_empty().then_some((key, numbers.iter().map(|bytes| i64::from_le_bytes(*bytes))))
}

impl Engine for RocksDbWindows {
    fn push(&mut self, events: &[Event]) -> Result<()> {
        events.iter().try_for_each(|event| self.merge(event))
    }

    fn advance(&mut self, watermark: Time, tell: &mut dyn FnMut(Answer)) -> Result<bool> {
        while let Some(&start) = self.live.first() {
            if start.0.saturating_add(self.length) > watermark.0 {
                break;
            }
            self.fire(start, tell)?;
            self.live.pop_first();
        }
        Ok(true)
    }
}
