//! Node, worker and operator each choose a layout; and what cannot be configured is refused.

use crate::common;
use alluvium::config::ByteSize;
use alluvium::{AnyLayout, ErrorKind, Heap, KIB, Result, StoreConfig};
use alluvium_timely::{
    Counting, KeyBy, NodeConfig, Rolling, Spec, WorkerOverrides, WorkerState, install,
};

/// Counts 2,000 keys, for which 8 KiB do not suffice.
fn count(
    node: NodeConfig,
    overrides: WorkerOverrides,
    spec: impl Fn() -> Spec + Send + Sync + 'static,
) -> Result<usize> {
    let rows = (0..2_000u64).collect();
    let rolled = common::run(2, node, overrides, vec![(0u64, rows)], move |rows, state| {
        rows.key_by(state, |key: &u64| *key).rolling(spec(), Counting)
    });
    rolled.map(|counts| counts.len())
}

fn small() -> AnyLayout {
    Heap::new().memory(8 * KIB).into()
}

fn roomy() -> AnyLayout {
    Heap::new().into()
}

fn node(layout: AnyLayout) -> NodeConfig {
    StoreConfig { layout, ..StoreConfig::default() }.into()
}

fn worker(layout: AnyLayout) -> WorkerOverrides {
    WorkerOverrides { layout: Some(layout), ..WorkerOverrides::default() }
}

#[test]
fn the_operator_wins_over_the_worker_and_the_worker_over_the_node() {
    let plain = || Spec::new("counts");
    let is_small = |outcome: Result<usize>| match outcome {
        Ok(keys) => {
            assert_eq!(keys, 2_000);
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
            true
        }
    };
    assert!(is_small(count(node(small()), WorkerOverrides::default(), plain)));
    assert!(!is_small(count(node(small()), worker(roomy()), plain)));
    assert!(is_small(count(node(roomy()), worker(small()), plain)));
    assert!(!is_small(count(node(small()), worker(small()), || {
        Spec::new("counts").layout(roomy())
    })));
    assert!(
        is_small(count(node(roomy()), worker(roomy()), || Spec::new("counts").layout(small())))
    );
    let named = WorkerOverrides {
        states: [("counts/groups".to_owned(), small())].into(),
        ..WorkerOverrides::default()
    };
    assert!(is_small(count(node(roomy()), named, plain)));
}

#[test]
fn the_nodes_memory_is_shared_by_its_workers() {
    let mut config = timely::Config::process(3);
    let memory = ByteSize(3 << 20);
    install(&mut config, StoreConfig { memory, ..StoreConfig::default() }.into()).unwrap();
    let guards = timely::execute(config, |worker| {
        let state = WorkerState::new(worker, WorkerOverrides::default()).unwrap();
        state.store().stats().unwrap().memory.limit
    });
    for limit in guards.unwrap().join() {
        assert_eq!(limit.unwrap(), 1 << 20);
    }
}

#[test]
fn workers_without_a_node_or_a_key_group_are_refused() {
    let guards = timely::execute(timely::Config::process(1), |worker| {
        WorkerState::new(worker, WorkerOverrides::default()).unwrap_err().to_string()
    });
    for message in guards.unwrap().join() {
        assert!(message.unwrap().contains("install()"));
    }
    let node = StoreConfig { key_groups: 2, ..StoreConfig::default() };
    let refused = install(&mut timely::Config::process(3), node.into()).unwrap_err();
    assert!(refused.to_string().contains("3 workers cannot share 2 key groups"), "{refused}");
}

#[test]
fn two_operators_cannot_have_one_id() {
    let refused = common::run(
        1,
        NodeConfig::default(),
        WorkerOverrides::default(),
        vec![(0u64, vec![1u64])],
        |rows, state| {
            let id = |key: &u64| *key;
            rows.clone().key_by(state, id).rolling(Spec::new("same"), Counting)?;
            rows.key_by(state, id).rolling(Spec::new("same"), Counting)
        },
    );
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InUse);
}
