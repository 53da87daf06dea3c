//! Lists for clients: models, samplers, options.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use kiln_engine::{
    HiresUpscaler, ModelFolder, OPTIONS, OptionGroup, OptionKind, OptionRow, PreviewMethod, PreviewOptions,
    SamplerKind, Setup, SigmaSchedule, embedding_names,
};
use kiln_request::most_references;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Shared;
use super::jobs::ErrorBody;
use crate::app::{App, is_of_server};
use crate::error::Refused;
use crate::lora_list::ListedLora;
use crate::models::Model;
use crate::named_files::{control_networks, ip_adapters, upscalers};

/// The models, networks and limits of the server.
#[derive(Serialize, ToSchema)]
pub(super) struct Capabilities {
    /// The version of Kiln.
    version: &'static str,
    models: Vec<ModelView>,
    samplers: Vec<Named>,
    schedulers: Vec<Named>,
    /// Names for `<lora:name:1>` and the field `loras`.
    loras: Vec<String>,
    /// The metadata of these LoRAs, in the same order.
    lora_notes: Vec<LoraView>,
    /// Words of prompts that have vectors of their own.
    embeddings: Vec<String>,
    /// Names for `net` of the field `controls`.
    controls: Vec<String>,
    /// Names for `model` of the field `ip_adapters`.
    ip_adapters: Vec<String>,
    /// Names for `hires_upscaler`: filters, and the server's networks.
    upscalers: Vec<String>,
    /// Access to the images of the server's folder: `off`, `read` or `full`.
    gallery: &'static str,
    /// The fields of a request.
    options: Vec<OptionView>,
    limits: LimitsView,
}

/// A model.
#[derive(Serialize, ToSchema)]
#[schema(as = Model)]
pub(super) struct ModelView {
    id: String,
    /// `sd` or `sdxl`.
    family: &'static str,
    /// Whether its weights are loaded.
    loaded: bool,
    /// The usual width in pixels.
    width: usize,
    /// The usual height in pixels.
    height: usize,
    steps: usize,
    cfg_scale: f64,
    /// The sampler of requests that name none, as in `samplers`.
    sampler: Option<&'static str>,
    /// Width and height are multiples of this.
    size_multiple: usize,
    /// Whether it takes a mask and a masked image.
    inpainting: bool,
    /// The most reference images of a request; 0 if it takes none.
    references: usize,
    /// Whether it was made to change reference images as a prompt says.
    edits: bool,
    /// Whether there are previews.
    previews: bool,
}

/// The metadata of a LoRA.
#[derive(Serialize, ToSchema)]
#[schema(as = Lora)]
pub(super) struct LoraView {
    name: String,
    /// The model that it is for.
    base: Option<String>,
    /// The phrase that starts it.
    trigger: Option<String>,
    /// The most frequent words of its training, the most frequent first.
    words: Vec<String>,
}

/// A name for requests, and one for people.
#[derive(Serialize, ToSchema)]
pub(super) struct Named {
    id: &'static str,
    name: &'static str,
}

/// A field of a request.
#[derive(Serialize, ToSchema)]
#[schema(as = RequestOption)]
pub(super) struct OptionView {
    name: &'static str,
    group: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    minimum: Option<f64>,
    maximum: Option<f64>,
    choices: Option<Vec<&'static str>>,
    /// The default in words.
    default: &'static str,
    help: String,
}

/// The limits of a request.
#[derive(Serialize, ToSchema)]
#[schema(as = Limits)]
pub(super) struct LimitsView {
    /// Pixels of an image.
    pixels: usize,
    /// Steps of an image.
    steps: usize,
    /// Images of a request.
    images: usize,
    /// Tokens of a prompt, over all of its texts.
    tokens: usize,
    /// Pixels of an input image.
    input_pixels: usize,
    /// Pixels of an input image's longest side.
    input_side: usize,
    /// Bytes of a body.
    body: usize,
    /// Jobs that wait.
    queue: usize,
}

/// The models, networks and limits of the server.
#[utoipa::path(get, path = "/v1/capabilities", tag = "lists", responses((status = 200, description = "The lists.", body = Capabilities)))]
pub(super) async fn capabilities(State(app): Shared) -> Json<Capabilities> {
    let limits = app.options.limits;
    let setup = app.options.setup();
    let names = |all: Vec<(String, PathBuf)>| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let filters: Vec<String> = HiresUpscaler::names().into_iter().map(String::from).collect();
    let lora_notes: Vec<LoraView> = listed_loras(&app).await.iter().map(lora_view).collect();
    Json(Capabilities {
        version: env!("CARGO_PKG_VERSION"),
        models: app.models.iter().map(|model| model_view(&app, model)).collect(),
        samplers: SamplerKind::ALL.iter().map(|kind| Named { id: kind.id(), name: kind.label() }).collect(),
        schedulers: SigmaSchedule::ALL.iter().map(|kind| Named { id: kind.id(), name: kind.label() }).collect(),
        loras: lora_notes.iter().map(|lora| lora.name.clone()).collect(),
        lora_notes,
        embeddings: embedding_names(setup.embeddings_dir.as_deref()),
        controls: names(control_networks(app.options.control_dir.as_deref())),
        ip_adapters: names(ip_adapters(app.options.ip_adapters_dir.as_deref())),
        upscalers: filters.into_iter().chain(names(upscalers(app.options.upscaler_dir.as_deref()))).collect(),
        gallery: app.options.gallery().id(),
        options: OPTIONS.iter().filter_map(option_view).collect(),
        limits: LimitsView {
            pixels: limits.pixels,
            steps: limits.steps,
            images: limits.images,
            tokens: limits.tokens,
            input_pixels: limits.input_pixels,
            input_side: limits.input_side,
            body: limits.body,
            queue: limits.queue,
        },
    })
}

/// The LoRAs of the server's folder. The headers of new files are read apart from the threads of HTTP.
pub(super) async fn listed_loras(app: &Arc<App>) -> Vec<ListedLora> {
    let list = app.clone();
    let read = move || list.loras.read(list.options.setup().lora_dir.as_deref());
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

fn lora_view(ListedLora { name, notes, .. }: &ListedLora) -> LoraView {
    let words = notes.words.iter().map(|(word, _)| word.clone()).collect();
    LoraView { name: name.clone(), base: notes.base.clone(), trigger: notes.trigger.clone(), words }
}

/// Whether jobs of a model have previews.
fn has_previews(setup: &Setup, model: &ModelFolder) -> bool {
    let PreviewOptions { method, taesd } = &setup.previews;
    let by_taesd = *method == PreviewMethod::Taesd || (*method == PreviewMethod::Auto && taesd.is_some());
    *method != PreviewMethod::None && (model.latent_rgb().is_some() || by_taesd)
}

fn model_view(app: &App, model: &Model) -> ModelView {
    let folder = &model.folder;
    let defaults = folder.defaults();
    ModelView {
        id: model.id.clone(),
        family: folder.family().id(),
        loaded: app.scheduler.has_loaded(folder),
        width: defaults.width,
        height: defaults.height,
        steps: defaults.steps,
        cfg_scale: defaults.cfg_scale,
        sampler: folder.scheduler_config().sampler().ok().map(|kind| kind.id()),
        size_multiple: folder.size_multiple(),
        inpainting: folder.takes_mask(),
        references: most_references(folder),
        edits: defaults.edits,
        previews: has_previews(app.options.setup(), folder),
    }
}

/// The names of the options of a request over HTTP.
#[cfg(test)]
pub(super) fn shown_options() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().filter_map(option_view).map(|option| option.name)
}

/// An option of a request over HTTP, which names no files of the server.
fn option_view(row: &'static OptionRow) -> Option<OptionView> {
    if is_of_server(row) {
        return None;
    }
    let group = match row.group {
        OptionGroup::Hires => "hires",
        OptionGroup::Prompt => "prompt",
        OptionGroup::Image => "image",
        OptionGroup::Sampling => "sampling",
        OptionGroup::Input => "input",
        _ => return None,
    };
    let whole = |number: usize| Some(number as f64).filter(|_| number < usize::MAX);
    let (kind, minimum, maximum) = match row.kind {
        OptionKind::Text | OptionKind::Form(_) | OptionKind::Choice(_) | OptionKind::Name(_) => ("string", None, None),
        OptionKind::Flag | OptionKind::Switch => ("boolean", None, None),
        OptionKind::Whole { min, max } => ("integer", whole(min), whole(max)),
        OptionKind::Number { min, max } => ("number", Some(min), Some(max)),
        OptionKind::Side { max } => ("integer", Some(1.0), whole(max)),
        OptionKind::Seed => ("integer", Some(-1.0), None),
        OptionKind::Offset => ("integer", None, None),
        OptionKind::Size => ("size", None, None),
        OptionKind::Numbers => ("numbers", None, None),
        OptionKind::File => ("image", None, None),
        OptionKind::Files => ("images", None, None),
        OptionKind::Borders => ("borders", None, None),
        OptionKind::Loras => ("loras", None, None),
        OptionKind::Controls => ("controls", None, None),
        OptionKind::IpAdapters => ("ip_adapters", None, None),
        OptionKind::Regions => ("regions", None, None),
        OptionKind::Model => ("model", None, None),
        OptionKind::Upscaler(_) => ("upscaler", None, None),
        _ => return None,
    };
    let choices = Some(row.kind.names()).filter(|names| !names.is_empty());
    let (name, default, help) = (row.name, row.default, row.help());
    Some(OptionView { name, group, kind, minimum, maximum, choices, default, help })
}

/// The models in OpenAI's form.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, description = "The models.", body = Object)))]
pub(super) async fn models(State(app): Shared) -> Json<Value> {
    Json(serde_json::json!({ "object": "list", "data": openai_models(&app) }))
}

/// One model in OpenAI's form.
#[utoipa::path(
    get,
    path = "/v1/models/{id}",
    tag = "openai",
    params(("id" = String, Path, description = "The model's name.")),
    responses(
        (status = 200, description = "The model.", body = Object),
        (status = 404, description = "There is no such model.", body = ErrorBody),
    )
)]
pub(super) async fn model(State(app): Shared, Path(id): Path<String>) -> Result<Json<Value>, Refused> {
    let model = app.models.find(Some(&id))?;
    let name = app.models.aliases().find(|(alias, _)| *alias == id).map_or(&*model.id, |(alias, _)| alias);
    Ok(Json(openai_model(name)))
}

/// The models by their names and their other names.
fn openai_models(app: &App) -> Vec<Value> {
    let names = app.models.iter().map(|model| &*model.id).chain(app.models.aliases().map(|(alias, _)| alias));
    names.map(openai_model).collect()
}

fn openai_model(name: &str) -> Value {
    serde_json::json!({ "id": name, "object": "model", "created": 0, "owned_by": "kiln" })
}
