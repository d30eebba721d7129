//! The part of RocksDB's C interface that windows need beside that of [`Db`]: blind merges, passes
//! over the keys with a prefix, and deletion of ranges.
//!
//! What makes it sound is said in `rocksdb_unsafe.rs`; what is called back says so for itself.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::ptr::null_mut;

use super::rocksdb_unsafe::{Db, Message, Opaque, bytes_of, check};
use crate::Result;

type FullMerge = unsafe extern "C" fn(
    state: *mut c_void,
    key: *const c_char,
    key_bytes: usize,
    existing: *const c_char,
    existing_bytes: usize,
    operands: *const *const c_char,
    operands_bytes: *const usize,
    count: c_int,
    success: *mut c_uchar,
    new_bytes: *mut usize,
) -> *mut c_char;

type PartialMerge = unsafe extern "C" fn(
    state: *mut c_void,
    key: *const c_char,
    key_bytes: usize,
    operands: *const *const c_char,
    operands_bytes: *const usize,
    count: c_int,
    success: *mut c_uchar,
    new_bytes: *mut usize,
) -> *mut c_char;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_set_uint64add_merge_operator(options: Opaque);
    fn rocksdb_options_set_merge_operator(options: Opaque, operator: Opaque);
    fn rocksdb_mergeoperator_create(
        state: *mut c_void,
        destructor: unsafe extern "C" fn(state: *mut c_void),
        full_merge: FullMerge,
        partial_merge: PartialMerge,
        delete_value: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize)>,
        name: unsafe extern "C" fn(state: *mut c_void) -> *const c_char,
    ) -> Opaque;
    fn rocksdb_merge(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_bytes: usize,
        operand: *const c_char,
        operand_bytes: usize,
        error: *mut Message,
    );
    fn rocksdb_writebatch_clear(batch: Opaque);
    fn rocksdb_writebatch_delete_range(
        batch: Opaque,
        from: *const c_char,
        from_bytes: usize,
        to: *const c_char,
        to_bytes: usize,
    );
    fn rocksdb_write(db: Opaque, options: Opaque, batch: Opaque, error: *mut Message);
    fn rocksdb_create_iterator(db: Opaque, options: Opaque) -> Opaque;
    fn rocksdb_iter_destroy(iterator: Opaque);
    fn rocksdb_iter_seek(iterator: Opaque, key: *const c_char, key_bytes: usize);
    fn rocksdb_iter_valid(iterator: Opaque) -> c_uchar;
    fn rocksdb_iter_next(iterator: Opaque);
    fn rocksdb_iter_key(iterator: Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: Opaque, error: *mut Message);
}

/// What a merge does with a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Merge {
    /// Adds 64-bit numbers, little end first: the library's own operator.
    Add,
    /// Puts bytes behind bytes.
    Append,
}

impl Merge {
    /// # Safety
    /// `options` are options that no database was opened with yet.
    pub(super) unsafe fn install(self, options: Opaque) {
        // SAFETY: the caller's promise; the operator becomes the options' own.
        unsafe {
            match self {
                Merge::Add => rocksdb_options_set_uint64add_merge_operator(options),
                Merge::Append => {
                    let operator = rocksdb_mergeoperator_create(
                        null_mut(),
                        nothing,
                        full_merge,
                        partial_merge,
                        None,
                        name,
                    );
                    rocksdb_options_set_merge_operator(options, operator);
                }
            }
        }
    }
}

/// The operator has no state.
unsafe extern "C" fn nothing(_: *mut c_void) {}

unsafe extern "C" fn name(_: *mut c_void) -> *const c_char {
    c"append".as_ptr()
}

unsafe extern "C" fn full_merge(
    _: *mut c_void,
    _: *const c_char,
    _: usize,
    existing: *const c_char,
    existing_bytes: usize,
    operands: *const *const c_char,
    operands_bytes: *const usize,
    count: c_int,
    success: *mut c_uchar,
    new_bytes: *mut usize,
) -> *mut c_char {
    // SAFETY: the library lends the existing value, or null, and `count` operands with their sizes,
    // and wants the other two written.
    unsafe {
        let existing = bytes_of(existing, existing_bytes);
        concatenated(existing, operands, operands_bytes, count, success, new_bytes)
    }
}

unsafe extern "C" fn partial_merge(
    _: *mut c_void,
    _: *const c_char,
    _: usize,
    operands: *const *const c_char,
    operands_bytes: *const usize,
    count: c_int,
    success: *mut c_uchar,
    new_bytes: *mut usize,
) -> *mut c_char {
    // SAFETY: as in `full_merge`.
    unsafe { concatenated(&[], operands, operands_bytes, count, success, new_bytes) }
}

/// All bytes in memory of `malloc`, which the library frees, as it was given no other way.
///
/// # Safety
/// `operands` and `operands_bytes` have `count` elements, each operand that many bytes; `success`
/// and `new_bytes` can be written.
unsafe fn concatenated(
    existing: &[u8],
    operands: *const *const c_char,
    operands_bytes: *const usize,
    count: c_int,
    success: *mut c_uchar,
    new_bytes: *mut usize,
) -> *mut c_char {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller's promise; the allocation has room for the sum of all sizes.
    unsafe {
        let sum = (0..count).map(|at| *operands_bytes.add(at)).sum::<usize>() + existing.len();
        let merged = libc::malloc(sum.max(1)).cast::<u8>();
        *success = u8::from(!merged.is_null());
        *new_bytes = 0;
        if merged.is_null() {
            return null_mut();
        }
        let mut end = merged;
        let mut append = |bytes: &[u8]| {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
            end = end.add(bytes.len());
        };
        append(existing);
        for at in 0..count {
            append(bytes_of(*operands.add(at), *operands_bytes.add(at)));
        }
        *new_bytes = sum;
        merged.cast()
    }
}

impl Db {
    /// Merges `operand` into the value of `key`, without reading it.
    pub(crate) fn merge(&self, key: &[u8], operand: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: key and operand live during the call, which copies them.
        unsafe {
            let (key, key_bytes) = (key.as_ptr().cast(), key.len());
            let (operand, operand_bytes) = (operand.as_ptr().cast(), operand.len());
            let (db, write) = (self.db, self.write);
            rocksdb_merge(db, write, key, key_bytes, operand, operand_bytes, &mut error);
        }
        check(error)
    }

    /// Calls `see` with every key that begins with `prefix` and its value.
    pub(crate) fn for_each_with(
        &self,
        prefix: &[u8],
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: key and value are lent until the iterator moves.
        unsafe {
            let iterator = rocksdb_create_iterator(self.db, self.read);
            rocksdb_iter_seek(iterator, prefix.as_ptr().cast(), prefix.len());
            while rocksdb_iter_valid(iterator) != 0 {
                let (mut key_bytes, mut value_bytes) = (0, 0);
                let key = rocksdb_iter_key(iterator, &mut key_bytes);
                let key = bytes_of(key, key_bytes);
                if !key.starts_with(prefix) {
                    break;
                }
                let value = rocksdb_iter_value(iterator, &mut value_bytes);
                see(key, bytes_of(value, value_bytes));
                rocksdb_iter_next(iterator);
            }
            rocksdb_iter_get_error(iterator, &mut error);
            rocksdb_iter_destroy(iterator);
        }
        check(error)
    }

    /// Deletes the keys in `from..to`.
    pub(crate) fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: both ends live during the calls, which copy them.
        unsafe {
            let (from, from_bytes) = (from.as_ptr().cast(), from.len());
            let (to, to_bytes) = (to.as_ptr().cast(), to.len());
            rocksdb_writebatch_clear(self.batch);
            rocksdb_writebatch_delete_range(self.batch, from, from_bytes, to, to_bytes);
            rocksdb_write(self.db, self.write, self.batch, &mut error);
        }
        check(error)
    }
}
