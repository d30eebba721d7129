//! Reads files, plain or zstd by their names. A compressed file has one frame after the other.

use std::error::Error as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::{Error, Result};

/// Opens a file; one whose name ends in `.zst` is decompressed.
///
/// # Errors
/// The file's. [`Error::Usage`] for other compressions.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let is_compressed = is_compressed(path)?;
    let file = File::open(path).map_err(|error| Error::io(path, "open", error))?;
    Ok(match is_compressed {
        false => Box::new(BufReader::new(file)),
        true => Box::new(BufReader::with_capacity(1 << 16, Frames::new(BufReader::new(file)))),
    })
}

/// Whether reading failed because a compressed file ends within a frame.
pub(super) fn is_cut(error: &io::Error) -> bool {
    let (mut cause, mut kind) = (error.source(), error.kind());
    while let Some(inner) = cause {
        kind = inner.downcast_ref().map_or(kind, io::Error::kind);
        cause = inner.source();
    }
    kind == ErrorKind::UnexpectedEof
}

/// Whether a name asks for zstd.
pub(super) fn is_compressed(path: &Path) -> Result<bool> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("zst") => Ok(true),
        Some(other @ ("gz" | "xz" | "bz2" | "lz4")) => {
            let path = path.display();
            Err(Error::Usage(format!("{path}: .{other} is neither read nor written, .zst is")))
        }
        _ => Ok(false),
    }
}

/// Decompresses one frame after the other.
struct Frames<R: BufRead> {
    decoder: Option<StreamingDecoder<R, FrameDecoder>>,
    rest: Option<R>,
}

impl<R: BufRead> Frames<R> {
    fn new(reader: R) -> Self {
        Frames { decoder: None, rest: Some(reader) }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(decoder) = &mut self.decoder {
                let read = decoder.read(to)?;
                if read > 0 || to.is_empty() {
                    return Ok(read);
                }
                self.rest = self.decoder.take().map(StreamingDecoder::into_inner);
            }
            let Some(rest) = &mut self.rest else { return Ok(0) };
            if rest.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let Some(rest) = self.rest.take() else { return Ok(0) };
            self.decoder = Some(StreamingDecoder::new(rest).map_err(io::Error::other)?);
        }
    }
}
