//! A log without bytes: keys, segments and what is live in them, with all rules asserted.

#![allow(dead_code)]

use std::collections::BTreeMap;

use alluvium_pagestore::{Error, ErrorKind, Result, Rewrite, RewriteProgress, SegmentMeta};

pub const RECORD_BYTES: u64 = 100;

#[derive(Default)]
struct Segment {
    /// Key of each record, in order.
    keys: Vec<usize>,
    live: u64,
    sealed: bool,
    pinned: bool,
}

/// A simulated log. `put`, `remove` and `checkpoint` are the user's side.
pub struct Population {
    /// Segment and position of the newest record of each key.
    newest: Vec<Option<(u64, usize)>>,
    segments: BTreeMap<u64, Segment>,
    records_per_segment: usize,
    tail: u64,
    cursor: Option<(u64, usize)>,
    /// Records that died, by the user's doing.
    pub garbage: u64,
    /// Live records that rewriting moved.
    pub moved: u64,
    /// Records that rewriting looked at.
    pub looked_at: u64,
    /// Calls, counted down; the call that reaches 0 fails.
    pub fail_in: Option<u32>,
}

impl Population {
    pub fn new(keys: usize, records_per_segment: usize) -> Self {
        let segments = BTreeMap::from([(0, Segment::default())]);
        Self {
            newest: vec![None; keys],
            segments,
            records_per_segment,
            tail: 0,
            cursor: None,
            garbage: 0,
            moved: 0,
            looked_at: 0,
            fail_in: None,
        }
    }

    pub fn put(&mut self, key: usize) {
        self.remove(key);
        self.append(key);
    }

    pub fn remove(&mut self, key: usize) {
        if let Some((segment, _)) = self.newest[key].take() {
            self.segments.get_mut(&segment).expect("newest record in a removed segment").live -= 1;
            self.garbage += 1;
        }
    }

    fn append(&mut self, key: usize) {
        let tail = self.segments.get_mut(&self.tail).unwrap();
        self.newest[key] = Some((self.tail, tail.keys.len()));
        tail.keys.push(key);
        tail.live += 1;
        if tail.keys.len() == self.records_per_segment {
            self.seal();
        }
    }

    fn seal(&mut self) {
        self.segments.get_mut(&self.tail).unwrap().sealed = true;
        self.tail += 1;
        self.segments.insert(self.tail, Segment::default());
    }

    /// A checkpoint that replaces the one before: it pins what is not dead, and nothing else.
    pub fn checkpoint(&mut self) {
        if !self.segments[&self.tail].keys.is_empty() {
            self.seal();
        }
        for segment in self.segments.values_mut() {
            segment.pinned = segment.sealed && segment.live > 0;
        }
    }

    pub fn drop_checkpoint(&mut self) {
        self.segments.values_mut().for_each(|segment| segment.pinned = false);
    }

    pub fn live_records(&self) -> u64 {
        self.newest.iter().flatten().count() as u64
    }

    /// Bytes of all segments but the dead ones that a checkpoint holds.
    pub fn occupied_bytes(&self) -> u64 {
        let held = |s: &Segment| s.pinned && s.live == 0;
        let records: usize =
            self.segments.values().filter(|s| !held(s)).map(|s| s.keys.len()).sum();
        records as u64 * RECORD_BYTES
    }

    pub fn segment_bytes(&self) -> u64 {
        self.records_per_segment as u64 * RECORD_BYTES
    }

    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    pub fn is_there(&self, segment: u64) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Where rewriting is: segment and position.
    pub fn at(&self) -> Option<(u64, usize)> {
        self.cursor
    }

    fn may_fail(&mut self) -> Result<()> {
        if let Some(n) = &mut self.fail_in {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.fail_in = None;
                return Err(Error::new(ErrorKind::Io, "simulated"));
            }
        }
        Ok(())
    }
}

impl Rewrite for Population {
    fn begin(&mut self, segment: u64) -> Result<()> {
        self.may_fail()?;
        assert!(self.segments[&segment].sealed, "segment {segment} is not sealed");
        self.cursor = Some((segment, 0));
        Ok(())
    }

    fn step(&mut self, fuel: usize) -> Result<RewriteProgress> {
        assert!(fuel > 0, "a step without fuel");
        let (segment, start) = self.cursor.expect("step before begin");
        for spent in 0..fuel {
            let position = start + spent;
            self.cursor = Some((segment, position));
            let Some(&key) = self.segments[&segment].keys.get(position) else {
                assert_eq!(self.segments[&segment].live, 0);
                self.cursor = None;
                return Ok(RewriteProgress::Done { spent });
            };
            self.may_fail()?;
            self.looked_at += 1;
            if self.newest[key] == Some((segment, position)) {
                self.segments.get_mut(&segment).unwrap().live -= 1;
                self.append(key);
                self.moved += 1;
            }
        }
        self.cursor = Some((segment, start + fuel));
        Ok(RewriteProgress::Working { spent: fuel })
    }

    fn unlink(&mut self, id: u64) -> Result<()> {
        self.may_fail()?;
        let segment = self.segments.remove(&id).expect("unlinked twice");
        assert!(segment.sealed, "segment {id} is not sealed");
        assert!(!segment.pinned, "segment {id} is pinned");
        assert_eq!(segment.live, 0, "segment {id} is live");
        Ok(())
    }

    fn segments(&self, out: &mut Vec<SegmentMeta>) {
        out.extend(self.segments.iter().map(|(&id, s)| SegmentMeta {
            id,
            sequence: id,
            bytes: s.keys.len() as u64 * RECORD_BYTES,
            records: s.keys.len() as u64,
            live_records: s.live,
            sealed: s.sealed,
            pinned: s.pinned,
            expired: false,
        }));
    }
}

/// xorshift64*: enough to spread keys, and the same on every machine.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
