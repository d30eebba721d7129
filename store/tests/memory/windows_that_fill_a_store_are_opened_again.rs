//! Windows that fill a small store are opened again where new ones would be refused: by a second handle, before any
//! checkpoint, and by a store that is made of their checkpoint.

use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::moving::Source;
use alluvium::time::nanos;
use alluvium::{
    Aggregated, Counting, ErrorKind, Holistic, KIB, Process, Result, Store, StoreBuilder, Time,
    Window, Windows,
};

use crate::counting::alone;

const MEMORY: u64 = 320 * KIB;

/// How many elements a key has.
struct Length;

impl Process<u64, u64> for Length {
    type Row = i64;

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        elements: &mut dyn alluvium::Elements<u64>,
        emit: &mut dyn FnMut(i64),
    ) -> Result<()> {
        let mut count = 0;
        while elements.next()?.is_some() {
            count += 1;
        }
        emit(count);
        Ok(())
    }
}

fn builder(device: &Simulated) -> StoreBuilder {
    let builder = Store::in_memory().memory(MEMORY).max_value(KIB).helpers(Helpers::Inline);
    builder.device(Arc::new(device.clone()))
}

trait Filled: Sized {
    fn open(store: &Store) -> Result<Self>;
    fn add(&mut self, key: u64) -> Result<()>;
    fn fire(&mut self) -> u64;

    /// Adds events until one is refused; says how many are in.
    fn fill(&mut self) -> u64 {
        let full = (0..1_000_000).find_map(|key| Some((key, self.add(key).err()?)));
        let (count, error) = full.expect("memory is full");
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
        assert!(count > 100, "{count}: {error}");
        count
    }
}

macro_rules! filled {
    ($state:ty: $open:ident, $with:expr, $windows:expr) => {
        impl Filled for $state {
            fn open(store: &Store) -> Result<Self> {
                store.$open("s").open($windows, $with)
            }

            fn add(&mut self, key: u64) -> Result<()> {
                // Few at each time, so that slices take memory.
                let mut batch = vec![(key, Time(key as i64), key)];
                self.add_batch(
                    Time(0),
                    &mut batch,
                    &mut |late| panic!("{late:?}"),
                    &mut |_, _, _, _| (),
                )
            }

            fn fire(&mut self) -> u64 {
                let mut all = 0;
                self.advance_all(Time(1 << 40), &mut |_, _, count: i64, _| all += count as u64)
                    .unwrap();
                all
            }
        }
    };
}

filled! { Aggregated<u64, u64, Counting>: aggregated, Counting, Windows::tumbling(nanos(50)) }
filled! { Holistic<u64, u64, Length>: holistic, Length, Windows::session(nanos(50)) }

fn play<S: Filled>() {
    let device = Simulated::new(1, Faults::none());
    let store = builder(&device).open().unwrap();
    let mut state = S::open(&store).unwrap();
    let count = state.fill();
    drop(state);
    let state = S::open(&store).unwrap_or_else(|error| panic!("a second handle: {error}"));
    store.checkpoint(1).unwrap();
    drop((state, store));
    let new = builder(&Simulated::new(2, Faults::none()));
    let new = new.restore_from([Source::device(Arc::new(device.clone()))]).open().unwrap();
    let mut copy = S::open(&new).unwrap_or_else(|error| panic!("made of another: {error}"));
    assert_eq!(copy.fire(), count);
    let store = builder(&device).open().unwrap();
    let mut state = S::open(&store).unwrap_or_else(|error| panic!("opened again: {error}"));
    assert_eq!(state.fire(), count);
}

#[test]
fn sums_by_slice() {
    let _alone = alone();
    play::<Aggregated<u64, u64, Counting>>();
}

#[test]
fn events_of_sessions() {
    let _alone = alone();
    play::<Holistic<u64, u64, Length>>();
}
