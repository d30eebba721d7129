//! Records of levels of sorted runs, all of one hash together, the newest first.
//!
//! Files are mapped, so what is read takes no memory of its own. Where damage hides records of a
//! level, older levels' records of the same hashes may be dead: unless the filter of the damaged
//! partition says that it does not have the hash.
//!
//! What it keeps true: a record is [known](LevelRecord::is_known) only if every newer level shows
//! all that it has of its hash.

use std::ops::RangeInclusive;

use alluvium_layouts::stored_internals::{RecordView, WholeGuides, WholeRun};
use alluvium_pagestore::{Result, RunInfo};

use super::reader::DirectoryReader;
use crate::checkpoints::StateAt;
use crate::map_unsafe::Mapped;

/// The runs of a state, mapped: levels, the newest first.
#[derive(Debug)]
pub struct MappedLevels<'d> {
    reader: &'d DirectoryReader<'d>,
    state: StateAt<'d>,
    all: Vec<Vec<MappedRun<'d>>>,
}

/// A run and its file, if it can be mapped.
#[derive(Debug)]
pub struct MappedRun<'d> {
    pub info: &'d RunInfo,
    file: Option<Mapped>,
}

/// A record of a group.
#[derive(Clone, Copy, Debug)]
pub struct LevelRecord<'b> {
    pub record: RecordView<'b>,
    /// Whether all that is newer of its hash is in the group, too.
    pub is_known: bool,
}

/// What is called with records of one hash, the newest first, until it says that it has enough.
pub type VisitLevelRecords<'v> = &'v mut dyn FnMut(&[LevelRecord<'_>]) -> Result<bool>;

impl<'d> MappedLevels<'d> {
    /// Maps the runs of these levels. What is missing is told, if damage may be passed over.
    pub fn open(
        reader: &'d DirectoryReader<'d>,
        state: StateAt<'d>,
        levels: &'d [Vec<RunInfo>],
    ) -> Result<Self> {
        let open = |info: &'d RunInfo| {
            let file = match reader.map(&info.id.file_name()) {
                Ok(file) => Some(file),
                Err(error) => {
                    reader.pass_over(error, state, true)?;
                    None
                }
            };
            Ok(MappedRun { info, file })
        };
        let open_all = |level: &'d Vec<RunInfo>| level.iter().map(open).collect();
        let all = levels.iter().map(open_all).collect::<Result<_>>()?;
        Ok(Self { reader, state, all })
    }

    /// The runs, level after level.
    pub fn runs(&self) -> impl Iterator<Item = &MappedRun<'d>> {
        self.all.iter().flatten()
    }

    /// Shows the records whose hashes are in a range, all of one hash together. Says whether
    /// `visit` had enough.
    pub fn for_each_group(
        &self,
        hashes: &RangeInclusive<u64>,
        visit: VisitLevelRecords<'_>,
    ) -> Result<bool> {
        let begin = |level| LevelCursor::begin(self, level, *hashes.start());
        let mut sources: Vec<_> = self.all.iter().map(|one| begin(one)).collect::<Result<_>>()?;
        let mut group = Vec::new();
        loop {
            let next = sources.iter().filter_map(|source| source.next).map(|next| next.hash).min();
            let Some(hash) = next.filter(|hash| hashes.contains(hash)) else { return Ok(false) };
            group.clear();
            let mut is_known = true;
            for source in &mut sources {
                is_known = source.take_equal(hash, is_known, &mut group)?;
            }
            if visit(&group)? {
                return Ok(true);
            }
        }
    }
}

impl MappedRun<'_> {
    /// Its records, in order, and what is damaged between them.
    pub fn records(&self, state: StateAt<'_>) -> Option<WholeRun<'_>> {
        let file = self.file.as_ref()?;
        Some(WholeRun::open(self.info, state.fingerprint(), file))
    }
}

/// A place in a level.
#[derive(Debug)]
struct LevelCursor<'l> {
    reader: &'l DirectoryReader<'l>,
    state: StateAt<'l>,
    rest: std::slice::Iter<'l, MappedRun<'l>>,
    current: Option<(&'l MappedRun<'l>, WholeRun<'l>)>,
    next: Option<RecordView<'l>>,
    /// The last hash that was read.
    last_hash: u64,
    hidden: Vec<HiddenRecords<'l>>,
}

/// Records that damage may hide.
#[derive(Debug)]
struct HiddenRecords<'l> {
    hashes: RangeInclusive<u64>,
    /// What tells which hashes the run does not have, if that can be read.
    guides: Option<WholeGuides<'l>>,
}

impl<'l> LevelCursor<'l> {
    /// On the first record whose hash is not below this one.
    fn begin(levels: &'l MappedLevels<'l>, runs: &'l [MappedRun<'l>], hash: u64) -> Result<Self> {
        let start = runs.partition_point(|run| run.info.last_hash < hash);
        let mut source = Self {
            reader: levels.reader,
            state: levels.state,
            rest: runs[start..].iter(),
            current: None,
            next: None,
            last_hash: 0,
            hidden: Vec::new(),
        };
        source.open_next();
        if let Some((_, run)) = &mut source.current {
            run.skip_to(hash);
        }
        source.advance()?;
        while source.next.is_some_and(|next| next.hash < hash) {
            source.advance()?;
        }
        Ok(source)
    }

    /// Takes the records of a hash, which come next if there are any. Says whether older records
    /// of it are known.
    fn take_equal(
        &mut self,
        hash: u64,
        is_known: bool,
        group: &mut Vec<LevelRecord<'l>>,
    ) -> Result<bool> {
        let mut is_hidden = self.hides(hash);
        while let Some(record) = self.next.filter(|next| next.hash == hash) {
            // A level has one record of a key: what it hides is of another.
            group.push(LevelRecord { record, is_known });
            self.advance()?;
            is_hidden |= self.hides(hash);
        }
        Ok(is_known && !is_hidden)
    }

    fn hides(&mut self, hash: u64) -> bool {
        let has = |guides: &mut WholeGuides<'_>| guides.may_have(hash);
        let is_hidden = |hidden: &mut HiddenRecords<'_>| {
            hidden.hashes.contains(&hash) && hidden.guides.as_mut().is_none_or(has)
        };
        self.hidden.iter_mut().any(is_hidden)
    }

    fn hide(&mut self, run: &'l MappedRun<'l>, hashes: RangeInclusive<u64>) {
        let guides = run.file.as_ref().and_then(|file| WholeGuides::open(run.info, file));
        self.hidden.push(HiddenRecords { hashes, guides });
    }

    /// Goes to the next record that counts.
    fn advance(&mut self) -> Result<()> {
        let shown = self.last_hash;
        self.hidden.retain(|hidden| *hidden.hashes.end() >= shown);
        self.next = None;
        // The hash before damage.
        let mut damaged = None;
        while let Some((run, records)) = &mut self.current {
            let (run, found): (&'l MappedRun<'l>, _) = (*run, records.next());
            match found {
                Some(Ok(record)) => {
                    if let Some(first) = damaged.take() {
                        self.hide(run, first..=record.hash);
                    }
                    self.last_hash = record.hash;
                    if !run.info.is_cut(record.hash) {
                        self.next = Some(record);
                        return Ok(());
                    }
                }
                Some(Err(error)) => {
                    damaged.get_or_insert(self.last_hash.max(run.info.first_hash));
                    self.reader.pass_over(error, self.state, true)?;
                }
                None => {
                    if let Some(first) = damaged.take() {
                        self.hide(run, first..=run.info.last_hash);
                    }
                    self.open_next();
                }
            }
        }
        Ok(())
    }

    /// Goes to the next run whose file is there.
    fn open_next(&mut self) {
        self.current = None;
        while let Some(run) = self.rest.next() {
            match run.records(self.state) {
                Some(records) => {
                    self.current = Some((run, records));
                    return;
                }
                None => self.hide(run, run.info.first_hash..=run.info.last_hash),
            }
        }
    }
}
