//! What a merge works with. It is on the thread that steps it: its owner's, or a helper's.
//!
//! What it keeps true: files that it wrote are removed when it is dropped, unless their owner has taken them over. So a
//! merge that is given up or lost leaves nothing, whoever drops it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use alluvium_pagestore::{Helper, Result, SegmentStore};

use crate::checkpoint::HelperJob;
use crate::runs::directory::RunInfo;
use crate::runs::merge::{Judge, MergePart, MergeSizes, RunMerge};
use crate::runs::unsynced::UnsyncedRun;
use crate::support::nanos_since;
use crate::trace_span;

/// A helper merges for so many bytes of records, some milliseconds, before it does what others have for it.
const SHARE_BYTES: u64 = 1 << 20;
/// After so many it looks whether the merge was given up.
const LOOK_BYTES: u64 = 64 << 10;

/// The judge of a merge on a helper's thread.
pub type BoxedJudge = Box<dyn Judge + Send>;

/// A merge, what it merges, and what it has written.
pub(super) struct MergeWork {
    store: SegmentStore,
    state: u64,
    levels: Vec<Vec<RunInfo>>,
    sizes: MergeSizes,
    part: MergePart,
    /// None before it is opened.
    merge: Option<RunMerge>,
    pub sealed: Vec<RunInfo>,
    pub unsynced: Vec<UnsyncedRun>,
    /// What shares of a helper took.
    pub helper_nanos: u64,
}

impl MergeWork {
    /// What merges a part of levels, the newest first. It takes no memory before it is opened.
    pub fn new(
        store: SegmentStore,
        state: u64,
        levels: Vec<Vec<RunInfo>>,
        sizes: MergeSizes,
        part: MergePart,
    ) -> Self {
        let (sealed, unsynced) = (Vec::new(), Vec::new());
        Self { store, state, levels, sizes, part, merge: None, sealed, unsynced, helper_nanos: 0 }
    }

    /// Opens the levels. Reads the beginning of each.
    ///
    /// # Errors
    /// Those of [`RunMerge::new`]; it can be tried again.
    pub fn open(&mut self) -> Result<()> {
        self.opened().map(|_| ())
    }

    fn opened(&mut self) -> Result<&mut RunMerge> {
        if self.merge.is_none() {
            let infos: Vec<&[RunInfo]> = self.levels.iter().map(Vec::as_slice).collect();
            let owner = (&self.store, self.state);
            self.merge = Some(RunMerge::of_part(owner, &infos, self.sizes, self.part)?);
            self.levels = Vec::new();
        }
        Ok(self.merge.as_mut().expect("it was just opened"))
    }

    /// Merges for about `fuel` bytes of records, and says whether all were.
    ///
    /// # Errors
    /// Those of opening, and of [`RunMerge::step`].
    pub fn step(&mut self, fuel: u64, judge: &mut dyn Judge) -> Result<bool> {
        let merge = self.opened()?;
        let done = merge.step(fuel, judge);
        let (mut sealed, mut unsynced) = (merge.take_sealed(), merge.take_unsynced());
        self.sealed.append(&mut sealed);
        self.unsynced.append(&mut unsynced);
        done
    }

    /// Whether a step that has failed can be tried again.
    pub fn can_go_on(&self) -> bool {
        self.merge.as_ref().is_none_or(RunMerge::can_go_on)
    }

    /// The first hash that is not merged, if the part is over and there are more.
    pub fn next_hash(&self) -> Option<u64> {
        self.merge.as_ref().and_then(RunMerge::next_hash)
    }

    /// Bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.merge.as_ref().map_or(0, RunMerge::read_bytes)
    }

    /// What building filters and fences took.
    pub fn built_nanos(&self) -> u64 {
        self.merge.as_ref().map_or(0, RunMerge::built_nanos)
    }

    /// Its owner has taken over what it wrote.
    pub fn leave(&mut self) {
        self.sealed.clear();
    }

    /// A helper's share of it.
    fn share(&mut self, judge: &mut dyn Judge, is_given_up: &AtomicBool) -> Result<bool> {
        for _ in 0..SHARE_BYTES / LOOK_BYTES {
            if is_given_up.load(Ordering::Relaxed) {
                break;
            }
            if self.step(LOOK_BYTES, judge)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for MergeWork {
    fn drop(&mut self) {
        // What cannot be removed is left over until the next open.
        if let Some(merge) = self.merge.take() {
            let _ = merge.abandon();
        }
        for info in self.sealed.drain(..) {
            let _ = self.store.remove_file(&info.id.file_name());
        }
    }
}

impl fmt::Debug for MergeWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MergeWork({:?}, sealed: {})", self.merge, self.sealed.len())
    }
}

/// Who has a merge.
pub(super) enum MergeWorker {
    /// Its owner. The judge is of a merge that a helper does.
    Here(Box<MergeWork>, Option<BoxedJudge>),
    /// A helper.
    Away(HelperShare),
    /// Nobody, for the moment in which it is handed over.
    Gone,
}

/// A share of a merge that a helper does.
#[derive(Debug)]
pub(super) struct HelperShare {
    pub job: HelperJob<MergeShare>,
    is_given_up: Arc<AtomicBool>,
}

/// What came of a share.
pub(super) struct MergeShare {
    pub work: Box<MergeWork>,
    pub judge: BoxedJudge,
    pub done: std::thread::Result<Result<bool>>,
}

impl fmt::Debug for MergeWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(work, _) => write!(f, "Here({work:?})"),
            Self::Away(away) => write!(f, "Away({away:?})"),
            Self::Gone => f.write_str("Gone"),
        }
    }
}

impl MergeWorker {
    /// Whether a step that has failed can be tried again.
    pub fn can_go_on(&self) -> bool {
        match self {
            Self::Here(work, _) => work.can_go_on(),
            Self::Away(_) => true,
            Self::Gone => false,
        }
    }
}

impl HelperShare {
    /// Has a helper do a share.
    pub fn begin(helper: &Helper, mut work: Box<MergeWork>, mut judge: BoxedJudge) -> Self {
        let is_given_up = Arc::new(AtomicBool::new(false));
        let seen = is_given_up.clone();
        let job = HelperJob::submit(helper, "a merge of runs", move || {
            trace_span!(DEBUG, "merge runs");
            // Keys are the user's: to compare them may panic. The owner goes on with the panic.
            let start = Instant::now();
            let done = catch_unwind(AssertUnwindSafe(|| work.share(&mut *judge, &seen)));
            work.helper_nanos += nanos_since(start);
            MergeShare { work, judge, done }
        });
        Self { job, is_given_up }
    }

    /// Nobody wants what comes of it: the helper stops soon.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }
}
