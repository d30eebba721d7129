//! Types that write something else than they read: the state does not open, or its first checkpoint
//! is refused naming state and types, in each layout and primitive; nothing of it is ever served.
//! Types without order are kept like others, and refused in canonical files.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::types::{HeapSize, Schema, Serde};
use alluvium::{
    Aggregate, AnyLayout, AppendLog, Error, ErrorKind, Heap, HybridLog, KIB, MIB, Map, State,
    Store, Time, WindowSegments, Windows,
};
use rkyv::rancor::Fallible;
use rkyv::rend::u32_le;
use rkyv::{Archive, Deserialize, Place, Serialize};

use crate::common::{open_on, tiny};

/// Comes back as a number one higher.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Drifting(u32);

impl HeapSize for Drifting {
    const NO_HEAP: bool = true;
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Schema for Drifting {
    fn describe(out: &mut String) {
        out.push_str("Drifting");
    }
}

impl Archive for Drifting {
    type Archived = u32_le;
    type Resolver = ();
    fn resolve(&self, (): (), out: Place<u32_le>) {
        self.0.resolve((), out);
    }
}

impl<S: Fallible + ?Sized> Serialize<S> for Drifting {
    fn serialize(&self, _: &mut S) -> Result<(), S::Error> {
        Ok(())
    }
}

impl<D: Fallible + ?Sized> Deserialize<Drifting, D> for u32_le {
    fn deserialize(&self, _: &mut D) -> Result<Drifting, D::Error> {
        Ok(Drifting(self.to_native() + 1))
    }
}

fn open() -> Store {
    open_on(Arc::new(Simulated::new(1, Faults::none())), tiny(), 8 * MIB).unwrap()
}

fn assert_refused<T: std::fmt::Debug>(refused: alluvium::Result<T>, what: &str) {
    let error = refused.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Config, "{what}: {error}");
    let told = error.to_string();
    assert!(told.contains("Drifting") && told.contains("comes back as another value"), "{told}");
    assert!(
        error.context("state").is_some_and(|name| name.starts_with("odd")),
        "{what}: {error:?}"
    );
}

#[test]
fn a_map_is_refused_by_its_first_checkpoint() {
    for layout in [Heap::new().into(), AnyLayout::from(tiny()), HybridLog::new().into()] {
        let store = open();
        let what = format!("{layout:?}");
        let mut map: Map<u64, Drifting> = store.map("odd").layout(layout).open().unwrap();
        map.put(7, Drifting(3)).unwrap();
        for _ in 0..3 {
            assert_refused(store.checkpoint(1), &what);
            assert_eq!(map.get(&7).unwrap().as_deref(), Some(&Drifting(3)));
        }
        map.remove(&7).unwrap();
        store.checkpoint(2).unwrap();
    }
}

#[test]
fn a_list_is_refused_by_its_first_checkpoint() {
    for layout in [Heap::new().into(), AnyLayout::from(AppendLog::new())] {
        let store = open();
        let what = format!("{layout:?}");
        let mut list = store.list::<u64, Drifting>("odd").layout(layout).open().unwrap();
        list.append(&7, Drifting(3)).unwrap();
        assert_refused(store.checkpoint(1), &what);
    }
}

#[test]
fn a_set_of_timers_is_refused_by_its_first_checkpoint() {
    let store = open();
    let mut timers = store.timers_in::<u64, Drifting>("odd").unwrap();
    timers.set_in(3, Time(7), Drifting(3)).unwrap();
    assert_refused(store.checkpoint(1), "timers");
}

/// Counts.
struct Count;

impl Aggregate<()> for Count {
    type Acc = Drifting;
    type Out = u32;

    fn init(&self) -> Drifting {
        Drifting(0)
    }

    fn add(&self, acc: &mut Drifting, (): &()) {
        acc.0 += 1;
    }

    fn merge(&self, acc: &mut Drifting, later: &Drifting) {
        acc.0 += later.0;
    }

    fn out(&self, acc: &Drifting) -> Option<u32> {
        Some(acc.0)
    }
}

#[test]
fn windows_are_refused_by_their_first_checkpoint() {
    for layout in [Heap::new().into(), AnyLayout::from(WindowSegments::new())] {
        for windows in [Windows::tumbling(nanos(10)), Windows::session(nanos(10))] {
            let store =
                open_on(Arc::new(Simulated::new(1, Faults::none())), layout.clone(), 8 * MIB);
            let store = store.unwrap();
            let what = format!("{layout:?} {windows:?}");
            let mut counts = store.aggregated::<u64, (), _>("odd").open(windows, Count).unwrap();
            let mut batch = vec![(7, Time(5), ())];
            counts.add_batch(Time(0), &mut batch, &mut |_| (), &mut |_, _, _, _| ()).unwrap();
            assert_refused(store.checkpoint(1), &what);
        }
    }
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize, State)]
#[state(serde)]
struct Row {
    id: u64,
    inner: Inner,
}

/// Stored by rkyv where it stands alone; what serde makes of it loses a field.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, State)]
struct Inner {
    kept: u64,
    #[serde(skip)]
    lost: u64,
}

#[test]
fn a_type_within_one_by_serde_is_refused_when_the_state_is_opened() {
    let store = open();
    let refusals: [Error; 2] = [
        store.map::<u64, Row>("odd").open().unwrap_err(),
        store.list::<u64, Serde<Vec<Inner>>>("odd").open().unwrap_err(),
    ];
    for error in refusals {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("#[serde(skip)] Inner"), "{error}");
        assert_eq!(error.context("state"), Some("odd"), "{error}");
    }
    let row = Row { id: 1, inner: Inner { kept: 2, lost: 3 } };
    assert_eq!(row.id + row.inner.kept, 3);
    // By rkyv it is whole.
    let mut map: Map<u64, Inner> = store.map("odd").open().unwrap();
    map.put(1, row.inner).unwrap();
    store.checkpoint(1).unwrap();
    assert_eq!(map.get(&1).unwrap().map(|inner| inner.lost), Some(3));
}

#[test]
fn what_has_no_order_is_kept_and_refused_in_canonical_files() {
    let device = Arc::new(Simulated::new(2, Faults::none()));
    let pairs = |n: u64| (0..n % 40).map(|i| (i, format!("{i}"))).collect::<HashMap<_, _>>();
    let mut model = BTreeMap::new();
    for round in 0..2 {
        let store = open_on(device.clone(), tiny(), 512 * KIB).unwrap();
        let mut by_rkyv: Map<u64, HashMap<u64, String>> = store.map("rkyv").open().unwrap();
        let mut by_serde: Map<u64, Serde<HashMap<u64, String>>> =
            store.map("serde").open().unwrap();
        for (key, value) in &model {
            assert_eq!(by_rkyv.get(key).unwrap().as_deref(), Some(value));
            assert_eq!(
                by_serde.get(key).unwrap().map(|value| value.0.clone()).as_ref(),
                Some(value)
            );
        }
        for key in round * 300..(round + 1) * 300 {
            by_rkyv.put(key, pairs(key)).unwrap();
            by_serde.put(key, Serde(pairs(key))).unwrap();
            model.insert(key, pairs(key));
        }
        store.checkpoint(1).unwrap();
        for state in ["rkyv", "serde"] {
            let error = store.export_states(&[state], Vec::new()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("HashMap<u64,String>"), "{error}");
            assert_eq!(error.context("state"), Some(state), "{error}");
        }
    }
}
