//! Records of erased types that are shown in runs: their types are compared once for all records of a run.
//!
//! What makes it sound: a run has the places of [records](RecordRef) of one type, which live as long as it does.

use std::marker::PhantomData;

use alluvium_pagestore::Result;

use super::record_type_unsafe::{NativeEntry, RecordRef, RecordType};

/// Records in memory that are shown together.
const RUN: usize = 32;

/// Some records of one type, to be looked at one after the other: their types are compared once.
pub(crate) struct RecordRun<'a> {
    record_type: &'static RecordType,
    /// Initialised entries of these types, the first `count` of them.
    entries: [*const u8; RUN],
    count: usize,
    lives: PhantomData<&'a ()>,
}

impl<'a> RecordRun<'a> {
    /// A run of one record.
    pub(crate) fn of(record: RecordRef<'a>) -> Self {
        let mut run = Self::empty(record.record_type());
        run.push(record);
        run
    }

    fn empty(record_type: &'static RecordType) -> Self {
        Self { record_type, entries: [std::ptr::null(); RUN], count: 0, lives: PhantomData }
    }

    #[inline(always)]
    fn push(&mut self, record: RecordRef<'a>) {
        assert!(std::ptr::eq(record.record_type(), self.record_type), "a record of another table");
        self.entries[self.count] = record.as_ptr();
        self.count += 1;
    }

    /// Shows records of one table in runs.
    ///
    /// # Errors
    /// Those of `visit`, at once.
    #[inline]
    pub(crate) fn show(
        record_type: &'static RecordType,
        records: impl Iterator<Item = RecordRef<'a>>,
        visit: &mut dyn FnMut(&RecordRun<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut run = Self::empty(record_type);
        for record in records {
            if run.count == RUN {
                visit(&run)?;
                run.count = 0;
            }
            run.push(record);
        }
        if run.count == 0 { Ok(()) } else { visit(&run) }
    }

    /// The records.
    pub(crate) fn records(&self) -> impl Iterator<Item = RecordRef<'a>> {
        let record_type = self.record_type;
        let entries = self.entries[..self.count].iter();
        // SAFETY: each entry was that of a record of this type and lifetime.
        entries.map(move |&entry| unsafe { RecordRef::new(record_type, entry) })
    }

    /// Keys and values.
    ///
    /// # Panics
    /// If they are of other types.
    #[inline]
    pub(crate) fn native<K: 'static, V: 'static>(&self) -> impl Iterator<Item = (&'a K, &'a V)> {
        assert!(self.record_type.is::<K, V>(), "records of other types");
        self.entries[..self.count].iter().map(|&entry| {
            // SAFETY: each entry was that of a record of these types and this lifetime.
            let entry = unsafe { &*entry.cast::<NativeEntry<K, V>>() };
            (&entry.key, &entry.value)
        })
    }
}
