//! LMDB: a B-tree in mapped memory. Nothing is synced; a transaction ends after 100,000 writes.
//!
//! The `unsafe` is the promise that nobody else opens the file.

use std::ops::Bound;

use alluvium_gadget::engine::{Engine, Kind, Open, See, Visit};
use alluvium_gadget::{Error, Result};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RwTxn, WithTls};

use super::{WRITES_A_TRANSACTION, kind};

const NOTE: &str = "B-tree in mapped memory, which the page cache holds; no sync, a transaction per \
                    100,000 writes; merge = get, append, put";
/// Room of the map; the file grows as it is written.
const MAP_BYTES: usize = 64 << 30;

pub(super) fn kinds() -> Vec<Kind> {
    vec![kind("lmdb", crate::version_of("lmdb"), NOTE, 1, |open| Ok(Box::new(Lmdb::open(open)?)))]
}

struct Lmdb {
    transaction: Option<RwTxn<'static>>,
    entries: Database<Bytes, Bytes>,
    writes: u32,
    value: Vec<u8>,
    /// Never freed: transactions borrow from it, and there is one a process.
    env: &'static Env<WithTls>,
}

impl Lmdb {
    fn open(open: &Open) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        // SAFETY: the directory is this run's own. Without syncs a crash of the system may damage
        // the file, which nobody opens afterwards.
        let env = unsafe {
            options.flags(
                EnvFlags::WRITE_MAP
                    | EnvFlags::NO_SYNC
                    | EnvFlags::NO_META_SYNC
                    | EnvFlags::MAP_ASYNC
                    | EnvFlags::NO_READ_AHEAD
                    | EnvFlags::NO_MEM_INIT,
            );
            options.open(&open.directory).map_err(Error::engine)?
        };
        let env: &'static Env<WithTls> = Box::leak(Box::new(env));
        let mut transaction = env.write_txn().map_err(Error::engine)?;
        let entries = env.create_database(&mut transaction, None).map_err(Error::engine)?;
        Ok(Lmdb { transaction: Some(transaction), entries, writes: 0, value: Vec::new(), env })
    }

    fn transaction(&mut self) -> Result<&mut RwTxn<'static>> {
        self.transaction.as_mut().ok_or_else(|| Error::Engine("no transaction".to_owned()))
    }

    fn commit(&mut self) -> Result<()> {
        if let Some(transaction) = self.transaction.take() {
            transaction.commit().map_err(Error::engine)?;
        }
        self.transaction = Some(self.env.write_txn().map_err(Error::engine)?);
        Ok(())
    }

    fn wrote(&mut self) -> Result<()> {
        self.writes += 1;
        if self.writes == WRITES_A_TRANSACTION {
            self.writes = 0;
            self.commit()?;
        }
        Ok(())
    }
}

impl Engine for Lmdb {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        let entries = self.entries;
        see(entries.get(self.transaction()?, key).map_err(Error::engine)?);
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let entries = self.entries;
        entries.put(self.transaction()?, key, value).map_err(Error::engine)?;
        self.wrote()
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        let entries = self.entries;
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        // The place of the old value may move when the new one is put.
        let found = entries.get(self.transaction()?, key).map_err(Error::engine)?;
        value.extend_from_slice(found.unwrap_or_default());
        value.extend_from_slice(operand);
        let done = self.put(key, &value);
        self.value = value;
        done
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let entries = self.entries;
        entries.delete(self.transaction()?, key).map_err(Error::engine)?;
        self.wrote()
    }

    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let bounds = (Bound::Included(from), Bound::Included(to));
        let entries = self.entries;
        for found in entries.range(self.transaction()?, &bounds).map_err(Error::engine)? {
            let (key, value) = found.map_err(Error::engine)?;
            visit(key, value);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<bool> {
        self.commit()?;
        self.env.force_sync().map_err(Error::engine)?;
        Ok(true)
    }
}
