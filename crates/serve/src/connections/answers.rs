//! The bytes of answers that clients have not read yet.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};

use super::peer::{CLIENT_NETWORK, Claim, Peer};
use crate::error::{Refused, RefusedKind};

/// Bytes of an answer that does not count: connections have buffers of this size anyway.
const SMALL: u64 = 16 << 10;

/// Answers a request, unless its address has not read too much of the answers before. A large answer counts until it is written.
pub(crate) async fn bounded(Extension(peer): Extension<Arc<Peer>>, request: Request, next: Next) -> Response {
    if peer.is_full() {
        return refused();
    }
    let turn = if request.method().is_safe() { peer.turn().await } else { None };
    let answer = CLIENT_NETWORK.scope(peer.network, next.run(request)).await;
    drop(turn);
    match answer.body().size_hint().exact() {
        Some(bytes) if bytes > SMALL => {
            let Some(claim) = peer.claim(usize::try_from(bytes).unwrap_or(usize::MAX)) else { return refused() };
            answer.map(|body| Body::new(Held { body, claim: Arc::new(claim) }))
        }
        _ => answer,
    }
}

fn refused() -> Response {
    let message = "this address has not read its answers to other requests; read them, and try again";
    let refused =
        Refused { retry_after: Some(std::time::Duration::from_secs(1)), ..Refused::new(RefusedKind::Unread, message) };
    refused.into_response()
}

/// The body of a large answer.
struct Held {
    body: Body,
    claim: Arc<Claim>,
}

/// Bytes on their way to the client.
struct HeldBytes {
    bytes: Bytes,
    _claim: Arc<Claim>,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let claim = self.claim.clone();
        Pin::new(&mut self.body).poll_frame(cx).map_ok(|frame| {
            // The claim goes with the last of the bytes, which may wait in the buffer of the connection.
            frame.map_data(|bytes| Bytes::from_owner(HeldBytes { bytes, _claim: claim }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use axum::Router;
    use axum::http::StatusCode;
    use axum::middleware::from_fn;
    use axum::routing::get;

    use super::*;

    const LARGE: usize = 1 << 20;

    #[test]
    fn an_answer_counts_until_its_last_byte_is_gone() {
        let routes = Router::new()
            .route("/large", get(async || vec![1; LARGE]))
            .route("/small", get(async || "ok"))
            .layer(from_fn(bounded));
        let peer = Peer::new([192, 0, 2, 1].into(), LARGE);
        let ask = async |path: &str| {
            let mut request = Request::get(path).body(Body::empty()).unwrap();
            request.extensions_mut().insert(peer.clone());
            tower::Service::call(&mut routes.clone(), request).await.unwrap()
        };
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
            let small = [ask("/small").await, ask("/small").await];
            let first = ask("/large").await;
            assert_eq!(first.body().size_hint().exact(), Some(LARGE as u64));
            assert_eq!(ask("/large").await.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(ask("/small").await.status(), StatusCode::TOO_MANY_REQUESTS, "before any work");
            let mut body = first.into_body();
            let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap().unwrap();
            let bytes = frame.into_data().unwrap();
            assert_eq!(bytes.len(), LARGE);
            drop(body);
            assert_eq!(ask("/large").await.status(), StatusCode::TOO_MANY_REQUESTS, "a buffer has it");
            drop(bytes);
            assert_eq!(ask("/large").await.status(), StatusCode::OK);
            drop(small);
        });
    }
}
