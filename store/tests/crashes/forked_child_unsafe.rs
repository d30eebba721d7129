//! A child that was forked while a store is open, and that drops all it has of it.
//!
//! What this catches: a child that lets go of its parent's lock, removes or writes files of its
//! parent's checkpoint, or waits for threads that it does not have.
#![cfg(target_os = "linux")]

use std::process::Command;

use alluvium::config::Helpers;
use alluvium::{ErrorKind, Heap, HybridLog, KIB, MIB, Map, Store};

const CHILD: &str = "ALLUVIUM_CHILD_OF_A_TEST";
const NAME: &str = "a_child_that_drops_the_store_changes_nothing";

/// Runs `child` in a fork of this process, and says whether it ended well.
fn forked(child: impl FnOnce()) -> bool {
    // SAFETY: the child only runs `child` and ends without going back to the test.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: ends a child that waits for what never comes.
            unsafe { libc::alarm(15) };
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

/// The test program has other threads, which may hold locks while one forks: this happens in a
/// process of its own.
#[test]
fn a_child_that_drops_the_store_changes_nothing() {
    if std::env::var_os(CHILD).is_none() {
        let test = format!("forked_child_unsafe::{NAME}");
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", &test, "--nocapture"]).env(CHILD, "1");
        let ended = child.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        return;
    }
    for helpers in [Helpers::default(), Helpers::Inline] {
        let place = tempfile::tempdir().unwrap();
        let open = || {
            let builder = Store::builder(place.path()).memory(8 * MIB).max_value(KIB);
            builder.helpers(helpers).open()
        };
        let store = open().unwrap();
        let log = HybridLog::new().memory(256 * KIB).segment(64 * KIB);
        let mut logged: Map<u64, u64> = store.map("logged").layout(log.into()).open().unwrap();
        let mut held: Map<u64, u64> = store.map("held").layout(Heap::new().into()).open().unwrap();
        let mut fill = |value| {
            for key in 0..6_000 {
                logged.put(key, value).unwrap();
                held.put(key % 1000, value).unwrap();
            }
        };
        fill(1);
        store.checkpoint(1).unwrap();
        fill(2);
        let mut seal = store.seal(2).unwrap();
        let _ = seal.advance().unwrap();
        let mut all = Some((seal, logged, held, store));
        assert!(forked(|| drop(all.take())), "{helpers:?}");
        assert_eq!(open().map(drop).unwrap_err().kind(), ErrorKind::Locked, "{helpers:?}");
        let (seal, logged, held, store) = all.unwrap();
        seal.confirm().unwrap();
        drop((logged, held, store));
        let store = open().unwrap();
        assert_eq!(store.restored_position(), Some(2), "{helpers:?}");
        let log = HybridLog::new().memory(256 * KIB).segment(64 * KIB);
        let mut logged: Map<u64, u64> = store.map("logged").layout(log.into()).open().unwrap();
        let mut held: Map<u64, u64> = store.map("held").layout(Heap::new().into()).open().unwrap();
        assert_eq!((logged.len().unwrap(), held.len().unwrap()), (6_000, 1000));
        logged
            .for_each(|_, value| {
                assert_eq!(*value, 2);
                Ok(())
            })
            .unwrap();
        held.for_each(|_, value| {
            assert_eq!(*value, 2);
            Ok(())
        })
        .unwrap();
    }
}
