//! Whether survivors of a rewrite should go to segments of their own, an old generation: write
//! amplification of the policy with one tail and with two, on populations whose updates are skewed.
//!
//! `cargo run --release -p alluvium-compaction --example generations_under_skew` prints the table of the
//! design, in half a minute; tests hold its finding on a smaller population.

#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::VecDeque;

use alluvium_compaction::SpacePolicy;
use alluvium_pagestore::SegmentMeta;
use common::Rng;

/// Records of a segment.
const SEGMENT: usize = 256;
const ABSENT: u32 = u32::MAX;

/// Which segment a rewrite takes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice {
    /// The policy's: the oldest that yields enough.
    Oldest,
    /// The one with the most garbage.
    Emptiest,
}

/// Segments and where each key's record is, without bytes.
struct Log {
    place: Vec<u32>,
    segments: Vec<Segment>,
    /// The segments that are written to: by the user, and by rewriting, which may be the same.
    tails: [u32; 2],
    generations: usize,
    choice: Choice,
    policy: SpacePolicy,
    metas: Vec<SegmentMeta>,
    written: u64,
    copied: u64,
}

#[derive(Default)]
struct Segment {
    keys: Vec<u32>,
    live: u64,
    sealed: bool,
    gone: bool,
}

impl Log {
    fn new(keys: usize, limit: f64, generations: usize, choice: Choice) -> Self {
        let mut log = Self {
            place: vec![ABSENT; keys],
            segments: Vec::new(),
            tails: [0; 2],
            generations,
            choice,
            policy: SpacePolicy::with_limit(limit).unwrap(),
            metas: Vec::new(),
            written: 0,
            copied: 0,
        };
        log.tails = [log.open(), 0];
        log.tails[1] = if generations == 2 { log.open() } else { 0 };
        log
    }

    fn open(&mut self) -> u32 {
        self.segments.push(Segment::default());
        self.segments.len() as u32 - 1
    }

    /// A record comes to memory: what was on storage is dead.
    fn read(&mut self, key: u32) {
        let old = std::mem::replace(&mut self.place[key as usize], ABSENT);
        if old != ABSENT {
            self.segments[old as usize].live -= 1;
        }
    }

    fn append(&mut self, key: u32, tail: usize) {
        self.read(key);
        self.place[key as usize] = self.tails[tail];
        let at = self.tails[tail];
        let segment = &mut self.segments[at as usize];
        segment.keys.push(key);
        segment.live += 1;
        if segment.keys.len() == SEGMENT {
            segment.sealed = true;
            self.tails[tail] = self.open();
        }
    }

    /// A record leaves memory, which has so many others.
    fn write(&mut self, key: u32, in_memory: usize) {
        self.append(key, 0);
        self.written += 1;
        if self.written % 64 == 0 {
            while self.rewrite(in_memory) {}
        }
    }

    /// Rewrites one segment, if the policy is above its limit.
    fn rewrite(&mut self, in_memory: usize) -> bool {
        self.metas.clear();
        let there = self.segments.iter().enumerate().filter(|(_, s)| !s.gone);
        self.metas.extend(there.map(|(id, s)| SegmentMeta {
            id: id as u64,
            sequence: id as u64,
            bytes: s.keys.len() as u64 * 100,
            records: s.keys.len() as u64,
            live_records: s.live,
            sealed: s.sealed,
            ..SegmentMeta::default()
        }));
        let plan = self.policy.plan(&self.metas, in_memory as u64 * 100);
        for id in plan.unlink {
            self.drop_segment(id as usize);
        }
        let Some(&oldest) = plan.rewrite.first() else { return false };
        let chosen = match self.choice {
            Choice::Oldest => oldest,
            Choice::Emptiest => {
                let sealed = self.metas.iter().filter(|s| s.sealed && s.live_records > 0);
                sealed.min_by_key(|s| s.live_records).expect("the policy found one").id
            }
        } as usize;
        for key in std::mem::take(&mut self.segments[chosen].keys) {
            if self.place[key as usize] == chosen as u32 {
                self.append(key, self.generations - 1);
                self.copied += 1;
            }
        }
        self.drop_segment(chosen);
        true
    }

    fn drop_segment(&mut self, id: usize) {
        assert_eq!(self.segments[id].live, 0);
        self.segments[id] = Segment { sealed: true, gone: true, ..Segment::default() };
    }
}

/// Records in memory in front of the log, the oldest at the front. A record is changed where it is,
/// unless it is in the older half: then it moves to the end.
struct Memory {
    /// When a key came, if it is there.
    since: Vec<u64>,
    order: VecDeque<(u32, u64)>,
    count: usize,
    capacity: usize,
    now: u64,
}

impl Memory {
    fn new(keys: usize, capacity: usize) -> Self {
        Self { since: vec![0; keys], order: VecDeque::new(), count: 0, capacity, now: 0 }
    }

    fn put(&mut self, key: u32, log: &mut Log) {
        self.now += 1;
        let since = self.since[key as usize];
        let is_there = since > 0;
        log.read(key);
        let oldest = self.order.front().map_or(0, |front| front.1);
        if is_there && since - oldest > (self.now - oldest) / 2 {
            return;
        }
        self.since[key as usize] = self.now;
        self.order.push_back((key, self.now));
        self.count += usize::from(!is_there);
        while self.count > self.capacity {
            let (key, since) = self.order.pop_front().expect("some are there");
            if self.since[key as usize] == since {
                self.since[key as usize] = 0;
                self.count -= 1;
                log.write(key, self.count);
            }
        }
    }
}

/// How updates choose their keys.
#[derive(Clone, Copy, Debug)]
enum Skew {
    Uniform,
    /// So many percent of the updates go to so many percent of the keys.
    Hot(usize, usize),
    /// By rank, with exponent 1.
    Zipf,
}

impl Skew {
    fn key(self, rng: &mut Rng, keys: usize) -> u32 {
        let key = match self {
            Skew::Uniform => rng.below(keys),
            Skew::Hot(updates, part) => {
                let hot = keys * part / 100;
                match rng.below(100) < updates {
                    true => rng.below(hot),
                    false => hot + rng.below(keys - hot),
                }
            }
            // The inverse of log(rank) / log(keys).
            Skew::Zipf => (keys as f64).powf(rng.below(1 << 30) as f64 / (1 << 30) as f64) as usize,
        };
        // Ranks are no neighbours.
        (key.min(keys - 1) * 7919 % keys) as u32
    }
}

/// Records written to storage per record that left memory.
fn amplification(
    (keys, updates): (usize, usize),
    skew: Skew,
    in_memory: usize,
    limit: f64,
    generations: usize,
    choice: Choice,
) -> f64 {
    let mut rng = Rng(42);
    let mut log = Log::new(keys, limit, generations, choice);
    let mut memory = Memory::new(keys, (keys * in_memory / 100).max(1));
    (0..keys as u32).for_each(|key| memory.put(key, &mut log));
    // Until it has settled.
    for _ in 0..updates {
        memory.put(skew.key(&mut rng, keys), &mut log);
    }
    let (written, copied) = (log.written, log.copied);
    for _ in 0..updates {
        memory.put(skew.key(&mut rng, keys), &mut log);
    }
    1.0 + (log.copied - copied) as f64 / (log.written - written) as f64
}

const SKEWS: [Skew; 4] = [Skew::Uniform, Skew::Hot(80, 20), Skew::Hot(95, 5), Skew::Zipf];

fn main() {
    println!("| updates | in memory | limit | oldest, 1 | oldest, 2 | emptiest, 1 | emptiest, 2 |");
    for skew in SKEWS {
        for in_memory in [0, 2, 10] {
            for limit in [1.5, 2.0] {
                let of = |choice, generations| {
                    amplification((60_000, 600_000), skew, in_memory, limit, generations, choice)
                };
                let [a, b] = [1, 2].map(|generations| of(Choice::Oldest, generations));
                let [c, d] = [1, 2].map(|generations| of(Choice::Emptiest, generations));
                println!(
                    "| {skew:?} | {in_memory} % | {limit} | {a:.2} | {b:.2} | {c:.2} | {d:.2} |"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With memory that has room for what is hot, which is how a hybrid log is sized, what reaches storage
    /// is too even for a second generation to gain anything.
    #[test]
    fn behind_memory_for_what_is_hot_a_second_generation_gains_nothing() {
        for skew in SKEWS {
            let of = |generations| {
                amplification((20_000, 200_000), skew, 10, 1.5, generations, Choice::Oldest)
            };
            let (one, two) = (of(1), of(2));
            println!("{skew:?}: {one:.3} with one generation, {two:.3} with two");
            assert!(one > 1.3, "{skew:?}: nothing is rewritten at all");
            assert!(two > 0.97 * one, "{skew:?}: it would pay: {two} instead of {one}");
        }
    }

    /// The simulation can tell: of very skewed updates, and with less memory than what is hot takes, it
    /// gains much.
    #[test]
    fn behind_too_little_memory_it_would() {
        for in_memory in [0, 2] {
            let of = |generations| {
                let skew = Skew::Hot(95, 5);
                amplification((20_000, 200_000), skew, in_memory, 1.5, generations, Choice::Oldest)
            };
            let (one, two) = (of(1), of(2));
            assert!(two < 0.8 * one, "{in_memory} %: {two} instead of {one}");
        }
    }
}
