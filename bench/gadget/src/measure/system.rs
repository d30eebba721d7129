//! What the system says of this process and of the machine.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Counters of this process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// Processor time of all threads.
    pub processor: Duration,
    /// Bytes that the device was told to write for it.
    pub device_written: u64,
    /// Bytes that the device read for it.
    pub device_read: u64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// The most that was resident.
    pub resident_bytes_max: u64,
}

impl System {
    /// Gives freed memory back and forgets the most that was resident, then reads the counters.
    pub fn from_here() -> Self {
        super::trim_unsafe::give_back();
        // Where the system does not allow it, the most is that of the whole process.
        let _ = fs::write("/proc/self/clear_refs", "5");
        System::now()
    }

    /// Reads the counters.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        System {
            processor: Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
            device_written: number_after(&io, "write_bytes:"),
            device_read: number_after(&io, "read_bytes:"),
            resident_bytes: number_after(&status, "VmRSS:") * 1024,
            resident_bytes_max: number_after(&status, "VmHWM:") * 1024,
        }
    }
}

/// Processor time of this thread: on a machine that is shared, the time that its own work took.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn number_after(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The machine and what runs on it, for reports.
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

/// Looks at the machine.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_of_this_process() {
        let before = System::now();
        assert!(before.resident_bytes > 1 << 20);
        assert!(before.resident_bytes_max >= before.resident_bytes / 2);
        let mut sum = 0u64;
        (0..3_000_000u64).for_each(|n| sum = std::hint::black_box(sum ^ n));
        assert!(System::now().processor > before.processor);
        assert_eq!(number_after("a: 1\nwrite_bytes: 77\n", "write_bytes:"), 77);
    }
}
