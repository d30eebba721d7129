//! A segment with bytes changed reads as it was written, or is refused; nothing panics and no
//! other value is served.

#![no_main]

use std::sync::Arc;

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{SegmentReader, SegmentStore, SegmentWriter, codec};
use libfuzzer_sys::fuzz_target;

const STATE: u64 = 7;

fn value_of(key: u64) -> String {
    format!("value of {key} ").repeat(1 + key as usize % 40)
}

fuzz_target!(|changes: Vec<(u32, u8)>| {
    let device = Simulated::new(1, Faults::none());
    let store = SegmentStore::new(Arc::new(device.clone()), 1);
    let mut writer = SegmentWriter::new(store.clone(), STATE, 8192, 1 << 20);
    for page in 0..3u64 {
        writer.begin_page().unwrap();
        for key in page * 10..page * 10 + 10 {
            writer.push(key, &key, &value_of(key)).unwrap();
        }
        writer.finish_page().unwrap();
    }
    writer.seal().unwrap();
    let info = writer.take_sealed().pop().unwrap();
    for (offset, xor) in &changes {
        let offset = u64::from(*offset) % info.bytes;
        for bit in 0..8 {
            if xor >> bit & 1 == 1 {
                device.corrupt(&info.id.file_name(), offset, bit);
            }
        }
    }
    let mut reader = SegmentReader::new(store, STATE, 4096);
    let _ = reader.for_each(&info, None, |_, record| {
        let (key, value) = codec::decode::<u64, String>(record.payload)?;
        assert_eq!(value, value_of(key), "a damaged record was served");
        Ok(())
    });
    let _ = device.list();
});
