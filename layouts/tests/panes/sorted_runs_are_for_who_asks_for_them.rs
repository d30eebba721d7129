//! Accumulators by slice in a hybrid log move to sorted runs only if that was asked for from the beginning on.

use alluvium_layouts::{HybridLog, Upkeep};
use alluvium_pagestore::{ErrorKind, MIB};

use super::common::{Place, put};

type Plain = (u64, u64);

/// Puts keys until one is refused. Gives how many there were, and how many of them moved to runs.
fn fill(layout: &HybridLog) -> (u64, u64) {
    let (mut place, _) = Place::simulated(MIB, 7);
    let mut panes = place.open::<Plain, _>(layout);
    let refused = (0..).find_map(|key| put::<Plain>(&mut panes, 0, key, 1).err().map(|e| (key, e)));
    let (keys, error) = refused.expect("memory ends");
    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    (keys, panes.stats().runs.moved)
}

#[test]
fn the_default_means_the_same_written_out() {
    let never = fill(&HybridLog::new().cold_runs(false));
    assert_eq!(never.1, 0);
    assert_eq!(fill(&HybridLog::new()), never);
    assert_eq!(fill(&HybridLog::new().cold_runs_automatic()), never);
    assert_eq!(fill(&serde_json::from_str("{\"cold-runs\":\"automatic\"}").unwrap()), never);
    let asked = fill(&HybridLog::new().cold_runs(true));
    assert!(asked.1 > 0, "{asked:?}, {never:?} without runs");
}
