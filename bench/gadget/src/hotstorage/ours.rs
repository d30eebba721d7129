//! Our own windows: typed, each record kept once, in the layouts that fit.

use alluvium::time::nanos;
use alluvium::windows::Late;
use alluvium::{
    Aggregated, AnyLayout, Counting, Elements, Holistic, Process, Store, Time, Window,
    Windows as Shape,
};

use super::play::Windows;
use super::{Answer, Job, Question, digest};
use crate::engine::Open;
use crate::{Error, Result};

/// The row of ours.
pub const OURS: &str = "ours-native";

/// The largest value: nothing here is large.
const VALUE_BYTES_MAX: u64 = 64 << 10;
/// All records have one key.
const KEY: u64 = 0;

/// Opens our windows.
///
/// # Errors
/// The store's.
pub fn open(job: &Job, open: &Open) -> Result<Box<dyn Windows>> {
    let store = crate::engine::our_store(open, AnyLayout::Auto, VALUE_BYTES_MAX)?;
    let (length, slide) = (nanos(job.length), nanos(job.slide));
    let shape = if job.slide < job.length {
        Shape::sliding(length, slide)
    } else {
        Shape::tumbling(length)
    };
    let next_end = job.first_end();
    Ok(match job.question {
        Question::Count => {
            let windows = store.aggregated("counts").open(shape, Counting)?;
            let ends = Ends { next_end, slide: job.slide };
            Box::new(Counts { windows, batch: Vec::with_capacity(1), ends, _store: store })
        }
        Question::Rank => {
            let ranking = Ranking::default();
            let windows = store.holistic("ranks").open(shape, ranking)?;
            let ends = Ends { next_end, slide: job.slide };
            Box::new(Ranks { windows, batch: Vec::with_capacity(1), ends, _store: store })
        }
    })
}

/// When windows are over.
struct Ends {
    next_end: i64,
    slide: i64,
}

impl Ends {
    fn advance(&mut self, at: i64) {
        if self.next_end <= at {
            let passed = (at - self.next_end) / self.slide + 1;
            self.next_end = self.next_end.saturating_add(passed.saturating_mul(self.slide));
        }
    }
}

/// No record is late: they come in order.
fn no_late<E>(late: &mut Option<Error>) -> impl FnMut(Late<u64, E>) + '_ {
    |_| *late = Some(Error::Wrong("a record in order came late".to_owned()))
}

struct Counts {
    windows: Aggregated<u64, (), Counting>,
    batch: Vec<(u64, Time, ())>,
    ends: Ends,
    _store: Store,
}

impl Windows for Counts {
    #[inline]
    fn add(&mut self, at: i64, _: u64) -> Result<()> {
        self.batch.push((KEY, Time(at), ()));
        let mut late = None;
        self.windows.add_batch(
            Time(at),
            &mut self.batch,
            &mut no_late(&mut late),
            &mut |_, _, _, _| {},
        )?;
        late.map_or(Ok(()), Err)
    }

    fn next_end(&self) -> i64 {
        self.ends.next_end
    }

    fn advance(&mut self, at: i64, told: &mut Vec<Answer>) -> Result<()> {
        self.ends.advance(at);
        let tell = &mut |_: &u64, window: Window, count: i64, _: _| {
            told.push((window.start.0, count.unsigned_abs()));
        };
        Ok(self.windows.advance_all(Time(at), tell)?)
    }
}

/// Ranks the records of a window.
#[derive(Default)]
struct Ranking {
    values: Vec<u64>,
}

impl Process<u64, u64> for Ranking {
    type Row = u64;

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        elements: &mut dyn Elements<u64>,
        emit: &mut dyn FnMut(u64),
    ) -> alluvium::Result<()> {
        self.values.clear();
        loop {
            let chunk = elements.next_chunk()?;
            if chunk.is_empty() {
                break;
            }
            self.values.extend_from_slice(chunk);
        }
        emit(digest(&mut self.values));
        Ok(())
    }
}

struct Ranks {
    windows: Holistic<u64, u64, Ranking>,
    batch: Vec<(u64, Time, u64)>,
    ends: Ends,
    _store: Store,
}

impl Windows for Ranks {
    #[inline]
    fn add(&mut self, at: i64, value: u64) -> Result<()> {
        self.batch.push((KEY, Time(at), value));
        let mut late = None;
        self.windows.add_batch(
            Time(at),
            &mut self.batch,
            &mut no_late(&mut late),
            &mut |_, _, _, _| {},
        )?;
        late.map_or(Ok(()), Err)
    }

    fn next_end(&self) -> i64 {
        self.ends.next_end
    }

    fn advance(&mut self, at: i64, told: &mut Vec<Answer>) -> Result<()> {
        self.ends.advance(at);
        let tell = &mut |_: &u64, window: Window, answer: u64, _: _| {
            told.push((window.start.0, answer));
        };
        Ok(self.windows.advance_all(Time(at), tell)?)
    }
}
