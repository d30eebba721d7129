//! `#[derive(State)]`: `HeapSize` and `Schema`, and with `#[state(serde)]` rkyv's traits by serde.
//!
//! Trait functions carry the span of the field's type: a missing trait is reported at the field.
//! Variables never do, because a type inside a `macro_rules` could not see them.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Path, Result, TypeParam, WherePredicate, parse_quote};

use crate::fields::{Field, bounded, fields, pattern};
use crate::options::Options;
use crate::{kept, stored};

pub fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let options = Options::of(input)?;
    if !options.trusted {
        kept::check(input, options.serde)?;
    }
    let heap_size = heap_size(input, &options.root);
    let schema = schema(input, &options);
    let stored = options.serde.then(|| stored_by_serde(input, &options.root));
    Ok(quote!(#heap_size #schema #stored))
}

/// rkyv's traits, with the value's postcard bytes as its archived form.
fn stored_by_serde(input: &DeriveInput, root: &Path) -> TokenStream {
    let name = &input.ident;
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    let parts = quote!(#root::derived);
    let with = |parameter: TypeParam, bounds: &[WherePredicate]| {
        let mut generics = input.generics.clone();
        generics.params.push(parameter.into());
        generics.make_where_clause().predicates.extend(bounds.iter().cloned());
        generics
    };
    let read: WherePredicate =
        parse_quote!(#name #type_generics: #parts::serde::de::DeserializeOwned);
    let write: WherePredicate =
        parse_quote!(#name #type_generics: #parts::serde::Serialize + #root::derived::Schema);
    let source: WherePredicate = parse_quote! {
        __S: #parts::rkyv::rancor::Fallible<Error: #parts::rkyv::rancor::Source> + ?Sized
    };
    let writer: WherePredicate = parse_quote!(__S: #parts::rkyv::ser::Writer);
    let serializing = with(parse_quote!(__S), &[write, read.clone(), source.clone(), writer]);
    let (serialize_generics, _, serialize_where) = serializing.split_for_impl();
    let deserializing = with(parse_quote!(__S), &[read, source]);
    let (deserialize_generics, _, deserialize_where) = deserializing.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics #parts::rkyv::Archive for #name #type_generics #where_clause {
            type Archived = #root::derived::SerdeBytes;
            type Resolver = #root::derived::SerdeResolver;
            fn resolve(
                &self,
                resolver: #root::derived::SerdeResolver,
                out: #parts::rkyv::Place<#root::derived::SerdeBytes>,
            ) {
                resolver.resolve(out)
            }
        }
        #[automatically_derived]
        impl #serialize_generics #parts::rkyv::Serialize<__S> for #name #type_generics
        #serialize_where
        {
            fn serialize(
                &self,
                serializer: &mut __S,
            ) -> ::core::result::Result<
                #root::derived::SerdeResolver,
                <__S as #parts::rkyv::rancor::Fallible>::Error,
            > {
                #root::derived::SerdeResolver::write(self, serializer)
            }
        }
        #[automatically_derived]
        impl #deserialize_generics #parts::rkyv::Deserialize<#name #type_generics, __S>
            for #root::derived::SerdeBytes
        #deserialize_where
        {
            fn deserialize(
                &self,
                _: &mut __S,
            ) -> ::core::result::Result<
                #name #type_generics,
                <__S as #parts::rkyv::rancor::Fallible>::Error,
            > {
                self.read()
            }
        }
    }
}

fn heap_size(input: &DeriveInput, root: &Path) -> TokenStream {
    let (name, generics) = (&input.ident, bounded(input, &parse_quote!(#root::derived::HeapSize)));
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, type_generics, _) = input.generics.split_for_impl();
    let (none, heap_bytes) = match &input.data {
        Data::Struct(data) => {
            let fields = fields(&data.fields);
            let values = fields.iter().map(|Field { member, .. }| quote!(&self.#member));
            (none(root, &fields), sum(root, &fields, values))
        }
        Data::Enum(data) => {
            let variants: Vec<_> = data.variants.iter().map(|v| (v, fields(&v.fields))).collect();
            let arms = variants.iter().map(|(variant, fields)| {
                let pattern = pattern(variant, fields);
                let bindings = fields.iter().map(|Field { binding, .. }| quote!(#binding));
                let sum = sum(root, fields, bindings);
                quote!(#pattern => #sum,)
            });
            let heap_bytes = match variants.is_empty() {
                true => quote!(match *self {}),
                false => quote!(match self { #(#arms)* }),
            };
            let nones = variants.iter().map(|(_, fields)| none(root, fields));
            (quote!(true #(&& #nones)*), heap_bytes)
        }
        Data::Union(_) => unreachable!("refused by Options::of"),
    };
    quote! {
        #[automatically_derived]
        impl #impl_generics #root::derived::HeapSize for #name #type_generics #where_clause {
            const NO_HEAP: bool = #none;
            #[inline]
            fn heap_bytes(&self) -> usize {
                if <Self as #root::derived::HeapSize>::NO_HEAP {
                    return 0;
                }
                #heap_bytes
            }
        }
    }
}

/// True if no field owns heap, as an expression.
fn none(root: &Path, fields: &[Field]) -> TokenStream {
    let nones = fields.iter().map(
        |Field { ty, .. }| quote_spanned!(ty.span()=> <#ty as #root::derived::HeapSize>::NO_HEAP),
    );
    quote!(true #(&& #nones)*)
}

/// Sum of the heap bytes of `values`, which are the fields in order.
fn sum(root: &Path, fields: &[Field], values: impl Iterator<Item = TokenStream>) -> TokenStream {
    let terms = fields.iter().zip(values).map(|(Field { ty, .. }, value)| {
        let heap_bytes = quote_spanned!(ty.span()=> <#ty as #root::derived::HeapSize>::heap_bytes);
        quote!(#heap_bytes(#value))
    });
    quote!(0 #(+ #terms)*)
}

fn schema(input: &DeriveInput, options: &Options) -> TokenStream {
    let root = &options.root;
    let (name, generics) = (&input.ident, bounded(input, &parse_quote!(#root::derived::Schema)));
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, type_generics, _) = input.generics.split_for_impl();
    let head = format!("{}@{}", name.unraw(), options.version);
    let body = match &input.data {
        Data::Struct(data) => describe_fields(root, &fields(&data.fields)),
        Data::Enum(data) => {
            let variants = data.variants.iter().map(|variant| {
                let name = format!("{}{}", variant.ident.unraw(), stored::discriminant(variant));
                let fields = describe_fields(root, &fields(&variant.fields));
                quote!(out.push_str(#name); #fields out.push('|');)
            });
            quote!(out.push('|'); #(#variants)*)
        }
        Data::Union(_) => unreachable!("refused by Options::of"),
    };
    let described = quote! {
        <Self as #root::derived::Schema>::describe_once(
            out,
            #head,
            |out: &mut ::std::string::String| { #body },
        )
    };
    let described = match kept::refused(input).filter(|_| !options.trusted) {
        Some(attributes) => quote! {
            #root::derived::describe_refused(
                out,
                #attributes,
                |out: &mut ::std::string::String| { #described },
            )
        },
        None => described,
    };
    let described = match options.serde {
        true => quote! {
            #root::derived::describe_by_serde(
                out,
                |out: &mut ::std::string::String| { #described },
            )
        },
        false => match stored::of_type(&input.attrs) {
            Some(how) => quote!(out.push_str(#how); out.push('('); #described; out.push(')');),
            None => described,
        },
    };
    quote! {
        #[automatically_derived]
        impl #impl_generics #root::derived::Schema for #name #type_generics #where_clause {
            fn describe(out: &mut ::std::string::String) {
                #described
            }
        }
    }
}

/// Statements that append `{field:type,…}`, the type inside of what rkyv is told to make of it.
fn describe_fields(root: &Path, fields: &[Field]) -> TokenStream {
    let parts = fields.iter().map(|field| {
        let (label, ty) = (format!("{}:", field.name()), field.ty);
        let describe = quote_spanned!(ty.span()=> <#ty as #root::derived::Schema>::describe);
        match stored::of_field(field.attrs) {
            Some(how) => quote! {
                out.push_str(#label); out.push_str(#how);
                out.push('('); #describe(out); out.push_str("),");
            },
            None => quote!(out.push_str(#label); #describe(out); out.push(',');),
        }
    });
    quote!(out.push('{'); #(#parts)* out.push('}');)
}
