//! A trace that is recorded, written, read back and replayed on any engine returns what it returned
//! when it was recorded; the same seed gives the same file; a wrong engine is noticed.

use std::path::Path;
use std::time::{Duration, Instant};

use alluvium_gadget::engine::faulty::{Fault, Faulty};
use alluvium_gadget::engine::{BTree, Engine, Kind, Open, built_in};
use alluvium_gadget::event::Stream;
use alluvium_gadget::generator::Generator;
use alluvium_gadget::measure::{Stopwatch, Timing};
use alluvium_gadget::operator::{Name, Options};
use alluvium_gadget::trace::{
    Expected, Op, Played, Player, Reading, Recorded, Recording, ReplayPace, Writer, expect, record,
    stand_in,
};
use alluvium_gadget::{Error, Result};

const MEMORY: u64 = 64 << 20;

fn stream(name: Name, seed: u64) -> Stream {
    let right_percent = if name.joins() { 40.0 } else { 0.0 };
    let generator = Generator {
        events: 3000,
        keys: 60,
        delayed_percent: 10.0,
        size: "uniform:16:60".parse().unwrap(),
        right_percent,
        seed,
        ..Generator::default()
    };
    generator.stream().unwrap()
}

fn options() -> Options {
    Options { length: 5, slide: 2, gap: 3, lower: -4, upper: 6, ..Options::default() }
}

/// Records on `engine` into a file.
fn recorded(name: Name, seed: u64, engine: &mut dyn Engine, path: &Path) -> Recorded {
    let mut writer = Writer::new(path, false).unwrap();
    let mut machine = name.operator(&options());
    let stream = stream(name, seed);
    let done = record(&mut *machine, &stream, engine, &mut |line| writer.line(line)).unwrap();
    writer.finish().unwrap();
    done
}

fn watch() -> Stopwatch {
    let most = Duration::from_secs(60);
    Stopwatch::start(Timing { most, sample: 16, rate: None, warm_up: 0 })
}

fn play(recording: &Recording, expected: &Expected, engine: &mut dyn Engine) -> Result<Played> {
    Player::play(recording, expected, engine, None, &mut watch())
}

/// Opens an engine for a recording, if it runs it.
fn opened(kind: &Kind, recording: &Recording, directory: &Path) -> Option<Box<dyn Engine>> {
    let (operator, options) = stand_in(recording);
    let directory = directory.join(kind.name);
    std::fs::create_dir_all(&directory).unwrap();
    let open = Open { directory, memory_bytes: MEMORY, operator, options, events: 3000 };
    match kind.open(&open) {
        Ok(engine) => Some(engine),
        Err(Error::Usage(_)) => None,
        Err(error) => panic!("{}: {error}", kind.name),
    }
}

#[test]
fn every_engine_returns_what_was_recorded() {
    for name in Name::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace.zst");
        let done = recorded(name, 7, &mut BTree::default(), &path);
        let recording = Recording::read(&path, &Reading::default()).unwrap();
        assert_eq!(recording.entries().len() as u64, done.accesses, "{name}");
        assert_eq!(recording.keys().len(), done.keys, "{name}");
        let expected = expect(&recording).unwrap();
        assert_eq!(expected.digest, done.digest, "{name}");
        let mut engines = 0;
        for kind in built_in() {
            let Some(mut engine) = opened(&kind, &recording, dir.path()) else { continue };
            let played = play(&recording, &expected, &mut *engine).unwrap();
            assert!(played.is_complete);
            assert_eq!(played.digest, done.digest, "{name} on {}", kind.name);
            engines += 1;
        }
        assert!(engines >= 4 && (engines == 5) == name.only_lists(), "{name}: {engines} engines");
    }
}

#[test]
fn one_seed_gives_one_file_whatever_engine_records() {
    for name in [Name::SessionIncremental, Name::IntervalJoin] {
        let dir = tempfile::tempdir().unwrap();
        let file = |number: usize, seed: u64, engine: &mut dyn Engine| {
            let path = dir.path().join(number.to_string());
            let done = recorded(name, seed, engine, &path);
            (std::fs::read(path).unwrap(), done.digest)
        };
        let first = file(0, 7, &mut BTree::default());
        let recording = Recording::read(&dir.path().join("0"), &Reading::default()).unwrap();
        let kinds = built_in();
        let ours = kinds.iter().find(|kind| kind.name == "ours-hybrid-log").unwrap();
        let mut ours = opened(ours, &recording, dir.path()).unwrap();
        assert!(file(1, 7, &mut *ours) == first, "{name}");
        assert!(file(2, 8, &mut BTree::default()).0 != first.0, "{name}");
    }
}

/// The accesses of one event and one window, computed by hand.
#[test]
fn lines_are_those_computed_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let generator = Generator {
        events: 2,
        keys: 1,
        gap: "constant:3".parse().unwrap(),
        ..Generator::default()
    };
    let mut writer = Writer::new(&path, false).unwrap();
    let mut machine = Name::TumblingIncremental.operator(&options());
    let stream = generator.stream().unwrap();
    record(&mut *machine, &stream, &mut BTree::default(), &mut |line| writer.line(line)).unwrap();
    writer.finish().unwrap();
    // Events at 3 and 6, windows of 5; watermark 6 comes before the second event.
    let wanted = "3 get 0000000001 0\n3 put 0000000001 16\n\
                  6 get 0000000001 0\n6 delete 0000000001 0\n\
                  6 get 0000000002 0\n6 put 0000000002 16\n\
                  6 get 0000000002 0\n6 delete 0000000002 0\n";
    let found = std::fs::read_to_string(path).unwrap();
    assert_eq!(found, wanted);
}

#[test]
fn a_wrong_engine_is_noticed_in_each_operator() {
    for name in Name::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        recorded(name, 7, &mut BTree::default(), &path);
        let recording = Recording::read(&path, &Reading::default()).unwrap();
        let expected = expect(&recording).unwrap();
        let run = |fault| {
            let mut engine = Faulty::new(BTree::default(), fault);
            let outcome = play(&recording, &expected, &mut engine);
            engine.has_happened().then_some(matches!(outcome, Err(Error::Wrong(_))))
        };
        for number in [1, 20, 200] {
            assert_eq!(run(Fault::StaleValue(number)), Some(true), "{name} {number}");
        }
        let dropped: Vec<bool> =
            (1..100).step_by(7).map_while(|number| run(Fault::DropsDelete(number))).collect();
        // Where keys are used again, one may be written or deleted before it is read.
        use Name::*;
        let again = matches!(name, SessionIncremental | SessionHolistic | ContinuousJoin);
        let seen = dropped.iter().filter(|seen| **seen).count();
        assert!(seen == dropped.len() || (again && seen > 0), "{name}: {dropped:?}");
        assert!(dropped.len() > 3 || name == Aggregation, "{name}: {dropped:?}");
    }
}

#[test]
fn a_paced_replay_takes_as_long_as_its_times_say() {
    let mut recording = Recording::default();
    for time in 0..20 {
        let line = alluvium_gadget::trace::Line {
            time: Some(time),
            op: Op::Put,
            key: b"a",
            bytes: Some(8),
        };
        recording.push(line, 0);
    }
    let expected = expect(&recording).unwrap();
    let (began, mut watch) = (Instant::now(), watch());
    let pace = Some(ReplayPace { unit_s: 0.005 });
    let played =
        Player::play(&recording, &expected, &mut BTree::default(), pace, &mut watch).unwrap();
    assert!(played.is_complete && began.elapsed() >= Duration::from_millis(95));
    assert_eq!(watch.figures()["due"].count, 20);
}
