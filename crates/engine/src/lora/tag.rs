//! `<lora:name:0.8>`: LoRAs that a prompt names, as in AUTOMATIC1111.

use super::{LoraName, LoraUse};
use crate::error::{Error, Result};

/// The kinds of tags that mean a LoRA: the second is of the extension that LyCORIS' files once needed.
const KINDS: [&str; 2] = ["<lora:", "<lyco:"];

/// The prompt without tags of LoRAs, and what they ask for, in their order. Without a strength a tag means 1; a second
/// one is the denoiser's, the first then the text encoders' alone; `te=` and `unet=` name them.
///
/// # Errors
/// [`Error::Value`] where a strength is no number.
pub(crate) fn take_tags(prompt: &str) -> Result<(String, Vec<LoraUse>)> {
    let (mut text, mut uses) = (String::with_capacity(prompt.len()), Vec::new());
    let mut rest = prompt;
    while let Some(start) = rest.find('<') {
        text.push_str(&rest[..start]);
        rest = &rest[start..];
        let kind = KINDS.iter().find_map(|kind| rest.strip_prefix(kind));
        match kind.and_then(|inner| inner.split_once('>')).filter(|(inner, _)| !inner.is_empty()) {
            Some((inner, after)) => {
                uses.push(read(inner)?);
                rest = after;
            }
            None => {
                text.push('<');
                rest = &rest[1..];
            }
        }
    }
    text.push_str(rest);
    Ok((text, uses))
}

/// What is between `<lora:` and `>`.
fn read(inner: &str) -> Result<LoraUse> {
    let mut parts = inner.split(':');
    let name = parts.next().unwrap_or_default();
    let number = |text: &str| {
        let value = text.trim().parse::<f32>().ok().filter(|value| value.is_finite());
        value.ok_or_else(|| Error::Value {
            name: "the strength of a LoRA in the prompt",
            found: format!("<lora:{inner}>"),
            expected: "a number, as in <lora:name:0.8>".into(),
        })
    };
    let (mut positional, mut te, mut unet) = (Vec::new(), None, None);
    for part in parts {
        match part.split_once('=') {
            Some(("te", value)) => te = Some(number(value)?),
            Some(("unet", value)) => unet = Some(number(value)?),
            Some(_) => {} // AUTOMATIC1111 has others, which change no weights that Kiln has
            None => positional.push(number(part)?),
        }
    }
    let text = te.or(positional.first().copied()).unwrap_or(1.0);
    let unet = unet.or(positional.get(1).copied()).unwrap_or(text);
    Ok(LoraUse { lora: LoraName::Named(name.into()), text, unet })
}

/// The prompt with a tag for every LoRA that was named by its file: what makes the picture again.
pub(crate) fn with_tags(prompt: &str, uses: &[LoraUse]) -> String {
    let mut text = prompt.to_string();
    for LoraUse { lora, text: te, unet } in uses {
        if let LoraName::File(path) = lora {
            let name = super::stem(path);
            text += &if te == unet { format!(" <lora:{name}:{te}>") } else { format!(" <lora:{name}:{te}:{unet}>") };
        }
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
    fn tags_leave_the_prompt() {
        let (text, uses) =
            take_tags("a <lora:ink wash:0.8>cat, <lyco:b><3 <lora:c:1:0.5><lora:d:te=0.2:unet=-1>").unwrap();
        assert_eq!(text, "a cat, <3 ");
        assert_eq!(
            uses,
            [named("ink wash", 0.8, 0.8), named("b", 1.0, 1.0), named("c", 1.0, 0.5), named("d", 0.2, -1.0)]
        );
    }

    #[test]
    fn what_is_no_tag_stays() {
        for text in ["<s1> on a shelf", "<lora:>", "<lora:a", "a < b", "<hypernet:x:1>", ""] {
            assert_eq!(take_tags(text).unwrap(), (text.to_string(), vec![]));
        }
    }

    #[test]
    fn a_strength_that_is_no_number_is_named() {
        let message = take_tags("<lora:ink:strong>").unwrap_err().to_string();
        assert!(message.contains("<lora:ink:strong>, expected a number"), "{message}");
    }

    #[test]
    fn files_become_tags_in_the_settings() {
        let file = LoraUse { lora: LoraName::File("loras/ink.safetensors".into()), text: 0.8, unet: 0.8 };
        let both = LoraUse { unet: 1.0, ..file.clone() };
        let text = with_tags("a cat <lora:b:1>", &[named("b", 1.0, 1.0), file, both]);
        assert_eq!(text, "a cat <lora:b:1> <lora:ink:0.8> <lora:ink:0.8:1>");
    }
}
