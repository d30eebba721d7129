//! BerkeleyDB of the system.

use alluvium_gadget::engine::Kind;

const NOTE: &str = "B-tree; pages of 4 KiB, cache 3/4 of the memory; no log, no transactions; merge = get, \
                    append, put";

#[cfg(have_berkeley)]
pub(super) fn kinds() -> Vec<Kind> {
    use super::kind;
    use crate::native_unsafe::{Api, Native, version};

    // SAFETY: a function without arguments that returns a constant of `native/berkeley.c`.
    unsafe extern "C" {
        safe fn peers_berkeley() -> &'static Api;
    }
    vec![kind("berkeley", version(peers_berkeley()), NOTE, 16, |open| {
        Ok(Box::new(Native::open(peers_berkeley(), open)?))
    })]
}

#[cfg(not(have_berkeley))]
pub(super) fn kinds() -> Vec<Kind> {
    let _ = NOTE;
    let why = "not installed when this was built; Debian: apt install libdb5.3-dev";
    vec![Kind::missing("berkeley", why)]
}
