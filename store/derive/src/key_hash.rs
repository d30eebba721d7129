//! `#[derive(KeyHash)]`: the portable hash, by folding fields in order.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Path, Result, parse_quote};

use crate::fields::{Field, bounded, fields, pattern};
use crate::options::Options;

pub fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let root = Options::of(input)?.root;
    let (name, generics) = (&input.ident, bounded(input, &parse_quote!(#root::derived::KeyHash)));
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, type_generics, _) = input.generics.split_for_impl();
    let hash = match &input.data {
        Data::Struct(data) => {
            let fields = fields(&data.fields);
            let hashes = fields.iter().map(|f| {
                let member = &f.member;
                part(&root, f, quote!(&self.#member))
            });
            fold(&root, hashes).unwrap_or_else(|| quote!(#root::derived::hash_word(0)))
        }
        Data::Enum(data) if data.variants.is_empty() => quote!(match *self {}),
        Data::Enum(data) => {
            let arms = (0u64..).zip(&data.variants).map(|(index, variant)| {
                let fields = fields(&variant.fields);
                let pattern = pattern(variant, &fields);
                let parts = fields.iter().map(|f| {
                    let binding = &f.binding;
                    part(&root, f, quote!(#binding))
                });
                let index = quote!(#root::derived::hash_word(#index));
                let hash = fold(&root, std::iter::once(index).chain(parts));
                quote!(#pattern => #hash,)
            });
            quote!(match self { #(#arms)* })
        }
        Data::Union(_) => unreachable!("refused by Options::of"),
    };
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #root::derived::KeyHash for #name #type_generics #where_clause {
            #[inline]
            fn key_hash(&self) -> u64 {
                #hash
            }
        }
    })
}

/// The hash of one field, with the span of its type for errors.
fn part(root: &Path, field: &Field, value: TokenStream) -> TokenStream {
    let ty = field.ty;
    let key_hash = quote_spanned!(ty.span()=> <#ty as #root::derived::KeyHash>::key_hash);
    quote!(#key_hash(#value))
}

/// The first hash with the others folded in; none if there is none.
fn fold(root: &Path, hashes: impl Iterator<Item = TokenStream>) -> Option<TokenStream> {
    let combined = |hash, next| quote!(#root::derived::combine(#hash, #next));
    hashes.reduce(combined)
}
