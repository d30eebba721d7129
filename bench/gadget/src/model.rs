//! The model: answers recomputed from the events by the definitions, without state keys, without
//! accesses and without anything of the operators.

use std::collections::{BTreeMap, HashMap};

use crate::event::{Event, Side, Stream};
use crate::operator::{Name, Options};
use crate::value::{Answers, Element, Folding, Partners, Shape};

/// The answers to `stream`.
pub fn answers(name: Name, options: &Options, stream: &Stream) -> Answers {
    match name {
        Name::Aggregation => aggregation(stream),
        Name::SessionIncremental | Name::SessionHolistic => sessions(name.shape(), options, stream),
        Name::IntervalJoin => interval(options, stream),
        Name::ContinuousJoin => continuous(stream),
        _ => {
            let slide = if name.slides() { options.slide } else { options.length };
            windows(name.shape(), slide, options, stream)
        }
    }
}

/// Each event with its place and the watermark that was sent before it.
fn sent(stream: &Stream) -> impl Iterator<Item = (u32, &Event, i64)> {
    let mut watermark = i64::MIN;
    stream.batches().flat_map(move |(from, events, after)| {
        let before = watermark;
        watermark = before.max(after);
        events.iter().zip(from as u32..).map(move |(event, place)| (place, event, before))
    })
}

fn aggregation(stream: &Stream) -> Answers {
    let (mut sums, mut answers) = (HashMap::<u64, [u64; 2]>::new(), Answers::default());
    for (place, event, _) in sent(stream) {
        let [count, sum] = sums.entry(event.key).or_default();
        (*count, *sum) = (*count + 1, *sum + u64::from(event.amount));
        answers.tell(event.key, place.into(), Some([*count, *sum, 0]));
    }
    answers
}

fn windows(shape: Shape, slide: i64, options: &Options, stream: &Stream) -> Answers {
    let mut windows = BTreeMap::<(i64, u64), Folding>::new();
    for (place, event, watermark) in sent(stream) {
        for start in options.starts(slide, event.time) {
            if start + options.length + options.allowed > watermark {
                windows.entry((start, event.key)).or_default().add(&Element::of(event, place));
            }
        }
    }
    let mut answers = Answers::default();
    windows
        .iter()
        .for_each(|((start, key), window)| answers.tell(*key, *start, window.told(shape)));
    answers
}

/// A session that was made of events in the order in which they came.
#[derive(Clone, Default)]
struct Session {
    start: i64,
    end: i64,
    /// The ends of sessions before this batch that are part of it now.
    before: Option<(i64, i64)>,
    folding: Folding,
}

fn sessions(shape: Shape, options: &Options, stream: &Stream) -> Answers {
    let mut open = HashMap::<u64, Vec<Session>>::new();
    let mut answers = Answers::default();
    let (mut watermark, gap) = (i64::MIN, options.gap);
    for (from, events, after) in stream.batches() {
        for session in open.values_mut().flatten() {
            session.before = Some((session.start, session.end));
        }
        for (event, place) in events.iter().zip(from as u32..) {
            let of_key = open.entry(event.key).or_default();
            join(of_key, event, place, watermark, gap);
        }
        watermark = watermark.max(after);
        for (key, of_key) in &mut open {
            of_key.retain(|session| {
                let is_over = session.end < watermark;
                if is_over {
                    answers.tell(*key, session.start, session.folding.told(shape));
                }
                !is_over
            });
        }
    }
    answers
}

fn join(of_key: &mut Vec<Session>, event: &Event, place: u32, watermark: i64, gap: i64) {
    let (start, end) = (event.time, event.time + gap);
    let touches = |(from, until): (i64, i64)| from <= end && until >= start;
    if end < watermark && !of_key.iter().any(|session| session.before.is_some_and(touches)) {
        return;
    }
    let mut joined = Session { start, end, before: None, folding: Folding::default() };
    of_key.retain(|session| {
        let is_joined = touches((session.start, session.end));
        if is_joined {
            joined.start = joined.start.min(session.start);
            joined.end = joined.end.max(session.end);
            joined.before = match (joined.before, session.before) {
                (Some(one), Some(two)) => Some((one.0.min(two.0), one.1.max(two.1))),
                (one, two) => one.or(two),
            };
            joined.folding.merge(&session.folding);
        }
        !is_joined
    });
    joined.folding.add(&Element::of(event, place));
    of_key.push(joined);
}

/// Every pair of a left and a right event of one key that are near in time and not late, told by
/// the later of the two.
fn interval(options: &Options, stream: &Stream) -> Answers {
    let mut came = HashMap::<u64, [BTreeMap<i64, Vec<Element>>; 2]>::new();
    let mut answers = Answers::default();
    for (place, event, watermark) in sent(stream) {
        if event.time < watermark {
            continue;
        }
        let of_key = came.entry(event.key).or_default();
        let (from, until, other) = match event.side {
            Side::Left => (event.time + options.lower, event.time + options.upper, Side::Right),
            Side::Right => (event.time - options.upper, event.time - options.lower, Side::Left),
        };
        let mut partners = Partners::default();
        let found = of_key[other as usize].range(from..=until).flat_map(|(_, elements)| elements);
        found.for_each(|element| partners.add(event, element));
        answers.tell(event.key, place.into(), partners.told());
        let own = of_key[event.side as usize].entry(event.time).or_default();
        own.push(Element::of(event, place));
    }
    answers
}

fn continuous(stream: &Stream) -> Answers {
    let mut keys = HashMap::<u64, (Option<Element>, Vec<Element>)>::new();
    let mut answers = Answers::default();
    for (place, event, _) in sent(stream) {
        let (left, waiting) = keys.entry(event.key).or_default();
        let mut partners = Partners::default();
        match event.side {
            Side::Left if event.finishes => (*left, *waiting) = (None, Vec::new()),
            Side::Left => {
                waiting.drain(..).for_each(|element| partners.add(event, &element));
                *left = Some(Element::of(event, place));
            }
            Side::Right => match left {
                Some(left) => partners.add(event, left),
                None => waiting.push(Element::of(event, place)),
            },
        }
        answers.tell(event.key, place.into(), partners.told());
    }
    answers
}
