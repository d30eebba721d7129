//! Directories that builds of format versions 2 (3 and 4, of some checkpoints) and 5 have written, and
//! all that is in them: each build from then on reads them, value for value, or refuses them in words.
//!
//! What this catches: a change of format, of a type's text, of a hash, of what a state's name or
//! primitive is called, or of a default, which makes a directory of before unreadable, or, worse, read
//! as something else.
//!
//! The fixtures are in `format-2` and `format-5`. A `.files` is a directory in one file ([`files`]); a
//! `.txt` says what is in it. They are never made again: when the format changes, a folder of the new one is put
//! beside them. To make it, [`make::makes_the_fixtures`] is run by hand, on a tree without other
//! changes (`FORMATS` in `files.rs` ends with the folder's name):
//!
//! ```text
//! cargo test -p alluvium --test golden makes_the_fixtures -- --ignored
//! ```
//!
//! Sorted runs came later than format 5: `format-5` has a directory of their own ([`runs`]), and so have sessions
//! whose timers are not all there ([`sessions`]).

#[path = "../behaviour/common/clock.rs"]
mod clock;
#[path = "../../../layouts/tests/common/dice.rs"]
mod dice;
mod files;
mod make;
mod moved;
mod runs;
mod sessions;
mod states;

use std::path::Path;

use alluvium::io::{DirectIo, EngineChoice, IoOptions};
use alluvium::{ErrorKind, Store, StoreBuilder};
use alluvium_pagestore::{CheckpointImage, RECORDS};

use crate::files::{FORMATS, expected, load, place};
use crate::moved::Worker;
use crate::states::{Lines, States};

/// Retained checkpoints of the store with a state of every kind, by format, and the time each had come to.
const CHECKPOINTS: [(&str, u64, i64); 6] = make::EVERYTHING;

/// Number and time of the newest one of a format.
fn newest(format: &str) -> (u64, i64) {
    let of_format = CHECKPOINTS.iter().rfind(|(of, ..)| *of == format);
    let (_, number, now) = *of_format.expect("each format has checkpoints");
    (number, now)
}

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
    for (format, number, now) in CHECKPOINTS {
        let directory = tempfile::tempdir().unwrap();
        place(&format!("{format}/everything"), directory.path());
        let opened =
            States::open(states::builder(builder(directory.path())).restore(number), false);
        let mut states =
            opened.unwrap_or_else(|e| panic!("{format}, checkpoint {number}: {e:?}")).at(now);
        assert_eq!(states.store.restored_position(), Some(10 * number));
        assert_lines(&states.lines().unwrap(), &format!("{format}/everything-{number}"));
    }
}

/// It is not only read: the next checkpoint is of old files and new ones.
#[test]
fn a_store_of_before_goes_on_and_takes_checkpoints() {
    FORMATS.iter().for_each(|format| goes_on_and_takes_checkpoints(format));
}

fn goes_on_and_takes_checkpoints(format: &str) {
    let directory = tempfile::tempdir().unwrap();
    place(&format!("{format}/everything"), directory.path());
    let open = || States::open(states::builder(builder(directory.path())), false).unwrap();
    let states = open();
    let (number, now) = newest(format);
    assert_eq!(states.store.checkpoints().last().unwrap().checkpoint.number, number);
    states.store.tick(1000).unwrap();
    states.store.checkpoint(77).unwrap();
    drop(states);
    let mut states = open().at(now);
    assert_eq!(states.store.restored_position(), Some(77));
    assert_lines(&states.lines().unwrap(), &format!("{format}/everything-{number}"));
}

/// The fixture has what it is kept for.
#[test]
fn the_fixtures_have_every_layout_live_sets_lists_of_the_dead_and_moved_groups() {
    for format in FORMATS {
        has_all_that_it_is_kept_for(format);
    }
}

fn has_all_that_it_is_kept_for(format: &str) {
    let images = images(&format!("{format}/everything"));
    assert_eq!(images.len(), CHECKPOINTS.iter().filter(|(of, ..)| *of == format).count());
    let states: Vec<_> = images.iter().flat_map(|image| &image.states).collect();
    for layout in ["heap", "hybrid-log", "append-log", "window-segments", "timers"] {
        let of_layout = states.iter().filter(|state| state.layout == layout);
        let parts: Vec<_> = of_layout.flat_map(|state| &state.image.parts).collect();
        let files =
            if matches!(layout, "append-log" | "window-segments") { layout } else { RECORDS };
        assert!(!parts.is_empty() && parts.iter().all(|part| part.layout == files), "{layout}");
    }
    assert!(states.iter().any(|state| state.image.deaths().next().is_some()), "packed deaths");
    let mut segments = states.iter().flat_map(|state| state.image.segments());
    assert!(segments.any(|segment| segment.live.is_some()), "sets of the live");
    let first: Vec<_> =
        (0..moved::WORKERS).flat_map(|at| self::images(&moved_name(format, at))).collect();
    let mut states = first.iter().flat_map(|image| &image.states);
    assert!(states.clone().any(|state| state.groups.is_some()), "groups that have moved");
    let going = states.any(|state| state.going != alluvium::moving::KeyGroups::default());
    assert!(going, "groups that are going");
}

fn moved_name(format: &str, at: usize) -> String {
    format!("{format}/moved-{at}")
}

#[test]
fn stores_whose_key_groups_have_moved_are_read_value_for_value() {
    for format in FORMATS {
        let directory = tempfile::tempdir().unwrap();
        let open = |at: usize| {
            let directory = directory.path().join(at.to_string());
            place(&moved_name(format, at), &directory);
            Worker::open(moved::builder(builder(&directory), Some(at)), false).unwrap()
        };
        let mut workers: Vec<_> = (0..moved::WORKERS).map(open).collect();
        assert_lines(&moved::lines(&mut workers).unwrap(), &format!("{format}/moved"));
    }
}

#[test]
fn one_store_is_made_of_those_whose_key_groups_have_moved() {
    FORMATS.iter().for_each(|format| one_store_is_made_of_moved(format));
}

fn one_store_is_made_of_moved(format: &str) {
    let directory = tempfile::tempdir().unwrap();
    let sources: Vec<_> =
        (0..moved::WORKERS).map(|at| directory.path().join(at.to_string())).collect();
    (0..moved::WORKERS).for_each(|at| place(&moved_name(format, at), &sources[at]));
    let builder = moved::builder(builder(&directory.path().join("new")), None);
    let sources = sources.into_iter().map(|source| (source, None));
    let worker = Worker::open(builder.restore_from(sources), false).unwrap();
    assert_lines(&moved::lines(&mut [worker]).unwrap(), &format!("{format}/moved"));
}

#[test]
fn a_canonical_file_is_read_value_for_value() {
    for (format, on_heap) in FORMATS.iter().flat_map(|format| [(format, true), (format, false)]) {
        let file = load(&format!("{format}/canonical")).remove("canonical").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let builder = states::builder(builder(directory.path()));
        let states = States::open(builder, on_heap).unwrap();
        states.store.import(&*file).unwrap();
        let (number, now) = newest(format);
        assert_lines(&states.at(now).lines().unwrap(), &format!("{format}/everything-{number}"));
    }
}

/// In directories of format 5 that is so of both layouts that the records' files are of, and of one state at a time.
#[test]
fn states_of_both_layouts_have_a_live_set_and_a_list_of_the_dead_since() {
    let images = images("format-5/everything");
    for layout in ["heap", "hybrid-log"] {
        let mut states = images.iter().flat_map(|image| &image.states);
        let has_both = states.any(|state| {
            let has_set = state.image.segments().any(|segment| segment.live.is_some());
            state.layout == layout && has_set && state.image.deaths().next().is_some()
        });
        assert!(has_both, "{layout}");
    }
}

/// Each kind of file, from the future.
#[test]
fn files_of_a_version_to_come_are_refused_in_words() {
    let kinds = [
        ("future-manifest", "MANIFEST"),
        ("future-checkpoint", "checkpoint-0000000000000001"),
        ("future-segment", "seg-"),
    ];
    for (format, (fixture, file)) in FORMATS.iter().flat_map(|f| kinds.map(|kind| (f, kind))) {
        let fixture = &*format!("{format}/{fixture}");
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
