//! Alternative names of tensors in checkpoints.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::shared::SharedSlabs;
use crate::slab_cache::SlabCache;
use crate::source::{ParamData, ParamInfo, ParamSource};

/// One rule: where a key is missing, its part `canonical` may be written as `alternative`.
///
/// Networks declare canonical keys, which are those that diffusers and transformers write today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRule {
    /// The part of the name that the network declares.
    pub canonical: &'static str,
    /// The part that some files have instead.
    pub alternative: &'static str,
}

impl KeyRule {
    /// The prefix that text encoders have in files of transformers before version 5, and lack in others.
    pub const TEXT_MODEL: &'static [Self] = &[Self { canonical: "text_model.", alternative: "" }];

    /// The name of T5's token table in files that hold the encoder alone.
    pub const T5_TABLE: &'static [Self] = &[Self { canonical: "shared.", alternative: "encoder.embed_tokens." }];

    /// The prefix of a language model in a model with other parts too, in files of transformers since version 4.52.
    pub const LANGUAGE_MODEL: &'static [Self] = &[
        Self { canonical: "text_model.", alternative: "" },
        Self { canonical: "model.", alternative: "model.language_model." },
        Self { canonical: "visual.", alternative: "model.visual." },
    ];

    /// The names of the autoencoder's attention before diffusers 0.18.
    pub const VAE_ATTENTION: &'static [Self] = &[
        Self { canonical: ".to_q.", alternative: ".query." },
        Self { canonical: ".to_k.", alternative: ".key." },
        Self { canonical: ".to_v.", alternative: ".value." },
        Self { canonical: ".to_out.0.", alternative: ".proj_attn." },
    ];

    /// The names in TAESD's own two files, `taesd_encoder` and `taesd_decoder`. Each numbers its layers from 0. The
    /// decoder's layer 0 is the clamp, which diffusers does not count.
    pub const TAESD: &'static [Self] = &[
        Self { canonical: "encoder.layers.", alternative: "" },
        Self { canonical: "decoder.layers.0.", alternative: "1." },
        Self { canonical: "decoder.layers.2.", alternative: "3." },
        Self { canonical: "decoder.layers.3.", alternative: "4." },
        Self { canonical: "decoder.layers.4.", alternative: "5." },
        Self { canonical: "decoder.layers.6.", alternative: "7." },
        Self { canonical: "decoder.layers.7.", alternative: "8." },
        Self { canonical: "decoder.layers.8.", alternative: "9." },
        Self { canonical: "decoder.layers.9.", alternative: "10." },
        Self { canonical: "decoder.layers.11.", alternative: "12." },
        Self { canonical: "decoder.layers.12.", alternative: "13." },
        Self { canonical: "decoder.layers.13.", alternative: "14." },
        Self { canonical: "decoder.layers.14.", alternative: "15." },
        Self { canonical: "decoder.layers.16.", alternative: "17." },
        Self { canonical: "decoder.layers.17.", alternative: "18." },
        Self { canonical: "decoder.layers.18.", alternative: "19." },
    ];
}

/// A source whose tensors may have alternative names of [`KeyRule`]s.
pub struct Renamed<S> {
    source: S,
    rules: &'static [KeyRule],
}

impl<S: ParamSource> Renamed<S> {
    /// Wraps `source`.
    pub fn new(source: S, rules: &'static [KeyRule]) -> Self {
        Self { source, rules }
    }

    /// The name that the source has for `key`, or `key` itself if it has none.
    fn resolve(&self, key: &str) -> String {
        if self.source.info(key).is_some() {
            return key.to_string();
        }
        self.rules
            .iter()
            .filter(|rule| key.contains(rule.canonical))
            .map(|rule| key.replacen(rule.canonical, rule.alternative, 1))
            .find(|name| self.source.info(name).is_some())
            .unwrap_or_else(|| key.to_string())
    }
}

impl<S: ParamSource> ParamSource for Renamed<S> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.source.info(&self.resolve(key))
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        self.source.data(&self.resolve(key))
    }

    fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
        self.source.rows(&self.resolve(key), rows)
    }

    fn release(&self, key: &str) {
        self.source.release(&self.resolve(key));
    }

    fn origin(&self, key: &str) -> String {
        self.source.origin(&self.resolve(key))
    }

    fn keys(&self) -> Vec<String> {
        self.source.keys()
    }
}

/// A pointer to a source is a source.
macro_rules! pointer_source {
    ($pointer:ident) => {
        impl<S: ParamSource + ?Sized> ParamSource for $pointer<S> {
            fn info(&self, key: &str) -> Option<ParamInfo> {
                self.as_ref().info(key)
            }

            fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
                self.as_ref().data(key)
            }

            fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
                self.as_ref().rows(key, rows)
            }

            fn release(&self, key: &str) {
                self.as_ref().release(key);
            }

            fn origin(&self, key: &str) -> String {
                self.as_ref().origin(key)
            }

            fn keys(&self) -> Vec<String> {
                self.as_ref().keys()
            }

            fn shared(&self) -> Option<(&SharedSlabs, &str)> {
                self.as_ref().shared()
            }

            fn slab_cache(&self) -> Option<&SlabCache> {
                self.as_ref().slab_cache()
            }

            fn is_changed(&self, key: &str) -> bool {
                self.as_ref().is_changed(key)
            }
        }
    };
}

pointer_source!(Box);
pointer_source!(Arc);
