//! Bodies, within limits of length and time.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::Bytes;
use futures_util::StreamExt;

use crate::app::App;
use crate::error::{Refused, RefusedKind};

/// The longest time that a body may take.
const LONGEST: Duration = Duration::from_secs(60);

/// The bytes of a body. They count as a part of all bodies' until they are dropped.
pub(crate) struct Payload(pub(crate) Bytes);

impl FromRequest<Arc<App>> for Payload {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Refused> {
        let most = app.options.limits.body;
        let too_large = || {
            let message = format!("the body is larger than {most} bytes, the limit of this server (`max_body`)");
            Refused::new(RefusedKind::TooLarge, message)
        };
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: u64| length > most as u64) {
            return Err(too_large());
        }
        let whole = async {
            let (mut body, mut stream) = (app.bodies.begin(), request.into_body().into_data_stream());
            while let Some(part) = stream.next().await {
                let part = part.map_err(|error| Refused::invalid(format!("the body ended early: {error}")))?;
                if body.len() + part.len() > most {
                    return Err(too_large());
                }
                body.push(&part)?;
            }
            Ok(Self(body.end()))
        };
        match tokio::time::timeout(LONGEST, whole).await {
            Ok(body) => body,
            Err(_) => {
                let message = format!("the body did not come within {} s", LONGEST.as_secs());
                Err(Refused::new(RefusedKind::TooSlow, message))
            }
        }
    }
}
