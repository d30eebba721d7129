//! Our store as its users use it: typed state, windows as windows, no bytes and no state keys.
//!
//! They give the same answers as the operators on bytes. They make no accesses to count.

use std::time::Duration;

use alluvium::time::nanos;
use alluvium::windows::Late;
use alluvium::{
    Aggregate, Aggregated, AnyLayout, AppendLog, Elements, Holistic, List, Map, Process, Store,
    Time, TimeMap, Window, Windows,
};

use crate::engine::Open;
use crate::event::{END, Event, Side};
use crate::operator::{Name, Options};
use crate::value::{Answers, Element, Folding, Partners, Shape};
use crate::{Error, Result};

/// The first words of an element, which is all of it: 16 bytes.
type Head = [u64; 2];

/// Entries of window and list state that one call of our store looks at.
const FUEL: usize = 4096;
/// Nanoseconds of a unit of time: a millisecond. Event time of a user's is as fine as that.
const UNIT: i64 = 1_000_000;
/// The largest value with its key: a key's open sessions.
const VALUE_BYTES_MAX: u64 = 64 << 10;
/// Bytes of a block where lists are read one by one, as the layout's documentation advises.
const BLOCK_BYTES: u64 = 4 << 10;

/// An operator on our store.
pub trait Native {
    /// Takes events that were sent with the watermark `sent`; `from` is the index of the first one.
    ///
    /// # Errors
    /// The store's.
    fn push(&mut self, from: u32, events: &[Event], sent: i64) -> Result<()>;

    /// Moves the watermark.
    ///
    /// # Errors
    /// The store's.
    fn advance(&mut self, watermark: i64) -> Result<()>;

    /// The answers so far.
    fn answers(&self) -> Answers;
}

/// A row of ours.
#[derive(Clone, Copy, Debug)]
pub struct NativeKind {
    /// Its row in reports.
    pub name: &'static str,
    /// What it is, in a few words.
    pub note: &'static str,
    layout: fn() -> AnyLayout,
}

/// The rows of ours that are native.
pub const KINDS: [NativeKind; 2] = [
    NativeKind {
        name: "ours-native",
        note: "typed state and windows in the layouts that fit: hybrid log, window segments, \
               append log",
        layout: || AnyLayout::Auto,
    },
    NativeKind {
        name: "ours-native-heap",
        note: "typed state and windows on the heap",
        layout: || AnyLayout::Heap(alluvium::Heap::new()),
    },
];

impl NativeKind {
    /// Opens an operator; the store comes with it, for checkpoints.
    ///
    /// # Errors
    /// The store's.
    pub fn open(&self, open: &Open) -> Result<(Box<dyn Native>, Store)> {
        let store = crate::engine::our_store(open, (self.layout)(), VALUE_BYTES_MAX)?;
        let Open { operator, options, .. } = open;
        let native: Box<dyn Native> = match operator {
            Name::Aggregation => {
                Box::new(Running { sums: store.map("sums").open()?, answers: Answers::default() })
            }
            Name::IntervalJoin => Box::new(Near::open(&store, options, (self.layout)())?),
            Name::ContinuousJoin => Box::new(Waiting {
                left: store.map("left").open()?,
                right: store.list("right").open()?,
                answers: Answers::default(),
            }),
            Name::TumblingIncremental | Name::SlidingIncremental | Name::SessionIncremental => {
                let windows =
                    store.aggregated("windows").open(windows_of(*operator, options), Summing)?;
                Box::new(FoldedWindows { windows, batch: Vec::new(), answers: Answers::default() })
            }
            _ => {
                let process = Telling(operator.shape());
                let windows =
                    store.holistic("windows").open(windows_of(*operator, options), process)?;
                Box::new(KeptWindows { windows, batch: Vec::new(), answers: Answers::default() })
            }
        };
        Ok((native, store))
    }
}

/// The windows of an operator.
fn windows_of(operator: Name, options: &Options) -> Windows {
    let windows = match operator {
        Name::SessionIncremental | Name::SessionHolistic => Windows::session(units(options.gap)),
        _ if operator.slides() => Windows::sliding(units(options.length), units(options.slide)),
        _ => Windows::tumbling(units(options.length)),
    };
    match operator {
        Name::SessionIncremental | Name::SessionHolistic => windows,
        _ => windows.lateness(units(options.allowed)),
    }
}

fn units(units: i64) -> Duration {
    nanos(units.saturating_mul(UNIT))
}

#[inline]
fn at(time: i64) -> Time {
    Time(time.saturating_mul(UNIT))
}

fn time(watermark: i64) -> Time {
    if watermark >= END { Time::MAX } else { at(watermark) }
}

/// Count and sum.
#[derive(Debug)]
struct Summing;

impl Aggregate<u32> for Summing {
    type Acc = [u64; 2];
    type Out = [u64; 2];

    fn init(&self) -> [u64; 2] {
        [0, 0]
    }

    #[inline]
    fn add(&self, [count, sum]: &mut [u64; 2], amount: &u32) {
        (*count, *sum) = (*count + 1, *sum + u64::from(*amount));
    }

    #[inline]
    fn merge(&self, [count, sum]: &mut [u64; 2], later: &[u64; 2]) {
        (*count, *sum) = (*count + later[0], *sum + later[1]);
    }

    #[inline]
    fn out(&self, acc: &[u64; 2]) -> Option<[u64; 2]> {
        (acc[0] > 0).then_some(*acc)
    }

    fn subtract(&self, [count, sum]: &mut [u64; 2], first: &[u64; 2]) -> bool {
        (*count, *sum) = (*count - first[0], *sum - first[1]);
        true
    }
}

struct FoldedWindows {
    windows: Aggregated<u64, u32, Summing>,
    batch: Vec<(u64, Time, u32)>,
    answers: Answers,
}

impl Native for FoldedWindows {
    fn push(&mut self, _: u32, events: &[Event], sent: i64) -> Result<()> {
        self.batch.extend(events.iter().map(|event| (event.key, at(event.time), event.amount)));
        let late = &mut |_: Late<u64, u32>| {};
        Ok(self.windows.add_batch(time(sent), &mut self.batch, late, &mut |_, _, _, _| {})?)
    }

    fn advance(&mut self, watermark: i64) -> Result<()> {
        let answers = &mut self.answers;
        Ok(self.windows.advance_all(time(watermark), &mut |key, window, [count, sum], _| {
            answers.tell(*key, window.start.0 / UNIT, Some([count, sum, 0]));
        })?)
    }

    fn answers(&self) -> Answers {
        self.answers
    }
}

/// Tells of all elements of a window.
#[derive(Debug)]
struct Telling(Shape);

impl Process<u64, Head> for Telling {
    type Row = [u64; 3];

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        elements: &mut dyn Elements<Head>,
        emit: &mut dyn FnMut([u64; 3]),
    ) -> alluvium::Result<()> {
        let mut folding = Folding::default();
        loop {
            let chunk = elements.next_chunk()?;
            if chunk.is_empty() {
                break;
            }
            chunk.iter().for_each(|head| folding.add(&Element::from_head(*head)));
        }
        folding.told(self.0).into_iter().for_each(emit);
        Ok(())
    }
}

struct KeptWindows {
    windows: Holistic<u64, Head, Telling>,
    batch: Vec<(u64, Time, Head)>,
    answers: Answers,
}

impl Native for KeptWindows {
    fn push(&mut self, from: u32, events: &[Event], sent: i64) -> Result<()> {
        let heads = events
            .iter()
            .zip(from..)
            .map(|(event, place)| (event.key, at(event.time), Element::of(event, place).head()));
        self.batch.extend(heads);
        let late = &mut |_: Late<u64, Head>| {};
        Ok(self.windows.add_batch(time(sent), &mut self.batch, late, &mut |_, _, _, _| {})?)
    }

    fn advance(&mut self, watermark: i64) -> Result<()> {
        let answers = &mut self.answers;
        Ok(self.windows.advance_all(time(watermark), &mut |key, window, told, _| {
            answers.tell(*key, window.start.0 / UNIT, Some(told));
        })?)
    }

    fn answers(&self) -> Answers {
        self.answers
    }
}

/// Continuous aggregation.
struct Running {
    sums: Map<u64, [u64; 2]>,
    answers: Answers,
}

impl Native for Running {
    fn push(&mut self, from: u32, events: &[Event], _: i64) -> Result<()> {
        for (event, place) in events.iter().zip(from..) {
            let [count, sum] = self.sums.update(
                &event.key,
                || [0, 0],
                |acc| {
                    Summing.add(acc, &event.amount);
                    *acc
                },
            )?;
            self.answers.tell(event.key, place.into(), Some([count, sum, 0]));
        }
        Ok(())
    }

    fn advance(&mut self, _: i64) -> Result<()> {
        Ok(())
    }

    fn answers(&self) -> Answers {
        self.answers
    }
}

/// The interval join.
struct Near {
    streams: [TimeMap<u64, Head>; 2],
    lower: i64,
    upper: i64,
    answers: Answers,
}

impl Near {
    fn open(store: &Store, options: &Options, layout: AnyLayout) -> Result<Self> {
        let Options { lower, upper, .. } = *options;
        // About as wide as what an event looks at.
        let width = units(upper - lower + 1);
        let layout = match layout {
            AnyLayout::Auto => AppendLog::new().block(BLOCK_BYTES).into(),
            other => other,
        };
        let open = |name| store.time_map(name).layout(layout.clone()).open(width);
        let streams = [open("left")?, open("right")?];
        Ok(Near { streams, lower, upper, answers: Answers::default() })
    }
}

impl Native for Near {
    fn push(&mut self, from: u32, events: &[Event], sent: i64) -> Result<()> {
        for (event, place) in events.iter().zip(from..) {
            if event.time < sent {
                continue;
            }
            let (first, last, other) = match event.side {
                Side::Left => (event.time + self.lower, event.time + self.upper, Side::Right),
                Side::Right => (event.time - self.upper, event.time - self.lower, Side::Left),
            };
            let head = Element::of(event, place).head();
            let own = &mut self.streams[event.side as usize];
            own.insert(&event.key, at(event.time), head).map_err(|rejected| rejected.error)?;
            let mut partners = Partners::default();
            let times = at(first)..at(last + 1);
            self.streams[other as usize].range(&event.key, times, |_, head| {
                partners.add(event, &Element::from_head(*head));
                Ok(())
            })?;
            self.answers.tell(event.key, place.into(), partners.told());
        }
        Ok(())
    }

    fn advance(&mut self, watermark: i64) -> Result<()> {
        for (stream, last) in self.streams.iter_mut().zip([self.upper, -self.lower]) {
            let before = if watermark >= END { Time::MAX } else { at(watermark - last.max(0)) };
            while !stream.purge(before, FUEL)? {}
        }
        Ok(())
    }

    fn answers(&self) -> Answers {
        self.answers
    }
}

/// The continuous join.
struct Waiting {
    left: Map<u64, Head>,
    right: List<u64, Head>,
    answers: Answers,
}

impl Waiting {
    fn join(&mut self, event: &Event, place: u32) -> Result<()> {
        let (key, head) = (&event.key, Element::of(event, place).head());
        let mut partners = Partners::default();
        match event.side {
            Side::Left if event.finishes => {
                self.left.remove(key)?;
                self.right.clear(key)?;
            }
            Side::Left => {
                let found = self.right.read(key, |head| {
                    partners.add(event, &Element::from_head(*head));
                    Ok(())
                })?;
                if found > 0 {
                    self.right.clear(key)?;
                }
                self.left.put(*key, head).map_err(|rejected| rejected.error)?;
            }
            Side::Right => {
                let found = self.left.read(key, |left| left.copied())?;
                match found {
                    Some(left) => partners.add(event, &Element::from_head(left)),
                    None => self.right.append(key, head).map_err(|rejected| rejected.error)?,
                }
            }
        }
        self.answers.tell(*key, place.into(), partners.told());
        Ok(())
    }
}

impl Native for Waiting {
    fn push(&mut self, from: u32, events: &[Event], _: i64) -> Result<()> {
        events.iter().zip(from..).try_for_each(|(event, place)| self.join(event, place))
    }

    fn advance(&mut self, _: i64) -> Result<()> {
        Ok(())
    }

    fn answers(&self) -> Answers {
        self.answers
    }
}

/// Says why a native row cannot run a stream, if it cannot: its elements are 16 bytes, its times nanoseconds.
///
/// # Errors
/// [`Error::Usage`].
pub fn check(events: &[Event]) -> Result<()> {
    // Windows and bounds of intervals have as much room again.
    if let Some(event) =
        events.iter().find(|event| event.time.unsigned_abs() > i64::MAX as u64 / UNIT as u64 / 2)
    {
        let time = event.time;
        return Err(Error::Usage(format!(
            "native rows have times in nanoseconds; {time} ms is too far"
        )));
    }
    match events.iter().find(|event| event.bytes != 16) {
        None => Ok(()),
        Some(event) => {
            let bytes = event.bytes;
            Err(Error::Usage(format!("native rows keep elements of 16 bytes; one has {bytes}")))
        }
    }
}
