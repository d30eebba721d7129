//! FASTER through the wrapper `faster-rs`: keys and values are serialized, a value goes through a channel.

use alluvium_gadget::engine::Kind;

#[cfg(not(feature = "faster-rs"))]
pub(super) fn kinds() -> Vec<Kind> {
    let why = "left out when this was built; build with --features faster-rs, which takes cmake, clang, \
               libaio-dev libtbb-dev uuid-dev, and a clone of googletest that its build script makes";
    vec![Kind::missing("faster-rs", why)]
}

#[cfg(feature = "faster-rs")]
pub(super) fn kinds() -> Vec<Kind> {
    const NOTE: &str = "FASTER by the wrapper faster-rs: the index at most a quarter of the memory, the rest the log, at \
                        most 87 % of it mutable; keys and values by bincode, what is read through a channel; merge = its \
                        read-modify-write; ranges by an ordered set of keys beside it; a read of storage is waited for";
    vec![super::kind("faster-rs", super::version_of("faster-rs"), NOTE, 256, |open| {
        Ok(Box::new(wrapped::Wrapped::open(open)?))
    })]
}

#[cfg(feature = "faster-rs")]
mod wrapped {
    use alluvium_gadget::engine::{Directory, Engine, Open, See, Visit};
    use alluvium_gadget::{Error, Result};
    use faster_rs::{FasterKv, FasterKvBuilder, FasterRmw, status};
    use serde::{Deserialize, Serialize};

    const PAGE_BYTES: u64 = 32 << 20;
    const LOG_PAGES_MIN: u64 = 6;
    const CALLS_A_REFRESH: u64 = 256;

    /// A value; a read-modify-write appends to it.
    #[derive(Serialize, Deserialize)]
    struct Value(Vec<u8>);

    impl FasterRmw for Value {
        fn rmw(&self, more: Value) -> Value {
            Value([&self.0[..], &more.0].concat())
        }
    }

    pub(super) struct Wrapped {
        store: FasterKv,
        keys: Directory,
        calls: u64,
    }

    impl Wrapped {
        pub(super) fn open(open: &Open) -> Result<Self> {
            let most = power_below(open.memory_bytes / 4 / 64);
            let buckets = power_below((open.events as u64 / 2).max(1024)).min(most);
            let pages =
                (open.memory_bytes.saturating_sub(buckets * 64) / PAGE_BYTES).max(LOG_PAGES_MIN);
            let directory = format!("{}/", open.directory.display());
            let mut builder = FasterKvBuilder::new(buckets, pages * PAGE_BYTES);
            // The log wants four pages that are not mutable.
            let share = ((pages as f64 - 3.9) / pages as f64).min(0.87);
            let store = builder.with_disk(&directory).with_log_mutable_fraction(share).build();
            let store = store.map_err(|error| Error::Engine(format!("{error:?}")))?;
            store.start_session();
            Ok(Wrapped { store, keys: Directory::new(open.ranges()), calls: 0 })
        }

        /// The number of a call.
        fn next(&mut self) -> u64 {
            self.calls += 1;
            if self.calls % CALLS_A_REFRESH == 0 {
                self.store.refresh();
            }
            self.calls
        }

        fn done(&self, found: u8) -> Result<()> {
            match found {
                status::OK | status::NOT_FOUND => Ok(()),
                status::PENDING => {
                    self.store.complete_pending(true);
                    Ok(())
                }
                other => Err(Error::Engine(format!("faster-rs: status {other}"))),
            }
        }
    }

    fn power_below(number: u64) -> u64 {
        1 << number.max(1).ilog2()
    }

    impl Drop for Wrapped {
        fn drop(&mut self) {
            self.store.stop_session();
        }
    }

    impl Engine for Wrapped {
        fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
            let number = self.next();
            let (found, value) = self.store.read::<Vec<u8>, Value>(&key.to_vec(), number);
            self.done(found)?;
            // Without a value its sender is gone.
            let value = value.try_recv().ok();
            see(value.as_ref().map(|value| &value.0[..]));
            Ok(())
        }

        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
            self.keys.insert(key);
            let number = self.next();
            let done = self.store.upsert(&key.to_vec(), &Value(value.to_vec()), number);
            self.done(done)
        }

        fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
            self.keys.insert(key);
            let number = self.next();
            let done = self.store.rmw(&key.to_vec(), &Value(operand.to_vec()), number);
            self.done(done)
        }

        fn delete(&mut self, key: &[u8]) -> Result<()> {
            self.keys.remove(key);
            let number = self.next();
            let done = self.store.delete(&key.to_vec(), number);
            self.done(done)
        }

        fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
            let keys: Vec<Vec<u8>> = self.keys.range(from, to).map(<[u8]>::to_vec).collect();
            keys.iter().try_for_each(|key| {
                self.get(key, &mut |value| value.into_iter().for_each(|value| visit(key, value)))
            })
        }
    }
}
