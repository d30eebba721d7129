//! Stores to look into, and what is exported of them.

use std::path::Path;

use alluvium::config::Helpers;
use alluvium::{AnyLayout, HybridLog, KIB, Key, MIB, State, Store};
use alluvium_inspect::{ClosedDirectory, ExportOptions, ExportSummary, export};
use tempfile::TempDir;

/// A hybrid log of pages of 8 records and segments of a few pages.
pub fn tiny() -> AnyLayout {
    HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).into()
}

/// A store in `place` whose background work runs on the calling thread.
pub fn store(place: &Path, layout: impl Into<AnyLayout>) -> Store {
    Store::builder(place)
        .memory(4 * MIB)
        .max_value(64 * KIB)
        .layout(layout)
        .helpers(Helpers::Inline)
        .retain(1)
        .open()
        .unwrap()
}

/// A directory with one map, of which a checkpoint was taken.
pub fn map_of<K: Key, V: State>(
    layout: impl Into<AnyLayout>,
    entries: impl IntoIterator<Item = (K, V)>,
) -> TempDir {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path(), layout);
    let mut map = store.map::<K, V>("map").open().unwrap();
    for (key, value) in entries {
        map.put(key, value).map_err(|rejected| rejected.error).unwrap();
    }
    store.checkpoint(1).unwrap();
    drop((map, store));
    place
}

/// The lines that are exported, and the report.
pub fn lines(place: &Path, options: &ExportOptions) -> (Vec<String>, ExportSummary) {
    let mut out = Vec::new();
    let done = export(&ClosedDirectory::open(place).unwrap(), options, &mut out).unwrap();
    let lines: Vec<_> = String::from_utf8(out).unwrap().lines().map(String::from).collect();
    assert_eq!(lines.len() as u64, done.lines);
    (lines, done)
}

/// The lines of all states.
pub fn all_lines(place: &Path) -> Vec<String> {
    lines(place, &ExportOptions::default()).0
}
