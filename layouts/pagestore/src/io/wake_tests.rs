use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::wake::Waker;

#[test]
fn a_sleeper_is_woken_once_until_it_looks() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let waker = Waker::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    waker.wake();
    waker.wake();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    waker.rearm();
    waker.wake();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}
