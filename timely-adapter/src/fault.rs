//! What an operator does after a state call failed: nothing, while holding on to its time.

use alluvium::{Error, Result};
use timely::dataflow::operators::{Capability, CapabilitySet, InputCapability};
use timely::progress::Timestamp;

use crate::worker::WorkerState;

/// Keeps a failed operator from going on and from letting go of the times it has not finished.
#[derive(Debug)]
pub(crate) struct Guard<T: Timestamp> {
    state: WorkerState,
    held: CapabilitySet<T>,
}

impl<T: Timestamp> Guard<T> {
    pub(crate) fn new(state: &WorkerState) -> Self {
        Self { state: state.clone(), held: CapabilitySet::new() }
    }

    /// Whether the operator has failed and must not apply anything more.
    pub(crate) fn is_closed(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether input of `capability` may be applied; if not, its time is held.
    pub(crate) fn admits(&mut self, capability: &InputCapability<T>) -> bool {
        if self.is_closed() {
            self.held.insert(capability.retain(0));
        }
        !self.is_closed()
    }

    /// Notes the outcome of applying input of `capability`.
    pub(crate) fn check(&mut self, capability: &InputCapability<T>, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.close(capability.retain(0), error);
        }
    }

    /// Closes the operator for good at the time of `capability`.
    pub(crate) fn close(&mut self, capability: Capability<T>, error: Error) {
        self.state.fail(error);
        self.held.insert(capability);
    }
}
