//! Files that go, or become those of another directory, under an open store and between two runs.
//! Whatever is there: an open or a read names the file, or what is read is right, whole, of one
//! checkpoint. Nothing is removed that was not understood.
//!
//! What this catches: a segment of a copy of the directory that has the same id, state, keys and
//! lengths, and other values; a manifest that is lost, and its directory taken for an empty one; a
//! manifest of another store; a store that needs a name of a file that it has open.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::config::Helpers;
use alluvium::io::{CrashPolicy, Device, Faults, Simulated};
use alluvium::moving::Source;
use alluvium::time::nanos;
use alluvium::{
    Aggregated, AppendLog, Counting, Error, ErrorKind, Heap, HybridLog, KIB, List, MIB, Map,
    Result, Store, Time, Timers, WindowSegments, Windows,
};

const KEYS: u64 = 400;

/// States that are on storage, but for the first two.
struct States {
    store: Store,
    heap: Map<u64, u64>,
    timers: Timers<u64>,
    log: Map<u64, [u64; 12]>,
    list: List<u64, u64>,
    kept: List<u64, u64>,
    windows: Aggregated<u64, (), Counting>,
}

/// What they hold, but for the windows, of which each key has `round` events in each.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    round: u64,
    values: BTreeMap<u64, u64>,
    lists: BTreeMap<u64, Vec<u64>>,
}

fn open(device: &Simulated) -> Result<States> {
    let store = Store::in_memory()
        .memory(4 * MIB)
        .max_value(KIB)
        .helpers(Helpers::Inline)
        .device(Arc::new(device.clone()))
        .retain(2)
        .open()?;
    let log = HybridLog::new().page_records(8).queue_depth(4).segment(16 * KIB).memory(160 * KIB);
    let append = AppendLog::new().memory(300 * KIB);
    let segments = WindowSegments::new().memory(400 * KIB);
    Ok(States {
        heap: store.map("heap").layout(Heap::new().into()).open()?,
        timers: store.timers("timers")?,
        log: store.map("log").layout(log.into()).open()?,
        list: store.list("list").layout(append.into()).open()?,
        kept: store.list("kept").layout(Heap::new().into()).open()?,
        windows: {
            let builder = store.aggregated::<u64, (), Counting>("windows").layout(segments.into());
            builder.open(Windows::tumbling(nanos(10)), Counting)?
        },
        store,
    })
}

impl States {
    /// A round of changes, whose values are told apart by `branch`.
    fn change(&mut self, model: &mut Model, branch: u64) {
        model.round += 1;
        for key in 0..KEYS {
            let value = branch << 32 | model.round << 16 | key;
            self.heap.put(key, value).unwrap();
            self.log.put(key, [value; 12]).unwrap();
            self.timers.set(key, Time(value as i64)).unwrap();
            if let Some(old) = model.values.insert(key, value) {
                self.timers.cancel(key, Time(old as i64));
            }
            for n in 0..4 {
                let element = value << 2 | n;
                self.list.append(&key, element).unwrap();
                self.kept.append(&key, element).unwrap();
                model.lists.entry(key).or_default().push(element);
            }
            let mut events: Vec<_> =
                (0..3).map(|n| (key + KEYS * branch, Time(10 * n), ())).collect();
            self.windows
                .add_batch(Time::MIN, &mut events, &mut |_| {}, &mut |_, _, _, _| {})
                .unwrap();
        }
    }

    /// Reads all; what is read is the model's. Gives the errors.
    fn read(&mut self, model: &Model, when: &str) -> Vec<Error> {
        let mut errors = Vec::new();
        for (key, value) in &model.values {
            match self.heap.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(value), "{when}"),
                Err(error) => errors.push(error),
            }
            match self.log.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&[*value; 12]), "{when}"),
                Err(error) => errors.push(error),
            }
        }
        for (key, list) in &model.lists {
            for (name, found) in [("list", self.list.to_vec(key)), ("kept", self.kept.to_vec(key))]
            {
                match found {
                    Ok(found) => assert_eq!(found, *list, "{when}: {name}"),
                    Err(error) => errors.push(error),
                }
            }
        }
        let due: BTreeMap<_, _> =
            model.values.iter().map(|(key, at)| (Time(*at as i64), *key)).collect();
        let fired = std::iter::from_fn(|| self.timers.pop_first());
        let fired: BTreeMap<_, _> = fired.map(|(at, key, ())| (at, key)).collect();
        assert_eq!(fired, due, "{when}");
        let mut counts = BTreeMap::new();
        let fired = self.windows.advance(Time(20), usize::MAX, &mut |key, window, count, _| {
            assert_eq!(counts.insert((*key, window.end), count), None, "{when}");
        });
        match fired {
            Ok(_) => {
                let sum: u64 = counts.values().map(|count| *count as u64).sum();
                assert_eq!(sum, 2 * KEYS * model.round, "{when}");
            }
            Err(error) => errors.push(error),
        }
        errors
    }
}

/// A device as it is, all of it durable.
fn copy(device: &Simulated) -> Simulated {
    device.crash(CrashPolicy::Everything)
}

/// Two directories that went on from one checkpoint, each on its own, and what they hold.
fn forked() -> [(Simulated, Model); 2] {
    let device = Simulated::new(1, Faults::none());
    let mut states = open(&device).unwrap();
    let mut model = Model::default();
    states.change(&mut model, 0);
    states.store.checkpoint(0).unwrap();
    drop(states);
    [1, 2].map(|branch| {
        let (device, mut model) = (copy(&device), model.clone());
        let mut states = open(&device).unwrap();
        for round in 1..=2 {
            states.change(&mut model, branch);
            states.store.checkpoint(round).unwrap();
        }
        drop(states);
        // Removes what no checkpoint names.
        drop(open(&device).unwrap());
        (copy(&device), model)
    })
}

#[test]
fn a_segment_of_a_copy_that_went_on_by_itself_is_refused_by_name() {
    let [(device, model), (other, _)] = forked();
    assert_eq!(open(&device).unwrap().read(&model, "as it was").len(), 0);
    let (mut refused, mut harmless) = (0, 0);
    for file in device.list().unwrap() {
        let Some(bytes) = other.bytes(&file) else { continue };
        if device.bytes(&file).as_ref() == Some(&bytes) {
            continue;
        }
        let (device, when) = (copy(&device), format!("{file} of the copy"));
        device.place(&file, &bytes);
        let errors = match open(&device) {
            Ok(states) if file == "MANIFEST" => panic!("{when}: {:?}", states.store),
            Ok(mut states) => states.read(&model, &when),
            Err(error) => vec![error],
        };
        for error in &errors {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{when}: {error:?}");
            let named = error.context("file").unwrap_or_default();
            assert!(named == file || file == "MANIFEST", "{when}: {error:?}");
        }
        match errors.len() {
            0 => harmless += 1,
            _ => refused += 1,
        }
    }
    println!("{refused} refused, {harmless} harmless");
    assert!(refused > 10, "{refused} refused");
}

#[test]
fn a_lost_manifest_is_told_and_its_directory_is_not_taken_for_an_empty_one() {
    let [(device, model), _] = forked();
    device.remove("MANIFEST").unwrap();
    let before = device.list().unwrap();
    let error = open(&device).err().expect("it is refused");
    assert_eq!((error.kind(), error.context("file")), (ErrorKind::Missing, Some("MANIFEST")));
    assert_eq!(error.context("can be restored"), Some("2, 3"), "{error:?}");
    assert_eq!(device.list().unwrap(), before, "nothing is removed");
    // One that is asked for is there.
    let store = Store::in_memory().memory(4 * MIB).device(Arc::new(device.clone())).restore(3);
    drop(store.open().unwrap());
    assert_eq!(open(&device).unwrap().read(&model, "asked for").len(), 0);
}

/// A store on the device that restores a checkpoint by its number.
fn restore(device: &Simulated, number: u64) -> Result<Store> {
    let store = Store::in_memory().memory(4 * MIB).device(Arc::new(device.clone()));
    store.helpers(Helpers::Inline).restore(number).open()
}

#[test]
fn a_damaged_manifest_names_what_can_be_restored_and_each_of_these_is() {
    let [(device, model), _] = forked();
    let sound = device.bytes("MANIFEST").unwrap();
    let body = 32..sound.iter().rposition(|byte| *byte != 0).unwrap();
    let places = (0..32).filter(|at| !(8..12).contains(at)).chain(body.step_by(7));
    let names = device.list().unwrap();
    for at in places {
        let (device, when) = (copy(&device), format!("byte {at}"));
        device.corrupt("MANIFEST", at as u64, (at % 8) as u32).unwrap();
        for error in [open(&device).err().unwrap(), restore(&device, 7).unwrap_err()] {
            let of = (error.kind(), error.context("file"), error.context("can be restored"));
            assert_eq!(
                of,
                (ErrorKind::Corrupt, Some("MANIFEST"), Some("2, 3")),
                "{when}: {error:?}"
            );
            assert!(error.to_string().contains("restore(number)"), "{when}: {error}");
        }
        let from = |source: Source| {
            let new = Arc::new(Simulated::new(2, Faults::none()));
            Store::in_memory().memory(4 * MIB).device(new).restore_from([source]).open()
        };
        let source = || Source::device(Arc::new(device.clone()));
        let error = from(source()).unwrap_err();
        assert_eq!(error.context("can be restored"), Some("2, 3"), "{when}: {error:?}");
        let restored = from(source().checkpoint(3)).unwrap();
        assert_eq!(restored.restored_from()[0].checkpoint.number, 3, "{when}");
        assert_eq!(device.list().unwrap(), names, "{when}: nothing is removed");
        // The older one first: the newer is still there.
        for number in [2, 3] {
            let device = copy(&device);
            let store = restore(&device, number).unwrap();
            assert_eq!(store.restored_position(), Some(number - 1), "{when}");
            drop(store);
            assert_eq!(device.list().unwrap(), names, "{when}: nothing is removed");
            // From now on it is what an open finds.
            let mut states = open(&device).unwrap();
            assert_eq!(states.store.restored_position(), Some(number - 1), "{when}");
            if number == 3 {
                assert_eq!(states.read(&model, &when).len(), 0);
            }
        }
    }
}

#[test]
fn what_cannot_be_restored_is_not_named_beside_a_damaged_manifest() {
    let [(device, _), _] = forked();
    device.corrupt("MANIFEST", 40, 1).unwrap();
    let named = |device: &Simulated| {
        let error = open(device).err().unwrap();
        error.context("can be restored").unwrap().to_owned()
    };
    // A file that the older one needs is not there: the newer has it no more.
    let without = copy(&device);
    let of_older = |name: &String| {
        let copy = copy(&device);
        copy.remove(name).unwrap();
        named(&copy) == "3"
    };
    let segments = device.list().unwrap().into_iter().filter(|name| name.starts_with("seg-"));
    let lost: Vec<String> = segments.filter(of_older).collect();
    assert!(!lost.is_empty());
    without.remove(&lost[0]).unwrap();
    assert_eq!(restore(&without, 2).unwrap_err().context("can be restored"), Some("3"));
    for (number, left) in [(3, "2"), (2, "none")] {
        device.corrupt(&alluvium::checkpoints::checkpoint_name(number), 50, 1).unwrap();
        assert_eq!(named(&device), left);
    }
    let error = restore(&device, 3).unwrap_err();
    assert!(error.to_string().contains("no checkpoint in the directory is whole"), "{error}");
}

#[test]
fn two_checkpoints_are_retained_unless_told() {
    let device = Simulated::new(1, Faults::none());
    let store = Store::in_memory().device(Arc::new(device.clone())).open().unwrap();
    let mut map: Map<u64, u64> = store.map("m").open().unwrap();
    for position in 1..=4 {
        map.put(position, position).unwrap();
        store.checkpoint(position).unwrap();
    }
    let numbers: Vec<u64> = store.checkpoints().iter().map(|c| c.checkpoint.number).collect();
    assert_eq!((numbers, alluvium::config::DEFAULT_RETAIN), (vec![3, 4], 2));
    drop((map, store));
    // The newest is damaged: the one before is there.
    device.corrupt(&alluvium::checkpoints::checkpoint_name(4), 50, 1).unwrap();
    let error = Store::in_memory().device(Arc::new(device.clone())).open().unwrap_err();
    assert_eq!(error.context("can be restored"), Some("3"), "{error:?}");
    assert_eq!(restore(&device, 3).unwrap().restored_position(), Some(3));
}

#[test]
fn a_store_that_never_had_a_manifest_is_an_empty_one() {
    let device = Simulated::new(1, Faults::none());
    let mut states = open(&device).unwrap();
    states.change(&mut Model::default(), 0);
    let mut seal = states.store.seal(0).unwrap();
    while !seal.advance().unwrap() {}
    let crashed = copy(&device);
    drop((seal, states));
    assert!(crashed.list().unwrap().iter().any(|name| name.starts_with("checkpoint-")));
    let states = open(&crashed).unwrap();
    assert_eq!(states.store.restored_position(), None);
    assert!(states.store.leftovers() > 1);
}

/// Names are needed to open a file and to replace the manifest, and for nothing else.
#[test]
fn files_that_are_unlinked_under_an_open_store_are_read_on_and_named_by_the_next_open() {
    let [(device, mut model), (other, _)] = forked();
    let mut states = open(&device).unwrap();
    let names = device.list().unwrap();
    for name in &names {
        match other.bytes(name) {
            // Half of them are exchanged by renaming another over them.
            Some(bytes) if name.len() % 2 == 0 => device.place(name, &bytes),
            _ => device.remove(name).unwrap(),
        }
    }
    states.change(&mut model, 3);
    let mut expected = model.clone();
    // What was read before is read still.
    for key in 0..KEYS {
        assert_eq!(states.log.get(&key).unwrap().as_deref(), Some(&[model.values[&key]; 12]));
        assert_eq!(states.list.to_vec(&key).unwrap(), model.lists[&key]);
    }
    // A checkpoint names files that are not there any more: the next open says which.
    let sealed = states.store.checkpoint(9);
    drop(states);
    let found = open(&device).and_then(|mut states| {
        if states.store.restored_position() == Some(9) {
            expected = model.clone();
        }
        match states.read(&expected, "afterwards").pop() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    });
    let error = found.err().or(sealed.err()).expect("something is missing");
    assert!([ErrorKind::Missing, ErrorKind::Corrupt].contains(&error.kind()), "{error:?}");
    assert!(names.iter().any(|name| error.context("file") == Some(name)), "{error:?}");
}

/// A directory that is rebuilt beside is not touched by a manifest that means other files.
#[test]
fn a_manifest_of_another_store_names_what_is_not_there() {
    let [(device, _), _] = forked();
    let stranger = Simulated::new(9, Faults::none());
    let mut states = open(&stranger).unwrap();
    for position in 0..6 {
        states.change(&mut Model::default(), position);
        states.store.checkpoint(position).unwrap();
    }
    drop(states);
    device.place("MANIFEST", &stranger.bytes("MANIFEST").unwrap());
    let before = device.list().unwrap();
    let error = open(&device).err().expect("it is refused");
    assert!([ErrorKind::Missing, ErrorKind::Corrupt].contains(&error.kind()), "{error:?}");
    assert!(error.context("file").is_some_and(|file| file.starts_with("checkpoint-")), "{error:?}");
    assert_eq!(device.list().unwrap(), before, "nothing is removed");
}
