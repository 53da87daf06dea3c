//! `/controlnet/*`: lists for clients, and preprocessors alone (`scripts/api.py` of the extension).

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use kiln_media::{DecodeOptions, StillFormat, encode};
use serde_json::{Map, Value, json};

use super::modules::{MODULES, Module, resolution};
use super::prompts;
use super::units::rgb;
use crate::app::App;
use crate::base64_image;
use crate::error::{Refused, RefusedKind};
use crate::http::a1111::Detail;
use crate::http::a1111::extras::blocking;
use crate::http::{Payload, Shared, json_body};
use crate::named_files::{control_networks, ip_adapters};

/// The version of the API that clients ask for.
const VERSION: u32 = 3;
/// Units that a client may show; requests may have more.
const UNITS: usize = 3;
/// The groups of networks and preprocessors, with a part of the networks' names.
const GROUPS: [(&str, &str); 7] = [
    ("Canny", "canny"),
    ("Depth", "depth"),
    ("Lineart", "lineart"),
    ("Scribble", "scribble"),
    ("SoftEdge", "softedge"),
    ("Tile", "tile"),
    ("T2I-Adapter", "t2i"),
];

/// The routes.
pub(crate) fn routes() -> Router<Arc<App>> {
    let routes = Router::new()
        .route("/version", get(version))
        .route("/model_list", get(model_list))
        .route("/module_list", get(module_list))
        .route("/control_types", get(control_types))
        .route("/settings", get(settings))
        .route("/detect", post(detect));
    Router::new().nest("/controlnet", routes)
}

async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION }))
}

async fn settings() -> Json<Value> {
    Json(json!({ "control_net_unit_count": UNITS }))
}

fn models(app: &App) -> Vec<String> {
    control_networks(app.options.control_dir.as_deref()).into_iter().map(|(name, _)| name).collect()
}

fn adapters(app: &App) -> Vec<String> {
    ip_adapters(app.options.ip_adapters_dir.as_deref()).into_iter().map(|(name, _)| name).collect()
}

/// All modules: preprocessors, then those of IP-Adapters.
fn modules() -> Vec<&'static str> {
    MODULES.iter().map(|module| module.name).chain(prompts::MODULES.map(|(name, _)| name)).collect()
}

async fn model_list(State(app): Shared) -> Json<Value> {
    let all = [models(&app), adapters(&app)].concat();
    Json(json!({ "model_list": all }))
}

async fn module_list() -> Json<Value> {
    let mut details: Map<String, Value> = MODULES.iter().map(|module| (module.name.into(), module.detail())).collect();
    let of_adapters = || json!({ "model_free": false, "sliders": [] });
    details.extend(prompts::MODULES.map(|(name, _)| (name.into(), of_adapters())));
    Json(json!({ "module_list": modules(), "module_detail": details }))
}

async fn control_types(State(app): Shared) -> Json<Value> {
    let (models, adapters) = (models(&app), adapters(&app));
    let group = |modules: Vec<&str>, models: Vec<&String>| {
        let model = models.first().map_or("None", |name| name.as_str());
        let module = modules.get(1).copied().unwrap_or("none");
        let all: Vec<&str> = std::iter::once("None").chain(models.iter().map(|name| name.as_str())).collect();
        json!({ "module_list": modules, "model_list": all, "default_option": module, "default_model": model })
    };
    let all = group(modules(), models.iter().chain(&adapters).collect());
    let mut types = Map::from_iter([("All".into(), all)]);
    types["All"]["default_option"] = "none".into();
    types["All"]["default_model"] = "None".into();
    for (name, part) in GROUPS {
        let modules = MODULES.iter().filter(|module| module.name == "none" || module.groups.contains(&name));
        let models = models.iter().filter(|model| model.to_ascii_lowercase().contains(part)).collect();
        types.insert(name.into(), group(modules.map(|module| module.name).collect(), models));
    }
    let of_adapters = std::iter::once("none").chain(prompts::MODULES.map(|(name, _)| name)).collect();
    types.insert("IP-Adapter".into(), group(of_adapters, adapters.iter().collect()));
    Json(json!({ "control_types": types }))
}

/// Runs a preprocessor on images.
async fn detect(State(app): Shared, Payload(body): Payload) -> Result<Json<Value>, Detail> {
    let fields = json_body::read(&app, body).await?;
    let (most, decode) = (app.options.limits.images, app.options.limits.input_images());
    Ok(blocking(&app, move || detected(&fields, most, &decode)).await?)
}

fn detected(fields: &Map<String, Value>, most: usize, decode: &DecodeOptions) -> Result<Value, Refused> {
    let name = fields.get("controlnet_module").and_then(Value::as_str).unwrap_or("none");
    // The extension's words, which clients look for.
    let module = Module::find(name).ok_or_else(|| Refused::new(RefusedKind::Unprocessable, "Module not available"))?;
    // The name, and that of clients which were written before it.
    let images = ["controlnet_input_images", "controlnet_images"].iter().find_map(|name| fields.get(*name)?.as_array());
    let images = images.map(Vec::as_slice).unwrap_or_default();
    if images.is_empty() {
        return Err(Refused::new(RefusedKind::Unprocessable, "No image selected"));
    }
    if images.len() > most {
        let expected = format!("at most {most}, the limit of this server");
        return Err(Refused::value("controlnet_input_images", images.len(), expected));
    }
    let number = |name: &str| fields.get(name).and_then(Value::as_f64).unwrap_or(-1.0);
    let values = [number("controlnet_threshold_a"), number("controlnet_threshold_b")];
    let side = resolution(fields.get("controlnet_processor_res").and_then(Value::as_i64));
    let one = |image: &Value| {
        let image = rgb("controlnet_input_images", image.as_str().unwrap_or_default(), decode)?;
        let map = match module.preprocessor(values) {
            Some(preprocessor) => preprocessor.run(&image, Some(side)).map_err(Refused::unread)?,
            None => image,
        };
        Ok(base64_image::encode(&encode(&map, StillFormat::Png).map_err(Refused::unread)?))
    };
    let maps = images.iter().map(one).collect::<Result<Vec<String>, Refused>>()?;
    Ok(json!({ "images": maps, "info": "Success" }))
}
