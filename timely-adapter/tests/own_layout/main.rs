//! A layout that a user wrote works in every operator, as the example has it, and windows of a user's too.
//!
//! What this catches: operators that take our layouts only; state of a user's that a killed job does not find
//! again, that other numbers of workers do not, or that is lost or doubled when its key group moves.

#[path = "../../examples/own_layout/main.rs"]
mod program;

use std::path::Path;
use std::process::{Command, Stdio};

/// Says in which directory, and on how many workers, this program runs the job, to be killed.
const DIRECTORY: &str = "ALLUVIUM_OWN_LAYOUT_DIRECTORY";
const WORKERS: &str = "ALLUVIUM_OWN_LAYOUT_WORKERS";

#[test]
fn the_job_of_the_example_is_killed_restored_and_moved() {
    if let (Ok(directory), Ok(workers)) = (std::env::var(DIRECTORY), std::env::var(WORKERS)) {
        return program::run_to_be_killed(Path::new(&directory), workers.parse().unwrap()).unwrap();
    }
    let exe = std::env::current_exe().unwrap();
    let start = |directory: &Path, workers: u64| {
        let mut command = Command::new(&exe);
        command
            .args(["--exact", "the_job_of_the_example_is_killed_restored_and_moved"])
            .env(DIRECTORY, directory)
            .env(WORKERS, workers.to_string())
            .stdout(Stdio::null());
        command
    };
    program::kill_and_restore(start).unwrap();
}

/// The chapter shows the layout's own lines.
#[test]
fn the_chapter_shows_what_the_file_has() {
    let page = include_str!("../../../docs/src/own-layout.md");
    let file = include_str!("../../examples/own_layout/btree.rs");
    let blocks: Vec<_> = page.split("```rust,ignore\n").skip(1).collect();
    assert!(!blocks.is_empty());
    let lines = blocks.iter().flat_map(|block| block.split("```").next().unwrap().lines());
    for line in lines {
        assert!(file.lines().any(|of_file| of_file.trim() == line.trim()), "{line}");
    }
}
