//! `txt2img` and `img2img`: a request, and the answer with its images.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use bytes::Bytes;
use kiln_engine::Infotext;
use serde_json::{Map, Value, json};

use super::Detail;
use super::fields::Fields;
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
    let (state, all, options) = (app.clone(), body.clone(), app.web_options(&client));
    let read = move || {
        let mut parameters = json_body::object(&all)?;
        let mut fields = Fields::read(&state, options, parameters.clone(), is_img2img)?; // images are decoded
        if is_img2img && fields.init.is_none() {
            return Err(Refused::new(RefusedKind::NotFound, "Init image not found"));
        }
        if is_img2img {
            fields.request.init = fields.init.take().map(Into::into);
            fields.request.mask = fields.mask.take().map(Into::into);
        }
        let files = store_inputs(&mut fields.request)?;
        if !fields.include_init_images {
            for name in ["init_images", "mask"] {
                if let Some(value) = parameters.get_mut(name) {
                    *value = Value::Null;
                }
            }
        }
        let mut shown = parameters.clone();
        shown.retain(|name, _| !["init_images", "mask", "alwayson_scripts"].contains(&name.as_str()));
        Ok((fields, files, parameters, shown))
    };
    let (mut fields, files, parameters, shown) = app.intake.run_images(read).await?;
    // What is given back counts as a part of all bodies' until then.
    let _held = is_large(&parameters).then_some(body);
    let submission = Submission {
        request: fields.request,
        files,
        model: fields.options.model.clone(),
        client: client.0,
        priority: 0,
        limit: None,
        previews: fields.previews,
        format: fields.options.format(),
        shown,
        warnings: fields.warnings,
        id: fields.task_id,
    };
    let entry = app.submit(submission).await?;
    let _current = app.web_jobs.enter(entry.clone());
    let finisher = Finisher::new(app.clone(), entry.clone(), false);
    let images = entry.finished().await?;
    let info = info(&entry, &images).to_string();
    let mut files: Vec<String> = images.iter().map(|image| base64_image::encode(&image.file)).collect();
    files.append(&mut fields.maps);
    let files = if fields.send_images { files } else { Vec::new() };
    drop(finisher);
    Ok(Json(json!({ "images": files, "parameters": parameters, "info": info, "warnings": entry.warnings() })))
}

/// Whether an answer gives images of the request back.
fn is_large(parameters: &Map<String, Value>) -> bool {
    ["init_images", "mask", "alwayson_scripts"].iter().any(|name| parameters.get(*name).is_some_and(|v| !v.is_null()))
}

/// What was made, as `Processed.js` of that program.
fn info(entry: &Entry, images: &[Arc<Image>]) -> Value {
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
        "batch_size": entry.request.get("batch_size").cloned().unwrap_or_else(|| 1.into()),
        "restore_faces": false, "face_restoration_model": null,
        "sd_model_name": entry.model, "sd_model_hash": field("Model hash"), "sd_vae_name": field("VAE"),
        "sd_vae_hash": field("VAE hash"), "seed_resize_from_w": -1, "seed_resize_from_h": -1,
        "denoising_strength": number("Denoising strength"), "extra_generation_params": {},
        "index_of_first_image": 0, "infotexts": texts, "styles": [], "job_timestamp": timestamp(entry.created()),
        "clip_skip": number("Clip skip").map_or(1, |n| n as u64), "is_using_inpainting_conditioning": false,
        "version": concat!("kiln ", env!("CARGO_PKG_VERSION")),
    })
}
