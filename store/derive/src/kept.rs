//! Attributes that make a type write something else than it reads, or something outside its schema.
//! State with them would silently come back as another value, or not at all.

use proc_macro2::TokenStream;
use syn::{Attribute, Data, DeriveInput, Error, Meta, Result};

use crate::stored::options;

/// Options of `#[serde(…)]` that leave what is written and what is read the same. All others are
/// refused, those of a serde to come among them.
const KEPT: [&str; 12] = [
    "alias",
    "borrow",
    "bound",
    "crate",
    "default",
    "deny_unknown_fields",
    "expecting",
    "other",
    "rename",
    "rename_all",
    "rename_all_fields",
    "transparent",
];

/// Refuses the attributes of rkyv's that lose a field and, if the type is stored `by_serde`, those
/// of serde's that change what is written.
pub fn check(input: &DeriveInput, by_serde: bool) -> Result<()> {
    for (attributes, place) in places(input) {
        for attribute in attributes {
            if by_serde && let Some(option) = changing(attribute) {
                let message = format!(
                    "`{option}` makes this {place} write something else than is read, or than its \
                     schema tells: the state would come back changed, or not at all. Leave it out, or \
                     promise with `#[state(trusted)]` on the type that each value comes back as it \
                     was written"
                );
                return Err(Error::new_spanned(attribute, message));
            }
            if is_skipped_by_rkyv(attribute) {
                let message = format!(
                    "`Skip` does not write this {place}: it would come back as its default. Leave it \
                     out, or say with `#[state(trusted)]` on the type that this is meant"
                );
                return Err(Error::new_spanned(attribute, message));
            }
        }
    }
    Ok(())
}

/// Serde's options on a type, its variants and fields that [`check`] refuses.
pub fn refused(input: &DeriveInput) -> Option<String> {
    let attributes = places(input).into_iter().flat_map(|(attributes, _)| attributes);
    let mut refused: Vec<String> = attributes.filter_map(changing).collect();
    refused.sort();
    refused.dedup();
    (!refused.is_empty()).then(|| refused.join(", "))
}

/// All places of a type where attributes stand, and what each is.
fn places(input: &DeriveInput) -> Vec<(&[Attribute], &'static str)> {
    let mut places = vec![(&input.attrs[..], "type")];
    match &input.data {
        Data::Struct(data) => places.extend(data.fields.iter().map(|f| (&f.attrs[..], "field"))),
        Data::Enum(data) => {
            for variant in &data.variants {
                places.push((&variant.attrs, "variant"));
                places.extend(variant.fields.iter().map(|f| (&f.attrs[..], "field")));
            }
        }
        Data::Union(_) => {}
    }
    places
}

/// The first option of a `#[serde(…)]` that is not among those [kept](KEPT).
fn changing(attribute: &Attribute) -> Option<String> {
    let tokens = list(attribute, "serde")?;
    options(tokens)
        .into_iter()
        .map(|(word, _)| word)
        .find(|word| !word.is_empty() && !KEPT.contains(&&**word))
}

/// `#[rkyv(with = Skip)]`, whatever path or other wrapper it has.
fn is_skipped_by_rkyv(attribute: &Attribute) -> bool {
    let Some(tokens) = list(attribute, "rkyv") else { return false };
    let is_in_a_name = |c: char| c.is_alphanumeric() || c == '_';
    options(tokens).iter().any(|(word, rest)| {
        word == "with" && rest.split(|c| !is_in_a_name(c)).any(|name| name == "Skip")
    })
}

fn list<'a>(attribute: &'a Attribute, name: &str) -> Option<&'a TokenStream> {
    match &attribute.meta {
        Meta::List(list) if list.path.is_ident(name) => Some(&list.tokens),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn told(input: DeriveInput) -> String {
        check(&input, true).map_or_else(|error| error.to_string(), |()| "kept".into())
    }

    #[test]
    fn what_writes_and_reads_the_same_is_kept() {
        let input: DeriveInput = parse_quote! {
            #[serde(rename_all = "kebab-case", deny_unknown_fields, bound(serialize = "T: A"))]
            #[serde(crate = "serde")]
            enum A<T> {
                #[serde(rename(serialize = "x", deserialize = "y"), alias = "z")]
                B(#[serde(default, borrow)] T),
            }
        };
        assert_eq!(refused(&input), None);
        assert_eq!(told(input), "kept");
    }

    #[test]
    fn what_does_not_is_refused_wherever_it_stands() {
        let field =
            |attribute: Attribute| -> DeriveInput { parse_quote!(struct A { #attribute a: u8 }) };
        for attribute in [
            parse_quote!(#[serde(skip)]),
            parse_quote!(#[serde(default, skip_serializing_if = "Option::is_none")]),
            parse_quote!(#[serde(skip_serializing)]),
            parse_quote!(#[serde(skip_deserializing, default)]),
            parse_quote!(#[serde(flatten)]),
            parse_quote!(#[serde(with = "x::y")]),
            parse_quote!(#[serde(serialize_with = "x")]),
            parse_quote!(#[serde(deserialize_with = "x")]),
            parse_quote!(#[serde(getter = "x")]),
        ] {
            let input = field(attribute);
            assert!(told(input.clone()).contains("makes this field write"), "{}", told(input));
        }
        for attribute in [
            parse_quote!(#[serde(untagged)]),
            parse_quote!(#[serde(tag = "t", content = "c")]),
            parse_quote!(#[serde(from = "B", into = "B")]),
            parse_quote!(#[serde(try_from = "B")]),
            parse_quote!(#[serde(remote = "B")]),
            parse_quote!(#[serde(field_identifier)]),
        ] {
            let attribute: Attribute = attribute;
            let input: DeriveInput = parse_quote!(#attribute enum A { B });
            assert!(told(input.clone()).contains("makes this type write"), "{}", told(input));
            let input: DeriveInput = parse_quote!(enum A { #attribute B });
            assert!(told(input.clone()).contains("makes this variant write"), "{}", told(input));
        }
        let both: DeriveInput = parse_quote!(
            #[serde(tag = "x")]
            enum A {
                #[serde(skip)]
                B,
                #[serde(skip)]
                C,
            }
        );
        assert_eq!(refused(&both).unwrap(), "skip, tag");
    }

    #[test]
    fn what_rkyv_skips_is_refused() {
        let field =
            |attribute: Attribute| -> DeriveInput { parse_quote!(struct A { #attribute a: u8 }) };
        for attribute in [
            parse_quote!(#[rkyv(with = Skip)]),
            parse_quote!(#[rkyv(omit_bounds, with = rkyv::with::Skip)]),
            parse_quote!(#[rkyv(with = Map<Skip>)]),
        ] {
            check(&field(attribute), false).unwrap_err();
        }
        check(&field(parse_quote!(#[rkyv(with = Skipper)])), false).unwrap();
        // Serde does not store it.
        check(&field(parse_quote!(#[serde(skip)])), false).unwrap();
    }
}
