//! Compares a heap table with a hashbrown map of the same hash, all in memory: inserts, then reads and updates that are
//! independent, that depend on the answer before, and in batches. Both sides take turns on the same keys, and answers are
//! compared. Prints medians and spread of the thread's processor time; other work on the machine only evicts caches.
//!
//! `cargo bench -p alluvium-layouts --bench heap -- [keys] [bytes an entry: 16 or 256] [rounds] [calls a round]`

mod common;

use std::hash::{BuildHasher, Hasher};
use std::hint::black_box;

use alluvium_layouts::{Heap, Layout, Table};
use alluvium_pagestore::{Account, Helper, State, hash_word};
use common::{Rounds, context};
use hashbrown::HashMap;
use rustix::time::{ClockId, clock_gettime};

const BATCH: usize = 64;
/// Keys drawn at a time.
const STRETCH: usize = 1 << 16;

/// A value: a count first, and in a long one a sum last.
trait Value: State {
    fn new() -> Self;
    fn touch(&mut self) -> u64;
    fn count(&self) -> u64;
}

impl Value for u64 {
    fn new() -> Self {
        0
    }

    fn touch(&mut self) -> u64 {
        *self += 1;
        *self
    }

    fn count(&self) -> u64 {
        *self
    }
}

impl Value for [u64; 31] {
    fn new() -> Self {
        [0; 31]
    }

    fn touch(&mut self) -> u64 {
        self[0] += 1;
        self[30] = self[30].wrapping_add(self[0]);
        self[0]
    }

    fn count(&self) -> u64 {
        self[0]
    }
}

/// The hash of a heap table, for the map.
#[derive(Clone, Default)]
struct Word(u64);

impl Hasher for Word {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are words");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = hash_word(word);
    }
}

#[derive(Clone, Default)]
struct ByWord;

impl BuildHasher for ByWord {
    type Hasher = Word;

    fn build_hasher(&self) -> Word {
        Word(0)
    }
}

type Map<V> = HashMap<u64, V, ByWord>;

/// What is done with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Update,
    Dependent,
    Batch,
    Read,
    ReadDependent,
}

const ALL: [How; 5] = [How::Update, How::Dependent, How::Batch, How::Read, How::ReadDependent];

/// Runs, and returns the nanoseconds of processor time too.
fn timed<R>(run: impl FnOnce() -> R) -> (R, f64) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let start = now();
    let result = run();
    (result, now() - start)
}

/// Returns `key`, but only when `answer` is known: the top bit of a count is never set.
#[inline(always)]
fn after(key: u64, answer: u64) -> u64 {
    key.wrapping_add(answer >> 63)
}

#[inline(never)]
fn ours<V: Value>(table: &mut impl Table<u64, V>, keys: &[u64], how: How) -> u64 {
    let mut sum = 0u64;
    let mut add = |answer: u64| {
        sum = sum.wrapping_add(answer);
        answer
    };
    match how {
        How::Update => {
            for key in keys {
                add(table.update(key, V::new, V::touch).expect("room"));
            }
        }
        How::Dependent => {
            let mut last = 0;
            for key in keys {
                let key = after(*key, last);
                last = add(table.update(&key, V::new, V::touch).expect("room"));
            }
        }
        How::Batch => {
            for keys in keys.chunks(BATCH) {
                let touch = |_: &u64, value: &mut V| {
                    add(value.touch());
                };
                table.update_batch(keys, |key| key, |_| V::new(), touch).expect("room");
            }
        }
        How::Read => {
            for key in keys {
                add(table.get(key).expect("memory").map_or(0, V::count));
            }
        }
        How::ReadDependent => {
            let mut last = 0;
            for key in keys {
                let key = after(*key, last);
                last = add(table.get(&key).expect("memory").map_or(0, V::count));
            }
        }
    }
    sum
}

#[inline(never)]
fn theirs<V: Value>(map: &mut Map<V>, keys: &[u64], how: How) -> u64 {
    let (mut sum, mut last) = (0u64, 0);
    for key in keys {
        let is_dependent = matches!(how, How::Dependent | How::ReadDependent);
        let key = if is_dependent { after(*key, last) } else { *key };
        last = match how {
            How::Update | How::Dependent | How::Batch => {
                map.entry(key).or_insert_with(V::new).touch()
            }
            How::Read | How::ReadDependent => map.get(&key).map_or(0, V::count),
        };
        sum = sum.wrapping_add(last);
    }
    sum
}

fn tell(how: How, ours: &Rounds, theirs: &Rounds) {
    let ratio = theirs.median() / ours.median();
    println!("  {how:?}: {ours:.1} ns, hashbrown {theirs:.1} ns: {ratio:.2}x");
}

fn compare<V: Value>(keys: u64, rounds: u64, calls: usize) {
    let account = Account::below(&Account::root(16 << 30), "heap", u64::MAX);
    let booked = account.clone();
    let context = context(account, None, Helper::thread().expect("a thread"));
    let mut table = Layout::<u64, V>::open(&Heap::new(), context).expect("room");
    let mut map = Map::<V>::default();
    let fill = || (0..keys).map(|key| table.update(&key, V::new, V::touch).expect("room")).sum();
    let (our_sum, our_ns): (u64, f64) = timed(fill);
    let fill = || (0..keys).map(|key| map.entry(key).or_insert_with(V::new).touch()).sum();
    let (their_sum, their_ns): (u64, f64) = timed(fill);
    assert_eq!(our_sum, their_sum);
    println!(
        "{keys} keys, entries of {} bytes: {:.1} bytes a key",
        size_of::<(u64, V)>(),
        booked.used() as f64 / keys as f64
    );
    let (our_ns, their_ns) = (our_ns / keys as f64, their_ns / keys as f64);
    println!("  Insert: {our_ns:.1} ns, hashbrown {their_ns:.1} ns: {:.2}x", their_ns / our_ns);
    let mut drawn = 0u64;
    let mut stretch = vec![0; STRETCH];
    for how in ALL {
        let (mut our_times, mut their_times) = (Rounds::default(), Rounds::default());
        for _ in 0..rounds {
            let (mut our_ns, mut their_ns) = (0.0, 0.0);
            let stretches = calls.div_ceil(STRETCH);
            for _ in 0..stretches {
                for key in &mut stretch {
                    drawn += 1;
                    *key = hash_word(drawn ^ 0x5ca1_ab1e) % keys;
                }
                let (our_sum, ns) = timed(|| black_box(ours(&mut table, &stretch, how)));
                our_ns += ns;
                let (their_sum, ns) = timed(|| black_box(theirs(&mut map, &stretch, how)));
                their_ns += ns;
                assert_eq!(our_sum, their_sum);
            }
            let done = (stretches * STRETCH) as f64;
            our_times.add(our_ns / done);
            their_times.add(their_ns / done);
        }
        tell(how, &our_times, &their_times);
    }
}

fn main() {
    let args: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let given = |nth: usize, default| args.get(nth).copied().unwrap_or(default);
    let (rounds, calls) = (given(2, 7), given(3, 2_000_000) as usize);
    let sizes: &[u64] = if args.len() > 1 { &args[1..2] } else { &[16, 256] };
    for bytes in sizes {
        match bytes {
            16 => compare::<u64>(given(0, 100_000), rounds, calls),
            _ => compare::<[u64; 31]>(given(0, 100_000), rounds, calls),
        }
    }
}
