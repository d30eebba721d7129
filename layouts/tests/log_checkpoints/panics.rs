//! Values that panic when they are cloned, encoded or dropped, while a checkpoint is taken: a clone
//! that panics has changed nothing, an encoding that panics is the error of the checkpoint, and what
//! died before one was given up panics for nobody when it goes, and leaves no mark.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use alluvium_pagestore::{HeapSize, Schema};
use rkyv::rancor::Fallible;
use rkyv::{Archive, Deserialize, Place, Serialize};

use crate::log::{Log, Value};

#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[rkyv(crate = rkyv)]
struct Plain(String);

/// A value that owns heap and panics as asked.
#[derive(Debug, PartialEq)]
struct Touchy(Plain);

thread_local! {
    /// What panics of one value in three; all is done on the test's thread.
    static PANICS: Cell<&'static str> = const { Cell::new("") };
    static PANICKED: Cell<u64> = const { Cell::new(0) };
}

impl Touchy {
    fn may_panic(&self, what: &str) {
        if PANICS.get() == what && self.0.0.len() % 3 == 0 && !std::thread::panicking() {
            PANICKED.set(PANICKED.get() + 1);
            panic!("planned: {what}");
        }
    }
}

impl Value for Touchy {
    fn of(n: u64) -> Self {
        Touchy(Plain(String::of(n)))
    }
}

impl Clone for Touchy {
    fn clone(&self) -> Self {
        self.may_panic("clone");
        Touchy(self.0.clone())
    }
}

impl Drop for Touchy {
    fn drop(&mut self) {
        self.may_panic("drop");
    }
}

impl HeapSize for Touchy {
    const NO_HEAP: bool = false;
    fn heap_bytes(&self) -> usize {
        self.0.0.heap_bytes()
    }
}

impl Schema for Touchy {
    fn describe(out: &mut String) {
        out.push_str("Touchy");
    }
}

impl Archive for Touchy {
    type Archived = ArchivedPlain;
    type Resolver = PlainResolver;
    fn resolve(&self, resolver: Self::Resolver, out: Place<Self::Archived>) {
        self.0.resolve(resolver, out);
    }
}

impl<S: Fallible + ?Sized> Serialize<S> for Touchy
where
    Plain: Serialize<S>,
{
    fn serialize(&self, serializer: &mut S) -> Result<Self::Resolver, S::Error> {
        self.may_panic("encode");
        self.0.serialize(serializer)
    }
}

impl<D: Fallible + ?Sized> Deserialize<Touchy, D> for ArchivedPlain
where
    ArchivedPlain: Deserialize<Plain, D>,
{
    fn deserialize(&self, deserializer: &mut D) -> Result<Touchy, D::Error> {
        Ok(Touchy(self.deserialize(deserializer)?))
    }
}

/// Does something while values panic.
fn while_panicking<R>(what: &'static str, act: impl FnOnce() -> R) -> R {
    PANICS.set(what);
    let done = act();
    PANICS.set("");
    done
}

#[test]
fn values_that_panic_while_a_checkpoint_is_taken() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.to_string().contains("planned: ") {
            usual(info);
        }
    }));
    let mut panicked = [0; 3];
    for seed in 1..=if crate::long() { 2000 } else { 20 } {
        let mut log = Log::<Touchy>::new(seed, false);
        for _ in 0..40 {
            log.change_some();
            log.begin();
            for _ in 0..log.dice.below(4) {
                log.change_some();
                while_panicking("encode", || log.advance());
                panicked[0] += PANICKED.take();
                // A record that is kept is cloned before anything of it is changed.
                let key = log.dice.below(log.keys);
                let modify = AssertUnwindSafe(|| log.modify(key, 5));
                let _panic = while_panicking("clone", || catch_unwind(modify));
                panicked[1] += PANICKED.take();
                log.advance();
            }
            if log.dice.below(2) == 0 {
                // What it has left goes later.
                let _kept = log.abort();
                while_panicking("drop", || log.tick(1000));
                panicked[2] += PANICKED.take();
            }
            log.change_some();
            log.confirm();
        }
        log.end();
    }
    println!("panics: {panicked:?}");
    assert!(panicked.iter().all(|panics| *panics > 10), "{panicked:?}");
}
