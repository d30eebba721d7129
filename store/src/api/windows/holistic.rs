//! Windows that keep their events, for functions that need all of them at once.

use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use alluvium_layouts::{Elements, Lists, ListsLayout, WindowSegments};
use alluvium_pagestore::{Key, Result, State, Time};

use super::aligned::Aligned;
use super::contents::{Out, SliceContents};
use super::kept::{KeptSlices, SliceCounts};
use super::late::LateEvents;
use super::session_contents::{KeptSessions, SessionBuckets};
use super::sessions::Sessions;
use super::shaped::Shaped;
use super::{Advanced, Emit, Grid, HolisticLayout, Late, SessionSet, Window, WindowKind, Windows};
use crate::backend::any_layout::AnyLayout;
use crate::store::StateBuilder;
use crate::store::kept_back::KeptByWindows;

/// A function of all events of a key in a window.
///
/// [`process`] makes one from a closure `FnMut(&K, Window, &mut dyn Elements<E>, &mut dyn FnMut(O))
/// -> Result<()>`. Results must depend on the arguments alone: if a late event is still allowed,
/// the store calls the function again with the earlier events, to retract its rows. If a read fails, it
/// calls the function again from the beginning, and drops as many rows as came out before.
///
/// ```
/// use alluvium::{Elements, Process, Result, Window};
///
/// /// Emits the price range of a window.
/// struct Range;
///
/// impl Process<u64, i64> for Range {
///     type Row = (i64, i64);
///
///     fn process(
///         &mut self,
///         _: &u64,
///         _: Window,
///         prices: &mut dyn Elements<i64>,
///         emit: &mut dyn FnMut((i64, i64)),
///     ) -> Result<()> {
///         let (mut low, mut high) = (i64::MAX, i64::MIN);
///         while let Some(price) = prices.next()? {
///             (low, high) = (low.min(*price), high.max(*price));
///         }
///         emit((low, high));
///         Ok(())
///     }
/// }
/// ```
pub trait Process<K, E>: 'static {
    /// Result rows.
    type Row: 'static;

    /// Reads the window's events, in order, and gives rows to `emit`.
    ///
    /// # Errors
    /// Those of `elements`.
    fn process(
        &mut self,
        key: &K,
        window: Window,
        elements: &mut dyn Elements<E>,
        emit: &mut dyn FnMut(Self::Row),
    ) -> Result<()>;
}

/// A [`Process`] that calls a closure.
pub struct Processing<F, O>(F, PhantomData<O>);

impl<F, O> fmt::Debug for Processing<F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Processing")
    }
}

/// A [`Process`] from a closure.
pub fn process<K, E, O, F>(closure: F) -> Processing<F, O>
where
    F: FnMut(&K, Window, &mut dyn Elements<E>, &mut dyn FnMut(O)) -> Result<()> + 'static,
{
    Processing(closure, PhantomData)
}

impl<K, E, O, F> Process<K, E> for Processing<F, O>
where
    O: 'static,
    F: FnMut(&K, Window, &mut dyn Elements<E>, &mut dyn FnMut(O)) -> Result<()> + 'static,
{
    type Row = O;

    fn process(
        &mut self,
        key: &K,
        window: Window,
        elements: &mut dyn Elements<E>,
        emit: &mut dyn FnMut(O),
    ) -> Result<()> {
        (self.0)(key, window, elements, emit)
    }
}

type HolisticLists<K, E, L> = <<L as HolisticLayout<K, E>>::Lists as ListsLayout<K, E>>::Lists;
type ShapedLists<K, E, F, L> = Shaped<
    K,
    KeptSlices<K, E, F, HolisticLists<K, E, L>>,
    KeptSessions<K, E, F, HolisticLists<K, E, L>>,
>;

/// Type parameter of a [`StateBuilder`](crate::states::StateBuilder) for [`Holistic`] windows.
#[derive(Debug)]
pub struct HolisticOf<K, E>(PhantomData<(K, E)>);

/// The events of windows, by key, and what a function makes of them when the window closes. Open
/// it with [`Store::holistic`](crate::Store::holistic).
///
/// An event is written once, whatever the length of windows and how many of them it is in. The
/// function reads the events of tumbling windows in the order in which they came in; those of sliding
/// windows by slices of event time (as long as the greatest common divisor of length and slide), in
/// that order in each; those of sessions that were joined one session after the other.
///
/// Events come in as they are added, but for late ones that have to wait until windows have fired that
/// are over for them: events that are added meanwhile come in before them. So the order of late events
/// among others depends on how far the watermark was advanced; among late events that were sent with one
/// time it is that in which they were added. A function that must not depend on it sorts what it
/// reads.
///
/// ```
/// use std::time::Duration;
///
/// use alluvium::{Elements, MIB, Store, Time, Window, Windows, process};
///
/// let store = Store::in_memory().memory(16 * MIB).open()?;
/// // The median price of each auction and second.
/// let median = |_: &u64, _: Window, prices: &mut dyn Elements<i64>, emit: &mut dyn FnMut(i64)| {
///     let mut all = Vec::new();
///     while let Some(price) = prices.next()? {
///         all.push(*price);
///     }
///     all.sort();
///     emit(all[all.len() / 2]);
///     Ok(())
/// };
/// let windows = Windows::tumbling(Duration::from_secs(1));
/// let mut prices = store.holistic::<u64, i64>("prices").open(windows, process(median))?;
/// let mut batch = vec![(7, Time(1), 30), (7, Time(2), 12), (7, Time(3), 45)];
/// prices.add_batch(Time(0), &mut batch, &mut |late| panic!("{late:?}"), &mut |_, _, _, _| ())?;
/// let mut rows = Vec::new();
/// prices.advance_all(Time::MAX, &mut |key, _, median, _| rows.push((*key, median)))?;
/// assert_eq!(rows, [(7, 30)]);
/// # Ok::<(), alluvium::Error>(())
/// ```
pub struct Holistic<K, E, F, L = AnyLayout>
where
    K: Key + Ord,
    E: State,
    F: Process<K, E>,
    L: HolisticLayout<K, E>,
{
    name: String,
    shape: ShapedLists<K, E, F, L>,
    kept_back: KeptByWindows,
}

impl<K, E, F, L> fmt::Debug for Holistic<K, E, F, L>
where
    K: Key + Ord,
    E: State,
    F: Process<K, E>,
    L: HolisticLayout<K, E>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holistic({})", self.name)
    }
}

impl<K, E, L> StateBuilder<'_, HolisticOf<K, E>, L>
where
    K: Key + Ord,
    E: State,
    L: HolisticLayout<K, E>,
{
    /// Opens the windows, restoring them from the last checkpoint. They take the states `name`,
    /// `name/late`, `name/progress`, for sessions `name/sessions` and `name/timers`, and for early
    /// results of other windows `name/told`.
    ///
    /// An early result costs a read of all events that its window has of the key, in memory at once:
    /// once to give it, and, when it has changed, once more to take it back.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for windows that cannot be,
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) for a state of [other
    /// windows](Windows#opened-again), and those of [`Store::map`](crate::Store::map).
    pub fn open<F: Process<K, E>>(
        self,
        windows: Windows,
        process: F,
    ) -> Result<Holistic<K, E, F, L>> {
        let windows = windows.checked()?;
        let name = self.name().to_owned();
        let (store, layout, mover) = (self.store(), self.chosen_layout(), self.mover());
        let to_open = store.0.keep_back_to_open(&name)?;
        // First, so that a move between two watermarks fails before anything else is installed.
        let progress = store.open_progress(&format!("{name}/progress"), &windows, mover)?;
        let progress = progress.keeping_to(self.own_keys());
        let late = LateEvents::open(store, &name, mover)?;
        let lists = store.open_lists::<K, E, _>(&name, &layout.lists(), mover)?;
        let shape = match windows.shape {
            WindowKind::Aligned { length, slide, offset } => {
                let told = match windows.emit {
                    Emit::Early(_) => Some(store.open_panes(
                        &format!("{name}/told"),
                        &WindowSegments::new(),
                        Rc::new(SliceCounts::clone_from),
                        mover,
                    )?),
                    Emit::OnClose | Emit::OnWatermark => None,
                };
                let grid = Grid::new(length, slide, offset);
                lists.enter()?.fold_at_once(grid.length());
                let contents = KeptSlices {
                    process,
                    lists,
                    told,
                    fold: Default::default(),
                    telling: Default::default(),
                    times: Vec::new(),
                    last: None,
                    come_out: Default::default(),
                };
                Shaped::Aligned(Box::new(Aligned::new(grid, &windows, contents, late, progress)))
            }
            WindowKind::Session { gap } => {
                let contents = KeptSessions { process, places: SessionBuckets { gap }, lists };
                let sets = store.map::<K, SessionSet<u64>>(&format!("{name}/sessions"));
                let sets = sets.layout(layout.sessions()).maybe_moved_by(mover).open()?;
                let timers = store.open_timers(&format!("{name}/timers"), mover)?;
                let sets = Box::new(sets);
                let sessions = Sessions::new(gap, &windows, contents, sets, timers, late, progress);
                Shaped::Sessions(Box::new(sessions))
            }
        };
        let sets = windows.are_sessions().then(|| format!("{name}/sessions"));
        let kept_back = store.0.keep_back(&name, sets.as_deref(), to_open)?;
        Ok(Holistic { name, shape, kept_back })
    }
}

impl<K, E, F, L> Holistic<K, E, F, L>
where
    K: Key + Ord,
    E: State,
    F: Process<K, E>,
    L: HolisticLayout<K, E>,
{
    /// Returns the state's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the watermark: no earlier event is still to come.
    pub fn watermark(&self) -> Time {
        self.shape.progress().watermark.get()
    }

    /// Adds events as [`Aggregated::add_batch`](super::Aggregated::add_batch) does. Cost: an append
    /// per event.
    ///
    /// # Errors
    /// The batch keeps what was not added; call again with it before anything else.
    pub fn add_batch(
        &mut self,
        sent: Time,
        batch: &mut Vec<(K, Time, E)>,
        late: &mut dyn FnMut(Late<K, E>),
        out: Out<'_, K, F::Row>,
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

    /// Advances the watermark as [`Aggregated::advance`](super::Aggregated::advance) does, and
    /// calls the function for each key of the windows that fire. For aligned windows `fuel` counts
    /// events. It does not interrupt a key, however many events that has.
    ///
    /// # Errors
    /// Those of storage while a window is read. Rows that came out do not come out again, also those
    /// of a key whose events were not all read: call again.
    pub fn advance(
        &mut self,
        watermark: Time,
        fuel: usize,
        out: Out<'_, K, F::Row>,
    ) -> Result<Advanced> {
        let Self { shape, kept_back, .. } = self;
        kept_back.fire(&mut || shape.advance(watermark, fuel, out))
    }

    /// Calls [`advance`](Self::advance) until it is done, however long that takes.
    ///
    /// # Errors
    /// Those of `advance`.
    pub fn advance_all(&mut self, watermark: Time, out: Out<'_, K, F::Row>) -> Result<()> {
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
