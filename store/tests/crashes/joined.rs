//! Windows whose answers change: sessions that events join, results told early and taken back, sliding windows told
//! early, and two streams that are joined by time. What they should hold is what others hold that have played the same
//! history on the heap and were never opened again.

use std::cell::OnceCell;

use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::windows::Processing;
use alluvium::{
    Aggregate, Aggregated, AnyLayout, AppendLog, Elements, Emit, Error, Heap, Holistic, HybridLog,
    KIB, MIB, Result, Store, StoreBuilder, Time, TimeMap, Window, WindowSegments, Windows, process,
};

use crate::dice::Dice;
use crate::everything::builder;
use crate::job::{Subject, chance};
use crate::trouble::Trouble;

const KEYS: u64 = 6;
const GAP: i64 = 7;
/// How far apart two events are that join.
const REACH: i64 = 5;

/// How many, and their sum.
#[derive(Clone, Copy)]
struct Sum;

impl Aggregate<u64> for Sum {
    type Acc = (u64, u64);
    type Out = (u64, u64);

    fn init(&self) -> (u64, u64) {
        (0, 0)
    }

    fn add(&self, acc: &mut (u64, u64), element: &u64) {
        self.merge(acc, &(1, *element));
    }

    fn merge(&self, acc: &mut (u64, u64), later: &(u64, u64)) {
        *acc = (acc.0 + later.0, acc.1 + later.1);
    }

    fn out(&self, acc: &(u64, u64)) -> Option<(u64, u64)> {
        (acc.0 > 0).then_some(*acc)
    }
}

type Row = Vec<u64>;
type Collect = fn(&u64, Window, &mut dyn Elements<u64>, &mut dyn FnMut(Row)) -> Result<()>;

fn collect(
    _: &u64,
    _: Window,
    elements: &mut dyn Elements<u64>,
    emit: &mut dyn FnMut(Row),
) -> Result<()> {
    let mut all = Row::new();
    while let Some(element) = elements.next()? {
        all.push(*element);
    }
    all.sort_unstable();
    emit(all);
    Ok(())
}

type Folded = Aggregated<u64, u64, Sum, AnyLayout>;
type Kept = Holistic<u64, u64, Processing<Collect, Row>, AnyLayout>;
type Lines = Vec<String>;

fn line(name: &str, key: u64, window: Window, what: &dyn std::fmt::Debug, by: i64) -> String {
    format!("{name} {key} {}..{} {what:?} {by:+}", window.start.0, window.end.0)
}

pub struct Joined {
    store: Store,
    folded: Vec<(&'static str, Folded)>,
    kept: Vec<(&'static str, Kept)>,
    sides: [TimeMap<u64, u64>; 2],
    now: i64,
    trouble: Trouble,
}

/// So many changes of a history, and the time they came to.
#[derive(Clone)]
pub struct Played {
    seed: u64,
    position: u64,
    now: i64,
    /// All that is there then, once that was asked for.
    expected: OnceCell<Lines>,
}

impl Joined {
    fn open(store: Store, on_heap: bool) -> Result<Self> {
        let layout = |layout: AnyLayout| if on_heap { Heap::new().into() } else { layout };
        let log = || {
            let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB);
            layout(log.memory(160 * KIB).into())
        };
        let append = || layout(AppendLog::new().memory(400 * KIB).block(KIB).into());
        let segments = || layout(WindowSegments::new().memory(256 * KIB).into());
        let fold = |name: &'static str, layout, windows: Windows| -> Result<_> {
            Ok((name, store.aggregated(name).layout(layout).open(windows, Sum)?))
        };
        let keep = |name: &'static str, layout, windows: Windows| -> Result<_> {
            let open = store.holistic(name).layout(layout);
            Ok((name, open.open(windows, process(collect as Collect))?))
        };
        let (session, sliding) =
            (Windows::session(nanos(GAP)), Windows::sliding(nanos(40), nanos(10)));
        let late = session.lateness(nanos(8)).emit(Emit::OnWatermark);
        let early = |windows: Windows| windows.emit(Emit::Early(nanos(3)));
        Ok(Self {
            folded: vec![
                fold("sessions", log(), session)?,
                fold("sessions-late", segments(), late)?,
                fold("sessions-early", log(), early(session).lateness(nanos(6)))?,
                fold("sessions-early-heap", Heap::new().into(), early(session))?,
                fold("sliding-early", segments(), early(sliding).lateness(nanos(5)))?,
            ],
            kept: vec![
                keep("kept-late", append(), late)?,
                keep("kept-early", append(), early(session))?,
                keep("kept-sliding-early", append(), early(sliding).lateness(nanos(5)))?,
            ],
            sides: [
                store.time_map("left").layout(append()).open(nanos(10))?,
                store.time_map("right").layout(Heap::new().into()).open(nanos(10))?,
            ],
            now: 0,
            trouble: Trouble::none(),
            store,
        })
    }

    fn add(&mut self, at: Time, key: u64, n: u64) -> Result<()> {
        let sent = Time(self.now);
        let trouble = &mut self.trouble;
        for (_, windows) in &mut self.folded {
            let mut batch = vec![(key, at, n)];
            trouble.outlast(|| {
                windows.add_batch(sent, &mut batch, &mut |_| (), &mut |_, _, _, _| ())
            })?;
        }
        for (_, windows) in &mut self.kept {
            let mut batch = vec![(key, at, n)];
            trouble.outlast(|| {
                windows.add_batch(sent, &mut batch, &mut |_| (), &mut |_, _, _, _| ())
            })?;
        }
        let [left, right] = &mut self.sides;
        let (own, other) = if n % 2 == 0 { (left, right) } else { (right, left) };
        // What is joined is there after the insert, whatever fails between the two.
        trouble.outlast(|| Ok(own.insert(&key, at, n)?))?;
        trouble.outlast(|| {
            let mut near = 0u64;
            other.range(&key, at.plus(-REACH)..at.plus(REACH), |_, n| {
                near += n;
                Ok(())
            })?;
            Ok(near)
        })?;
        Ok(())
    }

    fn advance(&mut self, to: i64, told: &mut Lines) -> Result<()> {
        let trouble = &mut self.trouble;
        for (name, windows) in &mut self.folded {
            let mut out = |key: &u64, window: Window, sum: (u64, u64), by: i64| {
                told.push(line(name, *key, window, &sum, by));
            };
            while !trouble.outlast(|| windows.advance(Time(to), 50, &mut out))?.done {}
        }
        for (name, windows) in &mut self.kept {
            let mut out = |key: &u64, window: Window, row: Row, by: i64| {
                told.push(line(name, *key, window, &row, by));
            };
            while !trouble.outlast(|| windows.advance(Time(to), 50, &mut out))?.done {}
        }
        for side in &mut self.sides {
            let before = Time((to.min(1 << 40) - 60).max(0));
            while !trouble.outlast(|| side.purge(before, 50))? {}
        }
        self.now = to;
        Ok(())
    }

    /// All that is there: what the sides have, and what windows tell until the end of time.
    fn lines(&mut self) -> Result<Lines> {
        let mut lines = Lines::new();
        for (name, side) in ["left", "right"].iter().zip(&mut self.sides) {
            for key in 0..KEYS {
                side.range(&key, Time(0)..Time(1 << 40), |at, n| {
                    lines.push(format!("{name} {key} at {}: {n}", at.0));
                    Ok(())
                })?;
            }
        }
        self.advance(i64::MAX, &mut lines)?;
        lines.sort_unstable();
        Ok(lines)
    }
}

impl Played {
    fn expected(&self) -> &Lines {
        self.expected.get_or_init(|| {
            let (mut twin, mut played) = Joined::twin(self.seed);
            for at in 0..self.position {
                let mut chance = chance(self.seed, at);
                twin.change(&mut played, &mut chance).expect("nothing goes wrong");
            }
            twin.lines().expect("nothing goes wrong")
        })
    }
}

impl Subject for Joined {
    type Model = Played;

    fn open(builder: StoreBuilder) -> Result<Self> {
        Joined::open(builder.memory(8 * MIB).open()?, false)
    }

    fn twin(seed: u64) -> (Self, Played) {
        let device = Simulated::new(seed, Faults::none());
        let store = builder(&device).memory(64 * MIB).open().expect("nothing goes wrong");
        let twin = Joined::open(store, true).expect("nothing goes wrong");
        (twin, Played { seed, position: 0, now: 0, expected: OnceCell::new() })
    }

    fn resume(&mut self, model: &Played) {
        self.now = model.now;
    }

    fn outlasts(&mut self, trouble: Trouble) {
        self.trouble = trouble;
    }

    fn is_of_trouble(&mut self, error: &Error) -> bool {
        self.trouble.is_of_it(error)
    }

    fn met(&self) -> u64 {
        self.trouble.met()
    }

    fn store(&self) -> &Store {
        &self.store
    }

    fn change(&mut self, model: &mut Played, dice: &mut Dice) -> Result<()> {
        let (key, n) = (dice.below(KEYS), dice.next() % 1000);
        match dice.below(10) {
            // Some of them late.
            0..5 => {
                let at = self.now + dice.below(50) as i64 - 6;
                self.add(Time(at.max(0)), key, n)?;
            }
            // Two sessions, and the event that joins them.
            5 | 6 => {
                let first = self.now + dice.below(30) as i64;
                let between = first + 1 + dice.below(GAP as u64) as i64;
                for at in [first, first + 2 * GAP - 1, between] {
                    self.add(Time(at), key, n)?;
                }
            }
            7 => {
                let trouble = &mut self.trouble;
                trouble.outlast(|| self.store.tick(60))?;
            }
            _ => self.advance(self.now + dice.below(7) as i64, &mut Lines::new())?,
        }
        (model.position, model.now) = (model.position + 1, self.now);
        model.expected = OnceCell::new();
        Ok(())
    }

    fn compare(&mut self, model: &Played, when: &str) -> Vec<Error> {
        self.resume(model);
        match self.lines() {
            Ok(found) => {
                let expected = model.expected();
                let more: Vec<_> = found.iter().filter(|l| !expected.contains(l)).take(9).collect();
                let less: Vec<_> = expected.iter().filter(|l| !found.contains(l)).take(9).collect();
                let after = model.position;
                assert!(
                    found == *expected,
                    "{when}: after {after} changes {more:?} instead of {less:?}"
                );
                Vec::new()
            }
            Err(error) => vec![error],
        }
    }
}
