//! What tests of runs in several processes share.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

use timely::CommunicationConfig;

/// Addresses on this machine that nobody listens at. Not of the ports that the system gives to those
/// who call: one of them could be taken by a call before the process listens.
pub fn free_addresses(processes: usize) -> Vec<String> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let mut addresses = Vec::new();
    while addresses.len() < processes {
        // Other test programs begin elsewhere.
        let next = std::process::id() * 101 + TAKEN.fetch_add(1, Ordering::Relaxed);
        let address = format!("127.0.0.1:{}", 10_000 + next % 20_000);
        if TcpListener::bind(&address).is_ok() {
            addresses.push(address);
        }
    }
    addresses
}

/// One of so many processes.
pub fn cluster(threads: usize, process: usize, addresses: &[String]) -> timely::Config {
    let (addresses, report) = (addresses.to_vec(), false);
    let communication =
        CommunicationConfig::Cluster { threads, process, addresses, report, zerocopy: false };
    timely::Config { communication, worker: timely::WorkerConfig::default() }
}
