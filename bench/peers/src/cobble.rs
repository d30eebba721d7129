//! cobble: an LSM of bytes made for stream processors. Lists grow by its merge operator, which concatenates.

use alluvium_gadget::engine::Kind;

#[cfg(not(feature = "cobble"))]
pub(super) fn kinds() -> Vec<Kind> {
    let why = "left out when this was built; build with --features cobble, which takes some 270 crates more";
    vec![Kind::missing("cobble", why)]
}

#[cfg(feature = "cobble")]
pub(super) fn kinds() -> Vec<Kind> {
    const NOTE: &str = "LSM; memtables 3 x 1/8 of the memory, by hash where no ranges are asked for, block cache 1/2; \
                        bloom filters of 10 bits; no log, no compression, no block checksums; 2 compaction threads; \
                        merge by its operator";
    vec![super::kind("cobble", super::version_of("cobble"), NOTE, 32, |open| {
        Ok(Box::new(lsm::Cobble::open(open)?))
    })]
}

#[cfg(feature = "cobble")]
mod lsm {
    use alluvium_gadget::engine::{Engine, Open, See, Visit};
    use alluvium_gadget::{Error, Result};
    use cobble::{Config, Db, MemtableType, SstCompressionAlgorithm, VolumeDescriptor};
    use size::Size;

    /// The only bucket, and its only column.
    const BUCKET: u16 = 0;
    const COLUMN: u16 = 0;

    pub(crate) struct Cobble(Db);

    impl Cobble {
        pub(crate) fn open(open: &Open) -> Result<Self> {
            let part = |share: u64| Size::from_bytes(open.memory_bytes / share);
            let volume = format!("file://{}", open.directory.join("cobble").display());
            let config = Config {
                volumes: VolumeDescriptor::single_volume(volume),
                memtable_capacity: part(8),
                memtable_buffer_count: 3,
                memtable_type: match open.ranges() {
                    true => MemtableType::Adaptive,
                    false => MemtableType::Hash,
                },
                block_cache_size: part(2),
                sst_bloom_filter_enabled: true,
                sst_bloom_bits_per_key: 10,
                sst_compression_by_level: vec![SstCompressionAlgorithm::None],
                block_checksum_enabled: false,
                compaction_threads: 2,
                log_level: log::LevelFilter::Off,
                ..Config::default()
            };
            Ok(Cobble(Db::open(config, vec![0..=0]).map_err(wrong)?))
        }
    }

    fn wrong(error: cobble::Error) -> Error {
        Error::Engine(format!("cobble: {error}"))
    }

    impl Drop for Cobble {
        fn drop(&mut self) {
            // What cannot be written here was not promised to anybody.
            let _ = self.0.close();
        }
    }

    impl Engine for Cobble {
        fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
            let found = self.0.get(BUCKET, key).map_err(wrong)?;
            let column = found.as_ref().and_then(|columns| columns.first()?.as_ref());
            see(column.map(|value| &value[..]));
            Ok(())
        }

        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
            self.0.put(BUCKET, key, COLUMN, value).map_err(wrong)
        }

        fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
            self.0.merge(BUCKET, key, COLUMN, operand).map_err(wrong)
        }

        fn delete(&mut self, key: &[u8]) -> Result<()> {
            self.0.delete(BUCKET, key, COLUMN).map_err(wrong)
        }

        fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
            // The end of a scan is not part of it; the key after `to` is.
            let end = [to, &[0]].concat();
            for row in self.0.scan(BUCKET, from..&end).map_err(wrong)? {
                let (key, columns) = row.map_err(wrong)?;
                if let Some(Some(value)) = columns.first() {
                    visit(&key, value);
                }
            }
            Ok(())
        }
    }
}
