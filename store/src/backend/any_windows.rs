//! Panes and lists in a layout chosen at run time.

use std::fmt;
use std::ops::Range;

use alluvium_layouts::{
    AppendLog, BatchError, ByHash, Cursor, Elements, HasUpkeep, Heap, HybridLog, Lists,
    ListsLayout, Merge, PaneRun, Panes, PanesLayout, StateContext, Upkeep, WindowSegments,
};
use alluvium_pagestore::{Error, Key, Lookup, Rejected, Result, State, Time};

use crate::api::windows::{HolisticLayout, WindowLayout};
use crate::backend::any_layout::AnyLayout;

type PanesIn<L, K, A> = <L as PanesLayout<K, A>>::Panes;
type ListsIn<L, K, E> = <L as ListsLayout<K, E>>::Lists;

/// Open panes of an [`AnyLayout`].
// There is one per state; a box would cost a load per access.
#[allow(clippy::large_enum_variant)]
pub enum AnyPanes<K: Key, A: State> {
    /// On the heap.
    Heap(PanesIn<Heap, K, A>),
    /// In a hybrid log.
    HybridLog(Box<PanesIn<HybridLog, K, A>>),
    /// In window segments.
    WindowSegments(PanesIn<WindowSegments, K, A>),
}

/// Open lists of an [`AnyLayout`].
#[allow(clippy::large_enum_variant)]
pub enum AnyLists<K: Key, E: State> {
    /// On the heap.
    Heap(ListsIn<Heap, K, E>),
    /// In an append-and-merge log.
    AppendLog(ListsIn<AppendLog, K, E>),
}

impl<K: Key, A: State> fmt::Debug for AnyPanes<K, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AnyPanes::Heap(_) => "AnyPanes::Heap",
            AnyPanes::HybridLog(_) => "AnyPanes::HybridLog",
            AnyPanes::WindowSegments(_) => "AnyPanes::WindowSegments",
        })
    }
}

impl<K: Key, E: State> fmt::Debug for AnyLists<K, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AnyLists::Heap(_) => "AnyLists::Heap",
            AnyLists::AppendLog(_) => "AnyLists::AppendLog",
        })
    }
}

impl<K: Key, A: State> PanesLayout<K, A> for AnyLayout {
    type Panes = AnyPanes<K, A>;

    fn name(&self) -> &'static str {
        match self {
            AnyLayout::Heap(layout) => PanesLayout::<K, A>::name(layout),
            AnyLayout::HybridLog(layout) => PanesLayout::<K, A>::name(layout),
            AnyLayout::WindowSegments(layout) => PanesLayout::<K, A>::name(layout),
            AnyLayout::Auto | AnyLayout::AppendLog(_) => {
                PanesLayout::<K, A>::name(&WindowSegments::new())
            }
        }
    }

    fn memory_limit(&self) -> Option<u64> {
        match self {
            AnyLayout::Heap(layout) => PanesLayout::<K, A>::memory_limit(layout),
            AnyLayout::HybridLog(layout) => PanesLayout::<K, A>::memory_limit(layout),
            AnyLayout::WindowSegments(layout) => PanesLayout::<K, A>::memory_limit(layout),
            AnyLayout::Auto | AnyLayout::AppendLog(_) => None,
        }
    }

    fn open_panes(&self, context: StateContext, merge: Merge<A>) -> Result<AnyPanes<K, A>> {
        Ok(match self {
            AnyLayout::Heap(layout) => AnyPanes::Heap(layout.open_panes(context, merge)?),
            AnyLayout::HybridLog(layout) => {
                AnyPanes::HybridLog(Box::new(layout.open_panes(context, merge)?))
            }
            AnyLayout::WindowSegments(layout) => {
                AnyPanes::WindowSegments(layout.open_panes(context, merge)?)
            }
            AnyLayout::Auto | AnyLayout::AppendLog(_) => {
                AnyPanes::WindowSegments(WindowSegments::new().open_panes(context, merge)?)
            }
        })
    }
}

impl<K: Key, E: State> ListsLayout<K, E> for AnyLayout {
    type Lists = AnyLists<K, E>;

    fn name(&self) -> &'static str {
        match self {
            AnyLayout::Heap(layout) => ListsLayout::<K, E>::name(layout),
            AnyLayout::AppendLog(layout) => ListsLayout::<K, E>::name(layout),
            _ => ListsLayout::<K, E>::name(&AppendLog::new()),
        }
    }

    fn memory_limit(&self) -> Option<u64> {
        match self {
            AnyLayout::Heap(layout) => ListsLayout::<K, E>::memory_limit(layout),
            AnyLayout::AppendLog(layout) => ListsLayout::<K, E>::memory_limit(layout),
            _ => None,
        }
    }

    fn open_lists(&self, context: StateContext) -> Result<AnyLists<K, E>> {
        Ok(match self {
            AnyLayout::Heap(layout) => AnyLists::Heap(layout.open_lists(context)?),
            AnyLayout::AppendLog(layout) => AnyLists::AppendLog(layout.open_lists(context)?),
            _ => AnyLists::AppendLog(AppendLog::new().open_lists(context)?),
        })
    }
}

macro_rules! panes {
    ($self:ident, $panes:ident => $call:expr) => {
        match $self {
            AnyPanes::Heap($panes) => $call,
            AnyPanes::HybridLog($panes) => $call,
            AnyPanes::WindowSegments($panes) => $call,
        }
    };
}

impl<K: Key, A: State> Panes<K, A> for AnyPanes<K, A> {
    #[inline]
    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        slice: Time,
        key: &Q,
        init: impl FnOnce() -> A,
        change: impl FnOnce(&mut A) -> R,
    ) -> Result<R> {
        panes!(self, panes => panes.update(slice, key, init, change))
    }

    #[inline]
    fn update_batch<T, Q: Lookup<K> + ?Sized>(
        &mut self,
        batch: &[T],
        place: impl Fn(&T) -> (Time, &Q),
        init: impl FnMut(&T) -> A,
        change: impl FnMut(&T, &mut A),
    ) -> std::result::Result<(), BatchError> {
        panes!(self, panes => panes.update_batch(batch, place, init, change))
    }

    #[inline]
    fn update_run<'a, B>(
        &mut self,
        slice: Time,
        run: &mut PaneRun<'a, K, B>,
        init: impl Fn() -> A,
        change: impl Fn(&mut A, &B),
    ) -> std::result::Result<(), (Error, &'a K, &'a B)> {
        panes!(self, panes => panes.update_run(slice, run, init, change))
    }

    fn expect(&mut self, expected: u64) {
        panes!(self, panes => panes.expect(expected));
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<Option<A>> {
        panes!(self, panes => panes.get(slice, key))
    }

    fn remove<Q: Lookup<K> + ?Sized>(&mut self, slice: Time, key: &Q) -> Result<()> {
        panes!(self, panes => panes.remove(slice, key))
    }

    fn next_slice(&self, from: Time) -> Option<Time> {
        panes!(self, panes => panes.next_slice(from))
    }

    fn fold(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, A) -> Result<()>,
    ) -> Result<()> {
        panes!(self, panes => panes.fold(slices, cursor, fuel, visit))
    }

    #[inline]
    fn visit(
        &mut self,
        slices: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: impl FnMut(PaneRun<'_, K, A>),
    ) -> Result<()> {
        panes!(self, panes => panes.visit(slices, cursor, fuel, visit))
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, A, Time>> {
        panes!(self, panes => panes.by_hash())
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        panes!(self, panes => panes.purge(before, fuel))
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        panes!(self, panes => panes.prefetch(until))
    }

    fn len(&self) -> u64 {
        panes!(self, panes => panes.len())
    }
}

impl<K: Key, A: State> HasUpkeep for AnyPanes<K, A> {
    fn upkeep(&self) -> &dyn Upkeep {
        panes!(self, panes => panes)
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        panes!(self, panes => panes)
    }
}

macro_rules! lists {
    ($self:ident, $lists:ident => $call:expr) => {
        match $self {
            AnyLists::Heap($lists) => $call,
            AnyLists::AppendLog($lists) => $call,
        }
    };
}

impl<K: Key, E: State> Lists<K, E> for AnyLists<K, E> {
    fn fold_at_once(&mut self, span: i128) {
        lists!(self, lists => lists.fold_at_once(span))
    }

    #[inline]
    fn append<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        element: E,
    ) -> std::result::Result<(), Rejected<E>> {
        lists!(self, lists => lists.append(bucket, key, element))
    }

    #[inline]
    fn append_batch(&mut self, batch: &mut Vec<(K, Time, E)>) -> Result<()> {
        lists!(self, lists => lists.append_batch(batch))
    }

    fn stream<Q: Lookup<K> + ?Sized>(
        &mut self,
        bucket: Time,
        key: &Q,
        visit: &mut dyn FnMut(&mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()> {
        lists!(self, lists => lists.stream(bucket, key, visit))
    }

    fn clear_key<Q: Lookup<K> + ?Sized>(&mut self, bucket: Time, key: &Q) -> Result<()> {
        lists!(self, lists => lists.clear_key(bucket, key))
    }

    fn relocate<Q: Lookup<K> + ?Sized>(&mut self, from: Time, to: Time, key: &Q) -> Result<()> {
        lists!(self, lists => lists.relocate(from, to, key))
    }

    fn next_bucket(&self, from: Time) -> Option<Time> {
        lists!(self, lists => lists.next_bucket(from))
    }

    fn fold(
        &mut self,
        buckets: Range<Time>,
        cursor: &mut Cursor,
        fuel: usize,
        visit: &mut dyn FnMut(&K, &mut dyn Elements<E>) -> Result<()>,
    ) -> Result<()> {
        lists!(self, lists => lists.fold(buckets, cursor, fuel, visit))
    }

    fn by_hash(&mut self) -> Option<&mut dyn ByHash<K, E, Time>> {
        lists!(self, lists => lists.by_hash())
    }

    fn purge(&mut self, before: Time, fuel: usize) -> Result<bool> {
        lists!(self, lists => lists.purge(before, fuel))
    }

    fn prefetch(&mut self, until: Time) -> Result<()> {
        lists!(self, lists => lists.prefetch(until))
    }

    fn len(&self) -> u64 {
        lists!(self, lists => lists.len())
    }
}

impl<K: Key, E: State> HasUpkeep for AnyLists<K, E> {
    fn upkeep(&self) -> &dyn Upkeep {
        lists!(self, lists => lists)
    }

    fn upkeep_mut(&mut self) -> &mut dyn Upkeep {
        lists!(self, lists => lists)
    }
}

/// The layout of sets of sessions in a layout that keeps no maps. Many open sessions take storage, not index entries.
fn a_log<L>(_: &L) -> HybridLog {
    HybridLog::new().cold_runs_automatic()
}

/// Each layout with the type of the one that its sessions are in, and how that is made.
macro_rules! window_layouts {
    ($($layout:ident keeps sessions in $sessions:ident by $make:expr;)+) => {$(
        impl<K: Key, A: State> WindowLayout<K, A> for $layout {
            type Panes = $layout;
            type Sessions = $sessions;

            fn panes(&self) -> $layout {
                self.clone()
            }

            fn sessions(&self) -> $sessions {
                $make(self)
            }
        }
    )+};
}

window_layouts! {
    Heap keeps sessions in Heap by Heap::clone;
    HybridLog keeps sessions in HybridLog by HybridLog::clone;
    WindowSegments keeps sessions in HybridLog by a_log;
    AnyLayout keeps sessions in AnyLayout by AnyLayout::for_maps;
}

/// The same of windows that keep their events.
macro_rules! holistic_layouts {
    ($($layout:ident keeps sessions in $sessions:ident by $make:expr;)+) => {$(
        impl<K: Key, E: State> HolisticLayout<K, E> for $layout {
            type Lists = $layout;
            type Sessions = $sessions;

            fn lists(&self) -> $layout {
                self.clone()
            }

            fn sessions(&self) -> $sessions {
                $make(self)
            }
        }
    )+};
}

holistic_layouts! {
    Heap keeps sessions in Heap by Heap::clone;
    AppendLog keeps sessions in HybridLog by a_log;
    AnyLayout keeps sessions in AnyLayout by AnyLayout::for_maps;
}

impl AnyLayout {
    /// What keeps the maps that belong to windows in this layout.
    fn for_maps(&self) -> AnyLayout {
        match self {
            AnyLayout::Heap(_) | AnyLayout::HybridLog(_) => self.clone(),
            AnyLayout::AppendLog(_) | AnyLayout::WindowSegments(_) | AnyLayout::Auto => {
                AnyLayout::HybridLog(a_log(self))
            }
        }
    }
}
