//! Other names under which checkpoints have the same tensors.

use crate::error::Result;
use crate::source::{ParamData, ParamInfo, ParamSource};

/// One rule: where a key is missing, `canonical` in it may be written `alternative`.
///
/// Networks declare canonical keys, which are those that diffusers and transformers write today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRule {
    /// The part of the name that the network declares.
    pub canonical: &'static str,
    /// What some files have in its place.
    pub alternative: &'static str,
}

impl KeyRule {
    /// The prefix that text encoders have in files of transformers before version 5 and lack in others.
    pub const TEXT_MODEL: &'static [Self] = &[Self { canonical: "text_model.", alternative: "" }];

    /// The names of the autoencoder's attention before diffusers 0.18.
    pub const VAE_ATTENTION: &'static [Self] = &[
        Self { canonical: ".to_q.", alternative: ".query." },
        Self { canonical: ".to_k.", alternative: ".key." },
        Self { canonical: ".to_v.", alternative: ".value." },
        Self { canonical: ".to_out.0.", alternative: ".proj_attn." },
    ];
}

/// A source whose tensors may have the names of [`KeyRule`]s.
pub struct Renamed<S> {
    source: S,
    rules: &'static [KeyRule],
}

impl<S: ParamSource> Renamed<S> {
    /// Wraps `source`.
    pub fn new(source: S, rules: &'static [KeyRule]) -> Self {
        Self { source, rules }
    }

    /// The name that the source has for `key`; `key` itself where it has none.
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

    fn origin(&self, key: &str) -> String {
        self.source.origin(&self.resolve(key))
    }

    fn keys(&self) -> Vec<String> {
        self.source.keys()
    }
}

impl ParamSource for Box<dyn ParamSource> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.as_ref().info(key)
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        self.as_ref().data(key)
    }

    fn origin(&self, key: &str) -> String {
        self.as_ref().origin(key)
    }

    fn keys(&self) -> Vec<String> {
        self.as_ref().keys()
    }
}
