//! The few functions of RocksDB's C interface that a peer needs, from the system's library.
//!
//! Declared by hand from `rocksdb/c.h`: the interface is stable and the library links in seconds,
//! where building RocksDB takes an hour of CPU. All `unsafe` of the peer is here.
//!
//! What makes it sound: every pointer comes from the library's own constructor, is checked where
//! it can be null, is used by one thread, and is destroyed once, in `Drop`; what the database uses
//! (options, caches) it shares by reference counts of its own.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use super::rocksdb_merge_unsafe::Merge;
use crate::{Error, Result};

/// Something of the library's that is only pointed to.
pub(super) type Opaque = *mut c_void;
pub(super) type Message = *mut c_char;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> Opaque;
    fn rocksdb_options_destroy(options: Opaque);
    fn rocksdb_options_set_create_if_missing(options: Opaque, on: c_uchar);
    fn rocksdb_options_set_compression(options: Opaque, kind: c_int);
    fn rocksdb_options_set_write_buffer_size(options: Opaque, bytes: usize);
    fn rocksdb_options_set_max_write_buffer_number(options: Opaque, count: c_int);
    fn rocksdb_options_set_max_background_jobs(options: Opaque, count: c_int);
    fn rocksdb_options_set_level_compaction_dynamic_level_bytes(options: Opaque, on: c_uchar);
    fn rocksdb_options_set_max_open_files(options: Opaque, count: c_int);
    fn rocksdb_options_set_memtable_prefix_bloom_size_ratio(options: Opaque, ratio: c_double);
    fn rocksdb_options_set_memtable_whole_key_filtering(options: Opaque, on: c_uchar);
    fn rocksdb_options_set_block_based_table_factory(options: Opaque, table: Opaque);
    fn rocksdb_block_based_options_create() -> Opaque;
    fn rocksdb_block_based_options_destroy(table: Opaque);
    fn rocksdb_block_based_options_set_block_cache(table: Opaque, cache: Opaque);
    fn rocksdb_block_based_options_set_filter_policy(table: Opaque, policy: Opaque);
    fn rocksdb_block_based_options_set_data_block_index_type(table: Opaque, kind: c_int);
    fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(table: Opaque, on: c_uchar);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: c_double) -> Opaque;
    fn rocksdb_cache_create_lru(bytes: usize) -> Opaque;
    fn rocksdb_cache_destroy(cache: Opaque);
    fn rocksdb_writeoptions_create() -> Opaque;
    fn rocksdb_writeoptions_destroy(options: Opaque);
    fn rocksdb_writeoptions_disable_WAL(options: Opaque, on: c_int);
    fn rocksdb_readoptions_create() -> Opaque;
    fn rocksdb_readoptions_destroy(options: Opaque);
    fn rocksdb_readoptions_set_verify_checksums(options: Opaque, on: c_uchar);
    fn rocksdb_open(options: Opaque, path: *const c_char, error: *mut Message) -> Opaque;
    fn rocksdb_close(db: Opaque);
    fn rocksdb_free(pointer: *mut c_void);
    fn rocksdb_get_pinned(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_bytes: usize,
        error: *mut Message,
    ) -> Opaque;
    fn rocksdb_pinnableslice_value(slice: Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: Opaque);
    fn rocksdb_multi_get(
        db: Opaque,
        options: Opaque,
        count: usize,
        keys: *const *const c_char,
        keys_bytes: *const usize,
        values: *mut *mut c_char,
        values_bytes: *mut usize,
        errors: *mut Message,
    );
    fn rocksdb_put(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut Message,
    );
    fn rocksdb_writebatch_create() -> Opaque;
    fn rocksdb_writebatch_destroy(batch: Opaque);
    fn rocksdb_writebatch_clear(batch: Opaque);
    fn rocksdb_writebatch_put(
        batch: Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
    );
    fn rocksdb_write(db: Opaque, options: Opaque, batch: Opaque, error: *mut Message);
    fn rocksdb_create_iterator(db: Opaque, options: Opaque) -> Opaque;
    fn rocksdb_iter_destroy(iterator: Opaque);
    fn rocksdb_iter_seek_to_first(iterator: Opaque);
    fn rocksdb_iter_valid(iterator: Opaque) -> c_uchar;
    fn rocksdb_iter_next(iterator: Opaque);
    fn rocksdb_iter_key(iterator: Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: Opaque, error: *mut Message);
}

/// Bytes of a key.
pub(super) type KeyBytes = [u8; 8];

/// An open database.
pub(crate) struct Db {
    pub(super) db: Opaque,
    pub(super) read: Opaque,
    pub(super) write: Opaque,
    pub(super) batch: Opaque,
}

/// Sizes of a database in bytes.
pub(super) struct Sizes {
    pub(super) memtable: usize,
    pub(super) memtables: i32,
    pub(super) block_cache: usize,
}

impl Sizes {
    /// For a database that takes about `memory_bytes`.
    pub(super) fn of(memory_bytes: u64) -> Self {
        let memory = memory_bytes as usize;
        Sizes { memtable: memory / 8, memtables: 3, block_cache: memory / 2 }
    }
}

impl Db {
    /// Opens or makes the database in `path`.
    pub(super) fn open(path: &Path, sizes: &Sizes, merge: Option<Merge>) -> Result<Db> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::Usage(format!("{} has a zero byte", path.display())))?;
        let mut error = null_mut();
        // SAFETY: as at the top; the filter policy becomes the table options' own.
        unsafe {
            let table = rocksdb_block_based_options_create();
            let cache = rocksdb_cache_create_lru(sizes.block_cache);
            rocksdb_block_based_options_set_block_cache(table, cache);
            let bloom = rocksdb_filterpolicy_create_bloom_full(10.0);
            rocksdb_block_based_options_set_filter_policy(table, bloom);
            // A hash index within data blocks.
            rocksdb_block_based_options_set_data_block_index_type(table, 1);
            rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_set_compression(options, 0);
            rocksdb_options_set_write_buffer_size(options, sizes.memtable);
            rocksdb_options_set_max_write_buffer_number(options, sizes.memtables);
            rocksdb_options_set_max_background_jobs(options, 2);
            rocksdb_options_set_level_compaction_dynamic_level_bytes(options, 1);
            rocksdb_options_set_max_open_files(options, -1);
            rocksdb_options_set_memtable_prefix_bloom_size_ratio(options, 0.05);
            rocksdb_options_set_memtable_whole_key_filtering(options, 1);
            rocksdb_options_set_block_based_table_factory(options, table);
            if let Some(merge) = merge {
                merge.install(options);
            }
            let db = rocksdb_open(options, name.as_ptr(), &mut error);
            rocksdb_options_destroy(options);
            rocksdb_block_based_options_destroy(table);
            rocksdb_cache_destroy(cache);
            check(error)?;
            let (read, write) = (rocksdb_readoptions_create(), rocksdb_writeoptions_create());
            rocksdb_readoptions_set_verify_checksums(read, 0);
            rocksdb_writeoptions_disable_WAL(write, 1);
            Ok(Db { db, read, write, batch: rocksdb_writebatch_create() })
        }
    }

    /// Calls `see` with the value of `key`, if there is one.
    pub(super) fn get<R>(&self, key: KeyBytes, see: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut error = null_mut();
        // SAFETY: as at the top; key and value live during the call they are lent to.
        unsafe {
            let (key, key_bytes) = (key.as_ptr().cast(), key.len());
            let slice = rocksdb_get_pinned(self.db, self.read, key, key_bytes, &mut error);
            check(error)?;
            if slice.is_null() {
                return Ok(None);
            }
            let guard = Pinned(slice);
            let mut bytes = 0;
            let value = rocksdb_pinnableslice_value(guard.0, &mut bytes);
            Ok(Some(see(bytes_of(value, bytes))))
        }
    }

    /// Calls `see` with the place in `keys` and the value of each key that there is.
    pub(super) fn get_all(
        &self,
        keys: &[KeyBytes],
        mut see: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let count = keys.len();
        let pointers: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr().cast()).collect();
        let sizes = vec![size_of::<KeyBytes>(); count];
        let mut values = vec![null_mut::<c_char>(); count];
        let (mut values_bytes, mut errors) = (vec![0usize; count], vec![null_mut(); count]);
        // SAFETY: as at the top; all arrays have `count` elements. What the library allocated it
        // frees.
        unsafe {
            rocksdb_multi_get(
                self.db,
                self.read,
                count,
                pointers.as_ptr(),
                sizes.as_ptr(),
                values.as_mut_ptr(),
                values_bytes.as_mut_ptr(),
                errors.as_mut_ptr(),
            );
            for at in 0..count {
                if !values[at].is_null() {
                    see(at, bytes_of(values[at], values_bytes[at]));
                    rocksdb_free(values[at].cast());
                }
            }
        }
        errors.into_iter().map(check).fold(Ok(()), Result::and)
    }

    /// Writes one record.
    pub(super) fn put(&self, key: KeyBytes, value: &[u8]) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: as at the top; key and value live during the call, which copies them.
        unsafe {
            let (key, key_bytes) = (key.as_ptr().cast(), key.len());
            let (value, value_bytes) = (value.as_ptr().cast(), value.len());
            rocksdb_put(self.db, self.write, key, key_bytes, value, value_bytes, &mut error);
        }
        check(error)
    }

    /// Writes records at once.
    pub(super) fn put_all<'a>(
        &mut self,
        records: impl Iterator<Item = (KeyBytes, &'a [u8])>,
    ) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: as at the top; keys and values live during the calls, which copy them.
        unsafe {
            rocksdb_writebatch_clear(self.batch);
            for (key, value) in records {
                let (key, key_bytes) = (key.as_ptr().cast(), key.len());
                let (value, value_bytes) = (value.as_ptr().cast(), value.len());
                rocksdb_writebatch_put(self.batch, key, key_bytes, value, value_bytes);
            }
            rocksdb_write(self.db, self.write, self.batch, &mut error);
        }
        check(error)
    }

    /// Calls `see` with every key and value.
    pub(super) fn for_each(&self, mut see: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut error = null_mut();
        // SAFETY: as at the top; key and value are lent until the iterator moves.
        unsafe {
            let iterator = rocksdb_create_iterator(self.db, self.read);
            rocksdb_iter_seek_to_first(iterator);
            while rocksdb_iter_valid(iterator) != 0 {
                let (mut key_bytes, mut value_bytes) = (0, 0);
                let key = rocksdb_iter_key(iterator, &mut key_bytes);
                let value = rocksdb_iter_value(iterator, &mut value_bytes);
                see(bytes_of(key, key_bytes), bytes_of(value, value_bytes));
                rocksdb_iter_next(iterator);
            }
            rocksdb_iter_get_error(iterator, &mut error);
            rocksdb_iter_destroy(iterator);
        }
        check(error)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: made in `open`, destroyed nowhere else.
        unsafe {
            rocksdb_writebatch_destroy(self.batch);
            rocksdb_close(self.db);
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write);
        }
    }
}

/// A value that the database keeps in place until this is dropped.
struct Pinned(Opaque);

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: came from `rocksdb_get_pinned`, destroyed nowhere else.
        unsafe { rocksdb_pinnableslice_destroy(self.0) }
    }
}

/// # Safety
/// `start` points to so many bytes that live as long as the slice is used, or there are none.
pub(super) unsafe fn bytes_of<'a>(start: *const c_char, bytes: usize) -> &'a [u8] {
    if start.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start.cast(), bytes) }
}

pub(super) fn check(error: Message) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a message of the library is a string with a zero at its end, ours to free.
    let words = unsafe {
        let words = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        words
    };
    Err(Error::Command(format!("rocksdb: {words}")))
}
