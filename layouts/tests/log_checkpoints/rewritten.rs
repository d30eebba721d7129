//! A checkpoint begins while a rewrite stands between any two of its steps; it is confirmed or given up, and the state is
//! cleared meanwhile or not. With one generation of segments and with two.
//!
//! What this catches: a checkpoint that lacks what was being copied, or has it twice; a segment of copies of which nobody
//! hears that it is sealed; a file that stays though nobody knows of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium_layouts::{CheckpointOutcome, HybridLog, HybridLogTable, Pace, Table, Upkeep};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{
    BlobWriter, KIB, RewriteProgress, SegmentId, SegmentMeta, SegmentStore, StateImage,
};

use crate::log::{Model, entries, files, open, restored};

const KEYS: u64 = 1800;

struct Run {
    device: Simulated,
    segments: SegmentStore,
    layout: HybridLog,
    table: HybridLogTable<u64, u64>,
    model: Model<u64>,
    number: u64,
    /// The last checkpoint that was confirmed.
    confirmed: Option<StateImage>,
}

impl Run {
    /// Segments that are half dead, most of whose records are not in memory, which has room for another log.
    fn new(generations: u32) -> Self {
        let device = Simulated::new(1, Faults::none());
        let segments = SegmentStore::new(Arc::new(device.clone()), 1);
        let layout = HybridLog::new().page_records(32).segment(16 * KIB).generations(generations);
        let (table, _) = open(&layout, &segments, 640 * KIB, false, None).unwrap();
        let (model, number, confirmed) = (Model::new(), 0, None);
        let mut run = Self { device, segments, layout, table, model, number, confirmed };
        (0..KEYS).for_each(|key| run.put(key));
        run.checkpoint(CheckpointOutcome::Committed, false);
        (0..KEYS).filter(|key| key % 3 != 1).for_each(|key| run.put(key));
        run.checkpoint(CheckpointOutcome::Committed, false);
        run.table.reclaim(u64::MAX).unwrap();
        run
    }

    fn put(&mut self, key: u64) {
        let n = key + 1000 * self.number;
        assert_eq!(self.table.put(key, n).unwrap(), self.model.insert(key, n).is_some());
    }

    fn metas(&mut self) -> Vec<SegmentMeta> {
        let mut metas = Vec::new();
        self.table.rewriter().expect("a log with segments").segments(&mut metas);
        metas
    }

    /// Rewrites segments with garbage, the oldest first, a record with each step, while it is told to go on; says
    /// whether that was all.
    fn rewrite(&mut self, mut goes_on: impl FnMut(&Simulated) -> bool) -> bool {
        loop {
            self.remove_dead();
            let metas = self.metas().into_iter();
            let oldest = metas.filter(|s| s.sealed && s.live_records < s.records && !s.is_dead());
            let Some(oldest) = oldest.min_by_key(|segment| segment.sequence) else { return true };
            let rewriter = self.table.rewriter().expect("a log with segments");
            rewriter.begin(oldest.id).unwrap();
            let mut is_done = false;
            while !is_done {
                if !goes_on(&self.device) {
                    return false;
                }
                is_done = matches!(rewriter.step(1).unwrap(), RewriteProgress::Done { .. });
            }
        }
    }

    /// Numbers of steps after which the helper is to copy a page, and has copied it, and some of it is installed.
    fn moments(generations: u32) -> Vec<usize> {
        let (mut step, mut writes, mut moments) = (0, None, Vec::new());
        let share = if crate::long() { 1 } else { 4 };
        let mut copies = 0;
        let is_over = Self::new(generations).rewrite(|device| {
            let now = device.stats().writes;
            if writes.replace(now).is_some_and(|before| before < now) {
                if copies % share == 0 {
                    moments.extend([step - 1, step, step + 4]);
                }
                copies += 1;
            }
            step += 1;
            true
        });
        assert!(is_over && copies > 20, "{copies} copies");
        moments
    }

    fn remove_dead(&mut self) {
        for dead in self.metas().iter().filter(|segment| segment.is_dead() && !segment.pinned) {
            self.table.rewriter().expect("a log with segments").unlink(dead.id).unwrap();
        }
    }

    /// Takes one to its end, or gives it up after so many shares if its `outcome` is to be that.
    fn checkpoint(&mut self, outcome: CheckpointOutcome, is_cleared: bool) {
        self.number += 1;
        let mut blobs = BlobWriter::new(self.segments.shared_device(), self.number, 4096);
        assert!(self.table.begin_checkpoint(&mut blobs).unwrap().is_none());
        let expected = self.model.clone();
        if is_cleared {
            self.table.clear().unwrap();
            self.model.clear();
            (0..KEYS / 8).for_each(|key| self.put(key));
        }
        if outcome == CheckpointOutcome::Abandoned {
            self.table.checkpointed(outcome);
            return blobs.abandon();
        }
        let image = loop {
            self.table.pace_checkpoint(Pace::AT_ONCE);
            if let Some(image) = self.table.continue_checkpoint(&mut blobs).unwrap() {
                break image;
            }
        };
        self.segments.pin(files(&image).iter().map(String::as_str));
        self.device.drain();
        restored(&self.device, &self.layout, &image, &expected);
        blobs.finish().unwrap();
        self.table.checkpointed(outcome);
        if let Some(before) = self.confirmed.replace(image) {
            self.segments.unpin(files(&before).iter().map(String::as_str));
        }
    }

    /// Each segment on storage is one that the log knows of.
    fn assert_no_file_is_left(&mut self) {
        self.remove_dead();
        let known = self.metas().into_iter().map(|segment| SegmentId(segment.id).file_name());
        let found = self.device.list().unwrap();
        let found = found.into_iter().filter(|name| name.starts_with("seg-"));
        assert_eq!(found.collect::<BTreeSet<_>>(), known.collect::<BTreeSet<_>>());
    }
}

fn begins_after(steps: usize, generations: u32, outcome: CheckpointOutcome, is_cleared: bool) {
    let (mut run, mut step) = (Run::new(generations), 0);
    let is_over = run.rewrite(|_| {
        step += 1;
        step <= steps
    });
    assert!(!is_over, "{steps} steps are all of them");
    run.checkpoint(outcome, is_cleared);
    assert_eq!(entries(&mut run.table).unwrap(), run.model);
    // What was handed over is let go of in shares, and rewrites that were given up are begun anew.
    for _ in 0..2 {
        run.checkpoint(CheckpointOutcome::Committed, false);
        assert!(run.rewrite(|_| true));
    }
    run.checkpoint(CheckpointOutcome::Committed, false);
    run.assert_no_file_is_left();
    assert_eq!(entries(&mut run.table).unwrap(), run.model);
    let rewritten = run.table.stats().rewritten;
    assert!(is_cleared || rewritten > KEYS / 10, "{rewritten} records were copied");
}

#[test]
fn a_checkpoint_begins_between_two_steps_of_a_rewrite() {
    for generations in [1, 2] {
        let moments = Run::moments(generations);
        println!("{generations} generations: {} moments", moments.len());
        for outcome in [CheckpointOutcome::Committed, CheckpointOutcome::Abandoned] {
            for is_cleared in [false, true] {
                let each = moments.iter();
                each.for_each(|&steps| begins_after(steps, generations, outcome, is_cleared));
            }
        }
    }
}
