//! The settings of the web UI, as far as Kiln has them.

use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Map, Value, json};

use super::Detail;
use super::lists::known_hash;
use crate::app::App;
use crate::error::Refused;
use crate::http::{Client, Payload, Shared, json_body};
use crate::image_format::ImageFormat;

/// The options that a request may set for itself, too.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    /// The name of the model; the first one if none is set.
    pub(super) model: Option<String>,
    pub(super) clip_skip: usize,
    pub(super) ensd: i64,
    /// `CPU`, or `GPU` and `NV` for CUDA's random numbers.
    pub(super) randn_source: String,
    pub(super) samples_format: String,
    pub(super) jpeg_quality: u8,
    /// Steps between previews; none where this is 0 or less.
    pub(super) preview_every: i64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            model: None,
            clip_skip: 1,
            ensd: 0,
            randn_source: "GPU".into(),
            samples_format: "png".into(),
            jpeg_quality: 80,
            preview_every: 10,
        }
    }
}

impl Options {
    /// Sets an option. False where Kiln has none of this name.
    ///
    /// # Errors
    /// [`Refused`] with the option for a value that it cannot have.
    pub(super) fn set(&mut self, app: &App, name: &str, value: &Value) -> Result<bool, Refused> {
        let wrong = |expected: &str| Refused::value(name, value, expected);
        let whole = || value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i64);
        match name {
            "sd_model_checkpoint" => {
                let title = value.as_str().ok_or_else(|| wrong("the title of a model"))?;
                self.model = Some(app.models.find(Some(title))?.id.clone());
            }
            "CLIP_stop_at_last_layers" => {
                let skip = whole().filter(|skip| (1..=12).contains(skip)).ok_or_else(|| wrong("1 to 12"))?;
                self.clip_skip = skip as usize;
            }
            "eta_noise_seed_delta" => self.ensd = whole().ok_or_else(|| wrong("a whole number"))?,
            "randn_source" => {
                let source = value.as_str().filter(|source| ["GPU", "CPU", "NV"].contains(source));
                self.randn_source = source.ok_or_else(|| wrong("GPU, CPU or NV"))?.into();
            }
            "samples_format" => {
                let format = value.as_str().filter(|name| ImageFormat::find(name, 80).is_some());
                self.samples_format = format.ok_or_else(|| wrong("png, jpg or webp"))?.into();
            }
            "jpeg_quality" => {
                let quality = whole().filter(|quality| (1..=100).contains(quality)).ok_or_else(|| wrong("1 to 100"))?;
                self.jpeg_quality = quality as u8;
            }
            "show_progress_every_n_steps" => self.preview_every = whole().ok_or_else(|| wrong("a whole number"))?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// All options, with those that clients ask for and Kiln has one value of.
    fn view(&self, app: &App) -> Value {
        let model = app.models.find(self.model.as_deref()).unwrap_or_else(|_| app.models.first());
        json!({
            "sd_model_checkpoint": model.id,
            "sd_checkpoint_hash": known_hash(app, model),
            "sd_vae": "Automatic",
            "CLIP_stop_at_last_layers": self.clip_skip,
            "eta_noise_seed_delta": self.ensd,
            "randn_source": self.randn_source,
            "samples_format": self.samples_format,
            "jpeg_quality": self.jpeg_quality,
            "show_progress_every_n_steps": self.preview_every,
            "live_previews_enable": true,
            "enable_pnginfo": true,
        })
    }

    /// The format of image files.
    pub(super) fn format(&self) -> ImageFormat {
        ImageFormat::find(&self.samples_format, self.jpeg_quality).unwrap_or_default()
    }
}

/// All options.
pub(super) async fn get(State(app): Shared, Extension(client): Extension<Client>) -> Json<Value> {
    Json(app.web_options(&client).view(&app))
}

/// Sets some options. Those that Kiln does not have are left out: clients send back all that they got.
pub(super) async fn set(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<Json<Value>, Detail> {
    let fields: Map<String, Value> = json_body::read(&app, body).await?;
    let mut options = app.web_options(&client);
    for (name, value) in &fields {
        if !options.set(&app, name, value)? {
            tracing::debug!(name, "an option that Kiln does not have");
        }
    }
    app.set_web_options(&client, options);
    Ok(Json(Value::Null))
}
