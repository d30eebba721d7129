//! What is read ahead of windows is bounded by what is free, however many short runs there are, and
//! keeps no window from firing.

use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{AppendLog, Elements, MIB, Store, Time, Windows, process};

fn sliding(length: i64, memory: u64, steps: i64, helpers: Helpers) {
    let device = Arc::new(Simulated::new(3, Faults::none()));
    let open = || {
        let builder = Store::in_memory().memory(memory).device(device.clone());
        builder.helpers(helpers).open().unwrap()
    };
    let count = |_: &u64, _, all: &mut dyn Elements<u64>, emit: &mut dyn FnMut(u64)| {
        let mut sum = 0;
        while let Some(one) = all.next()? {
            sum += one;
        }
        emit(sum);
        Ok(())
    };
    let mut told = Vec::new();
    let mut step = 0;
    while step < steps {
        let store = open();
        let kept = store.holistic::<u64, u64>("kept").layout(AppendLog::new());
        let windows = Windows::sliding(nanos(length), nanos(1));
        let mut kept = kept.open(windows, process(count)).unwrap();
        for _ in 0..4 {
            let at = Time(step);
            let mut batch = vec![(1, at, step as u64 + 1)];
            let out = &mut |_: &u64, _, row, _| told.push(row);
            kept.add_batch(at, &mut batch, &mut |_| panic!("late"), out).unwrap();
            loop {
                let out = &mut |_: &u64, _, row, _| told.push(row);
                let advanced = kept.advance(Time(step + 1), 100, out);
                let booked = store.stats().unwrap().memory;
                assert!(booked.used <= memory, "step {step}: {booked:?}");
                if advanced.unwrap_or_else(|e| panic!("step {step}: {e}")).done {
                    break;
                }
            }
            step += 1;
        }
        store.checkpoint(step as u64).unwrap();
        let peak = store.stats().unwrap().memory.peak;
        assert!(peak <= memory, "step {step}: {peak} bytes were booked");
    }
    // The window that ends after a step has the events of so many steps.
    let sum = |end: i64| ((end - length).max(0)..end).map(|step| step as u64 + 1).sum::<u64>();
    let expected: Vec<u64> = (1..=steps).map(sum).collect();
    assert_eq!(told, expected);
}

#[test]
fn sixty_slices_in_two_mebibytes() {
    for helpers in [Helpers::Inline, Helpers::Thread] {
        sliding(60, 2 * MIB, 120, helpers);
    }
}

#[test]
fn three_hundred_slices_in_64_mebibytes() {
    sliding(300, 64 * MIB, 320, Helpers::Inline);
}
