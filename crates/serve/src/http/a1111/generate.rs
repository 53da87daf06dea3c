//! `txt2img` and `img2img`: a request, and the answer with its images.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use bytes::Bytes;
use kiln_engine::Infotext;
use serde_json::{Map, Value, json};

use super::Detail;
use super::fields::Fields;
use super::init_batch;
use super::progress::timestamp;
use crate::app::{App, Submission, store_inputs};
use crate::base64_image;
use crate::error::{Refused, RefusedKind};
use crate::http::{Client, Payload, Shared, json_body};
use crate::jobs::{Entry, Finisher, Image};

/// Images of a prompt.
pub(super) async fn txt2img(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<Json<Value>, Detail> {
    Ok(run(app, client, body, false).await?)
}

/// Images of a prompt and an image.
pub(super) async fn img2img(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<Json<Value>, Detail> {
    Ok(run(app, client, body, true).await?)
}

/// Runs a job. It is canceled if the client goes away.
async fn run(app: Arc<App>, client: Client, body: Bytes, is_img2img: bool) -> Result<Json<Value>, Refused> {
    let (state, all, owner) = (app.clone(), body.clone(), client.clone());
    let read = move || {
        let mut parameters = json_body::object(&all)?;
        let mut fields = Fields::read(&state, &owner, parameters.clone(), is_img2img)?; // images are decoded
        if is_img2img && fields.inits.is_empty() {
            return Err(Refused::new(RefusedKind::NotFound, "Init image not found"));
        }
        let inits = if is_img2img { std::mem::take(&mut fields.inits) } else { Vec::new() };
        let batch = inits.len();
        let request = std::mem::take(&mut fields.request);
        let most = state.options.limits.images;
        let mut requests = init_batch::requests(request, inits, most, &mut fields.warnings)?;
        for request in &mut requests {
            request.mask = fields.mask.clone().filter(|_| is_img2img).map(Into::into);
        }
        let stored = |mut request| store_inputs(&mut request).map(|files| (request, files));
        let requests = requests.into_iter().map(stored).collect::<Result<Vec<_>, Refused>>()?;
        if !fields.include_init_images {
            for name in ["init_images", "mask"] {
                if let Some(value) = parameters.get_mut(name) {
                    *value = Value::Null;
                }
            }
        }
        let mut shown = parameters.clone();
        shown.retain(|name, _| !["init_images", "mask", "alwayson_scripts"].contains(&name.as_str()));
        Ok((fields, requests, batch, parameters, shown))
    };
    let (mut fields, requests, batch, parameters, shown) = app.intake.run_images(read).await?;
    // What is given back counts as a part of all bodies' until then.
    let _held = is_large(&parameters).then_some(body);
    // Each is canceled where another one is refused, or the client goes away.
    let (mut entries, mut finishers): (Vec<Arc<Entry>>, Vec<Finisher>) = Default::default();
    for (request, files) in requests {
        let submission = Submission {
            request,
            files,
            model: fields.options.model.clone(),
            client: client.0.clone(),
            priority: 0,
            limit: None,
            previews: fields.previews,
            format: fields.options.format(),
            shown: shown.clone(),
            warnings: std::mem::take(&mut fields.warnings),
            id: fields.task_id.take(),
        };
        let entry = app.submit(submission).await?;
        finishers.push(Finisher::new(app.clone(), entry.clone(), false));
        entries.push(entry);
    }
    let _current = app.web_jobs.enter(entries.clone());
    let (mut images, mut warnings) = (Vec::new(), Vec::new());
    for entry in &entries {
        images.extend(entry.finished().await?);
        warnings.extend(entry.warnings());
    }
    let mut seen = HashSet::new();
    warnings.retain(|warning| seen.insert(warning.clone()));
    let info = info(&entries, &images, batch, &warnings).to_string();
    let mut files: Vec<String> = images.iter().map(|image| base64_image::encode(&image.file)).collect();
    files.append(&mut fields.maps);
    let files = if fields.send_images { files } else { Vec::new() };
    drop(finishers);
    Ok(Json(json!({ "images": files, "parameters": parameters, "info": info, "warnings": warnings })))
}

/// Whether an answer gives images of the request back.
fn is_large(parameters: &Map<String, Value>) -> bool {
    ["init_images", "mask", "alwayson_scripts"].iter().any(|name| parameters.get(*name).is_some_and(|v| !v.is_null()))
}

/// The results as `Processed.js` of that program, with its `comments`. `batch` is the number of input images if there are
/// several.
fn info(entries: &[Arc<Entry>], images: &[Arc<Image>], batch: usize, warnings: &[String]) -> Value {
    let entry = entries.first();
    let batch_size = entry.and_then(|entry| entry.request.get("batch_size").cloned()).unwrap_or_else(|| 1.into());
    let texts: Vec<&str> = images.iter().map(|image| image.parameters.as_str()).collect();
    let parsed: Vec<Infotext> = texts.iter().filter_map(|text| Infotext::parse(text)).collect();
    let first = parsed.first();
    let field = |name: &str| first.and_then(|text| text.get(name)).map(String::from);
    let number = |name: &str| field(name).and_then(|text| text.parse::<f64>().ok());
    let prompts: Vec<&str> = parsed.iter().map(|text| text.prompt.as_str()).collect();
    let negatives: Vec<&str> = parsed.iter().map(|text| text.negative_prompt.as_str()).collect();
    let seeds: Vec<u64> = images.iter().map(|image| image.seed).collect();
    let subseed = number("Variation seed").map_or(-1, |seed| seed as i64);
    let subseeds: Vec<i64> = vec![subseed; images.len()];
    json!({
        "prompt": prompts.first(), "all_prompts": prompts,
        "negative_prompt": negatives.first(), "all_negative_prompts": negatives,
        "seed": seeds.first(), "all_seeds": seeds, "subseed": subseed, "all_subseeds": subseeds,
        "subseed_strength": number("Variation seed strength").unwrap_or(0.0),
        "width": images.first().map(|image| image.width), "height": images.first().map(|image| image.height),
        "sampler_name": field("Sampler"), "cfg_scale": number("CFG scale"), "steps": number("Steps").map(|n| n as u64),
        "batch_size": if batch > 1 { batch.into() } else { batch_size },
        "restore_faces": false, "face_restoration_model": null,
        "sd_model_name": entry.map(|entry| &entry.model), "sd_model_hash": field("Model hash"), "sd_vae_name": field("VAE"),
        "sd_vae_hash": field("VAE hash"), "seed_resize_from_w": -1, "seed_resize_from_h": -1,
        "denoising_strength": number("Denoising strength"), "extra_generation_params": {},
        "index_of_first_image": 0, "infotexts": texts, "styles": [], "job_timestamp": entry.map(|entry| timestamp(entry.created())),
        "clip_skip": number("Clip skip").map_or(1, |n| n as u64), "is_using_inpainting_conditioning": false,
        "comments": warnings.iter().map(|warning| format!("{warning}\n")).collect::<String>(),
        "version": concat!("kiln ", env!("CARGO_PKG_VERSION")),
    })
}
