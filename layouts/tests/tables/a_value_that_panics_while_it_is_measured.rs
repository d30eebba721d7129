//! A value whose heap bytes panic while it is taken, changed or put: nothing is lost, and the memory is counted to the byte.
//!
//! What this catches: bytes that stay booked for an entry that is gone.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use alluvium_layouts::{Cursor, Heap, HybridLog, Layout, StateContext, Table};
use alluvium_pagestore::{Account, HeapSize, Helper, KIB, MIB, MemoryKind, Schema};

#[derive(Clone, Debug, PartialEq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
struct Touchy(String);

thread_local! {
    /// After so many more values are measured, the next one panics.
    static AFTER: Cell<Option<u32>> = const { Cell::new(None) };
}

impl HeapSize for Touchy {
    const NO_HEAP: bool = false;

    fn heap_bytes(&self) -> usize {
        match AFTER.get() {
            Some(0) => {
                AFTER.set(None);
                panic!("planned")
            }
            after => AFTER.set(after.map(|after| after - 1)),
        }
        self.0.heap_bytes()
    }
}

impl Schema for Touchy {
    fn describe(out: &mut String) {
        out.push_str("Touchy");
    }
}

fn open<L: Layout<u64, Touchy>>(layout: &L, account: &Rc<Account>) -> L::Table {
    let context = StateContext {
        name: "touchy".into(),
        account: account.clone(),
        segments: None,
        helper: Helper::inline(),
        max_value_bytes: 4 * KIB,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    layout.open(context).unwrap()
}

fn value(n: u64) -> Touchy {
    Touchy(format!("{n:0width$}", width = 20 + n as usize % 50))
}

/// Makes a call whose `nth` measurement panics; says whether one did.
fn panics(nth: u32, call: impl FnOnce()) -> bool {
    AFTER.set(Some(nth));
    let caught = catch_unwind(AssertUnwindSafe(call)).is_err();
    AFTER.set(None);
    caught
}

fn nothing_is_lost_of<L: Layout<u64, Touchy>>(layout: &L) {
    let account = Account::root(8 * MIB);
    let mut table = open(layout, &account);
    let put_all = |table: &mut L::Table| {
        for n in 0..200 {
            table.put(n, value(n)).unwrap();
        }
    };
    put_all(&mut table);
    let full = account.used_for(MemoryKind::Values);
    for nth in 0..6 {
        let (mut caught, mut there) = (0, Vec::new());
        for n in 0..200u64 {
            caught += u32::from(panics(nth, || drop(table.take(&n))));
            there.push(table.get(&n).unwrap().is_some());
        }
        let left = there.iter().filter(|there| **there).count() as u64;
        assert_eq!(table.len(), left, "{nth}: {caught} panics");
        put_all(&mut table);
        assert_eq!(account.used_for(MemoryKind::Values), full, "{nth}: {caught} panics");
    }
    for n in 0..200 {
        assert_eq!(table.take(&n).unwrap(), Some(value(n)));
    }
    assert_eq!(account.used_for(MemoryKind::Values), 0);
    drop(table);
    assert_eq!(account.used(), 0);
}

/// Puts over entries, of which some measurements panic: each key has its old value or its new one.
fn each_key_has_a_value_of<L: Layout<u64, Touchy>>(layout: &L) {
    let account = Account::root(8 * MIB);
    let mut table = open(layout, &account);
    for nth in 0..6 {
        for n in 0..200 {
            table.put(n, value(n)).unwrap();
        }
        for n in 0..200 {
            let new = value(n + 17);
            panics(nth, || drop(table.put(n, new.clone())));
            let there = table.get(&n).unwrap().expect("a key that was put").clone();
            assert!(there == value(n) || there == new, "{nth}: {there:?}");
        }
        let mut heap = 0;
        table
            .scan(&mut Cursor::default(), usize::MAX, &mut |_, value| {
                heap += value.heap_bytes() as u64;
                Ok(())
            })
            .unwrap();
        assert_eq!(table.len(), 200, "{nth}");
        assert_eq!(account.used_for(MemoryKind::Values), heap, "{nth}");
    }
    drop(table);
    assert_eq!(account.used(), 0);
}

#[test]
fn when_it_is_put_over_another() {
    each_key_has_a_value_of(&Heap::new());
    each_key_has_a_value_of(&HybridLog::new());
}

#[test]
fn when_it_is_taken_from_the_heap() {
    nothing_is_lost_of(&Heap::new());
}

#[test]
fn when_it_is_taken_from_a_hybrid_log() {
    nothing_is_lost_of(&HybridLog::new());
}
