//! NovelAI's texts: `Comment` has JSON, `Description` the prompt.
//!
//! Braces multiply a weight by 1.05 and square brackets divide it by 1.05, once for each pair. Only the models of the
//! first version are public, so other images are approximations at best.

use kiln_scheduler::{SamplerKind, SigmaSchedule};
use serde_json::{Map, Value};

use super::object::Object;
use super::{Taken, Unknown, dialect, literal};
use crate::request::Request;

/// The factor of a pair of braces.
const STEP: f64 = 1.05;
/// More brackets have no effect: 1.05 to that power is 5e5.
const MAX_DEPTH: i32 = 270;
const SILENT: [&str; 7] = ["n_samples", "request_type", "signed_hash", "version", "prompt", "legacy", "qualityToggle"];

pub(super) fn taken(comment: &Map<String, Value>, description: Option<&str>) -> Result<Taken, String> {
    let mut fields = Object::new(comment, &SILENT);
    let prompt = description.or_else(|| comment.get("prompt").and_then(Value::as_str)).unwrap_or_default();
    let negative = fields.text("uc");
    if [Some(prompt), negative].into_iter().flatten().any(|text| text.contains("::")) {
        return Err("its prompt has weights as in 1.2::word::, which Kiln does not support".into());
    }
    let mut taken = Taken {
        request: Request {
            prompt: dialect::written(&spans(prompt)),
            negative_prompt: Some(dialect::written(&spans(negative.unwrap_or_default()))),
            steps: fields.count("steps"),
            seed: fields.whole("seed"),
            cfg_scale: fields.number("scale"),
            guidance_rescale: fields.number("cfg_rescale").filter(|rescale| *rescale != 0.0),
            width: fields.count("width"),
            height: fields.count("height"),
            ..literal()
        },
        ..Taken::default()
    };
    let schedule = fields.text("noise_schedule");
    let mut unknown = None;
    if let Some(name) = fields.text("sampler") {
        let (plain, is_k) = name.strip_prefix("k_").map_or((name, false), |plain| (plain, true));
        match plain.parse::<SamplerKind>() {
            Ok(kind) => {
                taken.request.sampler = Some(kind.into());
                taken.request.scheduler = match schedule.filter(|name| *name != "native") {
                    Some(name) => name.parse().unwrap_or_else(|_| {
                        let field = "noise_schedule";
                        unknown = Some(Unknown { is_schedule: true, field, name: name.into() });
                        SigmaSchedule::Default
                    }),
                    // The levels of integer timesteps, as in k-diffusion.
                    None if is_k => SigmaSchedule::Normal,
                    None => SigmaSchedule::Default,
                };
            }
            Err(_) => unknown = Some(Unknown { is_schedule: false, field: "sampler", name: name.into() }),
        }
    }
    taken.unknown = unknown;
    taken.warnings.extend(fields.finish());
    Ok(taken)
}

/// The spans of the text with their weights. Unbalanced brackets count as well.
fn spans(text: &str) -> Vec<(String, f64)> {
    let (mut spans, mut depth, mut open) = (Vec::new(), 0i32, String::new());
    for c in text.chars() {
        let change = match c {
            '{' | ']' => 1,
            '}' | '[' => -1,
            _ => {
                open.push(c);
                continue;
            }
        };
        spans.push((std::mem::take(&mut open), STEP.powi(depth)));
        depth = (depth + change).clamp(-MAX_DEPTH, MAX_DEPTH);
    }
    spans.push((open, STEP.powi(depth)));
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_weigh() {
        let found: Vec<_> = spans("a {{b} c}, [d]").into_iter().filter(|(text, _)| !text.is_empty()).collect();
        let expected = [("a ", 1.0), ("b", STEP * STEP), (" c", STEP), (", ", 1.0), ("d", 1.0 / STEP)];
        assert!(found.iter().zip(expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-12), "{found:?}");
        assert_eq!(found.len(), expected.len());
    }
}
