//! Windows of keyed rows.
//!
//! The operator keeps rows in windowed state and fires windows as its frontier moves on, some
//! thousand keys each time it is scheduled. It holds one capability, at the watermark up to which
//! all has fired, and emits under that.

use std::fmt;
use std::rc::Rc;

use alluvium::backend::{HolisticLayout, WindowLayout};
use alluvium::time::ByTime;
use alluvium::windows::{Advanced, Late};
use alluvium::{
    Aggregate, Aggregated, Error, ErrorKind, Holistic, Key, Process, Result, State, Time, Window,
    Windows,
};
use timely::ExchangeData;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::core::{Concat, OkErr};
use timely::dataflow::operators::vec::Map;

use crate::Changes;
use crate::event_time::EventTime;
use crate::intake::{EmitRight, Intake, IntakeWork};
use crate::operators::key_by::{KeyBy, Keyed};
use crate::operators::placing::{Fixed, Placing};
use crate::operators::shell::{OperatorBody, RowOutput, StepBounds, advance_under};
use crate::operators::spec::{OperatorState, Spec};
use crate::operators::split::split;

/// Keys that are looked at each time the operator is scheduled, when windows fire.
const FUEL: usize = 8192;

/// Extension trait: windows of keyed rows.
///
/// ```
/// use std::time::Duration;
/// use alluvium::{SECOND, Time, Windows};
/// use alluvium_timely::{Counting, KeyBy, NodeConfig, Spec, Windowing, execute};
/// use timely::dataflow::operators::{Inspect, ToStream};
///
/// execute(timely::Config::process(1), NodeConfig::default(), |worker, state| {
///     worker.dataflow::<i64, _, _>(|scope| {
///         let clicks = [("ann".to_owned(), 5 * SECOND), ("ann".to_owned(), 65 * SECOND)];
///         let fired = clicks
///             .to_stream(scope)
///             .container::<Vec<_>>()
///             .key_by(state, |(user, _)| user.clone())
///             .window(Windows::tumbling(Duration::from_secs(60)), |(_, at)| Time(*at))
///             .aggregate(Spec::new("clicks"), Counting)?;
///         fired.results.inspect(|((user, window, clicks), _, _)| {
///             println!("{user} clicked {clicks} times in {window:?}");
///         });
///         fired.late.inspect(|late| println!("{late:?}"));
///         Ok(())
///     })
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub trait Windowing<'scope, T: EventTime, K: Key, D>: Sized {
    /// The rows' keys that windows are made of.
    type KeyOf;
    /// Whether key groups move.
    type Placing: Placing<'scope, T>;

    /// Assigns rows to windows by their event times. A row is late if its time is before the
    /// timestamp it was sent with, never because of the operator's own frontier. So results do not
    /// depend on the number of workers, nor on how rows interleave.
    ///
    /// Session rows that are too late for a session of their own wait for all rows that were sent
    /// before them, which may have opened one.
    fn window<G>(
        self,
        windows: Windows,
        at: G,
    ) -> Windowed<'scope, T, D, Self::KeyOf, G, Self::Placing>
    where
        G: Fn(&D) -> Time + 'static;
}

impl<'scope, T, K, D, F> Windowing<'scope, T, K, D> for Keyed<'scope, T, D, F>
where
    T: EventTime,
    K: Key,
    D: ExchangeData,
    F: Fn(&D) -> K + 'static,
{
    type KeyOf = F;
    type Placing = Fixed;

    fn window<G>(self, windows: Windows, at: G) -> Windowed<'scope, T, D, F, G>
    where
        G: Fn(&D) -> Time + 'static,
    {
        Windowed::of(self, Fixed, windows, at)
    }
}

/// Keyed rows in windows; made by [`Windowing::window`].
pub struct Windowed<'scope, T: EventTime, D, F, G, M = Fixed> {
    keyed: Keyed<'scope, T, D, F>,
    /// Whether its key groups move.
    placing: M,
    windows: Windows,
    at: Rc<G>,
}

impl<T: EventTime, D, F, G, M> fmt::Debug for Windowed<'_, T, D, F, G, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Windowed").field("windows", &self.windows).finish_non_exhaustive()
    }
}

/// Results of a [join](Windowed::join) of windows.
pub struct Paired<'scope, T: EventTime, K, R, D, E> {
    /// What was made of the pairs. A pair's time is that at which its window fires.
    pub results: Changes<'scope, T, R>,
    /// Rows of the one side that came too late for all of their windows, each once.
    pub late: StreamVec<'scope, T, Late<K, D>>,
    /// Those of the other side.
    pub late_other: StreamVec<'scope, T, Late<K, E>>,
}

impl<T: EventTime, K, R, D, E> fmt::Debug for Paired<'_, T, K, R, D, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Paired")
    }
}

/// Results of windows.
pub struct Fired<'scope, T: EventTime, K, R, D> {
    /// Results, by key and window. A result's time is that at which its window fires: its end, and
    /// with [`Emit::OnClose`](alluvium::Emit::OnClose) the allowed lateness after it. An early result's
    /// time is that to which the watermark had come when it was told.
    pub results: Changes<'scope, T, (K, Window, R)>,
    /// Rows that came too late for all of their windows, each once, with how late they were; and rows at
    /// [`Time::MAX`], the end of time, which is in no window.
    pub late: StreamVec<'scope, T, Late<K, D>>,
}

impl<T: EventTime, K, R, D> fmt::Debug for Fired<'_, T, K, R, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fired")
    }
}

impl<'scope, T, D, F, G, M> Windowed<'scope, T, D, F, G, M>
where
    T: EventTime,
    D: ExchangeData,
    G: Fn(&D) -> Time + 'static,
    M: Placing<'scope, T>,
{
    pub(crate) fn of(keyed: Keyed<'scope, T, D, F>, placing: M, windows: Windows, at: G) -> Self {
        Self { keyed, placing, windows, at: Rc::new(at) }
    }

    /// Folds the rows of each key and window. The state is named `id/windows`.
    ///
    /// Windows of [migratable](Keyed::migratable) rows move with their key groups: all windows due
    /// at the time of the move fire on the source worker, and open windows continue on the target.
    ///
    /// # Errors
    /// Those of opening the state.
    pub fn aggregate<K, A, L>(
        self,
        spec: Spec<L>,
        aggregate: A,
    ) -> Result<Fired<'scope, T, K, A::Out, D>>
    where
        K: Key + Ord,
        A: Aggregate<D>,
        L: WindowLayout<K, A::Acc>,
        F: Fn(&D) -> K + 'static,
    {
        let windows = self.windows;
        self.fire(spec, move |states| states.moving_windows("windows", windows, aggregate))
    }

    /// Keeps the rows and passes all rows of a key and window to a function when the window fires.
    /// The state is named `id/windows`. Windows of [migratable](Keyed::migratable) rows move as
    /// those of [`aggregate`](Windowed::aggregate) do.
    ///
    /// # Errors
    /// Those of opening the state.
    pub fn holistic<K, P, L>(
        self,
        spec: Spec<L>,
        process: P,
    ) -> Result<Fired<'scope, T, K, P::Row, D>>
    where
        K: Key + Ord,
        D: State,
        L: HolisticLayout<K, D>,
        P: Process<K, D>,
        P::Row: Clone,
        F: Fn(&D) -> K + 'static,
    {
        let windows = self.windows;
        self.fire(spec, move |states| states.moving_holistic("windows", windows, process))
    }

    /// Pairs rows of the same key and window, one from each side, and emits `pair`'s result. The
    /// state `id/windows` keeps the rows of both sides. All rows of a key and window are in memory
    /// at once while they are paired. If one side is [migratable](Keyed::migratable), or both are,
    /// rows of both sides move by the control streams.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the windows of the two sides differ; as for
    /// [`holistic`](Windowed::holistic).
    pub fn join<K, E, H, I, R, L, N>(
        self,
        other: Windowed<'scope, T, E, H, I, N>,
        spec: Spec<L>,
        pair: impl Fn(&K, Window, &D, &E) -> R + 'static,
    ) -> Result<Paired<'scope, T, K, R, D, E>>
    where
        K: Key + Ord,
        D: State,
        E: ExchangeData + State,
        R: Clone + 'static,
        L: HolisticLayout<K, (Option<D>, Option<E>)>,
        F: Fn(&D) -> K + 'static,
        H: Fn(&E) -> K + 'static,
        I: Fn(&E) -> Time + 'static,
        N: Placing<'scope, T>,
    {
        if self.windows != other.windows {
            let (one, two) = (self.windows, other.windows);
            let message =
                format!("the two sides of a join have different windows: {one:?} and {two:?}");
            return Err(Error::new(ErrorKind::Config, message).with("operator", spec.id()));
        }
        let placing = self.placing.with(other.placing);
        let (windows, state) = (self.windows, self.keyed.state.clone());
        let (left_key, right_key) = (self.keyed.key.clone(), other.keyed.key.clone());
        let (left_at, right_at) = (self.at, other.at);
        let left = self.keyed.stream.map(|row| (Some(row), None));
        let right = other.keyed.stream.map(|row| (None, Some(row)));
        let key = move |row: &(Option<D>, Option<E>)| match row {
            (Some(row), _) => left_key(row),
            (_, Some(row)) => right_key(row),
            (None, None) => unreachable!("a row is of one side"),
        };
        let at = move |row: &(Option<D>, Option<E>)| match row {
            (Some(row), _) => left_at(row),
            (_, Some(row)) => right_at(row),
            (None, None) => unreachable!("a row is of one side"),
        };
        let both = left.concat(right).key_by(&state, key);
        let fired = Windowed::of(both, placing, windows, at).holistic(
            spec,
            alluvium::process(
                move |key: &K,
                      window,
                      rows: &mut dyn alluvium::Elements<(Option<D>, Option<E>)>,
                      emit: &mut dyn FnMut(R)| {
                    let (mut left, mut right) = (Vec::new(), Vec::new());
                    while let Some(row) = rows.next()? {
                        left.extend(row.0.clone());
                        right.extend(row.1.clone());
                    }
                    for one in &left {
                        right.iter().for_each(|other| emit(pair(key, window, one, other)));
                    }
                    Ok(())
                },
            ),
        )?;
        let results = fired.results.map(|((_, _, row), time, diff)| (row, time, diff));
        let (late, late_other) =
            fired.late.ok_err(|Late { at, key, element, lateness }| match element {
                (Some(element), _) => Ok(Late { at, key, element, lateness }),
                (_, Some(element)) => Err(Late { at, key, element, lateness }),
                (None, None) => unreachable!("a row is of one side"),
            });
        Ok(Paired { results, late, late_other })
    }

    /// The operator around any windowed state.
    fn fire<K, S, R, L: Clone>(
        self,
        spec: Spec<L>,
        open: impl FnOnce(&OperatorState<'_, L>) -> Result<S>,
    ) -> Result<Fired<'scope, T, K, R, D>>
    where
        K: Key + Ord,
        S: Fires<K, D, R>,
        R: Clone + 'static,
        F: Fn(&D) -> K + 'static,
    {
        let open =
            |states: &OperatorState<'_, L>| Ok(Box::new(open(states)?) as Box<dyn Fires<_, _, _>>);
        self.start(spec, Box::new(open))
    }

    /// The operator, compiled once for all windowed state that gives such rows.
    fn start<K, R, L: Clone>(
        self,
        spec: Spec<L>,
        open: OpenFires<'_, K, D, R, L>,
    ) -> Result<Fired<'scope, T, K, R, D>>
    where
        K: Key + Ord,
        R: Clone + 'static,
        F: Fn(&D) -> K + 'static,
    {
        let Windowed { keyed, placing, windows, at } = self;
        let firing =
            move |states: &OperatorState<'_, L>| Ok(WindowedState::new(open(states)?, windows, at));
        let told = placing.start(keyed, spec, firing)?;
        let (results, late) = split(told);
        Ok(Fired { results, late })
    }
}

/// Opens windowed state.
type OpenFires<'o, K, D, R, L> =
    Box<dyn FnOnce(&OperatorState<'_, L>) -> Result<Box<dyn Fires<K, D, R>>> + 'o>;

/// Windowed state, whatever its kind.
trait Fires<K, D, R>: 'static {
    fn add_batch(
        &mut self,
        sent: Time,
        batch: &mut Vec<(K, Time, D)>,
        late: &mut dyn FnMut(Late<K, D>),
        out: &mut dyn FnMut(&K, Window, R, i64),
    ) -> Result<()>;

    fn advance(
        &mut self,
        watermark: Time,
        fuel: usize,
        out: &mut dyn FnMut(&K, Window, R, i64),
    ) -> Result<Advanced>;

    fn watermark(&self) -> Time;
}

macro_rules! fires {
    ($windows:ident<$fold:ident: $bound:path> in $layout:path, gives $row:ident where $element:path) => {
        impl<K: Key + Ord, D: $element, $fold: $bound, L: $layout> Fires<K, D, $fold::$row>
            for $windows<K, D, $fold, L>
        {
            fn add_batch(
                &mut self,
                sent: Time,
                batch: &mut Vec<(K, Time, D)>,
                late: &mut dyn FnMut(Late<K, D>),
                out: &mut dyn FnMut(&K, Window, $fold::$row, i64),
            ) -> Result<()> {
                $windows::add_batch(self, sent, batch, late, out)
            }

            fn advance(
                &mut self,
                watermark: Time,
                fuel: usize,
                out: &mut dyn FnMut(&K, Window, $fold::$row, i64),
            ) -> Result<Advanced> {
                $windows::advance(self, watermark, fuel, out)
            }

            fn watermark(&self) -> Time {
                $windows::watermark(self)
            }
        }
    };
}

fires! { Aggregated<A: Aggregate<D>> in WindowLayout<K, A::Acc>, gives Out where ExchangeData }
fires! { Holistic<P: Process<K, D>> in HolisticLayout<K, D>, gives Row where State }

/// A result, or a row that was late.
type FiredRow<T, K, R, D> = std::result::Result<((K, Window, R), T, i64), Late<K, D>>;

/// Windowed state, and what its rows wait for.
struct WindowedState<T: EventTime, G, K, R, D> {
    /// Called once a batch and once a schedule.
    state: Box<dyn Fires<K, D, R>>,
    windows: Windows,
    at: Rc<G>,
    /// Up to where all has fired.
    settled: Time,
    /// Late rows that wait for those that were sent before them, on which it depends whether they count:
    /// by the time they were sent with.
    early: ByTime<(T, Vec<(K, D)>)>,
    /// At the watermark up to which all has fired.
    held: Option<Capability<T>>,
    /// The least time of what waits outside of the intake, as for key groups that are on their way.
    arriving: Time,
    out: Vec<FiredRow<T, K, R, D>>,
}

impl<T, G, K, R, D> OperatorBody<T, K, D> for WindowedState<T, G, K, R, D>
where
    T: EventTime,
    K: Key,
    G: Fn(&D) -> Time + 'static,
    R: Clone + 'static,
    D: 'static,
{
    type Row = FiredRow<T, K, R, D>;

    const LEAVES_AT_ONCE: bool = true;

    fn apply(
        &mut self,
        right: &EmitRight<'_, T>,
        work: IntakeWork<'_, K, D>,
        output: &mut RowOutput<'_, T, Self::Row>,
    ) -> Result<()> {
        let IntakeWork::Rows(rows) = work else { unreachable!("there are no timers") };
        self.put_early_aside(right.time(), rows);
        let done = self.add(right.time(), rows);
        output.session(right).give_iterator(self.out.drain(..));
        done
    }

    fn advance(
        &mut self,
        now: StepBounds,
        intake: &mut Intake<T, K, D>,
        output: &mut RowOutput<'_, T, Self::Row>,
    ) -> bool {
        let now = StepBounds { limit: now.limit.min(self.arriving), ..now };
        let mut held = self.held.take();
        let is_left = advance_under(&mut held, now, intake, |held| {
            let advanced = self.fire(now.limit, held);
            output.session(held).give_iterator(self.out.drain(..));
            Ok(advanced?.done)
        });
        self.held = held;
        is_left
    }

    /// What a checkpoint holds fires at its time.
    fn begin(&mut self, first: Capability<T>) {
        self.held = Some(first);
    }

    fn set_arriving(&mut self, arriving: Time) {
        self.arriving = arriving;
    }

    // Unless a checkpoint had come further. What comes out of that is to be sent by the first schedule.
    fn go_to_first(&mut self) -> Result<()> {
        let (out, windows, first) = (&mut self.out, self.windows, T::minimum().time());
        while self.state.watermark() <= first {
            let advanced = self.state.advance(first, FUEL, &mut |key, window, row, diff| {
                let time = T::from_time(windows.fires_at(window).min(first)).max(T::minimum());
                out.push(Ok(((key.clone(), window, row), time, diff)));
            })?;
            if advanced.done {
                self.settled = self.settled.max(first);
                break;
            }
        }
        Ok(())
    }
}

impl<T, G, K, R, D> WindowedState<T, G, K, R, D>
where
    T: EventTime,
    K: Key,
    G: Fn(&D) -> Time,
    R: 'static,
    D: 'static,
{
    fn new(state: Box<dyn Fires<K, D, R>>, windows: Windows, at: Rc<G>) -> Self {
        let (settled, early) = (state.watermark(), ByTime::new());
        let (held, arriving, out) = (None, Time::MAX, Vec::new());
        Self { state, windows, at, settled, early, held, arriving, out }
    }

    /// Has rows wait on which those decide that were sent before them.
    fn put_early_aside(&mut self, sent: &T, rows: &mut Vec<(K, D)>) {
        // Of windows that are no sessions none do, so their rows are not looked at.
        let any_may = self.windows.counts_only_with_others(Time::MIN, Time::MAX);
        if !any_may || self.settled >= sent.time() {
            return;
        }
        let (at, windows) = (self.at.clone(), self.windows);
        let is_early = |row: &(K, D)| windows.counts_only_with_others(at(&row.1), sent.time());
        let mut early = rows.extract_if(.., |row| is_early(row)).peekable();
        if early.peek().is_some() {
            if !self.early.has(sent.time()) {
                self.early.insert(sent.time(), (sent.clone(), Vec::new()));
            }
            let (_, waiting) = self.early.get_mut(sent.time()).expect("made above");
            waiting.extend(early);
        }
    }

    /// Adds rows that were sent with `sent`; an error leaves those that were not added.
    fn add(&mut self, sent: &T, rows: &mut Vec<(K, D)>) -> Result<()> {
        let mut batch: Vec<_> = rows
            .drain(..)
            .map(|(key, row)| {
                let at = (self.at)(&row);
                (key, at, row)
            })
            .collect();
        let out = std::cell::RefCell::new(&mut self.out);
        let done = self.state.add_batch(
            sent.time(),
            &mut batch,
            &mut |late| out.borrow_mut().push(Err(late)),
            &mut |key, window, row, diff| {
                out.borrow_mut().push(Ok(((key.clone(), window, row), sent.clone(), diff)));
            },
        );
        rows.extend(batch.into_iter().map(|(key, _, row)| (key, row)));
        done
    }

    /// Fires what is due at `watermark`, some of it.
    fn fire(&mut self, watermark: Time, held: &Capability<T>) -> Result<Advanced> {
        while let Some(sent) = self.early.first().filter(|sent| *sent <= watermark) {
            // What was sent before them is there, and what was over for them has fired.
            let advanced = self.advance_to(sent, held)?;
            if !advanced.done {
                return Ok(advanced);
            }
            let Some((sent, (time, mut rows))) = self.early.pop_first() else { break };
            if let Err(error) = self.add(&time, &mut rows) {
                self.early.insert(sent, (time, rows));
                return Err(error);
            }
        }
        self.advance_to(watermark, held)
    }

    fn advance_to(&mut self, watermark: Time, held: &Capability<T>) -> Result<Advanced> {
        let (out, windows) = (&mut self.out, self.windows);
        let advanced = self.state.advance(watermark, FUEL, &mut |key, window, row, diff| {
            // What comes before the window fires is told at the watermark.
            let at = windows.fires_at(window).min(watermark);
            let time = T::from_time(at).max(held.time().clone());
            out.push(Ok(((key.clone(), window, row), time, diff)));
        })?;
        if advanced.done {
            self.settled = self.settled.max(watermark);
        }
        Ok(advanced)
    }
}
