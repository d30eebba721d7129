//! The subcommands of `alluvium-bench`: each takes its options and gives a [`Report`].
//!
//! [`Report`]: crate::report::Report

mod clock_unsafe;
mod generate;
mod replay;
mod rmw;
mod state;

pub use generate::generate;
pub use replay::replay;
pub use rmw::rmw;
