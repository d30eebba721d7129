//! Which layouts the parts of windowed state are in. Running totals are in window segments and late
//! events on the heap, whatever the rest is in.

use alluvium_layouts::{Layout, ListsLayout, PanesLayout};
use alluvium_pagestore::{Key, State};

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
    /// Open sessions, by key.
    type Sessions: Layout<K, SessionSet<A>>;

    /// Of aligned windows.
    fn panes(&self) -> Self::Panes;
    /// Of sessions.
    fn sessions(&self) -> Self::Sessions;
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

    /// Of the events.
    fn lists(&self) -> Self::Lists;
    /// Of sessions.
    fn sessions(&self) -> Self::Sessions;
}
