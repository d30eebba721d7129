//! A directory of open sessions whose timers are not all in it: this build finds the others in the sets of sessions. A
//! build that does not know of that must not open it, as those sessions would never close there.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::time::nanos;
use alluvium::{
    Aggregate, Aggregated, AnyLayout, ErrorKind, HybridLog, MIB, Result, Store, StoreBuilder, Time,
    Window, Windows,
};
use alluvium_pagestore::CheckpointImage;

use crate::clock::Standing;
use crate::files::{expected, load, place, read_directory};
use crate::make::{keep, tell};
use crate::states::Lines;
use crate::{assert_lines, builder};

/// The fixture, in the folder of the format that had it first, and its name there.
const FIXTURE: &str = "format-5/sessions";
const NAME: &str = "sessions";
const KEYS: u64 = 1_500;
const GAP: i64 = 100;
/// The most timers that are kept.
const TIMERS: usize = 300;

/// A sum that forgets nothing but order.
struct Sum;

impl Aggregate<u64> for Sum {
    type Acc = u64;
    type Out = u64;

    fn init(&self) -> u64 {
        0
    }

    fn add(&self, acc: &mut u64, element: &u64) {
        *acc += element;
    }

    fn merge(&self, acc: &mut u64, later: &u64) {
        *acc += later;
    }

    fn out(&self, acc: &u64) -> Option<u64> {
        Some(*acc)
    }
}

fn windows() -> Windows {
    Windows::session(nanos(GAP))
}

struct Open {
    store: Store,
    sessions: Aggregated<u64, u64, Sum>,
}

impl Open {
    fn of(builder: StoreBuilder, timers: usize) -> Result<Self> {
        let builder = builder.clock(Arc::new(Standing)).memory(4 * MIB);
        let store = builder.helpers(Helpers::Inline).retain(1).open()?;
        let sessions = store.aggregated("s").layout(AnyLayout::from(HybridLog::new()));
        let mut sessions = sessions.open(windows(), Sum)?;
        sessions.keep_timers(timers);
        Ok(Self { store, sessions })
    }

    /// Lets two sessions begin for each key, the second of which is extended for some. Returns what should be told.
    fn play(&mut self) -> Lines {
        let mut told = BTreeMap::new();
        for key in 0..KEYS {
            let first = (key * 37 % 1_000) as i64;
            let second = first + 2 * GAP + (key % 50) as i64;
            let mut events = vec![(key, Time(first), key), (key, Time(second), 2 * key)];
            told.insert((first + GAP, key, first), key);
            let extended = key % 3 == 0;
            events.extend(extended.then_some((key, Time(second + GAP), 1)));
            let last = second + if extended { GAP } else { 0 };
            told.insert((last + GAP, key, second), 2 * key + u64::from(extended));
            let late = &mut |_| panic!("nothing is late");
            self.sessions.add_batch(Time(0), &mut events, late, &mut |_, _, _, _| ()).unwrap();
        }
        let line = |((end, key, start), sum)| format!("{key}: {start} to {end}: {sum}");
        told.into_iter().map(line).collect()
    }

    /// What is told until all have closed.
    fn lines(&mut self) -> Result<Lines> {
        let mut lines = Lines::new();
        let out = &mut |key: &u64, window: Window, sum: u64, diff: i64| {
            assert_eq!(diff, 1);
            lines.push(format!("{key}: {} to {}: {sum}", window.start.0, window.end.0));
        };
        while !self.sessions.advance(Time::MAX, 1_000, out)?.done {}
        Ok(lines)
    }
}

/// The definition of the sessions' progress in the newest checkpoint.
fn definition(files: &BTreeMap<String, Vec<u8>>) -> serde_json::Value {
    let named = files.iter().rfind(|(name, _)| name.starts_with("checkpoint-"));
    let (name, bytes) = named.expect("a checkpoint");
    let image = CheckpointImage::parse(name, bytes).unwrap();
    let progress = image.states.into_iter().find(|one| one.name == "s/progress");
    progress.unwrap().definition.expect("windows are defined")
}

#[test]
#[ignore = "makes a fixture, which is kept as it is"]
fn makes_the_fixture_of_sessions() {
    let made = std::panic::catch_unwind(|| load(FIXTURE)).is_ok();
    assert!(!made, "the fixture is there: it stays as it is");
    let directory = tempfile::tempdir().unwrap();
    let mut open = Open::of(builder(directory.path()), TIMERS).unwrap();
    let told = open.play();
    open.store.checkpoint(10).unwrap();
    drop(open);
    // Removes what no checkpoint names.
    drop(Open::of(builder(directory.path()), TIMERS).unwrap());
    tell(NAME, &told);
    keep(NAME, &read_directory(directory.path()));
}

#[test]
fn sessions_without_all_timers_are_read_value_for_value() {
    for (restarts, timers) in [(0, TIMERS), (0, usize::MAX), (1, TIMERS), (1, usize::MAX)] {
        let directory = tempfile::tempdir().unwrap();
        place(FIXTURE, directory.path());
        let mut open = Open::of(builder(directory.path()), timers).unwrap();
        assert_eq!(open.store.restored_position(), Some(10));
        for n in 0..restarts {
            open.store.checkpoint(11 + n).unwrap();
            drop(open);
            open = Open::of(builder(directory.path()), timers).unwrap();
        }
        assert_lines(&open.lines().unwrap(), FIXTURE);
    }
}

/// Builds from before find windows in no definition that is not theirs, and refuse it: so is one here that says that it
/// needs more than this build knows.
#[test]
fn sessions_without_all_timers_are_refused_by_builds_that_do_not_find_them() {
    let files = load(FIXTURE);
    let has = definition(&files);
    let windows = serde_json::to_value(windows()).unwrap();
    assert!(has.get("shape").is_none() && has["definition"] == windows, "{has}");
    let need = has["needs"].as_str().expect("what a build needs");
    let directory = tempfile::tempdir().unwrap();
    place(FIXTURE, directory.path());
    let other = "x".repeat(need.len());
    let mut named: Vec<_> = files.into_iter().filter(|(name, _)| is_listed(name)).collect();
    for (name, bytes) in &mut named {
        replace(bytes, need, &other);
        std::fs::write(directory.path().join(name), bytes).unwrap();
    }
    // The manifest has the checksum of the checkpoint.
    let [manifest, checkpoint] = &mut named[..] else { panic!("{} files", named.len()) };
    let sum = |bytes: &[u8]| u32::from_le_bytes(bytes[12..16].try_into().unwrap());
    let (old, new) = (sum(&load(FIXTURE)[&checkpoint.0]), sum(&checkpoint.1));
    replace(&mut manifest.1, &old.to_string(), &new.to_string());
    std::fs::write(directory.path().join(&manifest.0), &manifest.1).unwrap();
    let error = Open::of(builder(directory.path()), TIMERS).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error:?}");
    assert!(error.to_string().contains(&other), "{error}");
    assert_eq!(error.context("state"), Some("s/progress"), "{error:?}");
}

fn is_listed(name: &str) -> bool {
    name.starts_with("checkpoint-") || name == "MANIFEST"
}

/// Replaces text in the body of a checkpoint or manifest, and what its header says of that.
fn replace(bytes: &mut Vec<u8>, from: &str, to: &str) {
    let length = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    let body = std::str::from_utf8(&bytes[32..32 + length]).unwrap();
    let body = body.replace(from, to);
    let padded = bytes.len();
    bytes.truncate(32);
    bytes.extend_from_slice(body.as_bytes());
    bytes.resize(padded, 0);
    bytes[12..16].copy_from_slice(&crc32c::crc32c(body.as_bytes()).to_le_bytes());
    bytes[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..28]);
    bytes[28..32].copy_from_slice(&crc.to_le_bytes());
}

/// A canonical file says it too; and once no timers lack, builds from before can read what is written.
#[test]
fn what_a_build_needs_is_said_as_long_as_timers_lack() {
    let directory = tempfile::tempdir().unwrap();
    let windows = serde_json::to_value(windows()).unwrap();
    let mut open = Open::of(builder(directory.path()), TIMERS).unwrap();
    let taken = |open: &Open, position| {
        open.store.checkpoint(position).unwrap();
        definition(&read_directory(directory.path()))
    };
    assert_eq!(taken(&open, 1), windows, "no timers lack");
    let told = open.play();
    let needing = taken(&open, 2);
    assert_eq!(needing["definition"], windows);
    let mut file = Vec::new();
    open.store.export(&mut file).unwrap();
    let head = needing.to_string();
    assert!(file.windows(head.len()).any(|bytes| bytes == head.as_bytes()), "{head}");

    let other = tempfile::tempdir().unwrap();
    let mut imported = Open::of(builder(other.path()), TIMERS).unwrap();
    imported.store.import(&*file).unwrap();
    assert_eq!(imported.lines().unwrap(), told);

    assert_eq!(open.lines().unwrap(), told);
    assert_eq!(taken(&open, 3), windows, "no timers lack any more");
    assert!(expected(FIXTURE).lines().eq(told.iter()), "it is the history of the fixture");
}
