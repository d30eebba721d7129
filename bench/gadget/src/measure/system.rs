//! What the system says of this process.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

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
