//! The API of AUTOMATIC1111's web UI (`modules/api` of v1.10), for the clients that were written for it.

mod control;
mod extras;
mod fields;
mod forge;
mod generate;
mod hires;
mod init_batch;
mod left_out;
mod lists;
mod options;
mod progress;
mod scripts;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::{Refused, RefusedKind};

pub(crate) use options::Options;

/// The routes.
pub(super) fn routes() -> Router<Arc<App>> {
    let routes = Router::new()
        .route("/txt2img", post(generate::txt2img))
        .route("/img2img", post(generate::img2img))
        .route("/png-info", post(extras::png_info))
        .route("/extra-single-image", post(extras::single))
        .route("/extra-batch-images", post(extras::batch))
        .route("/progress", get(progress::progress))
        .route("/interrupt", post(progress::interrupt))
        .route("/skip", post(progress::skip))
        .route("/options", get(options::get).post(options::set))
        .route("/cmd-flags", get(lists::cmd_flags))
        .route("/samplers", get(lists::samplers))
        .route("/schedulers", get(lists::schedulers))
        .route("/upscalers", get(lists::upscalers))
        .route("/latent-upscale-modes", get(lists::latent_upscale_modes))
        .route("/sd-models", get(lists::models))
        .route("/sd-vae", get(lists::none))
        .route("/hypernetworks", get(lists::none))
        .route("/face-restorers", get(lists::none))
        .route("/realesrgan-models", get(lists::none))
        .route("/prompt-styles", get(lists::none))
        .route("/extensions", get(lists::none))
        .route("/script-info", get(lists::none))
        .route("/scripts", get(lists::scripts))
        .route("/loras", get(lists::loras))
        .route("/embeddings", get(lists::embeddings))
        .route("/memory", get(lists::memory));
    // Lists are read at each request.
    let refresh = ["checkpoints", "vae", "loras", "embeddings"];
    let routes =
        refresh.iter().fold(routes, |routes, name| routes.route(&format!("/refresh-{name}"), post(lists::refreshed)));
    Router::new().nest("/sdapi/v1", routes).merge(control::routes())
}

/// See [`crate::read_request`].
pub(super) fn read(fields: Map<String, Value>) {
    [false, true].into_iter().for_each(|is_img2img| fields::read(fields.clone(), is_img2img));
}

/// An error in the form of that API.
#[derive(Debug)]
pub(super) struct Detail(Refused);

impl From<Refused> for Detail {
    fn from(refused: Refused) -> Self {
        Self(refused)
    }
}

impl IntoResponse for Detail {
    fn into_response(self) -> Response {
        let ((status, name), headers) = (self.0.kind.status(), self.0.headers());
        // Clients know an interrupted job by its answer.
        let status = if self.0.kind == RefusedKind::Canceled { StatusCode::CONFLICT } else { status };
        (status, headers, Json(json!({ "detail": self.0.message, "error": name }))).into_response()
    }
}
