//! Where io_uring is forbidden, as under Docker's default seccomp profile, the device must work
//! all the same, on helper threads, and say why.
//!
//! Alone in its file: the filter cannot be taken off again.
#![cfg(target_os = "linux")]

use alluvium_pagestore::ErrorKind;
use alluvium_pagestore::io::{
    BLOCK_BYTES, Device, EngineChoice, IoBuffer, IoOptions, Operation, open_device, run_blocking,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;

/// Makes io_uring_setup, io_uring_enter and io_uring_register fail with `errno` on this thread
/// and those it starts.
fn deny_uring(errno: u32) {
    let rules: BTreeMap<_, _> = (425..=427).map(|call| (call, vec![])).collect();
    let (other, these) = (SeccompAction::Allow, SeccompAction::Errno(errno));
    let here = std::env::consts::ARCH.try_into().unwrap();
    let filter: BpfProgram =
        SeccompFilter::new(rules, other, these, here).unwrap().try_into().unwrap();
    seccompiler::apply_filter(&filter).unwrap();
}

fn device_ends_on_threads(errno: u32, words: &str) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().to_owned();
    let denied = move || {
        deny_uring(errno);
        let device = open_device(&path, &IoOptions::default()).unwrap();
        let only = IoOptions { engine: EngineChoice::Uring, ..IoOptions::default() };
        (device, open_device(&path, &only).map(|device| device.engine()))
    };
    let (device, only) = std::thread::spawn(denied).join().unwrap();
    assert_eq!(device.engine(), "threads");
    let reason = device.fallback_reason().expect("there is a reason");
    assert!(reason.contains("io_uring") && reason.contains(words), "{reason}");
    assert_eq!(only.unwrap_err().kind(), ErrorKind::Unsupported);
    moves_bytes(&*device);
}

fn moves_bytes(device: &dyn Device) {
    let file = device.create("f").unwrap();
    let mut buffer = IoBuffer::zeroed(BLOCK_BYTES);
    buffer.as_mut_slice().fill(9);
    let (mut buffer, written) = run_blocking(device, &file, Operation::Write { offset: 0 }, buffer);
    written.unwrap();
    buffer.as_mut_slice().fill(0);
    let (buffer, read) = run_blocking(device, &file, Operation::Read { offset: 0 }, buffer);
    read.unwrap();
    assert_eq!(buffer.as_slice(), [9; BLOCK_BYTES]);
}

#[test]
fn a_ring_denied_by_seccomp_ends_on_threads() {
    device_ends_on_threads(1, "Operation not permitted");
}

#[test]
fn a_kernel_without_rings_ends_on_threads() {
    device_ends_on_threads(38, "not implemented");
}

#[test]
fn a_ring_without_locked_memory_ends_on_threads() {
    device_ends_on_threads(12, "allocate memory");
}
