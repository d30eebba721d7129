//! An engine that is wrong once, to prove that runs notice.

use std::collections::HashMap;

use super::{Engine, See, Visit};
use crate::Result;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The delete of this number, from 1, of a key that is there is dropped.
    DropsDelete(u64),
    /// The read of this number, from 1, of a key that was written returns the value before that.
    StaleValue(u64),
}

/// An engine with a fault.
#[derive(Debug)]
pub struct Faulty<E> {
    engine: E,
    fault: Fault,
    deletes: u64,
    reads: u64,
    /// What each key had before it was written last.
    before: HashMap<Vec<u8>, Option<Vec<u8>>>,
}

impl<E: Engine> Faulty<E> {
    /// Puts a fault into an engine.
    pub fn new(engine: E, fault: Fault) -> Self {
        Faulty { engine, fault, deletes: 0, reads: 0, before: HashMap::new() }
    }

    /// Whether the fault has happened.
    pub fn has_happened(&self) -> bool {
        match self.fault {
            Fault::DropsDelete(number) => self.deletes >= number,
            Fault::StaleValue(number) => self.reads >= number,
        }
    }

    fn read(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.engine.get(key, &mut |value| found = value.map(<[u8]>::to_vec))?;
        Ok(found)
    }

    fn note(&mut self, key: &[u8]) -> Result<()> {
        let value = self.read(key)?;
        self.before.insert(key.to_vec(), value);
        Ok(())
    }

    /// The value before, if this read is the stale one.
    fn stale(&mut self, key: &[u8], value: Option<&[u8]>) -> Option<Option<Vec<u8>>> {
        let before = self.before.get(key).filter(|before| before.as_deref() != value)?;
        self.reads += 1;
        (self.fault == Fault::StaleValue(self.reads)).then(|| before.clone())
    }
}

impl<E: Engine> Engine for Faulty<E> {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        let value = self.read(key)?;
        match self.stale(key, value.as_deref()) {
            Some(before) => see(before.as_deref()),
            None => see(value.as_deref()),
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.note(key)?;
        self.engine.put(key, value)
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.note(key)?;
        self.engine.merge(key, operand)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.note(key)?;
        let is_there = self.read(key)?.is_some();
        self.deletes += u64::from(is_there);
        let drops = is_there && self.fault == Fault::DropsDelete(self.deletes);
        if drops { Ok(()) } else { self.engine.delete(key) }
    }

    fn range(&mut self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        let mut found = Vec::new();
        self.engine
            .range(from, to, &mut |key, value| found.push((key.to_vec(), value.to_vec())))?;
        for (key, value) in found {
            match self.stale(&key, Some(&value)) {
                Some(before) => before.iter().for_each(|before| visit(&key, before)),
                None => visit(&key, &value),
            }
        }
        Ok(())
    }
}
