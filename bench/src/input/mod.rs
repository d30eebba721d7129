//! Nexmark events from elsewhere: CSV files of the three tables, and cases with known answers.

mod cases;
mod columns;
pub(crate) mod compressed;
mod export;
mod merge;
mod table;
pub(crate) mod timestamp;

pub use cases::{Case, CaseStep, Delta, Insert, ResultRow, SideInput, read_cases, shared_dir};
pub use export::export;
pub use merge::CsvStream;
