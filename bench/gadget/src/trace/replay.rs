//! Replays a recording on an engine, back to back or paced by its times, and compares each value
//! with the twin's.
//!
//! Lines are decoded before: a replay reads 16 bytes an access. The time that counts has the making
//! of each value and the hash by which each returned one is compared, the same for all engines.

use std::time::{Duration, Instant};

use alluvium::types::combine;

use super::file::{Entry, Recording};
use super::line::Op;
use super::value::{Visited, digest_of, fill};
use crate::access::Kind;
use crate::engine::{BTree, Engine};
use crate::measure::{Stopwatch, thread_time};
use crate::operator::{Name, Options};
use crate::{Error, Result};

/// Accesses between two looks at the clock for the time limit.
const ACCESSES_A_LOOK: usize = 64;

/// What a replay returns, and what is left at its end.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// A digest for each get and seek.
    returned: Vec<u64>,
    left: Vec<u64>,
    /// The digest of all of them.
    pub digest: u64,
    /// The most bytes of keys and values that were there.
    pub live_bytes_max: u64,
}

/// How a replay went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Played {
    /// Accesses that were made.
    pub accesses: u64,
    /// A digest of all that was returned, in order.
    pub digest: u64,
    /// Whether all of it was replayed.
    pub is_complete: bool,
    /// How long it took.
    pub seconds: f64,
    /// Processor time of the thread that made the accesses.
    pub processor_s: f64,
}

/// When each access is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayPace {
    /// Seconds of a unit of event time.
    pub unit_s: f64,
}

/// The operator that asks an engine for what a recording does: it decides which engines run it and
/// whether they keep keys in order.
pub fn stand_in(recording: &Recording) -> (Name, Options) {
    let has = |op| recording.entries().iter().any(|entry| entry.op() == op);
    let name = match () {
        () if has(Op::Seek) => Name::IntervalJoin,
        () if has(Op::Put) => Name::Aggregation,
        () => Name::SessionHolistic,
    };
    (name, Options::default())
}

/// Replays a recording on the twin.
///
/// # Errors
/// None that an engine in memory has.
pub fn expect(recording: &Recording) -> Result<Expected> {
    let (mut twin, mut expected) = (BTree::default(), Expected::default());
    let mut player = Player::new(recording, Returned::Recorded(&mut expected.returned));
    let mut at = 0;
    while at < recording.entries().len() {
        at = player.step(&mut twin, at)?;
    }
    expected.digest = player.digest;
    expected.live_bytes_max = twin.bytes_max();
    expected.left = left(recording, &mut twin)?;
    Ok(expected)
}

/// Digests of the values of all keys.
fn left(recording: &Recording, engine: &mut dyn Engine) -> Result<Vec<u64>> {
    let keys = recording.keys();
    let digest = |key: u32| {
        let mut digest = 0;
        engine.get(keys.get(key), &mut |value| digest = digest_of(value))?;
        Ok(digest)
    };
    (0..keys.len() as u32).map(digest).collect()
}

/// What becomes of returned values.
#[derive(Debug)]
enum Returned<'a> {
    Recorded(&'a mut Vec<u64>),
    Compared(&'a [u64], usize),
}

/// A replay on its way.
#[derive(Debug)]
pub struct Player<'a> {
    recording: &'a Recording,
    returned: Returned<'a>,
    value: Vec<u8>,
    digest: u64,
}

impl<'a> Player<'a> {
    fn new(recording: &'a Recording, returned: Returned<'a>) -> Self {
        Player { recording, returned, value: Vec::new(), digest: 0 }
    }

    /// Replays `recording` on `engine` until `watch` ends it.
    ///
    /// # Errors
    /// The engine's; [`Error::Wrong`], naming the access, for a value that is not the twin's.
    pub fn play(
        recording: &'a Recording,
        expected: &'a Expected,
        engine: &mut dyn Engine,
        pace: Option<ReplayPace>,
        watch: &mut Stopwatch,
    ) -> Result<Played> {
        let mut player = Player::new(recording, Returned::Compared(&expected.returned, 0));
        let (began, processor) = (Instant::now(), thread_time());
        let at = match pace {
            None => player.closed(engine, watch)?,
            Some(pace) => player.paced(engine, pace, watch)?,
        };
        let seconds = began.elapsed().as_secs_f64();
        let processor_s = (thread_time() - processor).as_secs_f64();
        let is_complete = at == recording.entries().len();
        let digest = player.digest;
        if is_complete {
            player.sweep(expected, engine)?;
        }
        Ok(Played { accesses: at as u64, digest, is_complete, seconds, processor_s })
    }

    fn closed(&mut self, engine: &mut dyn Engine, watch: &mut Stopwatch) -> Result<usize> {
        use crate::replay::Watch;
        let (entries, mut at, mut look) = (self.recording.entries(), 0, 0);
        while let Some(entry) = entries.get(at) {
            if at >= look {
                look = at + ACCESSES_A_LOOK;
                if !watch.looks(at) {
                    break;
                }
            }
            let sampled = watch.samples();
            if sampled {
                watch.begins();
            }
            at = self.step(engine, at)?;
            if sampled {
                watch.ended(kind(entry.op()));
            }
        }
        Ok(at)
    }

    fn paced(
        &mut self,
        engine: &mut dyn Engine,
        pace: ReplayPace,
        watch: &mut Stopwatch,
    ) -> Result<usize> {
        let (entries, mut at) = (self.recording.entries(), 0);
        let (first, began) = (entries.first().map_or(0, |entry| entry.time), Instant::now());
        while let Some(entry) = entries.get(at) {
            let due = Duration::from_secs_f64((entry.time - first) as f64 * pace.unit_s);
            if !wait(began, due, || watch.looks(at)) {
                break;
            }
            at = self.step(engine, at)?;
            let late = began.elapsed().saturating_sub(due);
            watch.took(late.as_nanos() as u64);
        }
        Ok(at)
    }

    /// Makes access `at`, and with a seek the steps after it; returns the place after them.
    #[inline]
    fn step(&mut self, engine: &mut dyn Engine, at: usize) -> Result<usize> {
        let entry = self.recording.entries()[at];
        let key = self.recording.keys().get(entry.key);
        match entry.op() {
            Op::Get => {
                let mut digest = 0;
                engine.get(key, &mut |value| digest = digest_of(value))?;
                self.returns(at, digest)?;
            }
            Op::Put => {
                fill(&mut self.value, at as u64, entry.bytes());
                engine.put(key, &self.value)?;
            }
            Op::Merge => {
                fill(&mut self.value, at as u64, entry.bytes());
                engine.merge(key, &self.value)?;
            }
            Op::Delete => engine.delete(key)?,
            Op::Seek => return self.range(engine, at, entry),
            // A step without a seek: the start of its range is not in the trace.
            Op::Next => {}
        }
        Ok(at + 1)
    }

    fn range(&mut self, engine: &mut dyn Engine, at: usize, entry: Entry) -> Result<usize> {
        let (entries, keys) = (self.recording.entries(), self.recording.keys());
        let steps = entries[at + 1..].iter().take_while(|entry| entry.op() == Op::Next).count();
        let (from, to) = (keys.get(entry.key), keys.get(entries[at + steps].key));
        let mut visited = Visited::new();
        engine.range(from, to.max(from), &mut |key, value| visited.add(key, value))?;
        self.returns(at, visited.0)?;
        Ok(at + 1 + steps)
    }

    #[inline]
    fn returns(&mut self, at: usize, digest: u64) -> Result<()> {
        self.digest = combine(self.digest, digest);
        match &mut self.returned {
            Returned::Recorded(all) => all.push(digest),
            Returned::Compared(all, place) => {
                let wanted = all[*place];
                *place += 1;
                if digest != wanted {
                    return Err(wrong(&self.recording.describe(at), digest, wanted));
                }
            }
        }
        Ok(())
    }

    /// What was deleted has to be gone at the end, what was written last has to be there.
    fn sweep(&self, expected: &Expected, engine: &mut dyn Engine) -> Result<()> {
        let left = left(self.recording, engine)?;
        let Some(key) = left.iter().zip(&expected.left).position(|(one, two)| one != two) else {
            return Ok(());
        };
        let name = String::from_utf8_lossy(self.recording.keys().get(key as u32));
        Err(wrong(&format!("at the end key {name}"), left[key], expected.left[key]))
    }
}

fn wrong(what: &str, found: u64, wanted: u64) -> Error {
    let how = match (found, wanted) {
        (0, _) => "returned no value and there is one",
        (_, 0) => "returned a value and there is none",
        _ => "returned another value than was written last",
    };
    Error::Wrong(format!("{what} {how}"))
}

fn kind(op: Op) -> Kind {
    match op {
        Op::Get => Kind::Get,
        Op::Put => Kind::Put,
        Op::Merge => Kind::Merge,
        Op::Delete => Kind::Delete,
        Op::Seek | Op::Next => Kind::Range,
    }
}

/// Waits until `due`; `false` if `goes_on` ends it.
fn wait(began: Instant, due: Duration, mut goes_on: impl FnMut() -> bool) -> bool {
    loop {
        if !goes_on() {
            return false;
        }
        let Some(left) = due.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else {
            return true;
        };
        // The last part is waited for without sleep, which may take longer than it should.
        match left.checked_sub(Duration::from_micros(200)) {
            Some(sleep) => std::thread::sleep(sleep.min(Duration::from_millis(50))),
            None => std::hint::spin_loop(),
        }
    }
}
