//! Whoever answers questions of windows, against a plain recomputation from all events at once.

use alluvium::Time;
use alluvium_bench::input::shared_dir;
use alluvium_bench::window::{
    Answer, ByHand, Engine, Event, EventStream, Question, Synthetic, Trace, Windows, recompute,
};
use alluvium_bench::workload::Distribution;
use proptest::prelude::*;

/// Answers with the watermark at which each was told, and all events.
fn run(
    engine: &mut dyn Engine,
    stream: &mut dyn EventStream,
    every: usize,
) -> (Vec<(Time, Answer)>, Vec<Event>) {
    let (mut answers, mut events) = (Vec::new(), Vec::new());
    loop {
        let event = stream.next_event().unwrap();
        if let Some(event) = event {
            engine.push(event).unwrap();
            events.push(event);
        }
        if event.is_none() || events.len() % every == 0 {
            let watermark = stream.watermark();
            engine.advance(watermark, &mut |answer| answers.push((watermark, answer))).unwrap();
        }
        if event.is_none() {
            return (answers, events);
        }
    }
}

/// Each answer is told once, and not before its window is over.
fn is_right(
    windows: Windows,
    told: Vec<(Time, Answer)>,
    expected: &[Answer],
) -> Result<(), String> {
    for (watermark, answer) in &told {
        let is_over = match windows {
            Windows::Aligned { .. } => answer.end <= *watermark,
            Windows::Sessions { .. } => answer.end < *watermark,
        };
        if !is_over {
            return Err(format!("{answer:?} is told at {watermark:?}"));
        }
    }
    let mut answers: Vec<_> = told.into_iter().map(|(_, answer)| answer).collect();
    answers.sort_unstable();
    if answers != expected {
        let [found, due] = [answers.len(), expected.len()];
        let first = answers.iter().zip(expected).find(|(found, due)| found != due);
        return Err(format!("{windows:?}: {found} answers for {due}, first {first:?}"));
    }
    Ok(())
}

const SECOND: i64 = 1_000_000_000;

fn all_windows() -> [Windows; 5] {
    [
        Windows::aligned(30 * SECOND, SECOND).unwrap(),
        Windows::aligned(10 * SECOND, 10 * SECOND).unwrap(),
        Windows::aligned(10 * SECOND, 4 * SECOND).unwrap(),
        Windows::sessions(SECOND / 10).unwrap(),
        Windows::sessions(30 * SECOND).unwrap(),
    ]
}

/// Tries what `make` makes on a stream, with all windows and questions.
fn answers_are_right<E: Engine, S: EventStream>(
    windows: &[Windows],
    stream: impl Fn() -> S,
    make: impl Fn(Windows, Question) -> E,
) {
    for &windows in windows {
        for question in Question::ALL {
            let mut engine = make(windows, question);
            let (told, events) = run(&mut engine, &mut stream(), 64);
            let expected = recompute(&events, windows, question);
            assert!(!expected.is_empty());
            is_right(windows, told, &expected).unwrap_or_else(|error| panic!("{question} {error}"));
        }
    }
}

fn synthetic(keys: u64, distribution: Distribution) -> Synthetic {
    Synthetic::new(1_500, 20, keys, distribution, 7).unwrap()
}

#[test]
fn one_key_by_hand() {
    let stream = || synthetic(1, Distribution::Uniform);
    answers_are_right(&all_windows(), stream, ByHand::new);
}

#[test]
fn many_keys_by_hand() {
    let stream = || synthetic(40, Distribution::Zipf { theta: 0.99 });
    answers_are_right(&all_windows(), stream, ByHand::new);
}

#[test]
fn job_events_out_of_order_by_hand() {
    let Some(shared) = shared_dir("job_events_out_of_order_by_hand") else { return };
    let path = shared.join("data/borg/jobs.csv.zst");
    let windows = [
        Windows::aligned(60 * SECOND, 60 * SECOND).unwrap(),
        Windows::sessions(120 * SECOND).unwrap(),
    ];
    answers_are_right(&windows, || Trace::borg(&path).unwrap(), ByHand::new);
}

#[cfg(feature = "rocksdb")]
#[test]
fn many_keys_on_rocksdb() {
    use alluvium_bench::window::RocksDbWindows;
    let root = tempfile::tempdir().unwrap();
    let opened = std::cell::Cell::new(0);
    let aligned = &all_windows()[..3];
    for (keys, distribution) in [(1, Distribution::Uniform), (40, Distribution::Uniform)] {
        answers_are_right(
            aligned,
            || synthetic(keys, distribution),
            |windows, question| {
                opened.set(opened.get() + 1);
                let path = root.path().join(opened.get().to_string());
                RocksDbWindows::open(&path, 8 << 20, windows, question).unwrap()
            },
        );
    }
}

/// Events that arrive up to some time late, with the watermark that allows it.
struct Shuffled {
    events: std::vec::IntoIter<Event>,
    slack: i64,
    latest: i64,
}

impl EventStream for Shuffled {
    fn next_event(&mut self) -> alluvium_bench::Result<Option<Event>> {
        let next = self.events.next();
        match next {
            Some(event) => self.latest = self.latest.max(event.time.0),
            None => self.latest = i64::MAX,
        }
        Ok(next)
    }

    fn watermark(&self) -> Time {
        if self.latest == i64::MAX { Time::MAX } else { Time(self.latest - self.slack) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Small numbers, so that events meet ends of windows and sessions meet their gaps.
    #[test]
    fn any_small_stream_by_hand(
        mut events in prop::collection::vec((-20i64..60, 0i64..6, 0u64..3, 0i64..4), 0..50),
        spans in (1i64..12, 1i64..12),
        every in 1usize..5,
    ) {
        // In order of arrival: some time after they happened, at most the slack.
        events.sort_by_key(|(at, late, ..)| at + late);
        let events = events.into_iter().map(|(at, _, key, value)| {
            Event { time: Time(at), key, value }
        });
        let events: Vec<Event> = events.collect();
        let (length, slide) = (spans.0.max(spans.1), spans.0.min(spans.1));
        for windows in [Windows::aligned(length, slide), Windows::sessions(slide)] {
            let windows = windows.unwrap();
            for question in Question::ALL {
                let events = events.clone().into_iter();
                let mut stream = Shuffled { events, slack: 6, latest: i64::MIN + 10 };
                let mut engine = ByHand::new(windows, question);
                let (told, events) = run(&mut engine, &mut stream, every);
                let expected = recompute(&events, windows, question);
                is_right(windows, told, &expected).map_err(TestCaseError::fail)?;
            }
        }
    }
}
