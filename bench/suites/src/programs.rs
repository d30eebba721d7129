//! Where the programs are that suites run.
//!
//! `alluvium-bench` and `alluvium-gadget` are beside the suite's own program. `alluvium-peers` has native builds
//! and a target directory of its own, so it may be missing: its cells say so.

use std::path::{Path, PathBuf};

use crate::cell::Outcome;
use crate::{Error, Result};

/// Why a cell of `alluvium-peers` has no program.
pub const NOT_BUILT: &str = "alluvium-peers is not built: cargo build --release --manifest-path \
                             bench/peers/Cargo.toml";

/// Programs by path; `None` for one that is not built.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// `alluvium-bench`.
    pub bench: Option<PathBuf>,
    /// `alluvium-gadget`.
    pub gadget: Option<PathBuf>,
    /// `alluvium-peers`.
    pub peers: Option<PathBuf>,
}

impl Programs {
    /// Looks beside this program, in `bin` if that is given, and for `alluvium-peers` where
    /// `peers` says or where its own build leaves it.
    ///
    /// # Errors
    /// `peers` is given and is not there.
    pub fn find(bin: Option<&Path>, peers: Option<&Path>) -> Result<Self> {
        let own = std::env::current_exe().ok();
        let beside = bin.or_else(|| own.as_deref().and_then(Path::parent));
        let in_bin = |name: &str| beside.map(|dir| dir.join(name)).filter(|path| path.is_file());
        if let Some(path) = peers.filter(|path| !path.is_file()) {
            return Err(Error::new(format!("--peers: there is no file {}", path.display())));
        }
        let built = || {
            let places = ["release", "debug"].map(|profile| {
                Path::new("bench/peers/target").join(profile).join("alluvium-peers")
            });
            places.into_iter().find(|path| path.is_file())
        };
        Ok(Programs {
            bench: in_bin("alluvium-bench"),
            gadget: in_bin("alluvium-gadget"),
            peers: peers.map(PathBuf::from).or_else(|| in_bin("alluvium-peers")).or_else(built),
        })
    }

    /// The path of a program that a suite cannot do without.
    ///
    /// # Errors
    /// It is not built; the words say how.
    pub fn needed<'a>(path: &'a Option<PathBuf>, package: &str) -> Result<&'a Path> {
        path.as_deref().ok_or_else(|| {
            Error::new(format!(
                "{package} is not beside this program; build both: cargo build --release -p \
                 {package} -p alluvium-suites"
            ))
        })
    }
}

/// What a cell failed of, if it is not that its store is missing or its time was over.
pub fn failure(outcome: &Outcome) -> Option<String> {
    let why = outcome.why.as_deref()?;
    let is_expected = why == NOT_BUILT
        || why.starts_with("cut after")
        || why.contains("not installed when this was built")
        || why.contains("were not there when this was built");
    (!is_expected).then(|| format!("{} on {}: {why}", outcome.row, outcome.column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_stores_and_runs_that_were_cut_are_no_failures() {
        let outcome = |why: &str| Outcome {
            row: "COUNT".to_owned(),
            column: "rocksdb".to_owned(),
            round: 1,
            command: String::new(),
            seconds: 0.0,
            figures: None,
            why: Some(why.to_owned()),
        };
        assert_eq!(failure(&outcome(NOT_BUILT)), None);
        assert_eq!(failure(&outcome("cut after 600 s")), None);
        assert_eq!(failure(&outcome("signal: 11")).unwrap(), "COUNT on rocksdb: signal: 11");
    }

    #[test]
    fn programs_are_found_in_a_directory_and_missing_ones_say_how_to_build_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("alluvium-bench"), "").unwrap();
        let found = Programs::find(Some(dir.path()), None).unwrap();
        assert_eq!(found.bench, Some(dir.path().join("alluvium-bench")));
        let error = Programs::needed(&found.gadget, "alluvium-gadget").unwrap_err();
        assert!(error.to_string().contains("cargo build --release -p alluvium-gadget"), "{error}");
        let nowhere = Path::new("/nowhere/alluvium-peers");
        let error = Programs::find(Some(dir.path()), Some(nowhere)).unwrap_err();
        assert!(error.to_string().contains("/nowhere/alluvium-peers"), "{error}");
    }
}
