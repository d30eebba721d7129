//! Files that may be compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use ruzstd::decoding::StreamingDecoder;
use xz2::read::XzDecoder;

use crate::{Error, Result};

/// Opens a file; one whose name ends in `.xz` or `.zst` is decompressed on the way. What is cut
/// off or damaged there is an error of the reading, not an end.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Read + Send>> {
    let file = File::open(path).map_err(|source| Error::io(path, "open", source))?;
    let file = BufReader::with_capacity(1 << 16, file);
    Ok(match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => Box::new(XzDecoder::new_multi_decoder(file)),
        Some("zst") => Box::new(Frames::new(file)),
        _ => Box::new(file),
    })
}

/// The frames of a zstd file, one after the other.
struct Frames<R: BufRead> {
    state: State<R>,
}

enum State<R: BufRead> {
    Between(R),
    Within(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
    Failed,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Self {
        Frames { state: State::Between(source) }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        loop {
            // An error leaves it failed: the source is somewhere within a frame.
            match std::mem::replace(&mut self.state, State::Failed) {
                State::Between(mut source) => {
                    if source.fill_buf()?.is_empty() {
                        self.state = State::Between(source);
                        return Ok(0);
                    }
                    let frame = StreamingDecoder::new(source).map_err(io::Error::other)?;
                    self.state = State::Within(Box::new(frame));
                }
                State::Within(mut frame) => {
                    let read = frame.read(to)?;
                    if read > 0 {
                        self.state = State::Within(frame);
                        return Ok(read);
                    }
                    let promised = frame.decoder.get_checksum_from_data();
                    let found = frame.decoder.get_calculated_checksum();
                    if promised.is_some() && promised != found {
                        let message = "the checksum of a zstd frame is another";
                        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                    }
                    self.state = State::Between(frame.into_inner());
                }
                State::Failed => {
                    return Err(io::Error::other("a zstd frame could not be read"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.zst");
        std::fs::write(&path, bytes).unwrap();
        let mut all = Vec::new();
        open(&path).unwrap().read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn all_frames_are_read_and_a_cut_one_is_an_error() {
        let text: Vec<u8> =
            (0..300_000u32).flat_map(|n| (n.wrapping_mul(n) % 7_919).to_le_bytes()).collect();
        let (first, second) = text.split_at(500_000);
        let frames = [packed(first), packed(second)].concat();
        assert_eq!(read(&frames).unwrap(), text);
        assert!(read(&[]).unwrap().is_empty());
        for cut in [1, 10, frames.len() / 3, frames.len() - 1] {
            assert!(read(&frames[..cut]).is_err(), "{cut} of {} bytes", frames.len());
        }
    }

    #[test]
    fn a_flipped_byte_is_an_error_or_harmless() {
        let text: Vec<u8> = (0..20_000u32).flat_map(|n| (n % 251).to_le_bytes()).collect();
        let good = packed(&text);
        for at in (0..good.len()).step_by(good.len() / 40 + 1) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(read(&bad).map_or(true, |read| read == text), "byte {at}");
        }
    }
}
