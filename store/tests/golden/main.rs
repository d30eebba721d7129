//! Directories that a build of format version 2 (3 and 4, of some checkpoints) has written, and all that
//! is in them: each build from then on reads them, value for value, or refuses them in words.
//!
//! What this catches: a change of format, of a type's text, of a hash, of what a state's name or
//! primitive is called, or of a default, which makes a directory of before unreadable, or, worse, read
//! as something else.
//!
//! The fixtures are in `format-2`. A `.files` is a directory in one file ([`files`]); a `.txt` says
//! what is in it. They are never made again: when the format changes, a folder of the new one is put
//! beside them. To make it, [`make::makes_the_fixtures`] is run by hand, on a tree without other
//! changes (`FORMAT` in `files.rs` is the folder's name):
//!
//! ```text
//! cargo test -p alluvium --test golden makes_the_fixtures -- --ignored
//! ```

#[path = "../behaviour/common/clock.rs"]
mod clock;
#[path = "../../../layouts/tests/common/dice.rs"]
mod dice;
mod files;
mod make;
mod moved;
mod states;

use std::path::Path;

use alluvium::io::{DirectIo, EngineChoice, IoOptions};
use alluvium::{ErrorKind, Store, StoreBuilder};
use alluvium_pagestore::CheckpointImage;

use crate::files::{expected, load, place};
use crate::moved::Worker;
use crate::states::{Lines, States};

/// Retained checkpoints of the store with a state of every kind, and the time each had come to.
const CHECKPOINTS: [(u64, i64); 3] = make::EVERYTHING;

/// How the files of a copy are read.
fn builder(directory: &Path) -> StoreBuilder {
    let io =
        IoOptions { engine: EngineChoice::Threads, direct: DirectIo::Off, ..Default::default() };
    Store::builder(directory).io(io)
}

/// Line by line, so that a difference is seen.
fn assert_lines(found: &Lines, name: &str) {
    let text = expected(name);
    let expected: Vec<&str> = text.lines().collect();
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "{name}, line {}", at + 1);
    }
    assert_eq!(found.len(), expected.len(), "{name}");
}

fn images(fixture: &str) -> Vec<CheckpointImage> {
    let files = load(fixture);
    let named = files.iter().filter(|(name, _)| name.starts_with("checkpoint-"));
    named.map(|(name, bytes)| CheckpointImage::parse(name, bytes).unwrap()).collect()
}

#[test]
fn each_checkpoint_of_a_store_of_every_kind_is_read_value_for_value() {
    for (number, now) in CHECKPOINTS {
        let directory = tempfile::tempdir().unwrap();
        place("everything", directory.path());
        let opened =
            States::open(states::builder(builder(directory.path())).restore(number), false);
        let mut states = opened.unwrap_or_else(|e| panic!("checkpoint {number}: {e:?}")).at(now);
        assert_eq!(states.store.restored_position(), Some(10 * number));
        assert_lines(&states.lines().unwrap(), &format!("everything-{number}"));
    }
}

/// It is not only read: the next checkpoint is of old files and new ones.
#[test]
fn a_store_of_before_goes_on_and_takes_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    place("everything", directory.path());
    let open = || States::open(states::builder(builder(directory.path())), false).unwrap();
    let states = open();
    let newest = states.store.checkpoints().last().unwrap().checkpoint.number;
    assert_eq!(newest, CHECKPOINTS[2].0);
    states.store.tick(1000).unwrap();
    states.store.checkpoint(77).unwrap();
    drop(states);
    let mut states = open().at(CHECKPOINTS[2].1);
    assert_eq!(states.store.restored_position(), Some(77));
    assert_lines(&states.lines().unwrap(), &format!("everything-{newest}"));
}

/// The fixture has what it is kept for.
#[test]
fn the_fixtures_have_every_layout_live_sets_lists_of_the_dead_and_moved_groups() {
    let images = images("everything");
    assert_eq!(images.len(), CHECKPOINTS.len());
    let states: Vec<_> = images.iter().flat_map(|image| &image.states).collect();
    for layout in ["heap", "hybrid-log", "append-log", "window-segments", "timers"] {
        assert!(states.iter().any(|state| state.layout == layout), "{layout}");
    }
    assert!(states.iter().any(|state| state.image.deaths().next().is_some()), "packed deaths");
    let mut segments = states.iter().flat_map(|state| state.image.segments());
    assert!(segments.any(|segment| segment.live.is_some()), "sets of the live");
    let first: Vec<_> = (0..moved::WORKERS).flat_map(|at| self::images(&moved_name(at))).collect();
    let mut states = first.iter().flat_map(|image| &image.states);
    assert!(states.clone().any(|state| state.groups.is_some()), "groups that have moved");
    let going = states.any(|state| state.going != alluvium::KeyGroups::default());
    assert!(going, "groups that are going");
}

fn moved_name(at: usize) -> String {
    format!("moved-{at}")
}

#[test]
fn stores_whose_key_groups_have_moved_are_read_value_for_value() {
    let directory = tempfile::tempdir().unwrap();
    let open = |at: usize| {
        let directory = directory.path().join(at.to_string());
        place(&moved_name(at), &directory);
        Worker::open(moved::builder(builder(&directory), Some(at)), false).unwrap()
    };
    let mut workers: Vec<_> = (0..moved::WORKERS).map(open).collect();
    assert_lines(&moved::lines(&mut workers).unwrap(), "moved");
}

#[test]
fn one_store_is_made_of_those_whose_key_groups_have_moved() {
    let directory = tempfile::tempdir().unwrap();
    let sources: Vec<_> =
        (0..moved::WORKERS).map(|at| directory.path().join(at.to_string())).collect();
    (0..moved::WORKERS).for_each(|at| place(&moved_name(at), &sources[at]));
    let builder = moved::builder(builder(&directory.path().join("new")), None);
    let sources = sources.into_iter().map(|source| (source, None));
    let worker = Worker::open(builder.restore_from(sources), false).unwrap();
    assert_lines(&moved::lines(&mut [worker]).unwrap(), "moved");
}

#[test]
fn a_canonical_file_is_read_value_for_value() {
    let file = load("canonical").remove("canonical").unwrap();
    for on_heap in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let builder = states::builder(builder(directory.path()));
        let states = States::open(builder, on_heap).unwrap();
        states.store.import(&*file).unwrap();
        let (number, now) = CHECKPOINTS[2];
        assert_lines(&states.at(now).lines().unwrap(), &format!("everything-{number}"));
    }
}

/// Each kind of file, from the future.
#[test]
fn files_of_a_version_to_come_are_refused_in_words() {
    for (fixture, file) in [
        ("future-manifest", "MANIFEST"),
        ("future-checkpoint", "checkpoint-0000000000000001"),
        ("future-segment", "seg-"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        place(fixture, directory.path());
        let before = files::read_directory(directory.path());
        let opened = builder(directory.path()).open();
        let opened = opened.and_then(|store| store.map::<u64, u64>("map").open().map(drop));
        let error = opened.expect_err(fixture);
        assert_eq!(error.kind(), ErrorKind::FormatVersion, "{fixture}: {error:?}");
        let named = error.context("file").unwrap_or_default();
        assert!(named.starts_with(file), "{fixture}: {error:?}");
        let text = error.to_string();
        let version = make::FUTURE.to_string();
        assert!(text.contains(&version) || format!("{error:?}").contains(&version), "{text}");
        // Nothing was removed or changed meanwhile: the build that wrote it can read it.
        assert_eq!(files::read_directory(directory.path()), before, "{fixture}");
    }
}
