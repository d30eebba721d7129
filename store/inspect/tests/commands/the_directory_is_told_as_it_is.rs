//! Summaries, and the command itself: what it prints, how it ends, what it refuses.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use alluvium::config::Helpers;
use alluvium::{ErrorKind, Heap, MIB, Map, Store};
use alluvium_inspect::{ClosedDirectory, ExportOptions, inspect, verify};
use serde_json::Value;

use crate::common::{self, map_of, store, tiny};

fn run(options: &[&str], place: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium"));
    command.arg(options[0]).arg(place).args(&options[1..]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_summary_counts_what_is_live_and_what_is_dead() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path(), tiny());
    let mut map: Map<u64, u64> = store.map("map").open().unwrap();
    for key in 0..100 {
        map.put(key, key).unwrap();
    }
    store.checkpoint(7).unwrap();
    for key in 0..10 {
        map.remove(&key).unwrap();
    }
    map.put(50, 0).unwrap();
    store.checkpoint(8).unwrap();
    drop((map, store));
    fs::write(place.path().join("notes.txt"), "mine").unwrap();
    fs::write(place.path().join("seg-00000000000fffff"), "left over").unwrap();

    let summary = inspect(&ClosedDirectory::open(place.path()).unwrap()).unwrap();
    assert!(summary.trouble.is_empty(), "{summary:?}");
    let [checkpoint] = &summary.checkpoints[..] else { panic!("{summary:?}") };
    assert_eq!((checkpoint.number, checkpoint.position, checkpoint.states), (2, 8, 1));
    let bytes: u64 = fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|e| {
            let name = e.file_name().into_string().unwrap();
            name.starts_with("checkpoint-")
                || name.starts_with("live-")
                || name.starts_with("seg-000000000000")
        })
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    // The only checkpoint pins all that it needs.
    assert_eq!((checkpoint.bytes, checkpoint.pinned_bytes), (bytes, bytes));
    let [state] = &summary.states[..] else { panic!("{summary:?}") };
    assert_eq!((&*state.name, &*state.primitive, &*state.layout), ("map", "map", "hybrid-log"));
    assert_eq!((&*state.key, &*state.value), ("u64", "u64"));
    assert_eq!((state.keys, state.live_records), (90, 90));
    // Ten that were removed and the one that was replaced, each 16 bytes behind 16 of header.
    assert_eq!((state.dead_records, state.dead_bytes), (11, Some(11 * 32)));
    let others: Vec<_> = summary.other_files.iter().map(|o| (&*o.name, o.bytes)).collect();
    assert_eq!(others, [("notes.txt", 4), ("seg-00000000000fffff", 9)]);
    assert!(summary.other_files[1].what.contains("no checkpoint needs; removed"));
}

#[test]
fn the_commands_print_and_end_as_they_say() {
    let place = map_of(Heap::new(), (0..20u64).map(|key| (key, format!("value {key}"))));
    let inspected = run(&["inspect"], place.path());
    assert!(inspected.status.success());
    let table = text(&inspected.stdout);
    for part in ["checkpoint", "pins", "0..256 of 256", "map    map        heap", "u64 -> String"] {
        assert!(table.contains(part), "{part:?} in\n{table}");
    }
    let json: Value =
        serde_json::from_slice(&run(&["inspect", "--json"], place.path()).stdout).unwrap();
    assert_eq!(json["states"][0]["keys"], 20);

    let verified = run(&["verify"], place.path());
    assert!(verified.status.success());
    assert!(text(&verified.stdout).contains("20 sound records"));
    assert!(text(&verified.stdout).ends_with("all is as it was written\n"));

    let exported = run(&["export", "--state", "map", "--limit", "3"], place.path());
    assert!(exported.status.success());
    assert_eq!(text(&exported.stdout).lines().count(), 3);
    let line: Value = serde_json::from_str(text(&exported.stdout).lines().next().unwrap()).unwrap();
    assert_eq!(line["value"], format!("value {}", line["key"]));

    let segment = place.path().join("seg-0000000000000001");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[4096 + 20] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let verified = run(&["verify"], place.path());
    assert_eq!(verified.status.code(), Some(1));
    let told = text(&verified.stdout);
    assert!(told.starts_with("seg-0000000000000001, offset 4096, state map: a record"), "{told}");
    assert!(told.ends_with("1 place is damaged\n"), "{told}");
    let exported = run(&["export"], place.path());
    assert_eq!(exported.status.code(), Some(1));
    assert!(text(&exported.stderr).contains("seg-0000000000000001"));
}

#[test]
fn what_cannot_be_looked_into_is_refused_in_words() {
    let refusal = |options: &[&str], place: &Path| {
        let output = run(options, place);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        text(&output.stderr)
    };
    let nowhere = Path::new("/nowhere/at/all");
    assert!(refusal(&["inspect"], nowhere).contains("there is no such directory"));
    assert!(!nowhere.exists());

    let empty = tempfile::tempdir().unwrap();
    assert!(refusal(&["verify"], empty.path()).contains("there is no checkpoint"));
    assert!(refusal(&["export"], empty.path()).contains("there is no checkpoint"));
    let inspected = run(&["inspect"], empty.path());
    assert_eq!(text(&inspected.stdout), "no checkpoint that can be read\n");

    let place = map_of(Heap::new(), [(1u8, 1u8)]);
    let unknown = refusal(&["export", "--state", "mop"], place.path());
    assert!(unknown.contains("no such state; there are: map (state mop)"), "{unknown}");

    let store = store(place.path(), Heap::new());
    let open = refusal(&["inspect"], place.path());
    assert!(open.contains("open elsewhere") && open.contains("in use by process"), "{open}");
    let here = ClosedDirectory::open(place.path()).unwrap_err();
    assert_eq!(here.kind(), ErrorKind::Locked);
    drop(store);
    ClosedDirectory::open(place.path()).unwrap();

    let process = tempfile::tempdir().unwrap();
    fs::create_dir(process.path().join("worker-0")).unwrap();
    fs::create_dir(process.path().join("worker-1")).unwrap();
    let several = refusal(&["inspect"], process.path());
    assert!(several.contains("name one of them: worker-0, worker-1"), "{several}");
}

#[test]
fn nobody_reading_is_no_error() {
    let place = map_of(Heap::new(), (0..5000u64).map(|key| (key, "x".repeat(200))));
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium"));
    let mut child = command
        .arg("export")
        .arg(place.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn each_retained_checkpoint_is_told_and_exported() {
    let place = tempfile::tempdir().unwrap();
    let open = || {
        let builder = Store::builder(place.path()).memory(4 * MIB).max_value(4096);
        builder.helpers(Helpers::Inline).layout(tiny()).retain(3).open().unwrap()
    };
    let store = open();
    let mut map: Map<u64, u64> = store.map("map").open().unwrap();
    let mut expected = Vec::new();
    for round in 0..5u64 {
        for key in 0..50 {
            map.put(key + round, key * round).unwrap();
        }
        map.remove(&(round + 7)).unwrap();
        let checkpoint = store.checkpoint(round * 10).unwrap();
        let mut lines = Vec::new();
        map.for_each(|key, value| {
            lines.push(format!(r#"{{"state":"map","key":{key},"value":{value}}}"#));
            Ok(())
        })
        .unwrap();
        lines.sort();
        expected.push((checkpoint.number, round * 10, lines));
    }
    let pinned: Vec<_> = store.checkpoints().iter().map(|c| c.pinned_bytes).collect();
    drop((map, store));
    let directory = ClosedDirectory::open(place.path()).unwrap();
    let summary = inspect(&directory).unwrap();
    let told: Vec<_> = summary.checkpoints.iter().map(|c| (c.number, c.position)).collect();
    let newest: Vec<_> = expected.iter().rev().take(3).collect();
    assert_eq!(told, newest.iter().map(|(n, position, _)| (*n, *position)).collect::<Vec<_>>());
    for (told, pinned) in summary.checkpoints.iter().zip(pinned.iter().rev()) {
        // A checkpoint's own file, and its live records, are pinned beside its segments.
        assert!(told.pinned_bytes > *pinned && told.pinned_bytes <= told.bytes, "{summary}");
    }
    let verified = verify(&directory).unwrap();
    assert!(verified.is_sound() && verified.checkpoints == 3, "{verified}");
    drop(directory);
    for (number, _, lines) in &newest {
        let options = ExportOptions { checkpoint: Some(*number), ..ExportOptions::default() };
        let mut found = common::lines(place.path(), &options).0;
        found.sort();
        assert_eq!(&found, lines, "checkpoint {number}");
    }
    // Of a damaged newest checkpoint, an older one is not given in its place.
    fs::write(place.path().join(format!("checkpoint-{:016x}", newest[0].0)), "gone").unwrap();
    let refused = run(&["export"], place.path());
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("checkpoint-0000000000000005"), "{refused:?}");
    let older = run(&["export", "--checkpoint", "4"], place.path());
    assert_eq!(text(&older.stdout).lines().count(), newest[1].2.len());
    let dropped = run(&["export", "--checkpoint", "1"], place.path());
    assert!(text(&dropped.stderr).contains("no checkpoint 1; there are: 5, 4, 3"), "{dropped:?}");
    let inspected = text(&run(&["inspect"], place.path()).stdout);
    assert!(inspected.contains("trouble: the checkpoint"), "{inspected}");
    assert!(inspected.contains("a checkpoint that cannot be read"), "{inspected}");
}
