//! The hand-over between I/O threads and a sleeper, in all orders of its atomic steps with at most three
//! preemptions, by loom. The module is compiled here once more, on loom's atomics.

#[path = "../src/io/wake.rs"]
#[allow(missing_docs, dead_code)]
mod wake;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex, Notify};

use wake::Waker;

/// Two engines end a read each; the sleeper takes both in, whatever the order of steps. A
/// wake-up that is lost leaves it asleep for ever, which loom reports as a deadlock.
#[test]
fn no_end_is_slept_over() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
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
