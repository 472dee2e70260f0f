//! `#[derive(Table)]`: each field of a struct is a key of a table of limits.toml.
//!
//! The doc comment is the reference text, the type is the grammar, and `#[key(…)]` fills fields of `config::schema::Key`:
//!
//! | option | meaning |
//! |---|---|
//! | `default = VALUE` | the value if the key is missing |
//! | `absent = "words"` | a default in words; its value is `Default::default()` unless `default` is there |
//! | `restart` | a reload cannot change the key |
//! | `since = "0.1.0"` | the version that introduced it; else that of the table |
//! | `skip` | the field is no key; its value is `Default::default()` |
//! | other | the field of `Key` with that name: `range`, `examples`, `check` |
//!
//! A key with neither `default` nor `absent` is required, and has an example.
//! `#[table(heading = "[agent]", since = …, example = …, check = …)]` describes the table; `check` is a function with the
//! rules between its keys.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Attribute, Data, DeriveInput, Error, Expr, Field, Ident, Lit, Meta, Result, Token};
use syn::{ext::IdentExt as _, parse_macro_input, punctuated::Punctuated};

#[proc_macro_derive(Table, attributes(table, key))]
pub fn table(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(input, "a table is a struct"));
    };
    let options = Options::read(&input.attrs, "table")?;
    let table = Table::read(input, &options)?;
    let (mut constants, mut reads, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let (mut keys, mut key_fields, mut defaults) = (Vec::new(), Vec::new(), Vec::new());
    let mut are_default = Vec::new();
    for field in &data.fields {
        let options = Options::read(&field.attrs, "key")?;
        let Some(name) = &field.ident else {
            return Err(Error::new_spanned(field, "a key has a name"));
        };
        names.push(name);
        if options.has("skip") {
            reads.push(quote!(Some(::core::default::Default::default())));
            defaults.push(Some(quote!(::core::default::Default::default())));
            continue;
        }
        let key = Key::read(field, name, &options, &table.since)?;
        let (constant, declaration, type_) = (&key.constant, &key.declaration, &field.ty);
        constants.push(quote!(pub const #constant: crate::schema::Key = #declaration;));
        reads.push(match &key.default {
            Some(default) => {
                quote!(Some(reader.optional(&Self::#constant, || -> #type_ { #default })))
            }
            None => quote!(reader.required::<#type_>(&Self::#constant)),
        });
        are_default.push(match &key.default {
            Some(default) => quote!(self.#name == {
                let default: #type_ = #default;
                default
            }),
            None => quote!(false),
        });
        defaults.push(key.default);
        keys.push(key.constant);
        key_fields.push(name);
    }
    let name = &input.ident;
    // A table without required keys has a default.
    let values: Option<Vec<TokenStream>> = defaults.into_iter().collect();
    let default = values.map(|values| {
        quote! {
            impl ::core::default::Default for #name {
                fn default() -> Self {
                    Self { #(#names: #values),* }
                }
            }
        }
    });
    let Table {
        heading,
        page,
        summary,
        example,
        check,
        ..
    } = &table;
    let check = check.iter();
    Ok(quote! {
        #default

        impl #name {
            #(#constants)*
        }

        impl crate::schema::Table for #name {
            const REFERENCE: crate::schema::TableReference = crate::schema::TableReference {
                heading: #heading,
                variant: None,
                page: #page,
                summary: #summary,
                keys: &[#(Self::#keys),*],
                example: #example,
            };

            fn read_keys(reader: &mut crate::schema::Reader<'_, '_>) -> Option<Self> {
                // All keys are read before one that is missing ends it.
                #(let #names = #reads;)*
                Some(Self { #(#names: #names?),* })
            }

            fn check(
                read: &crate::schema::Located<'_, Self>,
                problems: &mut crate::report::Problems,
            ) {
                #(#check(read, problems);)*
            }

            fn shown(&self) -> Vec<crate::schema::Shown> {
                vec![#(crate::schema::Shown::new(
                    &Self::#keys,
                    &self.#key_fields,
                    #are_default,
                )),*]
            }

            fn differing(&self, other: &Self) -> Vec<&'static crate::schema::Key> {
                let mut keys: Vec<&'static crate::schema::Key> = Vec::new();
                #(if self.#key_fields != other.#key_fields {
                    keys.push(&Self::#keys);
                })*
                keys
            }
        }
    })
}

/// The options of a struct.
struct Table {
    heading: Expr,
    /// The heading without its brackets.
    page: String,
    summary: String,
    since: Expr,
    example: Expr,
    check: Option<Expr>,
}

impl Table {
    fn read(input: &DeriveInput, options: &Options) -> Result<Self> {
        options.allow(&["heading", "since", "example", "check"])?;
        let required = |name: &str| {
            options.value(name).cloned().ok_or_else(|| {
                Error::new_spanned(&input.ident, format!("a table requires {name} = …"))
            })
        };
        let heading = required("heading")?;
        let page = literal(&heading)
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .to_owned();
        Ok(Self {
            heading,
            page,
            summary: text(&input.attrs),
            since: required("since")?,
            example: required("example")?,
            check: options.value("check").cloned(),
        })
    }
}

/// A field that is a key.
struct Key {
    constant: Ident,
    /// An expression of type `Key`.
    declaration: TokenStream,
    /// The default's expression; `None`: the key is required.
    default: Option<TokenStream>,
}

impl Key {
    fn read(field: &Field, name: &Ident, options: &Options, since: &Expr) -> Result<Self> {
        options.allow(&[
            "default", "absent", "restart", "since", "range", "examples", "check",
        ])?;
        let (type_, text) = (&field.ty, text(&field.attrs));
        if text.is_empty() {
            let message = "a key has a doc comment, which is its text in the reference";
            return Err(Error::new_spanned(field, message));
        }
        let written = options.value("default").map(|value| quote!(#value));
        let absent = options.value("absent");
        let since = options.value("since").unwrap_or(since);
        let name = name.unraw().to_string();
        let mut fields = Vec::new();
        if let Some(words) = absent {
            fields.push(quote!(default: crate::schema::Absent::Described(#words)));
        } else if let Some(default) = &written {
            fields.push(quote!(default: crate::schema::Absent::Default(
                || <#type_ as crate::schema::Value>::write(&#default)
            )));
        }
        if options.has("restart") {
            fields.push(quote!(needs_restart: true));
        }
        for option in ["range", "check"] {
            let name = format_ident!("{option}");
            fields.extend(
                options
                    .value(option)
                    .map(|value| quote!(#name: Some(#value))),
            );
        }
        fields.extend(
            options
                .value("examples")
                .map(|examples| quote!(examples: &#examples)),
        );
        let of_absent = absent.map(|_| quote!(::core::default::Default::default()));
        Ok(Self {
            constant: format_ident!("{}", name.to_uppercase()),
            declaration: quote!(crate::schema::Key {
                mask: <#type_ as crate::schema::Value>::MASK,
                #(#fields,)*
                ..crate::schema::Key::of_kind(
                    #name,
                    <#type_ as crate::schema::Value>::KIND,
                    #text,
                    #since,
                )
            }),
            default: written.or(of_absent),
        })
    }
}

/// The options of an attribute.
struct Options(Vec<Meta>);

impl Options {
    fn read(attributes: &[Attribute], name: &str) -> Result<Self> {
        let mut options = Vec::new();
        for attribute in attributes.iter().filter(|it| it.path().is_ident(name)) {
            options.extend(
                attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)?,
            );
        }
        Ok(Self(options))
    }

    fn allow(&self, names: &[&str]) -> Result<()> {
        let is_known = |option: &&Meta| names.iter().any(|name| option.path().is_ident(name));
        match self.0.iter().find(|option| !is_known(option)) {
            Some(option) => {
                let message = format!("unknown option; the options are {}", names.join(", "));
                Err(Error::new_spanned(option, message))
            }
            None => Ok(()),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|option| option.path().is_ident(name))
    }

    fn value(&self, name: &str) -> Option<&Expr> {
        let option = self.0.iter().find(|option| option.path().is_ident(name))?;
        option.require_name_value().ok().map(|option| &option.value)
    }
}

/// The doc comment in one line.
fn text(attributes: &[Attribute]) -> String {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|it| it.path().is_ident("doc")) {
        if let Meta::NameValue(meta) = &attribute.meta {
            lines.extend(literal(&meta.value).map(|line| line.trim().to_owned()));
        }
    }
    lines.join(" ").trim().to_owned()
}

fn literal(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}
