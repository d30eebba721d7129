//! What becomes of an operator whose state call failed.

use std::time::Duration;

use alluvium::ErrorKind;

/// Policy for a state call that fails inside an operator.
///
/// Two errors pass by themselves: [`ErrorKind::Backpressure`] and [`ErrorKind::DiskFull`]. The
/// operator applies nothing, holds its times and retries until storage accepts the write;
/// [`WorkerState::waiting`](crate::WorkerState::waiting) shows it. Every other error ends the run,
/// and so does one of these that outlasts the policy. The operator then stops for good and holds
/// its times, so no probe behind it passes them. [`WorkerState::fault`](crate::WorkerState::fault)
/// has the error.
///
/// ```
/// use std::time::Duration;
/// use alluvium_timely::{Fault, NodeConfig};
///
/// let mut node = NodeConfig::default();
/// assert_eq!(node.fault, Fault::WAIT);
/// node.fault = Fault { wait_max: Some(Duration::from_secs(60)) };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Longest wait for one error to pass; zero ends the run at once. Default: `None`, no limit.
    pub wait_max: Option<Duration>,
}

impl Fault {
    /// Ends the run at the first error of any kind.
    pub const STOP: Fault = Fault { wait_max: Some(Duration::ZERO) };
    /// Waits without limit; the default.
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
