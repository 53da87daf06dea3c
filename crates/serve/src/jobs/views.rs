//! Jobs, images and events as JSON.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::entry::{Image, Status};
use crate::error::Refused;
use crate::image_prompts::FILES;

/// A job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Job)]
pub(crate) struct JobView {
    /// Its number, which is random.
    pub(crate) id: String,
    pub(crate) status: Status,
    /// The model's name.
    pub(crate) model: String,
    /// When it came, in seconds since 1970.
    pub(crate) created: f64,
    /// When its first images joined the running batch.
    pub(crate) started: Option<f64>,
    /// When it ended.
    pub(crate) finished: Option<f64>,
    /// How many jobs that came before it wait, too.
    pub(crate) position: Option<usize>,
    /// The part of the work that is done, from 0 to 1.
    pub(crate) progress: f64,
    /// Calls of the denoiser that are done.
    pub(crate) step: usize,
    /// All calls of the denoiser; 0 before the first one.
    pub(crate) steps: usize,
    /// An estimate of the seconds that are left.
    pub(crate) eta: Option<f64>,
    /// How many images were asked for.
    pub(crate) total_images: usize,
    /// The request as it came, without input images.
    #[schema(value_type = Object)]
    pub(crate) request: Map<String, Value>,
    /// The images that are done.
    pub(crate) images: Vec<ImageView>,
    /// A sentence for each part of the request that was not done.
    pub(crate) warnings: Vec<String>,
    /// Why it failed.
    pub(crate) error: Option<ErrorView>,
}

/// An image that is done.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Image)]
pub(crate) struct ImageView {
    /// The job's number and the image's index.
    pub(crate) id: String,
    /// The image's number in its job, from 0.
    pub(crate) index: usize,
    pub(crate) seed: u64,
    /// Width in pixels.
    pub(crate) width: usize,
    /// Height in pixels.
    pub(crate) height: usize,
    /// Where the file is.
    pub(crate) url: String,
    /// The settings in AUTOMATIC1111's format.
    pub(crate) parameters: String,
    /// The request that makes this image again, without input images.
    #[schema(value_type = Object)]
    pub(crate) request: Value,
}

/// An error.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorView {
    /// The problem and its remedy.
    pub(crate) message: String,
    /// Its kind.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The field at fault.
    pub(crate) param: Option<String>,
    /// The value of `type`, in the field in which OpenAI's clients look for it.
    pub(crate) code: String,
}

/// How far a job is.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Step)]
pub(crate) struct StepView {
    pub(crate) step: usize,
    pub(crate) steps: usize,
    pub(crate) progress: f64,
    pub(crate) eta: Option<f64>,
    /// The name of the stage.
    pub(crate) stage: &'static str,
}

/// A preview of an image.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Preview)]
pub(crate) struct PreviewView {
    /// The image's number in its job.
    pub(crate) index: usize,
    pub(crate) step: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// `image/png`, or `image/jpeg` for larger ones.
    #[serde(rename = "type")]
    pub(crate) media_type: &'static str,
    /// The file in Base64.
    pub(crate) data: String,
}

/// An event.
#[derive(Debug, Clone)]
pub(crate) enum EventView {
    Queued(usize),
    Step(StepView),
    Preview(Arc<PreviewView>),
    Image(ImageView),
    Warning(String),
    Done(Box<JobView>),
}

impl ImageView {
    /// An image of the job with this number.
    pub(super) fn of(job: &str, image: &Image) -> Self {
        let id = format!("{job}-{}", image.index);
        Self {
            url: format!("/v1/images/{id}"),
            id,
            index: image.index,
            seed: image.seed,
            width: image.width,
            height: image.height,
            parameters: image.parameters.clone(),
            request: request_of(&image.settings),
        }
    }
}

/// The request in Kiln's settings of an image, without the input images, which settings name and do not contain.
fn request_of(settings: &str) -> Value {
    let settings: Value = serde_json::from_str(settings).unwrap_or_default();
    let mut request = settings.get("request").cloned().unwrap_or_default();
    if let Some(request) = request.as_object_mut() {
        request.retain(|name, _| !["init", "mask", "references"].contains(&name.as_str()));
        for control in request.get_mut("controls").and_then(Value::as_array_mut).into_iter().flatten() {
            control.as_object_mut().map(|control| control.remove("image"));
        }
        without_inputs(request);
    }
    request
}

/// Takes the images of IP-Adapters and the masks of regions out of a request.
pub(crate) fn without_inputs(request: &mut Map<String, Value>) {
    for region in request.get_mut("regions").and_then(Value::as_array_mut).into_iter().flatten() {
        region.as_object_mut().map(|region| region.remove("mask"));
    }
    for adapter in request.get_mut("ip_adapters").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(adapter) = adapter.as_object_mut() {
            adapter.retain(|name, _| !FILES.contains(&name.as_str()));
        }
    }
}

impl From<Refused> for ErrorView {
    fn from(refused: Refused) -> Self {
        let kind = refused.kind.status().1;
        Self { message: refused.message, kind: kind.into(), param: refused.param, code: kind.into() }
    }
}

impl EventView {
    /// Its name and its data.
    pub(crate) fn parts(&self) -> (&'static str, Value) {
        match self {
            Self::Queued(position) => ("queued", serde_json::json!({ "position": position })),
            Self::Step(step) => ("step", json(step)),
            Self::Preview(preview) => ("preview", json(preview.as_ref())),
            Self::Image(image) => ("image", json(image)),
            Self::Warning(message) => ("warning", serde_json::json!({ "message": message })),
            Self::Done(job) => ("done", json(job.as_ref())),
        }
    }
}

/// A value as JSON.
fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
