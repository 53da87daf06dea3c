//! The gallery: the images of the `output` folder, for all browsers.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kiln_media::{AlphaRule, DecodeOptions, Filter, StillFormat, decode, encode, read_file};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::jobs::ErrorBody;
use super::{Client, Payload, Shared, download};
use crate::app::App;
use crate::error::{Refused, RefusedKind};
use crate::gallery::{Asked, Facts, Item};
use crate::options::GalleryAccess;

/// Images of a part of the list, unless another number is asked for.
const USUAL_LIMIT: usize = 50;
/// The most images of a part.
const MAX_LIMIT: usize = 200;
/// The most bytes of a search.
const MAX_SEARCH: usize = 1 << 10;
/// The most images of one ZIP file.
const MAX_ZIP: usize = 1000;
/// Sides of thumbnails in pixels.
const SIDES: std::ops::RangeInclusive<usize> = 16..=1024;
/// The most bytes of a file that a thumbnail is made of.
const MAX_FILE: u64 = 128 << 20;
/// The quality of thumbnails.
const QUALITY: StillFormat = StillFormat::Jpeg(85);

/// A part of the gallery.
#[derive(Serialize, ToSchema)]
#[schema(as = Gallery)]
pub(super) struct GalleryView {
    /// The newest first.
    images: Vec<GalleryImage>,
    /// The value of `before` for the next part; null at the end.
    next: Option<String>,
    /// The number of all images of the folder.
    total: usize,
}

/// An image of the gallery.
#[derive(Serialize, ToSchema)]
pub(super) struct GalleryImage {
    /// The file's name.
    name: String,
    /// Where the file is.
    url: String,
    /// When it was written, in seconds since 1970.
    created: f64,
    bytes: u64,
    /// Width in pixels, of a PNG.
    width: Option<u32>,
    /// Height in pixels, of a PNG.
    height: Option<u32>,
    prompt: String,
    negative_prompt: String,
    seed: Option<u64>,
    /// The model's name.
    model: Option<String>,
}

/// The part of the gallery.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Part {
    /// The most images, up to 200. Default: 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Where the part begins: `next` of the part before.
    before: Option<String>,
    /// Words that the prompt or the negative prompt has.
    search: Option<String>,
}

/// How an image of the gallery is sent.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct How {
    /// The longer side of a thumbnail in pixels. Without it the file itself is sent.
    #[param(minimum = 16, maximum = 1024)]
    side: Option<usize>,
}

/// Images for a ZIP file.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GalleryNames)]
pub(super) struct Names {
    /// Names of the list.
    names: Vec<String>,
}

/// Lists the images that the server wrote into its folder, the newest first.
#[utoipa::path(
    get, path = "/v1/gallery", tag = "gallery", params(Part),
    responses(
        (status = 200, description = "A part of the list.", body = GalleryView),
        (status = 400, description = "It is no such part.", body = ErrorBody),
        (status = 403, description = "The gallery is not for this client.", body = ErrorBody),
        (status = 404, description = "The server writes no images into a folder.", body = ErrorBody),
    )
)]
pub(super) async fn list(
    State(app): Shared,
    Extension(client): Extension<Client>,
    part: Result<Query<Part>, QueryRejection>,
) -> Result<Json<GalleryView>, Refused> {
    let Query(Part { limit, before, search }) = part.map_err(|error| Refused::invalid(error.body_text()))?;
    check(&app, &client, GalleryAccess::Read)?;
    let limit = limit.unwrap_or(USUAL_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Refused::value("limit", limit, format!("1 to {MAX_LIMIT}")));
    }
    let search = search.unwrap_or_default();
    if search.len() > MAX_SEARCH {
        let found = format!("{} bytes long", search.len());
        return Err(Refused::value("search", found, format!("at most {MAX_SEARCH} bytes")));
    }
    let words = search.to_lowercase().split_whitespace().map(String::from).collect();
    let asked = Asked { limit, before: before.as_deref().map(place).transpose()?, words };
    let found = blocking(&app, move |app| app.gallery.part(&asked).map_err(failed)).await?;
    Ok(Json(GalleryView {
        images: found.images.into_iter().map(|(item, facts)| GalleryImage::of(item, &facts)).collect(),
        next: found.next.map(|(modified, name)| format!("{modified}-{name}")),
        total: found.total,
    }))
}

/// The place in the list that `next` named.
fn place(text: &str) -> Result<(u64, String), Refused> {
    let parts = text.split_once('-').and_then(|(time, name)| Some((time.parse().ok()?, name.to_string())));
    parts.ok_or_else(|| Refused::value("before", "no place of the list", "`next` of the part before"))
}

impl GalleryImage {
    fn of(item: Item, facts: &Facts) -> Self {
        Self {
            url: format!("/v1/gallery/{}", item.name),
            name: item.name,
            created: item.modified as f64 / 1e9,
            bytes: item.bytes,
            width: facts.size.map(|(width, _)| width),
            height: facts.size.map(|(_, height)| height),
            prompt: facts.prompt.clone(),
            negative_prompt: facts.negative_prompt.clone(),
            seed: facts.seed,
            model: facts.model.clone(),
        }
    }
}

/// An image of the gallery, or a thumbnail of it.
#[utoipa::path(
    get, path = "/v1/gallery/{name}", tag = "gallery", params(("name" = String, Path, description = "Its name in the list."), How),
    responses(
        (status = 200, description = "The file with its settings, or a thumbnail.", content_type = "image/png", body = Vec<u8>),
        (status = 400, description = "There is no thumbnail of this size.", body = ErrorBody),
        (status = 403, description = "The gallery is not for this client.", body = ErrorBody),
        (status = 404, description = "There is no such image.", body = ErrorBody),
        (status = 422, description = "The file cannot be read.", body = ErrorBody),
    )
)]
pub(super) async fn image(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
    how: Result<Query<How>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(How { side }) = how.map_err(|error| Refused::invalid(error.body_text()))?;
    check(&app, &client, GalleryAccess::Read)?;
    if let Some(side) = side.filter(|side| !SIDES.contains(side)) {
        return Err(Refused::value("side", side, format!("{} to {} pixels", SIDES.start(), SIDES.end())));
    }
    let media_type = match name.rsplit('.').next() {
        Some("jpg") => "image/jpeg",
        Some("webp") => "image/webp",
        _ => "image/png",
    };
    let files = blocking(&app, move |app| find(&app, &[name])).await?;
    let Some((item, path)) = files.into_iter().next() else { return Err(Refused::not_found("there is no image")) };
    // An image that was deleted may get a successor of its name, but none with other pixels: numbers of jobs are random.
    let cached = (header::CACHE_CONTROL, "private, max-age=3600");
    if let Some(side) = side {
        let bytes = blocking(&app, move |app| thumbnail(&path, side, app.options.limits.pixels)).await?;
        return Ok(([(header::CONTENT_TYPE, "image/jpeg"), cached], bytes).into_response());
    }
    let file = tokio::fs::File::open(&path).await.map_err(failed)?;
    let headers = [(header::CONTENT_TYPE, media_type), cached];
    let length = [(header::CONTENT_LENGTH, item.bytes)];
    Ok((headers, length.map(|(name, value)| (name, value.to_string())), download::file(file, item.bytes))
        .into_response())
}

/// A small image of a file.
fn thumbnail(path: &std::path::Path, side: usize, most: usize) -> Result<Vec<u8>, Refused> {
    let limits = DecodeOptions { max_pixels: most as u64, max_file: MAX_FILE, ..DecodeOptions::default() };
    // The message would name the folder.
    let unread = |error: kiln_media::Error| {
        tracing::debug!("a thumbnail: {error}");
        Refused::new(RefusedKind::Unprocessable, "the image cannot be read, or has more pixels than the server's limit")
    };
    let bytes = read_file(path, &limits).map_err(unread)?;
    let image = decode(&bytes, "the image", &limits).map_err(unread)?.into_rgb(AlphaRule::FlattenOnWhite);
    let (width, height) = image.size();
    let longest = width.max(height);
    let scaled = |length: usize| (length * side / longest.max(1)).max(1);
    let small = match longest > side {
        true => image.resize(scaled(width), scaled(height), Filter::Lanczos3).map_err(unread)?,
        false => image,
    };
    encode(&small, QUALITY).map_err(unread)
}

/// Deletes an image of the gallery.
#[utoipa::path(
    delete, path = "/v1/gallery/{name}", tag = "gallery", params(("name" = String, Path, description = "Its name in the list.")),
    responses(
        (status = 200, description = "The name of the image that is deleted.", body = Object),
        (status = 403, description = "The gallery is not for this client, or can only be read.", body = ErrorBody),
        (status = 404, description = "There is no such image.", body = ErrorBody),
    )
)]
pub(super) async fn remove(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
) -> Result<Json<serde_json::Value>, Refused> {
    check(&app, &client, GalleryAccess::Full)?;
    let deleted = serde_json::json!({ "name": name });
    blocking(&app, move |app| {
        find(&app, &[name])?.into_iter().try_for_each(|(_, path)| std::fs::remove_file(path).map_err(failed))
    })
    .await?;
    Ok(Json(deleted))
}

/// Sends images of the gallery in one ZIP file.
#[utoipa::path(
    post, path = "/v1/gallery/zip", tag = "gallery", request_body = Names,
    responses(
        (status = 200, description = "The files.", content_type = "application/zip", body = Vec<u8>),
        (status = 400, description = "There are no names, or too many.", body = ErrorBody),
        (status = 403, description = "The gallery is not for this client.", body = ErrorBody),
        (status = 404, description = "There is no such image.", body = ErrorBody),
    )
)]
pub(super) async fn zip(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<Response, Refused> {
    check(&app, &client, GalleryAccess::Read)?;
    let Names { names } = serde_json::from_slice(&body).map_err(|error| Refused::invalid(error.to_string()))?;
    if !(1..=MAX_ZIP).contains(&names.len()) {
        return Err(Refused::value("names", format!("a list of {}", names.len()), format!("1 to {MAX_ZIP} names")));
    }
    let files = blocking(&app, move |app| find(&app, &names)).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/zip"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"kiln-images.zip\""),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(download::zip(files))).into_response())
}

/// The one place that decides who may use the gallery: images of all clients lie in one folder, so that it is for clients who may see
/// each other's jobs.
fn check(app: &App, _client: &Client, needed: GalleryAccess) -> Result<(), Refused> {
    if !app.gallery.has_folder() {
        return Err(Refused::not_found(
            "the server writes its images into no folder (`output`), so that it has no gallery",
        ));
    }
    let forbidden = |message| Err(Refused::new(RefusedKind::Forbidden, message));
    match app.options.gallery() {
        GalleryAccess::Off => forbidden("the server has no gallery: `gallery` is off, or there are several users"),
        GalleryAccess::Read if needed == GalleryAccess::Full => {
            forbidden("images of this server's gallery cannot be deleted: `gallery` is read")
        }
        _ => Ok(()),
    }
}

fn find(app: &App, names: &[String]) -> Result<Vec<(Item, std::path::PathBuf)>, Refused> {
    let missing =
        |name: String| Refused::not_found(format!("the gallery has no image {:?}", kiln_media::shortened(&name)));
    app.gallery.find(names).map_err(failed)?.map_err(missing)
}

/// Does work on the folder on threads of its own, not on those for answers, for few requests at a time.
async fn blocking<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(Arc<App>) -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let internal = |error: String| Refused::new(RefusedKind::Internal, error);
    let _turn = app.gallery.turns.acquire().await.map_err(|error| internal(error.to_string()))?;
    let state = app.clone();
    app.runtime.spawn_blocking(move || work(state)).await.map_err(|error| internal(error.to_string()))?
}

/// An error of the system. The folder's path stays out of the answer.
fn failed(error: std::io::Error) -> Refused {
    tracing::error!("the gallery: {error}");
    Refused::new(RefusedKind::Internal, "the server cannot read its folder of images; its log says more")
}
