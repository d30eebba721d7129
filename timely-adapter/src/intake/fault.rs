//! What becomes of an operator whose state call failed.

use std::time::Duration;

use alluvium::ErrorKind;

/// What operators do when a call on their state fails.
///
/// Errors that pass by themselves, [`ErrorKind::Backpressure`] and [`ErrorKind::DiskFull`], are
/// waited out: the operator applies nothing, holds the times of what it has not applied, and tries
/// again until storage takes it; [`WorkerState::waiting`](crate::WorkerState::waiting) shows it.
/// Every other error, and one of these that lasts longer than the policy says, ends the run: the
/// operator stops for good, holding its times, so that no probe behind it passes them, and
/// [`WorkerState::fault`](crate::WorkerState::fault) has the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The longest wait for one error to pass; zero ends the run at once. Default: `None`, as long
    /// as it takes.
    pub wait_max: Option<Duration>,
}

impl Fault {
    /// Ends the run at the first error of any kind.
    pub const STOP: Fault = Fault { wait_max: Some(Duration::ZERO) };
    /// Waits as long as it takes; the default.
    pub const WAIT: Fault = Fault { wait_max: None };

    /// Whether an error that has lasted this long is waited out further.
    pub(crate) fn waits(&self, lasted: Duration) -> bool {
        self.wait_max.is_none_or(|most| lasted < most)
    }
}

impl Default for Fault {
    fn default() -> Self {
        Self::WAIT
    }
}

/// Whether an error goes away when storage has caught up or has room again.
pub(crate) fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Backpressure | ErrorKind::DiskFull)
}
