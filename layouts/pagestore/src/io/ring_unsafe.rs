//! A ring of the kernel that owns the memory it moves: the `unsafe` part of the io_uring engine.
//!
//! The kernel reads and writes buffers behind the compiler's back, so what it may touch must stay
//! put until it says it is done. The rule here: a [`Transfer`] launched into the ring is kept in
//! a slot, unreachable for anyone else, until its completion is reaped; dropping the ring waits
//! for all of them, and leaks them if the kernel cannot be asked.

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::EventfdFlags;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::accepted::Accepted;
use super::directory::system_file;
use super::{BLOCK_BYTES, Operation};
use crate::Error;

/// `user_data` of the read that waits for [`wake`]; slots are far below.
const WAKE: u64 = u64::MAX;

/// Most bytes of one kernel operation, below the kernel's own limit; the rest follows in another.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// What is left to do for an accepted request.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) accepted: Accepted,
    /// Bytes moved so far, in whole blocks.
    pub(super) moved: usize,
    /// Times the kernel asked to try again, or moved nothing of use.
    pub(super) retries: u32,
    /// The request is done; what runs is the dropping of its pages from the cache.
    pub(super) dropping_cache: bool,
    /// The file, open from the first operation to the end of the last.
    file: Option<Arc<File>>,
}

impl Transfer {
    /// A transfer at its beginning.
    pub(super) fn new(accepted: Accepted) -> Self {
        Self { accepted, moved: 0, retries: 0, dropping_cache: false, file: None }
    }

    /// The kernel operation that comes next.
    fn entry(&mut self) -> io::Result<squeue::Entry> {
        let (operation, moved) = (self.accepted.operation(), self.moved);
        let (handle, buffer) = self.accepted.file_and_buffer();
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(system_file(handle)?),
        };
        let file = types::Fd(file.as_raw_fd());
        let len = buffer.len();
        if self.dropping_cache {
            let (offset, len) = match operation {
                Operation::Read { offset } => (offset, len.min(OPERATION_BYTES_MAX)),
                _ => (0, 0),
            };
            let advice = rustix::fs::Advice::DontNeed as i32;
            return Ok(opcode::Fadvise::new(file, len as i64, advice).offset(offset).build());
        }
        let rest = &mut buffer.as_mut_slice()[moved..];
        let rest_len = rest.len().min(OPERATION_BYTES_MAX) as u32;
        Ok(match operation {
            Operation::Read { offset } => opcode::Read::new(file, rest.as_mut_ptr(), rest_len)
                .offset(offset + moved as u64)
                .build(),
            Operation::Write { offset } => opcode::Write::new(file, rest.as_ptr(), rest_len)
                .offset(offset + moved as u64)
                .build(),
            Operation::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        })
    }
}

/// A ring, its transfers and the event that ends its sleep. One with an event must stay on the thread
/// that made it.
pub(super) struct Ring {
    ring: IoUring,
    /// Transfers the kernel holds, by `user_data`. Never grows.
    slots: Box<[Option<Transfer>]>,
    free: Vec<usize>,
    /// `None` if only ends of transfers end its sleep.
    event: Option<Arc<OwnedFd>>,
    /// Where the kernel puts the event's count. Boxed: its address is with the kernel.
    event_count: Box<[u8; 8]>,
    waiting_for_event: bool,
    /// Whether the ring has the cheap set-up of Linux 6.1.
    deferred: bool,
}

/// A new event for [`Ring::new`] and [`wake`].
pub(super) fn new_event() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?)
}

/// Ends the sleep of the ring with this event, now or when it next falls asleep.
pub(super) fn wake(event: &OwnedFd) {
    // Fails only if the count is at its end, and then the ring wakes anyway.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

impl Ring {
    /// A ring for `depth` transfers at once.
    ///
    /// Kernels before 6.1 refuse the set-up in which completions are only worked off by the
    /// owner (EINVAL) and get a plain ring. All other refusals are the caller's: EPERM (a seccomp
    /// filter, or `kernel.io_uring_disabled`), ENOSYS (no io_uring), ENOMEM (locked memory).
    pub(super) fn new(depth: usize, event: Arc<OwnedFd>) -> io::Result<Self> {
        let entries = depth as u32 + 1;
        let (ring, deferred) = match deferred_ring(entries) {
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                (IoUring::new(entries)?, false)
            }
            ring => (ring?, true),
        };
        Self::with(ring, depth, Some(event), deferred)
    }

    /// A ring for `depth` transfers whose user waits with [`enter_within`](Self::enter_within).
    pub(super) fn own(depth: usize) -> io::Result<Self> {
        let entries = depth as u32;
        // Any thread may drop it, so that the set-up for a single one does not do.
        let ring = match IoUring::builder().setup_coop_taskrun().build(entries) {
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                IoUring::new(entries)?
            }
            ring => ring?,
        };
        if !ring.params().is_feature_ext_arg() {
            // Sleeps could not be limited.
            return Err(rustix::io::Errno::NOSYS.into());
        }
        Self::with(ring, depth, None, false)
    }

    fn with(
        ring: IoUring,
        depth: usize,
        event: Option<Arc<OwnedFd>>,
        deferred: bool,
    ) -> io::Result<Self> {
        let mut known = io_uring::Probe::new();
        ring.submitter().register_probe(&mut known)?;
        let needed =
            [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE, opcode::Fadvise::CODE];
        if !needed.into_iter().all(|code| known.is_supported(code)) {
            return Err(rustix::io::Errno::NOSYS.into());
        }
        let slots = (0..depth).map(|_| None).collect();
        let (free, event_count) = ((0..depth).collect(), Box::new([0; 8]));
        Ok(Self { ring, slots, free, event, event_count, waiting_for_event: false, deferred })
    }

    /// Whether the ring has the cheap set-up of Linux 6.1.
    pub(super) fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// Whether another transfer can be launched.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether the kernel holds no transfer.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Prepares the next operation of `transfer`; [`enter`](Self::enter) tells the kernel.
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn launch(&mut self, transfer: Transfer) {
        let slot = self.free.pop().expect("the caller saw that there is room");
        let transfer = self.slots[slot].insert(transfer);
        match transfer.entry() {
            Ok(entry) => {
                let entry = entry.user_data(slot as u64);
                // SAFETY: the buffer and the open file of `entry` belong to the transfer in
                // `slots[slot]`, which is neither touched nor dropped until `reap` sees this `user_data`.
                unsafe { self.push(&entry) }
            }
            Err(e) => {
                // Nothing went to the kernel.
                self.free.push(slot);
                if let Some(Transfer { accepted, .. }) = self.slots[slot].take() {
                    let name = accepted.file().name();
                    accepted.finish(Err(Error::io("use", name, e)));
                }
            }
        }
    }

    /// Tells the kernel what was launched; if `wait`, sleeps until a transfer ends or
    /// [`wake`] was called.
    pub(super) fn enter(&mut self, wait: bool) -> io::Result<()> {
        if let Some(event) = self.event.as_ref().filter(|_| !self.waiting_for_event) {
            let fd = types::Fd(event.as_raw_fd());
            let entry = opcode::Read::new(fd, self.event_count.as_mut_ptr(), 8).build();
            // SAFETY: `event` and `event_count` are only read, moved or dropped with this struct,
            // whose drop waits until `reap` has seen WAKE.
            unsafe { self.push(&entry.user_data(WAKE)) }
            self.waiting_for_event = true;
        }
        entered(self.ring.submit_and_wait(usize::from(wait)))
    }

    /// The same, and sleeps until a transfer ends, but at most so long.
    pub(super) fn enter_within(&mut self, most: Duration) -> io::Result<()> {
        let most = types::Timespec::from(most);
        let args = types::SubmitArgs::new().timespec(&most);
        entered(self.ring.submitter().submit_with_args(1, &args))
    }

    /// Moves the transfers whose operation ended to `ended`, with the kernel's result.
    pub(super) fn reap(&mut self, ended: &mut Vec<(Transfer, i32)>) {
        for completion in self.ring.completion() {
            if completion.user_data() == WAKE {
                self.waiting_for_event = false;
                continue;
            }
            let slot = completion.user_data() as usize;
            let transfer = self.slots[slot].take().expect("the kernel ends what was launched");
            self.free.push(slot);
            ended.push((transfer, completion.result()));
        }
    }

    /// Queues `entry`, for which there is always room: one per slot and one for the event.
    ///
    /// # Safety
    /// Memory and descriptors of `entry` must stay valid until its completion is reaped.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the caller's promise is the one `push` asks for.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the queue is as long as the {} slots and 1", self.slots.len());
    }
}

impl Drop for Ring {
    /// Waits for the kernel to give back all memory.
    fn drop(&mut self) {
        let mut ended = Vec::new();
        self.event.iter().for_each(|event| wake(event));
        while self.waiting_for_event || !self.is_idle() {
            if entered(self.ring.submit_and_wait(1)).is_err() {
                // The kernel may still write there.
                std::mem::forget(std::mem::take(&mut self.slots));
                std::mem::forget(std::mem::replace(&mut self.event_count, Box::new([0; 8])));
                return;
            }
            self.reap(&mut ended);
            ended.clear();
        }
    }
}

/// How entering the kernel went: that it was interrupted, that the time is over, or that it is out of
/// some resource until completions are reaped, is no error.
fn entered(result: io::Result<usize>) -> io::Result<()> {
    let goes_on = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ETIME];
    match result {
        Err(e) if e.raw_os_error().is_none_or(|code| !goes_on.contains(&code)) => Err(e),
        _ => Ok(()),
    }
}

/// A ring whose completions are only worked off by the thread that made it: no interruptions.
fn deferred_ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .build(entries)
}

/// Whole blocks in `bytes`: what a partial transfer may count, so that the rest stays aligned.
pub(super) fn whole_blocks(bytes: usize) -> usize {
    bytes / BLOCK_BYTES * BLOCK_BYTES
}
