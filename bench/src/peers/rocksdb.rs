//! RocksDB: records as bytes in a log-structured merge tree.
//!
//! Settings, as measured best for this work: no write-ahead log, three memtables of an eighth of
//! the memory, a block cache of half of it that also holds indexes and filters, Bloom filters of
//! ten bits per key and on memtables, no compression, two background jobs, no checksums on reads.
//! A batch is a `MultiGet` and a `WriteBatch`.

use std::collections::BTreeMap;
use std::path::Path;

use super::rocksdb_merge_unsafe::Merge;
use super::rocksdb_unsafe::{Db, KeyBytes, Sizes};
use super::{Engine, Record, Said, digest_of};
use crate::{Error, Result};

/// An open database.
pub struct RocksDb {
    db: Db,
    bytes: Vec<u8>,
    keys: Vec<KeyBytes>,
    /// Where the bytes of a batch's values end.
    ends: Vec<usize>,
}

impl RocksDb {
    /// Opens a database that takes about `memory_bytes`.
    pub fn open(path: &Path, memory_bytes: u64) -> Result<RocksDb> {
        let db = Db::open(path, &Sizes::of(memory_bytes), None)?;
        Ok(RocksDb { db, bytes: Vec::new(), keys: Vec::new(), ends: Vec::new() })
    }
}

/// Opens a database with these settings for blind merges.
pub(crate) fn open_merging(path: &Path, memory_bytes: u64, merge: Merge) -> Result<Db> {
    Db::open(path, &Sizes::of(memory_bytes), Some(merge))
}

fn decoded<V: Record>(bytes: &[u8]) -> Result<V> {
    V::decode(bytes).ok_or_else(|| Error::Wrong("rocksdb gave back other bytes".to_owned()))
}

impl<V: Record> Engine<V> for RocksDb {
    fn load(&mut self, key: u64) -> Result<()> {
        self.bytes.clear();
        V::new(key).encode(&mut self.bytes);
        self.db.put(key.to_be_bytes(), &self.bytes)
    }

    fn update(&mut self, key: u64) -> Said {
        let found = self.db.get(key.to_be_bytes(), decoded::<V>)?.transpose()?;
        let mut value = found.unwrap_or_else(|| V::new(key));
        let said = value.touch();
        self.bytes.clear();
        value.encode(&mut self.bytes);
        self.db.put(key.to_be_bytes(), &self.bytes)?;
        Ok(said)
    }

    fn update_batch(&mut self, keys: &[u64]) -> Result<()> {
        // A key that repeats is read and written once, and changed as often as it comes.
        let mut times = BTreeMap::new();
        keys.iter().for_each(|&key| *times.entry(key).or_insert(0u32) += 1);
        self.keys.clear();
        self.keys.extend(times.keys().map(|key| key.to_be_bytes()));
        let mut values: Vec<V> = times.keys().map(|&key| V::new(key)).collect();
        let mut broken = Ok(());
        self.db.get_all(&self.keys, |at, bytes| match decoded(bytes) {
            Ok(value) => values[at] = value,
            Err(error) => broken = Err(error),
        })?;
        broken?;
        self.bytes.clear();
        self.ends.clear();
        for (value, times) in values.iter_mut().zip(times.values()) {
            (0..*times).for_each(|_| _ = value.touch());
            value.encode(&mut self.bytes);
            self.ends.push(self.bytes.len());
        }
        let starts = std::iter::once(&0).chain(&self.ends);
        let ranges = starts.zip(&self.ends).map(|(&start, &end)| &self.bytes[start..end]);
        self.db.put_all(self.keys.iter().copied().zip(ranges))
    }

    fn checksum(&mut self) -> Result<(u64, u64)> {
        let (mut sum, mut count, mut broken) = (0u64, 0, Ok(()));
        self.db.for_each(|key, bytes| {
            let key = key.try_into().map(u64::from_be_bytes);
            match (key, decoded::<V>(bytes)) {
                (Ok(key), Ok(value)) => sum = sum.wrapping_add(digest_of(key, &value)),
                (_, Err(error)) => broken = Err(error),
                (Err(_), _) => broken = Err(Error::Wrong("a key of another length".to_owned())),
            }
            count += 1;
        })?;
        broken.map(|()| (sum, count))
    }
}
