//! Texts of a contact sheet: what differs between images, in few letters.

use std::path::{Path, PathBuf};

use kiln_engine::{ControlUse, IpAdapterUse, LoraUse, OptionKind};
use kiln_request::JobField;
use serde_json::{Map, Value};

use crate::grid::Axis;
use crate::todos::Todo;

/// Fields of a job with their values.
type Fields = Map<String, Value>;

/// Words that texts have in common at one end before they are left out.
const COMMON: usize = 3;

/// The fields of an image's job without defaults, with its model.
pub(super) fn fields_of(todo: &Todo) -> Fields {
    let mut fields = todo.task.request.changed_fields();
    if let Some(model) = &todo.task.model {
        fields.insert(JobField::MODEL.name().into(), model.to_string_lossy().into());
    }
    fields
}

/// The fields that differ between jobs, the prompt first. Seeds are compared by image.
pub(super) fn differing(jobs: &[Fields], is_shown: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut fields: Vec<&str> = jobs.iter().flat_map(Fields::keys).map(String::as_str).collect();
    fields.sort_unstable();
    fields.dedup();
    let differs = |field: &&str| jobs.iter().any(|job| job.get(*field) != jobs[0].get(*field));
    fields.retain(|field| *field != "seed" && !is_shown(field) && differs(field));
    fields.sort_by_key(|field| *field != "prompt");
    fields
}

/// The lines that tell an image from others: a field with its value in each, a prompt without its name.
pub(super) fn lines(fields: &Fields, differing: &[&str], prompts: &[(String, String)]) -> Vec<String> {
    let line = |field: &&str| match (*field, fields.get(*field)) {
        ("prompt", Some(Value::String(text))) => {
            prompts.iter().find(|(whole, _)| whole == text).map_or_else(|| text.clone(), |(_, part)| part.clone())
        }
        (field @ ("loras" | "controls" | "ip_adapters" | "references"), None) => format!("{} none", name(field)),
        (field, None) => format!("{} default", name(field)),
        (field, Some(value)) => format!("{} {}", name(field), shown(field, value)),
    };
    differing.iter().map(line).collect()
}

/// The name of a field on a sheet: of lists of files the singular.
pub(super) fn name(field: &str) -> &str {
    match field {
        "loras" => "lora",
        "controls" => "control",
        "references" => "reference",
        "ip_adapters" => "ip-adapter",
        other => other,
    }
}

/// A value in short form: 5 and not 5.0, files by their names without folders and endings, LoRAs with their weights.
pub(super) fn shown(field: &str, value: &Value) -> String {
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let field = JobField::find(field);
    match (field.and_then(JobField::kind), value) {
        (_, Value::Null) => "default".into(),
        (Some(OptionKind::Loras), _) => list::<LoraUse>(value, |lora| {
            let weights = if lora.text == lora.unet { vec![lora.unet] } else { vec![lora.text, lora.unet] };
            weights.iter().filter(|_| weights != [1.0]).fold(lora.name(), |text, weight| format!("{text}:{weight}"))
        }),
        (Some(OptionKind::Controls), _) => list::<ControlUse>(value, |control| {
            with_image(stem(&control.net), control.image.as_deref().map(stem), control.weight)
        }),
        (Some(OptionKind::IpAdapters), _) => list::<IpAdapterUse>(value, |adapter| {
            with_image(stem(&adapter.model), adapter.image.as_deref().map(stem), adapter.weight)
        }),
        (Some(OptionKind::Regions), Value::Array(all)) => all.len().to_string(),
        (Some(OptionKind::Files), _) => list::<PathBuf>(value, |path| stem(path)),
        (
            Some(OptionKind::File | OptionKind::Folder | OptionKind::Model | OptionKind::Upscaler(_)),
            Value::String(path),
        ) => stem(Path::new(path)),
        (None, Value::String(path)) if field == Some(JobField::MODEL) => stem(Path::new(path)),
        (_, Value::String(text)) => text.clone(),
        (_, Value::Number(number)) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        (_, other) => other.to_string(),
    }
}

/// A value of an axis in short form. Names are shown as the user wrote them.
pub(super) fn of_axis(axis: &Axis, i: usize) -> String {
    let (text, value) = &axis.values[i];
    let value = match (axis.field.kind(), value.json(axis.field)) {
        (_, Value::Null) => Value::Null,
        (Some(OptionKind::Choice(_) | OptionKind::Name(_) | OptionKind::Upscaler(_)), _) => text.trim().into(),
        (_, value) => value,
    };
    shown(axis.field.name(), &value)
}

fn list<T: serde::de::DeserializeOwned>(value: &Value, one: impl Fn(&T) -> String) -> String {
    match serde_json::from_value::<Vec<T>>(value.clone()) {
        Ok(all) if all.is_empty() => "none".into(),
        Ok(all) => all.iter().map(one).collect::<Vec<_>>().join(" + "),
        Err(_) => value.to_string(),
    }
}

fn with_image(name: String, image: Option<String>, weight: f64) -> String {
    let image = image.map(|image| format!(" {image}")).unwrap_or_default();
    if weight == 1.0 { name + &image } else { format!("{name}{image}:{weight}") }
}

/// Each of these texts with what differs of it: words that all of them have at the begin or at the end are left out where
/// there are several.
pub(super) fn distinct(texts: &[String]) -> Vec<(String, String)> {
    let mut texts = texts.to_vec();
    texts.sort();
    texts.dedup();
    let words: Vec<Vec<&str>> = texts.iter().map(|text| text.split_whitespace().collect()).collect();
    let Some((first, others)) = words.split_first().filter(|(_, others)| !others.is_empty()) else {
        return texts.iter().map(|text| (text.clone(), text.clone())).collect();
    };
    let fewest = words.iter().map(Vec::len).min().unwrap_or(0);
    let same_begin = |i: &usize| others.iter().all(|other| other[*i] == first[*i]);
    let begin = (0..fewest).take_while(same_begin).count();
    let same_end = |i: &usize| others.iter().all(|other| other[other.len() - 1 - i] == first[first.len() - 1 - i]);
    let end = (0..fewest - begin).take_while(same_end).count();
    let (begin, end) = (if begin < COMMON { 0 } else { begin }, if end < COMMON { 0 } else { end });
    let part = |words: &Vec<&str>| {
        let dots = |left_out: usize| if left_out > 0 { ".." } else { "" };
        format!("{}{}{}", dots(begin), words[begin..words.len() - end].join(" "), dots(end))
    };
    texts.iter().cloned().zip(words.iter().map(part)).collect()
}

/// Texts in lines of so many letters, with breaks between words, or within those that are longer than a line. What does not fit
/// into `most` lines ends with two dots.
pub(super) fn wrapped(texts: &[String], letters: usize, most: usize) -> Vec<String> {
    let (letters, most) = (letters.max(3), most.max(1));
    let mut all: Vec<String> = Vec::new();
    for text in texts {
        let mut line = String::new();
        for word in text.split_whitespace() {
            let mut rest: Vec<char> = word.chars().collect();
            if !line.is_empty() && line.chars().count() + 1 + rest.len() <= letters {
                line.push(' ');
            } else if !line.is_empty() {
                all.push(std::mem::take(&mut line));
            }
            while line.chars().count() + rest.len() > letters {
                let left = rest.split_off(letters);
                all.push(rest.into_iter().collect());
                rest = left;
            }
            line.extend(rest);
        }
        all.push(line);
    }
    if all.len() > most {
        all.truncate(most);
        if let Some(last) = all.last_mut() {
            *last = last.chars().take(letters - 2).chain("..".chars()).collect();
        }
    }
    all
}

/// The letters of the longest of these texts.
pub(super) fn longest<'a>(texts: impl IntoIterator<Item = &'a String>) -> usize {
    texts.into_iter().map(|text| text.chars().count()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assignment::of_text;

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| text.to_string()).collect()
    }

    #[test]
    fn values_are_short() {
        let values = [Value::from(5.0), Value::from(2.5), Value::from(u64::MAX), Value::from("euler_a")];
        assert_eq!(values.map(|value| shown("eta", &value)), ["5", "2.5", "18446744073709551615", "euler_a"]);
        let read = |field: &str, text: &str| {
            let read = JobField::find(field).unwrap();
            shown(field, &of_text(read, text).unwrap().json(read))
        };
        assert_eq!(read("loras", "loras/ink.safetensors:0.2"), "ink:0.2");
        assert_eq!(read("loras", "loras/ink.safetensors; wash.pt:0.5:-1"), "ink + wash:0.5:-1");
        assert_eq!(
            read("controls", "net=nets/canny.safetensors,image=maps/house-edges.png,weight=0.5"),
            "canny house-edges:0.5"
        );
        assert_eq!(read("init", "/a/b/c.png"), "c");
        assert_eq!(read("model", "models/sd15.safetensors"), "sd15");
        assert_eq!(shown("steps", &Value::Null), "default");
    }

    #[test]
    fn only_what_differs_is_a_label() {
        let fields = |prompt: &str, steps: Option<u64>| {
            let mut fields = Fields::from_iter([
                ("prompt".into(), prompt.into()),
                ("width".into(), 64.into()),
                ("seed".into(), prompt.len().into()),
            ]);
            steps.map(|steps| fields.insert("steps".into(), steps.into()));
            fields
        };
        let jobs = [fields("a red apple", Some(4)), fields("a pear", None)];
        let differing = differing(&jobs, |_| false);
        assert_eq!(differing, ["prompt", "steps"]);
        let lines = |i: usize| lines(&jobs[i], &differing, &[]);
        assert_eq!((lines(0), lines(1)), (texts(&["a red apple", "steps 4"]), texts(&["a pear", "steps default"])));
        assert_eq!(super::differing(&jobs, |field| field == "steps"), ["prompt"]);
    }

    #[test]
    fn common_words_of_prompts_are_left_out() {
        let long = |fruit: &str| format!("a photograph of a {fruit} on a wooden table");
        let found = distinct(&[long("red apple"), long("pear"), long("pear")]);
        assert_eq!(found, [(long("pear"), "..pear..".into()), (long("red apple"), "..red apple..".into())]);
        let same = |all: &[&str]| distinct(&texts(all)).into_iter().all(|(whole, part)| whole == part);
        assert!(
            same(&["a red apple", "a pear"]) && same(&["one prompt of several words"]) && same(&[]) && same(&["", "a"])
        );
        assert_eq!(distinct(&texts(&["a b c", "a b c d"]))[0].1, "..");
    }

    #[test]
    fn lines_are_broken_between_words_and_in_long_ones() {
        let label = texts(&["a photograph of a red apple", "steps 4"]);
        assert_eq!(wrapped(&label, 22, 9), ["a photograph of a red", "apple", "steps 4"]);
        assert_eq!(wrapped(&label, 22, 2), ["a photograph of a red", "apple.."]);
        assert_eq!(wrapped(&texts(&["dpmpp_2m_sde_gpu x"]), 9, 9), ["dpmpp_2m_", "sde_gpu x"]);
        assert_eq!(wrapped(&texts(&["ab dpmpp_2m_sde"]), 9, 9), ["ab", "dpmpp_2m_", "sde"]);
        assert_eq!(wrapped(&[], 9, 9), Vec::<String>::new());
    }
}
