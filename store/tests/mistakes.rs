//! The mistakes that users make do not compile, and the compiler says what is wrong in words that
//! help: each file in `mistakes/` and what is said of it.
//!
//! What a compiler says changes with its version. The texts are those of [`COMPILER`]; on another
//! one the test says so and is skipped. To write them anew: `TRYBUILD=overwrite cargo test -p alluvium --test mistakes`.

use std::process::Command;

/// The compiler whose texts are kept.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn mistakes_are_told_in_words_that_help() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("the compiler runs").stdout;
    let version = String::from_utf8_lossy(&version);
    if !version.starts_with(COMPILER) {
        println!("skipped: the texts are those of {COMPILER}x, this is {version}");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/mistakes/*.rs");
}
