//! Our own store through the same trait: bytes by key, as any other.
//!
//! Values by key are in a map, on the heap or in a hybrid log. Where all values are lists, they can
//! be in an append log instead. Window segments keep accumulators by time and typed key: they have
//! no byte keys, and run natively only.

use alluvium::{AnyLayout, AppendLog, Heap, HybridLog, List, Map, Store};

use super::{Directory, Engine, Kind, Open, See, Visit};
use crate::operator::{Name, Options};
use crate::value::{Sums, sums, sums_bytes};
use crate::{Error, Result};

/// Room in a value for the largest lists of the workloads.
const VALUE_BYTES_MAX: u64 = 16 << 20;
const MAPS: &str = "map of byte vectors through the same trait; updates in place; ranges by an \
                    ordered set of keys beside it";
const LISTS: &str = "list of byte vectors through the same trait; only where all values are lists";

pub(super) fn kinds() -> Vec<Kind> {
    let heap = Kind::in_memory("ours-heap", MAPS, |open| map(open, Heap::new().into()));
    let log = Kind::in_memory("ours-hybrid-log", MAPS, |open| map(open, HybridLog::new().into()));
    let mut lists = Kind::in_memory("ours-append-log", LISTS, lists);
    lists.refuses = |operator: Name, _: &Options| {
        let why = "an append log keeps lists, and this operator puts values";
        (!operator.only_lists()).then_some(why)
    };
    lists.updates = false;
    let mut kinds = vec![heap, log, lists];
    for kind in &mut kinds {
        (kind.memory_min, kind.recovers) = (2 << 20, true);
    }
    kinds
}

/// Opens a store for values of at most so many bytes.
pub(crate) fn store(open: &Open, layout: AnyLayout, value_max: u64) -> Result<Store> {
    let directory = open.directory.join("ours");
    // A value has to fit into a fraction of the memory.
    let value_max = value_max.min(open.memory_bytes / 16);
    let builder = Store::builder(directory).memory(open.memory_bytes).max_value(value_max);
    Ok(builder.layout(layout).open()?)
}

fn map(open: &Open, layout: AnyLayout) -> Result<Box<dyn Engine>> {
    let store = store(open, layout, VALUE_BYTES_MAX)?;
    let values = store.map("values").open()?;
    Ok(Box::new(OurMap { values, keys: Directory::new(open.ranges()), store }))
}

fn lists(open: &Open) -> Result<Box<dyn Engine>> {
    let store = store(open, AppendLog::new().into(), VALUE_BYTES_MAX)?;
    let lists = store.list("lists").open()?;
    let keys = Directory::new(open.ranges());
    Ok(Box::new(OurLists { lists, keys, read: Vec::new(), store }))
}

struct OurMap {
    values: Map<Vec<u8>, Vec<u8>>,
    keys: Directory,
    store: Store,
}

impl Engine for OurMap {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        Ok(self.values.read(key, |value| see(value.map(Vec::as_slice)))?)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keys.insert(key);
        Ok(self.values.update(key, Vec::new, |old| {
            old.clear();
            old.extend_from_slice(value);
        })?)
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.keys.insert(key);
        Ok(self.values.update(key, Vec::new, |value| value.extend_from_slice(operand))?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.keys.remove(key);
        self.values.remove(key)?;
        Ok(())
    }

    fn update(&mut self, key: &[u8], more: Sums, see: See<'_>) -> Result<()> {
        self.keys.insert(key);
        Ok(self.values.update(key, Vec::new, |value| {
            // An accumulator is never empty.
            see((!value.is_empty()).then_some(value));
            let [count, sum] = sums(value);
            value.clear();
            let now = [count.wrapping_add(more[0]), sum.wrapping_add(more[1])];
            value.extend_from_slice(&sums_bytes(now));
        })?)
    }

    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        for key in self.keys.range(from, to) {
            self.values.read(key, |value| {
                if let Some(value) = value {
                    visit(key, value);
                }
            })?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<bool> {
        self.store.checkpoint(1)?;
        Ok(true)
    }
}

struct OurLists {
    lists: List<Vec<u8>, Vec<u8>>,
    keys: Directory,
    read: Vec<u8>,
    store: Store,
}

impl OurLists {
    /// Reads all of a list; says whether it is there.
    fn read(&mut self, key: &[u8]) -> Result<bool> {
        self.read.clear();
        let read = &mut self.read;
        let found = self.lists.read(key, |part| {
            read.extend_from_slice(part);
            Ok(())
        })?;
        Ok(found > 0)
    }
}

impl Engine for OurLists {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        let found = self.read(key)?;
        see(found.then_some(&self.read));
        Ok(())
    }

    fn put(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Error::Engine("a put into a list".to_owned()))
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.keys.insert(key);
        Ok(self.lists.append(key, operand.to_vec()).map_err(|rejected| rejected.error)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.keys.remove(key);
        Ok(self.lists.clear(key)?)
    }

    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let keys: Vec<Vec<u8>> = self.keys.range(from, to).map(<[u8]>::to_vec).collect();
        for key in keys {
            if self.read(&key)? {
                visit(&key, &self.read);
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<bool> {
        self.store.checkpoint(1)?;
        Ok(true)
    }
}
