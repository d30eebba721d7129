//! Runs an operator and makes each access at once, on an engine: to record it, or to measure both
//! together.

use std::collections::HashSet;
use std::time::Instant;

use alluvium::types::combine;

use super::line::{BYTES_MAX, Line, Op};
use super::value::{Visited, digest_of, fill};
use crate::access::{Access, Keys, Kind, Role, Span, Trace};
use crate::engine::Engine;
use crate::event::{END, Event, Stream};
use crate::operator::Operator;
use crate::{Error, Result};

/// What was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recorded {
    /// Events of the stream.
    pub events: u64,
    /// Lines.
    pub accesses: u64,
    /// State keys that have lines.
    pub keys: usize,
    /// A digest of all that was returned, in order.
    pub digest: u64,
    /// How long it took, generating and recording included.
    pub seconds: f64,
}

/// Where lines go.
pub type Sink<'a> = &'a mut dyn FnMut(&Line<'_>) -> Result<()>;

/// Runs `operator` over `stream`, makes each access on `engine` at once and shows each line to
/// `sink`.
///
/// The time of a line is the latest event time so far, or the watermark that fires it.
///
/// # Errors
/// The engine's and the sink's. [`Error::Usage`] for purges, which no line can tell.
pub fn record(
    operator: &mut dyn Operator,
    stream: &Stream,
    engine: &mut dyn Engine,
    sink: Sink<'_>,
) -> Result<Recorded> {
    let began = Instant::now();
    let mut recorder = Recorder {
        engine,
        sink,
        time: i64::MIN,
        read: 0,
        value: Vec::new(),
        digest: 0,
        number: 0,
        told: Vec::new(),
        keys: HashSet::new(),
    };
    let (mut trace, mut sent) = (Trace::default(), i64::MIN);
    for (from, events, watermark) in stream.batches() {
        for (event, place) in events.iter().zip(from as u32..) {
            recorder.time = recorder.time.max(event.time);
            operator.assign(event, place, sent, &mut trace);
            operator.run(event, place, &mut trace);
            recorder.step(&mut trace, &stream.events)?;
        }
        sent = sent.max(watermark);
        if sent < END {
            recorder.time = recorder.time.max(sent);
        }
        operator.terminate(sent, &mut trace);
        recorder.step(&mut trace, &stream.events)?;
    }
    Ok(Recorded {
        events: stream.events.len() as u64,
        accesses: recorder.number,
        keys: recorder.keys.len(),
        digest: recorder.digest,
        seconds: began.elapsed().as_secs_f64(),
    })
}

struct Recorder<'a, 'b> {
    engine: &'a mut dyn Engine,
    sink: Sink<'b>,
    time: i64,
    /// Bytes of the value that was read last.
    read: u32,
    value: Vec<u8>,
    digest: u64,
    /// Lines so far.
    number: u64,
    /// Whether each key of the operator has a line. The end of a range may have none.
    told: Vec<bool>,
    /// Digests of the keys with lines: an operator may make a key again.
    keys: HashSet<u64>,
}

impl Recorder<'_, '_> {
    /// Makes the accesses of a step and forgets them.
    fn step(&mut self, trace: &mut Trace, events: &[Event]) -> Result<()> {
        for access in &trace.accesses {
            self.access(trace, access, events)?;
        }
        trace.accesses.clear();
        trace.spans.clear();
        trace.sessions.clear();
        Ok(())
    }

    fn access(&mut self, trace: &Trace, access: &Access, events: &[Event]) -> Result<()> {
        let (key, number) = (trace.keys.get(access.key), access.key as usize);
        self.told.resize(self.told.len().max(number + 1), false);
        if !std::mem::replace(&mut self.told[number], true) {
            self.keys.insert(digest_of(Some(key)));
        }
        match access.kind {
            Kind::Get => self.get(key),
            Kind::Put | Kind::Merge => self.write(access, key, events),
            Kind::Delete => {
                self.line(Op::Delete, key, 0)?;
                self.engine.delete(key)
            }
            Kind::Range => self.range(trace.spans[access.argument as usize], key, &trace.keys),
            Kind::Purge => Err(Error::Usage("--purge: a trace has no line for a purge".to_owned())),
        }
    }

    fn line(&mut self, op: Op, key: &[u8], bytes: u32) -> Result<()> {
        self.number += 1;
        (self.sink)(&Line { time: Some(self.time), op, key, bytes: Some(bytes) })
    }

    fn get(&mut self, key: &[u8]) -> Result<()> {
        self.line(Op::Get, key, 0)?;
        let (mut digest, mut read) = (0, 0);
        self.engine.get(key, &mut |value| {
            digest = digest_of(value);
            read = value.map_or(0, |value| value.len() as u32);
        })?;
        (self.read, self.digest) = (read, combine(self.digest, digest));
        Ok(())
    }

    fn write(&mut self, access: &Access, key: &[u8], events: &[Event]) -> Result<()> {
        let of_event = || u32::from(events[access.argument as usize].bytes).max(16);
        let bytes = match access.role {
            Role::Fold | Role::Told => 16,
            Role::Append => self.read + of_event(),
            Role::Absorb => self.read,
            Role::Session => 24,
            _ => of_event(),
        };
        if bytes >= BYTES_MAX {
            let most = BYTES_MAX - 1;
            return Err(Error::Usage(format!("a value of {bytes} bytes; {most} is the most")));
        }
        fill(&mut self.value, self.number, bytes);
        let op = if access.kind == Kind::Put { Op::Put } else { Op::Merge };
        self.line(op, key, bytes)?;
        match op {
            Op::Put => self.engine.put(key, &self.value),
            _ => self.engine.merge(key, &self.value),
        }
    }

    fn range(&mut self, span: Span, from: &[u8], keys: &Keys) -> Result<()> {
        let (mut visited, mut found) = (Visited::new(), Vec::new());
        self.engine.range(from, keys.get(span.to), &mut |key, value| {
            visited.add(key, value);
            found.push(key.to_vec());
        })?;
        self.digest = combine(self.digest, visited.0);
        self.line(Op::Seek, from, 0)?;
        found.iter().try_for_each(|key| self.line(Op::Next, key, 0))
    }
}
