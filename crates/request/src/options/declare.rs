//! How the table of options declares the fields of [`Request`](super::Request), the rows, and the structs of job's values.

use super::row::{InfotextKey, OptionGroup, OptionKind, OptionRow};

/// Declares the options. In each block an option is its help as a doc comment, its field, and what of its row differs
/// from [`EMPTY`]. All options of a block are in the [`OptionGroup`] that it names, unless a row names another one.
///
/// - `by_hand`: [`Request::resolve`](crate::Request::resolve) makes the job's value of it.
/// - `sampling`: it is a field of `SamplerOptions` with this name and type, which checks and uses it.
/// - `group`: the block declares a struct of job's values too. A row has the name, type and default of its field there.
macro_rules! options {
    (
        by_hand in $own_group:ident { $($(#[doc = $own_doc:literal])+ $own:ident: $own_type:ty { $($own_key:ident: $own_value:expr),* $(,)? })* }
        sampling in $s_group:ident { $($(#[doc = $s_doc:literal])+ $s:ident: $s_type:ty { $($s_key:ident: $s_value:expr),* $(,)? })* }
        $(
            $(#[doc = $group_doc:literal])+
            group $group:ident in $g_group:ident { $(
                $(#[doc = $g_doc:literal])+
                $g:ident as $inner:ident: $inner_type:ty = $inner_default:expr;
                $g_type:ty { $($g_key:ident: $g_value:expr),* $(,)? }
            )* }
            by_hand in $more_group:ident { $(
                $(#[doc = $more_doc:literal])+ $more:ident: $more_type:ty { $($more_key:ident: $more_value:expr),* $(,)? }
            )* }
        )*
    ) => {
        /// Images to make. A field that is `None` is left to the model folder's defaults, then to Kiln's.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Request {
            $($(#[doc = $own_doc])+ pub $own: $own_type,)*
            $($(#[doc = $s_doc])+ pub $s: $s_type,)*
            $($($(#[doc = $g_doc])+ pub $g: $g_type,)* $($(#[doc = $more_doc])+ pub $more: $more_type,)*)*
        }

        /// All options, in the order in which an infotext has them.
        pub static OPTIONS: &[OptionRow] = &[
            $(options!(@row $own_group $own [$($own_doc),+] [$($own_key: $own_value),*]),)*
            $(options!(@row $s_group $s [$($s_doc),+] [$($s_key: $s_value),*]),)*
            $(
                $(options!(@row $g_group $g [$($g_doc),+] [$($g_key: $g_value),*]),)*
                $(options!(@row $more_group $more [$($more_doc),+] [$($more_key: $more_value),*]),)*
            )*
        ];

        /// The sampler's options of a request.
        pub(crate) fn sampling(request: &Request) -> SamplerOptions {
            SamplerOptions { $($s: request.$s.clone(),)* }
        }

        /// Writes a sampler's options into a request.
        pub(crate) fn set_sampling(request: &mut Request, options: &SamplerOptions) {
            $(request.$s = options.$s.clone();)*
        }

        $(
            $(#[doc = $group_doc])+
            #[derive(Debug, Clone, Copy, PartialEq, Serialize)]
            pub struct $group {
                $($(#[doc = $g_doc])+ pub $inner: $inner_type,)*
            }

            impl $group {
                /// The names of its options.
                pub const NAMES: &[&str] = &[$(stringify!($g)),*];
            }

            impl Default for $group {
                fn default() -> Self {
                    Self { $($inner: $inner_default,)* }
                }
            }

            impl OptionSet for $group {
                fn of(request: &Request) -> Self {
                    let default = Self::default();
                    Self { $($inner: Resolved::of(request.$g, default.$inner),)* }
                }

                fn write(&self, request: &mut Request) {
                    let default = Self::default();
                    $(request.$g = Resolved::said(self.$inner, default.$inner);)*
                }
            }
        )*
    };
    (@row $group:ident $field:ident [$($doc:literal),+] [$($key:ident: $value:expr),*]) => {
        OptionRow {
            name: stringify!($field),
            doc: concat!($($doc),+),
            get: |request| &request.$field,
            get_mut: |request| &mut request.$field,
            copy: |from, to| to.$field = from.$field.clone(),
            json: |request| serde_json::to_value(&request.$field).unwrap_or_default(),
            set_json: |request, value| {
                request.$field = Deserialize::deserialize(value)?;
                Ok(())
            },
            $($key: $value,)*
            ..OptionRow { group: OptionGroup::$group, ..EMPTY }
        }
    };
}

pub(super) use options;

/// The defaults of a row.
pub(super) const EMPTY: OptionRow = OptionRow {
    name: "",
    doc: "",
    kind: OptionKind::Text,
    default: "",
    usual: "",
    infotext: InfotextKey::None,
    infotext_aliases: &[],
    aliases: &[],
    short_names: &[],
    group: OptionGroup::Sampling,
    needs: None,
    get: |request| &request.prompt,
    get_mut: |request| &mut request.prompt,
    copy: |_, _| {},
    json: |_| serde_json::Value::Null,
    set_json: |_, _| Ok(()),
};
