//! Stores in C and C++, behind one table of functions (`native/store.h`).
//!
//! What makes it sound: a table is a constant of the library; a store is made by `open`, used by one
//! thread, and closed once, in `Drop`. Bytes that a store lends live until the callback returns.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use alluvium_gadget::engine::{Directory, Engine, Open, See, Visit};
use alluvium_gadget::value::{Sums, sums, sums_bytes};
use alluvium_gadget::{Error, Result};

type VisitFn = unsafe extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, usize);
type Bytes = *const c_char;

/// The table, as `store.h` has it.
#[repr(C)]
pub(super) struct Api {
    version: unsafe extern "C" fn() -> Bytes,
    open: unsafe extern "C" fn(Bytes, u64, u64, *mut c_char, usize) -> *mut c_void,
    get: unsafe extern "C" fn(*mut c_void, Bytes, usize, VisitFn, *mut c_void) -> c_int,
    put: unsafe extern "C" fn(*mut c_void, Bytes, usize, Bytes, usize) -> c_int,
    merge: unsafe extern "C" fn(*mut c_void, Bytes, usize, Bytes, usize) -> c_int,
    remove: unsafe extern "C" fn(*mut c_void, Bytes, usize) -> c_int,
    update: Option<Update>,
    range: Option<Range>,
    remove_range: Option<unsafe extern "C" fn(*mut c_void, Bytes, usize, Bytes, usize) -> c_int>,
    checkpoint: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    error: unsafe extern "C" fn(*mut c_void) -> Bytes,
    close: unsafe extern "C" fn(*mut c_void),
}

type Update =
    unsafe extern "C" fn(*mut c_void, Bytes, usize, u64, u64, VisitFn, *mut c_void) -> c_int;
type Range =
    unsafe extern "C" fn(*mut c_void, Bytes, usize, Bytes, usize, VisitFn, *mut c_void) -> c_int;

/// The version that a library tells.
pub(super) fn version(api: &'static Api) -> String {
    // SAFETY: a string of the library's own that it never frees.
    unsafe { CStr::from_ptr((api.version)()).to_string_lossy().into_owned() }
}

/// An open store.
pub(super) struct Native {
    api: &'static Api,
    store: *mut c_void,
    keys: Directory,
}

impl Native {
    pub(super) fn open(api: &'static Api, open: &Open) -> Result<Self> {
        let directory = CString::new(open.directory.as_os_str().as_bytes())
            .map_err(|_| Error::Usage("a directory with a zero byte in its name".to_owned()))?;
        let mut words = [0 as c_char; 256];
        let keys = open.events as u64;
        // SAFETY: the name ends in zero, and the words have as much room as is said.
        let store = unsafe {
            let (words, room) = (words.as_mut_ptr(), words.len());
            (api.open)(directory.as_ptr(), open.memory_bytes, keys, words, room)
        };
        if store.is_null() {
            // SAFETY: the last byte was zero and was not written.
            let words = unsafe { CStr::from_ptr(words.as_ptr()) };
            return Err(Error::Engine(words.to_string_lossy().into_owned()));
        }
        // A store without an order has the directory of keys beside it.
        let keys = Directory::new(open.ranges() && api.range.is_none());
        Ok(Native { api, store, keys })
    }

    fn check(&self, code: c_int) -> Result<bool> {
        if code >= 0 {
            return Ok(code > 0);
        }
        // SAFETY: the store's own string, until its next call.
        let words = unsafe { CStr::from_ptr((self.api.error)(self.store)) };
        Err(Error::Engine(words.to_string_lossy().into_owned()))
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: made by `open`, closed nowhere else.
        unsafe { (self.api.close)(self.store) }
    }
}

/// Hands key and value to the closure that `context` points to.
///
/// # Safety
/// `context` is a `&mut &mut dyn FnMut(&[u8], &[u8])`; both pointers have as many bytes as is said.
unsafe extern "C" fn visited(
    context: *mut c_void,
    key: Bytes,
    key_bytes: usize,
    value: Bytes,
    value_bytes: usize,
) {
    // SAFETY: the caller's promise; an empty value may be null.
    unsafe {
        let visit = &mut *context.cast::<Visit<'_>>();
        visit(bytes_of(key, key_bytes), bytes_of(value, value_bytes));
    }
}

/// # Safety
/// `start` points to so many bytes that live as long as the slice is used, or there are none.
unsafe fn bytes_of<'a>(start: Bytes, bytes: usize) -> &'a [u8] {
    if start.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start.cast(), bytes) }
}

impl Engine for Native {
    fn get(&mut self, key: &[u8], see: See<'_>) -> Result<()> {
        let mut shows: Visit<'_> = &mut |_, value| see(Some(value));
        let context = (&raw mut shows).cast();
        // SAFETY: key and closure live during the call.
        let code =
            unsafe { (self.api.get)(self.store, key.as_ptr().cast(), key.len(), visited, context) };
        if !self.check(code)? {
            see(None);
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keys.insert(key);
        // SAFETY: key and value live during the call, which copies them.
        let code = unsafe {
            let (value, value_bytes) = (value.as_ptr().cast(), value.len());
            (self.api.put)(self.store, key.as_ptr().cast(), key.len(), value, value_bytes)
        };
        self.check(code).map(|_| ())
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) -> Result<()> {
        self.keys.insert(key);
        // SAFETY: as for `put`.
        let code = unsafe {
            let (operand, operand_bytes) = (operand.as_ptr().cast(), operand.len());
            (self.api.merge)(self.store, key.as_ptr().cast(), key.len(), operand, operand_bytes)
        };
        self.check(code).map(|_| ())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.keys.remove(key);
        // SAFETY: the key lives during the call.
        let code = unsafe { (self.api.remove)(self.store, key.as_ptr().cast(), key.len()) };
        self.check(code).map(|_| ())
    }

    fn update(&mut self, key: &[u8], more: Sums, see: See<'_>) -> Result<()> {
        let Some(update) = self.api.update else {
            let mut now = more;
            self.get(key, &mut |value| {
                see(value);
                let [count, sum] = sums(value.unwrap_or_default());
                now = [count.wrapping_add(more[0]), sum.wrapping_add(more[1])];
            })?;
            return self.put(key, &sums_bytes(now));
        };
        self.keys.insert(key);
        let mut shows: Visit<'_> = &mut |_, value| see(Some(value));
        let context = (&raw mut shows).cast();
        // SAFETY: key and closure live during the call.
        let code = unsafe {
            let (key, key_bytes) = (key.as_ptr().cast(), key.len());
            update(self.store, key, key_bytes, more[0], more[1], visited, context)
        };
        if !self.check(code)? {
            see(None);
        }
        Ok(())
    }

    fn range(&mut self, from: &[u8], to: &[u8], mut visit: Visit<'_>) -> Result<()> {
        let Some(range) = self.api.range else {
            let keys: Vec<Vec<u8>> = self.keys.range(from, to).map(<[u8]>::to_vec).collect();
            return keys.iter().try_for_each(|key| {
                self.get(key, &mut |value| value.into_iter().for_each(|value| visit(key, value)))
            });
        };
        let context = (&raw mut visit).cast();
        // SAFETY: both ends and the closure live during the call.
        let code = unsafe {
            let (from, from_bytes) = (from.as_ptr().cast(), from.len());
            range(self.store, from, from_bytes, to.as_ptr().cast(), to.len(), visited, context)
        };
        self.check(code).map(|_| ())
    }

    fn purge(&mut self, prefix: &[u8], visit: Visit<'_>) -> Result<()> {
        let to = [prefix, &[0xff; 24]].concat();
        let mut found = Vec::new();
        let one_by_one = self.api.remove_range.is_none();
        self.range(prefix, &to, &mut |key, value| {
            found.extend(one_by_one.then(|| key.to_vec()));
            visit(key, value);
        })?;
        let Some(remove_range) = self.api.remove_range else {
            return found.iter().try_for_each(|key| self.delete(key));
        };
        // SAFETY: both ends live during the call.
        let code = unsafe {
            let (from, from_bytes) = (prefix.as_ptr().cast(), prefix.len());
            remove_range(self.store, from, from_bytes, to.as_ptr().cast(), to.len())
        };
        self.check(code).map(|_| ())
    }

    fn checkpoint(&mut self) -> Result<bool> {
        let Some(checkpoint) = self.api.checkpoint else { return Ok(false) };
        // SAFETY: the store is open.
        let code = unsafe { checkpoint(self.store) };
        self.check(code).map(|_| true)
    }
}
