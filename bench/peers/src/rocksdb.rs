//! RocksDB of the system: get and put, the merge operator, and Lethe's stand-in.

use alluvium_gadget::engine::Kind;

const PUTS: &str = "LSM tree; no write-ahead log; memtables 3/8 of the memory, block cache 1/2 with \
                    indexes and filters in it, bloom filters of 10 bits; no compression; merge = get, \
                    append, put";
const MERGES: &str = "as rocksdb, with a merge operator that appends, for counters one that adds";
const DELETES: &str = "Lethe is closed source; its stand-in: as rocksdb-merge, with files compacted by \
                       their deletes";

#[cfg(have_rocksdb)]
pub(super) fn kinds() -> Vec<Kind> {
    use super::kind;
    use crate::native_unsafe::{Api, Native, version};

    // SAFETY: functions without arguments that return constants of `native/rocksdb.cc`.
    unsafe extern "C" {
        safe fn peers_rocksdb() -> &'static Api;
        safe fn peers_rocksdb_merge() -> &'static Api;
        safe fn peers_rocksdb_adds() -> &'static Api;
        safe fn peers_rocksdb_deletes() -> &'static Api;
    }
    let words = version(peers_rocksdb());
    let mut merges = kind("rocksdb-merge", words.clone(), MERGES, 16, |open| {
        Ok(Box::new(Native::open(peers_rocksdb_merge(), open)?))
    });
    merges.adds = Some(|open| Ok(Box::new(Native::open(peers_rocksdb_adds(), open)?)));
    vec![
        kind("rocksdb", words.clone(), PUTS, 16, |open| {
            Ok(Box::new(Native::open(peers_rocksdb(), open)?))
        }),
        merges,
        kind("lethe", words, DELETES, 16, |open| {
            Ok(Box::new(Native::open(peers_rocksdb_deletes(), open)?))
        }),
    ]
}

#[cfg(not(have_rocksdb))]
pub(super) fn kinds() -> Vec<Kind> {
    let _ = (PUTS, MERGES, DELETES);
    let why = "not installed when this was built; Debian: apt install librocksdb-dev";
    ["rocksdb", "rocksdb-merge", "lethe"].map(|name| Kind::missing(name, why)).into()
}
