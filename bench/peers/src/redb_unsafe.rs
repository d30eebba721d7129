//! redb: a copy-on-write B-tree. Nothing is synced; a transaction ends after 100,000 writes, and its
//! table stays open until then, for opening one costs as much as an access.
//!
//! The `unsafe` keeps a table beside the transaction that it borrows from.

use alluvium_gadget::engine::{Engine, Kind, Open, See, Visit};
use alluvium_gadget::{Error, Result};
use redb::{Database, Durability, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::{WRITES_A_TRANSACTION, kind};

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("store");
const NOTE: &str = "B-tree; cache 3/4 of the memory; no sync, a transaction per 100,000 writes; merge = \
                    get, append, put";

pub(super) fn kinds() -> Vec<Kind> {
    vec![kind("redb", crate::version_of("redb"), NOTE, 16, |open| Ok(Box::new(Redb::open(open)?)))]
}

struct Redb {
    /// Borrows from `transaction`; gone before it.
    table: Option<Table<'static, &'static [u8], &'static [u8]>>,
    /// Made by `Box::into_raw`; null while there is none.
    transaction: *mut WriteTransaction,
    writes: u32,
    value: Vec<u8>,
    database: Database,
}

impl Redb {
    fn open(open: &Open) -> Result<Self> {
        let mut builder = Database::builder();
        builder.set_cache_size((open.memory_bytes / 4 * 3) as usize);
        let database = builder.create(open.directory.join("redb")).map_err(Error::engine)?;
        let transaction = std::ptr::null_mut();
        let mut redb = Redb { table: None, transaction, writes: 0, value: Vec::new(), database };
        redb.begin()?;
        Ok(redb)
    }

    fn begin(&mut self) -> Result<()> {
        let mut transaction = self.database.begin_write().map_err(Error::engine)?;
        transaction.set_durability(Durability::None).map_err(Error::engine)?;
        self.transaction = Box::into_raw(Box::new(transaction));
        // SAFETY: the transaction lives on the heap until `commit` or `drop` frees it, which drop
        // the table first.
        let borrowed: &'static WriteTransaction = unsafe { &*self.transaction };
        self.table = Some(borrowed.open_table(TABLE).map_err(Error::engine)?);
        Ok(())
    }

    fn commit(&mut self, durability: Durability) -> Result<()> {
        self.table = None;
        let transaction = std::mem::replace(&mut self.transaction, std::ptr::null_mut());
        if transaction.is_null() {
            return Ok(());
        }
        // SAFETY: made by `Box::into_raw` in `begin`, taken once, and nothing borrows from it.
        let mut transaction = unsafe { Box::from_raw(transaction) };
        transaction.set_durability(durability).map_err(Error::engine)?;
        transaction.commit().map_err(Error::engine)
    }

    fn table(&mut self) -> Result<&mut Table<'static, &'static [u8], &'static [u8]>> {
        self.table.as_mut().ok_or_else(|| Error::Engine("no transaction".to_owned()))
    }

    fn wrote(&mut self) -> Result<()> {
        self.writes += 1;
        if self.writes < WRITES_A_TRANSACTION {
            return Ok(());
        }
        self.writes = 0;
        self.commit(Durability::None)?;
        self.begin()
    }
}

impl Drop for Redb {
    fn drop(&mut self) {
        // What cannot be committed here was not promised to anybody.
        let _ = self.commit(Durability::None);
    }
}

impl Engine for Redb {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        let found = self.table()?.get(key).map_err(Error::engine)?;
        see(found.as_ref().map(|found| found.value()));
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.table()?.insert(key, value).map_err(Error::engine)?;
        self.wrote()
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        if let Some(found) = self.table()?.get(key).map_err(Error::engine)? {
            value.extend_from_slice(found.value());
        }
        value.extend_from_slice(operand);
        let done = self.put(key, &value);
        self.value = value;
        done
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.table()?.remove(key).map_err(Error::engine)?;
        self.wrote()
    }

    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        for found in self.table()?.range(from..=to).map_err(Error::engine)? {
            let (key, value) = found.map_err(Error::engine)?;
            visit(key.value(), value.value());
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<bool> {
        self.commit(Durability::Immediate)?;
        self.begin()?;
        Ok(true)
    }
}
