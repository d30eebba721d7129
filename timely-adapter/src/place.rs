//! Where a worker's store is, and how it is opened there.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use alluvium::io::{Device, open_device};
use alluvium::{ByteSize, Result, Store};
use timely::worker::Worker;

use crate::checkpoints::{JobCheckpoint, RETAIN_MIN, Record, restore};
use crate::node::Node;
use crate::worker::WorkerOverrides;

/// Where a worker's store is to be opened.
pub(crate) struct Place {
    pub(crate) node: Arc<Node>,
    pub(crate) overrides: WorkerOverrides,
    pub(crate) index: usize,
    pub(crate) peers: usize,
    pub(crate) directory_name: String,
    device: Option<Arc<dyn Device>>,
}

impl Place {
    pub(crate) fn new(worker: &Worker, overrides: WorkerOverrides) -> Result<Self> {
        let node = Node::of(worker)?;
        node.group.enlist();
        let (index, peers) = (worker.index(), worker.peers());
        let (mut directory_name, mut device) = (String::new(), overrides.device.clone());
        if let (None, Some(directory)) = (&device, &node.config.store.directory) {
            directory_name = format!("worker-{index}");
            let opened = open_device(&directory.join(&directory_name), &node.config.store.io);
            device = Some(opened.map_err(|error| error.with("worker", index))?);
        }
        Ok(Self { node, overrides, index, peers, directory_name, device })
    }

    /// Where the job's record is, on the first worker; nowhere without a directory.
    pub(crate) fn record_device(&self) -> Result<Option<Arc<dyn Device>>> {
        match (&self.overrides.device, &self.node.config.store.directory) {
            (Some(device), _) => Ok(Some(device.clone())),
            (None, Some(directory)) => restore::record_device(directory).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The job's record; an empty one without a directory.
    pub(crate) fn record(&self) -> Result<Record> {
        let device = self.record_device()?;
        device.map_or_else(|| Ok(Record::default()), |device| Record::load(&*device))
    }

    /// The names of the files there are to restore from.
    pub(crate) fn files(&self, origin: &restore::Origin) -> Result<Vec<String>> {
        match &self.device {
            Some(device) if self.directory_name == origin.directory => device.list(),
            _ => Ok(Vec::new()),
        }
    }

    /// Opens the store, from what it has in `restored`. In a group it retains what a job needs.
    pub(crate) fn open(&self, restored: Option<&JobCheckpoint>, in_group: bool) -> Result<Store> {
        let Self { node, overrides, index, peers, directory_name, device } = self;
        let (index, peers) = (*index, *peers);
        let mut config = node.config.store.clone();
        let groups = config.key_groups;
        config.directory = config.directory.map(|node| node.join(directory_name));
        config.memory = ByteSize(overrides.memory_bytes.unwrap_or(node.share_bytes));
        config.layout = overrides.layout.clone().unwrap_or(config.layout);
        config.states.extend(overrides.states.clone());
        if in_group {
            config.retain = self.retain();
        }
        let mut builder =
            Store::from_config(config).owned_groups(owned_groups(index, groups, peers));
        if let Some(device) = device {
            builder = builder.device(device.clone());
        }
        if let Some(checkpoint) = restored {
            for origin in restore::origins(checkpoint, index, peers, groups)? {
                builder = builder.restore(origin.number);
            }
        }
        builder.open().map_err(|error| error.with("worker", index))
    }

    /// Checkpoints that the store of a job retains.
    pub(crate) fn retain(&self) -> usize {
        self.node.config.store.retain.max(RETAIN_MIN)
    }

    pub(crate) fn has_device(&self) -> bool {
        self.device.is_some()
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({} of {}, {:?})", self.index, self.peers, self.directory_name)
    }
}

/// The key groups of worker `index`: those whose owner it is, a contiguous range.
fn owned_groups(index: usize, groups: u16, peers: usize) -> Range<u16> {
    let first_of = |worker: usize| {
        let first = (worker * usize::from(groups)).div_ceil(peers);
        u16::try_from(first).unwrap_or(groups)
    };
    first_of(index)..first_of(index + 1)
}

#[cfg(test)]
mod tests {
    use alluvium::KeyGroup;

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
