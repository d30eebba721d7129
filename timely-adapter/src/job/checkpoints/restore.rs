//! What the workers of a run begin with: agreed on before any of them opens its store.
//!
//! The first worker reads the job's record and tells the others; each looks whether it sees what it
//! is to restore, and says so. Only if all do are stores opened, so that a run which cannot begin
//! changes nothing.
//!
//! If each worker finds its own directory where it has left it, all go on in these. Else the key
//! groups are divided anew: each worker makes a new store of those that had its key groups, and the
//! directories of these are only read. Until the new stores have a checkpoint that counts, the record
//! names the old ones, and a run that comes before that begins with them again.
//!
//! The stores of a job that has begun and committed nothing begin anew, whatever checkpoints somebody has taken of
//! them. A run that [goes back](crate::NodeConfig::restore) makes the record forget what
//! is later, before the first worker opens its store; the stores do with their next checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alluvium::checkpoints::checkpoint_name;
use alluvium::io::{Device, DirectIo, ThreadPool, ThreadPoolOptions};
use alluvium::moving::Source;
use alluvium::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::directories::{Removal, along, leftovers, name_of, names_of, remove, way};
use super::record::{COMMITTED, JobCheckpoint, JobRecord, WorkerCheckpoint};
use crate::job::place::{StoreDirectory, StoreLocation, owned_groups};

/// Where a part of a worker's state comes from: a checkpoint of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateOrigin {
    /// The worker whose store it is, of those of the run before.
    pub(crate) worker: usize,
    /// The way to its process's directory from that of the first process.
    pub(crate) process: String,
    /// The directory of the store, inside the process's; empty if it was on a device of its own.
    pub(crate) directory: String,
    /// How often the key groups had been divided anew.
    pub(crate) division: u64,
    /// The number of the checkpoint.
    pub(crate) number: u64,
}

impl StateOrigin {
    /// All that a worker had.
    fn of(worker: usize, checkpoint: &JobCheckpoint) -> Self {
        let WorkerCheckpoint { process, directory, number, .. } =
            checkpoint.workers[worker].clone();
        Self { worker, process, directory, division: checkpoint.division, number }
    }

    /// What the directory is called, or would have been.
    fn name(&self) -> String {
        match &*self.directory {
            "" => name_of(self.worker, self.division),
            name => name.to_owned(),
        }
    }
}

/// What worker `index` of `workers` restores from if the key groups are divided anew, given the
/// checkpoint it goes on from: the stores of those that had some of its key groups, of any operator.
///
/// This is the one place that knows how the workers of a run follow those of the run before it.
pub(crate) fn origins(
    checkpoint: &JobCheckpoint,
    index: usize,
    workers: usize,
    key_groups: u16,
) -> Result<Vec<StateOrigin>> {
    let (then, groups) = (checkpoint.workers.len(), checkpoint.key_groups);
    if groups != key_groups {
        let message = format!("the checkpoint has {groups} key groups, this run has {key_groups}");
        return Err(Error::new(ErrorKind::Mismatch, message));
    }
    let mine = owned_groups(index, groups, workers);
    let has_mine = |worker: usize, part: &WorkerCheckpoint| {
        let theirs = owned_groups(worker, groups, then);
        let has_moved = part.moved.values().any(|groups| groups.count_in(&mine) > 0);
        has_moved || (theirs.start < mine.end && mine.start < theirs.end)
    };
    let before = checkpoint.workers.iter().enumerate();
    let before = before.filter(|(worker, part)| has_mine(*worker, part));
    Ok(before.map(|(worker, _)| StateOrigin::of(worker, checkpoint)).collect())
}

/// What a worker begins with.
pub(crate) struct WorkerStart {
    /// What the job goes on from.
    pub(crate) checkpoint: Option<JobCheckpoint>,
    /// What the job's record names of the worker's own store, by the numbers of the job's checkpoints.
    pub(crate) recorded: BTreeMap<u64, u64>,
    pub(crate) home: StoreDirectory,
    pub(crate) basis: StoreBasis,
}

/// What a worker's store is made of.
pub(crate) enum StoreBasis {
    /// What its directory says.
    Itself,
    /// This checkpoint in its own directory.
    Own(u64),
    /// Checkpoints of others, which are only read.
    Others(Vec<Source>),
}

/// What the first worker tells.
#[derive(Serialize, Deserialize)]
struct FirstWorkerReport {
    /// All that the record names; the run goes on from the last.
    checkpoints: Vec<JobCheckpoint>,
    /// The directory of its process.
    directory: Option<String>,
    /// A job has begun here, and committed nothing.
    begins_anew: bool,
}

/// What each worker says when it has looked for its origins.
#[derive(Serialize, Deserialize)]
struct WorkerReport {
    /// What it does not see of what it would need if the key groups were divided anew.
    missing: Vec<String>,
    /// A record in a place where this job has none.
    stranger: Option<String>,
    /// All that it needs is its own directory, and that is where it is to be.
    goes_on: bool,
}

/// The device of a process's directory itself, where the record is: opened when it is needed, which
/// is rare, and closed after.
pub(crate) fn record_device(directory: &Path) -> Result<Arc<dyn Device>> {
    let options = ThreadPoolOptions { threads: 1, direct: DirectIo::Off };
    Ok(Arc::new(ThreadPool::new(directory, options)?))
}

/// Agrees with all other workers on the checkpoint that the run goes on from, and makes room for what
/// follows it. Takes two meetings, the first being `meeting`.
pub(crate) fn agree(place: &StoreLocation, meeting: u64) -> Result<WorkerStart> {
    let (group, index, workers) = (&place.node.group, place.index, place.peers);
    let own = place.process_directory()?;
    let mut shortened = None;
    let told = match index {
        0 => {
            let directory = own.as_ref().and_then(|own| own.to_str()).map(str::to_owned);
            let (mut record, begins_anew) = place.sure_record()?;
            if let Some(number) = place.node.config.restore {
                let known = record.checkpoints.len();
                record = record.up_to(number)?;
                shortened = Some(record.clone()).filter(|all| all.checkpoints.len() < known);
            }
            let told =
                FirstWorkerReport { checkpoints: record.checkpoints, directory, begins_anew };
            serde_json::to_string(&told).map_err(unreadable)?
        }
        _ => String::new(),
    };
    let first = group.arrive(meeting, index, 0, told)?;
    let told = group.await_notes(&first)?.swap_remove(0).1;
    let FirstWorkerReport { checkpoints, directory, begins_anew } =
        serde_json::from_str(&told).map_err(unreadable)?;
    let checkpoint = checkpoints.last().cloned();
    let search = OriginSearch { own: own.as_deref(), first: directory.map(PathBuf::from) };
    let stranger = own.as_deref().filter(|own| has_record_of_its_own(place, own));
    let stranger = stranger.map(|own| format!("worker {index} has one in {}", own.display()));
    let mut looked = WorkerReport { missing: Vec::new(), stranger, goes_on: true };
    let mut found = Vec::new();
    if let Some(checkpoint) = &checkpoint {
        let is_as_before = checkpoint.workers.len() == workers;
        looked.goes_on = is_as_before && {
            let own = StateOrigin::of(index, checkpoint);
            place.has_on_device(&own)? || search.is_in_own(&own)
        };
        for origin in origins(checkpoint, index, workers, place.node.config.store.key_groups)? {
            match search.find(&origin) {
                Some(path) => found.push(Source::directory(path).checkpoint(origin.number)),
                None => looked.missing.push(search.missing(index, &origin)),
            }
        }
    }
    let note = serde_json::to_string(&looked).map_err(unreadable)?;
    let second = group.arrive(meeting + 1, index, 0, note)?;
    let (mut missing, mut strangers, mut all_go_on) = (Vec::new(), Vec::new(), true);
    for (_, note) in group.await_notes(&second)? {
        let theirs: WorkerReport = serde_json::from_str(&note).map_err(unreadable)?;
        missing.extend(theirs.missing);
        strangers.extend(theirs.stranger);
        all_go_on &= theirs.goes_on;
    }
    let refused = |kind, why: &str, what: Vec<String>| {
        Err(Error::new(kind, format!("{why}: {}", what.join(", "))))
    };
    if !strangers.is_empty() {
        let why = "the job's record belongs in the first process's directory";
        return refused(ErrorKind::Mismatch, why, strangers);
    }
    // If all go on with what is their own, nobody needs another's.
    if !missing.is_empty() && !all_go_on {
        let why = "the job's last checkpoint cannot be restored";
        return refused(ErrorKind::Missing, why, missing);
    }
    let begin = match checkpoint {
        None => {
            let (home, recorded) = (search.home(place, 0), BTreeMap::new());
            WorkerStart { home, basis: StoreBasis::Itself, recorded, checkpoint }
        }
        Some(ref last) if all_go_on => {
            let home = search.home(place, last.division);
            let own = |all: &JobCheckpoint| Some((all.number, all.workers.get(index)?.number));
            let recorded = checkpoints.iter().filter_map(own).collect();
            WorkerStart {
                home,
                basis: StoreBasis::Own(last.workers[index].number),
                recorded,
                checkpoint,
            }
        }
        Some(ref last) => {
            let (home, recorded) = (search.home(place, last.division + 1), BTreeMap::new());
            WorkerStart { home, basis: StoreBasis::Others(found), recorded, checkpoint }
        }
    };
    if begins_anew {
        place.clear()?;
    }
    if let Some(record) = shortened {
        place.replace_record(&record)?;
    }
    make_room(place, own.as_deref(), &begin)?;
    Ok(begin)
}

/// Whether a process that is not the first has a record: then its directory is another job's, and
/// nothing in it is left over.
fn has_record_of_its_own(place: &StoreLocation, own: &Path) -> bool {
    place.index != 0 && place.is_first_of_process() && own.join(COMMITTED).exists()
}

/// Removes what no checkpoint of the job knows: what was made by a run that came to none of its own,
/// and what one has not come to remove. Fails if a helper of such a run goes on there.
fn make_room(place: &StoreLocation, own: Option<&Path>, begin: &WorkerStart) -> Result<()> {
    let (Some(own), Some(checkpoint)) = (own, &begin.checkpoint) else { return Ok(()) };
    if matches!(begin.basis, StoreBasis::Others(_)) && !begin.home.directory.is_empty() {
        remove(&own.join(&begin.home.directory))?;
    }
    if place.is_first_of_process() {
        let mut keep = names_of(place.of_process(), begin.home.division);
        keep.extend((0..checkpoint.workers.len()).map(|n| StateOrigin::of(n, checkpoint).name()));
        Removal::of_idle(leftovers(own, &keep))?.finish();
    }
    Ok(())
}

/// What goes once a run which has begun anew has committed its first checkpoint: the directories
/// before it in this process's, and those of processes that have no part in the run any more, as far
/// as the first worker sees them.
pub(crate) fn superseded(
    place: &StoreLocation,
    before: &JobCheckpoint,
    now: &JobCheckpoint,
) -> Removal {
    let own = place.process_directory().ok().flatten().filter(|_| place.is_first_of_process());
    let Some(own) = own else { return Removal::default() };
    let keep = names_of(place.of_process(), now.division);
    let mut removal = Removal::of(leftovers(&own, &keep));
    if place.index == 0 {
        for worker in &before.workers {
            if now.workers.iter().all(|other| other.process != worker.process) {
                removal.add_elsewhere(&along(&own, &worker.process), &worker.directory);
            }
        }
    }
    removal
}

/// Where a worker looks for the directories it restores from.
struct OriginSearch<'a> {
    /// Its own process's directory.
    own: Option<&'a Path>,
    /// The first process's.
    first: Option<PathBuf>,
}

impl OriginSearch<'_> {
    /// Where the store is in this process's own directory, be it or be it not there. What was on a device
    /// of its own may have been brought there, under the name that it would have had.
    fn in_own(&self, origin: &StateOrigin) -> Option<PathBuf> {
        self.own.map(|own| own.join(origin.name()))
    }

    /// Where the record says that it is.
    fn by_record(&self, origin: &StateOrigin) -> Option<PathBuf> {
        let is_named = !origin.directory.is_empty();
        let first = self.first.as_ref().filter(|_| is_named)?;
        Some(along(first, &origin.process).join(&origin.directory))
    }

    fn is_in_own(&self, origin: &StateOrigin) -> bool {
        self.in_own(origin).is_some_and(|path| has_checkpoint(&path, origin))
    }

    /// Where the store is. In its own directory first: there it is if somebody moved it.
    fn find(&self, origin: &StateOrigin) -> Option<PathBuf> {
        let places = [self.in_own(origin), self.by_record(origin)];
        places.into_iter().flatten().find(|path| has_checkpoint(path, origin))
    }

    /// What worker `index` does not see, and where it has looked.
    fn missing(&self, index: usize, origin: &StateOrigin) -> String {
        let StateOrigin { worker, directory, number, .. } = origin;
        if directory.is_empty() {
            return format!("worker {index} does not see the device that worker {worker} had");
        }
        let mut places: Vec<_> =
            [self.in_own(origin), self.by_record(origin)].into_iter().flatten().collect();
        places.dedup();
        let places: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        let name = checkpoint_name(*number);
        format!("worker {index} does not see {directory}/{name}, as {}", places.join(" or "))
    }

    /// The worker's directory after so many divisions.
    fn home(&self, place: &StoreLocation, division: u64) -> StoreDirectory {
        let process = match (&self.first, self.own) {
            (Some(first), Some(own)) => way(first, own).unwrap_or_default(),
            _ => String::new(),
        };
        let is_in_directory = self.own.is_some() && place.overrides.device.is_none();
        let directory = is_in_directory.then(|| name_of(place.index, division));
        StoreDirectory { directory: directory.unwrap_or_default(), process, division }
    }
}

fn has_checkpoint(directory: &Path, origin: &StateOrigin) -> bool {
    directory.join(checkpoint_name(origin.number)).is_file()
}

/// Refuses to open single stores where a job has committed checkpoints of all.
pub(crate) fn refuse_job(record: &JobRecord) -> Result<()> {
    if record.last().is_none() {
        return Ok(());
    }
    let message = "the directory has checkpoints of a whole job; start it with `execute`";
    Err(Error::new(ErrorKind::Unsupported, message).with("file", COMMITTED))
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Input, "cannot parse what a worker sent at the start").caused_by(error)
}

#[cfg(test)]
mod tests {
    use alluvium::Time;
    use alluvium::moving::KeyGroup;

    use super::*;

    fn checkpoint(workers: usize, key_groups: u16) -> JobCheckpoint {
        let worker = |worker: usize| WorkerCheckpoint {
            process: format!("../{}", worker / 2),
            directory: format!("worker-{worker}"),
            number: 7 + worker as u64,
            position: vec![],
            moved: BTreeMap::new(),
        };
        let workers = (0..workers).map(worker).collect();
        JobCheckpoint { number: 4, until: Time(9), key_groups, division: 0, workers }
    }

    #[test]
    fn as_many_workers_restore_their_own() {
        for index in 0..3 {
            let expected = StateOrigin {
                worker: index,
                process: format!("../{}", index / 2),
                directory: format!("worker-{index}"),
                division: 0,
                number: 7 + index as u64,
            };
            let before = checkpoint(3, 256);
            assert_eq!(StateOrigin::of(index, &before), expected);
            assert_eq!(origins(&before, index, 3, 256).unwrap(), [expected]);
        }
        let error = origins(&checkpoint(3, 256), 0, 3, 128).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.to_string().contains("has 256 key groups, this run has 128"), "{error}");
    }

    #[test]
    fn key_groups_that_moved_are_looked_for_where_they_are() {
        let mut before = checkpoint(3, 12);
        let groups = |all: &[u16]| all.iter().copied().map(KeyGroup).collect();
        before.workers[0].moved.insert("counts".into(), groups(&[1, 2, 3]));
        before.workers[2].moved.insert("counts".into(), groups(&[0, 8, 9, 10, 11]));
        let found = |index| {
            let all = origins(&before, index, 2, 12).unwrap();
            all.iter().map(|origin| origin.worker).collect::<Vec<_>>()
        };
        assert_eq!((found(0), found(1)), (vec![0, 1, 2], vec![1, 2]));
    }

    #[test]
    fn other_workers_restore_from_exactly_those_that_had_one_of_their_key_groups() {
        for groups in [7u16, 12, 256] {
            for then in 1..=7 {
                for now in 1..=7 {
                    for index in 0..now {
                        let found = origins(&checkpoint(then, groups), index, now, groups).unwrap();
                        let found: Vec<_> = found.iter().map(|origin| origin.worker).collect();
                        let mut expected: Vec<_> = owned_groups(index, groups, now)
                            .map(|group| alluvium::moving::KeyGroup(group).owner(groups, then))
                            .collect();
                        expected.dedup();
                        assert_eq!(found, expected, "{then} to {now}, {index}, {groups} groups");
                    }
                }
            }
        }
    }
}
