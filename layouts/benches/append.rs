//! Appends and reads of lists against a hash table of vectors, at many keys and at few: all in
//! memory, the two in turns, answers compared. Prints medians and spread.
//!
//! `cargo bench -p alluvium-layouts --bench append -- [million elements, default 40]`

use std::hint::black_box;
use std::time::Instant;

use alluvium_layouts::{AppendLog, Cursor, Lists, ListsLayout, StateContext};
use alluvium_pagestore::{Account, Helper, Time, hash_word};
use hashbrown::HashMap;

const ROUNDS: usize = 3;
const BUCKET: Time = Time(1);

fn lists() -> impl Lists<u64, u64> {
    let context = StateContext {
        name: "append".into(),
        account: Account::below(&Account::root(8 << 30), "append", u64::MAX),
        segments: None,
        helper: Helper::thread().expect("a thread"),
        max_value_bytes: 4096,
        key_groups: 256,
        owned: 0..256,
        restored: None,
    };
    AppendLog::new().open_lists(context).expect("room")
}

/// Nanoseconds per element.
fn timed(elements: u64, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as f64 / elements as f64
}

fn tell(what: &str, keys: u64, mut ours: Vec<f64>, mut theirs: Vec<f64>) {
    ours.sort_by(f64::total_cmp);
    theirs.sort_by(f64::total_cmp);
    let (a, b) = (ours[ours.len() / 2], theirs[theirs.len() / 2]);
    println!(
        "{what:>7}, {keys:>8} keys: {a:6.1} ns ({:.1} to {:.1}), HashMap<_, Vec<_>> {b:6.1} ns ({:.1} to {:.1}): {:.2}x",
        ours[0],
        ours[ours.len() - 1],
        theirs[0],
        theirs[theirs.len() - 1],
        b / a
    );
}

fn main() {
    let millions = std::env::args().filter_map(|arg| arg.parse::<u64>().ok()).next().unwrap_or(40);
    let elements = millions * 1_000_000;
    for keys in [elements / 4_000, elements / 40, elements / 4] {
        let key = |n: u64| hash_word(n) % keys;
        let (mut ours, mut theirs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for _ in 0..ROUNDS {
            let (mut sum, mut their_sum) = (0u64, 0u64);
            {
                let mut lists = lists();
                ours[0].push(timed(elements, || {
                    for n in 0..elements {
                        lists.append(BUCKET, &key(n), n).expect("room");
                    }
                }));
                ours[1].push(timed(elements, || {
                    let mut cursor = Cursor::default();
                    while !cursor.done {
                        lists
                            .fold(BUCKET..Time(2), &mut cursor, 1 << 20, &mut |key, list| {
                                while let Some(element) = list.next()? {
                                    sum = sum.wrapping_add(element ^ key);
                                }
                                Ok(())
                            })
                            .expect("memory is read");
                    }
                }));
            }
            {
                let mut map: HashMap<u64, Vec<u64>, foldhash::fast::FixedState> =
                    HashMap::default();
                theirs[0].push(timed(elements, || {
                    for n in 0..elements {
                        map.entry(key(n)).or_default().push(n);
                    }
                }));
                theirs[1].push(timed(elements, || {
                    for (key, list) in &map {
                        for element in list {
                            their_sum = their_sum.wrapping_add(element ^ key);
                        }
                    }
                }));
            }
            assert_eq!(black_box(sum), black_box(their_sum));
        }
        let ([our_appends, our_reads], [their_appends, their_reads]) = (ours, theirs);
        tell("append", keys, our_appends, their_appends);
        tell("read", keys, our_reads, their_reads);
    }
}
