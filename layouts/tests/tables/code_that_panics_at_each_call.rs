//! A user's code panics at its nth call, for every n of a short history with a checkpoint in it: hashes, comparisons,
//! clones, drops, measurements, encodings and decodings, on the heap and in a hybrid log. After each panic a key has
//! what it had or what it was to get, and the table goes on.
//!
//! What this catches: a key that is lost, or counted twice, whose call panicked; a checkpoint with half of a change,
//! or a table that takes none any more; memory that stays booked, or a value that is dropped twice or never.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{
    CheckpointOutcome, Heap, HybridLog, Layout, Pace, StateContext, Table, Upkeep,
};
use alluvium_pagestore::io::{CrashPolicy, Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, Error, ErrorKind, HeapSize, Helper, KIB, KeyHash, MIB,
    MemoryKind, Schema, SegmentStore, State, StateImage, blobs_name, hash_word,
};
use rkyv::rancor::Fallible;
use rkyv::{Archive, Deserialize, Place, Serialize};

/// Code of the user that a table calls.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Hash,
    Compare,
    Clone,
    Drop,
    Measure,
    Encode,
    Decode,
}

thread_local! {
    /// The call that panics, and how many of them come before.
    static PLAN: Cell<Option<(Call, u64)>> = const { Cell::new(None) };
    /// Values made and not dropped.
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn called(call: Call) {
    let Some((planned, before)) = PLAN.get() else { return };
    if planned == call && !std::thread::panicking() {
        PLAN.set(before.checked_sub(1).map(|before| (planned, before)));
        assert!(before > 0, "planned");
    }
}

/// Looks at something, while nothing panics.
fn quietly<R>(look: impl FnOnce() -> R) -> R {
    let plan = PLAN.take();
    let found = look();
    PLAN.set(plan);
    found
}

/// Half of the hashes agree.
#[derive(Debug, Eq, alluvium_derive::State, Archive, Serialize, Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Key(u64);

impl Clone for Key {
    fn clone(&self) -> Self {
        called(Call::Clone);
        Key(self.0)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        called(Call::Compare);
        self.0 == other.0
    }
}

impl KeyHash for Key {
    fn key_hash(&self) -> u64 {
        called(Call::Hash);
        hash_word(self.0 / 2)
    }
}

/// A value that tells its number.
trait Item: State {
    fn of(n: u64) -> Self;
    fn number(&self) -> u64;
}

#[derive(Archive, Serialize, Deserialize)]
struct Words(String);

/// A value that owns heap.
struct Owned(Words);

impl Item for Owned {
    fn of(n: u64) -> Self {
        LIVE.set(LIVE.get() + 1);
        Owned(Words(format!("{n:width$}", width = 10 + n as usize % 40)))
    }

    fn number(&self) -> u64 {
        self.0.0.trim().parse().unwrap()
    }
}

impl Clone for Owned {
    fn clone(&self) -> Self {
        called(Call::Clone);
        Self::of(self.number())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        LIVE.set(LIVE.get() - 1);
        called(Call::Drop);
    }
}

impl HeapSize for Owned {
    const NO_HEAP: bool = false;
    fn heap_bytes(&self) -> usize {
        called(Call::Measure);
        self.0.0.heap_bytes()
    }
}

impl Schema for Owned {
    fn describe(out: &mut String) {
        out.push_str("Owned");
    }
}

impl Archive for Owned {
    type Archived = ArchivedWords;
    type Resolver = WordsResolver;
    fn resolve(&self, resolver: Self::Resolver, out: Place<Self::Archived>) {
        self.0.resolve(resolver, out);
    }
}

impl<S: Fallible + ?Sized> Serialize<S> for Owned
where
    Words: Serialize<S>,
{
    fn serialize(&self, serializer: &mut S) -> Result<Self::Resolver, S::Error> {
        called(Call::Encode);
        self.0.serialize(serializer)
    }
}

impl<D: Fallible + ?Sized> Deserialize<Owned, D> for ArchivedWords
where
    ArchivedWords: Deserialize<Words, D>,
{
    fn deserialize(&self, deserializer: &mut D) -> Result<Owned, D::Error> {
        called(Call::Decode);
        let words = Deserialize::<Words, D>::deserialize(self, deserializer)?;
        LIVE.set(LIVE.get() + 1);
        Ok(Owned(words))
    }
}

/// A value without heap, which nothing is to be dropped of.
#[derive(alluvium_derive::State, Archive, Serialize, Deserialize)]
#[state(crate = alluvium_pagestore)]
struct Flat([u64; 5]);

impl Item for Flat {
    fn of(n: u64) -> Self {
        Flat([n; 5])
    }

    fn number(&self) -> u64 {
        assert!(self.0.iter().all(|n| *n == self.0[0]));
        self.0[0]
    }
}

impl Clone for Flat {
    fn clone(&self) -> Self {
        called(Call::Clone);
        Flat(self.0)
    }
}

/// Errors that a panic in a helper's work may become.
fn is_planned(error: &Error) {
    let kinds = [ErrorKind::Poisoned, ErrorKind::Overtaken, ErrorKind::Backpressure];
    assert!(kinds.contains(&error.kind()), "{error:?}");
}

type Model = BTreeMap<u64, u64>;

const KEYS: u64 = 40;

struct History<L: Layout<Key, V>, V: Item> {
    layout: L,
    device: Simulated,
    segments: SegmentStore,
    account: Rc<Account>,
    table: L::Table,
    model: Model,
    number: u64,
    /// Calls that panicked, and errors told.
    panics: u64,
    errors: u64,
}

fn open<L: Layout<Key, V>, V: Item>(
    layout: &L,
    segments: &SegmentStore,
    memory: u64,
    image: Option<&StateImage>,
) -> Result<(L::Table, Rc<Account>), Error> {
    let account = Account::root(memory);
    let context = StateContext {
        name: "touchy".into(),
        account: account.clone(),
        segments: Some(segments.clone()),
        helper: Helper::inline(),
        max_value_bytes: 512,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: image.map(|image| (image.clone(), BlobReader::new(segments.shared_device()))),
    };
    Ok((layout.open(context)?, account))
}

impl<L: Layout<Key, V>, V: Item> History<L, V> {
    fn new(layout: L, memory: u64) -> Self {
        let device = Simulated::new(1, Faults::none());
        let segments = SegmentStore::new(Arc::new(device.clone()), 1);
        let (table, account) = open::<L, V>(&layout, &segments, memory, None).unwrap();
        let (model, number, panics, errors) = (Model::new(), 0, 0, 0);
        Self { layout, device, segments, account, table, model, number, panics, errors }
    }

    /// The value of a key. An error of before may be told yet.
    fn found(&mut self, key: u64) -> Option<u64> {
        for _ in 0..3 {
            match self.table.get(&Key(key)) {
                Ok(value) => return value.map(V::number),
                Err(error) => is_planned(&error),
            }
        }
        panic!("{key} cannot be read")
    }

    /// Calls the table. After a panic or an error each of the keys has what it had, or what it was to get.
    fn change(
        &mut self,
        keys: &[u64],
        new: impl Fn(Option<u64>) -> Option<u64>,
        call: impl FnOnce(&mut L::Table) -> Result<(), Error>,
    ) {
        let done = catch_unwind(AssertUnwindSafe(|| call(&mut self.table)));
        let is_whole = matches!(done, Ok(Ok(())));
        self.panics += u64::from(done.is_err());
        if let Ok(Err(error)) = done {
            is_planned(&error);
            self.errors += 1;
        }
        quietly(|| {
            for key in keys {
                let (found, old) = (self.found(*key), self.model.get(key).copied());
                let is_new = found == new(old);
                assert!(is_new || !is_whole && found == old, "{key}: {found:?}, it was {old:?}");
                match found {
                    Some(found) => self.model.insert(*key, found),
                    None => self.model.remove(key),
                };
            }
            assert_eq!(self.table.len(), self.model.len() as u64, "{keys:?}");
        });
    }

    fn put(&mut self, key: u64, n: u64) {
        let put = |table: &mut L::Table| {
            let put = table.put(Key(key), V::of(n));
            put.map(drop).map_err(|rejected| rejected.error)
        };
        self.change(&[key], |_| Some(n), put);
    }

    /// A call of each kind.
    fn change_some(&mut self, round: u64) {
        let key = |nth: u64| (7 * round + 3 * nth) % KEYS;
        let n = 100 * (round + 1);
        self.put(key(0), n);
        self.put(key(1), n + 1);
        let update = |table: &mut L::Table| {
            table.update(&Key(key(2)), || V::of(n + 2), |value| *value = V::of(n + 2))
        };
        self.change(&[key(2)], |_| Some(n + 2), update);
        let modify = |table: &mut L::Table| {
            table.modify(&Key(key(3)), |value| *value = V::of(n + 3)).map(drop)
        };
        self.change(&[key(3)], |old| old.map(|_| n + 3), modify);
        self.change(&[key(4)], |_| None, |table| table.take(&Key(key(4))).map(drop));
        self.change(&[key(5)], |_| None, |table| table.remove(&Key(key(5))).map(drop));
        let batch: Vec<_> = quietly(|| (6..12).map(|nth| Key(key(nth))).collect());
        let keys: Vec<_> = batch.iter().map(|key| key.0).collect();
        let update = |table: &mut L::Table| {
            let change = |_: &Key, value: &mut V| *value = V::of(n + 6);
            let done = table.update_batch(&batch, |key| key, |_| V::of(n + 6), change);
            done.map_err(|stopped| stopped.error)
        };
        self.change(&keys, |_| Some(n + 6), update);
        self.change(&[key(12)], |old| old, |table| table.get(&Key(key(12))).map(drop));
    }

    /// Takes a checkpoint while the table changes. It has what there was at its barrier, or is an error.
    fn checkpoint(&mut self, rounds: std::ops::Range<u64>) {
        self.number += 1;
        let mut blobs = BlobWriter::new(self.segments.shared_device(), self.number, 4096);
        let then = self.model.clone();
        let begun = catch_unwind(AssertUnwindSafe(|| self.table.begin_checkpoint(&mut blobs)));
        let mut image = self.of_share(begun);
        for round in rounds {
            self.change_some(round);
            if let Ok(None) = image {
                image = self.share(&mut blobs, Pace { calls: 8, gone: Pace::WHOLE / 8 });
            }
        }
        while let Ok(None) = image {
            image = self.share(&mut blobs, Pace::AT_ONCE);
        }
        let is_whole = image.is_ok() && blobs.finish().is_ok();
        let outcome = match is_whole {
            true => CheckpointOutcome::Committed,
            false => CheckpointOutcome::Abandoned,
        };
        if let (Ok(Some(image)), true) = (&image, is_whole) {
            quietly(|| self.compare_restored(image, &then));
        }
        self.table.checkpointed(outcome);
        if !is_whole {
            blobs.abandon();
        }
    }

    fn share(&mut self, blobs: &mut BlobWriter, pace: Pace) -> Result<Option<StateImage>, ()> {
        self.table.pace_checkpoint(pace);
        let share = catch_unwind(AssertUnwindSafe(|| self.table.continue_checkpoint(blobs)));
        self.of_share(share)
    }

    fn of_share(
        &mut self,
        share: std::thread::Result<Result<Option<StateImage>, Error>>,
    ) -> Result<Option<StateImage>, ()> {
        self.panics += u64::from(share.is_err());
        self.errors += u64::from(matches!(share, Ok(Err(_))));
        let share = share.map_err(drop)?;
        if let Ok(Some(image)) = &share {
            let blobs = image.blob_files().map(blobs_name);
            let segments = image.segments().map(|segment| segment.id.file_name());
            let files: BTreeSet<_> = segments.chain(blobs).collect();
            self.segments.pin(files.iter().map(String::as_str));
        }
        share.map_err(|error| is_planned(&error))
    }

    fn compare_restored(&self, image: &StateImage, then: &Model) {
        self.device.drain();
        let copy = self.device.crash(CrashPolicy::Everything);
        let segments = SegmentStore::new(Arc::new(copy), 1 << 20);
        let (mut table, account) =
            open::<L, V>(&self.layout, &segments, 8 * MIB, Some(image)).unwrap();
        assert_eq!((table.len(), image.entries), (then.len() as u64, then.len() as u64));
        for key in 0..KEYS {
            let found = table.get(&Key(key)).unwrap().map(V::number);
            assert_eq!(found, then.get(&key).copied(), "restored {key}");
        }
        drop(table);
        assert_eq!(account.used(), 0);
    }

    /// All is as the model says, a checkpoint can be taken, and memory is counted to the byte.
    fn end(mut self, is_emptied: bool) {
        quietly(|| {
            for key in 0..KEYS {
                assert_eq!(self.found(key), self.model.get(&key).copied(), "{key}");
            }
            let errors = self.panics + self.errors;
            self.checkpoint(20..21);
            self.checkpoint(21..22);
            assert_eq!(self.panics + self.errors, errors);
            for key in (0..KEYS).filter(|_| is_emptied) {
                let taken = self.table.take(&Key(key)).unwrap().map(|value| value.number());
                assert_eq!(taken, self.model.remove(&key));
            }
            if is_emptied {
                // Pages that are on storage may have some that died there, until their memory is needed.
                self.table.clear().unwrap();
                while self.table.tick(1000).unwrap() > 0 {}
                assert_eq!(self.account.used_for(MemoryKind::Values), 0);
            }
        });
        let mut blobs = BlobWriter::new(self.segments.shared_device(), self.number + 1, 4096);
        if !is_emptied {
            // The table goes while a checkpoint is being taken of it.
            quietly(|| {
                (23..25).for_each(|round| self.change_some(round));
                assert!(self.table.begin_checkpoint(&mut blobs).unwrap().is_none());
                self.change_some(25);
                self.change_some(26);
            });
        }
        let Self { table, account, .. } = self;
        let _panic = catch_unwind(AssertUnwindSafe(|| drop(table)));
        assert_eq!(account.used(), 0, "{account:?}");
        assert_eq!(LIVE.get(), 0, "values that are not dropped");
    }
}

/// Plays the history while the nth of these calls panics; says whether there is one.
fn play<L: Layout<Key, V>, V: Item>(
    layout: &L,
    memory: u64,
    (call, nth): (Call, u64),
    is_emptied: bool,
) -> (bool, [u64; 2]) {
    let mut history = History::<L, V>::new(layout.clone(), memory);
    PLAN.set(Some((call, nth)));
    for key in 0..KEYS {
        history.put(key, key);
    }
    (0..2).for_each(|round| history.change_some(round));
    history.checkpoint(2..4);
    (4..5).for_each(|round| history.change_some(round));
    history.checkpoint(5..8);
    let seen = [history.panics, history.errors];
    history.end(is_emptied);
    (PLAN.take().is_none(), seen)
}

/// Each call of each kind panics once.
fn at_each_call<L: Layout<Key, V>, V: Item>(layout: &L, calls: &[Call]) {
    let segments = SegmentStore::new(Arc::new(Simulated::new(1, Faults::none())), 1);
    let mut memory = 16 * KIB;
    while open::<L, V>(layout, &segments, memory, None).is_err() {
        memory += 4 * KIB;
    }
    // A log has most of it on storage.
    memory += if layout.name() == "hybrid-log" { 4 * KIB } else { 8 * MIB };
    let both = |call: &Call| [(*call, true), (*call, false)];
    for (call, is_emptied) in calls.iter().flat_map(both) {
        let (mut nth, mut seen) = (0, [0; 2]);
        loop {
            let step = || play::<L, V>(layout, memory, (call, nth), is_emptied);
            let (is_one, [panics, errors]) = step_of((call, nth), step);
            seen = [seen[0] + panics, seen[1] + errors];
            if !is_one {
                break;
            }
            nth += 1;
        }
        println!("{} {call:?}: {nth} calls, {} panics, {} errors", layout.name(), seen[0], seen[1]);
        assert!(nth > 10 && seen[0] + seen[1] > 10, "{call:?}: {nth}, {seen:?}");
    }
}

/// Tells which of them it was.
fn step_of<R>((call, nth): (Call, u64), step: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        eprintln!("{call:?} number {nth}");
        std::panic::resume_unwind(panic)
    })
}

const ALL: [Call; 7] =
    [Call::Hash, Call::Compare, Call::Clone, Call::Drop, Call::Measure, Call::Encode, Call::Decode];

fn log() -> HybridLog {
    HybridLog::new().page_records(4).queue_depth(2).segment(8 * KIB)
}

fn without_words() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.to_string().contains("planned") {
            usual(info);
        }
    }));
}

#[test]
fn of_values_on_the_heap() {
    without_words();
    at_each_call::<_, Owned>(&Heap::new(), &ALL[..6]);
}

#[test]
fn of_values_in_a_hybrid_log() {
    without_words();
    at_each_call::<_, Owned>(&log(), &ALL);
}

#[test]
fn of_values_without_heap() {
    without_words();
    at_each_call::<_, Flat>(&Heap::new(), &ALL[..2]);
    at_each_call::<_, Flat>(&log(), &ALL[..2]);
}
