//! Lets a device that is stuck go on after a time in which all ends that does: what waits without an end
//! fails its test instead of holding it up.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use alluvium::io::{Device, Simulated};

/// Longer than anything takes that ends by itself.
const FOR_EVER: Duration = Duration::from_secs(40);

/// Watches until it is dropped, and panics then if it had to let the device go on.
pub struct Watchdog {
    ends: Option<Sender<()>>,
    watching: Option<JoinHandle<bool>>,
    when: String,
}

impl Watchdog {
    /// Watches whoever uses this device.
    pub fn of(device: &Simulated, when: &str) -> Self {
        let (ends, ended) = channel();
        let device = device.clone();
        let watching = std::thread::spawn(move || {
            if ended.recv_timeout(FOR_EVER) != Err(RecvTimeoutError::Timeout) {
                return false;
            }
            while ended.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
                device.release_stuck();
                device.drive();
            }
            true
        });
        Self { ends: Some(ends), watching: Some(watching), when: when.into() }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.ends.take());
        let watching = self.watching.take().expect("joined once");
        let has_waited = watching.join().unwrap_or(true);
        if !std::thread::panicking() {
            assert!(!has_waited, "{}: somebody waits for storage for ever", self.when);
        }
    }
}
