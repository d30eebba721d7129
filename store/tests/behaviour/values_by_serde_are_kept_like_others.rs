//! Types that rkyv does not know, stored by serde: the conformance histories, checkpoints, other
//! types refused by name, damaged bytes told, and values that could not be read back not written.

use crate::common;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::history::{Op, Value, op};
use crate::common::{assert_equal, open_on, tiny};
use alluvium::io::{Device, Faults, Simulated};
use alluvium::types::{HeapSize, Schema, Serde};
use alluvium::{AnyLayout, ErrorKind, Heap, HybridLog, KIB, KeyHash, MIB, Map, State};
use proptest::prelude::*;

/// Has no rkyv derives, and holds what rkyv does not know.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, State)]
#[state(serde)]
enum Upload {
    Empty,
    Parts { file: PathBuf, parts: Vec<Option<String>>, sizes: BTreeMap<u8, i64> },
}

impl Value for Upload {
    fn new(n: u8) -> Self {
        match n % 5 {
            0 => Upload::Empty,
            n => Upload::Parts {
                file: "dir/".repeat(n.into()).into(),
                parts: vec![],
                sizes: BTreeMap::new(),
            },
        }
    }

    fn change(&mut self, n: u8) {
        match self {
            Upload::Empty => *self = Upload::new(n),
            Upload::Parts { .. } if n % 11 == 0 => *self = Upload::Empty,
            Upload::Parts { file, parts, sizes } => {
                file.push(n.to_string());
                if parts.len() > 9 {
                    (*parts, *file) = (vec![], PathBuf::new());
                }
                parts.push((n % 3 > 0).then(|| "part ".repeat(n as usize % 9)));
                *sizes.entry(n % 6).or_default() -= i64::from(n) << (n % 40);
            }
        }
    }
}

impl Value for Serde<Vec<String>> {
    fn new(n: u8) -> Self {
        Serde(Value::new(n))
    }

    fn change(&mut self, n: u8) {
        self.0.change(n);
    }
}

/// A key by serde.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[derive(State, KeyHash)]
#[state(serde, version = 3)]
struct Seller {
    name: String,
    shop: Option<(u16, Box<str>)>,
}

fn layouts() -> Vec<(AnyLayout, u64)> {
    vec![
        (Heap::new().into(), MIB),
        (HybridLog::new().into(), 8 * MIB),
        (tiny().into(), 256 * KIB),
        (tiny().hash_bits(0).cooling_percent(60).into(), 400 * KIB),
    ]
}

fn run<V: Value>(seed: u64, ops: &[Op]) {
    for (layout, memory) in layouts() {
        let device = Arc::new(Simulated::new(seed, Faults::late(3)));
        let open = || open_on(device.clone(), layout.clone(), memory).unwrap();
        common::history::run::<V>(open, memory, ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if common::long() { 24 } else { 1 }))]

    #[test]
    fn a_marked_type(seed: u64, ops in prop::collection::vec(op(), 1..120)) {
        run::<Upload>(seed, &ops);
    }

    #[test]
    fn a_wrapped_type(seed: u64, ops in prop::collection::vec(op(), 1..120)) {
        run::<Serde<Vec<String>>>(seed, &ops);
    }
}

fn seller(n: u16) -> Seller {
    let shop = (n % 3 > 0).then(|| (n, "shop".repeat(n as usize % 7).into()));
    Seller { name: format!("seller {n}"), shop }
}

/// A store on `device` with sellers, more than its memory holds, all in a checkpoint.
fn filled(device: &Simulated, layout: &AnyLayout, sellers: u16) -> BTreeMap<Seller, Upload> {
    let store = open_on(Arc::new(device.clone()), layout.clone(), 512 * KIB).unwrap();
    let mut map: Map<Seller, Upload> = store.map("uploads").open().unwrap();
    let mut model = BTreeMap::new();
    for n in 0..sellers {
        let mut upload = Upload::new(n as u8);
        (0..n % 5).for_each(|by| upload.change((n + by) as u8));
        map.put(seller(n), upload.clone()).unwrap();
        model.insert(seller(n), upload);
    }
    for n in (0..sellers).step_by(7) {
        map.modify(&seller(n), |upload| upload.change(9)).unwrap();
        model.get_mut(&seller(n)).unwrap().change(9);
    }
    assert_equal(&mut map, &model, "before the checkpoint");
    store.checkpoint(1).unwrap();
    model
}

#[test]
fn keys_and_values_come_back_after_a_checkpoint() {
    for layout in [Heap::new().into(), AnyLayout::from(tiny())] {
        let device = Simulated::new(2, Faults::late(3));
        let sellers = if matches!(layout, AnyLayout::Heap(_)) { 700 } else { 4000 };
        let model = filled(&device, &layout, sellers);
        let store = open_on(Arc::new(device), layout.clone(), 512 * KIB).unwrap();
        let mut map: Map<Seller, Upload> = store.map("uploads").open().unwrap();
        assert_equal(&mut map, &model, "reopened");
        let stats = map.stats().unwrap();
        let reads = stats.cold_reads > 1000;
        assert!(reads == matches!(layout, AnyLayout::HybridLog(_)), "{stats:?}");
    }
}

/// Like `Seller`, by rkyv.
mod by_rkyv {
    #[derive(Clone, Debug, PartialEq, Eq, alluvium::State, alluvium::KeyHash)]
    #[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
    #[state(version = 3)]
    pub struct Seller {
        name: String,
        shop: Option<(u16, Box<str>)>,
    }
}

#[test]
fn another_codec_version_or_type_is_refused_by_name() {
    let device = Simulated::new(3, Faults::none());
    let model = filled(&device, &tiny().into(), 20);
    let store = open_on(Arc::new(device), tiny(), 512 * KIB).unwrap();
    let refused = [
        store.map::<by_rkyv::Seller, Upload>("uploads").open().unwrap_err(),
        store.map::<Seller, Serde<Vec<String>>>("uploads").open().unwrap_err(),
    ];
    let words = [
        ["key type is postcard-1(Seller@3{", "requested is Seller@3{"],
        ["value type is postcard-1(Upload@1|", "requested is postcard-1(Vec<String>)"],
    ];
    for (error, words) in refused.iter().zip(words) {
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    }
    let mut map: Map<Seller, Upload> = store.map("uploads").open().unwrap();
    assert_equal(&mut map, &model, "after the refusals");
}

#[test]
fn damaged_bytes_are_told_and_never_served() {
    for layout in [Heap::new().into(), AnyLayout::from(tiny())] {
        let device = Simulated::new(4, Faults::none());
        let model = filled(&device, &layout, 12);
        device.sync_directory().unwrap();
        let mut segments = device.list().unwrap();
        segments.retain(|file| file.starts_with("seg-"));
        let (mut told, mut harmless) = (0, 0);
        for file in &segments {
            for (offset, byte) in device.bytes(file).unwrap().into_iter().enumerate() {
                if byte == 0 {
                    continue;
                }
                let copy = device.crash(alluvium::io::CrashPolicy::Nothing);
                copy.corrupt(file, offset as u64, (offset % 8) as u32).unwrap();
                let store = open_on(Arc::new(copy), layout.clone(), 512 * KIB).unwrap();
                let read = store.map::<Seller, Upload>("uploads").open().and_then(|mut map| {
                    for (key, value) in &model {
                        assert_eq!(map.get(key)?.as_deref(), Some(value), "{file} {offset}");
                    }
                    map.for_each(|key, value| {
                        assert_eq!(model.get(key), Some(value), "{file} {offset}");
                        Ok(())
                    })
                });
                match read {
                    Ok(()) => harmless += 1,
                    Err(error) => {
                        let kinds = [ErrorKind::Corrupt, ErrorKind::FormatVersion];
                        assert!(kinds.contains(&error.kind()), "{error:?}");
                        assert_eq!(error.context("file"), Some(file.as_str()), "{error:?}");
                        told += 1;
                    }
                }
            }
        }
        println!("{told} told, {harmless} harmless");
        assert!(told > 500, "{told} told, {harmless} harmless");
    }
}

/// Numbers and truths under one name: what a version that was not raised comes to.
macro_rules! lying {
    ($name:ident($inner:ty)) => {
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        struct $name($inner);

        impl HeapSize for $name {
            const NO_HEAP: bool = true;
            fn heap_bytes(&self) -> usize {
                0
            }
        }

        impl Schema for $name {
            fn describe(out: &mut String) {
                out.push_str("Thing@1");
            }
        }
    };
}
lying!(Number(u32));
lying!(Truth((bool, bool)));

#[test]
fn bytes_of_another_type_are_an_error_and_no_panic() {
    for layout in [Heap::new().into(), AnyLayout::from(tiny())] {
        let device = Arc::new(Simulated::new(5, Faults::none()));
        let store = open_on(device.clone(), layout.clone(), 512 * KIB).unwrap();
        let mut map: Map<u8, Serde<Number>> = store.map("m").open().unwrap();
        map.put(1, Serde(Number(300))).unwrap();
        store.checkpoint(1).unwrap();
        drop((map, store));
        let store = open_on(device.clone(), layout.clone(), 512 * KIB).unwrap();
        let read = store
            .map::<u8, Serde<Truth>>("m")
            .open()
            .and_then(|mut map| map.read(&1, |value| value.cloned()));
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("Truth cannot be read by serde"), "{error}");
    }
}

/// Reads as what it is not: without a tag in the bytes, nothing tells the variants apart.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, State)]
#[state(serde, trusted)]
#[serde(untagged)]
enum Untagged {
    Number(u32),
}

/// Debug builds try each value, others the first ones.
#[test]
fn a_value_that_could_not_be_read_back_is_not_stored() {
    for layout in [Heap::new().into(), AnyLayout::from(tiny())] {
        let device = Arc::new(Simulated::new(6, Faults::none()));
        let store = open_on(device, layout, 512 * KIB).unwrap();
        let mut map: Map<u8, Untagged> = store.map("m").open().unwrap();
        map.put(1, Untagged::Number(2)).unwrap();
        let error = store.checkpoint(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("Untagged cannot be read back"), "{error}");
        assert_eq!(map.get(&1).unwrap().as_deref(), Some(&Untagged::Number(2)));
        map.remove(&1).unwrap();
        store.checkpoint(2).unwrap();
    }
}
