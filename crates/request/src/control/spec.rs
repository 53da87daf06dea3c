//! A control network in a request.

use std::path::PathBuf;
use std::str::FromStr;

use kiln_media::Preprocessor;
use serde::{Deserialize, Serialize};

use super::kind::ControlType;
use super::passes::ControlPasses;
use crate::input::{ResizeChoice, choice, named};
use crate::keyed;
use crate::strength::{self, is_one, is_zero, one};

/// A control network, its image, and how strongly it guides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlUse {
    /// The network: a file, a folder in the diffusers layout, or `hf:OWNER/NAME`.
    pub net: PathBuf,
    /// The control image; `None` is the input image of image-to-image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// The factor of what the network adds (`controlnet_conditioning_scale` of diffusers); 1 is what it was trained with.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: f64,
    /// The part of the evaluations after which it acts, 0 to 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start: f64,
    /// The part of the evaluations up to which it acts, 0 to 1, more than `start`.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub end: f64,
    /// AUTOMATIC1111's control mode.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: ControlMode,
    /// diffusers' guess mode: weaker at the first layers, and for the conditional half alone.
    #[serde(default, skip_serializing_if = "is_default")]
    pub guess: bool,
    /// How the control image gets the size of the results.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resize: ResizeChoice,
    /// The preprocessor that makes the control image of the image, by its name ([`Preprocessor::NAMES`]), or
    /// `inpaint`. `None` is an image that is a control image already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preprocess: Option<String>,
    /// The type of the control image, which networks for several types take. `None` is that of the preprocessor.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ControlType>,
    /// The passes of hires fix in which it acts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub passes: ControlPasses,
}

/// The preprocessor of ControlNets for inpainting: the image with a hole where the mask is.
pub(crate) const INPAINT: &str = "inpaint";

choice! {
    /// Which of prompt and control image counts more (`ControlMode` of AUTOMATIC1111's ControlNet extension).
    ControlMode {
        /// Both: every residual has the weight.
        #[default]
        Balanced = "balanced", "Balanced";
        /// The prompt: residuals of early layers are weaker.
        Prompt = "prompt", "My prompt is more important";
        /// The control image: as with the prompt, and for the conditional half alone.
        Control = "control", "ControlNet is more important";
    }
}

/// The keys of the text form, in their order.
const KEYS: [&str; 11] =
    ["net", "image", "weight", "start", "end", "mode", "guess", "resize", "preprocess", "type", "passes"];
/// Those whose values are files.
const FILES: [&str; 2] = ["net", "image"];

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_inpaint(name: &str) -> bool {
    name.eq_ignore_ascii_case(INPAINT)
}

fn is_preprocessor(name: &str) -> bool {
    is_inpaint(name) || Preprocessor::find(name).is_some()
}

fn preprocessors() -> String {
    let names = Preprocessor::NAMES.map(|(name, _)| name).join(", ");
    format!("one of {names}, {INPAINT}")
}

impl ControlUse {
    /// The network with its usual strength, for the input image.
    pub fn new(net: impl Into<PathBuf>) -> Self {
        Self {
            net: net.into(),
            image: None,
            weight: 1.0,
            start: 0.0,
            end: 1.0,
            mode: ControlMode::default(),
            guess: false,
            resize: ResizeChoice::default(),
            preprocess: None,
            kind: None,
            passes: ControlPasses::default(),
        }
    }

    /// The type of the control image: that of the request, else that of the preprocessor.
    pub fn kind(&self) -> Option<ControlType> {
        self.kind.or_else(|| ControlType::find(self.preprocess.as_deref()?.split('_').next()?))
    }

    /// The use in the second pass of hires fix if its image has edges of one pixel, which are thinner in a larger image: weak
    /// at early layers, unless another mode was requested. AUTOMATIC1111's rule (`high_res_fix_forced_soft_injection` in
    /// `scripts/hook.py` of sd-webui-controlnet).
    pub fn with_thin_edges_enlarged(self) -> Self {
        match self.mode {
            ControlMode::Balanced if !self.guess => Self { mode: ControlMode::Prompt, ..self },
            _ => self,
        }
    }

    /// Whether the control image is made by [`INPAINT`].
    pub(crate) fn has_hole(&self) -> bool {
        self.preprocess.as_deref().is_some_and(is_inpaint)
    }

    /// The network's name in settings: its file's without an extension.
    pub fn name(&self) -> String {
        self.net.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The first invalid value and the expected one; `None` if all are valid.
    pub(crate) fn problem(&self) -> Option<(String, String)> {
        let Self { weight, start, end, mode, guess, .. } = *self;
        if self.net.as_os_str().is_empty() {
            return Some(("without `net`".into(), "a ControlNet's file, or its folder in the diffusers layout".into()));
        }
        if let Some(problem) = strength::problem(weight, start, end) {
            return Some(problem);
        }
        if let Some(name) = self.preprocess.as_deref().filter(|name| !is_preprocessor(name)) {
            return Some((format!("preprocess={name}"), preprocessors()));
        }
        if guess && mode != ControlMode::Balanced {
            let expected = "the mode balanced with `guess`: both say how strong each layer is".into();
            return Some((format!("guess=true,mode={}", mode.id()), expected));
        }
        None
    }
}

/// `net=FILE,image=FILE,weight=0.8,start=0,end=0.5,mode=prompt,guess=true,resize=crop`: `net` first, the others in any order.
/// A file's name may have commas.
impl FromStr for ControlUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut control = Self::new("");
        for (key, value) in keyed::fields(text, &KEYS, &FILES, "net=FILE,image=FILE")? {
            match key {
                "net" => control.net = value.into(),
                "image" => control.image = Some(value.into()),
                "weight" => control.weight = keyed::number(key, &value)?,
                "start" => control.start = keyed::number(key, &value)?,
                "end" => control.end = keyed::number(key, &value)?,
                "mode" => control.mode = keyed::one_of(key, &value, ControlMode::find, ControlMode::IDS)?,
                "guess" => control.guess = keyed::switch(key, &value)?,
                "preprocess" => {
                    if !is_preprocessor(&value) {
                        return Err(format!("`preprocess` is {value}, expected {}", preprocessors()));
                    }
                    control.preprocess = Some(value.to_ascii_lowercase());
                }
                "passes" => control.passes = keyed::one_of(key, &value, ControlPasses::find, ControlPasses::IDS)?,
                "type" => control.kind = Some(keyed::one_of(key, &value, ControlType::find, &ControlType::IDS)?),
                _ => control.resize = keyed::one_of(key, &value, ResizeChoice::find, ResizeChoice::IDS)?,
            }
        }
        if control.net.as_os_str().is_empty() {
            return Err("has no `net`, expected net=FILE, a ControlNet's file or folder".into());
        }
        Ok(control)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_any_order() {
        let control: ControlUse =
            "net=a/canny, v2.safetensors,weight=0.5,image=b.png,start=.1,end=0.9,mode=Control,resize=crop"
                .parse()
                .unwrap();
        assert_eq!((control.net.to_str(), control.weight), (Some("a/canny, v2.safetensors"), 0.5));
        assert_eq!((control.start, control.end, control.mode), (0.1, 0.9, ControlMode::Control));
        assert_eq!((control.image, control.resize, control.guess), (Some("b.png".into()), ResizeChoice::Crop, false));
        let plain: ControlUse = "net=x".parse().unwrap();
        assert_eq!(plain, ControlUse::new("x"));
    }

    #[test]
    fn what_is_no_field_is_named() {
        let message = |text: &str| text.parse::<ControlUse>().unwrap_err();
        assert!(message("a.safetensors").contains("`a.safetensors` is none of its fields"));
        assert!(message("net=a,weight=1,preprocessor=x").contains("`preprocessor=x` is none"));
        assert!(message("net=a,net=b").contains("`net` twice"));
        assert!(message("net=a,weight=strong").contains("`weight` is strong, expected a number"));
        assert!(message("net=a,weight=nan").contains("`weight` is nan"));
        assert!(message("net=a,mode=more").contains("balanced, prompt, control"));
        assert!(message("net=a,guess=maybe").contains("true or false"));
        assert!(message("net=a,resize=big").contains("stretch, crop, fill"));
        assert!(message("net=a,preprocess=depth").contains("one of canny, lineart"));
        assert!(message("net=a,passes=third").contains("both, first, second"));
        assert!(message("net=a,type=style").contains("openpose, depth, softedge"));
        assert!(message("image=a").contains("has no `net`"));
    }

    #[test]
    fn json_has_what_is_not_a_default() {
        let control = ControlUse { weight: 0.5, guess: true, ..ControlUse::new("a") };
        let json = serde_json::to_string(&control).unwrap();
        assert_eq!(json, r#"{"net":"a","weight":0.5,"guess":true}"#);
        assert_eq!(serde_json::from_str::<ControlUse>(&json).unwrap(), control);
        let control = ControlUse {
            preprocess: Some("canny".into()),
            kind: Some(ControlType::Depth),
            passes: ControlPasses::First,
            ..ControlUse::new("a")
        };
        let json = serde_json::to_string(&control).unwrap();
        assert_eq!(json, r#"{"net":"a","preprocess":"canny","type":"depth","passes":"first"}"#);
        assert_eq!("net=a,type=depth,preprocess=canny,passes=First".parse::<ControlUse>().unwrap(), control);
        for wrong in [r#"{"net":"a","strength":1}"#, r#"{"image":"a"}"#, r#"{"net":"a","mode":"soft"}"#] {
            assert!(serde_json::from_str::<ControlUse>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn impossible_values_are_named() {
        let problem = |control: ControlUse| control.problem().unwrap().1;
        let new = || ControlUse::new("a");
        assert!(new().problem().is_none());
        assert!(problem(ControlUse { weight: f64::NAN, ..new() }).contains("a weight from"));
        assert!(problem(ControlUse { weight: -101.0, ..new() }).contains("a weight from"));
        assert!(problem(ControlUse { start: 0.5, end: 0.5, ..new() }).contains("less than `end`"));
        assert!(problem(ControlUse { preprocess: Some("depth".into()), ..new() }).contains("one of canny"));
        let kind = |text: &str| text.parse::<ControlUse>().unwrap().kind();
        assert_eq!(kind("net=a,preprocess=scribble_xdog"), Some(ControlType::SoftEdge));
        assert_eq!(kind("net=a,preprocess=lineart,type=depth"), Some(ControlType::Depth));
        assert_eq!(kind("net=a,preprocess=invert"), None);
        assert!(problem(ControlUse { end: 1.5, ..new() }).contains("from 0 to 1"));
        assert!(problem(ControlUse { start: f64::NAN, ..new() }).contains("from 0 to 1"));
        assert!(problem(ControlUse { guess: true, mode: ControlMode::Prompt, ..new() }).contains("balanced"));
    }
}
