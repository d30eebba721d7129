//! Values go into a store, come out as JSON, and are what serde makes of them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::ops::{Bound, Range};
use std::time::Duration;

use alluvium::types::{Schema, Serde};
use alluvium::{Heap, State, Time};
use alluvium_inspect::ExportOptions;
use proptest::prelude::*;
use rkyv::{Archive, Deserialize, Serialize};

use crate::common::{all_lines, lines, map_of, tiny};

#[derive(Clone, Debug, Archive, Serialize, Deserialize, serde::Serialize, State)]
struct Everything {
    flag: bool,
    letter: char,
    small: (u8, i16, u32, i64),
    large: (u128, i128, usize, isize),
    floats: [f64; 2],
    float: f32,
    text: String,
    boxed: Box<str>,
    shape: Shape,
    shapes: Vec<Shape>,
    pair: Pair,
    only: Only,
    unit: (),
    nothing: Nothing,
    one: (u16,),
    maybe: Option<Option<Box<u64>>>,
    texts: VecDeque<Option<String>>,
    slice: Box<[(u8, u64)]>,
    by_name: BTreeMap<String, Vec<u16>>,
    by_number: BTreeMap<u32, i8>,
    set: BTreeSet<i128>,
    result: Result<u8, String>,
    kind: Kind,
    tree: Tree,
    never_zero: Option<NonZero<u64>>,
}

#[derive(Clone, Debug, Archive, Serialize, Deserialize, serde::Serialize, State)]
enum Shape {
    Point,
    Circle(f64),
    Line(u8, u128),
    Named { name: String, sides: u16 },
}

#[derive(Clone, Debug, Archive, Serialize, Deserialize, serde::Serialize, State)]
struct Pair(u8, String);

#[derive(Clone, Debug, Archive, Serialize, Deserialize, serde::Serialize, State)]
struct Only(u64);

#[derive(Clone, Debug, Archive, Serialize, Deserialize, serde::Serialize, State)]
struct Nothing;

#[derive(Clone, Debug, Archive, Serialize, Deserialize, serde::Serialize, State)]
enum Kind {
    Seven = 7,
    Eight,
    Three = 3,
}

#[derive(Clone, Debug, Archive, Serialize, Deserialize, serde::Serialize, State)]
#[rkyv(serialize_bounds(__S: rkyv::ser::Writer + rkyv::ser::Allocator, __S::Error: rkyv::rancor::Source))]
#[rkyv(deserialize_bounds(__D::Error: rkyv::rancor::Source))]
#[rkyv(bytecheck(bounds(__C: rkyv::validation::ArchiveContext, __C::Error: rkyv::rancor::Source)))]
struct Tree {
    leaf: u8,
    #[rkyv(omit_bounds)]
    below: Vec<Tree>,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,4}", "[a-zß\"\\\\\n\u{1}]{5,12}", ".{13,40}", "a{60,300}"]
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Point),
        any::<f64>().prop_map(Shape::Circle),
        any::<(u8, u128)>().prop_map(|(a, b)| Shape::Line(a, b)),
        (text(), any::<u16>()).prop_map(|(name, sides)| Shape::Named { name, sides }),
    ]
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = any::<u8>().prop_map(|leaf| Tree { leaf, below: Vec::new() });
    leaf.prop_recursive(4, 16, 3, |inner| {
        (any::<u8>(), prop::collection::vec(inner, 0..4))
            .prop_map(|(leaf, below)| Tree { leaf, below })
    })
}

fn everything() -> impl Strategy<Value = Everything> {
    let plain = (any::<(bool, char, (u8, i16, u32, i64))>(), any::<(u128, i128, u32, i32)>());
    let floats = (any::<[f64; 2]>(), any::<f32>());
    let texts = (text(), text(), text());
    let shapes = (shape(), prop::collection::vec(shape(), 0..5));
    let options = any::<(Option<Option<Box<u64>>>, Option<NonZero<u64>>, u16, u64, u8)>();
    let lists = (
        prop::collection::vec_deque(prop::option::of(text()), 0..5),
        prop::collection::vec(any::<(u8, u64)>(), 0..5),
    );
    let maps = (
        prop::collection::btree_map(text(), prop::collection::vec(any::<u16>(), 0..3), 0..40),
        prop::collection::btree_map(any::<u32>(), any::<i8>(), 0..12),
        prop::collection::btree_set(any::<i128>(), 0..8),
    );
    let rest = (prop_oneof![any::<u8>().prop_map(Ok), text().prop_map(Err)], 0..3, tree());
    (plain, floats, texts, shapes, options, lists, maps, rest).prop_map(
        |(plain, floats, texts, shapes, options, lists, maps, rest)| Everything {
            flag: plain.0.0,
            letter: plain.0.1,
            small: plain.0.2,
            large: (plain.1.0, plain.1.1, plain.1.2 as usize, plain.1.3 as isize),
            floats: floats.0,
            float: floats.1,
            text: texts.0,
            boxed: texts.1.into(),
            shape: shapes.0,
            shapes: shapes.1,
            pair: Pair(options.4, texts.2),
            only: Only(options.3),
            unit: (),
            nothing: Nothing,
            one: (options.2,),
            maybe: options.0,
            texts: lists.0,
            slice: lists.1.into(),
            by_name: maps.0,
            by_number: maps.1,
            set: maps.2,
            result: rest.0,
            kind: [Kind::Seven, Kind::Eight, Kind::Three][rest.1 as usize].clone(),
            tree: rest.2,
            never_zero: options.1,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_value_comes_out_as_it_went_in(
        values in prop::collection::vec(everything(), 1..30),
        in_a_log in any::<bool>(),
    ) {
        let entries = values.iter().enumerate().map(|(key, value)| (key as u32, value.clone()));
        let place = match in_a_log {
            true => map_of(tiny(), entries),
            false => map_of(Heap::new(), entries),
        };
        let mut expected: Vec<_> = values.iter().enumerate().map(|(key, value)| {
            let value = serde_json::to_string(value).unwrap();
            format!(r#"{{"state":"map","key":{key},"value":{value}}}"#)
        }).collect();
        expected.sort();
        let mut found = all_lines(place.path());
        found.sort();
        prop_assert_eq!(found, expected);
    }
}

/// The only value of a map, as JSON.
fn exported<V: State>(value: V) -> serde_json::Value {
    let place = map_of(Heap::new(), [(7u64, value)]);
    let lines = all_lines(place.path());
    let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((lines.len(), &line["key"]), (1, &7.into()));
    line["value"].clone()
}

#[track_caller]
fn check<V: State + serde::Serialize>(value: V) {
    let expected = serde_json::to_value(&value).unwrap();
    assert_eq!(exported(value), expected);
}

#[test]
fn types_of_the_standard_library() {
    check("127.0.0.1".parse::<IpAddr>().unwrap());
    check("::1".parse::<IpAddr>().unwrap());
    check("10.1.2.3:4".parse::<SocketAddr>().unwrap());
    check("[fe80::1]:65535".parse::<SocketAddr>().unwrap());
    check(Duration::new(3, 999_999_999));
    check(Time(-5));
    check::<Range<u16>>(3..9);
    check(vec![Bound::Included(3u64), Bound::Excluded(4), Bound::Unbounded]);
    check(HashMap::from([(3u64, "three".to_string()), (4, "x".repeat(90))]));
    check((0..100u32).map(|i| (i.to_string(), vec![i; i as usize % 4])).collect::<HashMap<_, _>>());
    check(HashMap::<u8, u8>::new());
    check(BTreeMap::<String, u8>::new());
    check(vec![(); 3]);
    check([[1u8, 2], [3, 4]]);
    check(f64::NAN);
    check(f32::INFINITY);
    for length in [0, 7, 8, 9, 63, 64, 65, 255, 256, 16_383, 16_384, 30_000] {
        check("é".repeat(length / 2) + &"x".repeat(length % 2));
    }
    let set: HashSet<i32> = (0..50).collect();
    let mut found: Vec<_> =
        exported(set).as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, (0..50).collect::<Vec<_>>());
}

#[test]
fn keys_of_maps_that_json_has_no_names_for_are_pairs() {
    let map = BTreeMap::from([((1u8, 2u8), true), ((3, 4), false)]);
    assert_eq!(exported(map), serde_json::json!([[[1, 2], true], [[3, 4], false]]));
}

#[derive(Clone, Archive, Serialize, Deserialize, State)]
struct Adapted {
    before: u8,
    #[rkyv(with = rkyv::with::AsBox)]
    adapted: u64,
}

/// Described by hand, so that nothing is known of it but its name.
#[derive(Clone, Debug, Archive, Serialize, Deserialize)]
struct ByHand(u64);

impl Schema for ByHand {
    fn describe(out: &mut String) {
        out.push_str("ByHand@1");
    }
}

impl alluvium::types::HeapSize for ByHand {
    const NO_HEAP: bool = true;
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Described as another type than it is.
#[derive(Clone, Debug, Archive, Serialize, Deserialize)]
struct Liar(Vec<u8>, u64);

impl Schema for Liar {
    fn describe(out: &mut String) {
        out.push_str("Vec<u32>");
    }
}

impl alluvium::types::HeapSize for Liar {
    const NO_HEAP: bool = false;
    fn heap_bytes(&self) -> usize {
        self.0.capacity()
    }
}

#[test]
fn what_cannot_be_decoded_is_bytes_with_its_type() {
    let value = Serde("postcard".to_string());
    let expected = serde_json::json!({"type": "postcard-1(String)", "hex": "08706f737463617264"});
    assert_eq!(exported(value), expected);

    for (place, text) in [
        (map_of(Heap::new(), [(1u8, ByHand(5))]), "Record{key:u8,value:ByHand@1,}"),
        (map_of(Heap::new(), [(1u8, Liar(vec![9; 5], 5))]), "Record{key:u8,value:Vec<u32>,}"),
        (map_of(Heap::new(), [(1u8, Adapted { before: 2, adapted: 3 })]), "Adapted@1{before:u8"),
    ] {
        let (lines, done) = lines(place.path(), &ExportOptions::default());
        let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(done.undecoded["map"].0, 1, "{done:?}");
        assert!(line["record"]["type"].as_str().unwrap().contains(text), "{line}");
        assert!(line["record"]["hex"].as_str().unwrap().len() >= 16, "{line}");
    }
    let adapted = Adapted { before: 2, adapted: 3 };
    assert_eq!(u64::from(adapted.before) + adapted.adapted, 5);
}
