//! A layout that has all in memory can write its checkpoint a batch at a time: what is read back is what was written, and
//! what is given up leaves nothing, neither files nor memory.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{EntryWriter, StateContext, read_entries};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{Account, BlobReader, Helper, SegmentStore};

fn context(device: &Simulated, account: &Rc<Account>) -> StateContext {
    StateContext {
        name: "table".into(),
        account: account.clone(),
        segments: Some(SegmentStore::new(Arc::new(device.clone()), 1)),
        helper: Helper::inline(),
        max_value_bytes: 4096,
        key_groups: 256,
        owned: 0..256,
        movable: false,
        restored: None,
    }
}

#[test]
fn entries_are_read_back_as_they_were_written_and_none_is_left_of_what_was_given_up() {
    let device = Simulated::new(1, Faults::default());
    let account = Account::root(1 << 20);
    let context = context(&device, &account);
    let entries: BTreeMap<u64, String> =
        (0..3000).map(|n| (n, "v".repeat(n as usize % 300))).collect();
    let mut given_up = EntryWriter::new::<u64, String>(&context).unwrap();
    let mut writer = EntryWriter::new::<u64, String>(&context).unwrap();
    let mut batches = 0;
    for (key, value) in &entries {
        while !writer.is_ready().unwrap() || !writer.has_room() {
            if writer.is_ready().unwrap() {
                writer.submit();
                batches += 1;
            }
            writer.pause();
        }
        writer.push(key, value).unwrap();
        given_up.wait().unwrap();
        given_up.push(key, value).unwrap();
    }
    assert!(batches > 10, "{batches}");
    writer.submit_end();
    writer.wait().unwrap();
    let image = writer.take_image();
    assert_eq!(image.entries, entries.len() as u64);
    drop((writer, given_up));
    assert_eq!(account.used(), 0);
    assert_eq!(device.list().unwrap().len(), image.segments().count());
    let (mut found, blobs) = (BTreeMap::new(), BlobReader::new(Arc::new(device)));
    read_entries(&context, &image, &blobs, |key: u64, value: String| {
        assert!(found.insert(key, value).is_none(), "an entry is there twice");
        Ok(())
    })
    .unwrap();
    assert_eq!(found, entries);
}
