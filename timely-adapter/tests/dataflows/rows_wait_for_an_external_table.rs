//! Look-ups in a table that lies outside: one that is slow, fails, answers in any order, answers late
//! and is changed meanwhile, against maps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::common::{self, Consolidated};
use alluvium::config::ByteSize;
use alluvium::io::Waker;
use alluvium::{Error, ErrorKind, MIB, Result, StoreConfig};
use alluvium_timely::{
    Answer, External, ExternalTable, KeyBy, LookupExternal, NodeConfig, OnThread, Question, Told,
    WorkerOverrides, WorkerState, install,
};
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Inspect, Probe};
use timely::dataflow::{InputHandleVec, ProbeHandle};
use timely::worker::Worker;

/// Steps of a random number; the seed is the first state.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn node() -> NodeConfig {
    StoreConfig { memory: ByteSize(32 * MIB), ..Default::default() }.into()
}

/// What the table has: a key in three has no value.
fn value_of(key: u64) -> Option<String> {
    (key % 3 != 0).then(|| format!("the value of {key}"))
}

/// A table that answers one question now and then, in any order, and fails now and then.
struct Unruly {
    questions: Sender<Vec<Question<u64>>>,
    answers: Receiver<Answer<String>>,
    wake: Sender<Arc<Waker>>,
}

impl Unruly {
    fn new(mut random: u64) -> Self {
        let (questions, asked) = channel::<Vec<Question<u64>>>();
        let (told, answers) = channel();
        let (wake, wakes) = channel();
        std::thread::spawn(move || {
            let Ok(waker) = wakes.recv() else { return };
            let waker: Arc<Waker> = waker;
            let mut pending = Vec::new();
            while let Ok(more) = asked.recv() {
                pending.extend(more);
                while !pending.is_empty() {
                    pending.extend(asked.try_iter().flatten());
                    let at = next(&mut random) as usize % pending.len();
                    let Question { number, key } = pending.swap_remove(at);
                    if next(&mut random) % 16 == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    let value = match next(&mut random) % 50 {
                        0 => Err(Error::new(ErrorKind::Io, "not now")),
                        _ => Ok(value_of(key)),
                    };
                    if told.send(Answer { number, value }).is_err() {
                        return;
                    }
                    waker.wake();
                }
            }
        });
        Self { questions, answers, wake }
    }
}

impl ExternalTable<u64, String> for Unruly {
    fn wake_with(&mut self, waker: Arc<Waker>) {
        self.wake.send(waker).unwrap();
    }

    fn ask(&mut self, questions: &mut Vec<Question<u64>>) {
        self.questions.send(std::mem::take(questions)).unwrap();
    }

    fn answers(&mut self, answers: &mut Vec<Answer<String>>) -> Result<()> {
        answers.extend(self.answers.try_iter());
        Ok(())
    }
}

type Found = (u64, u64, Option<String>);

fn batches(seed: u64, keys: u64) -> Vec<(u64, Vec<(u64, u64)>)> {
    let mut random = seed;
    let mut row = 0;
    let mut rows = |_| {
        row += 1;
        (next(&mut random) % keys, row)
    };
    (0..12).map(|time| (time, (0..200).map(&mut rows).collect())).collect()
}

fn joined(
    workers: usize,
    external: impl Fn() -> External + Send + Sync + 'static,
    batches: Vec<(u64, Vec<(u64, u64)>)>,
    table: impl Fn(usize) -> Box<dyn ExternalTable<u64, String>> + Send + Sync + 'static,
) -> Result<Consolidated<Found>> {
    common::run(workers, node(), WorkerOverrides::default(), batches, move |rows, state| {
        let table = Boxed(table(state.index()));
        rows.key_by(state, |row: &(u64, u64)| row.0).lookup_external(
            table,
            external(),
            |key, row, value: Option<&String>| Some((*key, row.1, value.cloned())),
        )
    })
}

struct Boxed(Box<dyn ExternalTable<u64, String>>);

impl ExternalTable<u64, String> for Boxed {
    fn wake_with(&mut self, waker: Arc<Waker>) {
        self.0.wake_with(waker);
    }

    fn ask(&mut self, questions: &mut Vec<Question<u64>>) {
        self.0.ask(questions);
    }

    fn answers(&mut self, answers: &mut Vec<Answer<String>>) -> Result<()> {
        self.0.answers(answers)
    }
}

fn expected(batches: &[(u64, Vec<(u64, u64)>)]) -> Consolidated<Found> {
    let rows = batches.iter().flat_map(|(_, rows)| rows);
    rows.map(|&(key, row)| ((key, row, value_of(key)), 1)).collect()
}

#[test]
fn a_table_outside_is_seen_as_one_in_a_map() {
    for workers in 1..=3 {
        for (keys, cache, parked, asked) in
            [(20, None, 64, 7), (400, Some(4 << 10), 16, 3), (400, Some(1 << 20), 4096, 256)]
        {
            let batches = batches(keys + workers as u64, keys);
            let external = move || {
                let external = External::new("ads").parked_max(parked).asked_max(asked);
                match cache {
                    Some(bytes) => external.cache(bytes, Duration::from_secs(60)),
                    None => external,
                }
            };
            let expected = expected(&batches);
            let found =
                joined(workers, external, batches, |worker| Box::new(Unruly::new(worker as u64)));
            assert_eq!(found.unwrap(), expected, "{workers} workers, {keys} keys, {cache:?}");
        }
    }
}

#[test]
fn a_function_that_waits_is_called_on_a_thread() {
    let batches = batches(5, 100);
    let found = joined(
        2,
        || External::new("ads"),
        batches.clone(),
        |_| {
            let mut calls = 0;
            let look_up = move |keys: &[u64], values: &mut Vec<_>| {
                assert!((1..=10).contains(&keys.len()));
                calls += 1;
                let is_away = calls % 7 == 0;
                let away = || Error::new(ErrorKind::PeerLost, "away");
                values.extend(keys.iter().map(|&key| match is_away {
                    true => Err(away()),
                    false => Ok(value_of(key)),
                }));
            };
            Box::new(OnThread::new("ads", 10, look_up).unwrap())
        },
    );
    assert_eq!(found.unwrap(), expected(&batches));
}

#[test]
fn a_function_that_panics_or_forgets_a_key_ends_the_run() {
    for (is_panic, kind) in [(true, ErrorKind::Panicked), (false, ErrorKind::Input)] {
        let failed = joined(
            2,
            || External::new("ads"),
            batches(5, 100),
            move |_| {
                let look_up = move |keys: &[u64], values: &mut Vec<Result<Option<String>>>| {
                    assert!(!is_panic || keys.is_empty(), "an accident of the test");
                    values.clear();
                };
                Box::new(OnThread::new("ads", 10, look_up).unwrap())
            },
        );
        assert_eq!(failed.unwrap_err().kind(), kind);
    }
}

/// A table that is answered by hand.
#[derive(Default)]
struct Desk {
    /// What is asked and not answered yet.
    asked: Vec<Question<u64>>,
    answers: Vec<Answer<u64>>,
    most: usize,
    waker: Option<Arc<Waker>>,
}

#[derive(Clone, Default)]
struct ByHand(Rc<RefCell<Desk>>);

impl ByHand {
    fn keys(&self) -> Vec<u64> {
        self.0.borrow().asked.iter().map(|question| question.key).collect()
    }

    /// Answers the oldest question for `key`.
    fn answer(&self, key: u64, value: Result<Option<u64>>) {
        let mut desk = self.0.borrow_mut();
        let at = desk.asked.iter().position(|question| question.key == key).expect("it is asked");
        let number = desk.asked.remove(at).number;
        desk.answers.push(Answer { number, value });
        desk.waker.as_ref().expect("the operator is built").wake();
    }
}

impl ExternalTable<u64, u64> for ByHand {
    fn wake_with(&mut self, waker: Arc<Waker>) {
        self.0.borrow_mut().waker = Some(waker);
    }

    fn ask(&mut self, questions: &mut Vec<Question<u64>>) {
        let mut desk = self.0.borrow_mut();
        desk.asked.append(questions);
        desk.most = desk.most.max(desk.asked.len());
    }

    fn answers(&mut self, answers: &mut Vec<Answer<u64>>) -> Result<()> {
        answers.append(&mut self.0.borrow_mut().answers);
        Ok(())
    }
}

/// A key, whether it is told what it is, and what.
type Telling = (u64, bool, Option<u64>);

/// Time, key, number of the row, and value.
type Joined = (u64, u64, u64, Option<u64>);

/// One worker with a join, driven by hand. A row is a key and a number.
struct Driven<'a> {
    worker: &'a mut Worker,
    state: WorkerState,
    table: ByHand,
    rows: InputHandleVec<u64, (u64, u64)>,
    changes: InputHandleVec<u64, Telling>,
    probe: ProbeHandle<u64>,
    out: Rc<RefCell<Vec<Joined>>>,
}

impl Driven<'_> {
    fn step(&mut self) {
        // A row moves by one operator a step; the join is scheduled by whatever comes.
        for _ in 0..3 {
            self.worker.step();
        }
    }

    /// Sends rows at the current time, and leaves it.
    fn send(&mut self, rows: impl IntoIterator<Item = (u64, u64)>) {
        rows.into_iter().for_each(|row| self.rows.send(row));
        self.pass();
    }

    fn tell(&mut self, telling: Telling) {
        self.changes.send(telling);
        self.pass();
    }

    fn pass(&mut self) {
        let time = *self.rows.time() + 1;
        self.rows.advance_to(time);
        self.changes.advance_to(time);
        self.step();
    }

    fn answer(&mut self, key: u64, value: Result<Option<u64>>) {
        self.table.answer(key, value);
        self.step();
    }

    fn taken(&mut self) -> Vec<Joined> {
        self.out.take()
    }

    fn waiting(&self) -> (usize, usize) {
        let parked = self.state.parked().into_iter().find(|(id, _)| id == "ads");
        parked.map_or((0, 0), |(_, parked)| (parked.now, parked.staged))
    }
}

fn by_hand<R: Send + 'static>(
    external: impl Fn() -> External + Send + Sync + 'static,
    work: impl Fn(&mut Driven<'_>) -> R + Send + Sync + 'static,
) -> R {
    let mut config = timely::Config::thread();
    install(&mut config, node()).unwrap();
    let guards = timely::execute(config, move |worker| {
        let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
        let (table, probe) = (ByHand::default(), ProbeHandle::new());
        let out: Rc<RefCell<Vec<_>>> = Rc::default();
        let (rows, changes) = worker.dataflow::<u64, _, _>(|scope| {
            let (rows, row_stream) = scope.new_input::<(u64, u64)>();
            let (changes, change_stream) = scope.new_input::<Telling>();
            let given = out.clone();
            row_stream
                .key_by(&state, |row: &(u64, u64)| row.0)
                .lookup_external_told(
                    change_stream.key_by(&state, |change: &Telling| change.0),
                    table.clone(),
                    external(),
                    |change| if change.1 { Told::Is(change.2) } else { Told::Changed },
                    |key, row, value| Some((*key, row.1, value.copied())),
                )
                .unwrap()
                .inspect(move |((key, row, value), time, _)| {
                    given.borrow_mut().push((*time, *key, *row, *value));
                })
                .probe_with(&probe);
            (rows, changes)
        });
        let mut driven = Driven { worker, state, table, rows, changes, probe, out };
        let result = work(&mut driven);
        let Driven { worker, state, .. } = driven;
        let _ = state.abandon_if_failed(worker);
        // Rows may wait for answers that nobody gives.
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
        result
    });
    guards.unwrap().join().pop().unwrap().expect("no panic")
}

fn cached() -> External {
    External::new("ads").cache(1 << 20, Duration::from_secs(60))
}

#[test]
fn rows_of_a_key_stay_in_order_and_others_pass_them_at_their_times() {
    by_hand(
        || External::new("ads"),
        |driven| {
            driven.send([(1, 0), (2, 1)]);
            driven.send([(1, 2), (3, 3), (1, 4)]);
            assert_eq!(driven.table.keys(), [1, 2, 3], "a key is asked for once");
            driven.answer(3, Ok(Some(30)));
            assert_eq!(driven.taken(), [(1, 3, 3, Some(30))]);
            assert!(driven.probe.less_equal(&0), "rows hold their time");
            driven.answer(1, Ok(None));
            assert_eq!(driven.taken(), [(0, 1, 0, None), (1, 1, 2, None), (1, 1, 4, None)]);
            assert!(driven.probe.less_equal(&0));
            driven.answer(2, Ok(Some(20)));
            assert_eq!(driven.taken(), [(0, 2, 1, Some(20))]);
            driven.step();
            assert!(!driven.probe.less_equal(&1) && driven.waiting() == (0, 0));
            // Without a cache a key is asked for again.
            driven.send([(1, 5)]);
            assert_eq!(driven.table.keys(), [1]);
        },
    );
}

#[test]
fn an_answer_from_before_a_change_is_for_rows_before_it_only_and_is_not_cached() {
    by_hand(cached, |driven| {
        driven.send([(1, 0)]);
        driven.tell((1, false, None));
        driven.send([(1, 1)]);
        driven.answer(1, Ok(Some(10)));
        let seen = |driven: &mut Driven<'_>| -> Vec<_> {
            driven.taken().into_iter().map(|(_, _, row, value)| (row, value)).collect()
        };
        assert_eq!(seen(driven), [(0, Some(10))]);
        assert_eq!(driven.table.keys(), [1], "asked once more");
        driven.answer(1, Ok(Some(11)));
        assert_eq!(seen(driven), [(1, Some(11))]);
        // From the cache, until the next change.
        driven.send([(1, 2)]);
        assert_eq!(seen(driven), [(2, Some(11))]);
        driven.tell((1, false, None));
        driven.send([(1, 3)]);
        assert_eq!(driven.table.keys(), [1]);
        // A change that says what it is, while an older answer is still under way.
        driven.tell((1, true, Some(13)));
        driven.send([(1, 4)]);
        driven.answer(1, Ok(Some(12)));
        assert_eq!(seen(driven), [(3, Some(12)), (4, Some(13))]);
        driven.send([(1, 5)]);
        assert_eq!(seen(driven), [(5, Some(13))]);
        assert!(driven.table.keys().is_empty());
    });
}

#[test]
fn what_waits_and_is_asked_is_bounded() {
    by_hand(
        || External::new("ads").parked_max(4).asked_max(2),
        |driven| {
            driven.send((0..10).map(|n| (n, n)));
            driven.send([(0, 10)]);
            assert_eq!(driven.table.keys(), [0, 1]);
            assert_eq!(driven.waiting(), (4, 2));
            let mut out = Vec::new();
            while out.len() < 11 {
                let key = *driven.table.keys().last().expect("something is asked");
                driven.answer(key, Ok(Some(key)));
                assert!(driven.waiting().0 <= 4);
                out.extend(driven.taken());
            }
            assert!(driven.table.0.borrow().most <= 2);
            let mut rows: Vec<_> = out.iter().map(|row| row.2).collect();
            rows.sort_unstable();
            assert!(rows.into_iter().eq(0..11));
            assert_eq!(driven.waiting(), (0, 0));
        },
    );
}

fn kind_of_fault(driven: &Driven<'_>) -> Option<ErrorKind> {
    driven.state.fault().map(Error::kind)
}

#[test]
fn a_table_that_cannot_be_reached_is_asked_again_for_as_long_as_was_said() {
    let patience = Duration::from_millis(300);
    by_hand(
        move || External::new("ads").patience(Some(patience)),
        move |driven| {
            let away = || Err(Error::new(ErrorKind::Io, "connection refused"));
            driven.send([(1, 0), (2, 1), (1, 2)]);
            driven.answer(1, away());
            let waiting = driven.state.waiting();
            assert!(waiting.iter().any(|(id, why)| id == "ads" && why.contains("refused")));
            std::thread::sleep(Duration::from_millis(5));
            driven.pass();
            driven.answer(1, Ok(Some(7)));
            assert!(driven.state.waiting().is_empty());
            let rows: Vec<_> = driven.taken().into_iter().map(|row| row.2).collect();
            assert_eq!(rows, [0, 2]);
            // Now it stays away.
            let begin = Instant::now();
            while kind_of_fault(driven).is_none() {
                if driven.table.keys().contains(&2) {
                    driven.answer(2, away());
                }
                driven.pass();
                assert!(begin.elapsed() < Duration::from_secs(20), "it never ends");
            }
            assert!(begin.elapsed() >= patience - Duration::from_millis(50));
            assert_eq!(kind_of_fault(driven), Some(ErrorKind::Io));
            assert!(driven.probe.less_equal(&0), "the row that is missing holds its time");
        },
    );
}

#[test]
fn an_answer_that_is_wrong_ends_the_run() {
    type Wrong = fn(&mut Driven<'_>);
    let cases: [(Wrong, ErrorKind); 3] = [
        (
            |driven| driven.answer(1, Err(Error::new(ErrorKind::Mismatch, "a list"))),
            ErrorKind::Mismatch,
        ),
        (
            |driven| {
                let answer = |value| Answer { number: 0, value: Ok(value) };
                let mut desk = driven.table.0.borrow_mut();
                desk.answers.extend([answer(None), answer(None)]);
                desk.waker.as_ref().expect("the operator is built").wake();
                drop(desk);
                driven.step();
            },
            ErrorKind::Input,
        ),
        (
            |driven| {
                // Nobody answers.
                let begin = Instant::now();
                while kind_of_fault(driven).is_none() {
                    driven.worker.step_or_park(Some(Duration::from_secs(5)));
                    assert!(begin.elapsed() < Duration::from_secs(20), "it never ends");
                }
            },
            ErrorKind::Io,
        ),
    ];
    for (wrong, kind) in cases {
        by_hand(
            || External::new("ads").patience(Some(Duration::ZERO)),
            move |driven| {
                driven.send([(1, 0)]);
                wrong(driven);
                assert_eq!(kind_of_fault(driven), Some(kind));
                driven.send([(2, 1)]);
                assert!(driven.probe.less_equal(&1) && driven.taken().len() <= 1);
            },
        );
    }
}

#[test]
fn a_value_longer_than_said_ends_the_run_and_one_that_was_cached_too_long_is_asked_for() {
    let long = |keys: &[u64], values: &mut Vec<Result<Option<String>>>| {
        values.extend(keys.iter().map(|_| Ok(Some("long ".repeat(500)))));
    };
    let failed = joined(
        1,
        || External::new("ads"),
        batches(1, 10),
        move |_| Box::new(OnThread::new("ads", 10, long).unwrap()),
    );
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::ValueTooLarge);
    let ttl = Duration::from_millis(20);
    by_hand(
        move || External::new("ads").cache(1 << 16, ttl),
        move |driven| {
            driven.send([(1, 0)]);
            driven.answer(1, Ok(Some(1)));
            std::thread::sleep(ttl);
            driven.send([(1, 1)]);
            assert_eq!(driven.table.keys(), [1]);
        },
    );
}

#[test]
fn what_waits_and_is_cached_has_to_fit_into_memory() {
    let external = || External::new("ads").cache(64 * MIB, Duration::from_secs(1));
    let refused = joined(1, external, batches(1, 10), |_| Box::new(Unruly::new(1)));
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OverBudget);
    assert!(refused.to_string().contains("bytes of cache of operator ads"), "{refused}");
}

/// Changes, rows and answers in any order. The value of a key is its version; an answer has the version
/// of a moment between the question and the answer.
#[test]
fn each_row_sees_a_value_not_older_than_what_was_told_before_it() {
    for seed in 1..=30 {
        for is_cached in [false, true] {
            let external = move || match is_cached {
                true => cached().parked_max(30).asked_max(5),
                false => External::new("ads").parked_max(30).asked_max(5),
            };
            let rows = by_hand(external, move |driven| interleave(driven, seed));
            assert!(rows > 200, "seed {seed}: {rows} rows");
        }
    }
}

fn interleave(driven: &mut Driven<'_>, seed: u64) -> u64 {
    const KEYS: u64 = 6;
    let (mut random, mut rows) = (seed, 0);
    let mut versions = [0u64; KEYS as usize];
    // Of each key: the version told last. Of each row: the least it may see.
    let (mut told, mut least) = ([0u64; KEYS as usize], BTreeMap::new());
    // Of each question: the version when it was asked.
    let mut asked_at = BTreeMap::new();
    let (mut seen, mut out) = ([(0, 0); KEYS as usize], 0);
    for step in 0.. {
        let is_over = step > 600;
        let key = next(&mut random) % KEYS;
        match next(&mut random) % if is_over { 1 } else { 4 } {
            0 if !driven.table.keys().is_empty() => {
                let keys = driven.table.keys();
                let key = keys[next(&mut random) as usize % keys.len()];
                let asked: u64 = asked_at.remove(&key).expect("it is asked");
                let now = versions[key as usize];
                let version = asked + next(&mut random) % (now - asked + 1);
                let is_away = next(&mut random) % 10 == 0;
                driven.answer(
                    key,
                    match is_away {
                        true => Err(Error::new(ErrorKind::Io, "away")),
                        false => Ok(Some(version)),
                    },
                );
            }
            1 | 2 => {
                let more = 1 + next(&mut random) % 3;
                for row in rows..rows + more {
                    least.insert(row, told[key as usize]);
                }
                driven.send((rows..rows + more).map(|row| (key, row)));
                rows += more;
            }
            3 => {
                versions[key as usize] += 1;
                told[key as usize] = versions[key as usize];
                driven.tell((key, next(&mut random) % 2 == 0, Some(versions[key as usize])));
            }
            _ => driven.pass(),
        }
        for key in driven.table.keys() {
            asked_at.entry(key).or_insert(versions[key as usize]);
        }
        for (_, key, row, value) in driven.taken() {
            let (value, now) = (value.expect("each key has a value"), versions[key as usize]);
            assert!(least[&row] <= value && value <= now, "seed {seed}: row {row} sees {value}");
            let (last_row, last_value) = seen[key as usize];
            assert!(out == 0 || row >= last_row, "seed {seed}: order of rows");
            assert!(value >= last_value, "seed {seed}: row {row} goes back to {value}");
            (seen[key as usize], out) = ((row, value), out + 1);
        }
        if is_over && out == rows {
            break;
        }
        assert!(step < 100_000, "seed {seed}: {out} of {rows} rows come out");
    }
    rows
}
