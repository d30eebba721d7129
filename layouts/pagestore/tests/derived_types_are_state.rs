//! What the macros emit: descriptions and fingerprints, heap sizes, key hashes, for all kinds of
//! types, against values written out by hand.

use std::collections::{BTreeMap, HashSet};
use std::marker::PhantomData;

use alluvium_derive::{KeyHash, State};
use alluvium_pagestore::{
    HeapSize, Key, KeyHash, Schema, State, combine, description_of, fingerprint, hash_word,
};

macro_rules! state {
    ($($item:item)*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State, KeyHash)]
        #[state(crate = alluvium_pagestore)]
        $item
    )*};
}

state! {
    struct Person { id: u64, name: String, r#type: Option<Box<str>> }
    #[state(version = 7)]
    struct Pair(u32, (String, u8));
    struct Unit;
    struct Id(String);
    enum Event {
        Tick,
        Bid(u64, String),
        Person { person: Person, at: [u8; 2] },
    }
    struct Generic<T, const N: usize> where T: Clone { value: T, nested: Option<T>, pad: [u8; N] }
    struct Tagged<T> { id: u32, tag: PhantomData<T> }
}

#[derive(Clone, Debug, PartialEq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
#[state(crate = ::alluvium_pagestore)]
struct Shelf {
    rows: Vec<Vec<Person>>,
    index: BTreeMap<u64, String>,
    weight: f64,
}

/// What is stored by serde has no rkyv derives.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, State, KeyHash)]
#[state(crate = alluvium_pagestore, serde, version = 4)]
struct BySerde<'a, T, const N: usize>
where
    T: Clone,
{
    value: T,
    tag: PhantomData<&'a u8>,
    r#type: PhantomData<[u8; N]>,
}

/// Contains itself, by serde, beside one by rkyv.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, State)]
#[state(crate = alluvium_pagestore, serde)]
struct Branch {
    left: Option<Box<Branch>>,
    right: Vec<Branch>,
}

#[derive(Clone, Debug, PartialEq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
#[state(crate = alluvium_pagestore)]
struct Mixed {
    branch: Branch,
    name: String,
    other: Option<BySerde<'static, String, 2>>,
}

/// Contains itself; without rkyv's derives, as they are not needed here.
#[derive(State)]
#[state(crate = alluvium_pagestore)]
#[expect(dead_code)]
enum Tree {
    Leaf(u8),
    Node { children: Vec<Tree>, other: Box<Forest> },
}

#[derive(State)]
#[state(crate = alluvium_pagestore)]
struct Forest {
    first: Option<Tree>,
    second: Option<Tree>,
}

#[derive(State, KeyHash)]
#[state(crate = alluvium_pagestore)]
enum Never {}

fn person() -> Person {
    Person { id: 1, name: String::with_capacity(50), r#type: Some("admin".into()) }
}

#[test]
fn derived_types_are_state_and_keys() {
    fn state<T: State>() {}
    fn key<T: Key>() {}
    key::<(Person, Pair, Unit, Id, Event)>();
    key::<(Generic<String, 3>, Tagged<u8>)>();
    state::<Shelf>();
    state::<(Branch, Mixed)>();
    key::<BySerde<'static, String, 3>>();
}

#[test]
fn types_by_serde_stand_in_types_by_rkyv_and_come_back() {
    let leaf = Branch { left: None, right: vec![] };
    let branch = Branch { left: Some(Box::new(leaf.clone())), right: vec![leaf; 3] };
    let other = BySerde { value: "text".to_owned(), tag: PhantomData, r#type: PhantomData };
    let mixed = Mixed { branch, name: "mixed".into(), other: Some(other.clone()) };
    let mut bytes = rkyv::util::AlignedVec::new();
    alluvium_pagestore::codec::encode(&mut bytes, &other, &mixed).unwrap();
    let (key, value) = alluvium_pagestore::codec::decode(&bytes).unwrap();
    let expected: (BySerde<'static, String, 2>, Mixed) = (other, mixed);
    assert_eq!((key, value), expected);
    assert_eq!(
        description_of::<Mixed>(),
        "Mixed@1{branch:postcard-1(Branch@1{left:Option<Box<postcard-1(Branch@1)>>,\
         right:Vec<postcard-1(Branch@1)>,}),name:String,\
         other:Option<postcard-1(BySerde@4{value:String,tag:PhantomData,type:PhantomData,})>,}"
    );
    assert_eq!(expected.0.key_hash(), {
        let nothing = PhantomData::<u8>.key_hash();
        combine(combine("text".key_hash(), nothing), nothing)
    });
}

#[test]
fn descriptions_name_every_part() {
    const PERSON: &str = "Person@1{id:u64,name:String,type:Option<Box<str>>,}";
    assert_eq!(description_of::<Person>(), PERSON);
    assert_eq!(description_of::<Pair>(), "Pair@7{0:u32,1:(String,u8,),}");
    assert_eq!(description_of::<Unit>(), "Unit@1{}");
    assert_eq!(
        description_of::<Event>(),
        format!("Event@1|Tick{{}}|Bid{{0:u64,1:String,}}|Person{{person:{PERSON},at:[u8;2],}}|")
    );
    assert_eq!(
        description_of::<Generic<Id, 3>>(),
        "Generic@1{value:Id@1{0:String,},nested:Option<Id@1{0:String,}>,pad:[u8;3],}"
    );
    // The tag is no state: it needs no traits and has no part in the description.
    struct NoState;
    assert_eq!(description_of::<Tagged<NoState>>(), "Tagged@1{id:u32,tag:PhantomData,}");
    assert_eq!(
        description_of::<Shelf>(),
        format!("Shelf@1{{rows:Vec<Vec<{PERSON}>>,index:BTreeMap<u64,String>,weight:f64,}}")
    );
    assert_eq!(description_of::<Never>(), "Never@1|");
}

#[test]
fn a_type_that_contains_itself_has_a_finite_description() {
    // Each `Tree` inside is named only; `Forest`, which is not open there, is described.
    assert_eq!(
        description_of::<Tree>(),
        "Tree@1|Leaf{0:u8,}|Node{children:Vec<Tree@1>,\
         other:Box<Forest@1{first:Option<Tree@1>,second:Option<Tree@1>,}>,}|"
    );
    assert_eq!(description_of::<Tree>(), description_of::<Tree>());
    const { assert!(!Tree::NO_HEAP) };
}

#[test]
fn fingerprints_change_with_every_part() {
    macro_rules! variation {
        ($($item:item)*) => {
            [$({
                #[derive(State)]
                #[state(crate = alluvium_pagestore)]
                #[allow(dead_code)]
                $item
                fingerprint(&description_of::<A>())
            }),*]
        };
    }
    let fingerprints = variation! {
        struct A { a: u32, b: u32 }
        struct A { b: u32, a: u32 }
        struct A { a: u32, c: u32 }
        struct A { a: u32, b: i32 }
        struct A { a: u32, b: Option<u32> }
        struct A { a: u32 }
        #[state(version = 2)]
        struct A { a: u32, b: u32 }
        struct A(u32, u32);
        struct A;
        enum A { A, B }
        enum A { B, A }
        enum A { A, C }
        enum A { A, B(u8) }
        enum A { A, B { a: u8 } }
        #[state(version = 2)]
        enum A { A, B }
    };
    let distinct: HashSet<u64> = fingerprints.into_iter().collect();
    assert_eq!(distinct.len(), fingerprints.len());
}

#[test]
fn heap_sizes_are_the_sums_of_the_fields() {
    let person = person();
    let sum = person.name.heap_bytes() + person.r#type.heap_bytes();
    assert_eq!((person.heap_bytes(), sum), (sum, 64 + 32));
    let event = Event::Person { person: person.clone(), at: [0; 2] };
    // A clone is as long as its text, not as its source's capacity.
    assert_eq!(event.heap_bytes(), 32);
    assert_eq!(Event::Bid(1, String::with_capacity(100)).heap_bytes(), 112);
    assert_eq!(Event::Tick.heap_bytes(), 0);
    assert_eq!(Pair(1, ("abc".into(), 2)).heap_bytes(), 32);
    let generic = Generic { value: person.clone(), nested: Some(person), pad: [0; 9] };
    assert_eq!(generic.heap_bytes(), generic.value.heap_bytes() + generic.nested.heap_bytes());
    let shelf = Shelf { rows: vec![vec![]], index: BTreeMap::new(), weight: 0.0 };
    assert_eq!(shelf.heap_bytes(), shelf.rows.heap_bytes() + shelf.index.heap_bytes());
}

#[test]
fn plain_data_folds_to_nothing() {
    const {
        assert!(
            Unit::NO_HEAP
                && Never::NO_HEAP
                && Tagged::<String>::NO_HEAP
                && Generic::<u64, 8>::NO_HEAP
        );
        assert!(!Person::NO_HEAP && !Id::NO_HEAP && !Event::NO_HEAP && !Shelf::NO_HEAP);
        assert!(!Generic::<String, 0>::NO_HEAP);
    }
    #[derive(State)]
    #[state(crate = alluvium_pagestore)]
    #[expect(dead_code)]
    enum Plain {
        A(u64, [f32; 4]),
        B { x: Option<i8> },
    }
    const { assert!(Plain::NO_HEAP) };
    assert_eq!(Plain::B { x: None }.heap_bytes(), 0);
}

/// These values are part of the format: a change here needs a new `HASH_VERSION`.
#[test]
fn key_hashes_are_pinned() {
    let person = Person { id: 1, name: "ann".into(), r#type: None };
    let event = Event::Person { person: person.clone(), at: *b"de" };
    let pair = Pair(3, ("x".into(), 4));
    let by_hand = combine(combine(1u64.key_hash(), "ann".key_hash()), None::<u8>.key_hash());
    assert_eq!(person.key_hash(), by_hand);
    let by_hand = combine(combine(hash_word(2), by_hand), b"de".key_hash());
    assert_eq!(event.key_hash(), by_hand);
    assert_eq!(Unit.key_hash(), hash_word(0));
    assert_eq!(Event::Tick.key_hash(), hash_word(0));

    let vectors = [
        (person.key_hash(), 0x773d_ffe6_c165_9c8b),
        (event.key_hash(), 0x69ad_d028_5b16_014d),
        (pair.key_hash(), 0xe81d_db64_a6c3_d094),
        (Event::Bid(7, "b".into()).key_hash(), 0x50fa_e8e0_5004_b088),
        (Unit.key_hash(), 0xab24_5cd8_c11a_92f9),
        (Generic { value: 5u8, nested: Some(6), pad: [7; 2] }.key_hash(), 0x1d7a_3f51_5bad_b554),
    ];
    for (i, (found, pinned)) in vectors.into_iter().enumerate() {
        assert_eq!(found, pinned, "vector {i}: {found:#x}");
    }
}

#[test]
fn a_struct_of_one_field_hashes_as_its_field() {
    assert_eq!(Id("abc".into()).key_hash(), "abc".key_hash());
}

#[test]
fn enums_hash_as_options_do() {
    #[derive(KeyHash)]
    #[state(crate = alluvium_pagestore)]
    enum Maybe<T> {
        Nothing,
        Something(T),
    }
    assert_eq!(Maybe::<u8>::Nothing.key_hash(), None::<u8>.key_hash());
    assert_eq!(Maybe::Something(3u8).key_hash(), Some(3u8).key_hash());
}

/// Nothing of what the macros emit depends on what the user's module has in scope.
#[allow(dead_code, non_camel_case_types)]
mod hygiene {
    struct String;
    struct Option;
    struct u64;
    trait HeapSize {}
    fn combine() {}

    #[derive(alluvium_derive::State)]
    #[state(crate = alluvium_pagestore)]
    enum Name {
        A { out: ::std::string::String, value: u8 },
    }
}

#[test]
fn names_of_variables_do_not_clash_with_fields() {
    state! {
        struct Clash { out: u8, hash: u8, this: u8, field_0: u8 }
        enum Clashes { A { out: u8, field_1: u8, field_0: u8 } }
    }
    assert_ne!(
        Clashes::A { out: 1, field_1: 2, field_0: 3 }.key_hash(),
        Clashes::A { out: 1, field_1: 3, field_0: 2 }.key_hash()
    );
    let mut description = String::new();
    Clash::describe(&mut description);
    assert_eq!(description, "Clash@1{out:u8,hash:u8,this:u8,field_0:u8,}");
}

/// What rkyv makes of a type beside its fields is told, as records of one form would else be read as
/// those of another.
#[test]
fn descriptions_tell_what_changes_the_stored_form() {
    #[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
    #[state(crate = alluvium_pagestore)]
    #[rkyv(attr(derive(Debug)))]
    #[allow(dead_code)]
    enum Numbered {
        A = 3,
        B,
        C = 1 + 6,
    }
    assert_eq!(description_of::<Numbered>(), "Numbered@1|A=3{}|B{}|C=(1 + 6){}|");
    #[derive(Clone, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
    #[state(crate = alluvium_pagestore)]
    struct Boxed {
        #[rkyv(with = rkyv::with::AsBox)]
        a: u64,
        b: u8,
    }
    let told = description_of::<Boxed>();
    assert_eq!(told.replace(' ', ""), "Boxed@1{a:rkyv(with=rkyv::with::AsBox)(u64),b:u8,}");
    let boxed = Boxed { a: 1, b: 2 };
    assert_eq!(u64::from(boxed.b) + boxed.a, 3);
}
