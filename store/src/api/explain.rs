//! Which layouts fit a state that is to be opened, and why.
//!
//! What a layout is for is written here; whether it can work in the memory that is free, and with
//! what a checkpoint has, is tried: each that fits is opened empty, on the store's budget, and dropped.
//! So what is said of a layout is what opening says. Parts of windows that are on the heap whatever
//! the layout (progress, late events, timers) and sums that can be made again are not tried.

use std::fmt;

use alluvium_layouts::{Layout, ListsLayout, Merge, PanesLayout, StateContext};
use alluvium_pagestore::{Key, Result, State, description_of};

use crate::api::aggregate::Aggregate;
use crate::api::timers::PendingTimer;
use crate::api::windows::{
    AggregatedOf, HolisticLayout, HolisticOf, SessionSet, WindowLayout, Windows,
};
use crate::backend::any_layout::AnyLayout;
use crate::store::{ListOf, MapOf, STORED_TIMERS, StateBuilder, StoredTimersOf};

/// Which layouts fit a state, and why: the result of `explain` of a [`StateBuilder`]. Prints as a
/// short table.
///
/// ```
/// use alluvium::{MIB, Store};
///
/// let store = Store::in_memory().memory(64 * MIB).open()?;
/// println!("{}", store.list::<u64, String>("pages").explain());
/// # Ok::<(), alluvium::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The state's name.
    pub state: String,
    /// Its kind, such as `a map`.
    pub what: &'static str,
    /// Layout that [`AnyLayout::Auto`] chooses.
    pub auto: &'static str,
    /// Layout that opening would choose now.
    pub chosen: &'static str,
    /// Each layout, and whether it fits.
    pub layouts: Vec<Fit>,
}

/// Whether a layout fits a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The layout's name, as for [`AnyLayout::named`].
    pub layout: &'static str,
    /// True if it can be opened now and keeps the state itself. If false, opening fails, or keeps
    /// the state in another layout.
    pub fits: bool,
    /// Reason in words.
    pub reason: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, what, auto, chosen, layouts } = self;
        writeln!(f, "{state}: {what}, kept in {chosen}; auto takes {auto}")?;
        writeln!(f, "{:<16} {:<5} because", "layout", "fits")?;
        for Fit { layout, fits, reason } in layouts {
            writeln!(f, "{layout:<16} {:<5} {reason}", if *fits { "yes" } else { "no" })?;
        }
        Ok(())
    }
}

/// What a layout is to a state by what it keeps: good for this, or not, since that.
enum LayoutNature {
    Fits(&'static str),
    Not(&'static str),
}

use LayoutNature::{Fits, Not};

/// The layouts there are, each with what it is to a kind of state.
type Natures = [(&'static str, LayoutNature); 4];

const MAP: Natures = [
    ("heap", Fits("the shortest way to a value, while all of them fit into memory")),
    ("hybrid-log", Fits("changed in place; the oldest pages go to storage as memory fills")),
    ("append-log", Not("it keeps lists: a map is kept in a hybrid log instead")),
    (
        "window-segments",
        Not("it keeps sums by slice of time: a map is kept in a hybrid log instead"),
    ),
];

const TIMERS: Natures = [
    ("heap", Fits("the shortest way to a timer, while all of them fit into memory")),
    (
        "hybrid-log",
        Fits("as many as storage has room for; the oldest pages go there as memory fills"),
    ),
    ("append-log", Not("it keeps lists: timers are kept in a hybrid log instead")),
    (
        "window-segments",
        Not("it keeps sums by slice of time: timers are kept in a hybrid log instead"),
    ),
];

const LIST: Natures = [
    ("heap", Fits("the shortest way to an element, while all of them fit into memory")),
    ("hybrid-log", Not("an append would read the list: lists are kept in an append log instead")),
    ("append-log", Fits("an append never reads; what does not fit goes to storage by key")),
    ("window-segments", Not("it keeps sums: lists are kept in an append log instead")),
];

const FOLDED: Natures = [
    ("heap", Fits("one update per event, while all slices fit; purging looks at every key")),
    ("hybrid-log", Fits("one update per event, by slice and key; purging looks at every key")),
    ("append-log", Not("it keeps events: what is folded is kept in window segments instead")),
    (
        "window-segments",
        Fits(
            "one update per event; what does not fit goes to storage by slice, \
                              and a slice is dropped whole",
        ),
    ),
];

const FOLDED_SESSIONS: Natures = [
    ("heap", Fits("the shortest way to a key's sessions, while all of them fit into memory")),
    ("hybrid-log", Fits("changed in place; the oldest pages go to storage as memory fills")),
    ("append-log", Not("it keeps events: folded sessions are kept in a hybrid log instead")),
    ("window-segments", Not("sessions share no slices: they are kept in a hybrid log instead")),
];

const KEPT: Natures = [
    ("heap", Fits("one append per event, while all windows fit into memory")),
    ("hybrid-log", Not("an append would read all events: they are kept in an append log instead")),
    (
        "append-log",
        Fits(
            "one append per event; a window larger than memory is read as a stream, \
                         and dropped whole",
        ),
    ),
    ("window-segments", Not("it keeps sums, not events: they are kept in an append log instead")),
];

impl<P> StateBuilder<'_, P> {
    /// Asks of each layout whether it fits; those that may by their nature are opened by `open`.
    fn explain_as(
        &self,
        what: &'static str,
        natures: Natures,
        name_of: impl Fn(&AnyLayout) -> &'static str,
        open: impl Fn(&AnyLayout) -> Result<()>,
    ) -> Explanation {
        let given = self.chosen_layout();
        let fit = |(layout, nature): (&'static str, LayoutNature)| {
            let named = AnyLayout::named(layout).unwrap_or_default();
            // With the options that the state was given, if it was given this layout.
            let is_given = std::mem::discriminant(given) == std::mem::discriminant(&named);
            let (fits, reason) = match nature {
                Not(reason) => (false, reason.to_owned()),
                Fits(reason) => match open(if is_given { given } else { &named }) {
                    Ok(()) => (true, reason.to_owned()),
                    Err(error) => (false, error.to_string()),
                },
            };
            Fit { layout, fits, reason }
        };
        Explanation {
            state: self.name().to_owned(),
            what,
            auto: name_of(&AnyLayout::Auto),
            chosen: name_of(given),
            layouts: natures.into_iter().map(fit).collect(),
        }
    }

    /// Opens a part of the state and drops it.
    fn try_part<T>(
        &self,
        part: &str,
        (primitive, layout): (&str, &str),
        types: (String, String),
        limit: Option<u64>,
        open: impl FnOnce(StateContext) -> Result<T>,
    ) -> Result<()> {
        let name = format!("{}{part}", self.name());
        let context = self.store().context_to_try(&name, limit, primitive, layout, types)?;
        open(context).map(drop)
    }

    fn try_map<K: Key, V: State>(&self, part: &str, layout: &AnyLayout) -> Result<()> {
        self.try_map_of::<K, V>("map", part, layout)
    }

    fn try_map_of<K: Key, V: State>(
        &self,
        primitive: &str,
        part: &str,
        layout: &AnyLayout,
    ) -> Result<()> {
        let kind = (primitive, Layout::<K, V>::name(layout));
        let types = (description_of::<K>(), description_of::<V>());
        let limit = Layout::<K, V>::memory_limit(layout);
        self.try_part(part, kind, types, limit, |context| Layout::<K, V>::open(layout, context))
    }

    fn try_lists<K: Key, E: State>(&self, primitive: &str, layout: &AnyLayout) -> Result<()> {
        let kind = (primitive, ListsLayout::<K, E>::name(layout));
        let types = (description_of::<K>(), description_of::<E>());
        let limit = ListsLayout::<K, E>::memory_limit(layout);
        let open = |context| ListsLayout::<K, E>::open_lists(layout, context);
        self.try_part("", kind, types, limit, open)
    }

    fn try_panes<K: Key, A: State>(&self, layout: &AnyLayout) -> Result<()> {
        let kind = ("panes", PanesLayout::<K, A>::name(layout));
        let types = (description_of::<K>(), description_of::<A>());
        let limit = PanesLayout::<K, A>::memory_limit(layout);
        // Nothing is ever merged.
        let merge: Merge<A> = std::rc::Rc::new(|_, _| ());
        let open = |context| PanesLayout::<K, A>::open_panes(layout, context, merge);
        self.try_part("", kind, types, limit, open)
    }
}

impl<K: Key, V: State> StateBuilder<'_, MapOf<K, V>> {
    /// Says which layouts fit the map, and why.
    ///
    /// ```
    /// # use alluvium::Store;
    /// let store = Store::in_memory().open()?;
    /// let explanation = store.map::<u64, u64>("best-bid").explain();
    /// assert_eq!(explanation.auto, "hybrid-log");
    /// println!("{explanation}");
    /// # Ok::<(), alluvium::Error>(())
    /// ```
    pub fn explain(&self) -> Explanation {
        let open = |layout: &AnyLayout| self.try_map::<K, V>("", layout);
        self.explain_as("a map", MAP, Layout::<K, V>::name, open)
    }
}

impl<K: Key + Ord, N: Key + Ord> StateBuilder<'_, StoredTimersOf<K, N>> {
    /// Says which layouts fit the timers, and why.
    pub fn explain(&self) -> Explanation {
        let open = |layout: &AnyLayout| {
            self.try_map_of::<PendingTimer<K, N>, ()>(STORED_TIMERS, "", layout)
        };
        self.explain_as("timers", TIMERS, Layout::<PendingTimer<K, N>, ()>::name, open)
    }
}

impl<K: Key, E: State> StateBuilder<'_, ListOf<K, E>> {
    /// Says which layouts fit the lists, and why.
    pub fn explain(&self) -> Explanation {
        let open = |layout: &AnyLayout| self.try_lists::<K, E>("list", layout);
        self.explain_as("lists", LIST, ListsLayout::<K, E>::name, open)
    }
}

impl<K: Key + Ord, E: 'static, A: Aggregate<E>> StateBuilder<'_, AggregatedOf<K, E, A>> {
    /// Says which layouts fit such windows, and why.
    pub fn explain(&self, windows: Windows) -> Explanation {
        let sessions_in = |layout: &AnyLayout| WindowLayout::<K, A::Acc>::sessions(layout);
        let open = |layout: &AnyLayout| match windows.are_sessions() {
            true => self.try_map::<K, SessionSet<A::Acc>>("", &sessions_in(layout)),
            false => self.try_panes::<K, A::Acc>(layout),
        };
        if windows.are_sessions() {
            let name_of =
                |layout: &AnyLayout| Layout::<K, SessionSet<A::Acc>>::name(&sessions_in(layout));
            return self.explain_as("folded sessions", FOLDED_SESSIONS, name_of, open);
        }
        self.explain_as("folded windows", FOLDED, PanesLayout::<K, A::Acc>::name, open)
    }
}

impl<K: Key + Ord, E: State> StateBuilder<'_, HolisticOf<K, E>> {
    /// Says which layouts fit such windows, and why. Of sessions: where their events are kept; what
    /// is known of each session is a map, on the heap if its events are, else in a hybrid log.
    pub fn explain(&self, windows: Windows) -> Explanation {
        let open = |layout: &AnyLayout| {
            self.try_lists::<K, E>("lists", layout)?;
            match windows.are_sessions() {
                true => {
                    let sessions = HolisticLayout::<K, E>::sessions(layout);
                    self.try_map::<K, SessionSet<u64>>("/sessions", &sessions)
                }
                false => Ok(()),
            }
        };
        self.explain_as("windows of all events", KEPT, ListsLayout::<K, E>::name, open)
    }
}
