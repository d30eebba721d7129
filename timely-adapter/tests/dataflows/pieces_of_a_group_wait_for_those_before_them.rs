//! A worker that takes nothing for a while is not sent all of its key groups meanwhile.
//!
//! What this catches: pieces of groups that pile up in queues without a bound; pieces that nobody says
//! to be installed, so that a move never ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use alluvium::config::ByteSize;
use alluvium::moving::KeyGroup;
use alluvium::{Heap, KIB, KeyHash, MIB, Result, StoreConfig};
use alluvium_timely::{Context, KeyBy, MoveGroup, NodeConfig, Spec, Stateful, execute};
use timely::dataflow::ProbeHandle;
use timely::dataflow::operators::Probe;
use timely::dataflow::operators::vec::Input;

const GROUPS: u16 = 4;
const KEYS: usize = 3_000;
const NAP: Duration = Duration::from_micros(100);
/// Schedules of the sender in which nothing more is sent.
const STILL: usize = 300;

#[test]
fn pieces_of_a_group_wait_for_those_before_them() {
    let store = StoreConfig {
        memory: ByteSize(32 * MIB),
        key_groups: GROUPS,
        layout: Heap::new().into(),
        ..StoreConfig::default()
    };
    let gate = Arc::new(Barrier::new(2));
    let begun = Arc::new(AtomicBool::new(false));
    let ends = execute(timely::Config::process(2), NodeConfig::from(store), {
        move |worker, state| {
            let probe = ProbeHandle::new();
            let (mut rows, mut control) = worker.dataflow::<i64, _, _>(|scope| {
                let (rows, stream) = scope.new_input::<u64>();
                let (control, moves) = scope.new_input::<MoveGroup>();
                stream
                    .key_by(state, |row: &u64| *row)
                    .migratable(moves)
                    .stateful(
                        Spec::new("kept"),
                        |states| states.map::<u64, Vec<u8>>("rows"),
                        |map, rows, _: &mut Context<'_, i64, u64, u64>| {
                            while let Some((key, _)) = rows.last() {
                                map.put(*key, vec![*key as u8; 1000])?;
                                rows.pop();
                            }
                            Ok(())
                        },
                        |_, _, _| Ok(()),
                    )?
                    .probe_with(&probe);
                Result::Ok((rows, control))
            })?;
            rows.advance_to(1);
            if worker.index() == 0 {
                let first = |key: &u64| KeyGroup::of(key.key_hash(), GROUPS).0 < GROUPS / 2;
                (0..).filter(first).take(KEYS).for_each(|key| rows.send(key));
                control.advance_to(10);
                (0..GROUPS / 2)
                    .for_each(|group| control.send(MoveGroup { group: KeyGroup(group), to: 1 }));
            }
            rows.close();
            control.close();
            // No router sends before each of them has heard the moves, that of the other worker too.
            let sent = || state.moved_bytes_max().iter().map(|(_, bytes)| *bytes).sum::<u64>();
            state.run_until(worker, || sent() > 0 || begun.load(Ordering::Relaxed))?;
            begun.store(true, Ordering::Relaxed);
            let mut most = 0;
            if worker.index() == 0 {
                let mut still = 0;
                while still < STILL {
                    state.step_or_nap(worker, NAP)?;
                    still = if sent() > most { 0 } else { still + 1 };
                    most = sent();
                }
            }
            // The other worker has taken nothing since it knew that something was sent.
            gate.wait();
            while worker.has_dataflows() {
                state.step_or_nap(worker, NAP)?;
            }
            let keys: u64 = state.store().stats()?.states.iter().map(|s| s.table.live_keys).sum();
            Ok((most, sent(), keys))
        }
    })
    .unwrap();
    let [(most, sent, left), (.., keys)] = ends[..] else { panic!("two workers") };
    assert_eq!((left, keys), (0, KEYS as u64));
    assert!((128 * KIB..=256 * KIB).contains(&most), "{most} bytes were on their way");
    assert!((most..=256 * KIB).contains(&sent), "{sent} bytes were on their way");
}
