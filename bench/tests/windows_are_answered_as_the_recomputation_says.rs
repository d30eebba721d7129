//! Whoever answers questions of windows, against a plain recomputation from all events at once.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium::{AnyLayout, AppendLog, Heap, HybridLog, KIB, MIB, Store, Time, WindowSegments};
use alluvium_bench::args::WindowArgs;
use alluvium_bench::input::shared_dir;
use alluvium_bench::window::{
    Answer, ByCounting, ByHand, Engine, Event, EventStream, Question, StoredWindows, Synthetic,
    Trace, Windows, recompute,
};
use alluvium_bench::workload::Distribution;
use clap::Parser;
use proptest::prelude::*;

/// Answers with the watermark at which each was told, and all events.
fn run(
    engine: &mut dyn Engine,
    stream: &mut dyn EventStream,
    every: usize,
) -> (Vec<(Time, Answer)>, Vec<Event>) {
    let (mut answers, mut events) = (Vec::new(), Vec::new());
    loop {
        let next = std::iter::from_fn(|| stream.next_event().unwrap());
        let batch: Vec<Event> = next.take(every).collect();
        engine.push(&batch).unwrap();
        let watermark = stream.watermark();
        let mut tell = |answer| answers.push((watermark, answer));
        while !engine.advance(watermark, &mut tell).unwrap() {}
        let is_last = batch.len() < every;
        events.extend(batch);
        if is_last {
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
    answers_to_are_right(&Question::ALL, windows, stream, make);
}

fn answers_to_are_right<E: Engine, S: EventStream>(
    questions: &[Question],
    windows: &[Windows],
    stream: impl Fn() -> S,
    make: impl Fn(Windows, Question) -> E,
) {
    for &windows in windows {
        for &question in questions {
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
fn many_keys_by_counting() {
    let make = |windows, question| ByCounting::new(windows, question).unwrap();
    for keys in [1, 40] {
        let stream = || synthetic(keys, Distribution::Zipf { theta: 0.99 });
        answers_are_right(&all_windows()[..3], stream, make);
    }
    assert!(ByCounting::new(Windows::sessions(1).unwrap(), Question::Count).is_err());
    let mut counting = make(Windows::aligned(1, 1).unwrap(), Question::Median);
    let below = Event { time: Time(0), key: 1, value: -1 };
    assert!(counting.push(&[below]).unwrap_err().to_string().contains("-1"));
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

/// Layouts that answer a question.
fn layouts(question: Question) -> Vec<AnyLayout> {
    let all = [
        AnyLayout::WindowSegments(WindowSegments::new()),
        AnyLayout::HybridLog(HybridLog::new()),
        AnyLayout::AppendLog(AppendLog::new()),
        AnyLayout::Heap(Heap::new()),
    ];
    let fits = |layout: &AnyLayout| StoredWindows::check_layout(layout, question).is_ok();
    all.into_iter().filter(fits).collect()
}

#[test]
fn a_layout_that_does_not_fit_the_question_is_refused_in_words() {
    for (question, layout, expected) in [
        (Question::Count, "append-log", "window-segments"),
        (Question::Rank, "hybrid-log", "append-log"),
        (Question::Top, "window-segments", "append-log"),
    ] {
        let layout = AnyLayout::named(layout).unwrap();
        let message = StoredWindows::check_layout(&layout, question).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(Question::ALL.map(|question| layouts(question).len()), [3, 2, 2, 2]);
}

fn in_memory(layout: &AnyLayout, windows: Windows, question: Question) -> StoredWindows {
    let store = Store::in_memory().memory(4 * MIB).layout(layout.clone()).open().unwrap();
    StoredWindows::open(&store, windows, question).unwrap()
}

#[test]
fn one_key_in_each_layout() {
    for question in Question::ALL {
        for layout in layouts(question) {
            let make = |windows, question| in_memory(&layout, windows, question);
            let stream = || synthetic(1, Distribution::Uniform);
            answers_to_are_right(&[question], &all_windows(), stream, make);
        }
    }
}

#[test]
fn many_keys_in_each_layout() {
    for question in Question::ALL {
        for layout in layouts(question) {
            let make = |windows, question| in_memory(&layout, windows, question);
            let stream = || synthetic(40, Distribution::Zipf { theta: 0.99 });
            answers_to_are_right(&[question], &all_windows(), stream, make);
        }
    }
}

/// Answers on a disk, in memory that holds a part of the windows.
fn answers_are_right_beyond(
    layout: impl Into<AnyLayout>,
    memory: u64,
    question: Question,
    windows: Windows,
    stream: impl Fn() -> Synthetic,
) {
    let layout = layout.into();
    let directory = tempfile::tempdir().unwrap();
    let opened = Rc::new(RefCell::new(None));
    let make = |windows, question| {
        let builder = Store::builder(directory.path()).memory(memory).layout(layout.clone());
        let store = builder.open().unwrap();
        let stored = StoredWindows::open(&store, windows, question).unwrap();
        *opened.borrow_mut() = Some(store);
        stored
    };
    println!("{question} of {windows:?} on {layout:?}");
    answers_to_are_right(&[question], &[windows], &stream, make);
    let stats = opened.borrow().as_ref().unwrap().stats().unwrap();
    assert!(stats.io.bytes_written > 0 && stats.io.bytes_read > 0, "{stats}");
    assert!(stats.memory.peak <= memory, "{stats}");
    assert_eq!(stats.total().live_keys, 0, "{stats}");
}

#[test]
fn counts_larger_than_memory_in_window_segments() {
    let stream = || Synthetic::new(80_000, 4_000, 60_000, Distribution::Uniform, 7).unwrap();
    for (memory, length, slide) in [(2 * MIB + 512 * KIB, 12, 2), (MIB, 15, 15)] {
        let windows = Windows::aligned(length * SECOND, slide * SECOND).unwrap();
        answers_are_right_beyond(WindowSegments::new(), memory, Question::Count, windows, stream);
    }
}

#[test]
fn counts_larger_than_memory_in_a_hybrid_log() {
    let stream = || Synthetic::new(32_000, 4_000, 60_000, Distribution::Uniform, 7).unwrap();
    let windows = |length, slide| Windows::aligned(length * SECOND, slide * SECOND).unwrap();
    for (memory, windows) in [
        (MIB + 512 * KIB, windows(15, 15)),
        (MIB + 512 * KIB, Windows::sessions(5 * SECOND).unwrap()),
        // Slices hold all memory when the first totals want some.
        (2 * MIB + 256 * KIB, windows(12, 2)),
    ] {
        answers_are_right_beyond(HybridLog::new(), memory, Question::Count, windows, stream);
    }
}

#[test]
fn values_larger_than_memory_in_the_append_log() {
    let stream = || Synthetic::new(160_000, 8_000, 2_000, Distribution::Uniform, 7).unwrap();
    for (question, length, slide) in
        [(Question::Rank, 15, 15), (Question::Median, 16, 8), (Question::Top, 16, 4)]
    {
        let windows = Windows::aligned(length * SECOND, slide * SECOND).unwrap();
        answers_are_right_beyond(AppendLog::new(), 2 * MIB, question, windows, stream);
    }
}

/// Ten windows, one after the other, each over before the next begins: after each firing there
/// is as little as before the first.
fn nothing_is_left_after_each_firing(layout: &AnyLayout, memory: u64, question: Question) {
    let directory = tempfile::tempdir().unwrap();
    let builder = Store::builder(directory.path()).memory(memory).layout(layout.clone());
    let store = builder.open().unwrap();
    let windows = Windows::aligned(10 * SECOND, 10 * SECOND).unwrap();
    let mut engine = StoredWindows::open(&store, windows, question).unwrap();
    let held = || {
        let stats = store.stats().unwrap();
        (stats.memory.used, stats.total().disk_bytes)
    };
    let (floor, mut most) = (held().0, (0, 0));
    let mut stream = Synthetic::new(240_000, 2_400, 60_000, Distribution::Uniform, 1).unwrap();
    for number in 1..=10 {
        for _ in 0..24 {
            let next = std::iter::from_fn(|| stream.next_event().unwrap());
            engine.push(&next.take(1_000).collect::<Vec<_>>()).unwrap();
        }
        let full = held();
        most = (full.0.max(most.0), full.1.max(most.1));
        let mut answers = 0;
        let end = Time(number * 10 * SECOND);
        while !engine.advance(end, &mut |_| answers += 1).unwrap() {}
        assert!(answers > 10_000);
        // Helpers give back what they were writing or dropping.
        let mut left = held();
        let start = Instant::now();
        while (left.0 > floor || left.1 > 0) && start.elapsed() < Duration::from_secs(60) {
            store.tick(1_000).unwrap();
            std::thread::sleep(Duration::from_micros(100));
            left = held();
        }
        assert_eq!((left.0.max(floor), left.1), (floor, 0), "{layout:?}, window {number}");
    }
    assert!(most.0 > floor && most.1 > 0, "{layout:?}: {most:?} at the most");
}

#[test]
fn memory_and_disk_are_at_the_floor_after_each_firing() {
    let segments = AnyLayout::WindowSegments(WindowSegments::new());
    nothing_is_left_after_each_firing(&segments, 512 * KIB, Question::Count);
    let log = AnyLayout::AppendLog(AppendLog::new());
    nothing_is_left_after_each_firing(&log, 512 * KIB, Question::Median);
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: WindowArgs,
}

#[test]
fn what_is_held_is_written_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, plot) = (dir.path().join("held.csv"), dir.path().join("held.svg"));
    let held_in = |file: &Path| {
        let words = "window --query count --length 1s --slide 100ms --keys 40 --events 60000 \
                     --layout window-segments --vs hashbrown --memory 8MiB --held";
        let file = file.display().to_string();
        let line = Line::parse_from(words.split_whitespace().chain([&*file]));
        alluvium_bench::run::window(&line.args)
    };
    let report = held_in(&rows).unwrap();
    assert!(report.latencies.is_some() && report.vs.unwrap().latencies.is_some());
    let text = std::fs::read_to_string(&rows).unwrap();
    // Six seconds of ten windows each, and what is left at the end.
    assert!(text.lines().count() > 50, "{text}");
    let image = std::fs::read_to_string(plot).unwrap();
    for word in ["tracked", "resident", "disk", "event time, s", "<path"] {
        assert!(image.contains(word), "no {word} in the plot");
    }
    let message = held_in(&dir.path().join("held.svg")).unwrap_err().to_string();
    assert!(message.contains("CSV"), "{message}");
}

#[test]
fn a_window_larger_than_memory_is_checked_by_counting() {
    let dir = tempfile::tempdir().unwrap();
    let words = "window --query median --length 20s --keys 500 --events 300000 --rate 20000 \
                 --layout append-log --memory 1MiB --check --dir";
    let path = dir.path().join("state").display().to_string();
    let line = Line::parse_from(words.split_whitespace().chain([&*path]));
    let report = alluvium_bench::run::window(&line.args).unwrap();
    assert!(report.io.bytes_written > 2_000_000, "{:?}", report.io);
    assert!(report.memory.peak_tracked <= 1 << 20, "{:?}", report.memory);
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

fn stream_of(events: Vec<Event>) -> Shuffled {
    Shuffled { events: events.into_iter(), slack: 6, latest: i64::MIN + 10 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Small numbers, so that events meet ends of windows and sessions meet their gaps.
    #[test]
    fn any_small_stream_by_hand_and_in_each_layout(
        mut events in prop::collection::vec((-20i64..60, 0i64..6, 0u64..3, 0i64..4), 0..50),
        spans in (1i64..12, 1i64..12),
        every in 1usize..5,
        stored in 0usize..4,
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
                let mut stream = stream_of(events.clone());
                let mut engine = ByHand::new(windows, question);
                let (told, events) = run(&mut engine, &mut stream, every);
                let expected = recompute(&events, windows, question);
                is_right(windows, told, &expected).map_err(TestCaseError::fail)?;
                if question != Question::ALL[stored] {
                    continue;
                }
                let layouts = layouts(question);
                let layout = &layouts[every % layouts.len()];
                let mut engine = in_memory(layout, windows, question);
                let (told, _) = run(&mut engine, &mut stream_of(events.clone()), every);
                is_right(windows, told, &expected)
                    .map_err(|error| TestCaseError::fail(format!("{layout:?}: {error}")))?;
            }
        }
    }
}
