//! Lists: samplers, models, LoRAs.

use axum::Json;
use axum::extract::State;
use kiln_engine::{LatentFilter, LoraNotes, SamplerKind, SigmaSchedule, devices, embedding_names, process_bytes};
use kiln_models::Hashed;
use serde_json::{Map, Value, json};

use super::scripts::NAMES;
use crate::app::App;
use crate::http::Shared;
use crate::http::lists::listed_loras;
use crate::lora_list::ListedLora;
use crate::models::Model;
use crate::named_files::upscalers as upscalers_of;

/// Digits of the hash by which that program names a model.
const SHORT_HASH: usize = 10;
/// The upscalers that need no file.
const FILTERS: [&str; 3] = ["None", "Lanczos", "Nearest"];

pub(super) async fn samplers() -> Json<Value> {
    let one = |kind: &SamplerKind| json!({ "name": kind.label(), "aliases": [kind.id()], "options": {} });
    Json(SamplerKind::ALL.iter().map(one).collect())
}

pub(super) async fn schedulers() -> Json<Value> {
    let one = |schedule: &SigmaSchedule| {
        // That program's name of the schedule that belongs to the sampler.
        let name = if *schedule == SigmaSchedule::Default { "automatic" } else { schedule.id() };
        json!({
            "name": name, "label": schedule.label(), "aliases": null,
            "default_rho": if schedule.has_rho() { 7.0 } else { -1.0 }, "need_inner_model": false,
        })
    };
    Json(SigmaSchedule::ALL.iter().map(one).collect())
}

pub(super) async fn upscalers(State(app): Shared) -> Json<Value> {
    let one =
        |name: &str| json!({ "name": name, "model_name": null, "model_path": null, "model_url": null, "scale": 4 });
    let networks = upscalers_of(app.options.upscaler_dir.as_deref());
    let names = FILTERS.into_iter().chain(networks.iter().map(|(name, _)| name.as_str()));
    Json(names.map(one).collect())
}

pub(super) async fn latent_upscale_modes() -> Json<Value> {
    Json(LatentFilter::ALL.iter().map(|filter| json!({ "name": filter.label() })).collect())
}

pub(super) async fn models(State(app): Shared) -> Json<Value> {
    let one = |model: &Model| {
        let sha256 = known_hash(&app, model);
        let hash = sha256.as_ref().and_then(|hash| hash.get(..SHORT_HASH));
        // The folders of the server concern no client.
        let file = model
            .folder
            .path()
            .file_name()
            .map_or_else(|| model.id.clone(), |name| name.to_string_lossy().into_owned());
        json!({
            "title": model.id, "model_name": model.id, "hash": hash, "sha256": sha256, "filename": file, "config": null,
        })
    };
    Json(app.models.iter().map(one).collect())
}

/// The SHA-256 of a model if it is known: nothing is computed for a list. It is known after the first image.
pub(super) fn known_hash(app: &App, model: &Model) -> Option<String> {
    Hashed::model(model.folder.path())?.known(app.options.setup().cache_dir.as_deref()?)
}

pub(super) async fn loras(State(app): Shared) -> Json<Value> {
    // The folders of the server concern no client.
    let one = |ListedLora { name, path, notes }: ListedLora| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        json!({ "name": name, "alias": name, "path": file, "metadata": metadata(&notes) })
    };
    Json(listed_loras(&app).await.into_iter().map(one).collect())
}

/// The notes of a LoRA by the names of its file's metadata, as clients read them.
fn metadata(notes: &LoraNotes) -> Value {
    let words: Map<String, Value> = notes.words.iter().map(|(word, count)| (word.clone(), (*count).into())).collect();
    let words = if words.is_empty() { Value::Null } else { json!({ "words": words }) };
    let mut all = json!({
        "ss_base_model_version": notes.base, "modelspec.trigger_phrase": notes.trigger, "ss_network_dim": notes.rank,
        "ss_tag_frequency": words,
    });
    all.as_object_mut().into_iter().for_each(|all| all.retain(|_, value| !value.is_null()));
    all
}

pub(super) async fn embeddings(State(app): Shared) -> Json<Value> {
    let one = |name: String| {
        let about =
            json!({ "step": null, "sd_checkpoint": null, "sd_checkpoint_name": null, "shape": null, "vectors": null });
        (name, about)
    };
    let names = embedding_names(app.options.setup().embeddings_dir.as_deref());
    Json(json!({ "loaded": names.into_iter().map(one).collect::<Map<_, _>>(), "skipped": {} }))
}

pub(super) async fn memory() -> Json<Value> {
    let devices = devices();
    let ram = match (devices.memory_total, devices.memory_available) {
        (Some(total), Some(free)) => json!({ "free": free, "used": process_bytes(), "total": total }),
        _ => json!({ "error": "the system does not tell" }),
    };
    let gpu = |gpu: &kiln_engine::CardInfo| {
        let used = gpu.memory_total.saturating_sub(gpu.memory_free);
        json!({ "system": { "free": gpu.memory_free, "used": used, "total": gpu.memory_total } })
    };
    let cuda = devices.cards.first().map_or_else(|| json!({ "error": devices.cuda }), gpu);
    Json(json!({ "ram": ram, "cuda": cuda }))
}

pub(super) async fn cmd_flags(State(app): Shared) -> Json<Value> {
    let access = &app.options.access;
    Json(json!({
        "api": true, "nowebui": false, "listen": !app.options.listen.ip().is_loopback(), "port": app.options.listen.port(),
        "cors_allow_origins": access.origins.join(","), "medvram": false, "lowvram": false,
    }))
}

pub(super) async fn scripts() -> Json<Value> {
    Json(json!({ "txt2img": NAMES, "img2img": NAMES }))
}

/// A list of what Kiln has none of.
pub(super) async fn none() -> Json<Value> {
    Json(json!([]))
}

pub(super) async fn refreshed() -> Json<Value> {
    Json(Value::Null)
}
