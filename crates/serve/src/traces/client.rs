//! The HTTP client of the exporter.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;

/// How long an answer of the collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of an answer that are read.
const MOST_BYTES: u64 = 64 << 10;

/// Sends requests one after the other. It blocks: the exporter has a thread of its own.
#[derive(Debug)]
pub(super) struct Client(Agent);

impl Client {
    pub(super) fn new() -> Self {
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).max_redirects(0);
        Self(config.build().into())
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let mut answer = self.0.run(Request::from_parts(parts, &body[..]))?;
        let bytes = answer.body_mut().with_config().limit(MOST_BYTES).read_to_vec()?;
        let mut response = Response::new(Bytes::from(bytes));
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        Ok(response)
    }
}

impl HttpClient for Client {
    /// Sends a request, in the form that `async_trait` gives the function.
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move { self.send(request) })
    }
}
