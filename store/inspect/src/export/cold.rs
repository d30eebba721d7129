//! Records of a key and a value that lie in sorted runs, beside those of the state's segments.
//!
//! Of a key that segments have, what runs have is dead. Of others the newest record counts, unless
//! it is a tombstone or has expired. A store compares keys by their `Eq`, which only a program with
//! the type has. Here, records of one hash are of one key if the decoded keys are alike, and of two
//! if they are not and the hash is the one that follows from the type: equal keys have equal hashes,
//! so keys that are written differently could only be equal if their type makes its own hash.
//!
//! What it keeps true: a record is written only if it is known to be live. The others are counted
//! and told.

use alluvium_layouts::stored_internals::TOMBSTONE;
use alluvium_pagestore::{Error, ErrorKind, ImagePart, Result};

use super::hot::{HASHES_MAX, HotRecords};
use super::levels::{LevelRecord, MappedLevels};
use super::plain::pair;
use super::reader::DirectoryReader;
use crate::archive::{ArchiveValue, Type, Types};
use crate::checkpoints::StateAt;

/// The types of a state's records: structs of a key and a value.
#[derive(Clone, Copy, Debug)]
pub struct RecordTypes<'t> {
    pub types: &'t Types,
    pub record: usize,
}

/// What is called with the payload of each live record, until it says that it has enough.
pub type VisitPayload<'v> = &'v mut dyn FnMut(&[u8]) -> Result<bool>;

/// Records that were not shown.
#[derive(Debug, Default)]
struct SkippedCounts {
    /// Damage may hide a newer one.
    hidden: u64,
    /// Whether they are of the key of a newer one is not known.
    untold: u64,
}

/// What is known of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordFate {
    Live,
    Dead,
    Hidden,
    Untold,
}

/// Shows the live records of a state's runs. Says whether `visit` had enough.
///
/// # Errors
/// [`ErrorKind::Unsupported`] at the end, if it is not known of some whether they are live.
pub fn for_each(
    (reader, state): (&DirectoryReader<'_>, StateAt<'_>),
    record_types: RecordTypes<'_>,
    visit: VisitPayload<'_>,
) -> Result<bool> {
    for_each_within((reader, state), record_types, HASHES_MAX, visit)
}

/// [`for_each`] with so many hashes of segments in memory at once.
fn for_each_within(
    (reader, state): (&DirectoryReader<'_>, StateAt<'_>),
    types: RecordTypes<'_>,
    hashes_max: usize,
    visit: VisitPayload<'_>,
) -> Result<bool> {
    let mut left = SkippedCounts::default();
    for part in state.parts_of_runs() {
        let levels = MappedLevels::open(reader, state, &part.levels)?;
        let mut first = 0;
        loop {
            let hot = HotRecords::from(reader, state, first, hashes_max)?;
            if !hot.is_all {
                let what = "records of sorted runs are not exported: segments are damaged, so it is \
                            not known which keys have newer records there";
                reader.pass_over(Error::new(ErrorKind::Corrupt, what), state, true)?;
                return Ok(false);
            }
            let judge = HashJudge { reader, state, types, hot: &hot, part };
            let enough = levels
                .for_each_group(&hot.hashes, &mut |group| judge.show(group, &mut left, visit))?;
            if enough {
                return Ok(true);
            }
            match hot.hashes.end().checked_add(1) {
                Some(next) => first = next,
                None => break,
            }
        }
    }
    left.tell(reader, state)
}

impl SkippedCounts {
    fn tell(&self, reader: &DirectoryReader<'_>, state: StateAt<'_>) -> Result<bool> {
        if self.hidden > 0 {
            let count = self.hidden;
            let what = format!(
                "{count} records of sorted runs are not exported: damage may hide newer records of \
                 their keys"
            );
            reader.pass_over(Error::new(ErrorKind::Corrupt, what), state, true)?;
        }
        if self.untold > 0 {
            let count = self.untold;
            let what = format!(
                "{count} records of sorted runs are not exported: others have the same hash, or they may \
                 have expired, and only a program with the state's types can tell"
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(false)
    }
}

/// Judges records of one hash.
struct HashJudge<'a> {
    reader: &'a DirectoryReader<'a>,
    state: StateAt<'a>,
    types: RecordTypes<'a>,
    hot: &'a HotRecords<'a>,
    part: &'a ImagePart,
}

impl HashJudge<'_> {
    fn show(
        &self,
        group: &[LevelRecord<'_>],
        left: &mut SkippedCounts,
        visit: VisitPayload<'_>,
    ) -> Result<bool> {
        for (nth, one) in group.iter().enumerate() {
            let has_expired = self.has_expired(one.record.payload);
            if one.record.mark == TOMBSTONE || has_expired == Some(true) {
                continue;
            }
            let mut fate = self.fate(&group[..nth], one)?;
            if has_expired.is_none() {
                fate = fate.or(RecordFate::Untold);
            }
            match fate {
                RecordFate::Live => {
                    if visit(one.record.payload)? {
                        return Ok(true);
                    }
                }
                RecordFate::Dead => {}
                RecordFate::Hidden => left.hidden += 1,
                RecordFate::Untold => left.untold += 1,
            }
        }
        Ok(false)
    }

    /// What is known of a record, before which these come that are newer.
    fn fate(&self, newer: &[LevelRecord<'_>], one: &LevelRecord<'_>) -> Result<RecordFate> {
        let (hash, payload) = (one.record.hash, one.record.payload);
        let mut fate = if one.is_known { RecordFate::Live } else { RecordFate::Hidden };
        for hot in self.hot.of(hash) {
            match self.hot.read(hot, &mut |other| self.is_same_key(hash, payload, other)) {
                Ok(Some(true)) => return Ok(RecordFate::Dead),
                Ok(Some(false)) => {}
                Ok(None) => fate = fate.or(RecordFate::Untold),
                Err(error) => {
                    self.reader.pass_over(error, self.state, true)?;
                    fate = fate.or(RecordFate::Hidden);
                }
            }
        }
        for other in newer {
            match self.is_same_key(hash, payload, other.record.payload) {
                Some(true) => return Ok(RecordFate::Dead),
                Some(false) => {}
                None => fate = fate.or(RecordFate::Untold),
            }
        }
        Ok(fate)
    }

    /// Whether two records of one hash are of one key; `None` if that is not known.
    fn is_same_key(&self, hash: u64, one: &[u8], other: &[u8]) -> Option<bool> {
        if one == other {
            return Some(true);
        }
        let RecordTypes { types, record } = self.types;
        let key_of = |payload| pair(types, record, payload).ok().map(|[key, _]| key);
        let (one, other) = (key_of(one)?, key_of(other)?);
        if one == other {
            return Some(true);
        }
        let Type::Struct(fields) = types.get(record) else { return None };
        let (_, key) = fields.first()?;
        let follows = |value: &ArchiveValue| types.key_hash(*key, value) == Some(hash);
        (follows(&one) && follows(&other)).then_some(false)
    }

    /// Whether a record has expired; `None` if that is not known, as it cannot be decoded.
    fn has_expired(&self, payload: &[u8]) -> Option<bool> {
        let Some(touched) = &self.part.touched else { return Some(false) };
        let Ok([_, ArchiveValue::Fields(fields)]) =
            pair(self.types.types, self.types.record, payload)
        else {
            return None;
        };
        match fields.first() {
            Some((name, ArchiveValue::Number(at))) if name == "touched" => {
                let at: i64 = at.parse().ok()?;
                Some(at < touched.expired_before.0)
            }
            _ => None,
        }
    }
}

impl RecordFate {
    /// The fate of a record of which this was known before.
    fn or(self, other: RecordFate) -> RecordFate {
        if self == RecordFate::Live { other } else { self }
    }
}
