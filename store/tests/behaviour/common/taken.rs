//! A store whose memory others have taken.

use alluvium::config::Reservation;
use alluvium::{MIB, Store};

/// Takes all memory of a store but some bytes.
pub fn take_all_but(store: &Store, bytes: u64) -> Vec<Reservation> {
    let hole = store.reserve(bytes, "a hole");
    let (mut taken, mut size) = (Vec::new(), 64 * MIB);
    while size > 16 {
        match store.reserve(size, "all there is") {
            Ok(more) => taken.push(more),
            Err(_) => size /= 2,
        }
    }
    drop(hole);
    taken
}
