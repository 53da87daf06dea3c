//! A row of the table of options.

use std::fmt;

use serde_json::Value;

use super::feature::ModelFeature;
use super::table::Request;
use super::value::OptionValue;

/// One option of a request.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct OptionRow {
    /// The field's name in JSON, batch files and Python.
    pub name: &'static str,
    /// Its help as written in the table: lines of a doc comment.
    pub(super) doc: &'static str,
    /// Its type and range.
    pub kind: OptionKind,
    /// The default in words; empty if there is none.
    pub default: &'static str,
    /// Usual values in words, for the message about a value out of range.
    pub(super) usual: &'static str,
    /// How the infotext of an image has it.
    pub infotext: InfotextKey,
    /// Other keys that are read from an infotext.
    pub infotext_aliases: &'static [&'static str],
    /// Other names that all front ends read.
    pub aliases: &'static [&'static str],
    /// Short names that batch files read.
    pub short_names: &'static [&'static str],
    /// Its group in lists.
    pub group: OptionGroup,
    /// The property that a model must have for it; `None` for an option of all models.
    pub needs: Option<ModelFeature>,
    pub(super) get: fn(&Request) -> &dyn OptionValue,
    pub(super) get_mut: fn(&mut Request) -> &mut dyn OptionValue,
    pub(super) copy: fn(&Request, &mut Request),
    pub(super) json: fn(&Request) -> Value,
    pub(super) set_json: fn(&mut Request, &Value) -> serde_json::Result<()>,
}

/// Type and range of an option. Bounds are included.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum OptionKind {
    /// Any text.
    Text,
    /// A switch that is off by default.
    Flag,
    /// A switch that is on, off, or left to its default.
    Switch,
    /// A whole number.
    Whole {
        /// The least.
        min: usize,
        /// The largest.
        max: usize,
    },
    /// A number.
    Number {
        /// The least.
        min: f64,
        /// The largest.
        max: f64,
    },
    /// A side of an image in pixels. The model says of what it is a multiple.
    Side {
        /// The largest.
        max: usize,
    },
    /// Width and height in pixels.
    Size,
    /// An unsigned number of 64 bits; in texts, a negative one stands for a random one.
    Seed,
    /// A signed number of 64 bits.
    Offset,
    /// One of these names.
    Choice(fn() -> Vec<&'static str>),
    /// One of these names, or another program's name for one of them.
    Name(fn() -> Vec<&'static str>),
    /// Numbers.
    Numbers,
    /// A path of a folder.
    Folder,
    /// A path of an image file; `-` is the standard input.
    File,
    /// Paths of image files.
    Files,
    /// A path of a model folder or a checkpoint file, or the name of a model.
    Model,
    /// A text of the form of this example.
    Form(&'static str),
    /// Sides of an image with numbers of pixels.
    Borders,
    /// One of these names, or a path of an upscaler's file.
    Upscaler(fn() -> Vec<&'static str>),
    /// LoRA files with their strengths.
    Loras,
    /// Control networks with their images and strengths.
    Controls,
    /// IP-Adapters with their images and strengths.
    IpAdapters,
    /// Places of the parts of the prompt.
    Regions,
}

/// The place of an option in the infotext of an image: under AUTOMATIC1111's key, if that program or an extension has
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InfotextKey {
    /// Not at all.
    None,
    /// It is the text before the keys.
    Text,
    /// Under this key in every image.
    Always(&'static str),
    /// Under this key, if it is not the default.
    Changed(&'static str),
    /// A part of the value that another option has under this key.
    Within(&'static str),
}

/// The group of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OptionGroup {
    /// The prompts and how they are read.
    Prompt,
    /// The image: size, steps, seeds, counts.
    Image,
    /// The sampler, guidance and noise.
    Sampling,
    /// The image to begin with, its mask, and what is done with them.
    Input,
    /// The second pass.
    Hires,
    /// State that Kiln writes into the settings of images, and that no user types.
    Internal,
}

impl fmt::Debug for OptionRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl OptionRow {
    /// Its help, in one or a few sentences.
    pub fn help(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// All names under which batch files have it; the first is [`Self::name`].
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.name].into_iter().chain(self.aliases.iter().copied()).chain(self.short_names.iter().copied())
    }

    /// The keys under which an infotext has it; the first is the one that is written.
    pub fn infotext_keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        let first = match self.infotext {
            InfotextKey::Always(key) | InfotextKey::Changed(key) => Some(key),
            InfotextKey::None | InfotextKey::Text | InfotextKey::Within(_) => None,
        };
        first.into_iter().chain(self.infotext_aliases.iter().copied())
    }

    /// Its value in `request`.
    pub fn value<'a>(&self, request: &'a Request) -> &'a dyn OptionValue {
        (self.get)(request)
    }

    /// The same, to be changed.
    pub fn value_mut<'a>(&self, request: &'a mut Request) -> &'a mut dyn OptionValue {
        (self.get_mut)(request)
    }

    /// Its value as JSON; `null` if it is not set.
    pub fn json(&self, request: &Request) -> Value {
        (self.json)(request)
    }

    /// Sets it to a value of JSON.
    ///
    /// # Errors
    /// The expected type; the former value stays.
    pub fn set_json(&self, request: &mut Request, value: &Value) -> serde_json::Result<()> {
        (self.set_json)(request, value)
    }

    /// Copies its value.
    pub fn copy(&self, from: &Request, to: &mut Request) {
        (self.copy)(from, to);
    }
}

impl OptionKind {
    /// Texts that a user may type for it: the ends of its range, or all its names. Tests that hold for every option
    /// iterate over them.
    pub fn samples(&self) -> Vec<String> {
        match *self {
            Self::Text | Self::Folder | Self::File | Self::Model => vec!["a".into()],
            Self::Form(example) => vec![example.into()],
            Self::Borders => vec!["top=8,left=16".into()],
            Self::Flag | Self::Switch => vec!["on".into(), "false".into()],
            Self::Whole { min, max } => vec![min.to_string(), max.min(1 << 53).to_string()],
            Self::Number { min, max } => vec![min.to_string(), max.to_string()],
            Self::Side { max } => vec![max.to_string()],
            Self::Size => vec!["512x768".into()],
            Self::Seed => vec!["0".into(), u64::MAX.to_string()],
            Self::Offset => vec![i64::MIN.to_string(), "0".into()],
            Self::Choice(names) | Self::Name(names) => names().into_iter().map(String::from).collect(),
            Self::Upscaler(names) => names().into_iter().chain(["a"]).map(String::from).collect(),
            Self::Numbers => vec!["3,2,1".into()],
            Self::Files => vec!["a.png;b.png".into()],
            Self::Loras => vec!["a.safetensors:0.5;b.safetensors".into()],
            Self::IpAdapters => vec!["model=a.safetensors,image=b.png,weight=0.5;model=c,embeds=d,blocks=style".into()],
            Self::Regions => vec!["whole;pixels=64x64+0+8,strength=0.5;mask=a.png,blend=b,weight=0.3".into()],
            Self::Controls => vec!["net=a.safetensors,image=b.png,weight=0.5;net=c,mode=prompt,resize=fill".into()],
        }
    }

    /// The names that a user may choose from.
    pub fn names(&self) -> Vec<&'static str> {
        match self {
            Self::Choice(names) | Self::Name(names) | Self::Upscaler(names) => names(),
            _ => Vec::new(),
        }
    }

    /// The type in words, with its range.
    pub fn described(&self) -> String {
        match *self {
            Self::Text => "text".into(),
            Self::Flag | Self::Switch => "true or false".into(),
            Self::Whole { min, max: usize::MAX } => format!("whole number from {min}"),
            Self::Whole { min, max } => format!("whole number from {min} to {max}"),
            Self::Number { min, max } => format!("number from {min} to {max}"),
            Self::Side { max } => format!("pixels, up to {max}"),
            Self::Size => "width and height in pixels".into(),
            Self::Seed => "whole number from 0 to 2^64 - 1".into(),
            Self::Offset => "whole number".into(),
            Self::Choice(names) => names().join(", "),
            Self::Name(_) => "name".into(),
            Self::Upscaler(_) => "name or path".into(),
            Self::Numbers => "list of numbers".into(),
            Self::Folder | Self::File | Self::Model => "path".into(),
            Self::Files => "list of paths".into(),
            Self::Form(example) => format!("text such as {example}"),
            Self::Borders => "sides with pixels".into(),
            Self::Loras => "list of LoRAs".into(),
            Self::Controls => "list of controls".into(),
            Self::IpAdapters => "list of IP-Adapters".into(),
            Self::Regions => "list of regions".into(),
        }
    }
}
