use kiln_scheduler::{Convention, InitialNoise};

use super::*;
use crate::request::Rng;

fn of_texts(fields: &[(&str, &str)]) -> RequestBuilder {
    let mut builder = RequestBuilder::default();
    for (name, text) in fields {
        builder.set_text(JobField::named(name).unwrap(), text).unwrap();
    }
    builder
}

fn spec(fields: &[(&str, &str)]) -> JobSpec {
    of_texts(fields).build().unwrap()
}

#[test]
fn text_becomes_the_type_of_the_field() {
    let fields = [
        ("prompt", "42"),
        ("negative", "1.5"),
        ("Seed", "7"),
        ("steps", " 12 "),
        ("cfg", "3"),
        ("sampler", "DPM++ 2M Karras"),
        ("rng", "cuda"),
        ("seed-resize-from", "64x32"),
        ("sigmas", "10, 2,0.5"),
        ("lora", "a.safetensors:0.5; b.safetensors"),
        ("model", "emoji"),
        ("output", "{seed}.png"),
    ];
    let JobSpec { request, model, output } = spec(&fields);
    assert_eq!((&*request.prompt, request.negative_prompt.as_deref()), ("42", Some("1.5")));
    assert_eq!((request.seed, request.steps, request.cfg_scale), (Some(7), Some(12), Some(3.0)));
    assert_eq!((request.rng, request.seed_resize_from), (Rng::Cuda, Some((64, 32))));
    assert_eq!(request.sigmas, Some(vec![10.0, 2.0, 0.5]));
    assert_eq!(request.sampler.unwrap().to_string(), "DPM++ 2M Karras");
    assert_eq!(request.loras.iter().map(|lora| lora.unet).collect::<Vec<_>>(), [0.5, 1.0]);
    assert_eq!((model, output.as_deref()), (Some("emoji".into()), Some("{seed}.png")));
    assert_eq!(spec(&[("prompt", ""), ("seed", "-1")]).request, Request::default());
}

/// Every option can be a field of a job, as text and as JSON.
#[test]
fn every_option_is_a_field() {
    for row in OPTIONS {
        for text in row.kind.samples() {
            let mut expected = Request::default();
            row.value_mut(&mut expected).read(&text).unwrap();
            let field = JobField::Option(row);
            let [mut of_text, mut of_json] = [RequestBuilder::default(), RequestBuilder::default()];
            of_text.set_text(field, &text).unwrap_or_else(|problem| panic!("{}: {problem}", row.name));
            of_json.set_json(field, row.json(&expected)).unwrap();
            for builder in [of_text, of_json] {
                assert_eq!(builder.request(), &expected, "{}", row.name);
                assert!(builder.has(row.name), "{}", row.name);
            }
            let whole = serde_json::to_value(&expected).unwrap();
            assert_eq!(whole[row.name], row.json(&expected), "a field has no format of its own");
        }
    }
}

#[test]
fn a_schedules_name_includes_its_range() {
    let range = |fields: &[(&str, &str)]| spec(&[&[("prompt", "a")], fields].concat()).request.sigma_range;
    assert_eq!(range(&[("scheduler", "karras")]), None);
    assert_eq!(range(&[("scheduler", "Karras")]), Some(SigmaRange::Table));
    assert_eq!(range(&[("scheduler", "Karras"), ("scheduler", "karras")]), None);
    assert_eq!(range(&[("scheduler", "Karras"), ("sigma-range", "spacing")]), Some(SigmaRange::Spacing));
    let options = [("convention", "A1111"), ("discard-penultimate-sigma", "true"), ("initial-noise", "sigma")];
    let found = spec(&[&[("prompt", "a")], &options[..]].concat()).request;
    assert_eq!(found.convention, Convention::Automatic1111);
    assert_eq!((found.discard_penultimate_sigma, found.initial_noise), (Some(true), Some(InitialNoise::Sigma)));
}

#[test]
fn values_of_another_type_are_refused() {
    let set = |name: &str, value: Value| {
        let (field, mut builder) = (JobField::named(name).unwrap(), RequestBuilder::default());
        builder.set_json(field, value).map(|()| builder.json(field))
    };
    let problem = |name: &str, value: Value| set(name, value).unwrap_err();
    assert_eq!(problem("steps", "many".into()), "\"many\" is not a whole number");
    assert_eq!(problem("steps", Value::from(2.5)), "2.5 is not a whole number");
    assert_eq!(set("steps", Value::from(20.0)), Ok(20.into()));
    assert_eq!(problem("width", Value::from(-8.0)), "-8.0 is not a whole number");
    assert_eq!(set("cfg_scale", Value::from(7.0)), Ok(7.0.into()));
    assert_eq!(problem("cfg_scale", true.into()), "true is not a number");
    assert_eq!(problem("prompt", 5.into()), "expected a string");
    assert!(problem("sampler", "eulr".into()).contains("did you mean euler"));
    assert!(problem("loras", vec![":0.5"].into()).contains("expected a file"));
    let unknown = |name: &str| JobField::named(name).unwrap_err();
    assert!(unknown("promt").starts_with("unknown field `promt`, did you mean prompt"));
    assert!(unknown("promt").len() < 100, "no list of all fields");
    assert_eq!(unknown(&"k".repeat(6_000_000)), format!("unknown field `{}...`.", "k".repeat(64)));
    let mut without = RequestBuilder::default();
    assert!(without.clone().build().unwrap_err().contains("no prompt"));
    without.add("prompt", Value::Null).unwrap();
    assert!(without.build().unwrap_err().contains("no prompt"));
}

#[test]
fn later_fields_replace_earlier_ones() {
    let mut job = of_texts(&[("prompt", "a"), ("seed", "5"), ("model", "one"), ("scheduler", "Karras")]);
    assert!(job.add("seed", 6.into()).unwrap_err().message.contains("seed is set twice"));
    job.overlay(&of_texts(&[("seed", "-1"), ("scheduler", "karras"), ("output", "b.png"), ("steps", "3")]));
    assert!(!job.has("seed") && job.has("scheduler"));
    job.replace("steps", 4.into()).unwrap();
    job.retain(|name| name != "output");
    let JobSpec { request, model, output } = job.build().unwrap();
    assert_eq!((request.seed, request.sigma_range, request.steps), (None, None, Some(4)));
    assert_eq!((model, output), (Some("one".into()), None));
}

#[test]
fn defaults_are_no_changed_fields() {
    let request = Request { steps: Some(3), eta: Some(f64::NAN), ..Request::default() };
    assert_eq!(Value::from(request.changed_fields()).to_string(), r#"{"prompt":"","steps":3}"#);
    let builder = RequestBuilder::of(&request);
    assert_eq!(builder.request(), &Request { steps: Some(3), ..Request::default() });
    assert_eq!(builder.rows().map(|row| row.name).collect::<Vec<_>>(), ["prompt", "steps"]);
}
