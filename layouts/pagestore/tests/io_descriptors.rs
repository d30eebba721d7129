//! Files are bounded by storage and not by descriptors, on every engine.
//!
//! What this catches: a descriptor that is kept for each file; one that is closed below a request, or
//! before its writes are synced; a file that was removed, renamed or replaced while it was closed, and
//! is lost or taken for another.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use alluvium_pagestore::ErrorKind;
use alluvium_pagestore::io::{
    BLOCK_BYTES, Device, EngineChoice, FileHandle, IoBuffer, IoOptions, Operation, Request,
    open_device, run_blocking,
};

/// Files that may be open.
const MOST: usize = 8;
/// Descriptors of an engine and of what else opens one for a moment.
const OTHERS: usize = 12;

/// Descriptors are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each engine that the machine has, with few descriptors.
fn engines() -> Vec<IoOptions> {
    let of = |engine| IoOptions { engine, open_files_max: Some(MOST), ..IoOptions::default() };
    let all = [of(EngineChoice::Threads), of(EngineChoice::Uring)];
    let place = tempfile::tempdir().unwrap();
    all.into_iter().filter(|options| open_device(place.path(), options).is_ok()).collect()
}

fn on_each(test: impl Fn(&Path, &Arc<dyn Device>)) {
    let _alone = alone();
    for options in engines() {
        let place = tempfile::tempdir().unwrap();
        test(place.path(), &open_device(place.path(), &options).unwrap());
    }
}

fn open_now() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn block(fill: u8) -> IoBuffer {
    let mut block = IoBuffer::zeroed(BLOCK_BYTES);
    block.as_mut_slice().fill(fill);
    block
}

fn write(device: &dyn Device, file: &FileHandle, fill: u8) {
    run_blocking(device, file, Operation::Write { offset: 0 }, block(fill)).1.unwrap();
}

fn sync(device: &dyn Device, file: &FileHandle) {
    run_blocking(device, file, Operation::Sync, IoBuffer::empty()).1.unwrap();
}

fn create(device: &dyn Device, name: &str, fill: u8) -> FileHandle {
    let file = device.create(name).unwrap();
    write(device, &file, fill);
    sync(device, &file);
    file
}

fn read(device: &dyn Device, file: &FileHandle) -> alluvium_pagestore::Result<u8> {
    let (read, done) = run_blocking(device, file, Operation::Read { offset: 0 }, block(0));
    done.map(|()| read.as_slice()[0])
}

/// Uses so many other files that the rest are closed.
fn close_others(device: &dyn Device) {
    let names = (0..3 * MOST).map(|n| format!("other-{n}"));
    let files: Vec<_> = names.map(|name| (create(device, &name, 1), name)).collect();
    files.into_iter().for_each(|(_, name)| device.remove(&name).unwrap());
}

#[test]
fn many_files_are_read_and_written_with_few_descriptors() {
    on_each(|_, device| {
        let before = open_now();
        let files: Vec<_> =
            (0..200u8).map(|n| create(&**device, &format!("file-{n}"), n)).collect();
        assert!(open_now() <= before + MOST + OTHERS, "{} of {before}", open_now());
        for round in 0..3u8 {
            for n in (0..200u32).map(|n| (n * 77 % 200) as u8) {
                let file = &files[usize::from(n)];
                assert_eq!(read(&**device, file).unwrap(), n.wrapping_add(round));
                write(&**device, file, n.wrapping_add(round + 1));
                sync(&**device, file);
                assert_eq!(device.len(file).unwrap(), BLOCK_BYTES as u64);
            }
            assert!(open_now() <= before + MOST + OTHERS, "{} of {before}", open_now());
        }
        drop(files);
        // A thread may not have let go of the last one yet.
        let patience = Instant::now() + Duration::from_secs(60);
        while open_now() > before && Instant::now() < patience {
            std::thread::yield_now();
        }
        assert!(open_now() <= before, "{} of {before}", open_now());
    });
}

#[test]
fn requests_under_way_keep_their_descriptors() {
    on_each(|_, device| {
        let files: Vec<_> = (0..100u8).map(|n| create(&**device, &format!("f-{n}"), n)).collect();
        let (reply, completions) = alluvium_pagestore::channel::unbounded();
        for (token, file) in files.iter().cycle().take(1000).enumerate() {
            let (file, reply) = (file.clone(), reply.clone().into());
            let (operation, token) = (Operation::Read { offset: 0 }, token as u64);
            device.submit(Request { file, operation, buffer: block(0), token, reply });
        }
        // Requests on their way read what they were submitted for, also of files that have no name any more.
        (0..100).step_by(2).for_each(|n| device.remove(&format!("f-{n}")).unwrap());
        for _ in 0..1000 {
            let done = completions.recv().unwrap();
            done.result.unwrap();
            assert_eq!(u64::from(done.buffer.as_slice()[0]), done.token % 100);
        }
    });
}

#[test]
fn files_that_are_not_synced_stay_open() {
    on_each(|place, device| {
        let before = open_now();
        let files: Vec<_> =
            (0..3 * MOST).map(|n| device.create(&format!("f-{n}")).unwrap()).collect();
        files.iter().for_each(|file| write(&**device, file, 1));
        assert!(open_now() >= before + files.len(), "{} of {before}", open_now());
        files.iter().for_each(|file| sync(&**device, file));
        close_others(&**device);
        assert!(open_now() <= before + MOST + OTHERS, "{} of {before}", open_now());
        assert_eq!(std::fs::read_dir(place).unwrap().count(), files.len());
    });
}

#[test]
fn removed_renamed_and_replaced_files_are_what_they_were() {
    on_each(|place, device| {
        let [removed, renamed, replaced] =
            [1, 2, 3].map(|n| create(&**device, &format!("{n}"), 10 * n));
        let again = device.open("2").unwrap();
        close_others(&**device);
        device.remove("1").unwrap();
        device.rename("2", "two").unwrap();
        let new = create(&**device, "new", 40);
        device.rename("new", "3").unwrap();
        close_others(&**device);
        let all = [&removed, &renamed, &again, &replaced, &new];
        assert_eq!(all.map(|file| read(&**device, file).unwrap()), [10, 20, 20, 30, 40]);
        // A name that goes round: the file that had it last is found, and no other.
        device.rename("two", "2").unwrap();
        close_others(&**device);
        assert_eq!(read(&**device, &renamed).unwrap(), 20);
        device.remove("2").unwrap();
        let other = create(&**device, "2", 50);
        close_others(&**device);
        let all = [&renamed, &again, &other];
        assert_eq!(all.map(|file| read(&**device, file).unwrap()), [20, 20, 50]);
        assert!(device.remove("2").is_ok() && device.remove("2").is_err());
        drop((removed, renamed, again, replaced, new, other));
        let left: Vec<_> =
            std::fs::read_dir(place).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(left, ["3"]);
    });
}

#[test]
fn a_file_that_somebody_else_replaced_or_removed_is_not_read() {
    on_each(|place, device| {
        let [replaced, removed] = ["a", "b"].map(|name| create(&**device, name, 7));
        close_others(&**device);
        std::fs::write(place.join("other"), [9; BLOCK_BYTES]).unwrap();
        std::fs::rename(place.join("other"), place.join("a")).unwrap();
        std::fs::remove_file(place.join("b")).unwrap();
        let error = read(&**device, &replaced).unwrap_err();
        assert!(error.to_string().contains("another file has its name"), "{error}");
        assert_eq!(error.context("file"), Some("a"));
        assert!(read(&**device, &removed).is_err());
    });
}

#[test]
fn no_open_files_at_all_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let options = IoOptions { open_files_max: Some(0), ..IoOptions::default() };
    let error = open_device(place.path(), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("open_files_max"), "{error}");
}
