//! What the examples share: a state alone in its memory, on files, and its numbers.

use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use alluvium_layouts::StateContext;
use alluvium_pagestore::io::{IoOptions, open_device};
use alluvium_pagestore::{Account, Helper, MIB, Result, SegmentStore};

/// The context of a state of this name, in so much memory and in a directory, and its account.
pub fn context(name: &str, place: &Path, mib: u64) -> Result<(StateContext, Rc<Account>)> {
    let account = Account::below(&Account::root(mib * MIB), name, u64::MAX);
    let context = StateContext {
        name: name.into(),
        account: account.clone(),
        segments: Some(SegmentStore::new(open_device(place, &IoOptions::default())?, 1)),
        helper: Helper::thread()?,
        max_value_bytes: 4096,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    Ok((context, account))
}

/// The numbers on the command line, with defaults for those that are not given.
pub fn numbers<const N: usize>(defaults: [u64; N]) -> [u64; N] {
    let mut given = std::env::args().skip(1).map(|one| one.parse().expect("a number"));
    defaults.map(|default| given.next().unwrap_or(default))
}

/// Calls a second.
pub fn rate(calls: u64, start: Instant) -> f64 {
    calls as f64 / start.elapsed().as_secs_f64()
}
