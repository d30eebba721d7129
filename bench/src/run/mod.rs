//! The subcommands of `alluvium-bench`: each takes its options and gives a [`Report`].
//!
//! [`Report`]: crate::report::Report

mod adapter;
mod checkpoint;
mod clock_unsafe;
mod cold;
mod copies;
mod generate;
mod main_job;
mod nexmark;
mod replay;
mod rmw;
mod state;
mod window;

pub use adapter::adapter;
pub use checkpoint::{checkpoint, percents};
pub use cold::cold;
pub use generate::generate;
pub use main_job::{Scale, main_job};
pub use nexmark::{ClockKind, nexmark, nexmark_on};
pub use replay::replay;
pub use rmw::rmw;
pub use window::window;
