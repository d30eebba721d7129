//! Every peer that is installed gives the model's answers on every operator, also when windows are
//! purged; one that is missing says what to do.

use std::time::Duration;

use alluvium_gadget::cell::{Outcome, Plan, Work, run};
use alluvium_gadget::engine::{Kind, Open};
use alluvium_gadget::generator::Generator;
use alluvium_gadget::hotstorage::{ByKey, Job, Question, check_answers, play};
use alluvium_gadget::operator::{Name, Options};
use alluvium_peers::kinds;

fn plan(memory_bytes: u64) -> Plan {
    let (bound_bytes, most, rate) = (None, Duration::from_secs(60), None);
    Plan { memory_bytes, bound_bytes, most, rate, sample: 0 }
}

#[test]
fn installed_peers_agree_on_every_operator() {
    let dir = tempfile::tempdir().unwrap();
    let usual = Options { gap: 4, lower: -3, upper: 5, ..Options::default() };
    for options in [usual, Options { purge: true, slide: 3, ..usual }] {
        for operator in Name::ALL {
            let right_percent = if operator.joins() { 40.0 } else { 0.0 };
            let generator =
                Generator { events: 2000, keys: 50, right_percent, ..Generator::default() };
            let work = Work::new(operator, options, generator.stream().unwrap()).unwrap();
            for kind in kinds().iter().filter(|kind| kind.open.is_ok()) {
                if (kind.refuses)(operator, &options).is_some() {
                    continue;
                }
                let directory = tempfile::tempdir_in(dir.path()).unwrap();
                let done = run(&work, kind, &plan(256 << 20), directory.path());
                let (outcome, _) = done.unwrap_or_else(|error| {
                    panic!("{operator} on {}: {error}", kind.name);
                });
                assert_eq!(outcome, Outcome::Whole, "{operator} on {}", kind.name);
            }
        }
    }
}

#[test]
fn what_is_missing_or_has_too_little_memory_says_so() {
    let why = "not installed; apt install it";
    let options = Options::default();
    let missing = Kind::missing("gone", why);
    let error = missing.check(Name::Aggregation, &options, 1 << 30).unwrap_err().to_string();
    assert_eq!(error, format!("gone: {why}"));
    for kind in kinds().iter().filter(|kind| kind.open.is_ok() && kind.memory_min > 0) {
        let error = kind.check(Name::Aggregation, &options, kind.memory_min - 1).unwrap_err();
        assert!(error.to_string().contains("is the least"), "{error}");
    }
}

/// COUNT and RANK, where RocksDB's counters are merged by an operator of their own.
#[test]
fn installed_peers_count_and_rank_windows() {
    for question in [Question::Count, Question::Rank] {
        let (length, slide) = (30_000_000, 10_000_000);
        let job = Job { question, length, slide, rate: 20_000, records: 2_000, seed: 1 };
        job.check().unwrap();
        for kind in kinds().iter().filter(|kind| kind.open.is_ok()) {
            let (operator, options) = (job.operator(), Options::default());
            if (kind.refuses)(operator, &options).is_some() {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            let (directory, memory_bytes) = (dir.path().to_owned(), 256 << 20);
            let open = Open { directory, memory_bytes, operator, options, events: 1_000 };
            let adds = kind.adds.filter(|_| question == Question::Count);
            let engine = adds.map_or_else(|| kind.open(&open), |opens| opens(&open)).unwrap();
            let mut windows = ByKey::new(job, engine, adds.is_some());
            let played = play(&job, &mut windows, Duration::from_secs(60)).unwrap();
            assert!(!played.is_cut, "{question} on {}", kind.name);
            check_answers(&job, &played).unwrap_or_else(|error| {
                panic!("{question} on {}: {error}", kind.name);
            });
        }
    }
}
