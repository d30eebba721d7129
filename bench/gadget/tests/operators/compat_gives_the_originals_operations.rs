//! With `--gadget-compat` operators make the original's operations, mistakes included: small
//! streams by hand, and counts and hashes of a larger one, which must not change unseen.

use alluvium_gadget::compat::{Operations, run};
use alluvium_gadget::event::Side;
use alluvium_gadget::generator::Generator;
use alluvium_gadget::operator::{Name, Options};
use alluvium_gadget::rows::{Names, Row};

fn rows(events: &[(u64, i64)]) -> Vec<Row> {
    events.iter().map(|&(key, time)| Row { key, time, finishes: false }).collect()
}

fn words(name: Name, options: &Options, left: &[Row], right: &[Row]) -> (String, Operations) {
    let mut words = Vec::new();
    let operations = run(name, options, left, right, &Names::default(), &mut |kind, key| {
        words.push(format!("{kind} {}", key.trim_start_matches('0')));
    });
    (words.join(", "), operations)
}

fn options() -> Options {
    Options { length: 5, slide: 2, gap: 3, lower: -1, upper: 2, ..Options::default() }
}

/// The window of time 4 is due with the first watermark, 5, and never fires. That of time 6 fires
/// at 10; there is no last watermark, and that of time 10 stays open.
#[test]
fn windows_due_in_the_first_pane_never_fire() {
    let stream = rows(&[(1, 4), (2, 6), (3, 10)]);
    let (found, _) = words(Name::TumblingHolistic, &options(), &stream, &[]);
    assert_eq!(found, "merge 1, merge 2, get 2, delete 2, merge 3");
}

/// The right stream begins 6 later and goes by the left stream's watermark: its event of time 6 is
/// late for [5, 10) when the left one is at 10 and the window was never made. The key is closed.
#[test]
fn a_late_event_closes_its_key_for_good() {
    let left = rows(&[(1, 1), (1, 11), (1, 21)]);
    let (found, operations) = words(Name::TumblingJoin, &options(), &left, &[]);
    // [0, 5) is not due in the first pane, whose watermark is 2.
    assert_eq!(found, "merge 1, get 1, delete 1, merge 2, get 2, delete 2, merge 3");
    assert_eq!(operations.silent_events, 0);
    // Out of order: time 3 after the window of time 7 was made and has fired.
    let left = rows(&[(1, 1), (1, 7), (2, 12), (1, 3), (1, 14), (1, 15)]);
    let (found, operations) = words(Name::TumblingHolistic, &options(), &left, &[]);
    let wanted = "merge 1, get 1, delete 1, merge 2, get 2, delete 2, merge 3, get 3, delete 3";
    assert_eq!((found.as_str(), operations.silent_events), (wanted, 3));
}

/// Sessions of keys 1 and 2 end at 3. That of key 1 grows to 5 and its entry at 3 stays: it is
/// closed with key 2's, and once more when it is over.
#[test]
fn sessions_that_end_together_are_closed_twice() {
    let stream = rows(&[(1, 0), (2, 0), (1, 2), (3, 20), (3, 21)]);
    let (found, operations) = words(Name::SessionHolistic, &options(), &stream, &[]);
    let wanted = "get metadata_1, merge 1, merge metadata_1, \
                  get metadata_2, merge 2, merge metadata_2, \
                  get metadata_1, merge 1, delete metadata_1, merge metadata_1, \
                  get 1, delete 1, delete metadata_1, get 2, delete 2, delete metadata_2, \
                  get 1, delete 1, delete metadata_1, \
                  get metadata_3, merge 3, merge metadata_3, \
                  get metadata_3, merge 3, delete metadata_3, merge metadata_3";
    assert_eq!((found.as_str(), operations.stale_sessions), (wanted, 1));
}

/// Left at 5 schedules 7: only an event of the key in the pane before 7 deletes, something else,
/// and does not read. The right stream steps once for each left unit, the left one for every two.
#[test]
fn the_interval_join_hardly_ever_deletes() {
    let left = rows(&[(1, 5), (1, 6)]);
    let (found, _) = words(Name::IntervalJoin, &options(), &left, &rows(&[(1, 5), (1, 6)]));
    let wanted = "get 15, put 15, seek 1, get 15, put 15, seek 1, next 1, \
                  delete 14, put 16, seek 1, next 1, delete 14, get 16, put 16, seek 1, next 1, next 1";
    assert_eq!(found, wanted);
}

#[test]
fn the_continuous_join_has_one_key_for_both_streams() {
    let mut left = rows(&[(1, 0), (1, 2)]);
    left[1].finishes = true;
    let (found, _) =
        words(Name::ContinuousJoin, &options(), &left, &rows(&[(1, 0), (1, 1), (1, 3)]));
    let wanted = "get 1, delete 1, put 1, get 1, get 1, delete 1, delete 1, get 1, merge 1";
    assert_eq!(found, wanted);
}

#[test]
fn counts_and_hashes_are_as_kept() {
    let generator =
        Generator { events: 20_000, keys: 300, right_percent: 40.0, ..Generator::default() };
    let events = generator.stream().unwrap().events;
    let side = |side| {
        let of_side = events.iter().filter(move |event| event.side == side);
        of_side
            .map(|event| Row { key: event.key, time: event.time, finishes: event.finishes })
            .collect::<Vec<_>>()
    };
    let (left, right) = (side(Side::Left), side(Side::Right));
    let options = Options { gap: 12, ..options() };
    for (name, total, hash) in KEPT {
        let right: &[Row] = if name.joins() { &right } else { &[] };
        let found = run(name, &options, &left, right, &Names::default(), &mut |_, _| {});
        assert_eq!((found.total(), found.hash), (total, hash), "{name} {:#018x}", found.hash);
    }
}

const KEPT: [(Name, u64, u64); 11] = [
    (Name::Aggregation, 24000, 0x04d667b11bae9f7b),
    (Name::TumblingIncremental, 40716, 0x5c7a59a279a895fb),
    (Name::TumblingHolistic, 28716, 0x7a8e051cff84a90d),
    (Name::SlidingIncremental, 101992, 0xf00e63616c026ff1),
    (Name::SlidingHolistic, 71942, 0x58af0a892e9c2e8f),
    (Name::SessionIncremental, 93514, 0x6d4225b3608ef0a4),
    (Name::SessionHolistic, 81514, 0x1368d8bd76ce4843),
    (Name::TumblingJoin, 16679, 0x3721bbfd34f4cf52),
    (Name::SlidingJoin, 109512, 0x1a89341110a5f067),
    (Name::IntervalJoin, 1884119, 0xa67ed9d9556ea0e0),
    (Name::ContinuousJoin, 43625, 0x25d2f33ad2765cb3),
];
