//! A job: its node's configuration, its workers and the group that they are, its checkpoints, and where its results
//! become visible.

pub(crate) mod checkpoints;
pub(crate) mod execute;
pub(crate) mod group;
pub(crate) mod node;
pub(crate) mod place;
pub(crate) mod sink;
pub(crate) mod stats_log;
pub(crate) mod worker;
