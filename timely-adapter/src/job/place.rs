//! Where a worker's store is, and how it is opened there.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use alluvium::checkpoints::checkpoint_name;
use alluvium::config::ByteSize;
use alluvium::io::{Device, DirectoryLock, SureNames};
use alluvium::{Error, ErrorKind, Result, Store};
use timely::worker::Worker;

use crate::job::checkpoints::directories::{checkpoints_there, name_of, remove};
use crate::job::checkpoints::restore::StoreBasis;
use crate::job::checkpoints::{COMMITTED, JobRecord, RETAIN_MIN, restore};
use crate::job::node::Node;
use crate::job::worker::WorkerOverrides;

/// Where a worker's store is to be opened.
pub(crate) struct StoreLocation {
    pub(crate) node: Arc<Node>,
    pub(crate) overrides: WorkerOverrides,
    pub(crate) index: usize,
    pub(crate) peers: usize,
    pub(crate) home: StoreDirectory,
}

/// The directory of a worker's store.
#[derive(Debug)]
pub(crate) struct StoreDirectory {
    /// Its name inside the process's; empty without one, and on a device of its own.
    pub(crate) directory: String,
    /// The way to the process's directory from that of the first process.
    pub(crate) process: String,
    /// How often the key groups were divided anew.
    pub(crate) division: u64,
}

impl StoreLocation {
    /// The place of a worker that was not told of another: `worker-N`.
    pub(crate) fn new(worker: &Worker, mut overrides: WorkerOverrides) -> Result<Self> {
        // The store and the job's record may share it: a sync that fails concerns both.
        overrides.device =
            overrides.device.map(|device| -> Arc<dyn Device> { Arc::new(SureNames::new(device)) });
        let node = Node::of(worker)?;
        node.group.enlist();
        let (index, peers) = (worker.index(), worker.peers());
        let is_in_directory = overrides.device.is_none() && node.config.store.directory.is_some();
        let directory = if is_in_directory { name_of(index, 0) } else { String::new() };
        let home = StoreDirectory { directory, process: String::new(), division: 0 };
        Ok(Self { node, overrides, index, peers, home })
    }

    /// The directory of the worker's process, absolute and without links.
    pub(crate) fn process_directory(&self) -> Result<Option<PathBuf>> {
        let Some(directory) = &self.node.config.store.directory else { return Ok(None) };
        let failed = |error| Error::io("open directory", directory.display(), error);
        directory.canonicalize().map(Some).map_err(failed)
    }

    /// The workers of this worker's process.
    pub(crate) fn of_process(&self) -> Range<usize> {
        let threads = self.node.threads;
        let first = self.index / threads * threads;
        first..first + threads
    }

    pub(crate) fn is_first_of_process(&self) -> bool {
        self.of_process().start == self.index
    }

    /// What opens the device that the job's record is on, on the first worker and on any thread;
    /// there is none without a directory. It is an error if its lock file is not the one that was locked.
    pub(crate) fn record_device(
        &self,
    ) -> impl FnOnce() -> Result<Option<Arc<dyn Device>>> + Send + use<> {
        let device = self.overrides.device.clone();
        let node = self.node.clone();
        move || match (device, &node.config.store.directory) {
            (Some(device), _) => Ok(Some(device)),
            (None, Some(directory)) => {
                node.lock.as_ref().map_or(Ok(()), DirectoryLock::check)?;
                restore::record_device(directory).map(Some)
            }
            (None, None) => Ok(None),
        }
    }

    /// The job's record; an empty one without a directory.
    pub(crate) fn record(&self) -> Result<JobRecord> {
        let device = self.record_device()()?;
        device.map_or_else(|| Ok(JobRecord::default()), |device| self.load(&*device))
    }

    fn load(&self, device: &dyn Device) -> Result<JobRecord> {
        JobRecord::load(device).map_err(|error| match error.kind() {
            ErrorKind::Corrupt => {
                let message = self.with_checkpoints(error.message());
                Error::new(error.kind(), message).with("file", COMMITTED).caused_by(error)
            }
            _ => error,
        })
    }

    /// What is to be said of a job's record that is damaged or lost, with what can be restored without it.
    pub(crate) fn with_checkpoints(&self, what: &str) -> String {
        let own = self.process_directory().ok().flatten();
        let told = own.as_deref().and_then(checkpoints_there);
        let told = told.unwrap_or_else(|| "no worker's store here has a checkpoint".into());
        format!(
            "{what}; put a copy of it back, or restore each worker's store by itself, by the number of a \
             checkpoint (StoreBuilder::restore, or `alluvium export`): {told}"
        )
    }

    /// The same for the job that goes on from it: a crash does not bring back the one before it. Says also
    /// whether a job has begun here that has committed nothing.
    pub(crate) fn sure_record(&self) -> Result<(JobRecord, bool)> {
        let Some(device) = self.record_device()()? else {
            return Ok((JobRecord::default(), false));
        };
        let record = self.load(&*device)?;
        let is_begun = record.is_begun(&*device)?;
        if record.last().is_some() {
            // It may have its name by a rename that was never made durable.
            match record.commit(&*device) {
                Err(error) if error.kind() == ErrorKind::DiskFull => device.sync_directory()?,
                done => done?,
            }
            let _ = JobRecord::end_of_begin(&*device);
        }
        Ok((record, is_begun))
    }

    /// Replaces the job's record.
    pub(crate) fn replace_record(&self, record: &JobRecord) -> Result<()> {
        let device = self.record_device()()?;
        device.map_or(Ok(()), |device| record.commit(&*device))
    }

    /// What notes that a job begins, unless it has a record, on any thread. Checkpoints that somebody takes of
    /// a single store before the job's first are not gone on from then, nor do they keep the job from beginning
    /// anew.
    pub(crate) fn begin_record(&self) -> impl FnOnce() -> Result<()> + Send + use<> {
        let open = self.record_device();
        move || {
            let Some(device) = open()? else { return Ok(()) };
            let record = JobRecord::load(&*device)?;
            if record.last().is_some() || record.is_begun(&*device)? {
                return Ok(());
            }
            record.begin(&*device)
        }
    }

    /// Removes what the worker's store has, which is not open.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] if somebody still works there; those of the device.
    pub(crate) fn clear(&self) -> Result<()> {
        if let Some(device) = &self.overrides.device {
            let names = device.list()?;
            let mut own = names.iter().filter(|name| !JobRecord::has_file(name));
            return own.try_for_each(|name| device.remove(name));
        }
        let process = self.process_directory()?.filter(|_| !self.home.directory.is_empty());
        process.map_or(Ok(()), |process| remove(&process.join(&self.home.directory)))
    }

    /// Whether what a worker on a device of its own had is on this worker's.
    pub(crate) fn has_on_device(&self, origin: &restore::StateOrigin) -> Result<bool> {
        match &self.overrides.device {
            Some(device) if origin.directory.is_empty() => {
                Ok(device.list()?.contains(&checkpoint_name(origin.number)))
            }
            _ => Ok(false),
        }
    }

    /// Opens the store and makes it of `basis`. In a group it retains what a job needs.
    pub(crate) fn open(&self, basis: StoreBasis, in_group: bool) -> Result<Store> {
        let Self { node, overrides, index, peers, home } = self;
        let mut config = node.config.store.clone();
        let owned = owned_groups(*index, config.key_groups, *peers);
        config.directory = config.directory.map(|node| node.join(&home.directory));
        if let Some(trace) = &mut config.trace {
            trace.directory.push(name_of(*index, home.division));
        }
        config.memory = ByteSize(overrides.memory_bytes.unwrap_or(node.share_bytes));
        config.layout = overrides.layout.clone().unwrap_or(config.layout);
        config.states.extend(overrides.states.clone());
        if in_group {
            config.retain = self.retain();
        }
        let mut builder = Store::from_config(config).owned_groups(owned);
        if let Some(device) = &overrides.device {
            builder = builder.device(device.clone());
        }
        builder = match basis {
            StoreBasis::Itself => builder,
            StoreBasis::Own(number) => builder.restore(number),
            StoreBasis::Others(sources) => builder.restore_from(sources),
        };
        builder.open().map_err(|error| error.with("worker", index))
    }

    /// Checkpoints that the store of a job retains.
    pub(crate) fn retain(&self) -> usize {
        self.node.config.store.retain.max(RETAIN_MIN)
    }

    pub(crate) fn has_device(&self) -> bool {
        self.overrides.device.is_some() || self.node.config.store.directory.is_some()
    }
}

impl fmt::Debug for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreLocation({} of {}, {:?})", self.index, self.peers, self.home.directory)
    }
}

/// The key groups of worker `index`: those whose owner it is, a contiguous range.
pub(crate) fn owned_groups(index: usize, groups: u16, peers: usize) -> Range<u16> {
    let first_of = |worker: usize| {
        let first = (worker * usize::from(groups)).div_ceil(peers);
        u16::try_from(first).unwrap_or(groups)
    };
    first_of(index)..first_of(index + 1)
}

#[cfg(test)]
mod tests {
    use alluvium::moving::KeyGroup;

    use super::*;

    #[test]
    fn owned_groups_are_those_the_router_sends() {
        for groups in [1u16, 2, 7, 256, 1 << 15] {
            for peers in 1..=usize::from(groups).min(9) {
                for index in 0..peers {
                    let expected: Vec<_> = (0..groups)
                        .filter(|&group| KeyGroup(group).owner(groups, peers) == index)
                        .collect();
                    let owned: Vec<_> = owned_groups(index, groups, peers).collect();
                    assert_eq!(owned, expected, "{index} of {peers}, {groups} groups");
                }
            }
        }
    }
}
