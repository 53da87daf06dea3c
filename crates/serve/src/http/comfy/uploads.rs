//! Images that clients send, for the nodes that load them.

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request, State};
use axum::http::{HeaderMap, header};
use axum::{Extension, Json};
use bytes::Bytes;
use kiln_media::{Rgba8Image, StillFormat, decode, encode};
use serde_json::{Value, json};

use crate::app::App;
use crate::comfy::{FileKind, FileName};
use crate::error::Refused;
use crate::http::{Client, Payload, Shared};
use crate::inputs::checked;

/// The form of an upload.
#[derive(Default)]
struct Form {
    image: Option<Bytes>,
    name: String,
    subfolder: String,
    kind: Option<String>,
    overwrites: bool,
    original: Option<Value>,
}

/// Keeps an image.
pub(super) async fn image(
    State(app): Shared,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> Result<Json<Value>, Refused> {
    let form = Form::read(&headers, body).await?;
    let state = app.clone();
    let keep = move || {
        let bytes = form.image.clone().unwrap_or_default();
        checked("image", &bytes, &state.options.limits.input_images())?;
        form.keep(&state, state.owner(&client), &bytes)
    };
    app.intake.run(0, keep).await.map(Json)
}

/// Keeps another image with the transparency of this one.
pub(super) async fn mask(
    State(app): Shared,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> Result<Json<Value>, Refused> {
    let form = Form::read(&headers, body).await?;
    let state = app.clone();
    let keep = move || {
        let owner = state.owner(&client);
        let original = form.original.as_ref().and_then(|original| {
            let field = |name: &str| original.get(name).and_then(Value::as_str);
            let kind = FileKind::find(field("type").unwrap_or("output"))?;
            let folder = field("subfolder").filter(|folder| !folder.is_empty());
            let name = field("filename")?;
            FileName::parse(&folder.map_or_else(|| name.into(), |folder| format!("{folder}/{name}")), kind)
        });
        let original = original.ok_or_else(|| Refused::value("original_ref", "none", "the name of an image"))?;
        let (bytes, _) = state
            .comfy
            .files
            .read(owner, &original)
            .ok_or_else(|| Refused::not_found("`original_ref` names no image of this server").at("original_ref"))?;
        let options = state.options.limits.input_images();
        let read = |bytes: &[u8]| decode(bytes, "image", &options).map_err(|error| Refused::unread(error).at("image"));
        let (mut whole, mask) = (read(&bytes)?.to_rgba(), read(form.image.as_deref().unwrap_or_default())?.to_rgba());
        if whole.size() != mask.size() {
            let expected = format!("{}x{}, the size of the image", whole.width(), whole.height());
            return Err(Refused::value("image", format!("{}x{}", mask.width(), mask.height()), expected));
        }
        whole.pixels_mut().zip(mask.pixels()).for_each(|(pixel, mask)| pixel[3] = mask[3]);
        let file = encode::<4>(&whole as &Rgba8Image, StillFormat::Png).map_err(Refused::unread)?;
        form.keep(&state, owner, &file)
    };
    app.intake.run_images(keep).await.map(Json)
}

impl Form {
    async fn read(headers: &HeaderMap, body: Bytes) -> Result<Self, Refused> {
        let wrong = |problem: String| Refused::invalid(format!("the form: {problem}"));
        let mut request = Request::new(Body::from(body));
        if let Some(kind) = headers.get(header::CONTENT_TYPE) {
            request.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
        }
        DefaultBodyLimit::disable().apply(&mut request); // the body was limited when it was read
        let mut parts = Multipart::from_request(request, &()).await.map_err(|error| wrong(error.body_text()))?;
        let mut form = Self::default();
        while let Some(part) = parts.next_field().await.map_err(|error| wrong(error.body_text()))? {
            let (name, file) = (part.name().unwrap_or_default().to_string(), part.file_name().map(String::from));
            let bytes = part.bytes().await.map_err(|error| wrong(error.body_text()))?;
            if name == "image" {
                (form.name, form.image) = (file.unwrap_or_default(), Some(bytes));
                continue;
            }
            let text = std::str::from_utf8(&bytes).map_err(|_| wrong(format!("`{name}` is not UTF-8")))?.to_string();
            match name.as_str() {
                "subfolder" => form.subfolder = text,
                "type" => form.kind = Some(text),
                "overwrite" => form.overwrites = text == "true" || text == "1",
                "original_ref" => form.original = serde_json::from_str(&text).ok(),
                _ => {}
            }
        }
        match form.image {
            Some(_) => Ok(form),
            None => Err(Refused::value("image", "missing", "an image file")),
        }
    }

    /// Keeps a file by the name of the form.
    fn keep(&self, app: &App, owner: &str, file: &[u8]) -> Result<Value, Refused> {
        let kind = FileKind::find(self.kind.as_deref().unwrap_or("input"));
        let kind = kind.ok_or_else(|| Refused::value("type", format!("{:?}", self.kind), "input, output or temp"))?;
        let name = FileName::new(kind, &self.subfolder, &self.name);
        let name = name.ok_or_else(|| Refused::value("image", format!("{:?}", self.name), "a plain name"))?;
        let FileName { name, subfolder, kind } = app.comfy.files.send(owner, name, file, self.overwrites)?;
        Ok(json!({ "name": name, "subfolder": subfolder, "type": kind.id() }))
    }
}
