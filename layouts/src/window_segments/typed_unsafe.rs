//! The part of window segments that knows the types of keys and accumulators: it finds, changes and adds accumulators of
//! slices. This is the record path: a look-up makes no virtual call.
//!
//! Why it is sound: a [`TypedSegments`] is made of a core that has the pane type of `K` and `A`. A core never changes its types,
//! and makes tables of its own record type only.

use std::marker::PhantomData;

use alluvium_pagestore::{Account, Key, State};

use super::core::SegmentsCore;
use crate::heap::record_table_unsafe::NativeTable;
use crate::support::out_of_line_unsafe::DroppedHere;
use crate::support::oversize::Oversize;
use crate::support::typed_core::typed_core;

typed_core! {
    /// A core whose keys are `K` and whose accumulators are `A`.
    pub struct TypedSegments(SegmentsCore);
}

/// The table in use of a slice, to be changed: with the heap that its entries own, the account and the limit.
pub struct ChangingTable<'a, K, A> {
    pub table: &'a mut NativeTable<K, A>,
    pub heap_bytes: &'a mut u64,
    pub account: &'a Account,
    pub oversize: &'a mut Oversize,
}

impl<K: Key, A: State> TypedSegments<K, A> {
    /// Wraps a core that was opened for these types.
    ///
    /// # Panics
    /// If it was opened for other types.
    pub fn new(core: DroppedHere<SegmentsCore>) -> Self {
        assert!(core.types.record().is::<K, A>(), "panes of other types");
        Self { core, types: PhantomData }
    }

    /// Looks at a core that was opened for these types.
    ///
    /// # Panics
    /// If it was opened for other types. Cost: a comparison of ids.
    pub fn of(core: &mut SegmentsCore) -> &mut Self {
        assert!(core.types.record().is::<K, A>(), "panes of other types");
        // SAFETY: it is a core and nothing else, whose types were compared.
        unsafe { &mut *std::ptr::from_mut(core).cast() }
    }

    /// Returns the table in use of a slice.
    #[inline(always)]
    pub fn active(&self, slot: usize) -> &NativeTable<K, A> {
        let found = self.core.slots[slot].as_ref().expect("a slice in use");
        debug_assert!(found.active.record_type().is::<K, A>(), "a table of other types");
        // SAFETY: as said above.
        unsafe { found.active.native_unchecked() }
    }

    /// Returns the same to be changed.
    #[inline(always)]
    pub fn changing(&mut self, slot: usize) -> ChangingTable<'_, K, A> {
        let SegmentsCore { slots, account, oversize, .. } = &mut *self.core;
        let found = slots[slot].as_mut().expect("a slice in use");
        debug_assert!(found.active.record_type().is::<K, A>(), "a table of other types");
        // SAFETY: as said above.
        let table = unsafe { found.active.native_mut_unchecked() };
        ChangingTable { table, heap_bytes: &mut found.heap_bytes, account, oversize }
    }
}
