//! An image prompt in a request.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::blocks::PromptBlocks;
use crate::keyed;
use crate::strength::{self, MAX_WEIGHT, is_one, is_zero, one};

/// An IP-Adapter, its image, and how strongly it acts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpAdapterUse {
    /// The IP-Adapter's file, or `hf:OWNER/NAME/FILE`.
    pub model: PathBuf,
    /// The image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// A file with the image's features, or with the vector of a face's identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embeds: Option<PathBuf>,
    /// The factor of what the image adds (`set_ip_adapter_scale` of diffusers).
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: f64,
    /// The part of the evaluations after which it acts, 0 to 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start: f64,
    /// The part of the evaluations up to which it acts, 0 to 1, more than `start`.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub end: f64,
    /// The image encoder, a folder or a file; `None` is the one that is found next to the adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<PathBuf>,
    /// An image that is white where the prompt acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<PathBuf>,
    /// The blocks that it acts in.
    #[serde(default, skip_serializing_if = "PromptBlocks::is_all")]
    pub blocks: PromptBlocks,
    /// Whether FaceID Plus adds the identity's tokens to its result, as its files of version 2 need.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shortcut: bool,
}

/// The keys of the text form, in their order.
const KEYS: [&str; 10] =
    ["model", "image", "embeds", "weight", "start", "end", "encoder", "mask", "blocks", "shortcut"];
/// Those whose values are files.
const FILES: [&str; 5] = ["model", "image", "embeds", "encoder", "mask"];

fn is_false(value: &bool) -> bool {
    !*value
}

impl IpAdapterUse {
    /// The adapter with its usual strength, without an image.
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            image: None,
            embeds: None,
            weight: 1.0,
            start: 0.0,
            end: 1.0,
            encoder: None,
            mask: None,
            blocks: PromptBlocks::default(),
            shortcut: false,
        }
    }

    /// The adapter's name in settings: its file's without an extension.
    pub fn name(&self) -> String {
        self.model.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// All files that it names.
    pub fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let Self { model, image, embeds, encoder, mask, .. } = self;
        [Some(model), image.as_mut(), embeds.as_mut(), encoder.as_mut(), mask.as_mut()].into_iter().flatten()
    }

    /// The first invalid value and the expected one; `None` if all are valid.
    pub(crate) fn problem(&self) -> Option<(String, String)> {
        let Self { weight, start, end, .. } = *self;
        if self.model.as_os_str().is_empty() {
            return Some(("without `model`".into(), "an IP-Adapter's file".into()));
        }
        if self.image.is_none() && self.embeds.is_none() {
            let found = format!("model={}", self.model.display());
            return Some((found, "an `image` too, or a file with its features as `embeds`".into()));
        }
        if let Some(problem) = strength::problem(weight, start, end) {
            return Some(problem);
        }
        let most = |(_, factor): &&(_, f64)| factor.abs() > MAX_WEIGHT;
        if let Some((block, factor)) = self.blocks.all().iter().find(most) {
            let expected = format!("factors from -{MAX_WEIGHT} to {MAX_WEIGHT}");
            return Some((format!("blocks={block}:{factor:?}"), expected));
        }
        None
    }
}

/// `model=FILE,image=FILE,weight=0.8,start=0,end=0.5,encoder=DIR,mask=FILE,blocks=style+down.2.1:0.5`, in any order. A file's
/// name may have commas.
impl FromStr for IpAdapterUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut adapter = Self::new("");
        for (key, value) in keyed::fields(text, &KEYS, &FILES, "model=FILE")? {
            match key {
                "model" => adapter.model = value.into(),
                "image" => adapter.image = Some(value.into()),
                "embeds" => adapter.embeds = Some(value.into()),
                "weight" => adapter.weight = keyed::number(key, &value)?,
                "start" => adapter.start = keyed::number(key, &value)?,
                "end" => adapter.end = keyed::number(key, &value)?,
                "encoder" => adapter.encoder = Some(value.into()),
                "mask" => adapter.mask = Some(value.into()),
                "shortcut" => adapter.shortcut = keyed::switch(key, &value)?,
                _ => adapter.blocks = value.parse()?,
            }
        }
        if adapter.model.as_os_str().is_empty() {
            return Err("has no `model`, expected model=FILE, an IP-Adapter's file".into());
        }
        Ok(adapter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_any_order() {
        let text =
            "image=a, b.png,model=x.safetensors,weight=0.6,start=.1,end=0.9,encoder=e,mask=m.png,blocks=style:2+mid";
        let adapter: IpAdapterUse = text.parse().unwrap();
        assert_eq!((adapter.model.to_str(), adapter.image), (Some("x.safetensors"), Some("a, b.png".into())));
        assert_eq!((adapter.weight, adapter.start, adapter.end), (0.6, 0.1, 0.9));
        assert_eq!((adapter.encoder, adapter.mask), (Some("e".into()), Some("m.png".into())));
        assert_eq!(adapter.blocks.to_string(), "style:2+mid");
        let plain: IpAdapterUse = "model=x".parse().unwrap();
        assert_eq!(plain, IpAdapterUse::new("x"));
    }

    #[test]
    fn what_is_no_field_is_named() {
        let message = |text: &str| text.parse::<IpAdapterUse>().unwrap_err();
        assert!(message("a.safetensors").contains("`a.safetensors` is none of its fields, expected model=FILE"));
        assert!(message("model=a,model=b").contains("`model` twice"));
        assert!(message("model=a,weight=strong").contains("`weight` is strong, expected a number"));
        assert!(message("model=a,weight=1,scale=2").contains("`scale=2` is none"));
        assert!(message("model=a,blocks=colors").contains("`colors` is no block"));
        assert!(message("model=a,shortcut=maybe").contains("true or false"));
        assert!(message("image=a").contains("has no `model`"));
    }

    #[test]
    fn json_has_what_is_not_a_default() {
        let adapter = IpAdapterUse {
            image: Some("b.png".into()),
            weight: 0.5,
            blocks: "layout".parse().unwrap(),
            ..IpAdapterUse::new("a")
        };
        let json = serde_json::to_string(&adapter).unwrap();
        assert_eq!(json, r#"{"model":"a","image":"b.png","weight":0.5,"blocks":"layout"}"#);
        assert_eq!(serde_json::from_str::<IpAdapterUse>(&json).unwrap(), adapter);
        for wrong in [r#"{"model":"a","net":"b"}"#, r#"{"image":"a"}"#, r#"{"model":"a","blocks":"colors"}"#] {
            assert!(serde_json::from_str::<IpAdapterUse>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn impossible_values_are_named() {
        let new = || IpAdapterUse { image: Some("i".into()), ..IpAdapterUse::new("a") };
        let problem = |adapter: IpAdapterUse| adapter.problem().unwrap().1;
        assert!(new().problem().is_none());
        assert!(problem(IpAdapterUse::new("a")).contains("`embeds`"));
        assert!(problem(IpAdapterUse { weight: f64::NAN, ..new() }).contains("a weight from"));
        assert!(problem(IpAdapterUse { start: 0.5, end: 0.5, ..new() }).contains("less than `end`"));
        assert!(problem(IpAdapterUse { end: 1.5, ..new() }).contains("from 0 to 1"));
        assert!(problem(IpAdapterUse { blocks: "mid:1000".parse().unwrap(), ..new() }).contains("factors from"));
    }
}
