//! A store works in the directory that it has opened and locked, wherever its path leads to later.
//!
//! What this catches: a checkpoint whose files go elsewhere after `chdir` or by a link that moved, even
//! over those of another open store; a manifest replaced by a store that has lost its lock.

use std::path::Path;
use std::process::Command;

use alluvium::{ErrorKind, KIB, MIB, Map, Store};

const CHILD: &str = "ALLUVIUM_CHILD_OF_A_TEST";

fn open(directory: &Path) -> Store {
    Store::builder(directory).memory(4 * MIB).max_value(KIB).open().unwrap()
}

fn put_all(map: &mut Map<u64, u64>, value: u64) {
    for key in 0..1000 {
        map.put(key, value).unwrap();
    }
}

/// Opens the state and changes all that is in it.
fn filled(store: &Store, value: u64) -> Map<u64, u64> {
    let mut map = store.map("map").open().unwrap();
    put_all(&mut map, value);
    map
}

/// What a store in this directory goes on from.
fn assert_holds(directory: &Path, position: u64, value: u64) {
    let store = open(directory);
    assert_eq!(store.restored_position(), Some(position), "{directory:?}");
    let mut map: Map<u64, u64> = store.map("map").open().unwrap();
    assert_eq!(map.len().unwrap(), 1000);
    for key in 0..1000 {
        assert_eq!(map.get(&key).unwrap().as_deref(), Some(&value), "{directory:?}: {key}");
    }
}

/// The working directory is the whole process's: this happens in one of its own.
#[test]
fn two_stores_of_one_relative_path_keep_apart() {
    let Some(place) = std::env::var_os(CHILD) else {
        let place = tempfile::tempdir().unwrap();
        let test = "a_directory_is_an_open_directory::two_stores_of_one_relative_path_keep_apart";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", test, "--nocapture"]).env(CHILD, place.path());
        let ended = child.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        return;
    };
    let place = Path::new(&place);
    for side in ["a", "b"] {
        std::fs::create_dir(place.join(side)).unwrap();
    }
    let enter = |side: &str| std::env::set_current_dir(place.join(side)).unwrap();
    enter("a");
    let ours = open(Path::new("state"));
    let mut map = filled(&ours, 1);
    enter("b");
    let theirs = open(Path::new("state"));
    let mut other = filled(&theirs, 10);
    for step in 1..=3 {
        for (store, map, value) in [(&ours, &mut map, step), (&theirs, &mut other, 10 * step)] {
            put_all(map, value);
            store.checkpoint(step).unwrap();
        }
    }
    drop((map, other, ours, theirs));
    assert_holds(&place.join("a/state"), 3, 3);
    assert_holds(&place.join("b/state"), 3, 30);
}

#[cfg(unix)]
#[test]
fn a_link_that_moves_leads_a_store_nowhere_else() {
    let place = tempfile::tempdir().unwrap();
    let [first, second, link] = ["first", "second", "link"].map(|name| place.path().join(name));
    std::fs::create_dir(&first).unwrap();
    std::os::unix::fs::symlink(&first, &link).unwrap();
    let ours = open(&link);
    let mut map = filled(&ours, 1);
    let theirs = open(&second);
    let mut other = filled(&theirs, 2);
    theirs.checkpoint(1).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&second, &link).unwrap();
    ours.checkpoint(1).unwrap();
    put_all(&mut map, 3);
    put_all(&mut other, 4);
    ours.checkpoint(2).unwrap();
    theirs.checkpoint(2).unwrap();
    drop((map, other, ours, theirs));
    assert_holds(&first, 2, 3);
    assert_holds(&second, 2, 4);
}

#[test]
fn a_store_that_has_lost_its_lock_replaces_no_manifest() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let mut map = filled(&store, 1);
    store.checkpoint(1).unwrap();
    std::fs::remove_file(place.path().join("LOCK")).unwrap();
    put_all(&mut map, 2);
    let error = store.checkpoint(2).unwrap_err();
    assert_eq!((error.kind(), error.context("file")), (ErrorKind::Locked, Some("LOCK")));
    assert!(error.message().contains("removed"), "{error}");
    // What came instead has the directory now: the manifest is its own to replace.
    drop((map, store));
    assert_holds(place.path(), 1, 1);
}
