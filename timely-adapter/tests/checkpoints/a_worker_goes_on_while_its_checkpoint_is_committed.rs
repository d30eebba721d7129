//! A worker takes turns, and sends, while the job's record and its store's manifest are replaced: each
//! is held up here until the worker has gone on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use alluvium::Result;
use alluvium::config::Helpers;
use alluvium::io::{Device, Faults, FileHandle, IoStats, Request, Simulated};

use crate::hand_on::hand_on;
use crate::job::{Accident, Job, expected, node, run_with, together};

/// Turns of its worker that a file waits for before it is replaced.
const TURNS: u64 = 20;

/// A device that replaces files once its worker has taken some turns.
#[derive(Debug)]
struct Held {
    inner: Simulated,
    turns: Arc<AtomicU64>,
    replaced: AtomicU64,
    /// Replaced although the worker had not gone on: it was waiting.
    late: AtomicU64,
}

impl Held {
    fn new(seed: u64) -> Self {
        let (inner, turns) = (Simulated::new(seed, Faults::none()), Arc::default());
        Self { inner, turns, replaced: AtomicU64::new(0), late: AtomicU64::new(0) }
    }
}

impl Device for Held {
    hand_on!(inner: stats, create, open, len, submit, drive, remove, sync_directory, list, lock);

    fn engine(&self) -> &'static str {
        "held"
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        let (before, since) = (self.turns.load(Ordering::Relaxed), Instant::now());
        while self.turns.load(Ordering::Relaxed) < before + TURNS {
            if since.elapsed() > Duration::from_secs(20) {
                self.late.fetch_add(1, Ordering::Relaxed);
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.replaced.fetch_add(1, Ordering::Relaxed);
        self.inner.rename(source, target)
    }
}

#[test]
fn the_record_and_the_manifests_are_replaced_while_the_workers_go_on() {
    let held: Vec<_> = (0..2).map(|worker| Arc::new(Held::new(worker))).collect();
    let mut node = node();
    node.store.helpers = Helpers::Thread;
    let job = Job { numbers: 1_000, every: 150, batch: 1, ties: 1 };
    let devices = held.iter().map(|held| held.clone() as Arc<dyn Device>).collect();
    let accident = Accident::counting(held.iter().map(|held| held.turns.clone()).collect());
    let ends = run_with(node.clone(), devices, job, accident).unwrap();
    assert_eq!(together(&ends), expected(job));
    assert!(ends.iter().all(|end| end.abandoned == 0), "{ends:?}");
    let committed = ends[0].committed;
    assert!(committed >= 2, "{ends:?}");
    for (worker, held) in held.iter().enumerate() {
        let late = held.late.load(Ordering::Relaxed);
        assert_eq!(late, 0, "worker {worker} waited");
        // The first worker's device has the record too, and the note that the job begins.
        let replaced = if worker == 0 { 2 * committed + 1 } else { committed };
        assert_eq!(held.replaced.load(Ordering::Relaxed), replaced, "worker {worker}");
    }
    // What was committed is what a run goes on from.
    let devices = held.iter().map(|held| Arc::new(held.inner.clone()) as Arc<dyn Device>);
    let job = Job { numbers: job.numbers + 200, ..job };
    let more = run_with(node, devices.collect(), job, Accident::default()).unwrap();
    assert!(more[0].committed >= committed);
    assert!(more.iter().map(|end| end.sent).sum::<i64>() < job.numbers, "it began again");
}
