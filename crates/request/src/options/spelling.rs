//! Names of options in messages.

use std::borrow::Cow;

/// A name as messages have it: one that is an identifier stands between backticks.
pub fn shown(name: &str) -> Cow<'_, str> {
    if is_identifier(name) { format!("`{name}`").into() } else { name.into() }
}

/// Replaces each option's name between backticks by what `spell` gives for it. A name for which that is `None`, and all
/// other text, stays.
///
/// ```
/// let flags = |name: &str| (name == "cfg_scale").then(|| "--cfg-scale".to_string());
/// assert_eq!(kiln_request::respell("`cfg_scale` is 7 in `x`", &flags), "--cfg-scale is 7 in `x`");
/// ```
pub fn respell(text: &str, spell: &dyn Fn(&str) -> Option<String>) -> String {
    let mut spelled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('`') {
        spelled.push_str(before);
        let named = behind.split_once('`').filter(|(name, _)| is_identifier(name));
        match named.and_then(|(name, behind)| Some((spell(name)?, behind))) {
            Some((name, behind)) => {
                spelled.push_str(&name);
                rest = behind;
            }
            None => {
                spelled.push('`');
                rest = behind;
            }
        }
    }
    spelled + rest
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_between_backticks_change() {
        let spell = |name: &str| (name == "steps").then(|| "--steps".to_string());
        for (text, expected) in [
            ("`steps` is 0", "--steps is 0"),
            ("steps, `stepz`, `steps", "steps, `stepz`, `steps"),
            ("`kiln inspect` and `steps`", "`kiln inspect` and --steps"),
            ("`a`steps`", "`a--steps"),
            ("", ""),
        ] {
            assert_eq!(respell(text, &spell), expected);
        }
        assert_eq!((&*shown("steps"), &*shown("a LoRA")), ("`steps`", "a LoRA"));
    }
}
