//! A file as memory, read only.

use std::fs::File;
use std::ops::Deref;

use memmap2::Mmap;

/// All bytes of a file, as it was when it was mapped.
#[derive(Debug)]
pub struct Mapped(Option<Mmap>);

impl Mapped {
    /// Maps the whole of `file`. Nothing is read before it is looked at; a device that fails then
    /// ends the process, which is why running stores do not map their files.
    pub fn new(file: &File) -> std::io::Result<Self> {
        // An empty file cannot be mapped.
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: bytes under a map must not change and the file must not be cut. Stores write
        // only under the directory's lock, which the caller, `ClosedDirectory`, holds for as long
        // as it gives out maps, and never change the sealed files at all.
        let map = unsafe { Mmap::map(file) }?;
        Ok(Self(Some(map)))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
}
