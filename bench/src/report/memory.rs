//! What the system says about this process's memory.

use std::fs;

/// The most memory this process ever had resident, in bytes; zero where the system does not say.
pub fn peak_rss_bytes() -> u64 {
    said("VmHWM:")
}

/// The memory this process has resident now, in bytes; zero where the system does not say.
pub fn resident_bytes() -> u64 {
    said("VmRSS:")
}

fn said(of: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").ok();
    status.and_then(|status| bytes_of(&status, of)).unwrap_or(0)
}

fn bytes_of(status: &str, of: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(of))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "VmPeak:\t 9 kB\nVmHWM:\t    1234 kB\n";
        assert_eq!(bytes_of(status, "VmHWM:"), Some(1_263_616));
        assert_eq!(bytes_of(status, "VmRSS:"), None);
        assert!(peak_rss_bytes() > 1 << 20 && resident_bytes() > 1 << 20);
    }
}
