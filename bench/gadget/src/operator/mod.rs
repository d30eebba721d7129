//! Streaming operators as state machines: which accesses to state each event and watermark makes.
//!
//! An operator of one's own implements [`Operator`] and is run by [`trace_of`]. The eleven of the
//! Gadget paper are in [`Name`].

mod aggregation;
mod continuous_join;
mod interval_join;
mod sessions;
mod windows;

use std::fmt;
use std::str::FromStr;

use crate::access::{Phase, Trace};
use crate::event::{Event, Stream};
use crate::grammar::Grammar;
use crate::value::Shape;
use crate::{Error, Result};

/// A streaming operator that keeps state.
///
/// For each event [`assign`](Operator::assign) is called and then [`run`](Operator::run); after
/// each batch, [`terminate`](Operator::terminate). None of them touches a store: what they ask of
/// one goes into the trace.
pub trait Operator {
    /// Finds the windows, sessions or accumulators of an event, and makes those that are missing.
    ///
    /// `place` is the event's place in the stream, `watermark` the last one that was sent.
    fn assign(&mut self, event: &Event, place: u32, watermark: i64, to: &mut Trace);

    /// Makes the accesses of the event that was assigned last.
    fn run(&mut self, event: &Event, place: u32, to: &mut Trace);

    /// Makes the accesses of what is over at `watermark`.
    fn terminate(&mut self, watermark: i64, to: &mut Trace);

    /// The order of accesses that it promises.
    fn grammar(&self) -> Grammar;

    /// What it tells of the value of a window that is over.
    fn shape(&self) -> Shape;
}

/// Runs an operator over a stream.
pub fn trace_of(operator: &mut dyn Operator, stream: &Stream) -> Trace {
    let (mut trace, mut sent) = (Trace::default(), i64::MIN);
    for (from, events, watermark) in stream.batches() {
        for (event, place) in events.iter().zip(from as u32..) {
            operator.assign(event, place, sent, &mut trace);
            operator.run(event, place, &mut trace);
            trace.step(Phase::Event);
        }
        sent = sent.max(watermark);
        operator.terminate(sent, &mut trace);
        trace.step(Phase::Firing);
    }
    trace
}

/// The eleven operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// A running count and sum per key.
    Aggregation,
    /// Count and sum per key and window, windows one after the other.
    TumblingIncremental,
    /// The elements per key and window.
    TumblingHolistic,
    /// Count and sum per key and window, windows that overlap.
    SlidingIncremental,
    /// The elements, of each window that an event is in.
    SlidingHolistic,
    /// Count and sum per session.
    SessionIncremental,
    /// The elements per session.
    SessionHolistic,
    /// Pairs of both streams in a window, windows one after the other.
    TumblingJoin,
    /// Pairs of both streams in a window, windows that overlap.
    SlidingJoin,
    /// Pairs of both streams that are near in time.
    IntervalJoin,
    /// Each right event with the left event that is there, or the first that comes.
    ContinuousJoin,
}

impl Name {
    /// All of them.
    pub const ALL: [Name; 11] = [
        Name::Aggregation,
        Name::TumblingIncremental,
        Name::TumblingHolistic,
        Name::SlidingIncremental,
        Name::SlidingHolistic,
        Name::SessionIncremental,
        Name::SessionHolistic,
        Name::TumblingJoin,
        Name::SlidingJoin,
        Name::IntervalJoin,
        Name::ContinuousJoin,
    ];

    /// As the command line has it.
    pub fn text(self) -> &'static str {
        match self {
            Name::Aggregation => "aggregation",
            Name::TumblingIncremental => "tumbling-incremental",
            Name::TumblingHolistic => "tumbling-holistic",
            Name::SlidingIncremental => "sliding-incremental",
            Name::SlidingHolistic => "sliding-holistic",
            Name::SessionIncremental => "session-incremental",
            Name::SessionHolistic => "session-holistic",
            Name::TumblingJoin => "tumbling-join",
            Name::SlidingJoin => "sliding-join",
            Name::IntervalJoin => "interval-join",
            Name::ContinuousJoin => "continuous-join",
        }
    }

    /// Whether it joins two streams.
    pub fn joins(self) -> bool {
        use Name::*;
        matches!(self, TumblingJoin | SlidingJoin | IntervalJoin | ContinuousJoin)
    }

    /// Whether a window of it moves less than its length.
    pub fn slides(self) -> bool {
        matches!(self, Name::SlidingIncremental | Name::SlidingHolistic | Name::SlidingJoin)
    }

    /// Whether its windows are aligned, so that many of them are over at once.
    pub fn is_windowed(self) -> bool {
        use Name::*;
        self.slides() || matches!(self, TumblingIncremental | TumblingHolistic | TumblingJoin)
    }

    /// Whether all of its values are lists that are appended to, read and deleted.
    pub fn only_lists(self) -> bool {
        use Name::*;
        matches!(self, TumblingHolistic | SlidingHolistic | SessionHolistic | TumblingJoin)
            || self == SlidingJoin
    }

    /// Whether it visits ranges of keys.
    pub fn ranges(self, options: &Options) -> bool {
        self == Name::IntervalJoin || (options.purge && self.is_windowed())
    }

    /// What it tells of a window's value.
    pub fn shape(self) -> Shape {
        use Name::*;
        match self {
            TumblingHolistic | SlidingHolistic | SessionHolistic => Shape::Elements,
            TumblingJoin | SlidingJoin => Shape::Pairs,
            _ => Shape::Sums,
        }
    }

    /// The operator.
    pub fn operator(self, options: &Options) -> Box<dyn Operator> {
        match self {
            Name::Aggregation => Box::<aggregation::Aggregation>::default(),
            Name::SessionIncremental => Box::new(sessions::Sessions::folded(options)),
            Name::SessionHolistic => Box::new(sessions::Sessions::kept(options)),
            Name::IntervalJoin => Box::new(interval_join::IntervalJoin::new(options)),
            Name::ContinuousJoin => Box::<continuous_join::ContinuousJoin>::default(),
            _ => Box::new(windows::Windows::new(self, options)),
        }
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Name::ALL.into_iter().find(|name| name.text() == text).ok_or_else(|| {
            let known: Vec<_> = Name::ALL.iter().map(|name| name.text()).collect();
            Error::Usage(format!("there is no operator {text:?}, but {}", known.join(", ")))
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Numbers of the operators, in units of event time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a window is.
    pub length: i64,
    /// How far apart sliding windows start.
    pub slide: i64,
    /// A session is over so long after its last event.
    pub gap: i64,
    /// Of the interval join: a right event is at most so long before the left one (a negative
    /// number), or at least so long after it.
    pub lower: i64,
    /// A right event is at most so long after the left one.
    pub upper: i64,
    /// How long a window waits for late events.
    pub allowed: i64,
    /// Windows that are over at once are visited and removed by their prefix, instead of key by
    /// key.
    pub purge: bool,
}

impl Default for Options {
    /// Those of the paper's configuration.
    fn default() -> Self {
        Options { length: 5, slide: 1, gap: 120, lower: -120, upper: 180, allowed: 0, purge: false }
    }
}

impl Options {
    /// Says which number makes no sense, if one does not.
    ///
    /// # Errors
    /// [`Error::Usage`], naming the option.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::Usage(message));
        let Options { length, slide, gap, lower, upper, allowed, .. } = *self;
        match () {
            () if length < 1 => refuse(format!("--length {length}: 1 is the least")),
            () if slide < 1 || slide > length => {
                refuse(format!("--slide {slide}: from 1 to the length, which is {length}"))
            }
            () if gap < 1 => refuse(format!("--gap {gap}: 1 is the least")),
            () if lower > upper => refuse(format!("--lower {lower} is above --upper {upper}")),
            () if allowed < 0 => refuse(format!("--allowed-lateness {allowed}: 0 is the least")),
            () => Ok(()),
        }
    }

    /// The starts of the windows that `time` is in, ascending.
    pub fn starts(&self, slide: i64, time: i64) -> impl Iterator<Item = i64> + use<> {
        let first = (time - self.length).div_euclid(slide) * slide + slide;
        let count = (time - first).div_euclid(slide) + 1;
        (0..count).map(move |at| first + at * slide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_in_as_many_windows_as_start_within_a_length() {
        let options = Options { length: 5, ..Options::default() };
        let starts = |slide, time| options.starts(slide, time).collect::<Vec<_>>();
        assert_eq!(starts(5, 12), [10]);
        assert_eq!(starts(5, 10), [10]);
        assert_eq!(starts(2, 10), [6, 8, 10]);
        assert_eq!(starts(2, 11), [8, 10]);
        assert_eq!(starts(1, -1), [-5, -4, -3, -2, -1]);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in Name::ALL {
            assert_eq!(name.text().parse::<Name>().unwrap(), name);
        }
        let error = "hopping".parse::<Name>().unwrap_err().to_string();
        assert!(error.contains("hopping") && error.contains("sliding-join"), "{error}");
    }
}
