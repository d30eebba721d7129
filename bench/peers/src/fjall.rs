//! fjall: a log-structured merge tree in Rust. Its journal is always written; it is never synced.

use alluvium_gadget::engine::{Engine, Kind, Open, See, Visit};
use alluvium_gadget::{Error, Result};
use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::kind;

const NOTE: &str = "LSM tree; cache 1/2 of the memory, memtable 1/8, write buffer 1/4; one worker; its \
                    journal cannot be turned off and is not synced; merge = get, append, put";

pub(super) fn kinds() -> Vec<Kind> {
    vec![kind("fjall", crate::version_of("fjall"), NOTE, 16, |open| {
        Ok(Box::new(Fjall::open(open)?))
    })]
}

struct Fjall {
    entries: Keyspace,
    value: Vec<u8>,
    database: Database,
}

impl Fjall {
    fn open(open: &Open) -> Result<Self> {
        let memory = open.memory_bytes;
        // Without it memtables alone may take more than the memory; nothing has its place yet.
        #[allow(deprecated)]
        let database = Database::builder(open.directory.join("fjall"))
            .cache_size(memory / 2)
            .max_write_buffer_size(Some(memory / 4))
            .manual_journal_persist(true)
            .worker_threads(1)
            .open()
            .map_err(Error::engine)?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(memory / 8)
                .manual_journal_persist(true)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        };
        let entries = database.keyspace("store", options).map_err(Error::engine)?;
        Ok(Fjall { entries, value: Vec::new(), database })
    }
}

impl Engine for Fjall {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        see(self.entries.get(key).map_err(Error::engine)?.as_deref());
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.entries.insert(key, value).map_err(Error::engine)
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.value.clear();
        let found = self.entries.get(key).map_err(Error::engine)?;
        self.value.extend_from_slice(found.as_deref().unwrap_or_default());
        self.value.extend_from_slice(operand);
        self.entries.insert(key, self.value.as_slice()).map_err(Error::engine)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.entries.remove(key).map_err(Error::engine)
    }

    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        for found in self.entries.range(from..=to) {
            let (key, value) = found.into_inner().map_err(Error::engine)?;
            visit(&key, &value);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<bool> {
        self.database.persist(PersistMode::SyncAll).map_err(Error::engine)?;
        Ok(true)
    }
}
