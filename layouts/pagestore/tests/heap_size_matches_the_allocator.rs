//! `HeapSize` against what a counting allocator saw: strings, vectors, deques, boxes and what is
//! built from them exactly, in rounded bytes; within 5 % of the chunks glibc really handed out; maps
//! as the head of `heap_size.rs` says.

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::ffi::{CString, OsString};
use std::ops::{Bound, Range};
use std::path::PathBuf;

use alluvium_pagestore::{HeapSize, rounded};

thread_local! {
    /// Rounded bytes of what this thread allocated and did not free.
    static ROUNDED: Cell<isize> = const { Cell::new(0) };
    /// The same in bytes of real chunks.
    static CHUNKS: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(pointer: *mut u8, layout: Layout, sign: isize) {
    if pointer.is_null() {
        return;
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: `pointer` is a live allocation of the system allocator, which is malloc here.
    let chunk = unsafe { libc::malloc_usable_size(pointer.cast()) } + 8;
    #[cfg(not(target_env = "gnu"))]
    let chunk = rounded(layout.size());
    ROUNDED.with(|held| held.set(held.get() + sign * rounded(layout.size()) as isize));
    CHUNKS.with(|held| held.set(held.get() + sign * chunk as isize));
}

// SAFETY: every call goes to `System` unchanged; `realloc` keeps its default, which comes here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let pointer = unsafe { System.alloc(layout) };
        count(pointer, layout, 1);
        pointer
    }

    // SAFETY: asks of its caller what `System` does: a pointer that `alloc` gave for this layout.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(pointer, layout, -1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What building a value left on the heap: the value, rounded bytes, chunk bytes.
fn measured<T>(build: impl FnOnce() -> T) -> (T, usize, usize) {
    let (rounded, chunks) = (ROUNDED.get(), CHUNKS.get());
    let value = build();
    (value, (ROUNDED.get() - rounded) as usize, (CHUNKS.get() - chunks) as usize)
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n as u64) as usize
    }

    fn string(&mut self) -> String {
        let mut s = String::new();
        for _ in 0..self.below(100) {
            s.push('x');
        }
        match self.below(4) {
            0 => s.shrink_to_fit(),
            1 => s.clear(),
            _ => {}
        }
        s
    }

    fn vec<T>(&mut self, mut element: impl FnMut(&mut Rng) -> T) -> Vec<T> {
        let mut v = Vec::new();
        for _ in 0..self.below(40) {
            v.push(element(self));
        }
        v.truncate(1 + self.below(40));
        if self.below(3) == 0 {
            v.shrink_to_fit();
        }
        v
    }
}

/// Builds 300 values and compares each, exactly, and the sum with the real chunks.
fn exact<T: HeapSize>(name: &str, mut build: impl FnMut(&mut Rng) -> T) {
    let mut rng = Rng(11);
    let mut values = Vec::with_capacity(300);
    let (mut tracked, mut real) = (0, 0);
    for i in 0..300 {
        let (value, rounded, chunks) = measured(|| build(&mut rng));
        assert_eq!(value.heap_bytes(), rounded, "{name}, value {i}");
        tracked += rounded;
        real += chunks;
        values.push(value);
    }
    let ratio = tracked as f64 / real.max(1) as f64;
    println!("{name}: {tracked} tracked, {real} real");
    assert!(real == tracked || (0.95..=1.05).contains(&ratio), "{name}: {ratio}");
}

#[test]
fn owned_bytes_are_exact() {
    exact("u64", |rng| rng.below(9));
    exact("String", Rng::string);
    exact("Box<str>", |rng| rng.string().into_boxed_str());
    exact("Vec<u64>", |rng| rng.vec(|rng| rng.below(9)));
    exact("Vec<()>", |rng| rng.vec(|_| ()));
    exact("Vec<String>", |rng| rng.vec(Rng::string));
    exact("Box<[String]>", |rng| rng.vec(Rng::string).into_boxed_slice());
    exact("Box<[u16; 99]>", |_| Box::new([1u16; 99]));
    exact("VecDeque<String>", |rng| {
        let mut deque = VecDeque::new();
        for _ in 0..rng.below(50) {
            deque.push_back(rng.string());
            if rng.below(3) == 0 {
                deque.pop_front();
            }
        }
        deque
    });
    exact("PathBuf", |rng| PathBuf::from(rng.string()));
    exact("OsString", |rng| OsString::from(rng.string()));
    exact("Box<Path>", |rng| PathBuf::from(rng.string()).into_boxed_path());
    exact("CString", |rng| CString::new(rng.string()).unwrap());
    exact("Cow<str>", |rng| -> Cow<'static, str> {
        if rng.below(2) == 0 { Cow::Borrowed("borrowed") } else { Cow::Owned(rng.string()) }
    });
    exact("BinaryHeap<String>", |rng| {
        let mut heap: BinaryHeap<String> = rng.vec(Rng::string).into();
        heap.pop();
        heap
    });
    exact("LinkedList<(u8, String)>", |rng| {
        let mut list = LinkedList::new();
        for _ in 0..rng.below(9) {
            list.push_back((1u8, rng.string()));
        }
        list.pop_front();
        list
    });
    exact("Range<String>", |rng| Range { start: rng.string(), end: rng.string() });
    exact("RangeInclusive<String>", |rng| rng.string()..=rng.string());
    exact("Bound<String>", |rng| match rng.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(rng.string()),
        _ => Bound::Excluded(rng.string()),
    });
    exact("[Option<Vec<u32>>; 3]", |rng| {
        [0; 3].map(|_| (rng.below(2) == 0).then(|| rng.vec(|rng| rng.below(9) as u32)))
    });
    exact("a tuple of twelve", |rng| {
        (
            1u8,
            2u8,
            3u8,
            4u8,
            5u8,
            6u8,
            7u8,
            rng.string(),
            9u8,
            rng.string(),
            1i128,
            rng.vec(|_| 1u8),
        )
    });
    exact("nested", |rng| {
        let rows = rng.vec(|rng| (rng.below(5) as u32, rng.vec(Rng::string).into_boxed_slice()));
        let extra: Option<Box<Vec<String>>> =
            (rng.below(2) == 0).then(|| Box::new(rng.vec(Rng::string)));
        let outcome = if rng.below(2) == 0 { Ok([rng.string(), rng.string()]) } else { Err(7u8) };
        (rng.string(), rows, extra, outcome)
    });
}

#[test]
fn hash_tables_are_exact_until_much_is_removed() {
    exact("HashMap<u64, String>", |rng| {
        (0..rng.below(2000)).map(|i| (i as u64, rng.string())).collect::<HashMap<_, _>>()
    });
    exact("HashSet<u8>", |rng| (0..rng.below(40)).map(|i| i as u8).collect::<HashSet<_>>());
    exact("HashMap<(u64, u64, u8), u32>", |rng| {
        let mut map = HashMap::with_capacity(rng.below(100));
        for i in 0..rng.below(100) {
            map.insert((i as u64, 0u64, 0u8), 1u32);
        }
        map
    });
    let mut rng = Rng(5);
    let (map, held, _) = measured(|| {
        let mut map = HashMap::new();
        for i in 0..100_000u64 {
            map.insert(i, i);
            if i >= 1000 {
                map.remove(&(i - rng.below(1000) as u64));
            }
        }
        map
    });
    let ratio = map.heap_bytes() as f64 / held as f64;
    println!("HashMap after many removals: {ratio:.2} of the real bytes");
    assert!((0.5..=1.0).contains(&ratio), "{ratio}");
}

#[test]
fn b_trees_are_never_low() {
    let check = |name: &str, high: f64, build: &mut dyn FnMut() -> BTreeMap<u64, (u32, u8)>| {
        let (map, held, _) = measured(build);
        let ratio = map.heap_bytes() as f64 / held.max(1) as f64;
        println!("{name}, {} entries: {ratio:.2}", map.len());
        assert!(map.heap_bytes() >= held && ratio <= high, "{name} {}: {ratio}", map.len());
    };
    let mut rng = Rng(3);
    for len in [1u64, 11, 12, 17, 18, 100, 1000, 100_000] {
        check("in order", 1.3, &mut || {
            let mut map = BTreeMap::new();
            for i in 0..len {
                map.insert(i, (0, 0));
            }
            map
        });
        check("in any order", 1.6, &mut || {
            (0..len).fold(BTreeMap::new(), |mut map, _| {
                map.insert(rng.below(1 << 30) as u64, (0, 0));
                map
            })
        });
        check("collected", 2.4, &mut || (0..len).map(|i| (i, (0, 0))).collect());
        check("thinned out", 1.7, &mut || {
            let mut map: BTreeMap<_, _> = (0..len * 4).map(|i| (i, (0, 0))).collect();
            map.retain(|i, _| i % 4 == 0);
            map
        });
    }
    check("emptied", 1.0, &mut || {
        let mut map = BTreeMap::from([(1, (0, 0))]);
        map.remove(&1);
        map
    });
    let (set, held, _) = measured(|| (0..9u8).map(|i| i.to_string()).collect::<BTreeSet<_>>());
    assert_eq!(set.heap_bytes(), held);
}
