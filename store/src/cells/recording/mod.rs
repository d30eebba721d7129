//! A trace of a running store: the calls on its states, one access a line, as `alluvium-gadget` reads them.
//!
//! What it keeps true: a store that records nothing does nothing for it but a test that handles make anyway.
//! The record path never waits for the disk longer than [`TraceOptions::wait_ms`]: it fills chunks, which a
//! thread writes. All chunks are booked when the state is opened. What cannot be kept is counted, and the
//! file says how much is missing where.

mod maps;
mod options;
mod recorder;
#[cfg(test)]
mod tests;
mod tracer;
mod writing;

pub use options::{TRACE_BUFFER_BYTES, TRACE_WAIT_MS, TraceOptions, TraceStats};
pub(crate) use recorder::{Access, Recorder};
pub(crate) use tracer::Tracer;
