//! `#[derive(Table)]`: each field of a struct is a key of a table of limits.toml.
//!
//! The doc comment is the reference text, the type is the grammar, and `#[key(…)]` fills fields of `config::schema::Key`:
//!
//! | option | meaning |
//! |---|---|
//! | `default = VALUE` | the value if the key is missing |
//! | `absent = "words"` | a default in words; its value is `Default::default()` unless `default` is there |
//! | `unless = "other"` | the key is required unless the other one is there; its value is `Default::default()` then |
//! | `name = "match"` | the key, if it is not the field's name |
//! | `restart` | a reload cannot change the key |
//! | `since = "0.1.0"` | the version that introduced it; else that of the table |
//! | `like = Limit::NAME` | text, range, examples and check are those of another key, unless they are here |
//! | `flatten` | the field is a struct whose keys are keys of this table |
//! | `skip` | the field is no key; its value is `default`, else `Default::default()` |
//! | other | the field of `Key` with that name: `kind`, `range`, `examples`, `check` |
//!
//! A key with neither `default` nor `absent` nor `unless` is required, and has an example.
//! `#[table(heading = "[agent]", since = …, example = …, check = …)]` describes the table. `check` is a function with the
//! rules between its keys; it may take the table mutably, to set values that depend on several keys. `page` names the page,
//! if the heading does not, and `variant` one of several tables with a heading.
//! `#[table(inner, since = …, check = …)]`: the struct is the value of a key, a table within another.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Attribute, Data, DeriveInput, Error, Expr, Field, Ident, Lit, Meta, Result, Token};
use syn::{ext::IdentExt as _, parse_macro_input, parse_quote, punctuated::Punctuated};

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
    let (mut keys, mut defaults) = (KeyLists::default(), Vec::new());
    let (mut shown, mut differing) = (Vec::new(), Vec::new());
    let has_name = data.fields.iter().any(|field| {
        let type_ = &field.ty;
        field.ident.as_ref().is_some_and(|name| name == "name")
            && quote!(#type_).to_string() == "String"
    });
    let named = if has_name {
        quote!(&self.name)
    } else {
        quote!("")
    };
    for field in &data.fields {
        let options = Options::read(&field.attrs, "key")?;
        let Some(name) = &field.ident else {
            return Err(Error::new_spanned(field, "a key has a name"));
        };
        names.push(name);
        let type_ = &field.ty;
        if options.has("skip") {
            let value = options.value("default").map_or_else(
                || quote!(::core::default::Default::default()),
                |value| quote!(#value),
            );
            reads.push(quote!(Some(#value)));
            defaults.push(Some(value));
            continue;
        }
        if options.has("flatten") {
            options.allow(&["flatten"])?;
            let table = quote!(<#type_ as crate::schema::Table>);
            keys.add_all(quote!(#table::REFERENCE.keys));
            reads.push(quote!(#table::read_keys(reader)));
            shown.push(quote!(all.extend(crate::schema::Table::shown(&self.#name));));
            differing.push(quote!(
                all.extend(crate::schema::Table::differing(&self.#name, &other.#name));
            ));
            defaults.push(Some(quote!(::core::default::Default::default())));
            continue;
        }
        let key = Key::read(field, name, &options, &table.since)?;
        let (constant, declaration) = (&key.constant, &key.declaration);
        constants.push(quote!(pub const #constant: crate::schema::Key = #declaration;));
        reads.push(match (&key.default, options.value("unless")) {
            (_, Some(other)) => {
                quote!(Some(reader.required_unless::<#type_>(&Self::#constant, #other)))
            }
            (Some(default), _) => {
                quote!(Some(reader.optional(&Self::#constant, || -> #type_ { #default })))
            }
            (None, _) => quote!(reader.required::<#type_>(&Self::#constant)),
        });
        let is_default = match &key.default {
            Some(default) => quote!(self.#name == {
                let default: #type_ = #default;
                default
            }),
            None => quote!(false),
        };
        shown.push(quote!(
            all.push(crate::schema::Shown::new(&Self::#constant, &self.#name, #is_default));
        ));
        differing.push(quote!(if self.#name != other.#name {
            all.push(&Self::#constant);
        }));
        defaults.push(key.default);
        keys.add(constant);
    }
    let name = &input.ident;
    // A table without required keys has a default. Others have defaults of the other keys.
    let (mut required, mut values) = (Vec::new(), Vec::new());
    for (field, default) in data.fields.iter().zip(&defaults) {
        let (name, type_) = (&field.ident, &field.ty);
        match default {
            Some(default) => values.push(quote!(#name: #default)),
            None => {
                required.push(quote!(#name: #type_));
                values.push(quote!(#name));
            }
        }
    }
    let default = if required.is_empty() {
        quote! {
            impl ::core::default::Default for #name {
                fn default() -> Self {
                    Self { #(#values),* }
                }
            }
        }
    } else {
        quote! {
            impl #name {
                /// With the defaults of all other keys.
                #[must_use]
                pub fn with(#(#required),*) -> Self {
                    Self { #(#values),* }
                }
            }
        }
    };
    let Table {
        heading,
        page,
        variant,
        summary,
        example,
        check,
        ..
    } = &table;
    let check = check.iter();
    let (key_lists, keys) = keys.constants(name);
    let value = table.is_inner.then(|| inner_value(name));
    Ok(quote! {
        #default

        impl #name {
            #(#constants)*
            #key_lists
        }

        #value

        impl crate::schema::Table for #name {
            const REFERENCE: crate::schema::TableReference = crate::schema::TableReference {
                heading: #heading,
                variant: #variant,
                page: #page,
                summary: #summary,
                keys: #keys,
                example: #example,
            };

            fn read_keys(reader: &mut crate::schema::Reader<'_, '_>) -> Option<Self> {
                // All keys are read before one that is missing ends it.
                #(let #names = #reads;)*
                Some(Self { #(#names: #names?),* })
            }

            fn check(
                read: &mut crate::schema::Located<'_, Self>,
                problems: &mut crate::report::Problems,
            ) {
                #(#check(read, problems);)*
            }

            fn name(&self) -> &str {
                #named
            }

            fn shown(&self) -> Vec<crate::schema::Shown> {
                let mut all = Vec::new();
                #(#shown)*
                all
            }

            fn differing(&self, other: &Self) -> Vec<&'static crate::schema::Key> {
                let mut all: Vec<&'static crate::schema::Key> = Vec::new();
                #(#differing)*
                all
            }
        }
    })
}

/// The keys of a table: its own, and those of flattened fields.
#[derive(Default)]
struct KeyLists {
    /// Slices of keys.
    lists: Vec<TokenStream>,
    own: Vec<TokenStream>,
    is_flattened: bool,
}

impl KeyLists {
    fn add(&mut self, constant: &Ident) {
        self.own.push(quote!(Self::#constant));
    }

    fn add_all(&mut self, keys: TokenStream) {
        self.end_list();
        self.lists.push(keys);
        self.is_flattened = true;
    }

    fn end_list(&mut self) {
        let own = std::mem::take(&mut self.own);
        self.lists.push(quote!(&[#(#own),*]));
    }

    /// Constants that join the lists, if there are several, and the expression of all keys.
    fn constants(mut self, name: &Ident) -> (TokenStream, TokenStream) {
        self.end_list();
        let lists = self.lists;
        if !self.is_flattened {
            return (quote!(), quote!(#(#lists)*));
        }
        let constants = quote! {
            const KEY_LISTS: &'static [&'static [crate::schema::Key]] = &[#(#lists),*];
            const ALL_KEYS: [crate::schema::Key; crate::schema::count(#name::KEY_LISTS)] =
                crate::schema::joined(Self::KEY_LISTS);
        };
        (constants, quote!(&Self::ALL_KEYS))
    }
}

/// `Value` for a table within another.
fn inner_value(name: &Ident) -> TokenStream {
    quote! {
        impl crate::schema::Value for #name {
            const KIND: crate::schema::Kind =
                crate::schema::Kind::Table(<Self as crate::schema::Table>::REFERENCE.keys);

            fn read(
                at: crate::schema::At<'_>,
                key: &crate::schema::Key,
                problems: &mut crate::report::Problems,
            ) -> Option<Self> {
                crate::schema::read_inner(at, key, problems).map(|read| read.table)
            }

            fn write(&self) -> Option<toml::Value> {
                None
            }

            fn shown(&self) -> String {
                crate::schema::braced(self)
            }
        }
    }
}

/// The options of a struct.
struct Table {
    heading: Expr,
    /// The heading without its brackets.
    page: Expr,
    /// An expression of type `Option<Variant>`.
    variant: TokenStream,
    summary: String,
    since: Expr,
    example: Expr,
    check: Option<Expr>,
    /// Whether it is the value of a key.
    is_inner: bool,
}

impl Table {
    fn read(input: &DeriveInput, options: &Options) -> Result<Self> {
        options.allow(&[
            "heading", "inner", "page", "variant", "since", "example", "check",
        ])?;
        let required = |name: &str| {
            options.value(name).cloned().ok_or_else(|| {
                Error::new_spanned(&input.ident, format!("a table requires {name} = …"))
            })
        };
        let is_inner = options.has("inner");
        let of_page = |name: &str| match is_inner {
            true => Ok(parse_quote!("")),
            false => required(name),
        };
        let heading = of_page("heading")?;
        let page = options.value("page").cloned().unwrap_or_else(|| {
            let page = literal(&heading).unwrap_or_default();
            let page = page.trim_matches(['[', ']']);
            parse_quote!(#page)
        });
        let variant = options
            .value("variant")
            .map_or_else(|| quote!(None), |variant| quote!(Some(#variant)));
        Ok(Self {
            example: of_page("example")?,
            heading,
            page,
            variant,
            summary: text(&input.attrs),
            since: required("since")?,
            check: options.value("check").cloned(),
            is_inner,
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
            "default", "absent", "unless", "name", "restart", "since", "like", "kind", "range",
            "examples", "check",
        ])?;
        let (type_, text) = (&field.ty, text(&field.attrs));
        let like = options.value("like");
        if text.is_empty() && like.is_none() {
            let message = "a key has a doc comment, which is its text in the reference";
            return Err(Error::new_spanned(field, message));
        }
        let written = options.value("default").map(|value| quote!(#value));
        let (absent, unless) = (options.value("absent"), options.value("unless"));
        let name = match options.value("name") {
            Some(name) => literal(name).unwrap_or_default(),
            None => name.unraw().to_string(),
        };
        let default = match (absent, unless, &written) {
            (Some(words), ..) => quote!(crate::schema::Absent::Described(#words)),
            (None, Some(other), _) => quote!(crate::schema::Absent::Unless(#other)),
            (None, None, Some(default)) => quote!(crate::schema::Absent::Default(
                || <#type_ as crate::schema::Value>::write(&#default)
            )),
            (None, None, None) => quote!(crate::schema::Absent::Invalid),
        };
        let mut fields = vec![quote!(default: #default)];
        if options.has("restart") {
            fields.push(quote!(needs_restart: true));
        }
        if !text.is_empty() {
            fields.push(quote!(text: #text));
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
        let kind = options.value("kind").map_or_else(
            || quote!(<#type_ as crate::schema::Value>::KIND),
            |kind| quote!(#kind),
        );
        let since = options.value("since").or(like.is_none().then_some(since));
        fields.extend(since.map(|since| quote!(since: #since)));
        let others = like.map_or_else(|| quote!(crate::schema::Key::EMPTY), |key| quote!(#key));
        let of_absent = absent.or(unless);
        let of_absent = of_absent.map(|_| quote!(::core::default::Default::default()));
        Ok(Self {
            constant: format_ident!("{}", name.to_uppercase()),
            declaration: quote!(crate::schema::Key {
                name: #name,
                kind: #kind,
                mask: <#type_ as crate::schema::Value>::MASK,
                #(#fields,)*
                ..#others
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
