//! Where the inputs of all workers stand, once one of them has ended.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::locked;

/// Where a worker stands that sends nothing more.
pub(super) const ENDED: i64 = i64::MAX;

#[derive(Debug, Default)]
pub(super) struct Stands {
    has_ended: AtomicBool,
    /// By worker.
    times: Mutex<BTreeMap<usize, i64>>,
}

impl Stands {
    pub(super) fn note(&self, worker: usize, at: i64) {
        locked(&self.times).insert(worker, at);
        if at == ENDED {
            self.has_ended.store(true, Ordering::Release);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub(super) fn least(&self, peers: usize) -> Option<i64> {
        let times = locked(&self.times);
        let least = times.values().copied().min().filter(|&least| least != ENDED);
        least.filter(|_| times.len() == peers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_followed_before_all_have_said_where_they_stand_or_after_all_have_ended() {
        let stands = Stands::default();
        stands.note(2, ENDED);
        stands.note(0, -7);
        assert!(stands.has_ended());
        assert_eq!(stands.least(3), None);
        stands.note(1, 5);
        assert_eq!(stands.least(3), Some(-7));
        stands.note(0, ENDED);
        assert_eq!(stands.least(3), Some(5));
        stands.note(1, ENDED);
        assert_eq!(stands.least(3), None);
    }
}
