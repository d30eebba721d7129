//! Parts of a type's stored form beside its fields: rkyv's attributes, and discriminants, which
//! rkyv stores. The schema must contain them, because a type must not be read in another form.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Expr, Lit, Meta, Variant};

/// `=N` for a variant that says its number, `=(…)` for one that computes it, else nothing.
pub fn discriminant(variant: &Variant) -> String {
    match &variant.discriminant {
        None => String::new(),
        Some((_, Expr::Lit(literal))) => match &literal.lit {
            Lit::Int(number) => format!("={}", number.base10_digits()),
            other => format!("=({})", other.to_token_stream()),
        },
        Some((_, expression)) => format!("=({})", expression.to_token_stream()),
    }
}

/// `rkyv(…)` if the field is not stored as its type is.
pub fn of_field(attributes: &[Attribute]) -> Option<String> {
    told(attributes, |word, _| matches!(word, "with" | "niche"))
}

/// `rkyv(…)` if the type is not stored as its fields are.
pub fn of_type(attributes: &[Attribute]) -> Option<String> {
    // Most attributes that are passed on, such as derives, change nothing.
    told(attributes, |word, rest| word == "as" || (word == "attr" && rest.contains("repr")))
}

/// The options of `#[rkyv(…)]` if one of them, given with what follows its first word, is
/// `changing`.
fn told(attributes: &[Attribute], changing: impl Fn(&str, &str) -> bool) -> Option<String> {
    let lists = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("rkyv") => Some(&list.tokens),
        _ => None,
    });
    let changing =
        lists.filter(|tokens| options(tokens).iter().any(|(word, rest)| changing(word, rest)));
    let texts: Vec<String> = changing.map(|tokens| tokens.to_string()).collect();
    (!texts.is_empty()).then(|| format!("rkyv({})", texts.join(", ")))
}

/// The first word of each option, and what follows it.
pub fn options(tokens: &TokenStream) -> Vec<(String, String)> {
    let mut options = vec![(String::new(), String::new())];
    for tree in tokens.clone() {
        let (word, rest) = options.last_mut().expect("one at least");
        match tree {
            TokenTree::Punct(sign) if sign.as_char() == ',' => options.push(Default::default()),
            tree if word.is_empty() => *word = tree.to_string(),
            tree => *rest += &tree.to_string(),
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use syn::{DeriveInput, Field, parse_quote};

    use super::*;

    fn field(field: Field) -> Option<String> {
        of_field(&field.attrs)
    }

    #[test]
    fn only_what_changes_the_stored_form_is_told() {
        assert_eq!(field(parse_quote!(pub a: u8)), None);
        assert_eq!(field(parse_quote!(#[rkyv(omit_bounds)] pub a: u8)), None);
        let told = field(parse_quote!(#[rkyv(omit_bounds, with = Inline)] pub a: u8)).unwrap();
        assert!(told.starts_with("rkyv(") && told.contains("with = Inline"), "{told}");
        assert!(field(parse_quote!(#[rkyv(niche)] pub a: u8)).is_some());
        let input: DeriveInput = parse_quote!(
            #[rkyv(derive(Debug), compare(PartialEq))]
            struct A;
        );
        assert_eq!(of_type(&input.attrs), None);
        let input: DeriveInput = parse_quote!(
            #[rkyv(as = B)]
            struct A;
        );
        assert_eq!(of_type(&input.attrs).unwrap(), "rkyv(as = B)");
    }

    #[test]
    fn discriminants_are_told_as_they_are_given() {
        assert_eq!(discriminant(&parse_quote!(A)), "");
        assert_eq!(discriminant(&parse_quote!(A = 0x10)), "=16");
        assert_eq!(discriminant(&parse_quote!(A = X + 1)), "=(X + 1)");
    }
}
