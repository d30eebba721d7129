//! What windows of rows tell, and what they should: for tests that compare the two.

use std::collections::BTreeMap;

use alluvium::time::nanos;
use alluvium::{Elements, Result, Window, Windows};
use alluvium_timely::Aggregate;

use crate::window_model::{self, Event, Results};

/// Time, key and value of a row.
pub type Row = (i64, u64, i64);
/// A result, or a late row and how late it was.
pub type Outcome = std::result::Result<(u64, Window, Vec<i64>), (Row, i64)>;

/// The sorted values, and whether they can be taken out again.
#[derive(Clone, Copy)]
pub struct Sorted(pub bool);

impl Aggregate<Row> for Sorted {
    type Acc = Vec<i64>;
    type Out = Vec<i64>;

    fn init(&self) -> Vec<i64> {
        Vec::new()
    }

    fn add(&self, acc: &mut Vec<i64>, row: &Row) {
        acc.insert(acc.partition_point(|value| *value < row.2), row.2);
    }

    fn merge(&self, acc: &mut Vec<i64>, later: &Vec<i64>) {
        acc.extend(later);
        acc.sort_unstable();
    }

    fn out(&self, acc: &Vec<i64>) -> Option<Vec<i64>> {
        (!acc.is_empty()).then(|| acc.clone())
    }

    fn subtract(&self, acc: &mut Vec<i64>, first: &Vec<i64>) -> bool {
        if self.0 {
            for value in first {
                let place = acc.binary_search(value).expect("what was never added");
                acc.remove(place);
            }
        }
        self.0
    }
}

/// The sorted values of rows that were kept.
pub fn sorted(rows: &mut dyn Elements<Row>, emit: &mut dyn FnMut(Vec<i64>)) -> Result<()> {
    let mut values = Vec::new();
    while let Some(row) = rows.next()? {
        values.push(row.2);
    }
    values.sort_unstable();
    emit(values);
    Ok(())
}

/// Windows of a length and a slide, or sessions with a gap.
pub fn windows((length, slide): (i64, i64)) -> Windows {
    match slide {
        0 => Windows::session(nanos(length)),
        _ => Windows::sliding(nanos(length), nanos(slide)),
    }
}

/// What these windows tell of batches, each with the time it is sent with.
pub fn expected(
    batches: Vec<(i64, Vec<Row>)>,
    shape: (i64, i64),
    lateness: i64,
) -> BTreeMap<Outcome, i64> {
    let mut events = Vec::new();
    for (sent, rows) in batches {
        events.extend(rows.into_iter().map(|(at, key, value)| Event { at, sent, key, value }));
    }
    let (results, dropped): (Results, _) = match shape {
        (gap, 0) => window_model::sessions(&events, gap, lateness),
        (length, slide) => window_model::aligned(&events, (length, slide, 0), lateness),
    };
    let results = results.into_iter().map(|((window, key), values)| Ok((key, window, values)));
    let late = dropped.into_iter().map(|e| Err(((e.at, e.key, e.value), e.sent - e.at)));
    results.chain(late).map(|outcome| (outcome, 1)).collect()
}
