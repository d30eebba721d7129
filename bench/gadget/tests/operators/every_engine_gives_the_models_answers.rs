//! Every engine, and ours natively, gives the answers that the model recomputes, for every
//! operator, in order and out of order; a wrong engine is caught.

use alluvium_gadget::access::Trace;
use alluvium_gadget::engine::faulty::{Fault, Faulty};
use alluvium_gadget::engine::{BTree, Open, built_in};
use alluvium_gadget::event::{Stream, Watermarks};
use alluvium_gadget::generator::Generator;
use alluvium_gadget::operator::{Name, Options, trace_of};
use alluvium_gadget::replay::{Expected, Until, expect, replay, sweep};
use alluvium_gadget::{Error, model, native};

/// An operator's run over a small stream.
pub struct Case {
    pub name: Name,
    pub options: Options,
    pub stream: Stream,
    pub trace: Trace,
    pub expected: Expected,
}

pub fn case(name: Name, options: Options, generator: &Generator) -> Case {
    let right_percent = if name.joins() { 40.0 } else { 0.0 };
    let stream = Generator { right_percent, ..generator.clone() }.stream().unwrap();
    let mut operator = name.operator(&options);
    let trace = trace_of(&mut *operator, &stream);
    operator.grammar().check(&trace).unwrap();
    let expected = expect(&trace, &stream, operator.shape()).unwrap();
    Case { name, options, stream, trace, expected }
}

pub fn generators() -> Vec<Generator> {
    let few = Generator { events: 3000, keys: 20, ..Generator::default() };
    vec![
        few.clone(),
        Generator {
            watermarks: Watermarks::Events(100),
            delayed_percent: 20.0,
            delay: 9,
            ..few.clone()
        },
        Generator {
            watermarks: Watermarks::Every(3),
            delayed_percent: 50.0,
            delay: 40,
            ..few.clone()
        },
        Generator { keys: 1500, delayed_percent: 5.0, delay: 200, generators: 3, ..few },
    ]
}

fn options() -> Vec<Options> {
    let usual = Options { gap: 4, lower: -3, upper: 5, ..Options::default() };
    vec![
        usual,
        Options { allowed: 6, length: 7, slide: 3, gap: 1, lower: 1, upper: 20, ..usual },
        Options { purge: true, slide: 5, gap: 11, lower: -9, upper: -2, ..usual },
    ]
}

fn cases() -> impl Iterator<Item = Case> {
    Name::ALL.into_iter().flat_map(|name| {
        generators().into_iter().flat_map(move |generator| {
            options().into_iter().map(move |options| case(name, options, &generator))
        })
    })
}

/// Each operator with each stream, and some options.
fn some_cases() -> impl Iterator<Item = Case> {
    Name::ALL.into_iter().enumerate().flat_map(|(number, name)| {
        generators().into_iter().enumerate().map(move |(at, generator)| {
            case(name, options()[(number + at) % 3], &Generator { events: 1000, ..generator })
        })
    })
}

#[test]
fn the_twin_gives_the_models_answers() {
    let mut answers = 0;
    for case in cases() {
        let Case { name, options, stream, expected, .. } = &case;
        let model = model::answers(*name, options, stream);
        assert_eq!(expected.answers, model, "{name} {options:?}");
        answers += model.count;
    }
    assert!(answers > 10_000, "{answers}");
}

#[test]
fn every_engine_returns_what_the_twin_returns() {
    let dir = tempfile::tempdir().unwrap();
    for (number, case) in some_cases().enumerate() {
        let Case { name: operator, options, stream, trace, expected } = &case;
        for kind in built_in() {
            let directory = dir.path().join(format!("{number}-{}", kind.name));
            std::fs::create_dir(&directory).unwrap();
            let (operator, options) = (*operator, *options);
            let memory_bytes = 8 << 20;
            let open = Open { directory, memory_bytes, operator, options, events: 3000 };
            if (kind.refuses)(operator, &options).is_some() {
                continue;
            }
            let mut engine = kind.open(&open).unwrap();
            let (shape, watch) = (operator.shape(), &mut Until::never());
            let done = replay(trace, stream, shape, expected, &mut *engine, kind.updates, watch);
            let done = done.unwrap_or_else(|error| panic!("{operator} {}: {error}", kind.name));
            assert_eq!(done.answers, expected.answers, "{operator} {}", kind.name);
            assert_eq!(done.accesses, trace.count(), "{operator} {}", kind.name);
            assert!(done.is_complete);
            sweep(trace, expected, &mut *engine).unwrap();
        }
    }
}

#[test]
fn ours_gives_the_models_answers_natively() {
    let dir = tempfile::tempdir().unwrap();
    for (number, case) in some_cases().enumerate() {
        let Case { name: operator, options, stream, expected, .. } = &case;
        let (operator, options) = (*operator, *options);
        for kind in native::KINDS {
            let directory = dir.path().join(format!("{number}-{}", kind.name));
            let open = Open { directory, memory_bytes: 16 << 20, operator, options, events: 3000 };
            let (mut native, _store) = kind.open(&open).unwrap();
            let mut sent = i64::MIN;
            for (from, events, watermark) in stream.batches() {
                native.push(from as u32, events, sent).unwrap();
                sent = sent.max(watermark);
                native.advance(sent).unwrap();
            }
            assert_eq!(native.answers(), expected.answers, "{operator} {} {options:?}", kind.name);
        }
    }
}

fn uses_keys_again(name: Name) -> bool {
    matches!(name, Name::SessionIncremental | Name::SessionHolistic | Name::ContinuousJoin)
}

/// Whatever single read is stale, or whatever single delete is dropped, the run says so.
#[test]
fn a_wrong_engine_is_caught_in_each_operator() {
    let generator = Generator { events: 400, keys: 8, ..Generator::default() };
    for name in Name::ALL {
        let options = Options { gap: 4, ..Options::default() };
        let Case { stream, trace, expected, .. } = case(name, options, &generator);
        // Whether the fault happened, in a run that must fail if it did.
        let mut unseen = 0;
        let mut run = |fault| {
            let mut engine = Faulty::new(BTree::default(), fault);
            let watch = &mut Until::never();
            let done = replay(&trace, &stream, name.shape(), &expected, &mut engine, false, watch)
                .and_then(|_| sweep(&trace, &expected, &mut engine));
            match (engine.has_happened(), done) {
                (true, Err(Error::Wrong(message))) => {
                    assert!(message.contains("key") || message.contains("access"))
                }
                (false, Ok(())) => {}
                // Where keys are used again, one may be written or deleted before it is read.
                (true, Ok(())) if uses_keys_again(name) => {
                    assert!(matches!(fault, Fault::DropsDelete(_)), "{name} {fault:?}");
                    unseen += 1;
                }
                (happened, done) => panic!("{name} {fault:?} happened: {happened}, but {done:?}"),
            }
            engine.has_happened()
        };
        let stale = (1..).step_by(7).take_while(|number| run(Fault::StaleValue(*number))).count();
        let dropped =
            (1..).step_by(5).take_while(|number| run(Fault::DropsDelete(*number))).count();
        assert!(unseen == 0 || unseen < dropped, "{name}: {unseen} of {dropped} were not seen");
        assert!(
            stale > 5 && (dropped > 3 || name == Name::Aggregation),
            "{name} {stale} {dropped}"
        );
    }
}
