//! Replays a trace on an engine and checks every value that it returns.
//!
//! The twin, a `BTreeMap`, is replayed once and says what each access returns and what is left at
//! the end. Answers are told beside that, to be compared with the model's.

use std::time::{Duration, Instant};

use alluvium::types::combine;
use foldhash::fast::FixedState;
use std::hash::{BuildHasher, Hasher};

use crate::access::{Access, Kind, Phase, Role, Trace};
use crate::engine::{BTree, Engine};
use crate::event::Stream;
use crate::value::{Answers, Element, Partners, Shape, elements, session_bytes, sums, sums_bytes};
use crate::{Error, Result};

/// What each access of a trace returns, and what is left at its end.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// A digest for each access; 0 for those that return nothing.
    returned: Vec<u64>,
    /// A digest of the value of each key.
    left: Vec<u64>,
    /// The answers.
    pub answers: Answers,
    /// Bytes of keys and values that are left.
    pub left_bytes: u64,
    /// The most bytes of keys and values that were there.
    pub live_bytes_max: u64,
}

/// How a replay went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Accesses that were made, as [`Trace::count`] counts.
    pub accesses: u64,
    /// Steps that were made.
    pub steps: usize,
    /// The answers.
    pub answers: Answers,
    /// A digest of all that was returned, in order.
    pub digest: u64,
    /// Whether all of the trace was replayed.
    pub is_complete: bool,
    /// Bytes of keys and values that were written.
    pub bytes_written: u64,
}

/// Watches a replay, and may end it: for clocks.
pub trait Watch {
    /// Before a step's first access; `false` ends the replay.
    fn step(&mut self, number: usize, phase: Phase) -> bool;

    /// After its last.
    fn stepped(&mut self, phase: Phase);

    /// Whether the next access is timed.
    fn samples(&mut self) -> bool {
        false
    }

    /// An access that was timed has begun.
    fn begins(&mut self) {}

    /// It has ended.
    fn ended(&mut self, _: Kind) {}
}

/// Ends a replay after some time, and does nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Until(Option<Instant>);

impl Until {
    /// Never ends it.
    pub fn never() -> Self {
        Until(None)
    }

    /// Ends it after so long.
    pub fn after(most: Duration) -> Self {
        Until(Some(Instant::now() + most))
    }
}

impl Watch for Until {
    fn step(&mut self, number: usize, _: Phase) -> bool {
        number % 64 != 0 || self.0.is_none_or(|end| Instant::now() < end)
    }

    fn stepped(&mut self, _: Phase) {}
}

/// Replays `trace` on the twin.
///
/// # Errors
/// None that an engine in memory has.
pub fn expect(trace: &Trace, stream: &Stream, shape: Shape) -> Result<Expected> {
    let mut twin = BTree::default();
    let mut expected =
        Expected { returned: Vec::with_capacity(trace.accesses.len()), ..Default::default() };
    let mut replay = Replay::new(trace, stream, shape, Returned::Recorded(&mut expected.returned));
    replay.run(&mut twin, false, &mut Until::never())?;
    expected.answers = replay.done.answers;
    expected.live_bytes_max = twin.bytes_max();
    expected.left = (0..trace.keys.len() as u32)
        .map(|key| {
            let mut digest = 0;
            let bytes = trace.keys.get(key);
            twin.get(bytes, &mut |value| {
                digest = digest_of(value);
                expected.left_bytes += value.map_or(0, |value| (bytes.len() + value.len()) as u64);
            })?;
            Ok(digest)
        })
        .collect::<Result<_>>()?;
    Ok(expected)
}

/// Replays `trace` on `engine`; fuses a get and put of an accumulator into an update if `updates`.
///
/// # Errors
/// The engine's; [`Error::Wrong`], naming the access, for a value that is not the twin's.
pub fn replay(
    trace: &Trace,
    stream: &Stream,
    shape: Shape,
    expected: &Expected,
    engine: &mut dyn Engine,
    updates: bool,
    watch: &mut dyn Watch,
) -> Result<Replayed> {
    let mut replay = Replay::new(trace, stream, shape, Returned::Compared(&expected.returned));
    replay.run(engine, updates, watch)?;
    Ok(replay.done)
}

/// Looks at each key of the trace once more: what was deleted has to be gone, what was written last
/// has to be there.
///
/// # Errors
/// As [`replay`].
pub fn sweep(trace: &Trace, expected: &Expected, engine: &mut dyn Engine) -> Result<()> {
    for key in 0..trace.keys.len() as u32 {
        let bytes = trace.keys.get(key);
        let mut found = 0;
        engine.get(bytes, &mut |value| found = digest_of(value))?;
        if found != expected.left[key as usize] {
            let wanted = expected.left[key as usize];
            let what = match (found, wanted) {
                (_, 0) => "is there and was deleted",
                (0, _) => "is not there and was written",
                _ => "has another value than was written last",
            };
            let key = String::from_utf8_lossy(bytes);
            return Err(Error::Wrong(format!("at the end of the run key {key} {what}")));
        }
    }
    Ok(())
}

/// A digest of a value; 0 stands for none.
#[inline]
fn digest_of(value: Option<&[u8]>) -> u64 {
    let Some(value) = value else { return 0 };
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(value);
    hasher.write_usize(value.len());
    hasher.finish() | 1
}

enum Returned<'a> {
    Recorded(&'a mut Vec<u64>),
    Compared(&'a [u64]),
}

struct Replay<'a> {
    trace: &'a Trace,
    stream: &'a Stream,
    shape: Shape,
    returned: Returned<'a>,
    /// What was read of an accumulator.
    read: [u64; 2],
    /// What was read to be merged or appended elsewhere.
    bytes: Vec<u8>,
    done: Replayed,
}

impl<'a> Replay<'a> {
    fn new(trace: &'a Trace, stream: &'a Stream, shape: Shape, returned: Returned<'a>) -> Self {
        let (bytes, done) = (Vec::new(), Replayed::default());
        Replay { trace, stream, shape, returned, read: [0; 2], bytes, done }
    }

    fn run(&mut self, engine: &mut dyn Engine, updates: bool, watch: &mut dyn Watch) -> Result<()> {
        let trace = self.trace;
        let mut at = 0;
        for (number, step) in trace.steps.iter().enumerate() {
            if !watch.step(number, step.phase) {
                return Ok(());
            }
            while at < step.end as usize {
                let access = &trace.accesses[at];
                let fuses = updates && access.kind == Kind::Get && access.role == Role::Fold;
                let sampled = watch.samples();
                if sampled {
                    watch.begins();
                }
                if fuses {
                    self.update(engine, at)?;
                    at += 2;
                } else {
                    self.access(engine, at, access)?;
                    at += 1;
                }
                if sampled {
                    // An update counts as the put that it ends with.
                    watch.ended(if fuses { Kind::Put } else { access.kind });
                }
            }
            self.done.steps += 1;
            watch.stepped(step.phase);
        }
        self.done.is_complete = true;
        Ok(())
    }

    /// Takes note of what access `at` returned.
    #[inline]
    fn returns(&mut self, at: usize, digest: u64) -> Result<()> {
        self.done.digest = combine(self.done.digest, digest);
        match &mut self.returned {
            Returned::Recorded(all) => {
                all.resize(at, 0);
                all.push(digest);
                Ok(())
            }
            Returned::Compared(all) if all.get(at) == Some(&digest) => Ok(()),
            Returned::Compared(all) => {
                let wanted = all.get(at).copied().unwrap_or(0);
                let what = match (digest, wanted) {
                    (0, _) => "returned no value and there is one",
                    (_, 0) => "returned a value and there is none",
                    _ => "returned another value than was written last",
                };
                Err(Error::Wrong(format!("{} {what}", self.trace.describe(at))))
            }
        }
    }

    /// A get of an accumulator and the put after it, as one.
    #[inline]
    fn update(&mut self, engine: &mut dyn Engine, at: usize) -> Result<()> {
        let put = &self.trace.accesses[at + 1];
        let event = &self.stream.events[put.argument as usize];
        let more = [1, u64::from(event.amount)];
        let (mut digest, mut read) = (0, [0; 2]);
        let key = self.trace.keys.get(put.key);
        engine.update(key, more, &mut |value| {
            digest = digest_of(value);
            read = sums(value.unwrap_or_default());
        })?;
        self.done.accesses += 2;
        self.done.bytes_written += key.len() as u64 + 16;
        self.returns(at, digest)?;
        if put.role == Role::Told {
            let [count, sum] = [read[0] + 1, read[1].wrapping_add(more[1])];
            self.done.answers.tell(event.key, put.argument.into(), Some([count, sum, 0]));
        }
        Ok(())
    }

    #[inline]
    fn access(&mut self, engine: &mut dyn Engine, at: usize, access: &Access) -> Result<()> {
        let trace = self.trace;
        let key = trace.keys.get(access.key);
        self.done.accesses += 1;
        match access.kind {
            Kind::Get => self.get(engine, at, access, key),
            Kind::Put => self.put(engine, access, key),
            Kind::Merge => self.merge(engine, access, key),
            Kind::Delete => engine.delete(key),
            Kind::Range => self.range(engine, at, access, key),
            Kind::Purge => self.purge(engine, at, access, key),
        }
    }

    #[inline]
    fn get(
        &mut self,
        engine: &mut dyn Engine,
        at: usize,
        access: &Access,
        key: &[u8],
    ) -> Result<()> {
        let Access { role, argument, .. } = *access;
        let (trace, stream, shape) = (self.trace, self.stream, self.shape);
        let (read, bytes, answers) = (&mut self.read, &mut self.bytes, &mut self.done.answers);
        let mut digest = 0;
        engine.get(key, &mut |value| {
            digest = digest_of(value);
            let value = value.unwrap_or_default();
            match role {
                Role::Fold => *read = sums(value),
                Role::Answer => answers.tell_window(trace, argument, shape.told(value)),
                Role::Absorb | Role::Append => {
                    bytes.clear();
                    bytes.extend_from_slice(value);
                }
                Role::Probe => {
                    let event = &stream.events[argument as usize];
                    let mut partners = Partners::default();
                    elements(value).for_each(|element| partners.add(event, &element));
                    answers.tell(event.key, argument.into(), partners.told());
                }
                _ => {}
            }
        })?;
        self.returns(at, digest)
    }

    #[inline]
    fn put(&mut self, engine: &mut dyn Engine, access: &Access, key: &[u8]) -> Result<()> {
        let event = &self.stream.events[access.argument as usize];
        match access.role {
            Role::Fold | Role::Told => {
                let [count, sum] = self.read;
                let now = [count.wrapping_add(1), sum.wrapping_add(event.amount.into())];
                if access.role == Role::Told {
                    let told = Some([now[0], now[1], 0]);
                    self.done.answers.tell(event.key, access.argument.into(), told);
                }
                self.done.bytes_written += key.len() as u64 + 16;
                return engine.put(key, &sums_bytes(now));
            }
            // What was read, and one more.
            Role::Append => {}
            _ => self.bytes.clear(),
        }
        Element::of(event, access.argument).encode(&mut self.bytes);
        self.done.bytes_written += (key.len() + self.bytes.len()) as u64;
        engine.put(key, &self.bytes)
    }

    #[inline]
    fn merge(&mut self, engine: &mut dyn Engine, access: &Access, key: &[u8]) -> Result<()> {
        match access.role {
            Role::Absorb => {}
            Role::Session => {
                let session = &self.trace.sessions[access.argument as usize];
                self.done.bytes_written += key.len() as u64 + 24;
                return engine.merge(key, &session_bytes(session));
            }
            _ => {
                self.bytes.clear();
                let event = &self.stream.events[access.argument as usize];
                Element::of(event, access.argument).encode(&mut self.bytes);
            }
        }
        self.done.bytes_written += (key.len() + self.bytes.len()) as u64;
        engine.merge(key, &self.bytes)
    }

    fn range(
        &mut self,
        engine: &mut dyn Engine,
        at: usize,
        access: &Access,
        key: &[u8],
    ) -> Result<()> {
        let span = self.trace.spans[access.argument as usize];
        let event = &self.stream.events[span.event as usize];
        let mut partners = Partners::default();
        let (mut digest, mut found) = (1, 0u32);
        engine.range(key, self.trace.keys.get(span.to), &mut |key, value| {
            digest = combine(combine(digest, digest_of(Some(key))), digest_of(Some(value)));
            found += 1;
            elements(value).for_each(|element| partners.add(event, &element));
        })?;
        self.done.accesses += u64::from(found);
        self.done.answers.tell(event.key, span.event.into(), partners.told());
        self.returns(at, digest)
    }

    fn purge(
        &mut self,
        engine: &mut dyn Engine,
        at: usize,
        access: &Access,
        key: &[u8],
    ) -> Result<()> {
        let purged = self.trace.purges[access.argument as usize];
        let (mut digest, mut found, shape) = (1, 0u64, self.shape);
        let windows = &self.trace.purged[purged.from as usize..purged.to as usize];
        let start =
            windows.first().map_or(0, |(_, window)| self.trace.windows[*window as usize].start);
        let answers = &mut self.done.answers;
        let prefix = purged.prefix as usize;
        engine.purge(&key[..prefix], &mut |key, value| {
            digest = combine(combine(digest, digest_of(Some(key))), digest_of(Some(value)));
            found += 1;
            answers.tell(number(&key[prefix..]), start, shape.told(value));
        })?;
        self.done.accesses += (2 * found).saturating_sub(1);
        self.returns(at, digest)
    }
}

/// The number that a key's digits are.
fn number(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit.wrapping_sub(b'0') % 10))
}
