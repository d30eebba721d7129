//! The two candidates for the hybrid log's index, side by side: extendible hashing over segments,
//! as it is in the layout, and linear hashing, written here.
//!
//! `cargo bench -p alluvium-layouts --bench index_candidates [-- KEYS...]` prints a table. Both
//! map 31 bits of a hash to addresses of records in an array, from whose keys a candidate is told
//! right; both have 64-byte buckets of seven entries with 16-bit tags, and both hold the hash bits
//! that splits need, so that no split reads a record. The candidates take turns. Times are the
//! least of the runs, the longest insert that of the element-wise minimum of three loads. Answers
//! are checked to be equal.

use std::hint::black_box;
use std::time::Instant;

use alluvium_layouts::index_internals::{Account, Address, Index, IndexHash, hash_word};

/// Look-ups per run.
const LOOKUPS: usize = 1_000_000;
/// Runs of look-ups, and loads.
const RUNS: usize = 9;
const LOADS: usize = 3;
const GROUP: usize = 64;

trait Candidate {
    fn empty() -> Self;
    fn insert(&mut self, hash: IndexHash, address: u64);
    fn find(&self, hash: IndexHash, is_it: impl FnMut(u64) -> bool) -> Option<u64>;
    fn prefetch(&self, hash: IndexHash);
    fn bytes(&self) -> u64;
}

struct Extendible(Index, std::rc::Rc<Account>);

impl Candidate for Extendible {
    fn empty() -> Self {
        let account = Account::root(8 << 30);
        let index = Index::new(account.clone(), 256, None).expect("the account has room");
        Extendible(index, account)
    }

    #[inline]
    fn insert(&mut self, hash: IndexHash, address: u64) {
        self.0.prepare(hash).unwrap();
        self.0.insert(hash, Address(address));
    }

    #[inline]
    fn find(&self, hash: IndexHash, mut is_it: impl FnMut(u64) -> bool) -> Option<u64> {
        self.0.find(hash, |address| is_it(address.0)).map(|(_, address)| address.0)
    }

    #[inline]
    fn prefetch(&self, hash: IndexHash) {
        self.0.prefetch(hash);
    }

    fn bytes(&self) -> u64 {
        self.1.used()
    }
}

/// Linear hashing: `buckets` grows by one whenever the load passes [`Linear::LOAD`], by splitting
/// the bucket whose turn it is; a bucket that is full links to overflow buckets.
///
/// ```text
/// byte 0      14                                              63
///      tag x7 | entry x7: address 46 | extra 7 | link part 3  | used
/// ```
///
/// The bucket is chosen by the lowest bits of the 31, from 8 bits on; extra and tag are the other
/// 23. The link, the number of an overflow bucket and 0 for none, has 3 bits in each entry.
struct Linear {
    chunks: Vec<Box<[Bucket; CHUNK]>>,
    overflow: Vec<Box<[Bucket; CHUNK]>>,
    vacant: Vec<u32>,
    overflow_made: u32,
    buckets: usize,
    level_bits: u32,
    len: usize,
}

const CHUNK: usize = 256;
const ADDRESS_MASK: u64 = (1 << 46) - 1;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket([u8; 64]);

impl Bucket {
    const EMPTY: Bucket = Bucket([0; 64]);

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    #[inline(always)]
    fn matches(&self, tag: u16) -> u8 {
        use std::arch::x86_64::{
            _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x, _mm_set1_epi16,
            _mm_setzero_si128,
        };
        // SAFETY: SSE2, which these need, is part of every x86-64 processor.
        let equal = unsafe {
            let tags = _mm_set_epi64x(self.word(8) as i64, self.word(0) as i64);
            let equal = _mm_cmpeq_epi16(tags, _mm_set1_epi16(tag as i16));
            _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())) as u8
        };
        equal & self.0[63]
    }

    #[inline(always)]
    fn entry(&self, slot: usize) -> u64 {
        self.word(14 + 7 * slot) & ((1 << 56) - 1)
    }

    fn set_entry(&mut self, slot: usize, bits: u64) {
        self.0[14 + 7 * slot..][..7].copy_from_slice(&bits.to_le_bytes()[..7]);
    }

    #[inline(always)]
    fn link(&self) -> u32 {
        // Full buckets only: the others have none.
        if self.0[63] != 0x7f {
            return 0;
        }
        (0..7).fold(0, |link, slot| link | ((self.entry(slot) >> 53) as u32) << (3 * slot))
    }

    fn set_link(&mut self, link: u32) {
        for slot in 0..7 {
            let part = u64::from(link >> (3 * slot) & 7) << 53;
            self.set_entry(slot, self.entry(slot) & ((1 << 53) - 1) | part);
        }
    }

    fn put(&mut self, prefix: u32, address: u64) -> bool {
        let slot = (!self.0[63]).trailing_zeros() as usize;
        if slot >= 7 {
            return false;
        }
        // The tag has the bits that are the last to choose a bucket.
        self.0[2 * slot..][..2].copy_from_slice(&((prefix >> 7) as u16).to_le_bytes());
        self.set_entry(slot, address | u64::from(prefix & 0x7f) << 46);
        self.0[63] |= 1 << slot;
        true
    }

    fn prefix(&self, slot: usize) -> u32 {
        let tag = u16::from_le_bytes([self.0[2 * slot], self.0[2 * slot + 1]]);
        u32::from(tag) << 7 | (self.entry(slot) >> 46) as u32 & 0x7f
    }
}

impl Linear {
    /// Entries per bucket: 0.7 of the slots.
    const LOAD: f64 = 4.9;

    /// The hash as linear hashing wants it: 8 bits that the first buckets are chosen by, then the
    /// prefix.
    #[inline(always)]
    fn parts(hash: IndexHash) -> (u32, u32) {
        let (prefix, low) = (hash.0 >> 9, hash.0 >> 1 & 0xff);
        (prefix << 8 | low, prefix)
    }

    #[inline(always)]
    fn home(&self, bits: u32) -> usize {
        let low = bits as usize & ((1 << self.level_bits) - 1);
        // Those before the split pointer are split already.
        let next = bits as usize & ((2 << self.level_bits) - 1);
        if next < self.buckets { next } else { low }
    }

    #[inline(always)]
    fn bucket(&self, at: usize) -> &Bucket {
        &self.chunks[at / CHUNK][at % CHUNK]
    }

    #[inline(always)]
    fn linked(&self, link: u32) -> &Bucket {
        &self.overflow[link as usize / CHUNK][link as usize % CHUNK]
    }

    fn place(&mut self, home: usize, prefix: u32, address: u64) {
        if self.chunks[home / CHUNK][home % CHUNK].put(prefix, address) {
            return;
        }
        let mut link = self.bucket(home).link();
        if link == 0 {
            link = self.new_overflow();
            self.chunks[home / CHUNK][home % CHUNK].set_link(link);
        }
        loop {
            let (chunk, at) = (link as usize / CHUNK, link as usize % CHUNK);
            if self.overflow[chunk][at].put(prefix, address) {
                return;
            }
            link = self.overflow[chunk][at].link();
            if link == 0 {
                link = self.new_overflow();
                self.overflow[chunk][at].set_link(link);
            }
        }
    }

    fn new_overflow(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.overflow_made += 1;
            assert!(self.overflow_made < 1 << 21, "the link has 21 bits");
            if self.overflow_made as usize / CHUNK == self.overflow.len() {
                self.overflow.push(Box::new([Bucket::EMPTY; CHUNK]));
            }
            self.overflow_made
        })
    }

    /// Splits the bucket whose turn it is.
    fn split(&mut self) {
        let from = self.buckets - (1 << self.level_bits);
        if self.buckets / CHUNK == self.chunks.len() {
            self.chunks.push(Box::new([Bucket::EMPTY; CHUNK]));
        }
        let mut old =
            std::mem::replace(&mut self.chunks[from / CHUNK][from % CHUNK], Bucket::EMPTY);
        self.buckets += 1;
        // The next bit of the hash, which is in the prefix from bit 8 on.
        let bit = self.level_bits - 8;
        let to = self.buckets - 1;
        loop {
            for slot in 0..7 {
                if old.0[63] >> slot & 1 == 1 {
                    let prefix = old.prefix(slot);
                    let home = if prefix >> bit & 1 == 1 { to } else { from };
                    self.place(home, prefix, old.entry(slot) & ADDRESS_MASK);
                }
            }
            let link = old.link();
            if link == 0 {
                break;
            }
            let place = &mut self.overflow[link as usize / CHUNK][link as usize % CHUNK];
            old = std::mem::replace(place, Bucket::EMPTY);
            self.vacant.push(link);
        }
        if self.buckets == 2 << self.level_bits {
            self.level_bits += 1;
        }
    }
}

impl Candidate for Linear {
    fn empty() -> Self {
        Linear {
            chunks: vec![Box::new([Bucket::EMPTY; CHUNK])],
            overflow: vec![Box::new([Bucket::EMPTY; CHUNK])],
            vacant: Vec::new(),
            overflow_made: 0,
            buckets: CHUNK,
            level_bits: 8,
            len: 0,
        }
    }

    #[inline]
    fn insert(&mut self, hash: IndexHash, address: u64) {
        if self.len as f64 > Self::LOAD * self.buckets as f64 {
            self.split();
        }
        self.len += 1;
        let (bits, prefix) = Self::parts(hash);
        self.place(self.home(bits), prefix, address);
    }

    #[inline]
    fn find(&self, hash: IndexHash, mut is_it: impl FnMut(u64) -> bool) -> Option<u64> {
        let (bits, prefix) = Self::parts(hash);
        let mut bucket = self.bucket(self.home(bits));
        loop {
            let mut matches = bucket.matches((prefix >> 7) as u16);
            while matches != 0 {
                let slot = matches.trailing_zeros() as usize;
                matches &= matches - 1;
                let entry = bucket.entry(slot);
                if (entry >> 46) as u32 & 0x7f == prefix & 0x7f && is_it(entry & ADDRESS_MASK) {
                    return Some(entry & ADDRESS_MASK);
                }
            }
            match bucket.link() {
                0 => return None,
                link => bucket = self.linked(link),
            }
        }
    }

    #[inline]
    fn prefetch(&self, hash: IndexHash) {
        prefetch(self.bucket(self.home(Self::parts(hash).0)));
    }

    fn bytes(&self) -> u64 {
        let chunks = self.chunks.len() + self.overflow.len();
        let tables = (self.chunks.capacity() + self.overflow.capacity()) * 8;
        (chunks * CHUNK * 64 + tables + self.vacant.capacity() * 4) as u64
    }
}

#[inline(always)]
fn prefetch<T>(place: &T) {
    // SAFETY: a hint reads nothing, and the reference points to memory of ours anyway.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch(std::ptr::from_ref(place).cast(), _MM_HINT_T0);
    }
}

fn hash_of(key: u64) -> IndexHash {
    let hash = hash_word(key);
    IndexHash::of(hash, hash)
}

/// One candidate and what was measured of it.
struct Side<C> {
    candidate: C,
    /// Of each insert the shortest time.
    times_ns: Vec<u32>,
    insert_ns: f64,
    /// Hit, miss, hit in groups, miss in groups.
    find_ns: [f64; 4],
    digest: u64,
}

impl<C: Candidate> Side<C> {
    fn new(keys: u64) -> Self {
        Side {
            candidate: C::empty(),
            times_ns: vec![u32::MAX; keys as usize],
            insert_ns: f64::MAX,
            find_ns: [f64::MAX; 4],
            digest: 0,
        }
    }

    /// Inserts all keys into an empty index.
    fn load(&mut self) {
        self.candidate = C::empty();
        let begin = Instant::now();
        let mut before = begin;
        for (key, time_ns) in self.times_ns.iter_mut().enumerate() {
            self.candidate.insert(hash_of(key as u64), key as u64);
            let now = Instant::now();
            *time_ns = (*time_ns).min((now - before).as_nanos() as u32);
            before = now;
        }
        let each_ns = begin.elapsed().as_nanos() as f64 / self.times_ns.len() as f64;
        self.insert_ns = self.insert_ns.min(each_ns);
    }

    fn look_up(&mut self, records: &[(u64, u64)], asked: [&[u64]; 2]) {
        for (at, asked) in asked.into_iter().enumerate() {
            let begin = Instant::now();
            let found = singly(&self.candidate, records, asked);
            let single_ns = begin.elapsed().as_nanos() as f64 / asked.len() as f64;
            let begin = Instant::now();
            let in_groups = grouped(&self.candidate, records, asked);
            let group_ns = begin.elapsed().as_nanos() as f64 / asked.len() as f64;
            assert_eq!(found, in_groups);
            self.digest = self.digest.wrapping_add(hash_word(found));
            self.find_ns[at] = self.find_ns[at].min(single_ns);
            self.find_ns[at + 2] = self.find_ns[at + 2].min(group_ns);
        }
    }

    fn print(&mut self, name: &str) {
        self.times_ns.sort_unstable();
        let keys = self.times_ns.len();
        let [hit, miss, group_hit, group_miss] = self.find_ns;
        println!(
            "| {keys} | {name} | {:.1} | {} | {} | {hit:.1} | {miss:.1} | {group_hit:.1} | \
             {group_miss:.1} | {:.1} |",
            self.insert_ns,
            self.times_ns[keys - 1 - keys / 10_000],
            self.times_ns[keys - 1],
            self.candidate.bytes() as f64 / keys as f64,
        );
    }
}

/// Both candidates in turns, so that what else the machine does meets both.
fn compare(keys: u64) {
    let records: Vec<(u64, u64)> = (0..keys).map(|key| (key, key)).collect();
    let mut state = 0u64;
    let mut random = || {
        state += 1;
        ((u128::from(hash_word(hash_word(state))) * u128::from(keys)) >> 64) as u64
    };
    let hits: Vec<u64> = (0..LOOKUPS).map(|_| random()).collect();
    let misses: Vec<u64> = hits.iter().map(|key| key + keys).collect();
    let (mut extendible, mut linear) = (Side::<Extendible>::new(keys), Side::<Linear>::new(keys));
    for _ in 0..LOADS {
        extendible.load();
        linear.load();
    }
    for _ in 0..RUNS {
        extendible.look_up(&records, [&hits, &misses]);
        linear.look_up(&records, [&hits, &misses]);
    }
    assert_eq!(extendible.digest, linear.digest, "the candidates answer differently");
    extendible.print("extendible");
    linear.print("linear");
}

/// The sum over what is found.
#[inline(never)]
fn singly(candidate: &impl Candidate, records: &[(u64, u64)], asked: &[u64]) -> u64 {
    let found = asked.iter().filter_map(|&key| {
        candidate.find(hash_of(key), |address| records[address as usize].0 == key)
    });
    black_box(found.fold(0, |sum, address| sum.wrapping_add(records[address as usize].1 + 1)))
}

#[inline(never)]
fn grouped(candidate: &impl Candidate, records: &[(u64, u64)], asked: &[u64]) -> u64 {
    let mut sum = 0u64;
    for keys in asked.chunks(GROUP) {
        for &key in keys {
            candidate.prefetch(hash_of(key));
        }
        for &key in keys {
            candidate.find(hash_of(key), |address| {
                prefetch(&records[address as usize]);
                true
            });
        }
        sum = sum.wrapping_add(singly(candidate, records, keys));
    }
    sum
}

fn main() {
    // `cargo bench` and `cargo test` pass options of their own.
    let asked: Vec<u64> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    if std::env::args().any(|word| word == "--test") {
        return;
    }
    let counts = if asked.is_empty() { vec![100_000, 1_000_000, 10_000_000] } else { asked };
    println!(
        "| keys | index | insert ns | p99.99 ns | longest ns | hit ns | miss ns | hit ns, groups of \
         64 | miss ns, groups | bytes a key |\n|--|--|--|--|--|--|--|--|--|--|"
    );
    counts.into_iter().for_each(compare);
}
