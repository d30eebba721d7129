//! Reading an archive by its type.
//!
//! Objects of an archive lie apart: the root at its end, what is out of line before it. Each object
//! is *claimed* when it is reached, and no byte twice, so that reading is bounded by the bytes
//! whatever the pointers say; what nobody has claimed at the end must be padding.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use super::description::{Type, TypeId, Types, Variant};
use super::layout::ValueLayout;
use super::value::ArchiveValue;

/// Values nest no deeper.
const DEPTH_MAX: usize = 200;
/// Elements of a list that take no bytes.
const EMPTY_ELEMENTS_MAX: usize = 1 << 20;
/// The widest alignment there is.
const ALIGN_MAX: usize = 16;

/// Why an archive is not decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecodable(pub String);

type Result<T> = std::result::Result<T, Undecodable>;

pub(super) fn refuse<T>(what: impl Into<String>) -> Result<T> {
    Err(Undecodable(what.into()))
}

/// The bytes of one archive.
#[derive(Debug)]
pub struct Archive<'a> {
    types: &'a Types,
    bytes: &'a [u8],
    /// Which bytes belong to an object that was reached.
    claimed: Vec<bool>,
    depth: usize,
}

impl<'a> Archive<'a> {
    /// Decodes the archive of a `root`.
    ///
    /// # Errors
    /// The type's layout is not known, or the bytes are not exactly an archive of it.
    pub fn decode(types: &'a Types, root: TypeId, bytes: &'a [u8]) -> Result<ArchiveValue> {
        let mut archive = Self { types, bytes, claimed: vec![false; bytes.len()], depth: 0 };
        let layout = archive.layout(root)?;
        let Some(at) = bytes.len().checked_sub(layout.size) else {
            return refuse(format!("{} bytes, its type takes {}", bytes.len(), layout.size));
        };
        archive.claim(at, layout.size, layout.align)?;
        let value = archive.value(root, at)?;
        archive.check_rest()?;
        Ok(value)
    }

    pub(super) fn layout(&self, id: TypeId) -> Result<ValueLayout> {
        self.types
            .layout(id)
            .map_err(|text| Undecodable(format!("the form of {text} is not known")))
    }

    /// Takes bytes for an object.
    pub(super) fn claim(&mut self, at: usize, size: usize, align: usize) -> Result<()> {
        let end = at.checked_add(size).filter(|end| *end <= self.bytes.len());
        let Some(end) = end.filter(|_| at.is_multiple_of(align)) else {
            return refuse(format!("{size} bytes at {at} are not a place of the archive"));
        };
        let claimed = &mut self.claimed[at..end];
        if claimed.contains(&true) {
            return refuse(format!("two objects at {at}"));
        }
        claimed.fill(true);
        Ok(())
    }

    /// What was not claimed is padding: zeros, less than an alignment.
    fn check_rest(&self) -> Result<()> {
        let mut run = 0;
        for (at, claimed) in self.claimed.iter().enumerate() {
            run = if *claimed { 0 } else { run + 1 };
            if run >= ALIGN_MAX || (!claimed && self.bytes[at] != 0) {
                return refuse(format!("bytes at {at} that its type does not account for"));
            }
        }
        Ok(())
    }

    pub(super) fn take<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let bytes = at.checked_add(N).and_then(|end| self.bytes.get(at..end));
        let bytes = bytes.ok_or_else(|| Undecodable(format!("the archive ends before {at}")))?;
        Ok(bytes.try_into().expect("as many as were asked for"))
    }

    pub(super) fn u32_at(&self, at: usize) -> Result<usize> {
        Ok(u32::from_le_bytes(self.take(at)?) as usize)
    }

    /// Where the pointer at `from` leads, `at` being its place.
    pub(super) fn pointer(&self, from: usize, at: usize) -> Result<usize> {
        let offset = i32::from_le_bytes(self.take(at)?);
        let target = from.checked_add_signed(offset as isize);
        target.ok_or_else(|| Undecodable(format!("a pointer at {at} leads out of the archive")))
    }

    pub(super) fn value(&mut self, id: TypeId, at: usize) -> Result<ArchiveValue> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return refuse("it nests too deep");
        }
        let value = self.value_at_depth(id, at);
        self.depth -= 1;
        value
    }

    fn value_at_depth(&mut self, id: TypeId, at: usize) -> Result<ArchiveValue> {
        let types = self.types;
        match types.get(id) {
            Type::Unit => Ok(ArchiveValue::Null),
            Type::Bool => match self.take(at)? {
                [0] => Ok(ArchiveValue::Bool(false)),
                [1] => Ok(ArchiveValue::Bool(true)),
                [other] => refuse(format!("{other} is no bool")),
            },
            Type::Char => match char::from_u32(self.u32_at(at)? as u32) {
                Some(c) => Ok(ArchiveValue::Text(c.into())),
                None => refuse("a char that is none"),
            },
            Type::Integer(bytes, signed, non_zero) => self.integer(at, *bytes, *signed, *non_zero),
            Type::Float(4) => {
                Ok(number(serde_json::to_string(&f32::from_le_bytes(self.take(at)?))))
            }
            Type::Float(_) => {
                Ok(number(serde_json::to_string(&f64::from_le_bytes(self.take(at)?))))
            }
            Type::Text => self.text(at),
            Type::BoxedText => Ok(ArchiveValue::Text(utf8(self.slice(at)?)?)),
            Type::Boxed(of) => {
                let (target, ValueLayout { size, align }) =
                    (self.pointer(at, at)?, self.layout(*of)?);
                self.claim(target, size, align)?;
                self.value(*of, target)
            }
            Type::List(of) => self.list(*of, at),
            Type::Array(of, length) => self.elements(*of, at, *length),
            Type::Option(of) => match self.take(at)? {
                [0] => Ok(ArchiveValue::Null),
                [1] => self.value(*of, at + 1.max(self.layout(*of)?.align)),
                [other] => refuse(format!("{other} is no tag of an option")),
            },
            Type::Struct(fields) => {
                let (values, is_tuple) =
                    self.fields(fields, ValueLayout { size: 0, align: 1 }, at)?;
                Ok(as_serde(values, is_tuple))
            }
            Type::Enum(variants) => self.variant(variants, at),
            Type::Untagged(variants) => match self.take(at)? {
                [tag] if usize::from(tag) < variants.len() => {
                    let of = variants[usize::from(tag)];
                    self.value(of, at + self.layout(of)?.align)
                }
                [other] => refuse(format!("{other} is no tag of an address")),
            },
            Type::HashMap(key, value) => self.hash_map(*key, *value, at),
            Type::HashSet(of) => self.hash_set(*of, at),
            Type::BTreeMap(key, value) => self.btree_map(*key, *value, at),
            Type::BTreeSet(of) => self.btree_set(*of, at),
            Type::Ipv4 => Ok(text_of(Ipv4Addr::from(self.take::<4>(at)?))),
            Type::Ipv6 => Ok(text_of(Ipv6Addr::from(self.take::<16>(at)?))),
            Type::SocketV4 => {
                let port = u16::from_le_bytes(self.take(at + 4)?);
                Ok(text_of(SocketAddrV4::new(self.take::<4>(at)?.into(), port)))
            }
            Type::SocketV6 => {
                let port = u16::from_le_bytes(self.take(at + 16)?);
                let (flow, scope) = (self.u32_at(at + 20)? as u32, self.u32_at(at + 24)? as u32);
                let ip = self.take::<16>(at)?.into();
                Ok(text_of(SocketAddrV6::new(ip, port, flow, scope)))
            }
            Type::Serde(text) => {
                let bytes = self.slice(at)?.to_vec();
                Ok(ArchiveValue::Bytes { type_text: text.clone(), bytes })
            }
            Type::Unknown(text) => refuse(format!("the form of {text} is not known")),
        }
    }

    fn integer(&self, at: usize, bytes: u8, signed: bool, non_zero: bool) -> Result<ArchiveValue> {
        let text = match (bytes, signed) {
            (1, false) => u8::from_le_bytes(self.take(at)?).to_string(),
            (1, true) => i8::from_le_bytes(self.take(at)?).to_string(),
            (2, false) => u16::from_le_bytes(self.take(at)?).to_string(),
            (2, true) => i16::from_le_bytes(self.take(at)?).to_string(),
            (4, false) => u32::from_le_bytes(self.take(at)?).to_string(),
            (4, true) => i32::from_le_bytes(self.take(at)?).to_string(),
            (8, false) => u64::from_le_bytes(self.take(at)?).to_string(),
            (8, true) => i64::from_le_bytes(self.take(at)?).to_string(),
            (_, false) => u128::from_le_bytes(self.take(at)?).to_string(),
            (_, true) => i128::from_le_bytes(self.take(at)?).to_string(),
        };
        if non_zero && text == "0" {
            return refuse("a zero where there is none");
        }
        Ok(ArchiveValue::Number(text))
    }

    /// A string: eight bytes in place, or a length, whose first byte has 10 as its highest bits,
    /// with a pointer.
    fn text(&mut self, at: usize) -> Result<ArchiveValue> {
        let inline: [u8; 8] = self.take(at)?;
        if inline[0] & 0xc0 != 0x80 {
            let length = inline.iter().position(|byte| *byte == 0xff).unwrap_or(inline.len());
            return utf8(&inline[..length]).map(ArchiveValue::Text);
        }
        let length = self.u32_at(at)?;
        let length = length & 0x3f | (length & !0xff) >> 2;
        let target = self.pointer(at, at + 4)?;
        self.claim(target, length, 1)?;
        utf8(&self.bytes[target..target + length]).map(ArchiveValue::Text)
    }

    /// The bytes of a slice of bytes.
    fn slice(&mut self, at: usize) -> Result<&'a [u8]> {
        let length = self.u32_at(at + 4)?;
        if length == 0 {
            return Ok(&[]);
        }
        let target = self.pointer(at, at)?;
        self.claim(target, length, 1)?;
        Ok(&self.bytes[target..target + length])
    }

    fn list(&mut self, of: TypeId, at: usize) -> Result<ArchiveValue> {
        let (length, ValueLayout { size, align }) = (self.u32_at(at + 4)?, self.layout(of)?);
        if length == 0 {
            return Ok(ArchiveValue::List(Vec::new()));
        }
        let Some(bytes) = size.checked_mul(length) else {
            return refuse(format!("a list of {length} elements"));
        };
        let target = self.pointer(at, at)?;
        if bytes > 0 {
            self.claim(target, bytes, align)?;
        }
        self.elements(of, target, length)
    }

    /// Elements that stand one after the other, in bytes that are claimed.
    fn elements(&mut self, of: TypeId, at: usize, length: usize) -> Result<ArchiveValue> {
        let size = self.layout(of)?.size;
        if size == 0 && length > EMPTY_ELEMENTS_MAX {
            return refuse(format!("{length} elements without bytes"));
        }
        (0..length)
            .map(|i| self.value(of, at + i * size))
            .collect::<Result<_>>()
            .map(ArchiveValue::List)
    }

    /// Fields after what `layout` has before them, and whether their names are numbers.
    fn fields(
        &mut self,
        fields: &[(String, TypeId)],
        mut layout: ValueLayout,
        at: usize,
    ) -> Result<(Vec<(String, ArchiveValue)>, bool)> {
        let mut values = Vec::with_capacity(fields.len());
        for (name, of) in fields {
            let Some(place) = layout.push(self.layout(*of)?) else {
                return refuse("a type that is too large");
            };
            values.push((name.clone(), self.value(*of, at + place)?));
        }
        let is_tuple = fields.first().is_some_and(|(name, _)| name == "0");
        Ok((values, is_tuple))
    }

    fn variant(&mut self, variants: &[Variant], at: usize) -> Result<ArchiveValue> {
        let [tag] = self.take(at)?;
        let Some(variant) = variants.iter().find(|variant| variant.tag == tag) else {
            return refuse(format!("{tag} is no tag of its enum"));
        };
        // The alignment of the enum decides where it stands, not where its fields stand in it.
        let (values, is_tuple) =
            self.fields(&variant.fields, ValueLayout { size: 1, align: 1 }, at)?;
        if values.is_empty() {
            return Ok(ArchiveValue::Text(variant.name.clone()));
        }
        Ok(ArchiveValue::Fields(vec![(variant.name.clone(), as_serde(values, is_tuple))]))
    }
}

/// Fields as serde writes them: a tuple as a list, one of one as its field.
fn as_serde(values: Vec<(String, ArchiveValue)>, is_tuple: bool) -> ArchiveValue {
    if !is_tuple {
        return ArchiveValue::Fields(values);
    }
    let mut values: Vec<_> = values.into_iter().map(|(_, value)| value).collect();
    if values.len() == 1 { values.remove(0) } else { ArchiveValue::List(values) }
}

fn number(text: serde_json::Result<String>) -> ArchiveValue {
    match text {
        Ok(text) if text != "null" => ArchiveValue::Number(text),
        _ => ArchiveValue::Null,
    }
}

fn text_of(value: impl ToString) -> ArchiveValue {
    ArchiveValue::Text(value.to_string())
}

fn utf8(bytes: &[u8]) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => refuse("a text that is not UTF-8"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use alluvium_pagestore::block::AlignedVec;
    use alluvium_pagestore::{State, codec, description_of};

    use super::*;

    type Plain = Vec<(u8, Option<String>, Box<[u16]>, Result2)>;
    type Result2 = std::result::Result<u64, (bool, char)>;

    fn archive_of<V: State>(value: &V) -> (Types, TypeId, AlignedVec) {
        let mut types = Types::default();
        let (key, of) = (types.parse("u32"), types.parse(&description_of::<V>()));
        let root = types.add_struct(&[("key", key), ("value", of)]);
        let mut bytes = AlignedVec::new();
        codec::encode(&mut bytes, &7u32, value).unwrap();
        (types, root, bytes)
    }

    /// Calls `check` with the archive of a value, each of its bytes changed in turn, and cut.
    fn damage<V: State>(value: &V, check: impl Fn(&[u8], super::Result<ArchiveValue>)) {
        let (types, root, bytes) = archive_of(value);
        assert!(Archive::decode(&types, root, &bytes).is_ok());
        for at in 0..bytes.len() {
            for change in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                check(&bytes, Archive::decode(&types, root, &bytes));
            }
            assert!(Archive::decode(&types, root, &bytes[..at]).is_err(), "cut to {at}");
        }
    }

    /// What both read of damaged bytes is the same. Checksums keep such bytes away; this is about
    /// pointers and lengths.
    #[test]
    fn damaged_bytes_are_refused_or_read_as_rkyv_reads_them() {
        let text = |length: usize| Some("é".repeat(length));
        let value: Plain = vec![
            (1, None, Box::new([]), Ok(5)),
            (2, text(3), Box::new([1, 2, 3]), Err((true, 'x'))),
            (3, text(40), Box::new([4; 9]), Ok(u64::MAX)),
        ];
        let compared = std::cell::Cell::new(0);
        damage(&value, |bytes, ours| {
            let (Ok(ours), Ok((key, value))) = (ours, codec::decode::<u32, Plain>(bytes)) else {
                return;
            };
            let value = serde_json::to_string(&value).unwrap();
            assert_eq!(ours.to_json(), format!(r#"{{"key":{key},"value":{value}}}"#));
            compared.set(compared.get() + 1);
        });
        assert!(compared.get() > 100);
    }

    #[test]
    fn damaged_maps_are_read_without_a_panic() {
        let sorted: BTreeMap<u16, String> = (0..40).map(|n| (n, n.to_string())).collect();
        let hashed: HashMap<u16, Vec<u8>> = (0..20).map(|n| (n, vec![1; n as usize % 3])).collect();
        let refused = std::cell::Cell::new(0);
        let count = |_: &[u8], ours: super::Result<ArchiveValue>| {
            refused.set(refused.get() + u32::from(ours.is_err()));
        };
        damage(&sorted, count);
        damage(&hashed, count);
        assert!(refused.get() > 100);
    }
}
