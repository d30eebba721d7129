//! Bytes that claim to be a record or a manifest decode, or are refused; nothing panics.

#![no_main]

use alluvium_pagestore::{CheckpointImage, Manifest, Serde, codec};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Manifest::parse(bytes);
    let _ = CheckpointImage::parse("checkpoint-0000000000000001", bytes);
    // Archives must be aligned, as they are in a page.
    let mut aligned = alluvium_pagestore::io::IoBuffer::zeroed(bytes.len().max(1));
    aligned.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let payload = &aligned.as_slice()[..bytes.len()];
    let _ = codec::decode::<u64, u64>(payload);
    let _ = codec::decode::<String, Vec<String>>(payload);
    let _ = codec::decode::<Serde<String>, Serde<Vec<Option<(u32, char)>>>>(payload);
    let _ = codec::decode::<(u32, String), Option<Vec<(bool, char)>>>(payload);
});
