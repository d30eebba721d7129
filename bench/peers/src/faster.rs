//! FASTER: the C++ that `libfaster-sys` carries, through a shim of ours with updates in place.

use alluvium_gadget::engine::Kind;

const NOTE: &str = "hash index over a hybrid log; at most a quarter of the memory for the index, the rest \
                    the log, at most 87 % of it mutable; accumulators and lists change in place; ranges by an \
                    ordered set of keys beside it; a read of storage is waited for";

#[cfg(have_faster)]
pub(super) fn kinds() -> Vec<Kind> {
    use super::kind;
    use crate::native_unsafe::{Api, Native, version};

    // SAFETY: a function without arguments that returns a constant of `native/faster.cc`.
    unsafe extern "C" {
        safe fn peers_faster() -> &'static Api;
    }
    let mut faster = kind("faster", version(peers_faster()), NOTE, 256, |open| {
        Ok(Box::new(Native::open(peers_faster(), open)?))
    });
    faster.updates = true;
    vec![faster]
}

#[cfg(not(have_faster))]
pub(super) fn kinds() -> Vec<Kind> {
    let _ = NOTE;
    let why = "its source or libraries were not there when this was built; run `cargo fetch` in \
               bench/peers; Debian: apt install libaio-dev libtbb-dev uuid-dev";
    vec![Kind::missing("faster", why)]
}
