//! The subcommands of `alluvium-bench`: each takes its options and gives a [`Report`].
//!
//! [`Report`]: crate::report::Report

mod generate;

pub use generate::generate;
