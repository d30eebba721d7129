//! The Nexmark queries against answers that they did not make: the shared cases, and a slow plain
//! computation over all events.

mod by_hand;
mod cases;
mod generated;
mod models;
mod oracle;
mod processing_time;
mod run;
mod windowed;
