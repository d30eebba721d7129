//! A segment, of whose images one has no footer, with bytes changed, anywhere or at its end, where the directory is, or cut, reads as it was written, or is refused; nothing panics and no
//! other value is served.

#![no_main]

use std::sync::Arc;

use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{SegmentReader, SegmentStore, SegmentWriter, WholeSegment, codec};
use libfuzzer_sys::fuzz_target;

const STATE: u64 = 7;

fn value_of(key: u64) -> String {
    format!("value of {key} ").repeat(1 + key as usize % 40)
}

/// The page whose records are short and of one length.
const BARE: u64 = 1;

fn is_bare(key: u64) -> bool {
    key / 10 == BARE
}

/// A record is of its key's page, and as it was written.
fn check(hash: u64, payload: &[u8]) -> alluvium_pagestore::Result<()> {
    if is_bare(hash) {
        let (key, value) = codec::decode::<u64, u64>(payload)?;
        assert_eq!((key, value), (hash, !hash), "a damaged record was served");
    } else {
        let (key, value) = codec::decode::<u64, String>(payload)?;
        assert_eq!((key, value), (hash, value_of(hash)), "a damaged record was served");
    }
    Ok(())
}

fuzz_target!(|input: (Vec<(u32, bool, u8)>, Option<u16>)| {
    let (changes, cut) = input;
    let device = Simulated::new(1, Faults::none());
    let store = SegmentStore::new(Arc::new(device.clone()), 1);
    let mut writer = SegmentWriter::new(store.clone(), STATE, 8192, 1 << 20);
    for page in 0..3u64 {
        writer.begin_page().unwrap();
        for key in page * 10..page * 10 + 10 {
            let pushed = match is_bare(key) {
                true => writer.push(key, &key, &!key),
                false => writer.push(key, &key, &value_of(key)),
            };
            pushed.unwrap();
        }
        writer.finish_page().unwrap();
    }
    writer.seal().unwrap();
    let info = writer.take_sealed().pop().unwrap();
    for (offset, at_end, xor) in &changes {
        let offset = u64::from(*offset) % if *at_end { info.bytes.min(512) } else { info.bytes };
        let offset = if *at_end { info.bytes - 1 - offset } else { offset };
        for bit in 0..8 {
            if xor >> bit & 1 == 1 {
                device.corrupt(&info.id.file_name(), offset, bit).unwrap();
            }
        }
    }
    if let Some(cut) = cut {
        device.truncate(&info.id.file_name(), info.bytes - u64::from(cut) % info.bytes).unwrap();
    }
    // As a whole, all of its damage told.
    let bytes = device.bytes(&info.id.file_name()).unwrap();
    let whole = WholeSegment::open(&info, STATE, &bytes);
    for image in whole.images() {
        let Ok(entries) = whole.footer(image) else { continue };
        for entry in entries {
            if let Ok(record) = whole.record(image, &entry) {
                check(record.hash, record.payload).unwrap();
            }
        }
    }
    let mut reader = SegmentReader::new(store, STATE, 4096);
    let _ = reader.for_each(&info, None, |_, record| check(record.hash, record.payload));
    let _ = device.list();
});
