//! A layout of the public trait over any engine of bytes, so that operators themselves run on it.
//!
//! A value is decoded with each read and encoded with each change, which is what a store of bytes
//! costs its users; the time of that is told. One engine keeps all states of a worker, or each state
//! has one of its own. For measurements only: there are no checkpoints, no scans and no key groups
//! that move, and the engine's memory is its own, outside of the store's account.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use alluvium::backend::{
    BlobWriter, CheckpointOutcome, Cursor, Encoded, EntryCodec, Error, ErrorKind, Key, Layout,
    Lookup, Merge, PanesLayout, Peek, Rejected, Result, State, StateContext, StateImage, Table,
    TablePanes, TableStats, Time, Upkeep, WindowLayout,
};
use rkyv::util::AlignedVec;

use crate::engine::{Engine, Kind, Open};
use crate::operator::{Name, Options};

/// One call of so many is timed.
const CALLS_A_SAMPLE: u64 = 16;
/// Stands for the other half of an entry where only a key or a value is encoded.
const NOTHING: u8 = 0;

/// How the states of a worker are kept.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The engine.
    pub kind: Kind,
    /// Directories of engines are made in it.
    pub directory: PathBuf,
    /// Memory of a worker's engines together.
    pub memory_bytes: u64,
    /// One engine keeps all states.
    pub is_monolithic: bool,
    /// Otherwise the memory of each state, in parts of 16; a state that is not named has one part.
    pub parts: &'static [(&'static str, u64)],
    /// Keys that may come, for engines that are sized ahead.
    pub keys: usize,
    /// Where the time of encoding and decoding goes.
    pub codec: Arc<CodecTime>,
}

/// Time of encoding and decoding, of all workers.
#[derive(Debug, Default)]
pub struct CodecTime {
    ns: AtomicU64,
    calls: AtomicU64,
}

impl CodecTime {
    /// Nanoseconds, from samples.
    pub fn ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }

    /// Calls.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn took<R>(&self, work: impl FnOnce() -> R) -> R {
        if self.calls.fetch_add(1, Ordering::Relaxed) % CALLS_A_SAMPLE != 0 {
            return work();
        }
        let began = Instant::now();
        let done = work();
        let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.ns.fetch_add(ns.saturating_mul(CALLS_A_SAMPLE), Ordering::Relaxed);
        done
    }
}

type Shared = Rc<RefCell<Box<dyn Engine>>>;

/// Directories of engines are numbered over all workers of the process.
static DIRECTORIES: AtomicU64 = AtomicU64::new(0);

/// The layout of one worker.
#[derive(Clone)]
pub struct ByBytes(Rc<Worker>);

struct Worker {
    plan: Plan,
    /// The engine of all states, as long as there are any.
    shared: RefCell<Weak<RefCell<Box<dyn Engine>>>>,
    states: Cell<u16>,
}

impl ByBytes {
    /// A layout whose states are kept as planned.
    pub fn new(plan: Plan) -> Self {
        ByBytes(Rc::new(Worker { plan, shared: RefCell::default(), states: Cell::new(0) }))
    }

    fn engine(&self, state: &str) -> Result<Shared> {
        let plan = &self.0.plan;
        if !plan.is_monolithic {
            let named = plan.parts.iter().find(|(name, _)| *name == state);
            let parts = named.map_or(1, |(_, parts)| *parts);
            return self.open_engine(plan.memory_bytes / 16 * parts);
        }
        if let Some(shared) = self.0.shared.borrow().upgrade() {
            return Ok(shared);
        }
        let engine = self.open_engine(plan.memory_bytes)?;
        *self.0.shared.borrow_mut() = Rc::downgrade(&engine);
        Ok(engine)
    }

    fn open_engine(&self, memory_bytes: u64) -> Result<Shared> {
        let plan = &self.0.plan;
        let number = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
        let directory = plan.directory.join(format!("engine-{number}"));
        std::fs::create_dir_all(&directory)
            .map_err(|source| Error::from(crate::Error::io(&directory, "make", source)))?;
        let open = Open {
            directory,
            // What an engine needs at least it gets: a state that is small has no more.
            memory_bytes: memory_bytes.max(plan.kind.memory_min),
            operator: Name::Aggregation,
            options: Options::default(),
            events: plan.keys,
        };
        Ok(Rc::new(RefCell::new(plan.kind.open(&open)?)))
    }
}

impl<K: Key, V: State> Layout<K, V> for ByBytes {
    type Table = BytesTable<K, V>;

    fn name(&self) -> &'static str {
        self.0.plan.kind.name
    }

    fn open(&self, context: StateContext) -> Result<BytesTable<K, V>> {
        let number = self.0.states.get();
        self.0.states.set(number + 1);
        let mut nothing = AlignedVec::new();
        nothing.push(NOTHING);
        Ok(BytesTable {
            engine: self.engine(&context.name)?,
            prefix: number.to_be_bytes(),
            keys: EntryCodec::new(),
            values: EntryCodec::new(),
            encoded: Encoded::default(),
            key: Vec::new(),
            read: AlignedVec::new(),
            nothing,
            held: None,
            len: 0,
            codec: self.0.plan.codec.clone(),
            name: context.name,
        })
    }
}

/// An open state: its keys have its number before them.
pub struct BytesTable<K, V> {
    engine: Shared,
    prefix: [u8; 2],
    keys: EntryCodec<K, u8>,
    values: EntryCodec<u8, V>,
    encoded: Encoded,
    /// The key at hand.
    key: Vec<u8>,
    /// The value at hand.
    read: AlignedVec,
    /// The key's half of an entry whose value is decoded.
    nothing: AlignedVec,
    /// The value that was lent last.
    held: Option<V>,
    len: u64,
    codec: Arc<CodecTime>,
    name: String,
}

impl<K: Key, V: State> BytesTable<K, V> {
    /// Encodes a key and reads its value.
    fn load(&mut self, key: &K) -> Result<Option<V>> {
        let (keys, encoded) = (&self.keys, &mut self.encoded);
        self.codec.took(|| keys.encode(encoded, key, &NOTHING))?;
        self.key.clear();
        self.key.extend_from_slice(&self.prefix);
        self.key.extend_from_slice(&self.encoded.key);
        let (mut found, read) = (false, &mut self.read);
        self.engine.borrow_mut().get(&self.key, &mut |value| {
            read.clear();
            found = value.is_some();
            read.extend_from_slice(value.unwrap_or_default());
        })?;
        if !found {
            return Ok(None);
        }
        let decoded = self.codec.took(|| self.values.decode(&self.nothing, &self.read));
        Ok(Some(decoded?.1))
    }

    /// Encodes and writes the value of the key at hand.
    fn store(&mut self, value: &V) -> Result<()> {
        let (values, encoded) = (&self.values, &mut self.encoded);
        self.codec.took(|| values.encode(encoded, &NOTHING, value))?;
        Ok(self.engine.borrow_mut().put(&self.key, &self.encoded.value)?)
    }

    fn refused<T>(&self, what: &str) -> Result<T> {
        let message = format!("a state on an engine of bytes has no {what}");
        Err(Error::new(ErrorKind::Unsupported, message).with("state", &self.name))
    }
}

impl<K: Key, V: State> Table<K, V> for BytesTable<K, V> {
    fn len(&self) -> u64 {
        self.len
    }

    fn get<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<&V>> {
        self.held = self.load(&key.to_owned())?;
        Ok(self.held.as_ref())
    }

    fn peek<Q: Lookup<K> + ?Sized>(&self, _: &Q) -> Peek<'_, V> {
        Peek::Unknown
    }

    fn update<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        init: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R> {
        let found = self.load(&key.to_owned())?;
        let is_new = found.is_none();
        let mut value = found.unwrap_or_else(init);
        let told = change(&mut value);
        self.store(&value)?;
        self.len += u64::from(is_new);
        Ok(told)
    }

    fn modify<Q: Lookup<K> + ?Sized, R>(
        &mut self,
        key: &Q,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>> {
        let Some(mut value) = self.load(&key.to_owned())? else { return Ok(None) };
        let told = change(&mut value);
        self.store(&value)?;
        Ok(Some(told))
    }

    fn put(&mut self, key: K, value: V) -> std::result::Result<bool, Rejected<(K, V)>> {
        let was_there = self.load(&key).and_then(|found| {
            self.store(&value)?;
            Ok(found.is_some())
        });
        match was_there {
            Ok(was_there) => {
                self.len += u64::from(!was_there);
                Ok(was_there)
            }
            Err(error) => Err(Rejected::new(error, (key, value))),
        }
    }

    fn take<Q: Lookup<K> + ?Sized>(&mut self, key: &Q) -> Result<Option<V>> {
        let found = self.load(&key.to_owned())?;
        if found.is_some() {
            self.engine.borrow_mut().delete(&self.key)?;
            self.len -= 1;
        }
        Ok(found)
    }

    fn clear(&mut self) -> Result<()> {
        self.refused("clear")
    }

    fn scan(
        &mut self,
        _: &mut Cursor,
        _: usize,
        _: &mut dyn FnMut(&K, &V) -> Result<()>,
    ) -> Result<()> {
        self.refused("scan")
    }
}

impl<K: Key, V: State> Upkeep for BytesTable<K, V> {
    fn checkpoint(&mut self, _: &mut BlobWriter) -> Result<StateImage> {
        self.refused("checkpoint")
    }

    fn checkpointed(&mut self, _: CheckpointOutcome) {}

    fn stats(&self) -> TableStats {
        TableStats { live_keys: self.len, ..TableStats::default() }
    }
}

impl<K: Key, A: State> PanesLayout<K, A> for ByBytes {
    type Panes = TablePanes<K, A, BytesTable<(Time, K), A>>;

    fn name(&self) -> &'static str {
        self.0.plan.kind.name
    }

    fn open_panes(&self, context: StateContext, merge: Merge<A>) -> Result<Self::Panes> {
        TablePanes::open(self, context, merge)
    }
}

impl<K: Key, A: State> WindowLayout<K, A> for ByBytes {
    type Panes = ByBytes;
    type Sessions = ByBytes;

    fn panes(&self) -> ByBytes {
        self.clone()
    }

    fn sessions(&self) -> ByBytes {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::engine::built_in;
    use crate::random::Random;
    use alluvium::time::nanos;
    use alluvium::{Aggregated, Counting, MIB, Map, Store, Windows};

    fn plan(name: &str, is_monolithic: bool, directory: &std::path::Path) -> Plan {
        let kind = built_in().into_iter().find(|kind| kind.name == name).unwrap();
        Plan {
            kind,
            directory: directory.to_owned(),
            memory_bytes: 64 << 20,
            is_monolithic,
            parts: &[("words", 8)],
            keys: 1_000,
            codec: Arc::default(),
        }
    }

    /// Two states with the same keys: catches keys of one that are seen by the other, a length that is
    /// wrong, and a value that is not written back.
    #[test]
    fn two_states_answer_as_maps_do_also_on_one_engine() {
        for (name, is_monolithic) in [("btree", true), ("hashbrown", false), ("ours-heap", true)] {
            let dir = tempfile::tempdir().unwrap();
            let plan = plan(name, is_monolithic, dir.path());
            let codec = plan.codec.clone();
            let layout = ByBytes::new(plan);
            let store = Store::in_memory().memory(16 * MIB).open().unwrap();
            let mut words: Map<u64, String, ByBytes> =
                store.map("words").layout(layout.clone()).open().unwrap();
            let mut counts: Map<u64, Vec<u64>, ByBytes> =
                store.map("counts").layout(layout).open().unwrap();
            let (mut word_model, mut count_model) = (BTreeMap::new(), BTreeMap::new());
            let mut random = Random::new(3);
            for _ in 0..3_000 {
                let (key, value) = (random.below(40), random.below(1_000));
                match random.below(5) {
                    0 => {
                        words.put(key, format!("{value}")).unwrap();
                        word_model.insert(key, format!("{value}"));
                    }
                    1 => {
                        let found = words.remove(&key).unwrap();
                        assert_eq!(found, word_model.remove(&key).is_some());
                    }
                    2 => {
                        counts.update(&key, Vec::new, |all| all.push(value)).unwrap();
                        count_model.entry(key).or_insert_with(Vec::new).push(value);
                    }
                    3 => {
                        let found = counts.remove(&key).unwrap();
                        assert_eq!(found, count_model.remove(&key).is_some());
                    }
                    _ => {
                        let found = words.read(&key, |word| word.cloned()).unwrap();
                        assert_eq!(found.as_ref(), word_model.get(&key));
                        let found = counts.read(&key, |all| all.cloned()).unwrap();
                        assert_eq!(found.as_ref(), count_model.get(&key));
                    }
                }
                assert_eq!(words.len().unwrap(), word_model.len() as u64);
                assert_eq!(counts.len().unwrap(), count_model.len() as u64);
            }
            assert!(codec.calls() > 3_000 && codec.ns() > 0, "{codec:?}");
        }
    }

    #[test]
    fn windows_are_counted_on_an_engine_of_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let layout = ByBytes::new(plan("btree", false, dir.path()));
        let store = Store::in_memory().memory(16 * MIB).open().unwrap();
        let windows = Windows::sliding(nanos(10), nanos(5));
        let mut counts: Aggregated<u64, (), Counting, ByBytes> =
            store.aggregated("counts").layout(layout).open(windows, Counting).unwrap();
        let mut batch: Vec<_> =
            [(1, 3), (1, 7), (2, 7), (1, 12)].map(|(key, at)| (key, Time(at), ())).into();
        counts.add_batch(Time(0), &mut batch, &mut |_| {}, &mut |_, _, _, _| {}).unwrap();
        let mut told = Vec::new();
        let tell = &mut |key: &u64, window: alluvium::Window, count: i64, _: _| {
            told.push((window.start.0, *key, count));
        };
        counts.advance_all(Time(100), tell).unwrap();
        told.sort_unstable();
        let expected = [(-5, 1, 1), (0, 1, 2), (0, 2, 1), (5, 1, 2), (5, 2, 1), (10, 1, 1)];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_it_does_not_do_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let layout = ByBytes::new(plan("btree", false, dir.path()));
        let store = Store::in_memory().memory(16 * MIB).open().unwrap();
        let mut map: Map<u64, u64, ByBytes> = store.map("map").layout(layout).open().unwrap();
        let message = map.clear().unwrap_err().to_string();
        assert!(message.contains("engine of bytes has no clear"), "{message}");
    }
}
