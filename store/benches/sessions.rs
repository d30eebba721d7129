//! Sessions of 10 K keys, 50 ms apart, beside a hash map with a list of sessions per key and a heap
//! of timers: how many they count, and how many events they keep. Answers are compared.
//!
//! `cargo bench -p alluvium --bench sessions -- counts` (or `kept`; both without a name)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasherDefault;
use std::time::{Duration, Instant};

use alluvium::{Counting, Elements, KeyHash, MIB, Process, Result, Store, Time, Window, Windows};

const KEYS: u64 = 10_000;
const EVENTS: u64 = 4_000_000;
const BATCH: usize = 256;
const ROUNDS: usize = 5;
const GAP: Duration = Duration::from_millis(50);

type Event = (u64, Time, u64);

/// The hash that the store uses, so that both sides hash alike.
#[derive(Default)]
struct Same(u64);

impl std::hash::Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are words");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word.key_hash();
    }
}

/// Events in order of time, of any key: `rate` a second.
fn events(rate: u64) -> Vec<Event> {
    let at = |n: u64| Time((n as f64 * 1e9 / rate as f64) as i64);
    let random = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) >> 7;
    (0..EVENTS).map(|n| (random(random(n)) % KEYS, at(n), random(n) % 1000)).collect()
}

/// What a side answered: sessions, and a sum over them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answers {
    sessions: u64,
    sum: u64,
}

impl Answers {
    fn row(&mut self, key: u64, window: (Time, Time), figure: u64) {
        let of = key ^ (window.0.0 as u64).rotate_left(17) ^ window.1.0 as u64;
        self.sessions += 1;
        self.sum = self.sum.wrapping_add(of.wrapping_mul(figure | 1));
    }
}

/// The sum of a session's events.
struct Sum;

impl Process<u64, u64> for Sum {
    type Row = u64;

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        all: &mut dyn Elements<u64>,
        emit: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut sum = 0;
        loop {
            let chunk = all.next_chunk()?;
            if chunk.is_empty() {
                break;
            }
            sum += chunk.iter().sum::<u64>();
        }
        emit(sum);
        Ok(())
    }
}

fn store() -> Store {
    Store::in_memory().memory(512 * MIB).open().expect("a store")
}

fn watermark(events: &[Event]) -> Time {
    events.last().map_or(Time::MAX, |event| event.1)
}

fn counts(events: &[Event]) -> Answers {
    let store = store();
    let counts = store.aggregated::<u64, u64, Counting>("counts");
    let mut counts = counts.open(Windows::session(GAP), Counting).expect("windows");
    let (mut answers, mut batch) = (Answers::default(), Vec::new());
    let out = &mut |_: &u64, _, _, _| unreachable!("no session is told early");
    let late = &mut |_| unreachable!("none is late");
    for chunk in events.chunks(BATCH) {
        let sent = chunk[0].1;
        batch.extend_from_slice(chunk);
        counts.add_batch(sent, &mut batch, late, out).expect("room");
        let row = &mut |key: &u64, window: Window, count, _| {
            answers.row(*key, (window.start, window.end), count as u64);
        };
        counts.advance_all(watermark(chunk), row).expect("it fires");
    }
    let row = &mut |key: &u64, window: Window, count, _| {
        answers.row(*key, (window.start, window.end), count as u64);
    };
    counts.advance_all(Time::MAX, row).expect("it fires");
    answers
}

fn kept(events: &[Event]) -> Answers {
    let store = store();
    let sums = store.holistic::<u64, u64>("sums");
    let mut sums = sums.open(Windows::session(GAP), Sum).expect("windows");
    let (mut answers, mut batch) = (Answers::default(), Vec::new());
    let out = &mut |_: &u64, _, _, _| unreachable!("no session is told early");
    let late = &mut |_| unreachable!("none is late");
    for chunk in events.chunks(BATCH) {
        let sent = chunk[0].1;
        batch.extend_from_slice(chunk);
        sums.add_batch(sent, &mut batch, late, out).expect("room");
        let row = &mut |key: &u64, window: Window, sum, _| {
            answers.row(*key, (window.start, window.end), sum);
        };
        sums.advance_all(watermark(chunk), row).expect("it fires");
    }
    let row = &mut |key: &u64, window: Window, sum, _| {
        answers.row(*key, (window.start, window.end), sum);
    };
    sums.advance_all(Time::MAX, row).expect("it fires");
    answers
}

/// What a hash map keeps of a session.
trait Figure: Default {
    fn add(&mut self, value: u64);
    fn answer(&self) -> u64;
}

#[derive(Default)]
struct Count(u64);

impl Figure for Count {
    fn add(&mut self, _: u64) {
        self.0 += 1;
    }

    fn answer(&self) -> u64 {
        self.0
    }
}

impl Figure for Vec<u64> {
    fn add(&mut self, value: u64) {
        self.push(value);
    }

    fn answer(&self) -> u64 {
        self.iter().sum()
    }
}

/// A session of a key, in order of time: the times of its first and last event, its figure.
type Sessions<F> = Vec<(Time, Time, F)>;
type Keys<F> = hashbrown::HashMap<u64, Sessions<F>, BuildHasherDefault<Same>>;
type Timers = BinaryHeap<Reverse<(Time, u64)>>;

/// Events come in order, so one joins the last session of its key or begins one.
fn by_hand<F: Figure>(events: &[Event]) -> Answers {
    let (mut keys, mut timers) = (Keys::<F>::default(), Timers::new());
    let mut answers = Answers::default();
    let gap = GAP.as_nanos() as i64;
    for chunk in events.chunks(BATCH) {
        for (key, at, value) in chunk {
            let sessions = keys.entry(*key).or_default();
            match sessions.last_mut().filter(|last| *at <= last.1.plus(gap)) {
                Some(last) => {
                    last.1 = *at;
                    last.2.add(*value);
                }
                None => {
                    let mut figure = F::default();
                    figure.add(*value);
                    sessions.push((*at, *at, figure));
                    timers.push(Reverse((at.plus(gap), *key)));
                }
            }
        }
        fire_by_hand(&mut keys, &mut timers, watermark(chunk), &mut answers);
    }
    fire_by_hand(&mut keys, &mut timers, Time::MAX, &mut answers);
    answers
}

fn fire_by_hand<F: Figure>(
    keys: &mut Keys<F>,
    timers: &mut Timers,
    watermark: Time,
    answers: &mut Answers,
) {
    let is_over = |end: Time| end < watermark || watermark == Time::MAX;
    while timers.peek().is_some_and(|Reverse((at, _))| is_over(*at)) {
        let Some(Reverse((_, key))) = timers.pop() else { return };
        let sessions = keys.get_mut(&key).expect("a key with a timer");
        let end = sessions[0].1.plus(GAP.as_nanos() as i64);
        if !is_over(end) {
            timers.push(Reverse((end, key)));
            continue;
        }
        let (first, _, figure) = sessions.remove(0);
        answers.row(key, (first, end), figure.answer());
        if sessions.is_empty() {
            keys.remove(&key);
        }
    }
}

fn nanos(events: &[Event], side: impl Fn(&[Event]) -> Answers) -> (f64, Answers) {
    let start = Instant::now();
    let answers = side(events);
    (start.elapsed().as_nanos() as f64 / events.len() as f64, answers)
}

fn beside(what: &str, ours: impl Fn(&[Event]) -> Answers, theirs: impl Fn(&[Event]) -> Answers) {
    // 1, 10 and 50 events in a gap's length, of each key.
    for rate in [200_000, 2_000_000, 10_000_000] {
        let events = events(rate);
        let (mut all, mut sessions) = ([Vec::new(), Vec::new(), Vec::new()], 0);
        for _ in 0..ROUNDS {
            let ((a, answers), (b, expected)) = (nanos(&events, &ours), nanos(&events, &theirs));
            assert_eq!(answers, expected, "answers differ");
            sessions = answers.sessions;
            all.iter_mut().zip([a, b, b / a]).for_each(|(all, figure)| all.push(figure));
        }
        let [ours, theirs, ratio] = all.map(|mut all| {
            all.sort_by(f64::total_cmp);
            (all[0], all[ROUNDS / 2], all[ROUNDS - 1])
        });
        println!(
            "{what}, {:.1} events a session: {:.0} ns an event (least {:.0}), hashbrown {:.0} ({:.0}): \
             {:.2} x ({:.2} to {:.2})",
            EVENTS as f64 / sessions as f64,
            ours.1,
            ours.0,
            theirs.1,
            theirs.0,
            ratio.1,
            ratio.0,
            ratio.2
        );
    }
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    if is_asked("counts") {
        beside("counts", counts, by_hand::<Count>);
    }
    if is_asked("kept") {
        beside("events kept", kept, by_hand::<Vec<u64>>);
    }
}
