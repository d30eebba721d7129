//! Accesses to state, and traces of them: what an operator asks of a store, made once and replayed
//! on every engine.
//!
//! A trace has no values. What a put or merge writes follows from the event it is for and from
//! what was read just before, so that an engine that returns a wrong value goes on with it.

use std::fmt;

/// An operation on a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The value of a key.
    Get,
    /// Sets the value of a key.
    Put,
    /// Appends to the value of a key, without reading it.
    Merge,
    /// Removes a key.
    Delete,
    /// Visits the keys between two: a seek and a step for each.
    Range,
    /// Visits all keys with a prefix and removes them.
    Purge,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::Get, Kind::Put, Kind::Merge, Kind::Delete, Kind::Range, Kind::Purge];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Get => "get",
            Kind::Put => "put",
            Kind::Merge => "merge",
            Kind::Delete => "delete",
            Kind::Range => "range",
            Kind::Purge => "purge",
        })
    }
}

/// Purpose of an access: it tells the value to write, or how to use the value read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Of an accumulator that the event is folded into. The argument is the event.
    Fold,
    /// As `Fold`, and the new accumulator is an answer.
    Told,
    /// Of the value whose answer is told. The argument is the window.
    Answer,
    /// Read, and only compared.
    Look,
    /// Of a session that another takes in: read, then merged there.
    Absorb,
    /// Of an element. The argument is the event.
    Element,
    /// Read, and written with the event's element at its end.
    Append,
    /// Of one session in the list of a key's sessions. The argument is the session.
    Session,
    /// Joined with the event. The argument is the event, of a range the range.
    Probe,
    /// Nothing is read or written.
    None,
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What is asked.
    pub kind: Kind,
    /// What for.
    pub role: Role,
    /// The number of the key in [`Keys`].
    pub key: u32,
    /// What `role` says.
    pub argument: u32,
}

/// Which keys of a trace a grammar tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A window, session, accumulator or buffered second of the left stream.
    State,
    /// The same of the right stream, where the two are kept apart.
    Right,
    /// The sessions of an event key.
    Sessions,
}

/// The keys of a trace, in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    classes: Vec<Class>,
    /// How many were named by their number.
    numbered: u64,
}

impl Keys {
    /// Makes a key; says its number.
    pub fn make(&mut self, class: Class, key: &[u8]) -> u32 {
        self.bytes.extend_from_slice(key);
        self.ends.push(u32::try_from(self.bytes.len()).expect("4 GiB of keys"));
        self.classes.push(class);
        (self.ends.len() - 1) as u32
    }

    /// Makes the next of the keys "0000000001", "0000000002" and so on.
    pub fn make_next(&mut self, class: Class) -> u32 {
        self.numbered += 1;
        self.make(class, &digits(self.numbered))
    }

    /// The bytes of a key.
    #[inline]
    pub fn get(&self, key: u32) -> &[u8] {
        let key = key as usize;
        let start = if key == 0 { 0 } else { self.ends[key - 1] as usize };
        &self.bytes[start..self.ends[key] as usize]
    }

    /// What kind of key it is.
    pub fn class(&self, key: u32) -> Class {
        self.classes[key as usize]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// A number in ten decimal digits, whose order is that of the numbers. Larger ones lose their first
/// digits.
pub fn digits(number: u64) -> [u8; 10] {
    let (mut text, mut rest) = ([b'0'; 10], number);
    for digit in text.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    text
}

/// A window of an event key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOf {
    /// The event key.
    pub key: u64,
    /// Where it starts.
    pub start: i64,
    /// Where it ends.
    pub end: i64,
}

/// Keys that a range visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first, by its number.
    pub from: u32,
    /// The last.
    pub to: u32,
    /// The event that is joined with what is found.
    pub event: u32,
    /// How many there are.
    pub found: u32,
}

/// A session as the list of a key's sessions has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOf {
    /// Where it starts.
    pub start: i64,
    /// Where it ends.
    pub end: i64,
    /// The number of its key.
    pub key: u32,
}

/// Windows that are over at once, which share a prefix of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purged {
    /// The bytes of the prefix, of the key of the access.
    pub prefix: u32,
    /// The first of them in [`Trace::purged`].
    pub from: u32,
    /// The place after the last.
    pub to: u32,
}

/// What a step of a trace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The accesses of one event.
    Event,
    /// What a watermark fires.
    Firing,
}

/// Accesses that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessGroup {
    /// Whether of an event or of a watermark.
    pub phase: Phase,
    /// The place after its last access.
    pub end: u32,
}

/// All that an operator asks of a store for a stream of events.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The keys.
    pub keys: Keys,
    /// The accesses, in order.
    pub accesses: Vec<Access>,
    /// The events and watermarks they belong to, in order.
    pub steps: Vec<AccessGroup>,
    /// Windows, for answers.
    pub windows: Vec<WindowOf>,
    /// Sessions, for the lists of a key's sessions.
    pub sessions: Vec<SessionOf>,
    /// What ranges visit.
    pub spans: Vec<Span>,
    /// What purges are of.
    pub purges: Vec<Purged>,
    /// Keys and windows that are purged.
    pub purged: Vec<(u32, u32)>,
}

impl Trace {
    /// Adds an access.
    #[inline]
    pub fn push(&mut self, kind: Kind, role: Role, key: u32, argument: u32) {
        self.accesses.push(Access { kind, role, key, argument });
    }

    /// Adds a window to be told of; says its number.
    pub fn window(&mut self, key: u64, start: i64, end: i64) -> u32 {
        self.windows.push(WindowOf { key, start, end });
        (self.windows.len() - 1) as u32
    }

    /// Says that the accesses since the last step are one.
    pub fn step(&mut self, phase: Phase) {
        let end = u32::try_from(self.accesses.len()).expect("4 billion accesses");
        self.steps.push(AccessGroup { phase, end });
    }

    /// How many accesses there are: a range is a seek and a step for each key it finds, a purge a
    /// get and a delete for each.
    pub fn count(&self) -> u64 {
        let spans: u64 = self.spans.iter().map(|span| u64::from(span.found)).sum();
        self.accesses.len() as u64 + spans + 2 * self.purged.len() as u64 - self.purges.len() as u64
    }

    /// How many there are of each kind, in the order of [`Kind::ALL`].
    pub fn counts(&self) -> [u64; 6] {
        let mut counts = [0; 6];
        self.accesses.iter().for_each(|access| counts[access.kind as usize] += 1);
        counts
    }

    /// An access in words, for messages.
    pub fn describe(&self, place: usize) -> String {
        let access = self.accesses[place];
        let key = String::from_utf8_lossy(self.keys.get(access.key)).into_owned();
        format!("access {place} ({} {key})", access.kind)
    }
}
