//! A request inside an engine, and the promise that it ends exactly once.
//!
//! Every engine turns a [`Request`] into an [`Accepted`]. Finishing it sends the completion;
//! dropping it unfinished (the engine closes, or its thread panics) sends an error completion,
//! so no path through an engine can lose a request or a buffer.

use std::sync::Arc;

use super::stats::Counters;
use super::{BLOCK_BYTES, Completion, FileHandle, IoBuffer, Operation, Request};
use crate::{Error, ErrorKind, Result};

/// A request that will end with exactly one completion.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// `None` once the completion is sent.
    request: Option<Request>,
    counters: Arc<Counters>,
    /// Of a sync: the writes that it covers.
    covers: u64,
}

impl Accepted {
    /// Takes `request` in; one that no engine could serve ends here, with an error.
    pub(crate) fn accept(request: Request, counters: &Arc<Counters>) -> Option<Self> {
        let checked = check(&request);
        let covers = match (&request.file.0.descriptor, request.operation) {
            (Some(file), Operation::Sync) => file.writes(),
            (Some(file), Operation::Write { .. }) => {
                file.note_write();
                0
            }
            (Some(_), Operation::Read { .. }) | (None, _) => 0,
        };
        let accepted = Self { request: Some(request), counters: Arc::clone(counters), covers };
        match checked {
            Ok(()) => Some(accepted),
            Err(refusal) => {
                accepted.finish(Err(refusal));
                None
            }
        }
    }

    fn request(&self) -> &Request {
        self.request.as_ref().expect("an accepted request is there until it is finished")
    }

    /// The file.
    pub(crate) fn file(&self) -> &FileHandle {
        &self.request().file
    }

    /// What to do.
    pub(crate) fn operation(&self) -> Operation {
        self.request().operation
    }

    /// The memory to read into or write from.
    pub(crate) fn buffer(&self) -> &IoBuffer {
        &self.request().buffer
    }

    /// File and buffer together, the buffer writable.
    pub(crate) fn file_and_buffer(&mut self) -> (&FileHandle, &mut IoBuffer) {
        let request = self.request.as_mut().expect("an accepted request is there until finished");
        (&request.file, &mut request.buffer)
    }

    /// Ends the request. An error gets the file and the offset as context.
    pub(crate) fn finish(mut self, result: Result<()>) {
        self.end(result);
    }

    /// Sends the completion unless that has been done. A caller that is gone is no error.
    fn end(&mut self, result: Result<()>) {
        let Some(Request { file, operation, buffer, token, reply }) = self.request.take() else {
            return;
        };
        self.counters.count(operation, buffer.len(), result.is_ok());
        match (&file.0.descriptor, operation) {
            // A sync that was accepted before this does not count for it.
            (Some(file), Operation::Write { .. }) => file.note_write(),
            (Some(file), Operation::Sync) if result.is_ok() => file.note_sync(self.covers),
            _ => {}
        }
        let result = result.map_err(|error| {
            let error = match error.context("file") {
                None => error.with("file", file.name()),
                Some(_) => error,
            };
            match operation {
                Operation::Read { offset } | Operation::Write { offset } => {
                    error.with("offset", offset)
                }
                Operation::Sync => error,
            }
        });
        reply.send(Completion { token, buffer, result });
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.end(Err(Error::new(ErrorKind::Io, "the I/O engine closed before this was done")));
    }
}

/// Whether offset and length are what the trait asks for.
fn check(request: &Request) -> Result<()> {
    let (Operation::Read { offset } | Operation::Write { offset }) = request.operation else {
        return Ok(());
    };
    let len = request.buffer.len() as u64;
    let blocks = BLOCK_BYTES as u64;
    if !offset.is_multiple_of(blocks) || !len.is_multiple_of(blocks) {
        let message = format!("offset {offset} and length {len} must be multiples of {blocks}");
        return Err(Error::new(ErrorKind::Io, message));
    }
    if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Error::new(ErrorKind::Io, format!("offset {offset} is beyond any file")));
    }
    Ok(())
}

/// The error for a read that reaches past the end of its file.
pub(crate) fn past_end(end: u64, needed: u64) -> Error {
    let message = format!("the file ends at byte {end}, but byte {needed} is needed");
    Error::new(ErrorKind::Corrupt, message)
}

#[cfg(test)]
mod tests {
    use super::super::OpenFile;
    use super::*;

    fn request(
        operation: Operation,
        len: usize,
    ) -> (Request, crate::channel::Receiver<Completion>) {
        let (reply, completions) = crate::channel::unbounded();
        let file = OpenFile { name: "f".into(), descriptor: None, number: 1, direct: false };
        let file = FileHandle(Arc::new(file));
        let mut buffer = IoBuffer::zeroed(BLOCK_BYTES);
        buffer.set_len(len);
        (Request { file, operation, buffer, token: 7, reply: reply.into() }, completions)
    }

    #[test]
    fn a_dropped_request_ends_with_an_error_and_its_buffer() {
        let counters = Arc::new(Counters::default());
        let (request, completions) = request(Operation::Write { offset: 8192 }, BLOCK_BYTES);
        drop(Accepted::accept(request, &counters));
        let done = completions.try_recv().expect("one completion");
        assert_eq!((done.token, done.buffer.len()), (7, BLOCK_BYTES));
        assert_eq!(done.result.unwrap_err().context("offset"), Some("8192"));
        assert!(completions.try_recv().is_err(), "only one completion");
        assert_eq!(counters.read().errors, 1);
    }

    #[test]
    fn unaligned_and_overflowing_requests_are_refused() {
        let counters = Arc::new(Counters::default());
        let odd = [
            (Operation::Read { offset: 1 }, BLOCK_BYTES),
            (Operation::Write { offset: 0 }, 100),
            (Operation::Read { offset: u64::MAX - 4095 }, BLOCK_BYTES),
            (Operation::Write { offset: 1 << 63 }, BLOCK_BYTES),
        ];
        for (operation, len) in odd {
            let (request, completions) = request(operation, len);
            assert!(Accepted::accept(request, &counters).is_none());
            assert!(completions.try_recv().expect("one completion").result.is_err());
        }
    }
}
