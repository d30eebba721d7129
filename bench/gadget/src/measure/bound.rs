//! A memory cgroup around an engine: its memory and the page cache that it uses are bounded.
//!
//! The process enters it after events and accesses were made: what they take is charged to where it
//! was before.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

const UNIFIED: &str = "/sys/fs/cgroup";
const OLDER: &str = "/sys/fs/cgroup/memory";

/// A cgroup that this process is in. Dropped, the process leaves it.
#[derive(Debug)]
pub struct Bound {
    group: PathBuf,
    root: PathBuf,
}

impl Bound {
    /// Makes a cgroup of `bytes` and enters it.
    ///
    /// # Errors
    /// [`Error::Usage`] where no such cgroup can be made: that takes root.
    pub fn enter(bytes: u64) -> Result<Self> {
        let name = format!("alluvium-gadget-{}", std::process::id());
        let is_unified = Path::new(UNIFIED).join("cgroup.controllers").exists();
        let (root, limit) = match is_unified {
            true => (PathBuf::from(UNIFIED), "memory.max"),
            false => (PathBuf::from(OLDER), "memory.limit_in_bytes"),
        };
        let group = root.join(name);
        let write = |path: PathBuf, text: String| {
            fs::write(&path, text).map_err(|error| refused(&path, error))
        };
        if is_unified {
            write(root.join("cgroup.subtree_control"), "+memory".to_owned())?;
        }
        fs::create_dir(&group).map_err(|error| refused(&group, error))?;
        let bound = Bound { group, root };
        write(bound.group.join(limit), bytes.to_string())?;
        if is_unified {
            write(bound.group.join("memory.swap.max"), "0".to_owned())?;
        }
        write(bound.group.join("cgroup.procs"), std::process::id().to_string())?;
        Ok(bound)
    }
}

impl Bound {
    /// Removes what a process of this number left, which was killed.
    pub fn clear(process: u32) {
        let name = format!("alluvium-gadget-{process}");
        for root in [UNIFIED, OLDER] {
            let _ = fs::remove_dir(Path::new(root).join(&name));
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A group that cannot be left is left when the process ends.
        let _ = fs::write(self.root.join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(&self.group);
    }
}

fn refused(path: &Path, error: std::io::Error) -> Error {
    Error::Usage(format!("--bound: no memory cgroup can be made here: {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_entered_and_left_or_refused_by_its_option() {
        match Bound::enter(1 << 30) {
            Ok(bound) => {
                let group = bound.group.clone();
                let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap();
                assert!(inside.contains(&std::process::id().to_string()));
                drop(bound);
                assert!(!group.exists());
            }
            Err(error) => assert!(error.to_string().starts_with("--bound"), "{error}"),
        }
    }
}
