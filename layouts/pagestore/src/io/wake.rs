//! Wakes a thread that sleeps until reads have ended, once for many reads.
//!
//! Completions go through a channel; the [`Waker`] beside it announces them. A completion is in the
//! channel before [`wake`](Waker::wake) is called, and the sleeper calls [`rearm`](Waker::rearm)
//! before it reads the channel. Both do one read-modify-write on one flag, and the later one sees
//! the earlier. Either `wake` finds the flag down and wakes, or `rearm` follows it and the sleeper
//! finds the completion in the channel. No completion is missed, and the sleeper is woken at most
//! once between two reads of the channel.

use std::fmt;

use super::primitive::{AtomicBool, Ordering};

/// Wakes a sleeper from any thread.
pub struct Waker {
    /// Whether the sleeper was woken since it last looked.
    woken: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Waker {
    /// Creates a waker that calls `wake`, which must be quick and must not panic.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { woken: AtomicBool::new(false), wake: Box::new(wake) }
    }

    /// Wakes the sleeper, unless it was woken since it last called [`rearm`](Waker::rearm).
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    /// Prepares the next wake-up. The sleeper calls it before it reads the channel.
    pub fn rearm(&self) {
        self.woken.swap(false, Ordering::AcqRel);
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").field("woken", &self.woken).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

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
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Mutex, Notify};

    /// Two engines end a read each; the sleeper takes both in, whatever the order of steps. A
    /// wake-up that is lost leaves it asleep for ever, which loom reports as a deadlock.
    #[test]
    fn no_end_is_slept_over() {
        loom::model(|| {
            let channel = Arc::new(Mutex::new(0));
            let bell = Arc::new(Notify::new());
            let rung = bell.clone();
            let waker = Arc::new(Waker::new(move || rung.notify()));
            for _ in 0..2 {
                let (channel, waker) = (channel.clone(), waker.clone());
                loom::thread::spawn(move || {
                    *channel.lock().unwrap() += 1;
                    waker.wake();
                });
            }
            let mut taken = 0;
            while taken < 2 {
                bell.wait();
                waker.rearm();
                taken += std::mem::take(&mut *channel.lock().unwrap());
            }
        });
    }
}
