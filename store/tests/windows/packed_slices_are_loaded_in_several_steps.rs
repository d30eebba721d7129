//! Windows whose packed slices take several steps to load: each call of `advance` gets further, whatever is done between
//! two calls, and also if a read fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Device, Fault, Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{
    AppendLog, Elements, ErrorKind, KIB, MIB, Process, Result, Store, Time, Window, Windows,
};

use crate::dice::Dice;

const LENGTH: i64 = 40;
const SLIDE: i64 = 4;
const KEYS: u64 = 20;
const BYTES: usize = 1_000;
/// Far more calls than a window takes.
const CALLS_MAX: u64 = 3_000;

/// The numbers of all events, one row each: some are out when a read fails.
struct Each;

impl Process<u64, Vec<u8>> for Each {
    type Row = u64;

    fn process(
        &mut self,
        _: &u64,
        _: Window,
        elements: &mut dyn Elements<Vec<u8>>,
        emit: &mut dyn FnMut(u64),
    ) -> Result<()> {
        while let Some(element) = elements.next()? {
            assert_eq!(element.len(), BYTES);
            emit(number_of(element));
        }
        Ok(())
    }
}

fn event(n: u64) -> Vec<u8> {
    let mut bytes = vec![n as u8; BYTES];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

fn number_of(event: &[u8]) -> u64 {
    u64::from_le_bytes(event[..8].try_into().expect("eight bytes"))
}

/// What is done between two calls of `advance`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    Nothing,
    /// Events come for later windows, some calls apart.
    Events(u64),
    /// A read fails, some calls apart.
    FailedReads(u64),
}

type Rows = BTreeMap<(i64, u64), Vec<u64>>;

fn play(layout: AppendLog, per_slice: u64, between: Between) {
    let what = format!("{per_slice} events a slice, {between:?}");
    let device = Simulated::new(7, Faults::none());
    let builder = Store::in_memory().memory(8 * MIB).max_value(4 * KIB).helpers(Helpers::Inline);
    let store = builder.device(Arc::new(device.clone())).open().unwrap();
    let windows = Windows::sliding(nanos(LENGTH), nanos(SLIDE));
    let open = store.holistic::<u64, Vec<u8>>("s").layout(layout.memory(MIB));
    let mut state = open.open(windows, Each).unwrap();
    let (mut dice, mut model, mut told) = (Dice(per_slice), Rows::new(), Rows::new());
    let mut sent = 0;
    let mut add = |state: &mut alluvium::Holistic<u64, Vec<u8>, Each, AppendLog>, at: i64| {
        let (key, n) = (dice.below(KEYS), sent);
        sent += 1;
        let mut batch = vec![(key, Time(at), event(n))];
        let late = &mut |late| panic!("{late:?}");
        while let Err(error) = state.add_batch(Time(0), &mut batch, late, &mut |_, _, _, _| ()) {
            assert_eq!(error.kind(), ErrorKind::Io, "{what}: {error}");
        }
        let first = (at / SLIDE + 1) * SLIDE;
        for end in (first..=at + LENGTH).step_by(SLIDE as usize) {
            model.entry((end, key)).or_default().push(n);
        }
    };
    let slices = 150;
    for slice in 0..slices {
        (0..per_slice).for_each(|n| add(&mut state, slice * SLIDE + n as i64 % SLIDE));
    }
    let (mut calls, mut failed) = (0, 0);
    for end in (SLIDE..=slices * SLIDE + LENGTH + 4 * SLIDE).step_by(SLIDE as usize) {
        let mut of_window = 0;
        loop {
            of_window += 1;
            calls += 1;
            assert!(
                of_window < CALLS_MAX,
                "{what}: the window that ends at {end} does not fire\n{}",
                store.stats().unwrap()
            );
            match between {
                Between::Events(every) if calls % every == 0 && end < slices * SLIDE => {
                    add(&mut state, end + 2 * SLIDE);
                }
                Between::FailedReads(every) if calls % every == 0 => {
                    device.on_nth_read(2, Fault::Error)
                }
                _ => {}
            }
            let row = &mut |key: &u64, window: Window, n: u64, diff: i64| {
                assert_eq!(diff, 1);
                told.entry((window.end.0, *key)).or_default().push(n);
            };
            match state.advance(Time(end), 30, row) {
                Ok(advanced) if advanced.done => break,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{what}: {error}");
                    failed += 1;
                }
            }
        }
    }
    device.forget_scripts();
    model.values_mut().chain(told.values_mut()).for_each(|numbers| numbers.sort_unstable());
    println!("{what}: {calls} calls, {failed} failed, {} reads", device.stats().reads);
    assert!(device.stats().reads > 100, "{what}: {:?}", device.stats());
    assert_eq!(failed > 0, matches!(between, Between::FailedReads(_)), "{what}");
    let differ = model.iter().find(|(of, numbers)| told.get(of) != Some(numbers));
    assert!(
        told == model,
        "{what}: {differ:?} was to come out, {:?}",
        differ.map(|(of, _)| told.get(of))
    );
    let stats = store.stats().unwrap();
    assert!(stats.memory.peak <= 8 * MIB, "{what}: {stats}");
}

/// Windows of 80 KB are loaded in three steps.
fn play_all(layout: impl Fn() -> AppendLog) {
    play(layout(), 8, Between::Nothing);
    play(layout(), 8, Between::Events(7));
    play(layout(), 8, Between::FailedReads(2));
    play(layout(), 24, Between::FailedReads(9));
}

#[test]
fn of_slices_that_are_loaded_whole() {
    play_all(|| AppendLog::new().pack_all());
}

#[test]
fn of_slices_that_are_read_in_parts() {
    play_all(|| AppendLog::new().pack_all_in_parts());
}
