//! Standard ordered map: the twin that says what each access has to return.

use std::collections::BTreeMap;

use super::{Engine, See, Visit};
use crate::Result;

/// Values by key, in order.
#[derive(Debug, Default)]
pub struct BTree {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: u64,
    bytes_max: u64,
}

impl BTree {
    /// The most bytes of keys and values that were there.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    fn grow(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.bytes_max = self.bytes_max.max(self.bytes);
    }
}

impl Engine for BTree {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        see(self.values.get(key).map(Vec::as_slice));
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.values.get_mut(key) {
            Some(old) => {
                self.bytes -= old.len() as u64;
                old.clear();
                old.extend_from_slice(value);
                self.grow(value.len());
            }
            None => {
                self.values.insert(key.to_vec(), value.to_vec());
                self.grow(key.len() + value.len());
            }
        }
        Ok(())
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        match self.values.get_mut(key) {
            Some(value) => {
                value.extend_from_slice(operand);
                self.grow(operand.len());
            }
            None => {
                self.values.insert(key.to_vec(), operand.to_vec());
                self.grow(key.len() + operand.len());
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        if let Some(value) = self.values.remove(key) {
            self.bytes -= (key.len() + value.len()) as u64;
        }
        Ok(())
    }

    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Included(to));
        self.values.range::<[u8], _>(bounds).for_each(|(key, value)| visit(key, value));
        Ok(())
    }
}
