//! What a layout implements, and what its users see of it.

pub(crate) mod by_hash;
pub(crate) mod expiry;
pub(crate) mod fetch;
pub(crate) mod lists;
pub(crate) mod loading;
pub(crate) mod needs;
pub(crate) mod panes;
pub(crate) mod table;
pub(crate) mod upkeep;
