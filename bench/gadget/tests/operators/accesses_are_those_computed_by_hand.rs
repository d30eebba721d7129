//! The accesses of small streams, computed by hand from the definitions of the operators.

use alluvium_gadget::access::{Kind, Role, Trace};
use alluvium_gadget::event::{Batch, END, Event, Side, Stream};
use alluvium_gadget::generator::Generator;
use alluvium_gadget::operator::{Name, Options, trace_of};

use super::every_engine_gives_the_models_answers::case;

/// Events as key and time, each after the watermark of its time, or all after none.
fn stream(events: &[(Side, u64, i64)], is_timed: bool) -> Stream {
    let event = |&(side, key, time): &(Side, u64, i64)| {
        // Below 0: finishes its key.
        let (time, finishes) = (time.abs(), time < 0);
        Event { key, time, amount: 1, bytes: 16, side, finishes }
    };
    let events: Vec<_> = events.iter().map(event).collect();
    let mut batches = Vec::new();
    if is_timed {
        let before = |(at, event): (usize, &Event)| Batch { end: at, watermark: event.time };
        batches.extend(events.iter().enumerate().map(before));
    }
    batches.push(Batch { end: events.len(), watermark: END });
    Stream { events, batches }
}

fn words(trace: &Trace) -> Vec<String> {
    let word = |access: &alluvium_gadget::access::Access| {
        let key = String::from_utf8(trace.keys.get(access.key).to_vec()).unwrap();
        // State keys are numbers with zeros before them.
        let key = key.strip_prefix("000000000").map(str::to_owned).unwrap_or(key);
        format!("{} {key}", access.kind)
    };
    trace.accesses.iter().map(word).collect()
}

fn check(name: Name, options: Options, stream: &Stream, wanted: &str) {
    let mut operator = name.operator(&options);
    let trace = trace_of(&mut *operator, stream);
    operator.grammar().check(&trace).unwrap();
    let wanted: Vec<_> = wanted.split(',').map(|word| word.trim().to_owned()).collect();
    assert_eq!(words(&trace), wanted, "{name}");
}

fn options() -> Options {
    Options { length: 5, slide: 2, gap: 3, lower: -1, upper: 2, allowed: 0, purge: false }
}

use Side::{Left, Right};

#[test]
fn aggregation_reads_and_writes_each_keys_value() {
    let stream = stream(&[(Left, 7, 0), (Left, 8, 0), (Left, 7, 1)], true);
    let wanted = "get 1, put 1, get 2, put 2, get 1, put 1";
    check(Name::Aggregation, options(), &stream, wanted);
}

/// Key 7 has two events in [0, 5), key 8 one in [5, 10): its window fires at the end.
#[test]
fn tumbling_windows_fire_when_the_watermark_is_at_their_end() {
    let stream = stream(&[(Left, 7, 0), (Left, 7, 4), (Left, 8, 5)], true);
    let wanted = "get 1, put 1, get 1, put 1, get 1, delete 1, get 2, put 2, get 2, delete 2";
    check(Name::TumblingIncremental, options(), &stream, wanted);
    let wanted = "merge 1, merge 1, get 1, delete 1, merge 2, get 2, delete 2";
    check(Name::TumblingHolistic, options(), &stream, wanted);
}

/// With the watermark at 5 the event of time 4 is late; with an allowed lateness of 1 it is not.
#[test]
fn late_events_are_taken_while_their_window_waits() {
    let stream = stream(&[(Left, 7, 0), (Left, 7, 5), (Left, 7, 4)], false);
    let mut late = stream.clone();
    late.batches.insert(0, Batch { end: 2, watermark: 5 });
    let wanted = "merge 1, merge 2, get 1, delete 1, get 2, delete 2";
    check(Name::TumblingHolistic, options(), &late, wanted);
    let wanted = "merge 1, merge 2, merge 1, get 1, delete 1, get 2, delete 2";
    let allowed = Options { allowed: 1, ..options() };
    check(Name::TumblingHolistic, allowed, &late, wanted);
}

/// Windows of 4 every 2. Time 3 is in [0, 4) and [2, 6), time 5 in [2, 6) and [4, 8). The watermark
/// is at 5 when the second event comes: [0, 4) is over.
#[test]
fn sliding_windows_take_an_event_each() {
    let stream = stream(&[(Left, 7, 3), (Left, 7, 5)], true);
    let options = Options { length: 4, ..options() };
    let wanted = "get 1, put 1, get 2, put 2, get 1, delete 1, get 2, put 2, get 3, put 3, \
                  get 2, delete 2, get 3, delete 3";
    check(Name::SlidingIncremental, options, &stream, wanted);
    let wanted =
        "merge 1, merge 2, get 1, delete 1, merge 2, merge 3, get 2, delete 2, get 3, delete 3";
    check(Name::SlidingHolistic, options, &stream, wanted);
}

/// A gap of 3. Times 0 and 7 make [0, 3] and [7, 10]. Time 4 makes the second [4, 10]; time 3 joins
/// both, and the first takes the second in; time 5 changes no end.
#[test]
fn sessions_are_joined_and_their_list_is_written_when_an_end_changes() {
    let events = [(Left, 7, 0), (Left, 7, 7), (Left, 7, 4), (Left, 7, 3), (Left, 7, 5)];
    let stream = stream(&events, false);
    let wanted = "get metadata_7, get 1, put 1, merge metadata_7, \
                  get metadata_7, get 2, put 2, merge metadata_7, \
                  get metadata_7, get 2, put 2, delete metadata_7, merge metadata_7, merge metadata_7, \
                  get metadata_7, get 1, put 1, get 2, merge 1, delete 2, delete metadata_7, merge metadata_7, \
                  get metadata_7, get 1, put 1, \
                  get 1, delete 1, delete metadata_7";
    check(Name::SessionIncremental, options(), &stream, wanted);
    let wanted = "get metadata_7, merge 1, merge metadata_7, \
                  get metadata_7, merge 2, merge metadata_7, \
                  get metadata_7, merge 2, delete metadata_7, merge metadata_7, merge metadata_7, \
                  get metadata_7, merge 1, get 2, merge 1, delete 2, delete metadata_7, merge metadata_7, \
                  get metadata_7, merge 1, \
                  get 1, delete 1, delete metadata_7";
    check(Name::SessionHolistic, options(), &stream, wanted);
}

/// [0, 3] is over when the watermark has passed 3, not at 3; what is left of the list is written.
#[test]
fn a_session_is_over_after_its_end() {
    let mut stream = stream(&[(Left, 7, 0), (Left, 7, 9)], false);
    stream.batches.splice(0..0, [3, 4].map(|watermark| Batch { end: 2, watermark }));
    let wanted = "get metadata_7, merge 1, merge metadata_7, get metadata_7, merge 2, merge metadata_7, \
                  get 1, delete 1, delete metadata_7, merge metadata_7, \
                  get 2, delete 2, delete metadata_7";
    check(Name::SessionHolistic, options(), &stream, wanted);
    stream.batches.remove(1);
    // At 3 nothing was over: at the end both are, the list is written after each.
    check(Name::SessionHolistic, options(), &stream, wanted);
}

/// Both streams share a window's key. Windows of 4 every 2: times 2 and 3 are in [0, 4) and [2, 6).
#[test]
fn window_joins_keep_both_streams_under_one_key() {
    let stream = stream(&[(Right, 7, 2), (Left, 7, 3)], true);
    check(Name::TumblingJoin, options(), &stream, "merge 1, merge 1, get 1, delete 1");
    let options = Options { length: 4, ..options() };
    let wanted = "merge 1, merge 2, merge 1, merge 2, get 1, delete 1, get 2, delete 2";
    check(Name::SlidingJoin, options, &stream, wanted);
}

/// From 1 before to 2 after. The left event at 5 looks at 4 to 7 and finds nothing; the right one at
/// 6 looks at 4 to 7 and finds it. Left 5 is over at 8, right 6 at 8; the late event is dropped.
#[test]
fn the_interval_join_looks_around_each_event_and_cleans_up() {
    let events = [(Left, 1, 5), (Right, 1, 6), (Left, 2, 20), (Left, 2, 19)];
    let mut stream = stream(&events, true);
    stream.batches[3].watermark = 20;
    let (left, right) = ("L0000000001000000000", "R0000000001000000000");
    let wanted = format!(
        "get {left}5, put {left}5, range {right}4, \
         get {right}6, put {right}6, range {left}5, \
         delete {left}5, delete {right}6, \
         get L00000000020000000020, put L00000000020000000020, range R00000000020000000019, \
         delete L00000000020000000020"
    );
    check(Name::IntervalJoin, options(), &stream, &wanted);
}

/// A right event waits for the left one; the next finds it; the last left event finishes the key.
#[test]
fn the_continuous_join_keeps_what_waits() {
    let events = [(Right, 7, 0), (Left, 7, 1), (Right, 7, 2), (Left, 7, -3), (Right, 7, 4)];
    let stream = stream(&events, true);
    let (left, right) = ("L0000000007", "R0000000007");
    let wanted = format!(
        "get {left}, merge {right}, get {right}, delete {right}, put {left}, get {left}, \
         delete {left}, delete {right}, get {left}, merge {right}"
    );
    check(Name::ContinuousJoin, options(), &stream, &wanted);
}

/// The end of a window comes first in the key, so that those that are over at once are together.
#[test]
fn windows_that_are_over_are_purged_by_their_end() {
    let stream = stream(&[(Left, 7, 0), (Left, 8, 1), (Left, 7, 5)], true);
    let (end, next) = ("0000000005", "0000000010");
    let wanted = format!(
        "merge {end}0000000007, merge {end}0000000008, purge {end}0000000007, \
         merge {next}0000000007, purge {next}0000000007"
    );
    let options = Options { purge: true, ..options() };
    let mut operator = Name::TumblingHolistic.operator(&options);
    let trace = trace_of(&mut *operator, &stream);
    let found: Vec<_> = trace
        .accesses
        .iter()
        .map(|access| {
            let key = std::str::from_utf8(trace.keys.get(access.key)).unwrap();
            format!("{} {key}", access.kind)
        })
        .collect();
    assert_eq!(found.join(", "), wanted.split_whitespace().collect::<Vec<_>>().join(" "));
    // Three merges, two gets and deletes for the first purge, one of each for the second.
    assert_eq!(trace.count(), 3 + 4 + 2);
}

/// What goes in comes out: each event is in as many windows as there are starts in a length, each
/// window fires once, and no more is deleted than was made.
#[test]
fn accesses_add_up() {
    let generator = Generator { events: 5000, ..Generator::default() };
    let options = Options { gap: 4, lower: -3, upper: 5, slide: 1, ..options() };
    for name in Name::ALL {
        let case = case(name, options, &generator);
        let count = |kind, role: Option<Role>| {
            let is_it = |access: &&alluvium_gadget::access::Access| {
                access.kind == kind && role.is_none_or(|role| access.role == role)
            };
            case.trace.accesses.iter().filter(is_it).count()
        };
        let [_, puts, merges, deletes, ..] = case.trace.counts();
        assert!(deletes <= puts + merges || name == Name::ContinuousJoin, "{name}");
        let each = if name.slides() { 5 } else { 1 };
        if name.is_windowed() {
            let written =
                count(Kind::Put, Some(Role::Fold)) + count(Kind::Merge, Some(Role::Element));
            assert_eq!(written, 5000 * each, "{name}");
            assert_eq!(count(Kind::Get, Some(Role::Answer)), case.trace.windows.len(), "{name}");
            assert_eq!(deletes as usize, case.trace.windows.len(), "{name}");
            assert_eq!(case.trace.keys.len(), case.trace.windows.len(), "{name}");
        }
        if matches!(name, Name::SessionIncremental | Name::SessionHolistic) {
            let absorbed = count(Kind::Get, Some(Role::Absorb));
            let made = case.trace.keys.len() - 1000.min(case.trace.keys.len());
            assert!(made <= case.trace.windows.len() + absorbed, "{name}");
        }
    }
}
