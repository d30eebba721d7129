//! What others would use instead: the same records and the same work on other stores.
//!
//! [`Engine`] is the work of `rmw`, on ours and on each peer. A peer gets its recommended settings
//! and the memory we get; hashbrown, the upper limit, gets all it wants.

mod hashbrown;
mod ours;
mod record;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "rocksdb")]
mod rocksdb_merge_unsafe;
#[cfg(feature = "rocksdb")]
mod rocksdb_unsafe;

use std::fmt;
use std::str::FromStr;

use alluvium::types::{combine, hash_word};

pub use self::hashbrown::Hashbrown;
pub use ours::Ours;
pub use record::Record;
#[cfg(feature = "rocksdb")]
pub use rocksdb::RocksDb;
#[cfg(feature = "rocksdb")]
pub(crate) use {rocksdb::open_merging, rocksdb_merge_unsafe::Merge, rocksdb_unsafe::Db};

use crate::{Error, Result};

/// What one update says: two registers. A result that goes through memory keeps updates from
/// overlapping; with it, and called rather than inlined, hashbrown looks three times as slow.
pub type Said = std::result::Result<u64, Box<Error>>;

/// A keyed state that records are read, modified and written in.
pub trait Engine<V: Record> {
    /// Puts a new record.
    fn load(&mut self, key: u64) -> Result<()>;

    /// Changes the record of `key`, and says a number that depends on it.
    fn update(&mut self, key: u64) -> Said;

    /// Changes the records of `keys`, which may repeat.
    fn update_batch(&mut self, keys: &[u64]) -> Result<()>;

    /// A digest of all records that does not depend on their order, and how many there are.
    fn checksum(&mut self) -> Result<(u64, u64)>;
}

/// What a record adds to a checksum.
fn digest_of<V: Record>(key: u64, value: &V) -> u64 {
    combine(hash_word(key), value.digest())
}

/// What the same work is done on as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Our own store without compaction: what compaction costs.
    Uncompacted,
    /// A hash table in memory, the upper limit.
    Hashbrown,
    /// A log-structured merge tree; needs the feature `rocksdb`.
    RocksDb,
}

impl FromStr for Peer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "uncompacted" => Ok(Peer::Uncompacted),
            "hashbrown" => Ok(Peer::Hashbrown),
            "rocksdb" if cfg!(feature = "rocksdb") => Ok(Peer::RocksDb),
            "rocksdb" => Err(Error::Usage(
                "this program was built without the feature rocksdb, which needs librocksdb"
                    .to_owned(),
            )),
            _ => Err(Error::Usage(format!(
                "peer {text:?} is neither hashbrown nor rocksdb nor uncompacted"
            ))),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Peer::Uncompacted => "uncompacted",
            Peer::Hashbrown => "hashbrown",
            Peer::RocksDb => "rocksdb",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every engine that is built gives the same records for the same work.
    #[test]
    fn engines_agree() {
        fn check<V: Record>() {
            fn work<V: Record>(engine: &mut dyn Engine<V>) -> (u64, u64) {
                (0..100).for_each(|key| engine.load(key).unwrap());
                for round in 0..5_000u64 {
                    engine.update(round * round % 97).unwrap();
                    engine.update_batch(&[round % 10, 3, round % 7, 3]).unwrap();
                }
                engine.checksum().unwrap()
            }
            let expected = work::<V>(&mut Hashbrown::default());
            assert_eq!(expected.1, 100);
            let store = alluvium::Store::in_memory().open().unwrap();
            assert_eq!(work::<V>(&mut Ours(store.map("rmw").open().unwrap())), expected);
            #[cfg(feature = "rocksdb")]
            {
                let dir = tempfile::tempdir().unwrap();
                let mut rocksdb = RocksDb::open(dir.path(), 8 << 20).unwrap();
                assert_eq!(work::<V>(&mut rocksdb), expected);
            }
        }
        check::<u64>();
        check::<[u64; 7]>();
        check::<[u64; 31]>();
        check::<Vec<String>>();
    }
}
