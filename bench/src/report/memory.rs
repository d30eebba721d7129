//! What the system says about this process's memory.

use std::fs;

/// The most memory this process ever had resident, in bytes; zero where the system does not say.
pub fn peak_rss_bytes() -> u64 {
    fs::read_to_string("/proc/self/status").ok().and_then(|status| peak_of(&status)).unwrap_or(0)
}

fn peak_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_in_bytes() {
        assert_eq!(peak_of("VmPeak:\t 9 kB\nVmHWM:\t    1234 kB\n"), Some(1_263_616));
        assert_eq!(peak_of("VmPeak:\t 9 kB\n"), None);
        assert!(peak_rss_bytes() > 1 << 20);
    }
}
