//! `<lora:name:0.8>`: LoRA tags in a prompt, as in AUTOMATIC1111.

use kiln_prompt::{Tag, take_tags};

use super::{LoraName, LoraUse};
use crate::error::{Error, Result};
use crate::options::Request;

/// The kinds of LoRA tags: the second is of the extension that LyCORIS files needed earlier.
const KINDS: [&str; 2] = ["lora", "lyco"];

/// The LoRAs of the tags in a prompt, in order. The default strength is 1; a second value is for the denoiser and the
/// first one then only for the text encoders; `te=` and `unet=` name them.
///
/// # Errors
/// [`Error::Value`] if a strength is not a number.
pub(crate) fn tagged(prompt: &str) -> Result<Vec<LoraUse>> {
    let (_, tags) = take_tags(prompt);
    tags.iter().filter(|tag| KINDS.contains(&&*tag.kind)).map(read).collect()
}

impl Request {
    /// Takes LoRAs' tags out of the prompts whose names `has` does not know. Returns these tags as they stood there.
    pub fn drop_lora_tags(&mut self, has: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut dropped = Vec::new();
        for prompt in [Some(&mut self.prompt), self.hires_prompt.as_mut()].into_iter().flatten() {
            for tag in take_tags(prompt).1.into_iter().filter(|tag| KINDS.contains(&&*tag.kind)) {
                let text = tag.to_string();
                if !tag.arguments.first().is_some_and(|name| has(name)) {
                    *prompt = prompt.replace(&text, "");
                    dropped.push(text);
                }
            }
        }
        dropped.sort();
        dropped.dedup();
        dropped
    }
}

/// A sentence for each tag of a prompt that is not read, and for each part of a LoRA's tag.
pub(crate) fn left_out_of_tags(prompt: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    for tag in take_tags(prompt).1 {
        if !KINDS.contains(&&*tag.kind) {
            let reason = match &*tag.kind {
                "hypernet" => "Kiln has no hypernetworks",
                _ => "tags are <lora:name:0.8>",
            };
            sentences.push(format!("{tag} is left out of the prompt: {reason}"));
            continue;
        }
        let is_positional = |part: &&String| !part.contains('=');
        let further = tag.arguments.iter().skip(1).filter(is_positional).skip(2);
        let is_known = |part: &&String| part.starts_with("te=") || part.starts_with("unet=") || is_positional(part);
        for part in tag.arguments.iter().skip(1).filter(|part| !is_known(part)).chain(further) {
            let expected = "a tag has a name, one or two strengths, te= and unet=";
            sentences.push(format!("`{part}` of {tag} is left out: {expected}"));
        }
    }
    sentences
}

fn read(Tag { kind, arguments }: &Tag) -> Result<LoraUse> {
    let mut parts = arguments.iter().map(String::as_str);
    let name = parts.next().unwrap_or_default();
    let number = |text: &str| {
        let value = text.trim().parse::<f32>().ok().filter(|value| value.is_finite());
        value.ok_or_else(|| Error::Value {
            name: "the strength of a LoRA in the prompt",
            found: format!("<{kind}:{}>", arguments.join(":")),
            expected: "a number, as in <lora:name:0.8>".into(),
        })
    };
    let (mut positional, mut te, mut unet) = (Vec::new(), None, None);
    for part in parts {
        match part.split_once('=') {
            Some(("te", value)) => te = Some(number(value)?),
            Some(("unet", value)) => unet = Some(number(value)?),
            Some(_) => {} // `left_out_of_tags` names it
            None => positional.push(number(part)?),
        }
    }
    let text = te.or(positional.first().copied()).unwrap_or(1.0);
    let unet = unet.or(positional.get(1).copied()).unwrap_or(text);
    Ok(LoraUse { lora: LoraName::Named(name.into()), text, unet })
}

/// The prompt of an image, and those of `uses` that its tags do not name. `template` is the prompt before its choices
/// were resolved; `uses` ends in its tags. If choices removed tags, or lists added some, all tags are removed from the
/// prompt: the weights contain those in `template` for all images.
pub(crate) fn beside_tags<'a>(template: &str, prompt: &str, uses: &'a [LoraUse]) -> (String, &'a [LoraUse]) {
    let by_tags = tagged(template).unwrap_or_default();
    match uses.strip_suffix(by_tags.as_slice()).filter(|_| tagged(prompt).is_ok_and(|tags| tags == by_tags)) {
        Some(others) => (prompt.to_string(), others),
        None => (take_tags(prompt).0, uses),
    }
}

/// The prompt of [`beside_tags`] with a tag for every LoRA: it generates the image again.
pub(crate) fn with_tags(template: &str, prompt: &str, uses: &[LoraUse]) -> String {
    let (mut text, others) = beside_tags(template, prompt, uses);
    for LoraUse { lora, text: te, unet } in others {
        let name = match lora {
            LoraName::File(path) => super::file_stem(path),
            LoraName::Named(name) => name.clone(),
        };
        text += &if te == unet { format!(" <lora:{name}:{te}>") } else { format!(" <lora:{name}:{te}:{unet}>") };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, text: f32, unet: f32) -> LoraUse {
        LoraUse { lora: LoraName::Named(name.into()), text, unet }
    }

    #[test]
    fn tags_name_files_and_strengths() {
        let uses =
            tagged("a <lora:ink wash:0.8>cat, <lyco:b><3 <hypernet:x:1><lora:c:1:0.5><lora:d:te=0.2:unet=-1>").unwrap();
        assert_eq!(
            uses,
            [named("ink wash", 0.8, 0.8), named("b", 1.0, 1.0), named("c", 1.0, 0.5), named("d", 0.2, -1.0)]
        );
        assert_eq!(tagged("<s1> on a shelf, <lora:>, <lora:a").unwrap(), []);
    }

    #[test]
    fn an_invalid_strength_is_named() {
        let message = tagged("<lora:ink:strong>").unwrap_err().to_string();
        assert!(message.contains("<lora:ink:strong>, expected a number"), "{message}");
    }

    #[test]
    fn tags_of_unknown_files_are_taken_out() {
        let mut request = Request {
            prompt: "a <lora:nope:1>cat<lora:ink:0.5>, <lyco:nope>, <hypernet:h:1><lora:nope:1>".into(),
            hires_prompt: Some("<lora:no:1>b".into()),
            ..Request::default()
        };
        let dropped = request.drop_lora_tags(&|name| name == "ink");
        assert_eq!(dropped, ["<lora:no:1>", "<lora:nope:1>", "<lyco:nope>"]);
        assert_eq!(request.prompt, "a cat<lora:ink:0.5>, , <hypernet:h:1>");
        assert_eq!(request.hires_prompt.as_deref(), Some("b"));
    }

    #[test]
    fn files_become_tags_in_the_settings() {
        let file = LoraUse { lora: LoraName::File("loras/ink.safetensors".into()), text: 0.8, unet: 0.8 };
        let both = LoraUse { unet: 1.0, ..file.clone() };
        let prompt = "a cat <lora:b:1>";
        let text = with_tags(prompt, prompt, &[file.clone(), both, named("b", 1.0, 1.0)]);
        assert_eq!(text, "a cat <lora:b:1> <lora:ink:0.8> <lora:ink:0.8:1>");
        // A tag in a choice is in the weights, whether the choice was used or not.
        let uses = [file, named("c", 0.5, 0.5), named("d", 1.0, 1.0)];
        let text = with_tags("a {<lora:c:.5>|<lora:d>}", "a <lora:d>", &uses);
        assert_eq!(text, "a  <lora:ink:0.8> <lora:c:0.5> <lora:d:1>");
    }
}
