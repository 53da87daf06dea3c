//! ComfyUI's API (`server.py` of that program), for the clients that were written for it. Every route is there a second time under
//! `/api`.

mod info;
mod queue;
mod socket;
mod uploads;
mod view;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::app::App;

/// The routes.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().merge(plain()).nest("/api", plain())
}

fn plain() -> Router<Arc<App>> {
    Router::new()
        .route("/prompt", get(queue::length).post(queue::prompt))
        .route("/queue", get(queue::queue).post(queue::change))
        .route("/history", get(queue::history).post(queue::forget))
        .route("/history/{id}", get(queue::done))
        .route("/interrupt", post(queue::interrupt))
        .route("/free", post(queue::free))
        .route("/view", get(view::view))
        .route("/upload/image", post(uploads::image))
        .route("/upload/mask", post(uploads::mask))
        .route("/object_info", get(info::classes))
        .route("/object_info/{class}", get(info::class))
        .route("/system_stats", get(info::system))
        .route("/features", get(info::features))
        .route("/embeddings", get(info::embeddings))
        .route("/extensions", get(info::none))
        .route("/models", get(info::folders))
        .route("/models/{folder}", get(info::folder))
        .route("/ws", get(socket::open))
}
