//! The seam between traces and stores, and the engines without a native build.
//!
//! An engine keeps bytes by key. What a store lacks is emulated as its users would do it, and said
//! in [`Kind::note`].

mod btree;
mod directory;
pub mod faulty;
mod hash;
mod ours;

use std::path::{Path, PathBuf};

use crate::operator::{Name, Options};
use crate::value::{Sums, sums, sums_bytes};
use crate::{Error, Result};

pub use btree::BTree;
pub use directory::Directory;
pub(crate) use ours::store as our_store;

/// What reads a value: `None` for a key that is not there.
pub type See<'a> = &'a mut dyn FnMut(Option<&[u8]>);
/// What visits keys and values.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

/// A store of bytes by key, with one owner.
pub trait Engine {
    /// Shows the value of `key`.
    ///
    /// # Errors
    /// The store's, as of all calls.
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()>;

    /// Sets the value of `key`.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Appends to the value of `key`; a key that is not there has an empty one.
    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()>;

    /// Removes `key`, which may not be there.
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Shows the accumulator of `key` and adds to it. The default is a get and a put.
    fn update(&mut self, key: &[u8], more: Sums, see: See<'_>) -> Result<()> {
        let mut now = more;
        self.get(key, &mut |value| {
            see(value);
            let [count, sum] = sums(value.unwrap_or_default());
            now = [count.wrapping_add(more[0]), sum.wrapping_add(more[1])];
        })?;
        self.put(key, &sums_bytes(now))
    }

    /// Visits the keys from one to another, both included, in order.
    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()>;

    /// Visits the keys with a prefix, in order, and removes them. The default ranges and deletes
    /// one by one.
    fn purge(&mut self, prefix: &[u8], visit: Visit<'_>) -> Result<()> {
        let to = [prefix, &[0xff; 24]].concat();
        let mut found = Vec::new();
        self.range(prefix, &to, &mut |key, value| {
            found.push(key.to_vec());
            visit(key, value);
        })?;
        found.iter().try_for_each(|key| self.delete(key))
    }

    /// Makes all that was written durable, where the engine can; says whether it did.
    fn checkpoint(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// What figures do not show of a run, such as what of its time was the network.
    fn remark(&mut self) -> Result<Option<String>> {
        Ok(None)
    }
}

/// How an engine is opened.
#[derive(Clone, Debug)]
pub struct Open {
    /// A directory of its own, empty.
    pub directory: PathBuf,
    /// The memory that it may take for data, caches and indexes together.
    pub memory_bytes: u64,
    /// What it will be asked.
    pub operator: Name,
    /// The operator's numbers.
    pub options: Options,
    /// Events that will come, for what has to be sized ahead.
    pub events: usize,
}

impl Open {
    /// Whether ranges will be asked for.
    pub fn ranges(&self) -> bool {
        self.operator.ranges(&self.options)
    }
}

/// What opens an engine.
pub type Opens = fn(&Open) -> Result<Box<dyn Engine>>;

/// An engine that can be opened.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Its row in reports.
    pub name: &'static str,
    /// The store's version.
    pub version: String,
    /// What is emulated, and how it is set up, in a few words.
    pub note: &'static str,
    /// Whether it writes nothing to storage, so that reading the clock would dominate.
    pub in_memory: bool,
    /// Whether an update is one call of it: otherwise a get and a put.
    pub updates: bool,
    /// Whether what was made durable is there when it is opened again.
    pub recovers: bool,
    /// The least memory it works with.
    pub memory_min: u64,
    /// Opens it, or says why it is missing.
    pub open: std::result::Result<Opens, &'static str>,
    /// Opens it so that a merge adds to an accumulator without reading it; `None` where an update does as
    /// well.
    pub adds: Option<Opens>,
    /// Why it cannot run an operator, if so.
    pub refuses: fn(Name, &Options) -> Option<&'static str>,
}

impl Kind {
    /// An engine in memory that runs everything.
    pub fn in_memory(
        name: &'static str,
        note: &'static str,
        open: fn(&Open) -> Result<Box<dyn Engine>>,
    ) -> Kind {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let (open, refuses): (_, fn(Name, &Options) -> _) = (Ok(open), |_, _| None);
        Kind {
            name,
            version,
            note,
            in_memory: true,
            updates: true,
            recovers: false,
            memory_min: 0,
            open,
            adds: None,
            refuses,
        }
    }

    /// A row for a store that is not there, with what to do about it.
    pub fn missing(name: &'static str, why: &'static str) -> Kind {
        let (version, refuses): (_, fn(Name, &Options) -> _) = (String::new(), |_, _| None);
        let open = Err(why);
        Kind {
            name,
            version,
            note: why,
            in_memory: false,
            updates: false,
            recovers: false,
            memory_min: 0,
            open,
            adds: None,
            refuses,
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is missing, has too little memory, or does not run the operator.
    pub fn open(&self, open: &Open) -> Result<Box<dyn Engine>> {
        self.check(open.operator, &open.options, open.memory_bytes)?;
        (self.open.map_err(|why| Error::Usage(why.to_owned()))?)(open)
    }

    /// Says why a run is not possible, if it is not.
    ///
    /// # Errors
    /// [`Error::Usage`], as for [`open`](Self::open).
    pub fn check(&self, operator: Name, options: &Options, memory_bytes: u64) -> Result<()> {
        let refuse = |why: String| Err(Error::Usage(format!("{}: {why}", self.name)));
        if let Err(why) = self.open {
            return refuse(why.to_owned());
        }
        if memory_bytes < self.memory_min {
            let least = self.memory_min >> 20;
            return refuse(format!(
                "{} MiB of memory; {least} MiB is the least",
                memory_bytes >> 20
            ));
        }
        match (self.refuses)(operator, options) {
            Some(why) => refuse(why.to_owned()),
            None => Ok(()),
        }
    }
}

/// The engines without a native build.
pub fn built_in() -> Vec<Kind> {
    let mut kinds = vec![
        Kind { updates: false, ..Kind::in_memory("btree", BTREE, |_| Ok(Box::<BTree>::default())) },
        Kind::in_memory("hashbrown", HASH, |open| Ok(Box::new(hash::Hash::new(open.ranges())))),
    ];
    kinds.extend(ours::kinds());
    kinds
}

const BTREE: &str = "std BTreeMap of byte vectors; the model's twin; memory is unbounded";
const HASH: &str = "hashbrown with foldhash; updates in place; ranges by an ordered set of keys \
                    beside it; memory is unbounded";

/// Bytes of the files below a directory; 0 where there is none.
pub fn bytes_in(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_in(&entry.path()),
        // Sparse files take what is allocated.
        Ok(data) => std::os::unix::fs::MetadataExt::blocks(&data) * 512,
        Err(_) => 0,
    });
    sizes.sum()
}
