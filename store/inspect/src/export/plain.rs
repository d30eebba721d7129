//! Records of a key and a value, as maps, counts, values and timers have them in every layout, and
//! lists and panes in those that keep them under keys of slice and key.

use alluvium_pagestore::{RECORDS, Result};

use super::cold::{self, RecordTypes};
use super::reader::{DirectoryReader, Passing};
use super::sink::LimitedWriter;
use crate::archive::{Archive, ArchiveValue, Types};
use crate::checkpoints::StateAt;

/// The type of records of a key and a value.
pub fn record_of(types: &mut Types, key: &str, value: &str) -> usize {
    let (key, value) = (types.parse(key), types.parse(value));
    types.add_struct(&[("key", key), ("value", value)])
}

/// Records whose key is the state's.
pub fn export(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
    sink: &mut LimitedWriter<'_>,
) -> Result<()> {
    export_as(reader, state, (state.key(), state.value()), sink, &mut |fields| fields)
}

/// Records whose key is a slice of time, or a bucket, and the state's key. Their values are
/// `value`.
pub fn export_sliced(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
    value: &str,
    sink: &mut LimitedWriter<'_>,
) -> Result<()> {
    let key = format!("(Time,{},)", state.key());
    let has_slices = state.primitive() != "list";
    export_as(reader, state, (&key, value), sink, &mut |fields| {
        let mut fields = fields.into_iter();
        let (Some((_, ArchiveValue::List(key))), Some(value)) = (fields.next(), fields.next())
        else {
            return Vec::new();
        };
        let mut key = key.into_iter();
        let slice = key.next().filter(|_| has_slices).map(|slice| ("slice", slice));
        slice.into_iter().chain(key.next().map(|key| ("key", key))).chain([value]).collect()
    })
}

/// How a record's fields become those of its line.
type FieldMapping<'s> =
    &'s mut dyn FnMut(Vec<(&'static str, ArchiveValue)>) -> Vec<(&'static str, ArchiveValue)>;

fn export_as(
    reader: &DirectoryReader<'_>,
    state: StateAt<'_>,
    (key, value): (&str, &str),
    sink: &mut LimitedWriter<'_>,
    shape: FieldMapping<'_>,
) -> Result<()> {
    state.is_laid_out_as(RECORDS)?;
    let mut types = Types::default();
    let root = record_of(&mut types, key, value);
    let mut write = |payload: &[u8]| match pair(&types, root, payload) {
        Ok([key, value]) => sink.line(state.name(), shape(vec![("key", key), ("value", value)])),
        Err(why) => {
            let text = format!("Record{{key:{key},value:{value},}}");
            sink.undecoded(state.name(), text, payload, why)
        }
    };
    for segment in state.segments() {
        let enough = reader.for_each(state, segment, Passing::Images, &mut |_, record| {
            record.map_or(Ok(false), |record| write(record.payload))
        })?;
        if enough {
            return Ok(());
        }
    }
    let types = RecordTypes { types: &types, record: root };
    cold::for_each((reader, state), types, &mut write).map(drop)
}

/// Key and value of a record.
pub fn pair(
    types: &Types,
    root: usize,
    payload: &[u8],
) -> std::result::Result<[ArchiveValue; 2], crate::archive::Undecodable> {
    match Archive::decode(types, root, payload)? {
        ArchiveValue::Fields(fields) if fields.len() == 2 => {
            let mut values = fields.into_iter().map(|(_, value)| value);
            let next = &mut values;
            Ok([next.next(), next.next()].map(|value| value.expect("two fields")))
        }
        other => unreachable!("a struct of two fields decodes to {other:?}"),
    }
}
