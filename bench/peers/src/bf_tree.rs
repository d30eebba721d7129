//! bf-tree: a B-tree whose buffer has records and parts of pages. It keeps no value above 16,332 bytes, and here
//! no key and value above 16,160, as two of them have to fit into a page: a list that grows beyond that fails
//! its row.

use alluvium_gadget::engine::Kind;

#[cfg(not(feature = "bf-tree"))]
pub(super) fn kinds() -> Vec<Kind> {
    vec![Kind::missing("bf-tree", "left out when this was built; build with --features bf-tree")]
}

#[cfg(feature = "bf-tree")]
pub(super) fn kinds() -> Vec<Kind> {
    const NOTE: &str = "B-tree with a buffer of records and mini pages: the largest power of two within 7/8 of the \
                        memory; pages of 4 KiB, or of 32 KiB where lists are kept; no log; merge = get, append, put; \
                        keys end at 128 bytes, keys and values together at 16,160 (the store's own limit for \
                        values is 16,332): a longer list fails the row";
    vec![super::kind("bf-tree", super::version_of("bf-tree"), NOTE, 16, |open| {
        Ok(Box::new(tree::Tree::open(open)?))
    })]
}

#[cfg(feature = "bf-tree")]
mod tree {
    use alluvium_gadget::engine::{Engine, Open, See, Visit};
    use alluvium_gadget::operator::Name;
    use alluvium_gadget::{Error, Result};
    use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField};

    /// The longest key.
    const KEY_BYTES_MAX: usize = 128;
    /// More than what a page says of itself and of two records.
    const HEAD_BYTES: usize = 192;
    /// Pages of accumulators, and of lists.
    const PAGES: [usize; 2] = [4 << 10, 32 << 10];
    /// Room for a key and a value.
    const READ_BYTES: usize = 32 << 10;

    pub(crate) struct Tree {
        tree: BfTree,
        read: Vec<u8>,
        value: Vec<u8>,
    }

    impl Tree {
        pub(crate) fn open(open: &Open) -> Result<Self> {
            let keeps_lists = open.operator.only_lists()
                || open.operator.joins()
                || open.operator == Name::SessionIncremental;
            let config = config(open, PAGES[usize::from(keeps_lists)]);
            let tree = BfTree::with_config(config, None).map_err(wrong)?;
            Ok(Tree { tree, read: vec![0; READ_BYTES], value: Vec::new() })
        }

        /// The value of a key, in `read`.
        fn find(&mut self, key: &[u8]) -> Option<usize> {
            match self.tree.read(key, &mut self.read) {
                LeafReadResult::Found(bytes) => Some(bytes as usize),
                LeafReadResult::Deleted | LeafReadResult::NotFound | LeafReadResult::InvalidKey => {
                    None
                }
            }
        }
    }

    /// With the longest records that pages of this size take.
    fn config(open: &Open, page_bytes: usize) -> Config {
        let most = open.memory_bytes / 8 * 7;
        let mut config = Config::new(open.directory.join("bf-tree"), 1 << most.max(1).ilog2());
        config.leaf_page_size(page_bytes).cb_min_record_size(8).cb_max_key_len(KEY_BYTES_MAX);
        // Two records, two keys as fences, and what the page says of itself.
        config.cb_max_record_size((page_bytes - 2 * KEY_BYTES_MAX - HEAD_BYTES) / 2);
        config
    }

    fn wrong(error: impl std::fmt::Debug) -> Error {
        Error::Engine(format!("bf-tree: {error:?}"))
    }

    impl Engine for Tree {
        fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
            let found = self.find(key);
            see(found.map(|bytes| &self.read[..bytes]));
            Ok(())
        }

        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
            match self.tree.insert(key, value) {
                LeafInsertResult::Success => Ok(()),
                LeafInsertResult::InvalidKV(why) => {
                    let bytes = value.len();
                    Err(Error::Engine(format!("bf-tree keeps no value of {bytes} bytes: {why}")))
                }
            }
        }

        fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
            let found = self.find(key).unwrap_or(0);
            let mut value = std::mem::take(&mut self.value);
            value.clear();
            value.extend_from_slice(&self.read[..found]);
            value.extend_from_slice(operand);
            let done = self.put(key, &value);
            self.value = value;
            done
        }

        fn delete(&mut self, key: &[u8]) -> Result<()> {
            self.tree.delete(key);
            Ok(())
        }

        fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
            let mut scan = self
                .tree
                .scan_with_end_key(from, to, ScanReturnField::KeyAndValue)
                .map_err(wrong)?;
            while let Some((key, value)) = scan.next(&mut self.read) {
                let (key, rest) = self.read.split_at(key);
                visit(key, &rest[..value]);
            }
            Ok(())
        }
    }
}
