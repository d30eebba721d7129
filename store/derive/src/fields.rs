//! The fields of a type as all emitted code needs them, and the bounds of generic impls.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::{
    Attribute, Data, DeriveInput, Generics, Index, Member, Type, TypeParamBound, Variant,
    parse_quote,
};

/// One field of a struct or of a variant.
pub struct Field<'a> {
    pub member: Member,
    pub ty: &'a Type,
    pub attrs: &'a [Attribute],
    /// The variable a pattern binds it to.
    pub binding: Ident,
}

impl Field<'_> {
    /// Its name in a schema: without `r#`, a number in a tuple.
    pub fn name(&self) -> String {
        match &self.member {
            Member::Named(ident) => ident.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        }
    }
}

/// The fields in order.
pub fn fields(fields: &syn::Fields) -> Vec<Field<'_>> {
    let field = |(i, field): (usize, _)| {
        let field: &syn::Field = field;
        let member = match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(Index::from(i)),
        };
        Field { member, ty: &field.ty, attrs: &field.attrs, binding: format_ident!("field_{i}") }
    };
    fields.iter().enumerate().map(field).collect()
}

/// The pattern that binds all fields of `variant`, whatever its kind.
pub fn pattern(variant: &Variant, fields: &[Field]) -> TokenStream {
    let (name, members) = (&variant.ident, fields.iter().map(|f| &f.member));
    let bindings = fields.iter().map(|f| &f.binding);
    parse_quote!(Self::#name { #(#members: #bindings,)* })
}

/// The type's generics with `bound` on each type parameter that a field contains. One that stands
/// only in `PhantomData` stores nothing and needs nothing.
pub fn bounded(input: &DeriveInput, bound: &TypeParamBound) -> Generics {
    let mut generics = input.generics.clone();
    let types: Vec<&Type> = match &input.data {
        Data::Struct(data) => data.fields.iter().map(|f| &f.ty).collect(),
        Data::Enum(data) => data.variants.iter().flat_map(|v| &v.fields).map(|f| &f.ty).collect(),
        Data::Union(_) => Vec::new(),
    };
    for parameter in generics.type_params_mut() {
        let stored = types.iter().any(|ty| !is_phantom(ty) && mentions(ty, &parameter.ident));
        if stored {
            parameter.bounds.push(bound.clone());
        }
    }
    generics
}

fn is_phantom(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path.segments.last().is_some_and(|segment| segment.ident == "PhantomData")
}

fn mentions(tokens: impl ToTokens, ident: &Ident) -> bool {
    tokens.into_token_stream().into_iter().any(|tree| match tree {
        TokenTree::Ident(found) => found == *ident,
        TokenTree::Group(group) => mentions(group.stream(), ident),
        _ => false,
    })
}
