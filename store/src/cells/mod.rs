//! What the states of a store keep: maps, lists and panes, each in any layout.
//!
//! Only what needs the types of the entries is here. What the store does with all of them alike is
//! [their cell's](crate::cells::state_cell).

pub(crate) mod cell_handle;
mod lists;
mod maps;
pub(crate) mod pacing;
mod panes;
pub(crate) mod recording;
pub(crate) mod state_cell;

pub(crate) use lists::{ListsCell, WaysOfLists};
pub(crate) use maps::{MapCell, WaysOfMap};
pub(crate) use panes::{PanesCell, WaysOfPanes, put_anew, update_rarely};
