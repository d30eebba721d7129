//! Operators on keyed streams: what each does with its rows and its time, and the [shell](shell) around all of them.

pub(crate) mod interval_join;
pub(crate) mod join;
pub(crate) mod join_sides;
pub(crate) mod key_by;
pub(crate) mod lookup_join;
pub(crate) mod merged;
pub(crate) mod placing;
pub(crate) mod rolling;
pub(crate) mod shared_table;
pub(crate) mod shell;
pub(crate) mod spec;
pub(crate) mod split;
pub(crate) mod stateful;
pub(crate) mod windows;
