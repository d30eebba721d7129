//! Eleven streaming operators as workloads for state stores, after the Gadget paper (EuroSys'22),
//! with every answer checked.
//!
//! A [`generator`] makes a seeded stream of events, or [`rows`] reads one. An [`operator`] turns it
//! into a trace of [accesses](access). [`replay`] makes them on an [`engine`] and compares each
//! value with the twin's; the [`model`] recomputes the answers from the events.
//!
//! A [`trace`] as a file is replayed without its operator, and [characterized](characterize).

mod error;

pub mod access;
pub mod advice;
pub mod args;
pub mod by_bytes;
pub mod cell;
pub mod characterize;
pub mod cli;
pub mod commands;
pub mod compat;
pub mod engine;
pub mod event;
pub mod generator;
pub mod grammar;
pub mod hotstorage;
pub mod measure;
pub mod model;
pub mod native;
pub mod operator;
pub mod paper;
pub mod random;
pub mod replay;
pub mod report;
pub mod rows;
pub mod run;
pub mod trace;
pub mod value;
pub mod ycsb;

pub use error::{Error, Result};
