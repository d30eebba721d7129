//! Descriptions of types, parsed.
//!
//! A named type may contain itself; inside its own description its name stands for it. If several
//! types around it have that name, it is not known which is meant.

use std::collections::BTreeSet;

use alluvium_pagestore::SERDE_CODEC;

/// Number of a type in its [`Types`].
pub type TypeId = usize;

/// Types nest no deeper.
const DEPTH_MAX: usize = 128;

/// Types that refer to each other.
#[derive(Clone, Debug, Default)]
pub struct Types {
    all: Vec<Type>,
    /// Which structs are tuples without a name.
    tuples: BTreeSet<TypeId>,
    /// The named types being parsed, outermost first.
    open: Vec<(String, TypeId)>,
}

/// A type as its description tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// Nothing is stored.
    Unit,
    Bool,
    Char,
    /// Bytes, whether it is signed, whether it is never 0.
    Integer(u8, bool, bool),
    /// Bytes.
    Float(u8),
    Text,
    /// A `Box<str>`.
    BoxedText,
    Boxed(TypeId),
    /// A vector, deque or boxed slice.
    List(TypeId),
    Array(TypeId, usize),
    Option(TypeId),
    /// Fields with their names; in a tuple these are numbers.
    Struct(Vec<(String, TypeId)>),
    Enum(Vec<Variant>),
    HashMap(TypeId, TypeId),
    HashSet(TypeId),
    BTreeMap(TypeId, TypeId),
    BTreeSet(TypeId),
    Ipv4,
    Ipv6,
    SocketV4,
    SocketV6,
    /// An enum of which only the content is told, such as `IpAddr`.
    Untagged(Vec<TypeId>),
    /// Bytes by serde; the text is their type's.
    Serde(String),
    /// A type of which only the text is known.
    Unknown(String),
}

/// A variant of an enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    pub name: String,
    pub tag: u8,
    pub fields: Vec<(String, TypeId)>,
}

impl Types {
    /// The type with this number.
    pub fn get(&self, id: TypeId) -> &Type {
        &self.all[id]
    }

    /// Adds a type.
    pub fn add(&mut self, ty: Type) -> TypeId {
        self.all.push(ty);
        self.all.len() - 1
    }

    /// Whether a struct is a tuple without a name.
    pub fn is_tuple(&self, id: TypeId) -> bool {
        self.tuples.contains(&id)
    }

    fn add_tuple(&mut self, fields: Vec<(String, TypeId)>) -> TypeId {
        let id = self.add(Type::Struct(fields));
        self.tuples.insert(id);
        id
    }

    /// Adds a struct of these fields.
    pub fn add_struct(&mut self, fields: &[(&str, TypeId)]) -> TypeId {
        let fields = fields.iter().map(|(name, ty)| (String::from(*name), *ty)).collect();
        self.add(Type::Struct(fields))
    }

    /// Adds the type that `text` describes; of a text that is no description, an unknown one.
    pub fn parse(&mut self, text: &str) -> TypeId {
        self.open.clear();
        let mut parser = Parser { text, at: 0, types: self, depth: 0 };
        let parsed = parser.ty();
        let rest = parser.at;
        match parsed {
            Some(id) if rest == text.len() => id,
            _ => self.add(Type::Unknown(text.into())),
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    types: &'t mut Types,
    depth: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn takes(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    /// Takes a name: all up to the next sign that stands in descriptions.
    fn name(&mut self) -> &str {
        let length =
            self.rest().find(['<', '>', '(', ')', '[', ']', '{', '}', ',', ';', ':', '|', '=']);
        let start = self.at;
        self.at += length.unwrap_or(self.rest().len());
        &self.text[start..self.at]
    }

    /// Takes `(…)` and gives what is inside.
    fn parenthesized(&mut self) -> Option<&str> {
        let (start, mut depth) = (self.at, 0usize);
        if !self.rest().starts_with('(') {
            return None;
        }
        for (i, byte) in self.text.as_bytes()[start..].iter().enumerate() {
            match byte {
                b'(' => depth += 1,
                b')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.at = start + i + 1;
                return Some(&self.text[start + 1..start + i]);
            }
        }
        None
    }

    fn ty(&mut self) -> Option<TypeId> {
        self.depth += 1;
        let parsed = if self.depth > DEPTH_MAX { None } else { self.ty_at_depth() };
        self.depth -= 1;
        parsed
    }

    fn ty_at_depth(&mut self) -> Option<TypeId> {
        let start = self.at;
        if self.takes("()") {
            return Some(self.types.add(Type::Unit));
        }
        if self.takes("(") {
            return self.tuple();
        }
        if self.takes("[") {
            let element = self.ty()?;
            if !self.takes(";") {
                return None;
            }
            let length = self.name().parse().ok()?;
            return self.takes("]").then(|| self.types.add(Type::Array(element, length)));
        }
        let name = self.name().to_owned();
        match name.as_str() {
            "" => None,
            "rkyv" => {
                self.parenthesized()?;
                self.parenthesized()?;
                Some(self.unknown_since(start))
            }
            SERDE_CODEC => {
                self.parenthesized()?;
                let text = self.text[start..self.at].to_owned();
                Some(self.types.add(Type::Serde(text)))
            }
            _ if name.contains('@') => self.named(name),
            _ if self.takes("<") => self.wrapper(&name, start),
            _ => Some(self.simple(&name)),
        }
    }

    fn unknown_since(&mut self, start: usize) -> TypeId {
        let text = self.text[start..self.at].to_owned();
        self.types.add(Type::Unknown(text))
    }

    fn tuple(&mut self) -> Option<TypeId> {
        let mut fields = Vec::new();
        while !self.takes(")") {
            fields.push((fields.len().to_string(), self.ty()?));
            if !self.takes(",") {
                return None;
            }
        }
        // A tuple of one is an array of one in JSON, where a struct of one is its field.
        if let [(_, only)] = fields[..] {
            return Some(self.types.add(Type::Array(only, 1)));
        }
        Some(self.types.add_tuple(fields))
    }

    /// A struct, an enum, or the name of one that is being described.
    fn named(&mut self, name: String) -> Option<TypeId> {
        let is_struct = self.rest().starts_with('{');
        if !is_struct && !self.rest().starts_with('|') {
            let mut around = self.types.open.iter().filter(|(open, _)| *open == name);
            let meant = match (around.next(), around.next()) {
                (Some((_, id)), None) => Some(*id),
                _ => None,
            };
            return Some(meant.unwrap_or_else(|| self.types.add(Type::Unknown(name))));
        }
        let id = self.types.add(Type::Unit);
        self.types.open.push((name, id));
        let body = if is_struct { self.fields().map(Type::Struct) } else { self.variants() };
        self.types.open.pop();
        self.types.all[id] = match body? {
            Type::Struct(fields) if fields.is_empty() => Type::Unit,
            body => body,
        };
        Some(id)
    }

    fn fields(&mut self) -> Option<Vec<(String, TypeId)>> {
        if !self.takes("{") {
            return None;
        }
        let mut fields = Vec::new();
        while !self.takes("}") {
            let name = self.name().to_owned();
            if !self.takes(":") {
                return None;
            }
            fields.push((name, self.ty()?));
            if !self.takes(",") {
                return None;
            }
        }
        Some(fields)
    }

    fn variants(&mut self) -> Option<Type> {
        let start = self.at;
        self.takes("|");
        let (mut variants, mut known) = (Vec::new(), true);
        let mut next = Some(0u8);
        loop {
            let name = self.name().to_owned();
            if name.is_empty() {
                break;
            }
            if self.takes("=") {
                next = self.name().parse().ok();
                // A discriminant that is an expression stands in parentheses.
                known &= next.is_some() || self.parenthesized().is_none();
            }
            let fields = self.fields()?;
            match next {
                Some(tag) => variants.push(Variant { name, tag, fields }),
                None => known = false,
            }
            next = next.and_then(|tag| tag.checked_add(1));
            if !self.takes("|") {
                return None;
            }
        }
        let text = || self.text[start..self.at].to_owned();
        Some(if known { Type::Enum(variants) } else { Type::Unknown(text()) })
    }

    fn wrapper(&mut self, name: &str, start: usize) -> Option<TypeId> {
        if name == "Box" && self.takes("str>") {
            return Some(self.types.add(Type::BoxedText));
        }
        let slice = name == "Box" && self.takes("[");
        let mut parts = vec![self.ty()?];
        while self.takes(",") {
            parts.push(self.ty()?);
        }
        if (slice && !self.takes("]")) || !self.takes(">") {
            return None;
        }
        let types = &mut *self.types;
        Some(match (name, &parts[..]) {
            ("Box", &[of]) => types.add(if slice { Type::List(of) } else { Type::Boxed(of) }),
            ("Vec" | "VecDeque", &[of]) => types.add(Type::List(of)),
            ("Option", &[of]) => types.add(Type::Option(of)),
            ("HashMap", &[key, value]) => types.add(Type::HashMap(key, value)),
            ("BTreeMap", &[key, value]) => types.add(Type::BTreeMap(key, value)),
            ("HashSet", &[of]) => types.add(Type::HashSet(of)),
            ("BTreeSet", &[of]) => types.add(Type::BTreeSet(of)),
            ("Range" | "RangeInclusive", &[of]) => types.add_struct(&[("start", of), ("end", of)]),
            ("RangeFrom", &[of]) => types.add_struct(&[("start", of)]),
            ("RangeTo", &[of]) => types.add_struct(&[("end", of)]),
            ("Result", &[ok, err]) => types.add_enum(&[("Ok", Some(ok)), ("Err", Some(err))]),
            ("Bound", &[of]) => types.add_enum(&[
                ("Included", Some(of)),
                ("Excluded", Some(of)),
                ("Unbounded", None),
            ]),
            _ => self.unknown_since(start),
        })
    }

    fn simple(&mut self, name: &str) -> TypeId {
        let types = &mut *self.types;
        let (number, non_zero) = match name.strip_prefix("NonZero") {
            Some(number) => (number.to_lowercase(), true),
            None => (name.to_owned(), false),
        };
        let integer = |bytes, signed| Type::Integer(bytes, signed, non_zero);
        let ty = match number.as_str() {
            "u8" => integer(1, false),
            "u16" => integer(2, false),
            // Archives have 32 bits for those of the machine.
            "u32" | "usize" => integer(4, false),
            "u64" => integer(8, false),
            "u128" => integer(16, false),
            "i8" => integer(1, true),
            "i16" => integer(2, true),
            "i32" | "isize" => integer(4, true),
            "i64" => integer(8, true),
            "i128" => integer(16, true),
            _ if non_zero => Type::Unknown(name.into()),
            "Time" => integer(8, true),
            "f32" => Type::Float(4),
            "f64" => Type::Float(8),
            "bool" => Type::Bool,
            "char" => Type::Char,
            "String" => Type::Text,
            "PhantomData" => Type::Unit,
            "Ipv4Addr" => Type::Ipv4,
            "Ipv6Addr" => Type::Ipv6,
            "SocketAddrV4" => Type::SocketV4,
            "SocketAddrV6" => Type::SocketV6,
            "IpAddr" => Type::Untagged(vec![types.add(Type::Ipv4), types.add(Type::Ipv6)]),
            "SocketAddr" => {
                Type::Untagged(vec![types.add(Type::SocketV4), types.add(Type::SocketV6)])
            }
            "Duration" => {
                let secs = types.add(Type::Integer(8, false, false));
                let nanos = types.add(Type::Integer(4, false, false));
                // As a key it is one.
                return types.add_tuple(vec![("secs".into(), secs), ("nanos".into(), nanos)]);
            }
            _ => Type::Unknown(name.into()),
        };
        types.add(ty)
    }
}

impl Types {
    /// Adds an enum of variants of one field or none.
    fn add_enum(&mut self, variants: &[(&str, Option<TypeId>)]) -> TypeId {
        let variant = |(tag, (name, of)): (usize, &(&str, Option<TypeId>))| Variant {
            name: String::from(*name),
            tag: tag as u8,
            fields: of.map(|of| ("0".into(), of)).into_iter().collect(),
        };
        let variants = variants.iter().enumerate().map(variant).collect();
        self.add(Type::Enum(variants))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Types, Type) {
        let mut types = Types::default();
        let id = types.parse(text);
        let ty = types.get(id).clone();
        (types, ty)
    }

    #[test]
    fn a_type_that_contains_itself_has_an_end() {
        let (types, ty) = parsed("Node@1{next:Option<Box<Node@1>>,}");
        let Type::Struct(fields) = &ty else { panic!("{ty:?}") };
        let Type::Option(boxed) = types.get(fields[0].1) else { panic!() };
        let Type::Boxed(again) = *types.get(*boxed) else { panic!() };
        assert_eq!(types.get(again), &ty);
    }

    #[test]
    fn of_two_types_of_one_name_none_is_meant() {
        let (types, _) = parsed("N@1{a:N@1{b:Box<N@1>,},}");
        assert!(types.all.contains(&Type::Unknown("N@1".into())));
    }

    #[test]
    fn tags_are_those_that_are_told() {
        let tags = |text: &str| match parsed(text).1 {
            Type::Enum(variants) => variants.iter().map(|v| v.tag).collect::<Vec<_>>(),
            ty => panic!("{ty:?}"),
        };
        assert_eq!(tags("E@1|A{}|B=7{0:u8,}|C{}|"), [0, 7, 8]);
        assert!(matches!(parsed("E@1|A=(X + 1){}|B{}|").1, Type::Unknown(_)));
    }

    #[test]
    fn what_is_no_description_is_unknown() {
        let deep = format!("{}u8{}", "Vec<".repeat(500), ">".repeat(500));
        for text in
            ["", "Vec<", "Vec<u8", "[u8;x]", "A@1{", "A@1{b:u8", "A@1|B", "(u8", "u8>", &deep]
        {
            assert_eq!(parsed(text).1, Type::Unknown(text.into()));
        }
        for text in ["Strange", "Strange<u8>", "Touchy@1", "rkyv(with = X)(u64)"] {
            assert_eq!(parsed(text).1, Type::Unknown(text.into()));
        }
    }
}
