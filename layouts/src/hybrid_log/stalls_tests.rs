//! Reads that were left, of an engine that stops before they end: their memory is given back to the account.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use alluvium_pagestore::io::{Device, Faults, FileHandle, IoStats, Operation, Request, Simulated};
use alluvium_pagestore::{Account, ErrorKind, Helper, KIB, MIB, MemoryKind, Result, SegmentStore};

use super::{HybridLog, HybridLogTable};
use crate::contract::table::{Layout, StateContext, Table};

/// A device that keeps reads of many blocks, and loses them when it is told to.
#[derive(Debug)]
struct Losing {
    device: Simulated,
    /// Reads of more bytes than these are kept.
    most: Mutex<usize>,
    kept: Mutex<Vec<Request>>,
}

impl Device for Losing {
    fn engine(&self) -> &'static str {
        "losing"
    }

    fn stats(&self) -> IoStats {
        self.device.stats()
    }

    fn create(&self, name: &str) -> Result<FileHandle> {
        self.device.create(name)
    }

    fn open(&self, name: &str) -> Result<FileHandle> {
        self.device.open(name)
    }

    fn len(&self, file: &FileHandle) -> Result<u64> {
        self.device.len(file)
    }

    fn submit(&self, request: Request) {
        let is_read = matches!(request.operation, Operation::Read { .. });
        match is_read && request.buffer.len() > *self.most.lock().unwrap() {
            true => self.kept.lock().unwrap().push(request),
            false => self.device.submit(request),
        }
    }

    fn rename(&self, source: &str, target: &str) -> Result<()> {
        self.device.rename(source, target)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.device.remove(name)
    }

    fn sync_directory(&self) -> Result<()> {
        self.device.sync_directory()
    }

    fn list(&self) -> Result<Vec<String>> {
        self.device.list()
    }

    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.device.lock()
    }
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; if key.is_multiple_of(10) { 20_000 } else { 100 }]
}

#[test]
fn an_engine_that_stops_gives_the_memory_of_a_long_record_back() {
    let device = Arc::new(Losing {
        device: Simulated::new(1, Faults::none()),
        most: Mutex::new(usize::MAX),
        kept: Mutex::default(),
    });
    let account = Account::below(&Account::root(2 * MIB), "log", u64::MAX);
    let context = StateContext {
        name: "log".into(),
        account: Rc::clone(&account),
        segments: Some(SegmentStore::new(device.clone(), 1)),
        helper: Helper::inline(),
        max_value_bytes: 32 * KIB,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    };
    let layout = HybridLog::new().memory(512 * KIB).patience(std::time::Duration::from_millis(40));
    let mut table: HybridLogTable<u64, Vec<u8>> = layout.open(context).unwrap();
    for key in 0..2000 {
        // Writing may take longer than the patience where a machine is busy.
        while let Err(rejected) = table.put(key, value(key)) {
            assert_eq!(rejected.error.kind(), ErrorKind::Backpressure, "{:?}", rejected.error);
        }
    }
    let before = account.used_for(MemoryKind::Buffers);
    for key in (0..200).step_by(10) {
        *device.most.lock().unwrap() = 16_384;
        let error = table.take(&key).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backpressure, "{error:?}");
        assert!(account.used_for(MemoryKind::Buffers) > before, "{key}");
        // The engine stops.
        device.kept.lock().unwrap().clear();
        *device.most.lock().unwrap() = usize::MAX;
        assert_eq!(table.take(&key).unwrap(), Some(value(key)));
        assert_eq!(account.used_for(MemoryKind::Buffers), before, "{key}");
    }
}
