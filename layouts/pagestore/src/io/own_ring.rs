//! The ring of a thread that waits for its own reads.
//!
//! Such a read needs no other thread: the one that wants it hands it to the kernel and sleeps there
//! until it has ended, in one system call. Through the thread of the device's ring it would take two
//! switches of threads more.
//!
//! The first thread that launches a read owns the ring. All others are sent away, so that nobody
//! waits for the lock.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use super::accepted::Accepted;
use super::ring_unsafe::{Ring, Transfer};
use super::uring::advance;

/// Reads that are in the kernel at a time; others go the other way.
const DEPTH: usize = 64;

/// A ring of one thread, which is made when it is first used.
#[derive(Debug, Default)]
pub(super) struct OwnRing {
    owner: OnceLock<ThreadId>,
    ring: Mutex<LazyRing>,
}

#[derive(Default)]
enum LazyRing {
    #[default]
    NotYet,
    Ring(Box<Ring>),
    /// The kernel refuses it.
    Refused,
}

impl std::fmt::Debug for LazyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LazyRing::NotYet => "not made",
            LazyRing::Ring(_) => "made",
            LazyRing::Refused => "refused",
        })
    }
}

impl OwnRing {
    /// Launches a request, which goes to the kernel when its owner [waits](Self::wait); gives it
    /// back if this thread does not own the ring, or the ring has no room.
    pub fn launch(&self, accepted: Accepted) -> Option<Accepted> {
        let thread = std::thread::current().id();
        if *self.owner.get_or_init(|| thread) != thread {
            return Some(accepted);
        }
        let mut made = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*made, LazyRing::NotYet) {
            *made =
                Ring::own(DEPTH).map_or(LazyRing::Refused, |ring| LazyRing::Ring(Box::new(ring)));
        }
        match &mut *made {
            LazyRing::Ring(ring) if ring.has_room() => {
                ring.launch(Transfer::new(accepted));
                None
            }
            _ => Some(accepted),
        }
    }

    /// Waits at most so long for the end of one of this thread's requests; false at once if there
    /// are none.
    pub fn wait(&self, most: Duration) -> bool {
        if self.owner.get() != Some(&std::thread::current().id()) {
            return false;
        }
        let mut made = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let LazyRing::Ring(ring) = &mut *made else { return false };
        if ring.is_idle() {
            return false;
        }
        if ring.enter_within(most).is_err() {
            *made = LazyRing::Refused;
            return false;
        }
        let mut ended = Vec::new();
        ring.reap(&mut ended);
        for (transfer, result) in ended {
            if let Some(transfer) = advance(transfer, result) {
                ring.launch(transfer);
            }
        }
        true
    }

    /// Leaves the ring to the process that this one was forked from.
    pub fn forget(&mut self) {
        let made = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(made));
    }
}
