//! Our windows: counts are folded as events come, and running totals make a slide of counts two
//! steps per key; the other questions keep their events and read them when a window fires.
//!
//! What a question does with the values of one key's window, all at once, is in memory of its own,
//! beside the store's, as for every engine here.

use alluvium::time::nanos;
use alluvium::windows::Late;
use alluvium::{Aggregated, AnyLayout, Counting, Elements, Holistic, Process, Store, Time, Window};

use super::by_hand::figures_of;
use super::{Answer, Engine, Event, Question, Windows};
use crate::{Error, Result};

/// Keys that a call of [`StoredWindows::advance`] looks at.
const FUEL: usize = 4_096;
/// Events that it looks at in windows that keep them; all of a key's are looked at together.
const FUEL_OF_EVENTS: usize = 2_048;

/// Windows in a store.
#[derive(Debug)]
pub struct StoredWindows {
    kind: Kind,
    /// The watermark.
    sent: Time,
}

#[derive(Debug)]
enum Kind {
    Folded { windows: Aggregated<u64, (), Counting>, batch: Vec<(u64, Time, ())> },
    Kept { windows: Holistic<u64, i64, Figures>, batch: Vec<(u64, Time, i64)> },
}

impl StoredWindows {
    /// Opens windows in `store`, in the layout of its configuration.
    ///
    /// # Errors
    /// The store's. The caller asks [`check_layout`](Self::check_layout) first.
    pub fn open(store: &Store, windows: Windows, question: Question) -> Result<Self> {
        let windows = match windows {
            Windows::Aligned { length, slide } => {
                alluvium::Windows::sliding(nanos(length), nanos(slide))
            }
            Windows::Sessions { gap } => alluvium::Windows::session(nanos(gap)),
        };
        let kind = match question {
            Question::Count => Kind::Folded {
                windows: store.aggregated("window").open(windows, Counting)?,
                batch: Vec::new(),
            },
            Question::Rank | Question::Median | Question::Top => Kind::Kept {
                windows: store.holistic("window").open(windows, Figures::of(question))?,
                batch: Vec::new(),
            },
        };
        Ok(StoredWindows { kind, sent: Time::MIN })
    }

    /// Whether a layout keeps what a question needs, rather than something else in its place.
    ///
    /// # Errors
    /// Says in words why it does not, and which do.
    pub fn check_layout(layout: &AnyLayout, question: Question) -> Result<()> {
        let refuse = |message: String| Err(Error::Usage(message));
        match (question, layout) {
            (Question::Count, AnyLayout::AppendLog(_)) => refuse(
                "count is folded as events come, and append-log keeps events; take \
                 window-segments, hybrid-log or heap"
                    .to_owned(),
            ),
            (
                Question::Rank | Question::Median | Question::Top,
                AnyLayout::HybridLog(_) | AnyLayout::WindowSegments(_),
            ) => refuse(format!(
                "{question} needs all events of a window, and this layout keeps values by key; \
                 take append-log or heap"
            )),
            _ => Ok(()),
        }
    }
}

impl Engine for StoredWindows {
    fn push(&mut self, events: &[Event]) -> Result<()> {
        let mut late = 0;
        match &mut self.kind {
            Kind::Folded { windows, batch } => {
                batch.extend(events.iter().map(|event| (event.key, event.time, ())));
                let count = &mut |_: Late<u64, ()>| late += 1;
                windows.add_batch(self.sent, batch, count, &mut |_, _, _, _| {})?;
            }
            Kind::Kept { windows, batch } => {
                batch.extend(events.iter().map(|event| (event.key, event.time, event.value)));
                let count = &mut |_: Late<u64, i64>| late += 1;
                windows.add_batch(self.sent, batch, count, &mut |_, _, _, _| {})?;
            }
        }
        match late {
            0 => Ok(()),
            _ => Err(Error::Wrong(format!("{late} events before the watermark {:?}", self.sent))),
        }
    }

    fn advance(&mut self, watermark: Time, tell: &mut dyn FnMut(Answer)) -> Result<bool> {
        self.sent = watermark;
        let mut answer = |key: &u64, Window { start, end }: Window, figures| {
            tell(Answer { key: *key, start, end, figures });
        };
        let advanced = match &mut self.kind {
            Kind::Folded { windows, .. } => {
                windows.advance(watermark, FUEL, &mut |key, window, count, _| {
                    answer(key, window, [count, 0, 0]);
                })?
            }
            Kind::Kept { windows, .. } => {
                windows.advance(watermark, FUEL_OF_EVENTS, &mut |key, window, figures, _| {
                    answer(key, window, figures);
                })?
            }
        };
        Ok(advanced.done)
    }
}

/// The figures of a window's events.
#[derive(Debug)]
struct Figures {
    question: Question,
    /// The values of the window at hand, kept for its room.
    values: Vec<i64>,
}

impl Figures {
    fn of(question: Question) -> Self {
        Figures { question, values: Vec::new() }
    }
}

impl Process<u64, i64> for Figures {
    type Row = [i64; 3];

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        elements: &mut dyn Elements<i64>,
        emit: &mut dyn FnMut([i64; 3]),
    ) -> alluvium::Result<()> {
        self.values.clear();
        loop {
            let chunk = elements.next_chunk()?;
            if chunk.is_empty() {
                break;
            }
            self.values.extend_from_slice(chunk);
        }
        figures_of(&mut self.values, self.question, emit);
        Ok(())
    }
}
