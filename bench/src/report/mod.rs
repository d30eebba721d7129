//! Reports of a run: figures as JSON, latencies, results as CSV, progress.

mod beside;
mod ccdf;
mod figures;
mod latency;
mod memory;
mod progress;
mod results;

pub use beside::{BesideCheckpoints, Spread, StreamRates};
pub use ccdf::{Curve, write_ccdf_csv};
pub use figures::{Io, Memory, Pauses, Report, StateFigures, Versus};
pub use latency::{Latencies, Percentiles, noise_floor, spread};
pub use memory::{peak_rss_bytes, resident_bytes};
pub use progress::Progress;
pub use results::ResultsWriter;
