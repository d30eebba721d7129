//! Windows that fold their events as they come.

use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use alluvium_layouts::{Merge, PanesLayout, WindowSegments};
use alluvium_pagestore::{Key, Result, Time};

use super::aligned::Aligned;
use super::contents::{Out, SliceContents};
use super::folded::{FoldedSlices, RunningFold};
use super::late::LateEvents;
use super::session_contents::FoldedSessions;
use super::sessions::Sessions;
use super::shaped::Shaped;
use super::stacks::Stacks;
use super::totals::{Total, Totals};
use super::{Advanced, Emit, Grid, Late, SessionSet, WindowKind, WindowLayout, Windows};
use crate::api::aggregate::Aggregate;
use crate::backend::any_layout::AnyLayout;
use crate::durability::moving::Mover;
use crate::store::kept_back::KeptByWindows;
use crate::store::{StateBuilder, Store};

type PanesOf<K, A, L> = <<L as WindowLayout<K, A>>::Panes as PanesLayout<K, A>>::Panes;
type TotalsOf<K, A> = <WindowSegments as PanesLayout<K, Total<A>>>::Panes;
type RunningOf<K, A> = RunningFold<K, A, TotalsOf<K, A>>;
type ShapedPanes<K, E, A, L> = Shaped<
    K,
    FoldedSlices<
        K,
        E,
        A,
        PanesOf<K, <A as Aggregate<E>>::Acc, L>,
        TotalsOf<K, <A as Aggregate<E>>::Acc>,
    >,
    FoldedSessions<E, A>,
>;

/// Windows of fewer slices are folded anew each time.
const TOTALS_SLICES_MIN: i128 = 3;
/// The same where sums are kept in stacks, which takes some ten look-ups per slice and key, and as
/// much memory again: with accumulators of a word it was even at 16 to 30 slices.
const STACKS_SLICES_MIN: i128 = 24;

/// Type parameter of a [`StateBuilder`](crate::states::StateBuilder) for [`Aggregated`] windows.
#[derive(Debug)]
pub struct AggregatedOf<K, E, A>(PhantomData<(K, E, A)>);

/// An accumulator per window and key, and its result when the window closes. Open it with
/// [`Store::aggregated`](crate::Store::aggregated).
///
/// An event is written once, whatever the length of windows and how many of them it is in. It
/// counts for the windows that are open at the time `sent` it is sent with: those with `sent < end +
/// lateness`, of sessions `sent <= end + lateness`.
///
/// ```
/// use std::time::Duration;
///
/// use alluvium::{Counting, MIB, Store, Time, Windows};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// let second = Duration::from_secs(1);
/// let mut visits = store
///     .aggregated::<u64, (), Counting>("visits")
///     .open(Windows::tumbling(second), Counting)?;
/// let mut batch = vec![(7, Time(100), ()), (7, Time(200), ()), (8, Time(300), ())];
/// visits.add_batch(Time(0), &mut batch, &mut |late| panic!("{late:?}"), &mut |_, _, _, _| ())?;
/// let mut rows = Vec::new();
/// visits.advance_all(Time(1_000_000_000), &mut |key, window, count, diff| {
///     rows.push((*key, window.end, count, diff));
/// })?;
/// rows.sort();
/// assert_eq!(rows, [(7, Time(1_000_000_000), 2, 1), (8, Time(1_000_000_000), 1, 1)]);
/// # Ok::<(), alluvium::Error>(())
/// ```
pub struct Aggregated<K, E, A, L = AnyLayout>
where
    K: Key + Ord,
    E: 'static,
    A: Aggregate<E>,
    L: WindowLayout<K, A::Acc>,
{
    name: String,
    shape: ShapedPanes<K, E, A, L>,
    kept_back: KeptByWindows,
}

impl<K, E, A, L> fmt::Debug for Aggregated<K, E, A, L>
where
    K: Key + Ord,
    E: 'static,
    A: Aggregate<E>,
    L: WindowLayout<K, A::Acc>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aggregated({})", self.name)
    }
}

impl<K, E, A, L> StateBuilder<'_, AggregatedOf<K, E, A>, L>
where
    K: Key + Ord,
    E: 'static,
    A: Aggregate<E>,
    L: WindowLayout<K, A::Acc>,
{
    /// Opens the windows and restores them from the last checkpoint. They occupy the states `name`,
    /// `name/late` and `name/progress`; for sessions `name/timers`; for early results `name/told`.
    /// Sliding windows of three slices or more also take `name/totals` if the aggregate can
    /// subtract. Otherwise those of 24 slices or more take `name/stacks`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for impossible windows.
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) for a state of [other
    /// windows](Windows#opened-again). Those of [`Store::map`](crate::Store::map).
    pub fn open(self, windows: Windows, aggregate: A) -> Result<Aggregated<K, E, A, L>> {
        let windows = windows.checked()?;
        let name = self.name().to_owned();
        let (store, layout, mover) = (self.store(), self.chosen_layout(), self.mover());
        let to_open = store.0.keep_back_to_open(&name)?;
        // First, so that a move between two watermarks fails before anything else is installed.
        let progress = store.open_progress(&format!("{name}/progress"), &windows, mover)?;
        let progress = progress.keeping_to(self.own_keys());
        let late = LateEvents::open(store, &name, mover)?;
        let shape = match windows.shape {
            WindowKind::Aligned { length, slide, offset } => {
                let aggregate = Rc::new(aggregate);
                let merging = aggregate.clone();
                let merge: Merge<A::Acc> = Rc::new(move |acc, later| merging.merge(acc, later));
                let panes = store.open_panes(&name, &layout.panes(), merge.clone(), mover)?;
                let told = match windows.emit {
                    Emit::Early(_) => {
                        let name = format!("{name}/told");
                        Some(store.open_panes(&name, &layout.panes(), merge, mover)?)
                    }
                    Emit::OnClose | Emit::OnWatermark => None,
                };
                let grid = Grid::new(length, slide, offset);
                let running = match windows.emit {
                    Emit::Early(_) => RunningFold::Nothing,
                    Emit::OnClose | Emit::OnWatermark => {
                        running((store, mover), &name, &aggregate, grid.slices())?
                    }
                };
                let contents = FoldedSlices {
                    aggregate,
                    panes,
                    told,
                    running,
                    changes: 0,
                    fold: Default::default(),
                    telling: Default::default(),
                    element: PhantomData,
                };
                Shaped::Aligned(Box::new(Aligned::new(grid, &windows, contents, late, progress)))
            }
            WindowKind::Session { gap } => {
                let contents = FoldedSessions { aggregate, element: PhantomData };
                let sets = store.map::<K, SessionSet<A::Acc>>(&name).layout(layout.sessions());
                let sets = sets.maybe_moved_by(mover).open()?;
                let timers = store.open_timers(&format!("{name}/timers"), mover)?;
                let sets = Box::new(sets);
                let sessions = Sessions::new(gap, &windows, contents, sets, timers, late, progress);
                Shaped::Sessions(Box::new(sessions))
            }
        };
        let sets = windows.are_sessions().then_some(&*name);
        let kept_back = store.0.keep_back(&name, sets, to_open)?;
        Ok(Aggregated { name, shape, kept_back })
    }
}

/// What is kept of windows of so many slices, from one to the next.
fn running<K: Key, E: 'static, A: Aggregate<E>>(
    (store, mover): (&Store, Option<&Mover>),
    name: &str,
    aggregate: &Rc<A>,
    slices: i128,
) -> Result<RunningOf<K, A::Acc>> {
    let merging = aggregate.clone();
    let merge: Merge<Total<A::Acc>> = Rc::new(move |total, later| {
        merging.merge(&mut total.0, &later.0);
        total.1 += later.1;
    });
    let open = |what| {
        let name = format!("{name}/{what}");
        let layout = WindowSegments::new();
        let layout = if store.0.has_checkpoint() { layout.made_again() } else { layout };
        store.open_derived_panes(&name, &layout, merge, mover)
    };
    match aggregate.subtract(&mut aggregate.init(), &aggregate.init()) {
        true if slices >= TOTALS_SLICES_MIN => {
            Ok(RunningFold::Totals(Totals::new(open("totals")?, slices)))
        }
        false if slices >= STACKS_SLICES_MIN => {
            Ok(RunningFold::Stacks(Stacks::new(open("stacks")?), slices))
        }
        _ => Ok(RunningFold::Nothing),
    }
}

impl<K, E, A, L> Aggregated<K, E, A, L>
where
    K: Key + Ord,
    E: 'static,
    A: Aggregate<E>,
    L: WindowLayout<K, A::Acc>,
{
    /// Returns the state's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the watermark: no earlier event is still to come.
    pub fn watermark(&self) -> Time {
        self.shape.progress().watermark.get()
    }

    /// Adds events, each with its key and time, that were sent with the timestamp `sent`. If `sent`
    /// is before the watermark, the watermark counts. Events with an earlier time are late.
    ///
    /// Folds in the events, but passes each event that is too late for all of its windows to
    /// `late`, once. If a fired window changes, `out` gets the old and the new result. Cost: a
    /// look-up and an update per event.
    ///
    /// # Errors
    /// The batch keeps what was not added; call again with it before anything else.
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) while the key group of an event moves,
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) if another store owns it; then nothing
    /// was added.
    pub fn add_batch(
        &mut self,
        sent: Time,
        batch: &mut Vec<(K, Time, E)>,
        late: &mut dyn FnMut(Late<K, E>),
        out: Out<'_, K, A::Out>,
    ) -> Result<()> {
        self.kept_back.check()?;
        let (sent, in_time) = self.shape.look_at(&self.name, sent, batch, late)?;
        let was_busy = self.shape.progress().busy.get();
        let added = match &mut self.shape {
            Shaped::Aligned(windows) if in_time => windows.contents.add_batch(&windows.grid, batch),
            shape => shape.add_others((sent, in_time), batch, late, &mut *out),
        };
        if !was_busy && self.shape.progress().busy.get() {
            self.shape.catch_up(&self.kept_back, out);
        }
        added
    }

    /// Advances the watermark: no event before it is still to come. An earlier watermark than the
    /// last changes nothing. Fires windows in the order of their ends, each key once, and frees
    /// what no open window needs. Stops after about `fuel` keys and returns that it is not done;
    /// the next call continues. [`Time::MAX`] fires everything.
    ///
    /// From then on, events that are too late for all of their windows are dropped, and closed
    /// windows cannot be read.
    ///
    /// # Errors
    /// Results that came out do not come out again; call again.
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) for a later watermark while a key group moves.
    pub fn advance(
        &mut self,
        watermark: Time,
        fuel: usize,
        out: Out<'_, K, A::Out>,
    ) -> Result<Advanced> {
        let Self { shape, kept_back, .. } = self;
        kept_back.fire(&mut || shape.advance(watermark, fuel, out))
    }

    /// Calls [`advance`](Self::advance) until it is done, however long that takes.
    ///
    /// # Errors
    /// Those of `advance`.
    pub fn advance_all(&mut self, watermark: Time, out: Out<'_, K, A::Out>) -> Result<()> {
        while !self.advance(watermark, super::FUEL_AT_ONCE, out)?.done {}
        Ok(())
    }

    /// Allows checkpoints again after a closure has panicked. Values are as it left them.
    pub fn clear_poison(&mut self) {
        self.shape.clear_poison();
    }

    /// Of sessions: keeps no more timers in memory than that, and those of the first one's time: for tests.
    #[doc(hidden)]
    pub fn keep_timers(&mut self, most: usize) {
        self.shape.keep_timers(most);
    }
}
