//! Files that fail, hang and recover while calls go on.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use alluvium_pagestore::{Account, ByteSize, Time};

use super::recorder::{Access, CHUNK_BYTES, Recorder};
use super::tracer::ChunkDesk;
use super::writing::{LineSink, TraceFile, TraceProgress};
use super::{TraceOptions, TraceStats};

/// What a sink has, and whether it takes more.
#[derive(Default)]
struct Disk {
    text: Vec<u8>,
    is_full: bool,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Disk>>);

impl LineSink for Shared {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        if disk.is_full {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        disk.text.extend_from_slice(lines);
        Ok(())
    }
}

impl Shared {
    fn fill(&self, is_full: bool) {
        self.0.lock().unwrap().is_full = is_full;
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().text.clone()).unwrap()
    }
}

fn recorder(
    disk: &Shared,
    options: &TraceOptions,
    account: &Rc<Account>,
) -> (Recorder, Arc<TraceProgress>) {
    let file = TraceFile::of(Box::new(disk.clone()), b"# state s\n", "s", PathBuf::from("s.trace"));
    let desk = Rc::new(ChunkDesk::start(Duration::from_secs(20)).unwrap());
    (Recorder::new(options, account, file.0, desk).unwrap(), file.1)
}

fn small(wait_ms: u64) -> TraceOptions {
    let buffer = ByteSize(2 * CHUNK_BYTES as u64);
    TraceOptions { buffer, wait_ms, ..TraceOptions::to("unused") }
}

/// Waits until the thread has done something.
fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing happens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Accesses that the text has, and those that it says are missing.
fn counted(text: &str) -> (u64, u64) {
    assert!(text.is_empty() || text.ends_with('\n'), "a line is cut");
    let (mut found, mut missing) = (0, 0);
    for line in text.lines() {
        match line
            .strip_prefix("# ")
            .and_then(|line| line.strip_suffix(" accesses are missing here"))
        {
            Some(count) => missing += count.parse::<u64>().unwrap(),
            None if line.starts_with('#') => {}
            None => {
                assert_eq!(line.split(' ').count(), 4, "{line}");
                found += 1;
            }
        }
    }
    (found, missing)
}

#[test]
fn a_full_disk_is_told_and_passes_and_the_file_says_what_is_missing() {
    let (disk, account) = (Shared::default(), Account::root(1 << 20));
    let (recorder, progress) = recorder(&disk, &small(20_000), &account);
    let mut made = 0;
    let mut make = |count: u64| {
        (0..count).for_each(|key| recorder.record(Access::Put, &key, None, 8));
        made += count;
    };
    make(10_000);
    until(|| progress.stats().written > 0);
    disk.fill(true);
    make(10_000);
    until(|| progress.stats().error.is_some());
    let TraceStats { error, missing, .. } = progress.stats();
    assert!(error.unwrap().contains("s.trace") && missing > 0);
    disk.fill(false);
    make(10_000);
    until(|| progress.stats().error.is_none());
    drop(recorder);
    let (found, missing) = counted(&disk.text());
    let TraceStats { written, missing: told, error, .. } = progress.stats();
    assert_eq!((found, missing), (written, told));
    assert_eq!((found + missing, error), (made, None));
    assert!(missing > 0 && found > 10_000, "{missing} of {made}");
}

#[test]
fn a_disk_that_does_nothing_holds_no_call_up_for_longer_than_it_may() {
    let (disk, account) = (Shared::default(), Account::root(1 << 20));
    let (recorder, progress) = recorder(&disk, &small(30), &account);
    let hung = disk.0.lock().unwrap();
    let began = Instant::now();
    (0..100_000u64).for_each(|key| recorder.record(Access::Get, &key, None, 0));
    // A wait for each call would be 50 minutes.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    drop(hung);
    until(|| progress.stats().written > 0 && recorder.has_spare());
    // There is room again.
    recorder.record(Access::Delete, &7u64, Some(Time(3)), 0);
    drop(recorder);
    let (found, missing) = counted(&disk.text());
    assert_eq!(found + missing, 100_001);
    assert!(missing > 90_000 && found > 1000, "{found} and {missing}");
    assert!(disk.text().ends_with(" delete 7@3 0\n"));
}

#[test]
fn the_buffer_is_booked_and_one_without_room_is_refused() {
    let (disk, account) = (Shared::default(), Account::root(80 << 10));
    let options = small(0);
    let (first, _) = recorder(&disk, &options, &account);
    let used = account.stats().used;
    assert!((2 * CHUNK_BYTES as u64..3 * CHUNK_BYTES as u64).contains(&used), "{used}");
    let file = TraceFile::of(Box::new(disk.clone()), b"", "t", PathBuf::new()).0;
    let desk = Rc::new(ChunkDesk::start(Duration::from_secs(1)).unwrap());
    let error = Recorder::new(&options, &account, file, desk).unwrap_err();
    assert!(error.to_string().contains("the buffer of a trace"), "{error}");
    drop(first);
    assert_eq!(account.stats().used, 0);
}

#[test]
fn a_purge_is_told_once() {
    let (disk, account) = (Shared::default(), Account::root(1 << 20));
    let (recorder, _) = recorder(&disk, &small(0), &account);
    for before in [5, 5, 3, 9] {
        recorder.record_purge(Time(before));
    }
    drop(recorder);
    let text = disk.text();
    let words: Vec<_> = text.lines().skip(1).map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(words, ["purge @5 0", "purge @9 0"]);
}

#[test]
fn options_that_cannot_be_are_refused() {
    let refused = |options: TraceOptions| options.check().unwrap_err().to_string();
    assert!(refused(TraceOptions::default()).contains("no directory"));
    assert!(refused(TraceOptions { sample: 0.0, ..TraceOptions::to("a") }).contains("samples 0"));
    assert!(refused(TraceOptions { sample: 1.5, ..TraceOptions::to("a") }).contains("samples 1.5"));
    let few = TraceOptions { buffer: ByteSize(1000), ..TraceOptions::to("a") };
    assert!(refused(few).contains("the least is"));
    let some = TraceOptions { states: vec!["bids".into()], ..TraceOptions::to("a") };
    for (state, is_taken) in
        [("bids", true), ("bids/sessions", true), ("bids/told", false), ("bids2", false)]
    {
        assert_eq!(some.takes(state), is_taken, "{state}");
    }
}
