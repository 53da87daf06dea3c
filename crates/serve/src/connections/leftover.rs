//! The rest of a request's body, which its route has not read.
//!
//! If bytes of a body have not come when its request is answered, hyper closes the connection after the answer, and the client's
//! next request on it fails. So the rest of a short body is read first, and the answer to a longer one has `Connection: close`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::StreamExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::timeout;

/// The most bytes that are read for a request that is answered.
const MOST: usize = 64 << 10;
/// The longest time that these bytes may take.
const LONGEST: Duration = Duration::from_secs(3);

/// The body of a request while a route has it. It goes to `leftover` if the route drops it before its end.
struct Lent {
    body: Option<Body>,
    leftover: Leftover,
}

/// The rest of a body.
#[derive(Clone)]
pub(super) struct Leftover {
    body: Arc<Mutex<Option<Body>>>,
    /// The client waits for `100 Continue`, and sends its body only if it is read.
    on_demand: bool,
}

impl Leftover {
    /// The request for a route, and what the route will leave of its body.
    pub(super) fn of(request: Request) -> (Request, Self) {
        let leftover = Self { body: Arc::default(), on_demand: request.headers().contains_key(header::EXPECT) };
        if request.body().is_end_stream() {
            return (request, leftover);
        }
        let lent = |body| Body::new(Lent { body: Some(body), leftover: leftover.clone() });
        (request.map(lent), leftover)
    }

    /// The answer, when the connection can take the next request or the answer says that it ends.
    pub(super) async fn finish(self, mut answer: Response) -> Response {
        let rest = self.body.lock().take();
        if let Some(rest) = rest
            && (self.on_demand || !timeout(LONGEST, is_read(rest)).await.unwrap_or(false))
        {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

/// Reads a body to its end, if it is short. False if it is not.
async fn is_read(body: Body) -> bool {
    if body.size_hint().lower() > MOST as u64 {
        return false;
    }
    let (mut left, mut parts) = (MOST, body.into_data_stream());
    while let Some(part) = parts.next().await {
        match part.ok().and_then(|part| left.checked_sub(part.len())) {
            Some(less) => left = less,
            None => return false,
        }
    }
    true
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.leftover.body.lock() = self.body.take();
    }
}
