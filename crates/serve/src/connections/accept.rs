//! Taking connections, until the end of the server.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::requests::Requests;
use super::stream::Timed;
use super::{CONNECTIONS, Connection, Connections, Entered, NoRoom};
use crate::app::App;
use crate::seldom::Seldom;

/// The longest time that the head of a request may take.
const LONGEST_HEAD: Duration = Duration::from_secs(15);
/// The time between two looks at jobs that are kept long enough.
const PRUNE_EVERY: Duration = Duration::from_secs(1);
/// The time that open connections have to take their answers when all jobs are done.
pub(crate) const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// The time between two tries where the system has no more files.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// The time between two lines in the log of one kind.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// The answer to a connection for which there is no room.
const NO_ROOM: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// Takes connections until the end.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    routes: Router,
    app: Arc<App>,
    mut end: watch::Receiver<bool>,
) {
    let connections = Connections::new(app.options.limits.connections_per_address);
    // Each connection has a receiver for as long as it is open.
    let (closing, _) = watch::channel(false);
    let (refusals, failures) = (Seldom::new(BETWEEN_LINES), Seldom::new(BETWEEN_LINES));
    let prune = app.clone();
    let pruning = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(PRUNE_EVERY);
        loop {
            ticks.tick().await;
            prune.jobs.prune(Instant::now());
        }
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = end.wait_for(|end| *end) => break,
        };
        match accepted {
            Ok((stream, address)) => match connections.enter(address.ip()) {
                Ok(entered) => {
                    tokio::spawn(run(stream, address, tls.clone(), routes.clone(), entered, closing.subscribe()));
                }
                Err(room) => {
                    if refusals.is_due() {
                        log_refusal(address, room, &connections);
                    }
                    if tls.is_none() {
                        let _ = stream.try_write(NO_ROOM); // the client may have gone
                    }
                }
            },
            // The system has no more files for now.
            Err(error) => {
                let closed = connections.close_one();
                if failures.is_due() {
                    let closing = if closed { "; connections without requests are closed" } else { "" };
                    tracing::warn!("new connections: {error}{closing}");
                }
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
    drop(listener);
    closing.send_replace(true);
    if timeout(LAST_ANSWERS, closing.closed()).await.is_err() {
        tracing::warn!("clients did not take their answers within {} s", LAST_ANSWERS.as_secs());
    }
    pruning.abort();
}

fn log_refusal(address: SocketAddr, room: NoRoom, connections: &Connections) {
    match room {
        NoRoom::OfAddress => tracing::warn!(
            "connections of {} are refused: it has {} with requests, the most of an address (`max_connections_per_address`)",
            address.ip(),
            connections.per_address
        ),
        NoRoom::OfServer => {
            tracing::warn!("connections are refused: there are {CONNECTIONS} with requests, the most of the server");
        }
    }
}

/// Runs a connection to its end.
async fn run(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    routes: Router,
    entered: Entered,
    closing: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("a connection: {error}"); // events may come later
    }
    let connection = entered.connection.clone();
    let requests = Requests { routes, address, entered: Arc::new(entered) };
    // A client that goes away, or speaks no HTTP, concerns no one else.
    let served = async {
        match tls {
            None => talk(stream, requests, &connection, closing).await,
            Some(tls) => match timeout(LONGEST_HEAD, tls.accept(stream)).await {
                Ok(Ok(stream)) => talk(stream, requests, &connection, closing).await,
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the handshake took too long".into()),
            },
        }
    };
    let ended = tokio::select! {
        ended = served => ended,
        () = connection.closing() => Err("closed for another one".into()),
    };
    if let Err(error) = ended {
        tracing::debug!(%address, "connection: {error}");
    }
}

/// Answers the requests of a connection.
async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    requests: Requests,
    connection: &Arc<Connection>,
    mut closing: watch::Receiver<bool>,
) -> Result<(), String> {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(LONGEST_HEAD);
    let stream = TokioIo::new(Timed::new(stream, connection.clone()));
    let mut served = pin!(builder.serve_connection(stream, requests).with_upgrades());
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = async { drop(closing.wait_for(|closing| *closing).await) } => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    ended.map_err(|error| error.to_string())
}
