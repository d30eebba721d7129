//! What the system says of the machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine and its software, for reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The processor's name.
    pub processor: String,
    /// How many of its cores there are.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The kernel.
    pub kernel: String,
    /// The file system of the directory of the runs.
    pub file_system: String,
    /// The compiler.
    pub compiler: String,
    /// The commit of the source, with `+` where it was changed.
    pub commit: String,
    /// When, in UTC.
    pub date: String,
    /// The load of the machine at the start, over a minute.
    pub load: String,
}

/// Looks at the machine. Runs `git`, `rustc`, `stat` and `date`; what they do not say is empty.
pub fn environment(directory: &Path) -> Environment {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown", |line| line.trim_start_matches([' ', '\t', ':']));
    let changed = said("git", &["status", "--porcelain", "--untracked-files=no"]);
    let plus = if changed.is_empty() { "" } else { "+" };
    Environment {
        processor: model.to_owned(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_mib: number_after(&read("/proc/meminfo"), "MemTotal:") / 1024,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        file_system: said("stat", &["-f", "-c", "%T", &directory.display().to_string()]),
        compiler: said("rustc", &["--version"]),
        commit: said("git", &["rev-parse", "--short=12", "HEAD"]) + plus,
        date: said("date", &["-u", "+%Y-%m-%d %H:%M"]),
        load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
    }
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}

fn number_after(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_cores_and_memory() {
        let found = environment(Path::new("."));
        assert!(found.cores > 0 && found.memory_mib > 0 && !found.date.is_empty());
        assert_eq!(number_after("a: 1\nMemTotal:  77 kB\n", "MemTotal:"), 77);
    }
}
