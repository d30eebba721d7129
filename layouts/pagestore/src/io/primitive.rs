//! The atomics of hand-overs between threads: the standard library's, or loom's, which tries all
//! orders of their steps (`RUSTFLAGS="--cfg loom" cargo test -p alluvium-pagestore --lib loom`).

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicBool, Ordering};
