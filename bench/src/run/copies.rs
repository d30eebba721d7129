//! `checkpoint --copies`: how fast state comes and goes as a whole: loaded, opened, exported from memory
//! and from storage, restored by key groups, imported.
//!
//! A map, lists and windows go that way in each of their layouts. What comes out is compared: whatever
//! a state is kept in and went through, its export has the same bytes. Beside them stand what the
//! machine does at best: reading, touching memory, entering keys into a table.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Instant;

use alluvium::io::{Device, IoBuffer, IoOptions, Operation, open_device, run_blocking};
use alluvium::time::nanos;
use alluvium::{Aggregated, AnyLayout, Counting, KeyHash, List, Map, Store, Time, Windows};

use super::clock_unsafe::{process_time, thread_time};
use super::state::dir_beside;
use crate::args::CheckpointArgs;
use crate::{Error, Result};

/// Elements of a list, and windows of a key.
const EACH: u64 = 8;
/// Length of a window.
const WINDOW: i64 = alluvium::SECOND;
/// Entries in a batch.
const BATCH: u64 = 64;
/// Bytes of a read of the device, and of a stretch of memory.
const STRETCH_BYTES: usize = 1 << 20;

const KINDS: [(&str, [&str; 2]); 3] = [
    ("map", ["heap", "hybrid-log"]),
    ("lists", ["heap", "append-log"]),
    ("windows", ["heap", "window-segments"]),
];

/// Measures, prints a table, and compares.
///
/// # Errors
/// Also if two copies differ.
pub(super) fn copies(args: &CheckpointArgs) -> Result<()> {
    let temporary = dir_beside(&args.state)?;
    println!(
        "| state | layout | what | M/s | M/s of processor time of its thread | % of the time on a \
         processor, its thread | all threads |"
    );
    println!("|--|--|--|--|--|--|--|");
    let mut device = None;
    for (kind, layouts) in KINDS {
        // That of the first layout: the others' must be equal.
        let first = temporary.path().join(kind);
        for (nth, layout) in layouts.into_iter().enumerate() {
            let copy = Copy { args, kind, layout, root: temporary.path() };
            let exported = copy.measure()?;
            device = device.or(copy.device_rate()?);
            copy.remove()?;
            match nth {
                0 => std::fs::rename(&exported, &first)
                    .map_err(|e| Error::io(&exported, "rename", e))?,
                _ => same(&first, &exported, &format!("the {kind} in {layout}"))?,
            }
        }
    }
    let touched = first_touch();
    let read = device.unwrap_or_default();
    println!(
        "the device reads {read:.0} MB/s in order, {touched:.0} MB/s of memory are touched first; {} \
         keys of 16 bytes are entered at random into new memory at {:.1} M/s",
        args.records,
        random_insertion(args.records)
    );
    Ok(())
}

/// A state that is copied.
struct Copy<'a> {
    args: &'a CheckpointArgs,
    kind: &'static str,
    layout: &'static str,
    root: &'a Path,
}

enum State {
    Map(Map<u64, u64>),
    Lists(List<u64, u64>),
    Windows(Aggregated<u64, u64, Counting>),
}

impl Copy<'_> {
    fn directory(&self, name: &str) -> PathBuf {
        self.root.join(format!("{}-{}-{name}", self.kind, self.layout))
    }

    fn store(&self, name: &str, restored: bool) -> Result<Store> {
        let layout = AnyLayout::named(self.layout).expect("one of ours");
        let builder = Store::builder(self.directory(name)).memory(self.args.state.memory.0);
        let builder = builder.layout(layout);
        Ok(match restored {
            true => builder.restore_from([(self.directory("first"), None)]).open()?,
            false => builder.open()?,
        })
    }

    fn open(&self, store: &Store) -> Result<State> {
        Ok(match self.kind {
            "map" => State::Map(store.map("state").open()?),
            "lists" => State::Lists(store.list("state").open()?),
            _ => State::Windows(
                store.aggregated("state").open(Windows::tumbling(nanos(WINDOW)), Counting)?,
            ),
        })
    }

    fn load(&self, state: &mut State) -> Result<()> {
        let (records, keys) = (self.args.records, (self.args.records / EACH).max(1));
        match state {
            State::Map(map) => {
                map.load((0..records).map(|key| (key, !key))).map_err(|e| e.error)?;
            }
            State::Lists(lists) => {
                for n in 0..records {
                    lists.append(&(n % keys), n).map_err(|e| e.error)?;
                }
            }
            State::Windows(windows) => {
                let mut batch = Vec::with_capacity(BATCH as usize);
                for start in (0..records).step_by(BATCH as usize) {
                    let events = start..records.min(start + BATCH);
                    batch.extend(events.map(|n| (n % keys, Time((n / keys) as i64 * WINDOW), n)));
                    let time = Time(0);
                    windows.add_batch(time, &mut batch, &mut |_| {}, &mut |_, _, _, _| {})?;
                }
            }
        }
        Ok(())
    }

    /// Measures all, and gives the export, with which all others were compared.
    fn measure(&self) -> Result<PathBuf> {
        let [first, memory, storage, again] =
            ["first", "memory", "storage", "again"].map(|name| self.directory(name));
        let store = self.store("first", false)?;
        let mut state = self.open(&store)?;
        self.timed("load", || self.load(&mut state))?;
        self.timed("export from memory", || export(&store, &memory))?;
        store.checkpoint(1)?;
        drop((state, store));
        let (store, state) = self.timed("open", || {
            let store = self.store("first", false)?;
            let state = self.open(&store)?;
            Ok((store, state))
        })?;
        self.timed("export from storage", || export(&store, &storage))?;
        same(&memory, &storage, &format!("{first:?}, opened"))?;
        drop((state, store));
        let (store, state) = self.timed("restore by key groups", || {
            let store = self.store("restored", true)?;
            let state = self.open(&store)?;
            Ok((store, state))
        })?;
        export(&store, &again)?;
        same(&memory, &again, &format!("{first:?}, restored"))?;
        drop((state, store));
        let store = self.store("imported", false)?;
        let state = self.open(&store)?;
        self.timed("import", || {
            let file = File::open(&memory).map_err(|e| Error::io(&memory, "open", e))?;
            Ok(store.import(BufReader::new(file))?)
        })?;
        export(&store, &again)?;
        same(&memory, &again, &format!("{first:?}, imported"))?;
        drop((state, store));
        if self.kind == "map" {
            self.load_in_order(&again)?;
            same(&memory, &again, &format!("{first:?}, loaded in the order of hashes"))?;
        }
        Ok(memory)
    }

    /// Loads a map in the order of the hashes, and exports it.
    fn load_in_order(&self, to: &Path) -> Result<()> {
        let mut keys: Vec<u64> = (0..self.args.records).collect();
        keys.sort_unstable_by_key(KeyHash::key_hash);
        let store = self.store("ordered", false)?;
        let State::Map(mut map) = self.open(&store)? else { return Ok(()) };
        self.timed("load in the order of hashes", || {
            map.load(keys.iter().map(|&key| (key, !key))).map_err(|e| e.error)?;
            Ok(())
        })?;
        export(&store, to)?;
        drop((map, store));
        let directory = self.directory("ordered");
        std::fs::remove_dir_all(&directory).map_err(|e| Error::io(&directory, "remove", e))
    }

    /// Runs `what` and prints its rate.
    fn timed<T>(&self, what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let (begin, mine, all) = (Instant::now(), thread_time(), process_time());
        let result = run()?;
        let wall = begin.elapsed().as_secs_f64();
        let mine = (thread_time() - mine).as_secs_f64();
        let all = (process_time() - all).as_secs_f64();
        let rate = |seconds: f64| self.args.records as f64 / seconds / 1e6;
        println!(
            "| {} | {} | {what} | {:.2} | {:.2} | {:.0} | {:.0} |",
            self.kind,
            self.layout,
            rate(wall),
            rate(mine),
            mine / wall * 100.0,
            all / wall * 100.0
        );
        Ok(result)
    }

    /// Megabytes per second that the device reads of the largest segment, in order.
    fn device_rate(&self) -> Result<Option<f64>> {
        let device = open_device(&self.directory("first"), &IoOptions::default())?;
        let (mut bytes, begin) = (0, Instant::now());
        for name in device.list()?.iter().filter(|name| name.starts_with("seg-")) {
            bytes += read_all(&*device, name)?;
        }
        Ok((bytes > 0).then(|| bytes as f64 / 1e6 / begin.elapsed().as_secs_f64()))
    }

    fn remove(&self) -> Result<()> {
        for name in ["first", "restored", "imported"] {
            let directory = self.directory(name);
            std::fs::remove_dir_all(&directory).map_err(|e| Error::io(&directory, "remove", e))?;
        }
        Ok(())
    }
}

fn export(store: &Store, path: &Path) -> Result<()> {
    let file = File::create(path).map_err(|e| Error::io(path, "create", e))?;
    store.export(BufWriter::new(file))?;
    Ok(())
}

/// Compares two files.
fn same(expected: &Path, found: &Path, what: &str) -> Result<()> {
    let open = |path: &Path| -> Result<BufReader<File>> {
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        Ok(BufReader::with_capacity(STRETCH_BYTES, file))
    };
    let (mut a, mut b) = (open(expected)?, open(found)?);
    loop {
        let read = a.fill_buf().map_err(|e| Error::io(expected, "read", e))?;
        let other = b.fill_buf().map_err(|e| Error::io(found, "read", e))?;
        let len = read.len().min(other.len());
        if read[..len] != other[..len] || len == 0 && read.len() != other.len() {
            return Err(Error::Wrong(format!("{what} has another export than the first")));
        }
        if len == 0 {
            return Ok(());
        }
        a.consume(len);
        b.consume(len);
    }
}

fn read_all(device: &dyn Device, name: &str) -> Result<u64> {
    let file = device.open(name)?;
    let (bytes, mut offset) = (device.len(&file)?, 0);
    let mut buffer = IoBuffer::zeroed(STRETCH_BYTES);
    while offset < bytes {
        buffer.set_len((bytes - offset).min(STRETCH_BYTES as u64) as usize);
        let (back, done) = run_blocking(device, &file, Operation::Read { offset }, buffer);
        done?;
        buffer = back;
        offset += buffer.len() as u64;
    }
    Ok(bytes)
}

/// Megabytes of memory per second that a thread touches first.
fn first_touch() -> f64 {
    const STRETCHES: usize = 256;
    let begin = Instant::now();
    let stretches: Vec<Vec<u8>> =
        (0..STRETCHES).map(|n| vec![n as u8 | 1; STRETCH_BYTES]).collect();
    std::hint::black_box(&stretches);
    (STRETCHES * STRETCH_BYTES) as f64 / 1e6 / begin.elapsed().as_secs_f64()
}

/// Millions of keys per second that a thread enters at random into a table of 16 bytes each that is new:
/// with their places brought near before. Nothing is looked at that is there already.
fn random_insertion(keys: u64) -> f64 {
    /// Keys that are on their way into the cache.
    const AHEAD: u64 = 16;
    let begin = Instant::now();
    let mut table = vec![[0u64; 2]; (keys as usize).next_power_of_two()];
    let mask = table.len() - 1;
    let mut near = 0;
    for key in 0..keys {
        // A read that nothing waits for brings it near.
        near ^= table[(key + AHEAD).key_hash() as usize & mask][0];
        let hash = key.key_hash();
        table[hash as usize & mask] = [hash, key];
    }
    std::hint::black_box((near, &table));
    keys as f64 / 1e6 / begin.elapsed().as_secs_f64()
}
