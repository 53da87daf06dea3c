//! Bodies with images: forms, and JSON with data URLs.

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use kiln_media::{DecodeOptions, decode};
use kiln_models::ModelFolder;
use kiln_request::ModelFeature;
use serde_json::{Map, Value};

use super::image_of;
use crate::app::App;
use crate::error::Refused;
use crate::http::json_body;

/// The fields of a body, and its images.
#[derive(Debug, Default)]
pub(super) struct Form {
    pub(super) fields: Map<String, Value>,
    pub(super) images: Vec<Vec<u8>>,
    pub(super) mask: Option<Vec<u8>>,
}

impl Form {
    /// Reads a body by its type.
    ///
    /// # Errors
    /// [`Refused`] for what is no form and no image.
    pub(super) async fn read(app: &App, headers: &HeaderMap, body: Bytes) -> Result<Self, Refused> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.starts_with("multipart/form-data") {
            Self::multipart(kind, body).await
        } else {
            json_body::parse_with(app, body, Self::json).await
        }
    }

    async fn multipart(kind: &str, body: Bytes) -> Result<Self, Refused> {
        let wrong = |problem: String| Refused::invalid(format!("the form: {problem}"));
        let mut request = Request::new(Body::from(body));
        let value = kind.parse().map_err(|_| wrong("its type is not readable".into()))?;
        request.headers_mut().insert(header::CONTENT_TYPE, value);
        DefaultBodyLimit::disable().apply(&mut request); // the body was limited when it was read
        let mut parts = Multipart::from_request(request, &()).await.map_err(|error| wrong(error.body_text()))?;
        let mut form = Self::default();
        while let Some(part) = parts.next_field().await.map_err(|error| wrong(error.body_text()))? {
            let name = part.name().unwrap_or_default().to_string();
            let bytes = part.bytes().await.map_err(|error| wrong(error.body_text()))?;
            match name.as_str() {
                "image" | "image[]" => form.images.push(bytes.to_vec()),
                "mask" => form.mask = Some(bytes.to_vec()),
                _ => {
                    let text =
                        String::from_utf8(bytes.to_vec()).map_err(|_| wrong(format!("`{name}` is not UTF-8")))?;
                    form.fields.insert(name, text.into());
                }
            }
        }
        Ok(form)
    }

    fn json(body: &[u8]) -> Result<Self, Refused> {
        let mut form = Self { fields: json_body::object(body)?, ..Self::default() };
        let images = form.fields.remove("images").or_else(|| form.fields.remove("image"));
        match images {
            None | Some(Value::Null) => {}
            Some(Value::Array(images)) => {
                for image in images {
                    form.images.push(image_of("image", &image)?);
                }
            }
            Some(image) => form.images.push(image_of("image", &image)?),
        }
        if let Some(mask) = form.fields.remove("mask").filter(|mask| !mask.is_null()) {
            form.mask = Some(image_of("mask", &mask)?);
        }
        Ok(form)
    }

    /// Refuses a form without an image.
    pub(super) fn require_image(&self) -> Result<(), Refused> {
        if self.images.is_empty() { Err(Refused::value("image", "missing", "an image file")) } else { Ok(()) }
    }

    /// Without a mask, the transparent part of the image is what is edited.
    pub(super) fn mask_of_image(&mut self, images: &DecodeOptions) -> Result<(), Refused> {
        if let (Some(image), None) = (self.images.first(), &self.mask) {
            let decoded = decode(image, "image", images).map_err(|error| Refused::unread(error).at("image"))?;
            self.mask = decoded.is_transparent().then(|| image.clone());
        }
        Ok(())
    }

    /// The image that a run begins with, and the reference images. A model that was made for it changes reference images as the prompt
    /// says, unless there is a mask, or `begins` asks for a run that begins with an image. For others one image is the begin, and several
    /// are references, if they take any.
    ///
    /// # Errors
    /// [`Refused`] for more images than the model takes.
    pub(super) fn split(self, model: &ModelFolder, begins: bool) -> Result<Split, Refused> {
        let takes_references = ModelFeature::References.is_of(model);
        let (mut images, edits) = (self.images.into_iter(), model.defaults().edits && takes_references);
        let begins = begins || self.mask.is_some() || (images.len() < 2 && !edits);
        let init = if begins { images.next() } else { None };
        if images.len() > 0 && !takes_references {
            let expected = format!("one: {} takes no reference images", model.name());
            return Err(Refused::value("image", "several images", expected));
        }
        Ok(Split { init, mask: self.mask, references: images.collect() })
    }
}

/// The images of a form: the initial image with its mask, and the reference images.
pub(super) struct Split {
    pub(super) init: Option<Vec<u8>>,
    pub(super) mask: Option<Vec<u8>>,
    pub(super) references: Vec<Vec<u8>>,
}
