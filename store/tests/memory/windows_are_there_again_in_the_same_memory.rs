//! Windows of every shape in the least memory that they open with, and a little more: what is accepted can be
//! checkpointed, opened again with the same configuration, and fires.

use std::collections::BTreeMap;

use alluvium::time::nanos;
use alluvium::{
    Aggregate, Aggregated, AnyLayout, AppendLog, Counting, Elements, Emit, Holistic, Process,
    Result, Store, Time, Window, WindowSegments, Windows,
};

use crate::counting::alone;
use crate::dice::Dice;
use crate::what_is_accepted_is_there_again_in_the_same_memory::{Kind, log, play};

/// Adds up; cannot subtract.
#[derive(Default)]
pub(crate) struct Sum;

impl Aggregate<u64> for Sum {
    type Acc = u64;
    type Out = u64;

    fn init(&self) -> u64 {
        0
    }

    fn add(&self, acc: &mut u64, element: &u64) {
        *acc = acc.wrapping_add(*element);
    }

    fn merge(&self, acc: &mut u64, later: &u64) {
        *acc = acc.wrapping_add(*later);
    }

    fn out(&self, acc: &u64) -> Option<u64> {
        Some(*acc)
    }
}

/// All elements, in order.
#[derive(Default)]
pub(crate) struct Collect;

impl Process<u64, u64> for Collect {
    type Row = Vec<u64>;

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        elements: &mut dyn Elements<u64>,
        emit: &mut dyn FnMut(Vec<u64>),
    ) -> Result<()> {
        let mut all = Vec::new();
        while let Some(element) = elements.next()? {
            all.push(*element);
        }
        all.sort_unstable();
        emit(all);
        Ok(())
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Shape {
    Aligned { length: i64, slide: i64 },
    Session { gap: i64 },
}

impl Shape {
    fn windows(self) -> Windows {
        match self {
            Shape::Aligned { length, slide } => Windows::sliding(nanos(length), nanos(slide)),
            Shape::Session { gap } => Windows::session(nanos(gap)),
        }
    }

    /// The elements of each window and key.
    fn contents(self, events: &[(u64, i64, u64)]) -> BTreeMap<(i64, i64, u64), Vec<u64>> {
        let mut all = BTreeMap::<_, Vec<u64>>::new();
        match self {
            Shape::Aligned { length, slide } => {
                for (key, at, n) in events {
                    let first = (at / slide + 1) * slide;
                    for end in (first..=at + length).step_by(slide as usize) {
                        all.entry((end - length, end, *key)).or_default().push(*n);
                    }
                }
            }
            Shape::Session { gap } => {
                let mut sorted = events.to_vec();
                sorted.sort_unstable();
                let mut open: Option<(u64, i64, i64, Vec<u64>)> = None;
                for (key, at, n) in sorted {
                    match &mut open {
                        Some((of, _, last, numbers)) if *of == key && at <= *last + gap => {
                            *last = at;
                            numbers.push(n);
                        }
                        open => {
                            let closed = open.replace((key, at, at, vec![n]));
                            all.extend(closed.map(|(k, first, last, numbers)| {
                                ((first, last + gap, k), numbers)
                            }));
                        }
                    }
                }
                all.extend(open.map(|(k, first, last, numbers)| ((first, last + gap, k), numbers)));
            }
        }
        all.values_mut().for_each(|numbers| numbers.sort_unstable());
        all
    }
}

/// Rows of a window and key, and how often each came out less how often it was taken back.
pub(crate) type Told<R> = BTreeMap<(i64, i64, u64, R), i64>;

pub(crate) struct Model<R> {
    events: Vec<(u64, i64, u64)>,
    told: Told<R>,
}

impl<R> Default for Model<R> {
    fn default() -> Self {
        Self { events: Vec::new(), told: Told::new() }
    }
}

/// Takes what comes out.
pub(crate) type Out<'a, R> = &'a mut dyn FnMut(&u64, Window, R, i64);

/// Windowed state, whatever it keeps.
pub(crate) trait Case: Sized {
    const NAME: &'static str;
    const SHAPE: Shape;
    const EMIT: Emit = Emit::OnClose;
    const KEYS: u64;
    type Row: Ord + Clone + std::fmt::Debug + 'static;

    fn layout(memory: u64) -> AnyLayout;
    fn open(store: &Store, name: &str, layout: AnyLayout, windows: Windows) -> Result<Self>;
    fn row(numbers: &[u64]) -> Self::Row;
    fn watermark(&self) -> i64;
    fn add(&mut self, batch: &mut Vec<(u64, Time, u64)>, out: Out<'_, Self::Row>) -> Result<()>;
    fn advance(&mut self, to: Time, out: Out<'_, Self::Row>) -> Result<()>;
}

fn telling<R: Ord>(told: &mut Told<R>) -> impl FnMut(&u64, Window, R, i64) {
    |key, window, row, diff| {
        *told.entry((window.start.0, window.end.0, *key, row)).or_default() += diff;
    }
}

/// What an error says of windows that were accepted and do not fire.
pub(crate) const NOT_FIRED: &str = "windows do not fire";

/// In memory of its own, or in that of a store, which its other states share.
pub(crate) struct Of<C, const SHARED: bool>(C);

impl<C: Case, const SHARED: bool> Kind for Of<C, SHARED> {
    const NAME: &'static str = C::NAME;
    const OF_STORE: bool = SHARED;
    type Model = Model<C::Row>;

    fn open(store: &Store, name: &str, memory: u64) -> Result<Self> {
        let layout = if SHARED { AnyLayout::Auto } else { C::layout(memory) };
        Ok(Self(C::open(store, name, layout, C::SHAPE.windows().emit(C::EMIT))?))
    }

    fn change(&mut self, model: &mut Self::Model, dice: &mut Dice) -> Result<()> {
        let now = self.0.watermark().max(0);
        if dice.below(40) == 0 {
            let to = Time(now + 1 + dice.below(20) as i64);
            let fired = self.0.advance(to, &mut telling(&mut model.told));
            return fired.map_err(|error| error.with(NOT_FIRED, C::NAME));
        }
        let event = |dice: &mut Dice| {
            (dice.below(C::KEYS), Time(now + dice.below(100) as i64), 1 + dice.below(1 << 32))
        };
        let mut batch: Vec<_> = (0..dice.below(10)).map(|_| event(dice)).collect();
        let all = batch.clone();
        let added = self.0.add(&mut batch, &mut telling(&mut model.told));
        // Those that are left are not in; numbers are hardly ever the same.
        let is_in = |event: &&(u64, Time, u64)| !batch.contains(event);
        let of = all.iter().filter(is_in);
        model.events.extend(of.map(|(key, at, n)| (*key, at.0, *n)));
        added
    }

    fn compare(&mut self, model: &Self::Model, what: &str) -> Result<()> {
        let mut told = model.told.clone();
        self.0.advance(Time(1 << 40), &mut telling(&mut told))?;
        told.retain(|_, count| *count != 0);
        let all = C::SHAPE.contents(&model.events);
        let all = all.into_iter().map(|((start, end, key), n)| ((start, end, key, C::row(&n)), 1));
        let all: Told<_> = all.collect();
        let more: Vec<_> = told.iter().filter(|(row, n)| all.get(row) != Some(n)).take(4).collect();
        let less: Vec<_> = all.iter().filter(|(row, n)| told.get(row) != Some(n)).take(4).collect();
        assert!(told == all, "{what}: {more:?} are more, {less:?} less");
        Ok(())
    }
}

macro_rules! case {
    ($case:ident: $state:ty, $open:ident of $name:literal, $shape:expr, $emit:expr, $keys:literal, in $layout:expr,
        gives $row:ty: $of:expr) => {
        pub(crate) struct $case($state);

        impl Case for $case {
            const NAME: &'static str = $name;
            const SHAPE: Shape = $shape;
            const EMIT: Emit = $emit;
            const KEYS: u64 = $keys;
            type Row = $row;

            fn layout(memory: u64) -> AnyLayout {
                let of = $layout;
                AnyLayout::from(of(memory))
            }

            fn open(
                store: &Store,
                name: &str,
                layout: AnyLayout,
                windows: Windows,
            ) -> Result<Self> {
                Ok(Self(store.$open(name).layout(layout).open(windows, Default::default())?))
            }

            fn row(numbers: &[u64]) -> $row {
                $of(numbers)
            }

            fn watermark(&self) -> i64 {
                self.0.watermark().0
            }

            fn add(&mut self, batch: &mut Vec<(u64, Time, u64)>, out: Out<'_, $row>) -> Result<()> {
                let sent = self.0.watermark();
                self.0.add_batch(sent, batch, &mut |late| panic!("{late:?}"), out)
            }

            fn advance(&mut self, to: Time, out: Out<'_, $row>) -> Result<()> {
                self.0.advance_all(to, out)
            }
        }
    };
}

fn sum(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |sum, n| sum.wrapping_add(*n))
}

fn count(numbers: &[u64]) -> i64 {
    numbers.len() as i64
}

const SLIDING: Shape = Shape::Aligned { length: 50, slide: 10 };
const LONG: Shape = Shape::Aligned { length: 60, slide: 2 };
const TUMBLING: Shape = Shape::Aligned { length: 50, slide: 50 };
const SESSION: Shape = Shape::Session { gap: 10 };
const EARLY: Emit = Emit::Early(std::time::Duration::from_nanos(10));

fn segments(memory: u64) -> WindowSegments {
    WindowSegments::new().memory(memory)
}

fn lists(memory: u64) -> AppendLog {
    AppendLog::new().memory(memory)
}

case! { Totals: Aggregated<u64, u64, Counting>, aggregated of "sliding windows with totals", SLIDING,
Emit::OnClose, 1000, in segments, gives i64: count }
case! { Stacks: Aggregated<u64, u64, Sum>, aggregated of "sliding windows with stacks", LONG,
Emit::OnClose, 300, in segments, gives u64: sum }
case! { Early: Aggregated<u64, u64, Sum>, aggregated of "windows with early results", TUMBLING,
EARLY, 1000, in segments, gives u64: sum }
case! { Sessions: Aggregated<u64, u64, Sum>, aggregated of "sessions", SESSION,
Emit::OnClose, 1000, in log, gives u64: sum }
case! { Tumbling: Holistic<u64, u64, Collect>, holistic of "events of windows", TUMBLING,
Emit::OnClose, 300, in lists, gives Vec<u64>: <[u64]>::to_vec }
case! { Kept: Holistic<u64, u64, Collect>, holistic of "events of sessions", SESSION,
Emit::OnClose, 300, in lists, gives Vec<u64>: <[u64]>::to_vec }

macro_rules! open_again {
    ($($case:ident in $test:ident and $shared:ident),* $(,)?) => {$(
        #[test]
        fn $test() {
            let _alone = alone();
            play::<Of<$case, false>>();
        }

        #[test]
        fn $shared() {
            let _alone = alone();
            play::<Of<$case, true>>();
        }
    )*};
}

open_again! {
    Totals in windows_with_totals and windows_with_totals_in_a_small_store,
    Stacks in windows_with_stacks and windows_with_stacks_in_a_small_store,
    Early in windows_that_are_early and windows_that_are_early_in_a_small_store,
    Sessions in sessions and sessions_in_a_small_store,
    Tumbling in events_of_windows and events_of_windows_in_a_small_store,
    Kept in events_of_sessions and events_of_sessions_in_a_small_store,
}
