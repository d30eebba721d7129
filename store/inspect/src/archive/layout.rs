//! Sizes and alignments of archived types, as rkyv 0.8 has them with little-endian numbers, 32-bit
//! pointers and alignment.
//!
//! Structs and tuples are `repr(C)`, enums (and `Option`) are `repr(u8)`: a union of `repr(C)`
//! structs that each begin with the tag. What is out of line is behind an `i32` from the pointer's
//! own place, with an `u32` length after it if it is a slice.

use super::description::{Type, TypeId, Types};

/// Bytes that a value takes, and what its place is a multiple of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueLayout {
    pub size: usize,
    pub align: usize,
}

/// Values take no more, so that sums of sizes do not overflow.
const SIZE_MAX: usize = 1 << 30;
/// Values nest no deeper in place.
const DEPTH_MAX: usize = 256;
/// Entries of a node of an archived B-tree.
pub const NODE_ENTRIES: usize = 5;

impl ValueLayout {
    const fn of(size: usize, align: usize) -> Self {
        Self { size, align }
    }

    /// Appends a field and says where it stands; the size is not a multiple of the alignment then.
    pub fn push(&mut self, field: ValueLayout) -> Option<usize> {
        let at = self.size.next_multiple_of(field.align);
        self.size = at.checked_add(field.size).filter(|size| *size <= SIZE_MAX)?;
        self.align = self.align.max(field.align);
        Some(at)
    }

    /// As a field or element of others.
    pub fn padded(self) -> Self {
        Self { size: self.size.next_multiple_of(self.align), ..self }
    }
}

impl Types {
    /// The layout of a type, or the text of the part that makes it unknown.
    pub fn layout(&self, id: TypeId) -> Result<ValueLayout, String> {
        self.layout_at(id, 0)
    }

    fn layout_at(&self, id: TypeId, depth: usize) -> Result<ValueLayout, String> {
        if depth > DEPTH_MAX {
            return Err("a type that contains itself in place".into());
        }
        let deeper = |id| self.layout_at(id, depth + 1);
        Ok(match self.get(id) {
            Type::Unit => ValueLayout::of(0, 1),
            Type::Bool => ValueLayout::of(1, 1),
            Type::Char => ValueLayout::of(4, 4),
            Type::Integer(bytes, ..) | Type::Float(bytes) => {
                ValueLayout::of((*bytes).into(), (*bytes).into())
            }
            Type::Text | Type::BoxedText | Type::List(_) | Type::Serde(_) => ValueLayout::of(8, 4),
            Type::Boxed(_) => ValueLayout::of(4, 4),
            Type::HashMap(..) | Type::HashSet(_) => ValueLayout::of(12, 4),
            Type::BTreeMap(..) | Type::BTreeSet(_) => ValueLayout::of(8, 4),
            Type::Ipv4 => ValueLayout::of(4, 1),
            Type::Ipv6 => ValueLayout::of(16, 1),
            Type::SocketV4 => ValueLayout::of(6, 2),
            Type::SocketV6 => ValueLayout::of(28, 4),
            Type::Array(of, length) => {
                let ValueLayout { size, align } = deeper(*of)?;
                let size = size.checked_mul(*length).filter(|size| *size <= SIZE_MAX);
                ValueLayout::of(size.ok_or("an array that is too large")?, align)
            }
            Type::Option(of) => self.variant_layout([*of].into_iter(), depth)?.padded(),
            Type::Struct(fields) => {
                let mut layout = ValueLayout::of(0, 1);
                for (_, of) in fields {
                    layout.push(deeper(*of)?).ok_or("a type that is too large")?;
                }
                layout.padded()
            }
            Type::Enum(variants) => {
                let variants = variants.iter().map(|variant| {
                    self.variant_layout(variant.fields.iter().map(|(_, of)| *of), depth)
                });
                widest(variants)?
            }
            Type::Untagged(variants) => {
                widest(variants.iter().map(|of| self.variant_layout([*of].into_iter(), depth)))?
            }
            Type::Unknown(text) => return Err(text.clone()),
        })
    }

    fn variant_layout(
        &self,
        fields: impl Iterator<Item = TypeId>,
        depth: usize,
    ) -> Result<ValueLayout, String> {
        let mut layout = ValueLayout::of(1, 1);
        for of in fields {
            layout.push(self.layout_at(of, depth + 1)?).ok_or("a type that is too large")?;
        }
        Ok(layout)
    }
}

fn widest(
    variants: impl Iterator<Item = Result<ValueLayout, String>>,
) -> Result<ValueLayout, String> {
    let mut widest = ValueLayout::of(1, 1);
    for variant in variants {
        let ValueLayout { size, align } = variant?;
        widest = ValueLayout::of(widest.size.max(size), widest.align.max(align));
    }
    Ok(widest.padded())
}
