//! The web socket by which clients hear of their prompts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Extension;
use axum::extract::ws::{self, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::info::server_features;
use crate::app::App;
use crate::comfy::{Message, Socket};
use crate::connections::Kept;
use crate::error::Refused;
use crate::http::{Client, Shared};

/// The most bytes of a message from a client.
const MOST_BYTES: usize = 64 << 10;
/// The time between two pings, by which a client that is gone is known.
const PING_EVERY: Duration = Duration::from_secs(20);
/// The longest time that a message may take to be written.
const LONGEST_WRITE: Duration = Duration::from_secs(30);
/// The longest id that a client may give itself.
const LONGEST_ID: usize = 128;

/// The query of the route.
#[derive(Deserialize)]
pub(super) struct Asked {
    #[serde(rename = "clientId")]
    client_id: Option<String>,
}

/// Opens a socket.
pub(super) async fn open(
    State(app): Shared,
    Extension(client): Extension<Client>,
    kept: Option<Extension<Kept>>,
    Query(asked): Query<Asked>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refused> {
    let id = asked.client_id.filter(|id| !id.is_empty());
    if id.as_ref().is_some_and(|id| id.len() > LONGEST_ID) {
        return Err(Refused::value("clientId", "longer", format!("at most {LONGEST_ID} bytes")));
    }
    let sid = id.unwrap_or_else(|| app.jobs.new_id());
    let upgrade = upgrade.max_message_size(MOST_BYTES).max_frame_size(MOST_BYTES);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let open = app.comfy.sockets.open(app.owner(&client), sid);
        talk(&app, socket, open).await;
        drop(kept); // the connection counts until here
    }))
}

/// Sends a client its messages until it goes.
async fn talk(app: &Arc<App>, mut stream: WebSocket, mut socket: Socket) {
    let status = json!({ "status": app.comfy.status(socket.owner()), "sid": socket.sid });
    let mut is_open = send(&mut stream, Message::event("status", &status)).await;
    let mut pings = tokio::time::interval(PING_EVERY);
    pings.reset();
    let (mut answered, mut is_first) = (true, true);
    while is_open {
        tokio::select! {
            message = socket.messages.recv() => match message {
                Some(message) => is_open = send(&mut stream, message).await,
                None => break, // it reads too little, or another one has its id
            },
            received = stream.recv() => match received {
                Some(Ok(ws::Message::Text(text))) => {
                    if std::mem::take(&mut is_first) && let Some(features) = features_of(&text) {
                        let reads = features.get("supports_preview_metadata") == Some(&Value::Bool(true));
                        socket.reads_metadata.store(reads, Ordering::Relaxed);
                        let own = server_features(app.options.limits.body);
                        is_open = send(&mut stream, Message::event("feature_flags", &own)).await;
                    }
                }
                Some(Ok(ws::Message::Pong(_))) => answered = true,
                Some(Ok(ws::Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            },
            _ = pings.tick() => {
                is_open = answered && write(&mut stream, ws::Message::Ping(Default::default())).await;
                answered = false;
            }
        }
    }
    app.comfy.sockets.close(&socket);
}

/// The features that a client's first message names.
fn features_of(text: &str) -> Option<Value> {
    let message: Value = serde_json::from_str(text).ok()?;
    (message.get("type")? == "feature_flags").then(|| message.get("data").cloned()).flatten()
}

async fn send(stream: &mut WebSocket, message: Message) -> bool {
    let message = match message {
        Message::Text(text) => ws::Message::Text((*text).into()),
        Message::Binary(bytes) => ws::Message::Binary(bytes),
    };
    write(stream, message).await
}

/// Writes a message; false if the client does not read it.
async fn write(stream: &mut WebSocket, message: ws::Message) -> bool {
    matches!(tokio::time::timeout(LONGEST_WRITE, stream.send(message)).await, Ok(Ok(())))
}
