//! Lists: classes of nodes, models, and the machine.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use kiln_engine::{CardInfo, devices};
use serde_json::{Map, Value, json};

use crate::comfy::{List, Lists, all_classes, class as class_of};
use crate::http::{Client, Shared};

/// ComfyUI's names of model folders, and the list of files that each shows.
const FOLDERS: [(&str, Option<List>); 13] = [
    ("checkpoints", Some(List::Models)),
    ("loras", Some(List::Loras)),
    ("vae", Some(List::Models)),
    ("text_encoders", Some(List::Models)),
    ("diffusion_models", Some(List::Models)),
    ("clip_vision", Some(List::Encoders)),
    ("ipadapter", Some(List::Adapters)),
    ("style_models", None),
    ("embeddings", None),
    ("controlnet", Some(List::Controls)),
    ("upscale_models", Some(List::Upscalers)),
    ("unet_gguf", Some(List::Models)),
    ("clip_gguf", Some(List::Models)),
];

/// All classes of nodes.
pub(super) async fn classes(State(app): Shared, Extension(client): Extension<Client>) -> Json<Value> {
    let list = move || all_classes(&Lists { app: &app, owner: app.owner(&client) });
    Json(tokio::task::spawn_blocking(list).await.unwrap_or_default().into())
}

/// One of them; an empty object for others.
pub(super) async fn class(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
) -> Json<Value> {
    let view = move || {
        let lists = Lists { app: &app, owner: app.owner(&client) };
        class_of(&name).map(|class| (name.clone(), class.view(&lists))).into_iter().collect::<Map<_, _>>()
    };
    Json(tokio::task::spawn_blocking(view).await.unwrap_or_default().into())
}

/// The names of folders.
pub(super) async fn folders() -> Json<Value> {
    Json(FOLDERS.iter().map(|(name, _)| *name).collect())
}

/// The files of a folder.
pub(super) async fn folder(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(folder): Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let Some((name, list)) = FOLDERS.iter().find(|(name, _)| *name == folder) else {
        return Err(StatusCode::NOT_FOUND);
    };
    let names = move || {
        let lists = Lists { app: &app, owner: app.owner(&client) };
        match list {
            Some(list) => lists.names(*list),
            None if *name == "embeddings" => lists.embeddings(),
            None => Vec::new(),
        }
    };
    Ok(Json(tokio::task::spawn_blocking(names).await.unwrap_or_default().into()))
}

/// The names of folders as ComfyUI's page asks for them.
pub(super) async fn model_folders() -> Json<Value> {
    Json(FOLDERS.iter().map(|(name, _)| json!({ "name": name, "folders": [] })).collect())
}

/// The files of a folder as ComfyUI's page asks for them.
pub(super) async fn model_files(
    state: Shared,
    client: Extension<Client>,
    path: Path<String>,
) -> Result<Json<Value>, StatusCode> {
    let Json(names) = folder(state, client, path).await?;
    let names = names.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(Json(names.iter().map(|name| json!({ "name": name, "pathIndex": 0 })).collect()))
}

/// The names of embeddings.
pub(super) async fn embeddings(State(app): Shared, Extension(client): Extension<Client>) -> Json<Value> {
    let names = move || Lists { app: &app, owner: app.owner(&client) }.embeddings();
    Json(tokio::task::spawn_blocking(names).await.unwrap_or_default().into())
}

/// An empty list.
pub(super) async fn none() -> Json<Value> {
    Json(json!([]))
}

/// Features of the server.
pub(super) async fn features(State(app): Shared) -> Json<Value> {
    Json(server_features(app.options.limits.body))
}

/// The features that the server names to clients. `body` is the most bytes of a file.
pub(super) fn server_features(body: usize) -> Value {
    json!({ "supports_preview_metadata": true, "max_upload_size": body })
}

/// The machine.
pub(super) async fn system() -> Json<Value> {
    const VERSION: &str = concat!("kiln ", env!("CARGO_PKG_VERSION"));
    let all = tokio::task::spawn_blocking(devices).await;
    let (total, free) = all.as_ref().map_or((None, None), |all| (all.memory_total, all.memory_available));
    let gpu = |(index, gpu): (usize, &CardInfo)| {
        json!({
            "name": gpu.name, "type": "cuda", "index": index, "vram_total": gpu.memory_total, "vram_free": gpu.memory_free,
            "torch_vram_total": 0, "torch_vram_free": 0,
        })
    };
    let mut views: Vec<Value> = all.iter().flat_map(|all| &all.cards).enumerate().map(gpu).collect();
    if views.is_empty() {
        views.push(json!({
            "name": "cpu", "type": "cpu", "index": null, "vram_total": total, "vram_free": free, "torch_vram_total": 0,
            "torch_vram_free": 0,
        }));
    }
    Json(json!({
        "system": {
            "os": if cfg!(windows) { "nt" } else { "posix" }, "ram_total": total, "ram_free": free,
            "comfyui_version": VERSION, "required_frontend_version": null, "installed_templates_version": null,
            "required_templates_version": null, "python_version": VERSION, "pytorch_version": VERSION,
            "embedded_python": false, "argv": [],
        },
        "devices": views,
    }))
}
