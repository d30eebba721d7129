//! What the simulated device must be for the tests that stand on it: the same for the same seed,
//! strict about what a crash may take, and able to fail in every way it lists.

use alluvium_pagestore::ErrorKind;
use alluvium_pagestore::channel::{Receiver, unbounded};
use alluvium_pagestore::io::{
    BLOCK_BYTES, Completion, CrashPolicy, Device, Fault, Faults, FileHandle, IoBuffer, Lie,
    Operation, Request, Simulated, run_blocking,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

const BLOCK: u64 = BLOCK_BYTES as u64;
const SECTOR: usize = 512;

fn block(fill: u8) -> IoBuffer {
    let mut buffer = IoBuffer::zeroed(BLOCK_BYTES);
    buffer.as_mut_slice().fill(fill);
    buffer
}

fn write(device: &Simulated, file: &FileHandle, at: u64, fill: u8) -> Result<(), ErrorKind> {
    let operation = Operation::Write { offset: at * BLOCK };
    run_blocking(device, file, operation, block(fill)).1.map_err(|e| e.kind())
}

fn read(device: &Simulated, file: &FileHandle, at: u64) -> Result<Vec<u8>, ErrorKind> {
    let operation = Operation::Read { offset: at * BLOCK };
    let (buffer, result) = run_blocking(device, file, operation, block(0xEE));
    result.map(|()| buffer.as_slice().to_vec()).map_err(|e| e.kind())
}

fn sync(device: &Simulated, file: &FileHandle) -> Result<(), ErrorKind> {
    run_blocking(device, file, Operation::Sync, IoBuffer::empty()).1.map_err(|e| e.kind())
}

/// A device with one durable file of one block of 1s.
fn with_file() -> (Simulated, FileHandle) {
    let device = Simulated::new(1, Faults::none());
    let file = device.create("f").unwrap();
    write(&device, &file, 0, 1).unwrap();
    sync(&device, &file).unwrap();
    device.sync_directory().unwrap();
    (device, file)
}

/// Submits without waiting.
fn submit(
    device: &Simulated,
    file: &FileHandle,
    operation: Operation,
    buffer: IoBuffer,
) -> Receiver<Completion> {
    let (reply, completions) = unbounded();
    device.submit(Request { file: file.clone(), operation, buffer, token: 0, reply: reply.into() });
    completions
}

/// All names and bytes.
fn contents(device: &Simulated) -> BTreeMap<String, Vec<u8>> {
    let names = device.list().unwrap();
    names.into_iter().map(|name| (name.clone(), device.bytes(&name).unwrap())).collect()
}

/// Steps, ends of requests and final contents.
type Seen = (Vec<String>, Vec<(u64, bool)>, BTreeMap<String, Vec<u8>>);

/// A history with everything in it; returns what could be seen of it.
fn history(seed: u64) -> Seen {
    let faults = Faults {
        latency_max: 10,
        read_errors: 0.05,
        write_errors: 0.05,
        sync_errors: 0.05,
        directory_errors: 0.02,
        torn_writes: 0.05,
        lost_writes: 0.05,
        misdirected_writes: 0.05,
        flipped_bits: 0.05,
        flipped_reads: 0.05,
    };
    let device = Simulated::new(seed, faults);
    device.start_trace();
    let (reply, completions) = unbounded();
    let mut file = None;
    for token in 0..400u64 {
        if token % 40 == 0 {
            file = device.create(&format!("f{token}")).ok().or(file);
            let _ = device.rename(&format!("f{}", token / 2), "renamed");
            let _ = device.sync_directory();
        }
        let Some(file) = &file else { continue };
        let (operation, buffer) = match token % 5 {
            0..=2 => (Operation::Write { offset: token % 7 * BLOCK }, block(token as u8)),
            3 => (Operation::Read { offset: 0 }, block(0)),
            _ => (Operation::Sync, IoBuffer::empty()),
        };
        device.submit(Request {
            file: file.clone(),
            operation,
            buffer,
            token,
            reply: reply.clone().into(),
        });
    }
    device.drain();
    let ends = completions.try_iter().map(|done| (done.token, done.result.is_ok())).collect();
    (device.trace(), ends, contents(&device))
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..5 {
        assert_eq!(history(seed), history(seed), "seed {seed}");
    }
    assert_ne!(history(1).1, history(2).1, "another seed, another history");
}

#[test]
fn late_requests_overtake_each_other_and_all_end() {
    let device = Simulated::new(3, Faults::late(30));
    let file = device.create("f").unwrap();
    let (reply, completions) = unbounded();
    for token in 0..100 {
        let operation = Operation::Write { offset: token * BLOCK };
        let (file, reply) = (file.clone(), reply.clone());
        device.submit(Request { file, operation, buffer: block(1), token, reply: reply.into() });
    }
    assert!(device.in_flight() > 0, "some are still held");
    while device.in_flight() > 0 {
        device.drive();
    }
    let tokens: Vec<u64> = completions.try_iter().map(|done| done.token).collect();
    assert_eq!(tokens.iter().collect::<BTreeSet<_>>().len(), 100);
    assert!(!tokens.is_sorted(), "they overtook each other");
}

#[test]
fn what_was_synced_survives_every_crash_and_the_rest_survives_some() {
    let (device, file) = with_file();
    write(&device, &file, 0, 2).unwrap();
    write(&device, &file, 1, 3).unwrap();
    device.create("late").unwrap();
    device.rename("late", "later").unwrap();
    let synced = contents(&device.crash(CrashPolicy::Nothing));
    assert_eq!(synced, BTreeMap::from([("f".to_owned(), vec![1; BLOCK_BYTES])]));
    assert_eq!(contents(&device.crash(CrashPolicy::Everything)), contents(&device));
    let (mut whole, mut torn) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..200 {
        for policy in [CrashPolicy::Prefix { seed }, CrashPolicy::Subset { seed }] {
            let image = contents(&device.crash(policy));
            assert_eq!(image, contents(&device.crash(policy)), "the same seed, the same image");
            let f = &image["f"];
            assert!([1, 2].contains(&f[0]) && f[..BLOCK_BYTES].iter().all(|b| *b == f[0]));
            whole.insert((f[0], f.get(BLOCK_BYTES).copied(), image.contains_key("later")));
        }
        let image = contents(&device.crash(CrashPolicy::Torn { seed }));
        for sector in image["f"].chunks(SECTOR) {
            assert!([0, 1, 2, 3].contains(&sector[0]) && sector.iter().all(|b| *b == sector[0]));
        }
        torn.insert(image["f"].iter().step_by(SECTOR).copied().collect::<Vec<_>>());
    }
    assert!(whole.contains(&(2, None, false)), "the first write without the second");
    assert!(whole.contains(&(1, Some(3), true)), "the second without the first");
    assert!(torn.len() > 50, "tearing has many outcomes: {}", torn.len());
}

#[test]
fn a_prefix_keeps_the_order_of_writes() {
    let (device, file) = with_file();
    for at in 0..10 {
        write(&device, &file, at, 9).unwrap();
    }
    let mut lengths = BTreeSet::new();
    for seed in 0..100 {
        let image = device.crash(CrashPolicy::Prefix { seed }).bytes("f").unwrap();
        let written = image.chunks(BLOCK_BYTES).take_while(|b| b[0] == 9).count();
        assert_eq!(written.max(1), image.len() / BLOCK_BYTES, "no holes");
        lengths.insert(written);
    }
    assert_eq!(lengths.len(), 11, "every cut comes up");
}

#[test]
fn a_sync_covers_only_writes_that_ended_before_it_was_submitted() {
    let mut overtaken = 0;
    for seed in 0..50 {
        let device = Simulated::new(seed, Faults::none());
        let file = device.create("f").unwrap();
        device.set_faults(Faults::late(50));
        let (reply, ends) = unbounded();
        let submit = |operation, buffer, token| {
            let (file, reply) = (file.clone(), reply.clone());
            device.submit(Request { file, operation, buffer, token, reply: reply.into() });
        };
        submit(Operation::Write { offset: 0 }, block(2), 0);
        // Seeds that end the write within its own submit are the covered case.
        let covered = !ends.is_empty();
        submit(Operation::Sync, IoBuffer::empty(), 1);
        device.drain();
        overtaken += u32::from(!covered && ends.try_recv().unwrap().token == 0);
        let expected: &[u8] = if covered { &[2; BLOCK_BYTES] } else { &[] };
        assert_eq!(device.durable_bytes("f").unwrap(), expected, "seed {seed}");
        run_blocking(&device, &file, Operation::Sync, IoBuffer::empty()).1.unwrap();
        assert_eq!(device.durable_bytes("f").unwrap(), [2; BLOCK_BYTES], "seed {seed}");
    }
    assert!(overtaken > 0, "some write ends between submission and end of the sync");
}

#[test]
fn names_survive_only_with_the_directory_synced() {
    let (device, file) = with_file();
    device.rename("f", "g").unwrap();
    assert_eq!(device.crash(CrashPolicy::Nothing).list().unwrap(), ["f"]);
    device.sync_directory().unwrap();
    assert_eq!(device.crash(CrashPolicy::Nothing).list().unwrap(), ["g"]);
    drop(file);
    device.remove("g").unwrap();
    let image = device.crash(CrashPolicy::Nothing);
    assert_eq!(image.bytes("g").unwrap(), [1; BLOCK_BYTES], "a removal can be undone by a crash");
    let new = device.create("new").unwrap();
    write(&device, &new, 0, 5).unwrap();
    sync(&device, &new).unwrap();
    assert!(device.crash(CrashPolicy::Nothing).open("new").is_err(), "synced, but without a name");
    device.sync_directory().unwrap();
    assert_eq!(device.crash(CrashPolicy::Nothing).list().unwrap(), ["new"]);
}

#[test]
fn a_rename_is_old_or_new_and_never_both_or_neither() {
    let (device, _) = with_file();
    let other = device.create("f.tmp").unwrap();
    write(&device, &other, 0, 7).unwrap();
    sync(&device, &other).unwrap();
    device.sync_directory().unwrap();
    device.rename("f.tmp", "f").unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let image = device.crash(CrashPolicy::Subset { seed });
        let names: Vec<_> = contents(&image).into_iter().map(|(n, b)| (n, b[0])).collect();
        seen.insert(names);
    }
    let old = vec![("f".to_owned(), 1), ("f.tmp".to_owned(), 7)];
    assert_eq!(seen, BTreeSet::from([old, vec![("f".to_owned(), 7)]]));
}

#[test]
fn the_device_fails_after_the_given_steps_and_leaves_an_image() {
    // Five steps: create, write, sync, rename, directory sync.
    let run = |device: &Simulated| -> Result<(), alluvium_pagestore::Error> {
        let file = device.create("a.tmp")?;
        run_blocking(device, &file, Operation::Write { offset: 0 }, block(4)).1?;
        run_blocking(device, &file, Operation::Sync, IoBuffer::empty()).1?;
        device.rename("a.tmp", "a")?;
        device.sync_directory()
    };
    let whole = Simulated::new(1, Faults::none());
    run(&whole).unwrap();
    assert_eq!(whole.steps(), 5);
    let mut outcomes = BTreeSet::new();
    for steps in 0..5 {
        let device = Simulated::new(1, Faults::none());
        device.start_trace();
        device.fail_after(steps);
        assert!(run(&device).is_err(), "step {steps}");
        assert!(device.has_crashed());
        assert_eq!((device.steps(), device.trace().len() as u64), (steps, steps));
        assert!(device.list().is_err() && device.create("x").is_err() && device.lock().is_err());
        assert!(device.open("a").is_err() && device.sync_directory().is_err());
        for seed in 0..40 {
            let image = device.crash(CrashPolicy::Torn { seed });
            let names = image.list().unwrap();
            assert!(names.is_empty() || names == ["a"] || names == ["a.tmp"], "{names:?}");
            if names == ["a"] {
                assert_eq!(image.bytes("a").unwrap(), [4; BLOCK_BYTES], "synced before renamed");
            }
            image.create("usable").unwrap();
            drop(image.lock().unwrap());
            outcomes.insert((steps, names));
        }
    }
    // The step that fails may have happened: the create at 0 and the rename at 3.
    for (steps, name) in [(0, "a.tmp"), (2, "a.tmp"), (3, "a.tmp"), (3, "a"), (4, "a")] {
        assert!(outcomes.contains(&(steps, vec![name.to_owned()])), "step {steps}: {name}");
    }
}

#[test]
fn what_is_in_flight_at_a_crash_may_or_may_not_have_happened() {
    let (device, file) = with_file();
    device.set_faults(Faults::late(1000));
    let mut ends = Vec::new();
    for at in 1..9 {
        ends.push(submit(&device, &file, Operation::Write { offset: at * BLOCK }, block(8)));
    }
    let image = |seed| device.crash(CrashPolicy::Subset { seed }).bytes("f").unwrap().len();
    assert!((0..50).any(|seed| image(seed) > BLOCK_BYTES), "a crash now, with all in flight");
    device.fail_after(0);
    device.drain();
    for end in &ends {
        assert!(end.try_recv().unwrap().result.is_err(), "all fail, once");
    }
    let lengths: BTreeSet<usize> = (0..50).map(image).collect();
    assert!(lengths.len() > 2, "{lengths:?}");
    assert_eq!(device.crash(CrashPolicy::Nothing).bytes("f").unwrap(), [1; BLOCK_BYTES]);
}

/// Writes that overtake each other, half of them synced, and changes of names.
fn overtaking(device: &Simulated) -> Result<(), alluvium_pagestore::Error> {
    for n in 0..6u64 {
        let file = device.create(&format!("f{n}"))?;
        let ends: Vec<_> = (0..4)
            .map(|at| submit(device, &file, Operation::Write { offset: at * BLOCK }, block(1)))
            .collect();
        if n % 2 == 0 {
            run_blocking(device, &file, Operation::Sync, IoBuffer::empty()).1?;
        }
        drop(ends);
        match n % 3 {
            0 => device.sync_directory()?,
            1 => device.rename(&format!("f{n}"), "renamed")?,
            _ => device.remove(&format!("f{}", n - 2))?,
        }
    }
    Ok(())
}

#[test]
fn a_watcher_is_shown_what_a_stop_at_each_step_would_leave() {
    for seed in 0..5 {
        let policies = |at: u64| {
            let seed = at * 7;
            [
                CrashPolicy::Nothing,
                CrashPolicy::Everything,
                CrashPolicy::Prefix { seed },
                CrashPolicy::Subset { seed },
                CrashPolicy::Torn { seed },
            ]
        };
        let device = Simulated::new(seed, Faults::late(20));
        device.start_trace();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let into = shown.clone();
        device.watch(move |moment| {
            let images = policies(moment.step()).map(|policy| moment.crash(policy));
            let images = images.map(|image| (contents(&image), image.digest()));
            into.lock().unwrap().push((moment.words().to_owned(), images));
        });
        overtaking(&device).unwrap();
        let shown = shown.lock().unwrap();
        let words: Vec<&String> = shown.iter().map(|(words, _)| words).collect();
        assert_eq!(words, device.trace().iter().collect::<Vec<_>>());
        let mut digests = BTreeMap::new();
        for (at, (words, images)) in shown.iter().enumerate() {
            let device = Simulated::new(seed, Faults::late(20));
            device.fail_after(at as u64);
            let _ = overtaking(&device);
            let left = policies(at as u64).map(|policy| device.crash(policy));
            for (left, (image, digest)) in left.iter().zip(images) {
                assert!(contents(left) == *image, "seed {seed}, step {at}: {words}");
                assert_eq!(left.digest(), *digest);
                let others = digests.entry(*digest).or_insert_with(|| image.clone());
                assert!(others == image, "one digest, two images");
            }
        }
        assert!(digests.len() > 30, "{} images that differ", digests.len());
    }
}

#[test]
fn a_lie_is_told_of_one_write_also_of_a_synced_one() {
    let (device, file) = with_file();
    let images = Arc::new(Mutex::new(Vec::new()));
    let into = images.clone();
    device.watch(move |moment| {
        if moment.words() != "create last" {
            return;
        }
        for lie in [Lie::Lost, Lie::Torn, Lie::Misdirected, Lie::FlippedBit] {
            for seed in 0..60 {
                let image = moment.crash_lying(CrashPolicy::Nothing, lie, seed).unwrap();
                assert_eq!(image.list().unwrap(), ["f"], "names are as they were");
                into.lock().unwrap().push((lie, image.bytes("f").unwrap()));
            }
        }
    });
    for at in 1..4 {
        write(&device, &file, at, 1 + at as u8).unwrap();
    }
    sync(&device, &file).unwrap();
    write(&device, &file, 0, 9).unwrap();
    device.create("last").unwrap();
    let honest: Vec<u8> = (1..5).flat_map(|fill| [fill; BLOCK_BYTES]).collect();
    assert_eq!(device.crash(CrashPolicy::Nothing).bytes("f").unwrap(), honest);
    let mut seen: BTreeMap<Lie, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for (lie, bytes) in images.lock().unwrap().drain(..) {
        let wrong = honest.iter().enumerate().filter(|(at, byte)| bytes.get(*at) != Some(byte));
        let blocks: BTreeSet<usize> = wrong.clone().map(|(at, _)| at / BLOCK_BYTES).collect();
        let sectors = wrong.clone().map(|(at, _)| at / SECTOR).collect::<BTreeSet<_>>().len();
        match lie {
            Lie::Lost => assert_eq!((blocks.len(), sectors), (1, BLOCK_BYTES / SECTOR)),
            Lie::Torn => {
                let first = wrong.clone().next().expect("something is wrong").0;
                assert!(blocks.len() == 1 && first % SECTOR == 0, "{blocks:?}, {first}");
            }
            Lie::Misdirected => assert!((1..=2).contains(&blocks.len()), "{blocks:?}"),
            Lie::FlippedBit => {
                let at = wrong.clone().next().expect("something is wrong").0;
                assert_eq!((wrong.count(), (bytes[at] ^ honest[at]).count_ones()), (1, 1));
            }
        }
        seen.entry(lie).or_default().insert(bytes);
    }
    assert_eq!(seen[&Lie::Lost].len(), 4, "of any write");
    assert!(seen[&Lie::Torn].len() > 10 && seen[&Lie::FlippedBit].len() > 50, "{:?}", seen.len());
    assert!(seen[&Lie::Misdirected].len() > 6, "{}", seen[&Lie::Misdirected].len());
}

#[test]
fn scripted_faults_hit_the_write_they_are_meant_for() {
    let (device, file) = with_file();
    write(&device, &file, 3, 1).unwrap();
    device.on_nth_write(2, Fault::Lost);
    device.on_nth_write(3, Fault::Torn { bytes: 1100 });
    device.on_nth_write(4, Fault::Misdirected { offset: 3 * BLOCK });
    device.on_nth_write(5, Fault::FlippedBit { bit: 8 });
    device.on_nth_write(6, Fault::Error);
    device.on_nth_write(7, Fault::DiskFull);
    write(&device, &file, 0, 2).unwrap();
    write(&device, &file, 0, 3).unwrap();
    assert_eq!(read(&device, &file, 0).unwrap(), [2; BLOCK_BYTES], "lost");
    write(&device, &file, 0, 4).unwrap();
    let torn = read(&device, &file, 0).unwrap();
    assert_eq!((torn[1023], torn[1024]), (4, 2), "torn after two sectors");
    write(&device, &file, 0, 5).unwrap();
    assert_eq!(read(&device, &file, 3).unwrap(), [5; BLOCK_BYTES], "misdirected");
    write(&device, &file, 0, 6).unwrap();
    assert_eq!(read(&device, &file, 0).unwrap()[..3], [6, 7, 6], "flipped");
    assert_eq!(write(&device, &file, 0, 7), Err(ErrorKind::Io));
    assert_eq!(write(&device, &file, 0, 8), Err(ErrorKind::DiskFull));
    write(&device, &file, 0, 9).unwrap();
    assert_eq!(read(&device, &file, 0).unwrap(), [9; BLOCK_BYTES]);
}

#[test]
fn scripted_reads_syncs_and_directory_operations_go_wrong_once() {
    let (device, file) = with_file();
    device.on_nth_read(1, Fault::Error);
    device.on_nth_read(2, Fault::FlippedBit { bit: 0 });
    assert_eq!(read(&device, &file, 0), Err(ErrorKind::Io));
    assert_eq!(read(&device, &file, 0).unwrap()[0], 0, "wrong in the buffer");
    assert_eq!(read(&device, &file, 0).unwrap()[0], 1, "and right on storage");
    device.on_nth_directory_operation(1, Fault::Error);
    assert!(device.create("g").is_err());
    device.create("g").unwrap();
    device.on_nth_directory_operation(1, Fault::Lost);
    device.sync_directory().unwrap();
    assert_eq!(device.crash(CrashPolicy::Nothing).list().unwrap(), ["f"], "a lying directory sync");
    device.on_nth_sync(1, Fault::Lost);
    write(&device, &file, 0, 2).unwrap();
    sync(&device, &file).unwrap();
    assert_eq!(device.durable_bytes("f").unwrap()[0], 1, "a lying sync");
}

#[test]
fn a_failed_sync_is_not_mended_by_the_next() {
    let (device, file) = with_file();
    device.on_nth_sync(1, Fault::Error);
    write(&device, &file, 0, 2).unwrap();
    assert_eq!(sync(&device, &file), Err(ErrorKind::Io));
    sync(&device, &file).unwrap();
    assert_eq!(device.bytes("f").unwrap()[0], 2, "the living see the write");
    assert_eq!(device.crash(CrashPolicy::Nothing).bytes("f").unwrap()[0], 1, "a crash takes it");
}

#[test]
fn a_full_device_takes_writes_again_when_space_returns() {
    let (device, file) = with_file();
    device.create("g").unwrap();
    device.place("ballast", &[0; 4 * BLOCK_BYTES]);
    device.set_capacity_bytes(Some(6 * BLOCK));
    write(&device, &file, 1, 2).unwrap();
    assert_eq!(write(&device, &file, 2, 2), Err(ErrorKind::DiskFull));
    write(&device, &file, 0, 2).expect("overwriting needs no space");
    device.remove("ballast").unwrap();
    assert_eq!(device.used_bytes(), 2 * BLOCK);
    write(&device, &file, 2, 2).unwrap();
}

#[test]
fn a_stuck_request_holds_up_no_other_and_can_be_released() {
    let (device, file) = with_file();
    device.on_nth_write(1, Fault::Stuck);
    let stuck = submit(&device, &file, Operation::Write { offset: 0 }, block(2));
    write(&device, &file, 1, 3).unwrap();
    device.drain();
    assert!(stuck.try_recv().is_err());
    assert_eq!((device.stuck(), device.in_flight()), (1, 1));
    device.release_stuck();
    device.drain();
    assert!(stuck.try_recv().unwrap().result.is_ok());
    assert_eq!(read(&device, &file, 0).unwrap()[0], 2);
}

#[test]
fn files_can_be_damaged_cut_and_placed() {
    let (device, file) = with_file();
    write(&device, &file, 1, 2).unwrap();
    device.corrupt("f", 10, 7).unwrap();
    device.corrupt("f", BLOCK + 1, 0).unwrap();
    assert_eq!(read(&device, &file, 0).unwrap()[9..12], [1, 0x81, 1]);
    assert_eq!(device.crash(CrashPolicy::Everything).bytes("f").unwrap()[BLOCK_BYTES + 1], 3);
    assert_eq!(device.corrupt("f", 2 * BLOCK, 0).unwrap_err().kind(), ErrorKind::Input);
    assert_eq!(device.corrupt("none", 0, 0).unwrap_err().kind(), ErrorKind::Missing);
    device.truncate("f", 100).unwrap();
    assert_eq!(device.crash(CrashPolicy::Everything).bytes("f").unwrap().len(), 100);
    assert_eq!(read(&device, &file, 0), Err(ErrorKind::Corrupt));
    device.place("old", b"bytes");
    assert_eq!(device.crash(CrashPolicy::Nothing).bytes("old").unwrap(), b"bytes");
}

#[test]
fn each_likelihood_brings_its_fault_about() {
    let damaged = |faults: Faults| {
        let device = Simulated::new(11, faults);
        let file = device.create("f").unwrap();
        for at in 0..20 {
            let _ = write(&device, &file, at, 5);
        }
        device.bytes("f").unwrap() != [5; 20 * BLOCK_BYTES]
    };
    assert!(!damaged(Faults::none()));
    assert!(damaged(Faults { torn_writes: 0.3, ..Faults::none() }));
    assert!(damaged(Faults { lost_writes: 0.3, ..Faults::none() }));
    assert!(damaged(Faults { misdirected_writes: 0.3, ..Faults::none() }));
    assert!(damaged(Faults { flipped_bits: 0.3, ..Faults::none() }));
    let (device, file) = with_file();
    device.set_faults(Faults { write_errors: 1.0, read_errors: 1.0, ..Faults::none() });
    assert_eq!(write(&device, &file, 0, 2), Err(ErrorKind::Io));
    assert_eq!(read(&device, &file, 0), Err(ErrorKind::Io));
    device.set_faults(Faults { flipped_reads: 1.0, directory_errors: 1.0, ..Faults::none() });
    let wrong = read(&device, &file, 0).unwrap();
    assert_eq!(wrong.iter().zip(device.bytes("f").unwrap()).filter(|(a, b)| **a != *b).count(), 1);
    assert!(device.create("g").is_err());
    device.set_faults(Faults { sync_errors: 1.0, ..Faults::none() });
    assert_eq!(sync(&device, &file), Err(ErrorKind::Io));
}
