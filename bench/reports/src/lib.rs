//! What the reports of `alluvium-bench` and `alluvium-gadget` share: numbers, tables, plots, HTML
//! and facts of the machine.
//!
//! A report is one HTML file that loads nothing: plots are SVG in its text.

mod machine;
mod number;
pub mod page;
mod plot;
mod table;

pub use machine::{Environment, environment};
pub use number::{digits, short, time};
pub use plot::{Axis, Bar, COLOURS, Line, bars, lines, logarithmic, standalone};
pub use table::Table;
