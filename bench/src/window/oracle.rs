//! The answers by plain recomputation from all events at once: slow, and obvious.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use alluvium::Time;

use super::{Answer, Event, Question, Windows};

/// The answers of all windows, sorted.
pub fn recompute(events: &[Event], windows: Windows, question: Question) -> Vec<Answer> {
    let contents = match windows {
        Windows::Aligned { length, slide } => aligned(events, length, slide),
        Windows::Sessions { gap } => sessions(events, gap),
    };
    let mut answers = Vec::new();
    for ((key, start, end), values) in contents {
        let figures = figures(&values, question).into_iter();
        answers.extend(figures.map(|figures| Answer { key, start, end, figures }));
    }
    answers.sort_unstable();
    answers
}

/// Values by key, start and end.
type Contents = BTreeMap<(u64, Time, Time), Vec<i64>>;

fn aligned(events: &[Event], length: i64, slide: i64) -> Contents {
    let mut contents = Contents::new();
    for event in events {
        // Every multiple of the slide that could be the start of a window with the event in it.
        let nearest = event.time.0.div_euclid(slide);
        for number in nearest - length / slide - 1..=nearest + 1 {
            let (start, end) = (number * slide, number * slide + length);
            if start <= event.time.0 && event.time.0 < end {
                let window = (event.key, Time(start), Time(end));
                contents.entry(window).or_default().push(event.value);
            }
        }
    }
    contents
}

fn sessions(events: &[Event], gap: i64) -> Contents {
    let mut keys: BTreeMap<u64, Vec<(Time, i64)>> = BTreeMap::new();
    for event in events {
        keys.entry(event.key).or_default().push((event.time, event.value));
    }
    let mut contents = Contents::new();
    for (key, mut events) in keys {
        events.sort_unstable();
        for session in events.chunk_by(|(last, _), (next, _)| next.0 <= last.0 + gap) {
            let (first, last) = (session[0].0, session[session.len() - 1].0);
            let values = session.iter().map(|(_, value)| *value).collect();
            contents.insert((key, first, Time(last.0 + gap)), values);
        }
    }
    contents
}

fn figures(values: &[i64], question: Question) -> Vec<[i64; 3]> {
    let count = |of: &dyn Fn(i64) -> bool| values.iter().filter(|value| of(**value)).count() as i64;
    match question {
        Question::Count => vec![[values.len() as i64, 0, 0]],
        Question::Rank => {
            values.iter().map(|&value| [value, 1 + count(&|other| other < value), 0]).collect()
        }
        Question::Median => {
            let mut sorted = values.to_vec();
            sorted.sort_unstable();
            vec![[sorted[(sorted.len() - 1) / 2], 0, 0]]
        }
        Question::Top => {
            let mut distinct = values.to_vec();
            distinct.sort_unstable();
            distinct.dedup();
            let mut counted: Vec<_> =
                distinct.iter().map(|&value| (count(&|other| other == value), value)).collect();
            counted.sort_by_key(|&(count, value)| (Reverse(count), value));
            let places = (1..).zip(counted).take(Question::TOP);
            places.map(|(place, (count, value))| [place, value, count]).collect()
        }
    }
}
