//! Rows that wait for their key group see no time that is after theirs, and are applied in their order,
//! whatever fires meanwhile.
//!
//! What this catches: timers of keys that are here which move the state's time past rows that wait for
//! groups on their way; rows of a group that overtake each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alluvium::config::ByteSize;
use alluvium::moving::KeyGroup;
use alluvium::time::nanos;
use alluvium::{Error, ExpiringMap, Heap, KeyHash, List, MIB, Result, StoreConfig, Time, Ttl};
use alluvium_timely::{Context, KeyBy, MoveGroup, NodeConfig, Spec, Stateful, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Concat, Probe};

const WORKERS: usize = 9;
const GROUPS: u16 = 18;
const TTL: i64 = 400;
const NAP: Duration = Duration::from_micros(100);

/// A row of a key: its number, or [`ENTRY`] for one that has its entry made, of 1 KiB, or [`MARK`].
type Row = (u64, i64);

const ENTRY: i64 = -1;
/// Of a row that its worker routes once no moves can come at its time, and that changes nothing.
const MARK: i64 = -2;

/// Of a key that waited: its number, and how often the key had come in its time to live.
type Seen = Vec<(u64, i64, u64)>;

struct States {
    recent: ExpiringMap<u64, Vec<u64>>,
    order: List<u64, i64>,
}

/// All workers send a group each to the last one, which does nothing meanwhile: pieces of them, all that may
/// be under way, are there when it goes on, and are many times what it installs at once. Its own timers are
/// due by then.
#[test]
fn timers_of_keys_that_are_here_pass_no_row_that_waits() {
    let store = StoreConfig {
        memory: ByteSize(WORKERS as u64 * 32 * MIB),
        max_value: Some(ByteSize(4 << 10)),
        key_groups: GROUPS,
        layout: Heap::new().into(),
        ..StoreConfig::default()
    };
    let seen = Arc::new(Mutex::new(Seen::new()));
    let noted = seen.clone();
    let there = Arc::new(AtomicUsize::new(0));
    let sent = Arc::new(AtomicUsize::new(0));
    let marks = Arc::new(AtomicUsize::new(0));
    let last = WORKERS - 1;
    let keys_of =
        |group: u16| (0..).filter(move |key: &u64| KeyGroup::of(key.key_hash(), GROUPS).0 == group);
    // The first group of each worker, which has two.
    let group_of = |worker: usize| 2 * worker as u16;
    execute(timely::Config::process(WORKERS), NodeConfig::from(store), move |worker, state| {
        let probe = ProbeHandle::new();
        let noted = noted.clone();
        let counted = marks.clone();
        let (rows, mut later, control) = worker.dataflow::<i64, _, _>(|scope| {
            let (rows, stream) = scope.new_input::<Row>();
            let (later, marked) = scope.new_input::<Row>();
            let (control, moves) = scope.new_input::<MoveGroup>();
            stream
                .concat(marked)
                .key_by(state, |row: &Row| row.0)
                .migratable(moves)
                .stateful(
                    Spec::new("recent"),
                    |states| {
                        let recent = states.expiring_map("recent", Ttl::event_time(nanos(TTL)))?;
                        Ok(States { recent, order: states.list("order")? })
                    },
                    move |states: &mut States, rows, context: &mut Context<'_, i64, u64, ()>| {
                        states.recent.advance(context.watermark())?;
                        for (key, (_, number)) in rows.drain(..) {
                            if number == MARK {
                                counted.fetch_add(1, Ordering::SeqCst);
                                continue;
                            }
                            if key >= ALARMS {
                                context.set_timer(key, Time(300))?;
                                continue;
                            }
                            let count = |known: &mut Vec<u64>| {
                                known[0] += 1;
                                known[0]
                            };
                            let times = states.recent.update(&key, || vec![0; 128], count)?;
                            if number >= 0 {
                                states.order.append(&key, number).map_err(Error::from)?;
                                let before = states.order.to_vec(&key)?;
                                assert!(before.is_sorted(), "rows of {key}: {before:?}");
                                noted.lock().unwrap().push((key, number, times));
                            }
                        }
                        Ok(())
                    },
                    |states, due, context| {
                        // As state is told the time by whoever has it.
                        states.recent.advance(context.watermark())?;
                        assert!(due.iter().all(|(at, _)| *at < context.watermark()));
                        due.clear();
                        Ok(())
                    },
                )?
                .probe_with(&probe);
            Result::Ok((rows, later, control))
        })?;
        let index = worker.index();
        // One worker has all rows and moves.
        let mut inputs = (index == 0).then_some(rows);
        let mut moves = (index == 0).then_some(control);
        if let (Some(rows), Some(mut control)) = (&mut inputs, moves.take()) {
            rows.advance_to(1);
            for from in 0..last {
                // Less than what may be under way from one worker, and more than is installed at once.
                keys_of(group_of(from)).take(190).for_each(|key| rows.send((key, ENTRY)));
            }
            // Far apart from the keys of rows.
            let alarms = (ALARMS..)
                .filter(|key| KeyGroup::of(key.key_hash(), GROUPS).owner(GROUPS, WORKERS) == last);
            alarms.take(20).for_each(|key| rows.send((key, 0)));
            rows.advance_to(99);
            control.advance_to(100);
            for from in 0..last {
                control.send(MoveGroup { group: KeyGroup(group_of(from)), to: last as u32 });
            }
        }
        drop(moves);
        // The second group of each worker stays.
        later.advance_to(101);
        later.send((keys_of(group_of(index) + 1).next().expect("one of them"), MARK));
        drop(later);
        // All routers know of the moves, which wait for what comes before them.
        let all_know = || marks.load(Ordering::SeqCst) == WORKERS;
        state.run_until(worker, || !probe.less_than(&99) && all_know())?;
        state.meet(worker, 0)?;
        let keys: Vec<u64> = (0..last).flat_map(|from| keys_of(group_of(from)).take(5)).collect();
        if index == last {
            there.fetch_add(1, Ordering::SeqCst);
            while sent.load(Ordering::SeqCst) < last {
                std::thread::sleep(NAP);
            }
        } else {
            while there.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(NAP);
            }
            if let Some(mut rows) = inputs.take() {
                for number in 0..30 {
                    rows.advance_to(101 + number / 10);
                    keys.iter().for_each(|key| rows.send((*key, number)));
                }
                // Past the timers, and past the time to live of what waits.
                rows.advance_to(10_000);
            }
            // Until then the last worker does nothing: all of it waits there at once.
            let has_sent = || state.moved_bytes_max().iter().any(|(_, bytes)| *bytes > 128 << 10);
            state.run_until(worker, has_sent)?;
            sent.fetch_add(1, Ordering::SeqCst);
        }
        state.run_until(worker, || probe.done())
    })
    .unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len(), 30 * 5 * last);
    for (key, number, times) in seen {
        // The entry was made at 1, and each row before this one has counted.
        assert_eq!(times, number as u64 + 2, "row {number} of {key}");
    }
}

/// Keys from here on have timers and no rows.
const ALARMS: u64 = 1 << 40;
