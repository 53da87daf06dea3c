//! ComfyUI's API (`server.py` of that program), for the clients that were written for it. Every route is there a second time under
//! `/api`, and a third time under `/comfy/api`, where ComfyUI's page asks for them.

mod front_end;
mod info;
mod jobs;
mod queue;
mod socket;
mod uploads;
mod user_files;
mod view;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::app::App;

/// The routes.
pub(super) fn routes() -> Router<Arc<App>> {
    let page = Router::new()
        .merge(plain())
        .nest("/api", plain().merge(front_end::api()))
        .route("/user.css", get(user_files::style))
        .route("/templates/index.json", get(front_end::templates))
        .fallback(front_end::file)
        .method_not_allowed_fallback(super::not_allowed);
    let index = get(front_end::index); // which `nest` does not take for a part of the page
    let all = Router::new().merge(plain()).nest("/api", plain());
    all.nest(front_end::PREFIX, page).route(front_end::INDEX, index)
}

fn plain() -> Router<Arc<App>> {
    Router::new()
        .route("/prompt", get(queue::length).post(queue::prompt))
        .route("/queue", get(queue::queue).post(queue::change))
        .route("/history", get(queue::history).post(queue::forget))
        .route("/history/{id}", get(queue::done))
        .route("/interrupt", post(queue::interrupt))
        .route("/free", post(queue::free))
        .route("/jobs", get(jobs::list))
        .route("/jobs/cancel", post(jobs::cancel_all))
        .route("/jobs/{id}", get(jobs::get))
        .route("/jobs/{id}/cancel", post(jobs::cancel))
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
