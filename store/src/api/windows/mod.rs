//! Windows of event time: what an event is in, and when the result of a window comes out.
//!
//! [`Windows`] describes them. [`Aggregated`] folds events into an accumulator per window and key
//! as they come; [`Holistic`] keeps them and hands them to a function when their window closes.
//! Which events a result has depends on the events and on the times they were sent with, never on the
//! layout, the memory, how often [`advance`](Aggregated::advance) is called and with how much fuel.
//! The order in which it has them may: a late event may have to wait until windows have fired, and
//! events that come meanwhile are in before it.

mod aggregated;
mod aligned;
mod come_out;
mod contents;
mod folded;
mod grid;
mod holistic;
mod kept;
mod late;
mod layout;
mod progress;
mod reach;
mod session_contents;
mod session_set;
mod sessions;
mod shaped;
mod stacks;
mod totals;

use std::fmt;
use std::time::Duration;

use alluvium_pagestore::{Error, ErrorKind, Result, Time, count_nanos};
use serde::{Deserialize, Serialize};

pub use aggregated::{Aggregated, AggregatedOf};
pub use contents::Out;
pub use holistic::{Holistic, HolisticOf, Process, Processing, process};
pub use layout::{HolisticLayout, WindowLayout};
pub use session_set::SessionSet;

pub(crate) use grid::Grid;
pub(crate) use progress::{ProgressCell, ProgressRecord};

/// A span of event time: includes `start`, excludes `end`.
///
/// Windows are clipped at the ends of time. A window that begins before [`Time::MIN`] starts there,
/// and one that ends after [`Time::MAX`] ends there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Window {
    /// First time in it.
    pub start: Time,
    /// First time after it.
    pub end: Time,
}

/// When results come out. The sum of all changes is the same for each variant.
///
/// ```
/// use std::time::Duration;
///
/// use alluvium::{Emit, Windows};
///
/// let minute = Duration::from_secs(60);
/// // A result when the window ends, corrected by events up to 10 s late.
/// let windows = Windows::tumbling(minute).lateness(Duration::from_secs(10)).emit(Emit::OnWatermark);
/// # let _ = windows;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emit {
    /// Once per window and key, when nothing can change the result: when the watermark reaches the
    /// window's end plus the allowed lateness; for sessions, when it passes that point.
    #[default]
    OnClose,
    /// When the watermark reaches the window's end; for sessions, when it passes it. Each later event
    /// within the allowed lateness retracts the old result and emits the new one.
    OnWatermark,
    /// Also earlier: for changed windows, each time that the watermark passes a multiple of this
    /// interval since the epoch.
    Early(#[serde(with = "as_nanos")] Duration),
}

/// Which windows events are in, how long late ones are waited for, and when results come out.
///
/// Opening a state refuses a length, slide or gap of 0, and each stretch of 292 years or more, which
/// [`Time`] cannot count.
///
/// ```
/// use std::time::Duration;
///
/// use alluvium::Windows;
/// let (length, slide) = (Duration::from_secs(30), Duration::from_secs(1));
/// let hop = Windows::sliding(length, slide).lateness(Duration::from_secs(5));
/// let visit = Windows::session(Duration::from_secs(10));
/// # let _ = (hop, visit);
/// ```
///
/// # Opened again
///
/// The windows are part of the state, and of its checkpoints. A state that was stored as other
/// windows is refused, naming both, unless its answers stay right. These may change:
///
/// - [`Emit::OnClose`] may become [`Emit::OnWatermark`], and the other way if the lateness is 0; of
///   sessions, either way only if it is 0.
/// - Of windows that are no sessions, [`Emit::OnClose`] may become [`Emit::Early`], and so may
///   [`Emit::OnWatermark`] if the lateness is 0.
/// - The interval of [`Emit::Early`].
///
/// Length, slide, offset, gap and lateness may not: what is kept, and what is gone already, is by the
/// stored ones. Windows with others are a new state of another name.
///
/// A checkpoint of a build from before windows were recorded is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    shape: WindowKind,
    lateness: i64,
    emit: Emit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WindowKind {
    Aligned { length: i64, slide: i64, offset: i64 },
    Session { gap: i64 },
}

impl Windows {
    /// Makes windows of `length`, one after the other.
    pub fn tumbling(length: Duration) -> Self {
        Self::sliding(length, length)
    }

    /// Makes windows of `length`, one every `slide`, which must not exceed `length`.
    pub fn sliding(length: Duration, slide: Duration) -> Self {
        Self::of(WindowKind::Aligned { length: stored(length), slide: stored(slide), offset: 0 })
    }

    /// Makes sessions per key: a window from an event to `gap` after the last event. The next event
    /// belongs to it if it comes at or before its end.
    ///
    /// A late event joins the sessions within `gap` of it that are open at the timestamp it was sent
    /// with. It is too late if the joined session is closed then. Only sessions of events that were
    /// sent before that timestamp count. (After the store is opened again or the key group has moved,
    /// events that were sent with the watermark itself count as sent before it.)
    pub fn session(gap: Duration) -> Self {
        Self::of(WindowKind::Session { gap: stored(gap) })
    }

    /// Whether they are sessions.
    pub(crate) fn are_sessions(&self) -> bool {
        matches!(self.shape, WindowKind::Session { .. })
    }

    fn of(shape: WindowKind) -> Self {
        Self { shape, lateness: 0, emit: Emit::OnClose }
    }

    /// Shifts windows: they begin at multiples of the slide since the epoch, plus this. Default: 0.
    /// Has no effect on sessions. To begin earlier by some time, use the slide less that time.
    #[must_use]
    pub fn offset(mut self, later: Duration) -> Self {
        if let WindowKind::Aligned { slide, offset, .. } = &mut self.shape {
            // Below the slide, which is an `i64`.
            *offset = (later.as_nanos() % (*slide).max(1) as u128) as i64;
        }
        self
    }

    /// Accepts events until the watermark reaches the window's end plus this; for sessions, until it
    /// passes that point. Default: 0.
    #[must_use]
    pub fn lateness(mut self, lateness: Duration) -> Self {
        self.lateness = stored(lateness);
        self
    }

    /// Sets when results come out. Default: [`Emit::OnClose`].
    #[must_use]
    pub fn emit(mut self, emit: Emit) -> Self {
        self.emit = emit;
        self
    }

    /// Returns when the result of a window comes out: at its end or, with [`Emit::OnClose`], after
    /// the allowed lateness.
    pub fn fires_at(&self, window: Window) -> Time {
        match self.emit {
            Emit::OnClose => window.end.plus(self.lateness),
            Emit::OnWatermark | Emit::Early(_) => window.end,
        }
    }

    /// The same windows in one way of writing: offsets a slide apart mean the same.
    pub(crate) fn normal(mut self) -> Self {
        if let WindowKind::Aligned { slide, offset, .. } = &mut self.shape {
            *offset = offset.rem_euclid((*slide).max(1));
        }
        self
    }

    /// Why state of these windows cannot go on as `after`; `None` if the answers stay right.
    pub(crate) fn why_not(&self, after: &Self) -> Option<&'static str> {
        let (before, after) = (self.normal(), after.normal());
        let is_session = before.are_sessions();
        match (before.emit, after.emit) {
            _ if before.shape != after.shape => {
                Some("what is kept is of the stored windows, and of no others")
            }
            _ if before.lateness != after.lateness => {
                Some("what is kept, and what is gone, is by the stored lateness")
            }
            (a, b) if a == b => None,
            (Emit::Early(_), Emit::Early(_)) => None,
            (Emit::Early(_), _) => Some("early results that were told would not be taken back"),
            // Without lateness both tell a window once, when the watermark has passed its end.
            (Emit::OnClose, Emit::OnWatermark) if before.lateness == 0 => None,
            (Emit::OnWatermark, _) if before.lateness == 0 && !is_session => None,
            (Emit::OnWatermark, Emit::OnClose) if before.lateness == 0 => None,
            (Emit::OnWatermark, _) => Some("results that were told would not be taken back"),
            (Emit::OnClose, _) if is_session => {
                Some("open sessions fire when the stored way to emit says")
            }
            (Emit::OnClose, _) => None,
        }
    }

    /// Returns whether an event that was sent with `sent` is too late for a session of its own.
    /// Then it counts only if it joins a session of events that were sent earlier, so those must be
    /// added first. False for windows that are no sessions.
    pub fn counts_only_with_others(&self, at: Time, sent: Time) -> bool {
        match self.shape {
            WindowKind::Aligned { .. } => false,
            WindowKind::Session { gap } => {
                let rules =
                    sessions::SessionRules { gap, lateness: self.lateness, emit: self.emit };
                at < sent && !rules.is_open(at, sent)
            }
        }
    }

    /// Checks the numbers.
    fn checked(self) -> Result<Self> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Config, what));
        let (one, other) = match self.shape {
            WindowKind::Aligned { length, slide, .. } => (length, slide),
            WindowKind::Session { gap } => (gap, gap),
        };
        let early = match self.emit {
            Emit::Early(every) => stored(every),
            Emit::OnClose | Emit::OnWatermark => 0,
        };
        if [one, other, self.lateness, early].contains(&TOO_LONG) {
            return refuse(format!("{self}: a stretch of 292 years or more is too long"));
        }
        match self.shape {
            WindowKind::Aligned { length, slide, .. } if length < 1 || slide < 1 => {
                return refuse(format!("windows of {length} ns every {slide} ns; 1 is the least"));
            }
            WindowKind::Aligned { length, slide, .. } if slide > length => {
                let what = "events between two windows would be in none";
                return refuse(format!("windows of {length} ns every {slide} ns: {what}"));
            }
            WindowKind::Session { gap } if gap < 1 => {
                return refuse(format!("sessions with a gap of {gap} ns; 1 is the least"));
            }
            _ => {}
        }
        match self.emit {
            Emit::Early(Duration::ZERO) => {
                refuse("early results every 0 ns; 1 is the least".to_string())
            }
            _ => Ok(self),
        }
    }
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            WindowKind::Aligned { length, slide, offset } => {
                let (length, slide) = (InNanos(length), InNanos(slide));
                write!(f, "windows of {length} every {slide} from {offset}")?;
            }
            WindowKind::Session { gap } => write!(f, "sessions with a gap of {}", InNanos(gap))?,
        }
        write!(f, " (lateness {}, ", InNanos(self.lateness))?;
        match self.emit {
            Emit::OnClose => write!(f, "on close)"),
            Emit::OnWatermark => write!(f, "on the watermark)"),
            Emit::Early(every) => write!(f, "early every {})", InNanos(stored(every))),
        }
    }
}

/// What stands for a stretch of time that [`Time`] cannot count, until the state is opened: refused then.
const TOO_LONG: i64 = -1;

/// A stretch of time as it is kept and stored.
fn stored(stretch: Duration) -> i64 {
    count_nanos(stretch).unwrap_or(TOO_LONG)
}

struct InNanos(i64);

impl fmt::Display for InNanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TOO_LONG => f.write_str("292 years or more"),
            nanos => write!(f, "{nanos} ns"),
        }
    }
}

/// The interval of early results, as checkpoints and configurations have it: in nanoseconds.
mod as_nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(every: &Duration, to: S) -> Result<S::Ok, S::Error> {
        super::stored(*every).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let nanos = i64::deserialize(from)?;
        let nanos = u64::try_from(nanos).map_err(serde::de::Error::custom)?;
        Ok(Duration::from_nanos(nanos))
    }
}

/// Result of [`advance`](Aggregated::advance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advanced {
    /// True if every due window has fired and all that nobody needs is freed. False if the fuel ran
    /// out: call again.
    pub done: bool,
}

/// An event that came too late for all of its windows; or one at [`Time::MAX`], the end of time,
/// which no window contains. Broken timestamps often convert to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late<K, E> {
    /// Its event time.
    pub at: Time,
    /// Its key.
    pub key: K,
    /// The event.
    pub element: E,
    /// How far its time is before the timestamp it was sent with, in nanoseconds; negative at the
    /// end of time.
    pub lateness: i64,
}

/// Keys that `advance_all` looks at in one go.
const FUEL_AT_ONCE: usize = 4096;

/// Whether what has to wait for `at` may be done under `watermark`: the end of time stands for all
/// that is still to come.
fn has_come(at: i128, watermark: Time) -> bool {
    watermark == Time::MAX || at <= i128::from(watermark.0)
}

fn clipped(at: i128) -> Time {
    Time(at.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
}
