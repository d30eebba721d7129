//! One contract, every engine: what a `Device` promises must hold for helper threads and
//! io_uring, direct and buffered, and for the simulated device, prompt and late.
//!
//! A break here would show as lost or doubled completions, bytes at the wrong place, a lock that
//! two stores hold, or memory given back while the kernel still writes to it.

use alluvium_pagestore::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use alluvium_pagestore::io::{
    BLOCK_BYTES, Completion, Device, DirectIo, EngineChoice, Faults, FileHandle, IoBuffer,
    IoOptions, Operation, Patient, Request, Simulated, next_completion, open_device, run_blocking,
};
use alluvium_pagestore::{ErrorKind, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Devices under test, all on fresh directories below one that goes with this value.
struct Engines {
    place: tempfile::TempDir,
    real: Vec<(&'static str, IoOptions)>,
}

impl Engines {
    fn new() -> Self {
        // Not on /tmp, which may be memory and refuse direct I/O; the target directory is a disk.
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let options = |engine, direct| IoOptions { engine, direct, ..IoOptions::default() };
        let few =
            |engine| IoOptions { threads: 2, queue_depth: 2, ..options(engine, DirectIo::Auto) };
        let all = [
            ("threads direct", options(EngineChoice::Threads, DirectIo::On)),
            ("threads buffered", options(EngineChoice::Threads, DirectIo::Off)),
            ("threads few", few(EngineChoice::Threads)),
            ("uring direct", options(EngineChoice::Uring, DirectIo::On)),
            ("uring buffered", options(EngineChoice::Uring, DirectIo::Off)),
            ("uring few", few(EngineChoice::Uring)),
        ];
        let real = all.into_iter().filter(|(name, options)| works(place.path(), name, options));
        Self { real: real.collect(), place }
    }

    /// Runs `test` on each engine; on the real ones with the directory's path.
    fn each(test: impl Fn(&str, Arc<dyn Device>)) {
        let engines = Self::new();
        for (name, options) in &engines.real {
            let path = engines.place.path().join(name.replace(' ', "-"));
            test(name, open_device(&path, options).unwrap());
        }
        for (name, faults) in
            [("simulated prompt", Faults::none()), ("simulated late", Faults::late(20))]
        {
            test(name, Arc::new(Simulated::new(7, faults)));
        }
    }

    /// Runs `test` on each real engine with its directory.
    fn each_real(test: impl Fn(&str, &Path, &IoOptions)) {
        let engines = Self::new();
        for (name, options) in &engines.real {
            test(name, &engines.place.path().join(name.replace(' ', "-")), options);
        }
    }
}

/// Whether this machine has the engine; says so if not. Threads must always work.
fn works(place: &Path, name: &str, options: &IoOptions) -> bool {
    match open_device(&place.join("trial"), options) {
        Ok(_) => true,
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            eprintln!("skipped: {name}: {e}");
            false
        }
        Err(e) => panic!("{name}: {e}"),
    }
}

/// A caller with its channel.
struct Caller {
    device: Arc<dyn Device>,
    reply: Sender<Completion>,
    completions: Receiver<Completion>,
}

impl Caller {
    fn new(device: &Arc<dyn Device>) -> Self {
        let (reply, completions) = unbounded();
        Self { device: Arc::clone(device), reply, completions }
    }

    fn request(
        &self,
        file: &FileHandle,
        operation: Operation,
        buffer: IoBuffer,
        token: u64,
    ) -> Request {
        Request { file: file.clone(), operation, buffer, token, reply: self.reply.clone().into() }
    }

    fn submit(&self, file: &FileHandle, operation: Operation, buffer: IoBuffer, token: u64) {
        self.device.submit(self.request(file, operation, buffer, token));
    }

    /// Waits for one completion, as a store would.
    fn wait(&self) -> Completion {
        for _ in 0..60_000 {
            self.device.drive();
            match self.completions.recv_timeout(Duration::from_millis(1)) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender"),
            }
        }
        panic!("no completion within 60 s");
    }
}

fn filled(blocks: usize, seed: u64) -> IoBuffer {
    let mut buffer = IoBuffer::zeroed(blocks * BLOCK_BYTES);
    for (i, word) in buffer.as_mut_slice().chunks_mut(8).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(1_000_003) + i as u64).to_le_bytes());
    }
    buffer
}

fn write(device: &dyn Device, file: &FileHandle, offset: u64, buffer: IoBuffer) -> Result<()> {
    run_blocking(device, file, Operation::Write { offset }, buffer).1
}

fn read(device: &dyn Device, file: &FileHandle, offset: u64, blocks: usize) -> Result<IoBuffer> {
    let buffer = IoBuffer::zeroed(blocks * BLOCK_BYTES);
    let (buffer, result) = run_blocking(device, file, Operation::Read { offset }, buffer);
    result.map(|()| buffer)
}

fn sync(device: &dyn Device, file: &FileHandle) -> Result<()> {
    run_blocking(device, file, Operation::Sync, IoBuffer::empty()).1
}

#[test]
fn what_is_written_is_read_back_also_after_sync_and_reopening() {
    Engines::each(|name, device| {
        let file = device.create("data").unwrap();
        assert_eq!(device.len(&file).unwrap(), 0, "{name}");
        write(&*device, &file, 0, filled(3, 1)).unwrap();
        write(&*device, &file, BLOCK, filled(1, 2)).unwrap();
        sync(&*device, &file).unwrap();
        assert_eq!(device.len(&file).unwrap(), 3 * BLOCK, "{name}");
        drop(file);
        let file = device.open("data").unwrap();
        assert_eq!(file.name(), "data");
        let bytes = read(&*device, &file, 0, 3).unwrap();
        assert_eq!(
            bytes.as_slice()[..BLOCK_BYTES],
            filled(3, 1).as_slice()[..BLOCK_BYTES],
            "{name}"
        );
        assert_eq!(
            &bytes.as_slice()[BLOCK_BYTES..2 * BLOCK_BYTES],
            filled(1, 2).as_slice(),
            "{name}"
        );
        let tail = read(&*device, &file, 2 * BLOCK, 1).unwrap();
        assert_eq!(tail.as_slice(), &filled(3, 1).as_slice()[2 * BLOCK_BYTES..], "{name}");
    });
}

#[test]
fn large_requests_and_holes_move_whole() {
    Engines::each(|name, device| {
        let file = device.create("large").unwrap();
        write(&*device, &file, 5 * BLOCK, filled(1024, 3)).unwrap();
        let bytes = read(&*device, &file, 5 * BLOCK, 1024).unwrap();
        assert_eq!(bytes.as_slice(), filled(1024, 3).as_slice(), "{name}");
        let hole = read(&*device, &file, 0, 5).unwrap();
        assert!(hole.as_slice().iter().all(|byte| *byte == 0), "{name}: a hole reads as zeroes");
    });
}

#[test]
fn many_in_flight_all_end_once_with_their_own_buffer() {
    Engines::each(|name, device| {
        let caller = Caller::new(&device);
        let file = device.create("many").unwrap();
        let count = 500u64;
        let writes =
            |i| caller.request(&file, Operation::Write { offset: i * BLOCK }, filled(1, i), i);
        let mut batch: Vec<_> = (0..count).map(writes).collect();
        device.submit_all(&mut batch);
        assert!(batch.is_empty(), "{name}: submit_all takes everything");
        let mut tokens = BTreeSet::new();
        for _ in 0..count {
            let done = caller.wait();
            done.result.unwrap();
            assert_eq!(done.buffer.as_slice(), filled(1, done.token).as_slice(), "{name}");
            assert!(tokens.insert(done.token), "{name}: token {} ended twice", done.token);
        }
        for i in (0..count).rev() {
            caller.submit(&file, Operation::Read { offset: i * BLOCK }, IoBuffer::zeroed(1), i);
        }
        for _ in 0..count {
            let done = caller.wait();
            done.result.unwrap();
            assert_eq!(done.buffer.as_slice(), filled(1, done.token).as_slice(), "{name}");
        }
        assert!(caller.completions.try_recv().is_err(), "{name}: one end each");
    });
}

#[test]
fn several_threads_may_submit_at_once() {
    Engines::each(|name, device| {
        let file = device.create("shared").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (device, file) = (&device, &file);
                scope.spawn(move || {
                    let caller = Caller::new(device);
                    for i in 0..50 {
                        let offset = (thread * 50 + i) * BLOCK;
                        caller.submit(file, Operation::Write { offset }, filled(1, offset), i);
                    }
                    for _ in 0..50 {
                        caller.wait().result.unwrap();
                    }
                });
            }
        });
        for i in 0..200 {
            let bytes = read(&*device, &file, i * BLOCK, 1).unwrap();
            assert_eq!(bytes.as_slice(), filled(1, i * BLOCK).as_slice(), "{name}: block {i}");
        }
    });
}

/// Reads `count` blocks of a file as a thread does that waits for them, 100 at most at a time.
fn read_own(name: &str, device: &Arc<dyn Device>, file: &FileHandle, count: u64) {
    let caller = Caller::new(device);
    let (mut next, mut ended) = (0, BTreeSet::new());
    while ended.len() < count as usize {
        while next < count && next < ended.len() as u64 + 100 {
            let offset = Operation::Read { offset: next * BLOCK };
            let buffer = IoBuffer::zeroed(BLOCK_BYTES);
            device.submit_own(caller.request(file, offset, buffer, next));
            next += 1;
        }
        let Some(done) = next_completion(&**device, &caller.completions) else { continue };
        done.result.unwrap();
        assert_eq!(done.buffer.as_slice(), filled(1, done.token).as_slice(), "{name}");
        assert!(ended.insert(done.token), "{name}: {} ended twice", done.token);
    }
    assert!(caller.completions.is_empty(), "{name}: one end each");
    // With a real engine that is so at once.
    assert!(!device.wait_own(Duration::from_secs(60)), "{name}: nothing is left");
}

#[test]
fn threads_wait_for_reads_of_their_own() {
    Engines::each(|name, device| {
        let file = device.create("own").unwrap();
        for i in 0..300 {
            write(&*device, &file, i * BLOCK, filled(1, i)).unwrap();
        }
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| read_own(name, &device, &file, 300));
            }
        });
        read_own(name, &device, &file, 300);
    });
}

#[test]
fn a_patient_thread_reads_by_itself_and_is_told_of_errors() {
    Engines::each(|name, device| {
        let patient: Arc<dyn Device> =
            Arc::new(Patient::new(device.clone(), Duration::from_secs(60)));
        let file = patient.create("patient").unwrap();
        write(&*patient, &file, 0, filled(3, 9)).unwrap();
        let before = patient.stats();
        for _ in 0..5 {
            let bytes = read(&*patient, &file, 0, 3).unwrap();
            assert_eq!(bytes.as_slice(), filled(3, 9).as_slice(), "{name}");
        }
        let error = read(&*patient, &file, 2 * BLOCK, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert_eq!(error.context("file"), Some("patient"), "{name}");
        let (reads, errors) = (patient.stats().reads - before.reads, patient.stats().errors);
        assert_eq!((reads, errors), (5, before.errors + 1), "{name}");
    });
}

#[test]
fn reads_that_a_thread_does_not_wait_for_end_too() {
    Engines::each(|name, device| {
        let file = device.create("left").unwrap();
        write(&*device, &file, 0, filled(64, 1)).unwrap();
        let caller = Caller::new(&device);
        for token in 0..40 {
            let operation = Operation::Read { offset: token * BLOCK };
            let buffer = IoBuffer::zeroed(BLOCK_BYTES);
            device.submit_own(caller.request(&file, operation, buffer, token));
        }
        // Whoever waits for something else takes them along.
        let mut ended = 0;
        while ended < 40 {
            device.drive();
            ended += caller.completions.try_iter().count();
        }
        assert_eq!(ended, 40, "{name}");
    });
    Engines::each(|name, device| {
        let file = device.create("unread").unwrap();
        write(&*device, &file, 0, filled(64, 1)).unwrap();
        let (reply, completions) = unbounded();
        for token in 0..100 {
            let operation = Operation::Read { offset: token % 64 * BLOCK };
            let (file, reply) = (file.clone(), reply.clone().into());
            let buffer = IoBuffer::zeroed(BLOCK_BYTES);
            device.submit_own(Request { file, operation, buffer, token, reply });
        }
        drop(reply);
        // By another thread than the one that has launched them.
        std::thread::spawn(move || drop(device)).join().unwrap();
        let ends: BTreeSet<_> = completions.iter().map(|done| done.token).collect();
        assert_eq!(ends.len(), 100, "{name}");
    });
}

#[test]
fn reading_past_the_end_names_both_numbers() {
    Engines::each(|name, device| {
        let file = device.create("short").unwrap();
        write(&*device, &file, 0, filled(2, 1)).unwrap();
        for (offset, blocks) in [(BLOCK, 2), (2 * BLOCK, 1), (50 * BLOCK, 1)] {
            let error = read(&*device, &file, offset, blocks).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
            let needed = offset + (blocks * BLOCK_BYTES) as u64;
            assert!(error.message().contains("8192"), "{name}: {error}");
            assert!(error.message().contains(&needed.to_string()), "{name}: {error}");
            assert_eq!(error.context("file"), Some("short"), "{name}");
            assert_eq!(error.context("offset"), Some(&*offset.to_string()), "{name}");
        }
    });
}

#[test]
fn a_last_partial_block_is_past_the_end_too() {
    Engines::each_real(|name, path, options| {
        let device = open_device(path, options).unwrap();
        std::fs::write(path.join("cut"), vec![1; 5000]).unwrap();
        let file = device.open("cut").unwrap();
        let error = read(&*device, &file, 0, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        assert!(error.message().contains("5000"), "{name}: {error}");
        assert_eq!(read(&*device, &file, 0, 1).unwrap().as_slice(), [1; BLOCK_BYTES], "{name}");
    });
}

#[test]
fn unaligned_requests_fail_and_empty_ones_do_not() {
    Engines::each(|name, device| {
        let file = device.create("odd").unwrap();
        assert!(write(&*device, &file, 100, filled(1, 1)).is_err(), "{name}");
        let mut buffer = IoBuffer::zeroed(BLOCK_BYTES);
        buffer.set_len(1000);
        let (buffer, result) =
            run_blocking(&*device, &file, Operation::Write { offset: 0 }, buffer);
        assert!(result.is_err(), "{name}");
        assert_eq!(buffer.capacity(), BLOCK_BYTES, "{name}: the buffer comes back");
        write(&*device, &file, 0, IoBuffer::empty()).unwrap();
        assert_eq!(device.len(&file).unwrap(), 0, "{name}");
    });
}

#[test]
fn names_can_be_created_listed_renamed_and_removed() {
    Engines::each(|name, device| {
        let a = device.create("a").unwrap();
        device.create("b").unwrap();
        assert!(device.create("a").is_err(), "{name}: a exists");
        assert_eq!(device.open("none").unwrap_err().kind(), ErrorKind::Missing, "{name}");
        assert_eq!(device.remove("none").unwrap_err().kind(), ErrorKind::Missing, "{name}");
        assert_eq!(device.rename("none", "x").unwrap_err().kind(), ErrorKind::Missing, "{name}");
        for bad in ["", "..", "x/y", "LOCK"] {
            assert_eq!(device.create(bad).unwrap_err().kind(), ErrorKind::Input, "{name}: {bad}");
        }
        write(&*device, &a, 0, filled(1, 9)).unwrap();
        device.rename("a", "b").unwrap();
        device.create("c").unwrap();
        device.sync_directory().unwrap();
        let guard = device.lock().unwrap();
        let names: BTreeSet<_> = device.list().unwrap().into_iter().collect();
        assert_eq!(names, BTreeSet::from(["b".to_owned(), "c".to_owned()]), "{name}");
        drop(guard);
        let b = device.open("b").unwrap();
        assert_eq!(read(&*device, &b, 0, 1).unwrap().as_slice(), filled(1, 9).as_slice(), "{name}");
        device.remove("b").unwrap();
        device.sync_directory().unwrap();
        assert_eq!(device.list().unwrap(), ["c"], "{name}");
        let bytes = read(&*device, &b, 0, 1).expect("open handles outlive the name");
        assert_eq!(bytes.as_slice(), filled(1, 9).as_slice(), "{name}");
    });
}

#[test]
fn the_lock_is_held_once_and_given_back() {
    Engines::each(|name, device| {
        let guard = device.lock().unwrap();
        assert_eq!(device.lock().err().map(|e| e.kind()), Some(ErrorKind::Locked), "{name}");
        drop(guard);
        drop(device.lock().unwrap());
    });
}

#[test]
fn a_second_device_on_the_directory_is_told_who_holds_it() {
    Engines::each_real(|name, path, options| {
        let (one, other) =
            (open_device(path, options).unwrap(), open_device(path, options).unwrap());
        let guard = one.lock().unwrap();
        let error = other.lock().err().expect("the lock is held");
        assert_eq!(error.kind(), ErrorKind::Locked, "{name}");
        assert!(error.message().contains("this process"), "{name}: {error}");
        let pid = std::fs::read_to_string(path.join("LOCK")).unwrap();
        assert_eq!(pid.trim(), std::process::id().to_string(), "{name}");
        std::fs::write(path.join("LOCK"), "12345\n").unwrap();
        let error = other.lock().err().expect("the lock is held");
        assert!(error.message().contains("process 12345"), "{name}: {error}");
        drop(guard);
        other.lock().unwrap();
    });
}

#[test]
fn a_full_device_is_told_apart_from_a_broken_one() {
    Engines::each_real(|name, path, options| {
        let device = open_device(path, options).unwrap();
        std::os::unix::fs::symlink("/dev/full", path.join("full")).unwrap();
        let full = device.open("full").unwrap();
        let error = write(&*device, &full, BLOCK, filled(1, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DiskFull, "{name}: {error}");
        assert_eq!(error.context("offset"), Some("4096"), "{name}: {error}");
        std::os::unix::fs::symlink("/proc/self/mem", path.join("broken")).unwrap();
        let broken = device.open("broken").unwrap();
        let error = read(&*device, &broken, 0, 1).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::DiskFull, "{name}: {error}");
        assert_eq!(device.stats().errors, 2, "{name}");
    });
}

#[test]
fn a_handle_of_another_device_is_an_error() {
    Engines::each(|name, device| {
        let other = Simulated::new(1, Faults::none());
        let foreign = other.create("f").unwrap();
        assert!(write(&*device, &foreign, 0, filled(1, 1)).is_err(), "{name}");
        assert!(read(&*device, &foreign, 0, 1).is_err(), "{name}");
        assert!(sync(&*device, &foreign).is_err(), "{name}");
        assert!(device.len(&foreign).is_err(), "{name}");
    });
}

#[test]
fn dropping_the_device_ends_every_request() {
    Engines::each(|name, device| {
        let file = device.create("dropped").unwrap();
        write(&*device, &file, 0, filled(256, 1)).unwrap();
        let (reply, completions) = unbounded();
        for token in 0..300u64 {
            let (operation, buffer) = match token % 3 {
                0 => (Operation::Read { offset: token % 256 * BLOCK }, IoBuffer::zeroed(1)),
                1 => (Operation::Write { offset: token % 256 * BLOCK }, filled(1, token)),
                _ => (Operation::Sync, IoBuffer::empty()),
            };
            let (file, reply) = (file.clone(), reply.clone());
            device.submit(Request { file, operation, buffer, token, reply: reply.into() });
        }
        drop((reply, device));
        let ends: Vec<Completion> = completions.iter().collect();
        let tokens: BTreeSet<_> = ends.iter().map(|done| done.token).collect();
        assert_eq!((ends.len(), tokens.len()), (300, 300), "{name}");
        for done in &ends {
            let expected = if done.token % 3 == 2 { 0 } else { BLOCK_BYTES };
            assert_eq!(done.buffer.len(), expected, "{name}: buffers come back");
        }
    });
}

#[test]
fn a_caller_that_is_gone_disturbs_no_one() {
    Engines::each(|name, device| {
        let file = device.create("gone").unwrap();
        let caller = Caller::new(&device);
        for i in 0..20 {
            caller.submit(&file, Operation::Write { offset: i * BLOCK }, filled(1, i), i);
        }
        drop(caller);
        write(&*device, &file, 0, filled(1, 5)).unwrap_or_else(|e| panic!("{name}: {e}"));
    });
}

#[test]
fn statistics_count_what_was_moved() {
    Engines::each(|name, device| {
        let file = device.create("counted").unwrap();
        write(&*device, &file, 0, filled(4, 1)).unwrap();
        let before = device.stats();
        write(&*device, &file, 0, filled(2, 1)).unwrap();
        read(&*device, &file, 0, 3).unwrap();
        sync(&*device, &file).unwrap();
        read(&*device, &file, 100 * BLOCK, 1).unwrap_err();
        let done = device.stats().since(&before);
        assert_eq!((done.reads, done.writes, done.syncs, done.errors), (1, 1, 1, 1), "{name}");
        assert_eq!((done.bytes_read, done.bytes_written), (3 * BLOCK, 2 * BLOCK), "{name}");
        assert_eq!(before.directory_operations, 1, "{name}");
    });
}

#[test]
fn direct_and_buffered_files_say_what_they_are() {
    Engines::each_real(|name, path, options| {
        let device = open_device(path, options).unwrap();
        let file = device.create("f").unwrap();
        assert_eq!(file.is_direct(), device.is_direct(), "{name}");
        match options.direct {
            DirectIo::On => assert!(device.is_direct(), "{name}"),
            DirectIo::Off => assert!(!device.is_direct(), "{name}"),
            DirectIo::Auto => assert_eq!(device.is_direct(), device.fallback_reason().is_none()),
        }
    });
}

/// Buffered files must not make the page cache a memory budget that no one counts.
#[cfg(target_os = "linux")]
#[test]
fn buffered_files_leave_the_page_cache_after_sync_and_after_reads() {
    Engines::each_real(|name, path, options| {
        let device = open_device(path, options).unwrap();
        let file = device.create("cached").unwrap();
        write(&*device, &file, 0, filled(64, 1)).unwrap();
        sync(&*device, &file).unwrap();
        assert_eq!(cached_pages(&path.join("cached")), 0, "{name}: after sync");
        for block in 0..64 {
            read(&*device, &file, block * BLOCK, 1).unwrap();
        }
        assert_eq!(cached_pages(&path.join("cached")), 0, "{name}: after reads");
    });
}

/// Pages of a file in the cache, as `fincore` of util-linux counts them; 0 where it is missing.
#[cfg(target_os = "linux")]
fn cached_pages(file: &Path) -> u64 {
    let output = std::process::Command::new("fincore")
        .args(["--noheadings", "--output", "PAGES"])
        .arg(file)
        .output();
    match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().parse().unwrap(),
        Err(e) => {
            eprintln!("skipped: fincore: {e}");
            0
        }
    }
}
