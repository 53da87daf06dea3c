//! Bodies, within limits of length and time.

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::Bytes;

use crate::app::App;
use crate::error::{Refused, RefusedKind};

/// The longest time that a body may take.
const LONGEST: Duration = Duration::from_secs(60);

/// The bytes of a body.
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
        match tokio::time::timeout(LONGEST, to_bytes(request.into_body(), most)).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(error)) if is_limit(&error) => Err(too_large()),
            Ok(Err(error)) => Err(Refused::invalid(format!("the body ended early: {error}"))),
            Err(_) => {
                let message = format!("the body did not come within {} s", LONGEST.as_secs());
                Err(Refused::new(RefusedKind::TooSlow, message))
            }
        }
    }
}

/// Whether the limit of the length is the reason.
fn is_limit(error: &axum::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.to_string().contains("length limit exceeded") {
            return true;
        }
        cause = error.source();
    }
    false
}
