//! The requests of one connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request};
use axum::http::header;
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;

use super::leftover::Leftover;
use super::{Connection, Entered};

/// Hands requests to the routes, with the address and the [`super::Peer`] that they come from.
pub(super) struct Requests {
    pub(super) routes: Router,
    pub(super) address: SocketAddr,
    pub(super) entered: Arc<Entered>,
}

/// Keeps a connection in the list, and busy, when another protocol takes it over.
#[derive(Clone)]
pub(crate) struct Kept {
    _busy: Arc<Busy>,
    _entered: Arc<Entered>,
}

/// A request that is not answered.
struct Busy(Arc<Connection>);

impl Busy {
    fn new(connection: &Arc<Connection>) -> Self {
        connection.begin();
        Self(connection.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Service<Request<Incoming>> for Requests {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let connection = &self.entered.connection;
        let busy = Arc::new(Busy::new(connection));
        let mut request = request.map(Body::new);
        let request_upgrades = request.headers().contains_key(header::UPGRADE);
        let extensions = request.extensions_mut();
        extensions.insert(ConnectInfo(self.address));
        extensions.insert(connection.peer.clone());
        if request_upgrades {
            extensions.insert(Kept { _busy: busy.clone(), _entered: self.entered.clone() });
        }
        let (request, leftover) = Leftover::of(request);
        let answer = tower::Service::call(&mut self.routes.clone(), request);
        Box::pin(async move {
            let answer = leftover.finish(answer.await?).await;
            Ok(answer.map(|body| Body::new(Answered { body, _busy: busy })))
        })
    }
}

/// The body of an answer: its connection is busy until it ends.
struct Answered {
    body: Body,
    _busy: Arc<Busy>,
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
