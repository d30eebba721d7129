//! The contents of a directory: checkpoints, states, other files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use alluvium_pagestore::{GRAIN_BYTES, RECORD_HEADER_BYTES, Result, WholeSegment};
use serde::Serialize;

use crate::checkpoints::{ListedCheckpoints, RestorableCheckpoint, SegmentAt, StateAt};
use crate::directory::ClosedDirectory;
use crate::table::{Short, write_aligned};

/// The contents of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Checkpoints, the newest first.
    pub checkpoints: Vec<CheckpointSummary>,
    /// States of the newest checkpoint, by name.
    pub states: Vec<StateSummary>,
    /// Files that no checkpoint needs.
    pub other_files: Vec<OtherFile>,
    /// Errors met while reading, as text; `verify` finds all damage.
    pub trouble: Vec<String>,
}

/// One checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointSummary {
    /// Number of the checkpoint.
    pub number: u64,
    /// Position that the caller gave.
    pub position: u64,
    /// First key group of the store, the one after its last, and the number of key groups of the
    /// job.
    pub key_groups: (u16, u16, u16),
    /// Number of states.
    pub states: u64,
    /// Files that it needs and that exist.
    pub files: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Bytes of the files that only this checkpoint needs.
    pub pinned_bytes: u64,
}

/// One state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StateSummary {
    /// The name.
    pub name: String,
    /// The primitive, such as `map`.
    pub primitive: String,
    /// Name of the layout that wrote it.
    pub layout: String,
    /// Description of the key's type.
    pub key: String,
    /// Description of the value's type.
    pub value: String,
    /// Number of keys; elements for lists, accumulators for panes.
    pub keys: u64,
    /// Number of segments.
    pub segments: u64,
    /// Bytes of these, and of sorted runs.
    pub bytes: u64,
    /// Live records of the checkpoint.
    pub live_records: u64,
    /// Records in the segments that are dead for the checkpoint.
    pub dead_records: u64,
    /// Bytes of the dead records; `null` if a footer or a live set cannot be read.
    pub dead_bytes: Option<u64>,
}

/// A file that no checkpoint needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OtherFile {
    /// The name.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Describes the file, and what happens to it when the store opens.
    pub what: String,
}

/// Summarizes a directory. Reads manifests, and the footers of segments with dead records.
pub fn inspect(directory: &ClosedDirectory) -> Result<Summary> {
    let files: BTreeMap<_, _> = directory.files()?.into_iter().collect();
    let found = ListedCheckpoints::read(directory);
    let mut trouble: Vec<_> = found.damage.iter().map(ToString::to_string).collect();
    let named: Vec<_> = found.all.iter().map(RestorableCheckpoint::files).collect();
    let checkpoints = found.all.iter().enumerate();
    let checkpoints = checkpoints.map(|(i, c)| summary_of(c, i, &named, &files)).collect();
    let mut states = Vec::new();
    for state in found.all.first().into_iter().flat_map(RestorableCheckpoint::states) {
        states.push(summary_of_state(directory, state, &mut trouble));
    }
    let others = files.iter().filter(|(name, _)| !named.iter().any(|named| named.contains(*name)));
    let other_files = others.filter_map(|(name, bytes)| {
        let what = found.meaning_of_other_file(name)?;
        Some(OtherFile { name: name.clone(), bytes: *bytes, what })
    });
    Ok(Summary { checkpoints, states, other_files: other_files.collect(), trouble })
}

fn summary_of(
    checkpoint: &RestorableCheckpoint,
    number: usize,
    named: &[BTreeSet<String>],
    files: &BTreeMap<String, u64>,
) -> CheckpointSummary {
    let there = |name: &&String| files.contains_key(*name);
    let own: Vec<_> = named[number].iter().filter(there).collect();
    let only = |name: &&&String| {
        !named.iter().enumerate().any(|(other, named)| other != number && named.contains(**name))
    };
    let bytes_of = |name: &&String| files[*name];
    CheckpointSummary {
        number: checkpoint.number(),
        position: checkpoint.position(),
        key_groups: checkpoint.key_groups(),
        states: checkpoint.states().count() as u64,
        files: own.len() as u64,
        bytes: own.iter().map(bytes_of).sum(),
        pinned_bytes: own.iter().filter(only).map(bytes_of).sum(),
    }
}

fn summary_of_state(
    directory: &ClosedDirectory,
    state: StateAt<'_>,
    trouble: &mut Vec<String>,
) -> StateSummary {
    let mut summary = StateSummary {
        name: state.name().into(),
        primitive: state.primitive().into(),
        layout: state.layout().into(),
        key: state.key().into(),
        value: state.value().into(),
        keys: state.entries(),
        dead_bytes: Some(0),
        ..StateSummary::default()
    };
    for segment in state.segments() {
        summary.segments += 1;
        summary.bytes += segment.bytes();
        summary.live_records += segment.live_records();
        summary.dead_records += segment.records().saturating_sub(segment.live_records());
        let dead = dead_bytes(directory, state, segment);
        summary.dead_bytes = match (summary.dead_bytes, dead) {
            (sum, Ok(dead)) => sum.map(|sum| sum + dead),
            (_, Err(error)) => {
                trouble.push(error.to_string());
                None
            }
        };
    }
    summary.bytes += state.runs().map(|run| run.bytes).sum::<u64>();
    summary
}

/// Bytes of a segment's dead records, with their headers.
fn dead_bytes(
    directory: &ClosedDirectory,
    state: StateAt<'_>,
    segment: SegmentAt<'_>,
) -> Result<u64> {
    if segment.is_live_in_full() {
        return Ok(0);
    }
    let (info, live) = (segment.open(directory)?, segment.live()?);
    let bytes = directory.map(&segment.file_name())?;
    let mut whole = WholeSegment::open(&info, state.fingerprint(), &bytes);
    if let Some(error) = whole.take_damage().into_iter().next() {
        return Err(error);
    }
    let mut dead = 0;
    for image in whole.images() {
        for entry in whole.footer(image)?.iter().filter(|entry| !live.contains(entry.grain)) {
            dead +=
                (RECORD_HEADER_BYTES as u64 + u64::from(entry.len)).next_multiple_of(GRAIN_BYTES);
        }
    }
    Ok(dead)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_checkpoints(f)?;
        self.write_states(f)?;
        for OtherFile { name, bytes, what } in &self.other_files {
            writeln!(f, "other file: {name} of {}, {what}", Short(*bytes))?;
        }
        for trouble in &self.trouble {
            writeln!(f, "trouble: {trouble}")?;
        }
        Ok(())
    }
}

impl Summary {
    fn write_checkpoints(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.checkpoints.is_empty() {
            return writeln!(f, "no checkpoint that can be read");
        }
        let heads = ["checkpoint", "position", "key groups", "states", "files", "bytes", "pins"];
        let mut rows = vec![heads.map(String::from).to_vec()];
        rows.extend(self.checkpoints.iter().map(|c| {
            let (start, end, all) = c.key_groups;
            vec![
                c.number.to_string(),
                c.position.to_string(),
                format!("{start}..{end} of {all}"),
                c.states.to_string(),
                c.files.to_string(),
                Short(c.bytes).to_string(),
                Short(c.pinned_bytes).to_string(),
            ]
        }));
        write_aligned(f, 0, &rows)?;
        writeln!(f)
    }

    fn write_states(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.states.is_empty() {
            return Ok(());
        }
        let heads = "state primitive layout keys segments bytes live dead garbage";
        let mut rows = vec![heads.split_whitespace().map(String::from).collect()];
        rows.extend(self.states.iter().map(|s| {
            let mut row = vec![s.name.clone(), s.primitive.clone(), s.layout.clone()];
            row.extend([s.keys, s.segments].map(|number| number.to_string()));
            row.push(Short(s.bytes).to_string());
            row.extend([s.live_records, s.dead_records].map(|number| number.to_string()));
            row.push(s.dead_bytes.map_or("?".into(), |bytes| Short(bytes).to_string()));
            row
        }));
        write_aligned(f, 3, &rows)?;
        writeln!(f)?;
        for state in &self.states {
            writeln!(f, "{}: {} -> {}", state.name, state.key, state.value)?;
        }
        Ok(())
    }
}
