//! Read-only tables that the workers of a process share: side inputs, dimensions, dictionaries.
//!
//! A table is loaded once, never changes afterwards, and is read without any lock. State that is
//! written is never shared: a second writer would need a lock or a message on each access, and its
//! changes would come between the records and the checkpoint of the other; keyed state is divided
//! by key instead, and each part has one owner.
//!
//! Rows stand in chunks that never move, so that loading needs no more memory than the table; a
//! table of row numbers, half full at most, leads from hashes to them.

use std::any::{Any, type_name};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, OnceLock};

use alluvium::states::Lookup;
use alluvium::types::rounded;
use alluvium::{Error, ErrorKind, Key, Result, State};

/// Bytes of a chunk of rows, unless a single row is larger.
const CHUNK_BYTES: usize = 16 << 10;
/// A place without a row.
const NO_ROW: u32 = u32::MAX;

/// A read-only table. Cheap to clone: all clones are the same table.
///
/// Declare it with [`NodeConfig::table`](crate::NodeConfig::table) and get it with
/// [`WorkerState::table`](crate::WorkerState::table). It is loaded once per process. Checkpoints do
/// not contain it. For a table that changes use keyed state and [`LookupJoin`](crate::LookupJoin).
///
/// ```
/// use alluvium::MIB;
/// use alluvium::config::ByteSize;
/// use alluvium_timely::{NodeConfig, TableLoader, execute};
///
/// let node = NodeConfig::default().table(
///     "names",
///     ByteSize(MIB),
///     |table: &mut TableLoader<u64, String>| table.extend([(1, "ann".into()), (2, "bob".into())]),
/// );
/// execute(timely::Config::process(2), node, |_, state| {
///     let names = state.table::<u64, String>("names")?;
///     assert_eq!(names.get(&2).map(String::as_str), Some("bob"));
///     Ok(())
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub struct SharedTable<K, V>(Arc<TableRows<K, V>>);

struct TableRows<K, V> {
    chunks: Vec<Vec<(K, V)>>,
    /// Row numbers by hash, a power of two of them.
    places: Box<[u32]>,
    rows: usize,
    bytes: u64,
}

impl<K: Key, V> SharedTable<K, V> {
    /// The value of `key`. Cost: two cache misses.
    #[inline]
    pub fn get<Q: Lookup<K> + ?Sized>(&self, key: &Q) -> Option<&V> {
        let Self(rows) = self;
        let (_, row) = rows.find(key.key_hash(), |found| key.is(found)).ok()?;
        Some(&row.1)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.rows
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that the table takes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }
}

impl<K, V> TableRows<K, V> {
    const PER_CHUNK: usize = {
        let row = size_of::<(K, V)>();
        if row == 0 || row > CHUNK_BYTES { 1 } else { CHUNK_BYTES / row }
    };

    fn row(&self, number: u32) -> &(K, V) {
        let number = number as usize;
        &self.chunks[number / Self::PER_CHUNK][number % Self::PER_CHUNK]
    }

    /// The row that `is` what is looked for, or else the place for it.
    #[inline]
    fn find(
        &self,
        hash: u64,
        is: impl Fn(&K) -> bool,
    ) -> std::result::Result<(usize, &(K, V)), usize> {
        let mask = self.places.len() - 1;
        let mut place = hash as usize & mask;
        loop {
            match self.places[place] {
                NO_ROW => return Err(place),
                number if is(&self.row(number).0) => return Ok((place, self.row(number))),
                _ => place = (place + 1) & mask,
            }
        }
    }
}

impl<K, V> Clone for SharedTable<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> fmt::Debug for SharedTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTable")
            .field("rows", &self.0.rows)
            .field("bytes", &self.0.bytes)
            .finish_non_exhaustive()
    }
}

/// Takes the rows of a [`SharedTable`], each byte of which it books before it is taken.
pub struct TableLoader<K, V> {
    name: String,
    limit: u64,
    rows: TableRows<K, V>,
}

impl<K, V> fmt::Debug for TableLoader<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, limit, rows } = self;
        f.debug_struct("TableLoader")
            .field("name", name)
            .field("limit", limit)
            .field("rows", &rows.rows)
            .finish_non_exhaustive()
    }
}

impl<K: Key, V: State> TableLoader<K, V> {
    fn new(name: &str, limit: u64) -> Self {
        let rows = TableRows { chunks: Vec::new(), places: Box::default(), rows: 0, bytes: 0 };
        Self { name: name.to_owned(), limit, rows }
    }

    /// Memory of a table of so many rows, without the heap that keys and values own.
    pub fn bytes_for(rows: usize) -> u64 {
        let chunks = rows.div_ceil(TableRows::<K, V>::PER_CHUNK);
        let table = rounded(grown(chunks) * size_of::<Vec<(K, V)>>());
        // While the table of chunks grows, there are two.
        let old = rounded(grown(chunks) / 2 * size_of::<Vec<(K, V)>>());
        let places = rounded(places_for(rows) * size_of::<u32>());
        (chunks * chunk_bytes::<K, V>() + table + old.max(places)) as u64
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`] if the table declared too little memory.
    pub fn insert(&mut self, key: K, value: V) -> Result<()> {
        let owned = key.heap_bytes() + value.heap_bytes();
        self.book(owned)?;
        if self.rows.rows == NO_ROW as usize {
            return Err(self.refused(ErrorKind::Unsupported, "is too long"));
        }
        if self.rows.rows % TableRows::<K, V>::PER_CHUNK == 0 {
            self.add_chunk()?;
        }
        if let Some(chunk) = self.rows.chunks.last_mut() {
            chunk.push((key, value));
        }
        self.rows.rows += 1;
        Ok(())
    }

    /// Adds rows.
    ///
    /// # Errors
    /// As [`insert`](TableLoader::insert).
    pub fn extend(&mut self, rows: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        rows.into_iter().try_for_each(|(key, value)| self.insert(key, value))
    }

    fn add_chunk(&mut self) -> Result<()> {
        let chunks = self.rows.chunks.len();
        if chunks == grown(chunks) {
            let table = |chunks: usize| rounded(chunks * size_of::<Vec<(K, V)>>());
            let (old, new) = (grown(chunks), grown(chunks + 1));
            self.book(table(new))?;
            self.rows.chunks.reserve_exact(new - chunks);
            self.rows.bytes -= table(old) as u64;
        }
        self.book(chunk_bytes::<K, V>())?;
        self.rows.chunks.push(Vec::with_capacity(TableRows::<K, V>::PER_CHUNK));
        Ok(())
    }

    /// Leads from hashes to the rows.
    fn finish(mut self) -> Result<SharedTable<K, V>> {
        let places = places_for(self.rows.rows);
        self.book(rounded(places * size_of::<u32>()))?;
        self.rows.places = vec![NO_ROW; places].into();
        for number in 0..self.rows.rows {
            let row = u32::try_from(number).unwrap_or(NO_ROW);
            let key = &self.rows.row(row).0;
            match self.rows.find(key.key_hash(), |found| found == key) {
                Err(place) => self.rows.places[place] = row,
                Ok((place, _)) => {
                    let first = self.rows.places[place];
                    let message = format!("has one key in rows {first} and {row}, counted from 0");
                    return Err(self.refused(ErrorKind::Input, &message));
                }
            }
        }
        Ok(SharedTable(Arc::new(self.rows)))
    }

    fn book(&mut self, bytes: usize) -> Result<()> {
        let free = self.limit - self.rows.bytes;
        if bytes as u64 > free {
            let (limit, row) = (self.limit, self.rows.rows);
            let message = format!("needs {bytes} of {limit} bytes at row {row}, {free} are free");
            return Err(self.refused(ErrorKind::OverBudget, &message));
        }
        self.rows.bytes += bytes as u64;
        Ok(())
    }

    fn refused(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, format!("shared table {:?} {message}", self.name))
    }
}

/// Bytes of a chunk as the allocator rounds them.
fn chunk_bytes<K, V>() -> usize {
    rounded(TableRows::<K, V>::PER_CHUNK * size_of::<(K, V)>())
}

/// Room for this many chunks in the table of chunks: the powers of two, from 4 on.
fn grown(chunks: usize) -> usize {
    if chunks == 0 { 0 } else { chunks.next_power_of_two().max(4) }
}

/// Places that rows need.
fn places_for(rows: usize) -> usize {
    (rows * 2).next_power_of_two()
}

type Loaded = Box<dyn Any + Send + Sync>;

/// A table that a node declares.
#[derive(Clone)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) memory_bytes: u64,
    /// What keys and values are, for whoever asks for others.
    types: [&'static str; 2],
    load: Arc<dyn Fn() -> Result<Loaded> + Send + Sync>,
}

impl Declared {
    pub(crate) fn new<K: Key, V: State>(
        name: String,
        memory_bytes: u64,
        fill: impl Fn(&mut TableLoader<K, V>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let named = name.clone();
        let load = move || {
            let mut loader = TableLoader::<K, V>::new(&named, memory_bytes);
            fill(&mut loader)?;
            Ok(Box::new(loader.finish()?) as Loaded)
        };
        let types = [type_name::<K>(), type_name::<V>()];
        Self { name, memory_bytes, types, load: Arc::new(load) }
    }
}

impl fmt::Debug for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, memory_bytes, types, .. } = self;
        f.debug_struct("Declared")
            .field("name", name)
            .field("memory_bytes", memory_bytes)
            .field("types", types)
            .finish_non_exhaustive()
    }
}

/// The tables of a process, loaded or not.
pub(crate) struct SharedTables(BTreeMap<String, DeclaredTable>);

struct DeclaredTable {
    declared: Declared,
    /// Why it could not be loaded, else; errors cannot be cloned.
    loaded: OnceLock<std::result::Result<Loaded, (ErrorKind, String)>>,
}

impl SharedTables {
    pub(crate) fn new(declared: &[Declared]) -> Result<Self> {
        let mut tables = BTreeMap::new();
        for declared in declared {
            match tables.entry(declared.name.clone()) {
                Entry::Vacant(place) => {
                    place.insert(DeclaredTable {
                        declared: declared.clone(),
                        loaded: OnceLock::new(),
                    });
                }
                Entry::Occupied(_) => {
                    let message = format!("two shared tables are named {:?}", declared.name);
                    return Err(Error::new(ErrorKind::Config, message));
                }
            }
        }
        Ok(Self(tables))
    }

    /// The table with this name; loads it if nobody has yet, and waits while somebody does.
    pub(crate) fn get<K: Key, V: State>(&self, name: &str) -> Result<SharedTable<K, V>> {
        let Some(table) = self.0.get(name) else {
            let message = format!("the node declares no shared table {name:?}");
            return Err(Error::new(ErrorKind::UnknownState, message));
        };
        let load = || (table.declared.load)().map_err(|error| (error.kind(), error.to_string()));
        match table.loaded.get_or_init(load) {
            Err((kind, message)) => Err(Error::new(*kind, message.clone())),
            Ok(loaded) => loaded.downcast_ref::<SharedTable<K, V>>().cloned().ok_or_else(|| {
                let ([key, value], asked) =
                    (table.declared.types, [type_name::<K>(), type_name::<V>()]);
                let message = format!(
                    "shared table {name:?} has {value} by {key}, not {} by {}",
                    asked[1], asked[0]
                );
                Error::new(ErrorKind::Mismatch, message)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load<K: Key, V: State>(limit: u64, rows: Vec<(K, V)>) -> Result<SharedTable<K, V>> {
        let mut loader = TableLoader::new("t", limit);
        loader.extend(rows)?;
        loader.finish()
    }

    #[test]
    fn every_key_is_found_and_no_other() {
        for rows in [0u64, 1, 2, 1_000, 20_000] {
            let table = load(1 << 24, (0..rows).map(|n| (n * 7, n.to_string())).collect()).unwrap();
            assert_eq!((table.len() as u64, table.is_empty()), (rows, rows == 0));
            for key in 0..rows * 7 + 10 {
                let expected = (key % 7 == 0 && key / 7 < rows).then(|| (key / 7).to_string());
                assert_eq!(table.get(&key), expected.as_ref(), "{key} of {rows}");
            }
        }
        let words = vec![("to".to_owned(), 1u8), ("be".to_owned(), 2)];
        let table = load(1 << 20, words).unwrap();
        assert_eq!((table.get("be"), table.get("or")), (Some(&2), None));
    }

    #[test]
    fn a_table_fits_into_what_its_rows_are_said_to_need_and_not_into_less() {
        for rows in [0usize, 1, 1_000, 1_024, 1_025, 5_000, 100_000] {
            let pairs = || (0..rows as u64).map(|n| (n, n)).collect::<Vec<_>>();
            let needed = TableLoader::<u64, u64>::bytes_for(rows);
            let table = load(needed, pairs()).unwrap();
            assert!(table.bytes() <= needed && needed < table.bytes() * 3 / 2 + 64);
            // What is booked before the last allocation is there as well.
            let refused = load(table.bytes() - 1, pairs()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OverBudget);
            assert!(refused.to_string().contains("shared table \"t\" needs"), "{refused}");
        }
        let long = vec![(1u64, "x".repeat(5_000))];
        let refused = load(20_000, long).unwrap_err();
        assert!(refused.to_string().contains("are free"), "{refused}");
    }

    #[test]
    fn a_key_that_occurs_twice_is_refused() {
        let refused = load(1 << 20, vec![(1u64, 1u64), (2, 2), (1, 3)]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Input);
        assert!(refused.to_string().contains("rows 0 and 2"), "{refused}");
    }
}
