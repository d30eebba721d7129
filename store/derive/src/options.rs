//! The attribute `#[state(…)]`, which both derives read.

use syn::meta::ParseNestedMeta;
use syn::{Attribute, Data, DeriveInput, Error, LitInt, Path, Result, parse_quote};

/// What `#[state(…)]` on the type says.
pub struct Options {
    /// Version in the schema.
    pub version: u32,
    /// Crate that exports the traits and the hash functions.
    pub root: Path,
    /// Whether the type is stored by serde.
    pub serde: bool,
    /// Whether attributes that are refused otherwise are kept.
    pub trusted: bool,
}

impl Options {
    /// Reads the attributes of the type, and refuses unions and attributes in other places.
    pub fn of(input: &DeriveInput) -> Result<Self> {
        refuse_misplaced(input)?;
        let (mut version, mut root, mut serde, mut trusted) = (None, None, None, None);
        for attribute in input.attrs.iter().filter(|a| a.path().is_ident("state")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("version") {
                    set(&mut version, &meta, version_of(&meta)?)
                } else if meta.path.is_ident("crate") {
                    set(&mut root, &meta, meta.value()?.call(Path::parse_mod_style)?)
                } else if meta.path.is_ident("serde") {
                    set(&mut serde, &meta, ())
                } else if meta.path.is_ident("trusted") {
                    set(&mut trusted, &meta, ())
                } else {
                    Err(meta.error(
                        "unknown attribute: `#[state(…)]` takes `version = N`, `serde`, `trusted` \
                         and `crate = path`",
                    ))
                }
            })?;
        }
        Ok(Self {
            version: version.unwrap_or(1),
            root: root.unwrap_or_else(|| parse_quote!(::alluvium)),
            serde: serde.is_some(),
            trusted: trusted.is_some(),
        })
    }
}

fn version_of(meta: &ParseNestedMeta) -> Result<u32> {
    let refused = "the version is an integer from 1 to 4294967295";
    let literal: LitInt = meta.value()?.parse().map_err(|e| Error::new(e.span(), refused))?;
    match literal.base10_parse() {
        Ok(version) if version > 0 => Ok(version),
        _ => Err(Error::new(literal.span(), refused)),
    }
}

fn set<T>(option: &mut Option<T>, meta: &ParseNestedMeta, value: T) -> Result<()> {
    match option.replace(value) {
        None => Ok(()),
        Some(_) => Err(meta.error("given twice")),
    }
}

fn refuse_misplaced(input: &DeriveInput) -> Result<()> {
    let refuse = |attributes: &[Attribute], place: &str| match attributes
        .iter()
        .find(|a| a.path().is_ident("state"))
    {
        None => Ok(()),
        Some(found) => Err(Error::new_spanned(
            found,
            format!("`#[state(…)]` goes on the type, not on a {place}"),
        )),
    };
    match &input.data {
        Data::Struct(data) => data.fields.iter().try_for_each(|f| refuse(&f.attrs, "field")),
        Data::Enum(data) => data.variants.iter().try_for_each(|v| {
            refuse(&v.attrs, "variant")?;
            v.fields.iter().try_for_each(|f| refuse(&f.attrs, "field"))
        }),
        Data::Union(data) => Err(Error::new_spanned(
            data.union_token,
            "a union cannot be state: which of its fields is stored is not known; use an enum",
        )),
    }
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;

    use super::*;

    fn text(path: &Path) -> String {
        path.to_token_stream().to_string()
    }

    fn refusal(input: DeriveInput) -> String {
        Options::of(&input).err().expect("accepted").to_string()
    }

    #[test]
    fn options_default_and_add_up() {
        let options = Options::of(&parse_quote!(
            struct A;
        ))
        .unwrap();
        assert_eq!((options.version, text(&options.root)), (1, text(&parse_quote!(::alluvium))));
        let options = Options::of(&parse_quote! {
            #[state(version = 3)]
            #[state(crate = crate::x)]
            struct A;
        });
        let options = options.unwrap();
        assert_eq!((options.version, text(&options.root)), (3, text(&parse_quote!(crate::x))));
        assert!(!options.serde);
        let options = Options::of(&parse_quote! {
            #[state(serde, version = 3)]
            struct A;
        });
        assert!(options.unwrap().serde);
    }

    #[test]
    fn what_is_not_understood_is_refused_with_a_reason() {
        let unknown = refusal(parse_quote!(
            #[state(name = "x")]
            struct A;
        ));
        assert!(
            unknown.contains("takes `version = N`, `serde`, `trusted` and `crate"),
            "{unknown}"
        );
        for version in ["0", "\"2\"", "-1", "4294967296"] {
            let version: syn::Expr = syn::parse_str(version).unwrap();
            let text = refusal(parse_quote!(
                #[state(version = #version)]
                struct A;
            ));
            assert_eq!(text, "the version is an integer from 1 to 4294967295");
        }
        let twice = refusal(parse_quote!(
            #[state(version = 1, version = 2)]
            struct A;
        ));
        assert_eq!(twice, "given twice");
        let union = refusal(parse_quote!(union A { a: u8 }));
        assert!(union.starts_with("a union cannot be state"), "{union}");
        let field = refusal(parse_quote!(
            struct A {
                #[state(skip)]
                a: u8,
            }
        ));
        assert_eq!(field, "`#[state(…)]` goes on the type, not on a field");
        let variant = refusal(parse_quote!(
            enum A {
                #[state(version = 2)]
                B,
            }
        ));
        assert_eq!(variant, "`#[state(…)]` goes on the type, not on a variant");
        assert!(
            !refusal(parse_quote!(
                #[state]
                struct A;
            ))
            .is_empty()
        );
    }
}
