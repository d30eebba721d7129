//! A device is an open directory, on every engine: not the path that it was opened by.
//!
//! What this catches: files that go elsewhere after `chdir`, or by way of a link that moved; a lock
//! file that was removed, and let another store in, while a manifest is replaced; a forked child that
//! lets go of its parent's lock, changes its parent's files, or waits for threads that it does not
//! have; a lack of disk or descriptors that is told as a refusal of direct I/O.
//!
//! What concerns the whole process happens in a child, which is this program with one test to run.
#![cfg(target_os = "linux")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use alluvium_pagestore::io::{
    BLOCK_BYTES, Device, DirectIo, EngineChoice, IoBuffer, IoOptions, Operation, lock_directory,
    open_device, run_blocking,
};
use alluvium_pagestore::{ErrorKind, Framed, Manifest};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CHILD: &str = "ALLUVIUM_CHILD_OF_A_TEST";

/// Each engine that the machine has.
fn engines() -> Vec<IoOptions> {
    let of = |engine| IoOptions { engine, ..IoOptions::default() };
    let all = [of(EngineChoice::Threads), of(EngineChoice::Uring)];
    let place = tempfile::tempdir().unwrap();
    let works = |options: &IoOptions| open_device(place.path(), options).is_ok();
    all.into_iter().filter(works).collect()
}

fn write(device: &dyn Device, name: &str) {
    let file = device.create(name).unwrap();
    let write = Operation::Write { offset: 0 };
    run_blocking(device, &file, write, IoBuffer::zeroed(BLOCK_BYTES)).1.unwrap();
}

/// Does all that a device does with names.
fn use_names(device: &dyn Device) {
    write(device, "a");
    write(device, "b");
    device.rename("a", "c").unwrap();
    device.remove("b").unwrap();
    device.sync_directory().unwrap();
    device.open("c").unwrap();
    assert_eq!(device.list().unwrap(), ["c"]);
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "LOCK")
        .collect();
    names.sort();
    names
}

/// Runs one test of this file in a process of its own, in `place`.
fn in_child(test: &str, place: &Path) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", test, "--nocapture"]).env(CHILD, place);
    let ended = child.current_dir(place).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// Where this process, which is such a child, is to work.
fn child_of() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

#[test]
fn another_working_directory_changes_nothing() {
    let Some(place) = child_of() else {
        let place = tempfile::tempdir().unwrap();
        return in_child("another_working_directory_changes_nothing", place.path());
    };
    for (number, options) in engines().iter().enumerate() {
        std::env::set_current_dir(&place).unwrap();
        let (name, elsewhere) = (format!("state-{number}"), place.join(format!("other-{number}")));
        let device = open_device(Path::new(&name), options).unwrap();
        let _lock = device.lock().unwrap();
        // Another store has a directory of the same relative path there.
        let theirs = elsewhere.join(&name);
        std::fs::create_dir_all(&theirs).unwrap();
        std::fs::write(theirs.join("c"), b"theirs").unwrap();
        std::env::set_current_dir(&elsewhere).unwrap();
        use_names(&*device);
        Manifest::default().commit(&*device).unwrap();
        assert_eq!(names(&place.join(&name)), ["MANIFEST", "c"]);
        assert_eq!(std::fs::read(theirs.join("c")).unwrap(), b"theirs");
        assert_eq!(names(&theirs), ["c"]);
    }
}

#[test]
fn a_link_or_a_directory_that_moved_changes_nothing() {
    for options in engines() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        std::fs::create_dir(path("ours")).unwrap();
        std::fs::create_dir(path("theirs")).unwrap();
        symlink(path("ours"), path("link")).unwrap();
        let device = open_device(&path("link"), &options).unwrap();
        let _lock = device.lock().unwrap();
        std::fs::remove_file(path("link")).unwrap();
        symlink(path("theirs"), path("link")).unwrap();
        use_names(&*device);
        assert_eq!((names(&path("ours")), names(&path("theirs"))), (vec!["c".into()], vec![]));
        std::fs::rename(path("ours"), path("moved")).unwrap();
        Manifest::default().commit(&*device).unwrap();
        assert_eq!(names(&path("moved")), ["MANIFEST", "c"]);
    }
}

#[test]
fn a_lock_file_that_is_gone_is_told_before_a_manifest_is_written() {
    const FRAMED: Framed = Framed { magic: b"ALVTEST\0", what: "the test's file", newest: 2 };
    for options in engines() {
        let place = tempfile::tempdir().unwrap();
        let device = open_device(place.path(), &options).unwrap();
        let _lock = device.lock().unwrap();
        let lock = place.path().join("LOCK");
        Manifest::default().commit(&*device).unwrap();
        let before = std::fs::read(place.path().join("MANIFEST")).unwrap();
        for what in ["removed", "replaced"] {
            let _ = std::fs::remove_file(&lock);
            // Another one takes it for its own.
            let other = (what == "replaced").then(|| lock_directory(place.path()).unwrap());
            let refused = [
                Manifest::default().commit(&*device),
                FRAMED.replace(&*device, "F", "F.new", &1),
                device.create("f").map(drop),
                device.rename("MANIFEST", "f"),
                device.remove("MANIFEST"),
            ];
            for error in refused.map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::Locked, "{error:?}");
                assert!(error.message().contains(what), "{error:?}");
                assert_eq!(error.context("file"), Some("LOCK"), "{error:?}");
            }
            other.iter().for_each(|other| other.check().unwrap());
        }
        assert_eq!(names(place.path()), ["MANIFEST"]);
        assert_eq!(std::fs::read(place.path().join("MANIFEST")).unwrap(), before);
    }
}

/// Runs `child` in a fork of this process, and says whether it ended well.
fn forked(child: impl FnOnce()) -> bool {
    // SAFETY: the child only runs `child` and ends without going back to the test.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: ends a child that waits for what never comes.
            unsafe { libc::alarm(10) };
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(ended.is_err())) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` is there to be written to.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status == 0
        }
    }
}

#[test]
fn a_forked_child_neither_unlocks_nor_changes_nor_waits() {
    if child_of().is_none() {
        // No other thread of the test program may hold a lock while it forks.
        let place = tempfile::tempdir().unwrap();
        let test = "a_forked_child_neither_unlocks_nor_changes_nor_waits";
        return in_child(test, place.path());
    }
    for options in engines() {
        let place = tempfile::tempdir().unwrap();
        let device = open_device(place.path(), &options).unwrap();
        let lock = device.lock().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let of_job = lock_directory(directory.path()).unwrap();
        let file = device.create("f").unwrap();
        let (mut parts, kept) = (Some((lock, of_job, device.clone())), device);
        let ended = forked(|| {
            let refused = [
                kept.create("g").map(drop),
                kept.rename("f", "g"),
                kept.remove("f"),
                kept.sync_directory(),
                run_blocking(&*kept, &file, Operation::Sync, IoBuffer::empty()).1,
            ];
            for refused in refused {
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
            }
            drop((parts.take(), file, kept));
        });
        assert!(ended, "{options:?}");
    }
    // Of values that a child has dropped, the parent still has its own.
    let place = tempfile::tempdir().unwrap();
    let lock = lock_directory(place.path()).unwrap();
    let mut lock = Some(lock);
    assert!(forked(|| drop(lock.take())));
    assert_eq!(lock_directory(place.path()).unwrap_err().kind(), ErrorKind::Locked);
    drop(lock);
    lock_directory(place.path()).unwrap();
    // A child that lives on keeps nothing, either.
    let lock = lock_directory(place.path()).unwrap();
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child waits until the parent closes its end of the pipe, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut byte = 0_u8;
        // SAFETY: the descriptors are the child's own, and the byte is there to be read into.
        unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    drop(lock);
    lock_directory(place.path()).unwrap();
    // SAFETY: closes the parent's own descriptor, and waits for its own child.
    unsafe {
        libc::close(ends[1]);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

/// A limit of this process, lower as long as this is there.
struct Lower(Resource, Rlimit);

impl Lower {
    fn to(resource: Resource, current: u64) -> Self {
        let before = getrlimit(resource);
        setrlimit(resource, Rlimit { current: Some(current), ..before }).unwrap();
        Self(resource, before)
    }
}

impl Drop for Lower {
    fn drop(&mut self) {
        setrlimit(self.0, self.1).unwrap();
    }
}

/// Takes all descriptors that are left of a few.
fn without_descriptors<T>(then: impl FnOnce() -> T) -> T {
    let _few = Lower::to(Resource::Nofile, 64);
    let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    let done = then();
    drop(all);
    done
}

/// Without an option a quarter of the process's limit is used.
#[test]
fn a_quarter_of_the_descriptors_is_used() {
    if child_of().is_none() {
        let place = tempfile::tempdir().unwrap();
        return in_child("a_quarter_of_the_descriptors_is_used", place.path());
    }
    let _few = Lower::to(Resource::Nofile, 128);
    let open_now = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for options in engines() {
        let place = tempfile::tempdir().unwrap();
        let device = open_device(place.path(), &options).unwrap();
        let before = open_now();
        let create = |n: u8| {
            let file = device.create(&format!("file-{n}")).unwrap();
            let mut block = IoBuffer::zeroed(BLOCK_BYTES);
            block.as_mut_slice().fill(n);
            run_blocking(&*device, &file, Operation::Write { offset: 0 }, block).1.unwrap();
            run_blocking(&*device, &file, Operation::Sync, IoBuffer::empty()).1.unwrap();
            file
        };
        let files: Vec<_> = (0..100).map(create).collect();
        let open = open_now() - before;
        assert!((16..=32 + 12).contains(&open), "{options:?}: {open} are open");
        for (n, file) in files.iter().enumerate() {
            let read = Operation::Read { offset: 0 };
            let (block, done) = run_blocking(&*device, file, read, IoBuffer::zeroed(BLOCK_BYTES));
            done.unwrap();
            assert_eq!(usize::from(block.as_slice()[0]), n);
        }
    }
}

#[test]
fn a_lack_of_descriptors_is_told_as_one_and_passes() {
    if child_of().is_none() {
        let place = tempfile::tempdir().unwrap();
        return in_child("a_lack_of_descriptors_is_told_as_one_and_passes", place.path());
    }
    for options in engines() {
        let place = tempfile::tempdir().unwrap();
        let device = open_device(place.path(), &options).unwrap();
        let failures = without_descriptors(|| {
            let opened = open_device(place.path(), &options).map(drop);
            [device.create("f").map(drop), opened, device.list().map(drop)]
        });
        for error in failures.map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::Descriptors, "{error:?}");
            assert!(error.message().contains("all 64 file"), "{error:?}");
            assert!(error.message().contains("ulimit -n"), "{error:?}");
        }
        device.create("f").unwrap();
    }
}

#[test]
fn what_keeps_direct_io_from_being_tried_is_told_and_it_is_tried_again() {
    let Some(place) = child_of() else {
        // Not on /tmp, which may be memory and refuse direct I/O; the target directory is a disk.
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let test = "what_keeps_direct_io_from_being_tried_is_told_and_it_is_tried_again";
        return in_child(test, place.path());
    };
    // A file cannot become longer than this: as on a full disk, the probe fails.
    // SAFETY: ignores a signal, so that a write tells an error instead.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for mut options in engines() {
        let path = place.join(format!("{:?}", options.engine));
        let can = open_device(&path, &options).unwrap().is_direct();
        let device: Arc<dyn Device> = {
            let _none = Lower::to(Resource::Fsize, 0);
            if can {
                options.direct = DirectIo::On;
                let error = open_device(&path, &options).map(drop).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
                assert!(error.to_string().contains("too large"), "{error:?}");
                options.direct = DirectIo::Auto;
            }
            open_device(&path, &options).unwrap()
        };
        if can {
            assert!(!device.is_direct());
            let why = device.fallback_reason().unwrap();
            assert!(why.contains("could not be tried") && why.contains("too large"), "{why}");
        }
        let file = device.create("f").unwrap();
        assert_eq!((device.is_direct(), file.is_direct()), (can, can));
        let why = device.fallback_reason();
        assert!(why.is_none_or(|why| !why.contains("could not be tried")));
    }
}
