//! Which layouts the parts of windowed state are in.

use alluvium_layouts::{Layout, ListsLayout, PanesLayout};
use alluvium_pagestore::{Key, State, Time};

use super::SessionSet;

/// Where [`Aggregated`](super::Aggregated) windows are kept.
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no windows of keys `{K}` and accumulators `{A}`",
    label = "`WindowLayout<{K}, {A}>` is not implemented for `{Self}`",
    note = "`WindowSegments`, `Heap`, `HybridLog` and `AnyLayout` are such layouts"
)]
pub trait WindowLayout<K: Key, A: State>: Clone + 'static {
    /// Accumulators of aligned windows.
    type Panes: PanesLayout<K, A>;
    /// Totals of sliding windows: accumulators, and in how many slices they have something.
    type Totals: PanesLayout<K, (A, i64)>;
    /// Open sessions, by key.
    type Sessions: Layout<K, SessionSet<A>>;
    /// Late events that wait.
    type Late: ListsLayout<K, (Time, A)>;

    /// Of aligned windows.
    fn panes(&self) -> Self::Panes;
    /// Of totals.
    fn totals(&self) -> Self::Totals;
    /// Of sessions.
    fn sessions(&self) -> Self::Sessions;
    /// Of late events.
    fn late(&self) -> Self::Late;
}

/// Where [`Holistic`](super::Holistic) windows are kept.
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no windows of keys `{K}` and elements `{E}`",
    label = "`HolisticLayout<{K}, {E}>` is not implemented for `{Self}`",
    note = "`AppendLog`, `Heap` and `AnyLayout` are such layouts"
)]
pub trait HolisticLayout<K: Key, E: State>: Clone + 'static {
    /// The events.
    type Lists: ListsLayout<K, E>;
    /// Open sessions, by key.
    type Sessions: Layout<K, SessionSet<u64>>;
    /// Late events that wait.
    type Late: ListsLayout<K, (Time, E)>;

    /// Of the events.
    fn lists(&self) -> Self::Lists;
    /// Of sessions.
    fn sessions(&self) -> Self::Sessions;
    /// Of late events.
    fn late(&self) -> Self::Late;
}
