//! Web sockets of clients: what is sent to whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Messages that wait for a client; one that reads fewer is cut.
const WAITING: usize = 256;
/// Previews are left out where so many messages wait.
const FEW_LEFT: usize = WAITING / 2;

/// A message.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    Text(Arc<str>),
    Binary(Bytes),
}

/// A client's end of the messages to it.
pub(crate) struct Socket {
    number: u64,
    owner: String,
    /// The id that the client has given itself, or a new one.
    pub(crate) sid: String,
    /// Whether the client reads previews that say of which node they are.
    pub(crate) reads_metadata: Arc<AtomicBool>,
    pub(crate) messages: mpsc::Receiver<Message>,
}

struct Open {
    number: u64,
    owner: String,
    sid: String,
    reads_metadata: Arc<AtomicBool>,
    /// Dropped when the client reads too little, or another one has its id.
    sender: mpsc::Sender<Message>,
}

/// All sockets.
#[derive(Default)]
pub(crate) struct Sockets(Mutex<(u64, Vec<Open>)>);

impl Message {
    /// An event with its data.
    pub(crate) fn event(kind: &str, data: &Value) -> Self {
        Self::Text(json!({ "type": kind, "data": data }).to_string().into())
    }
}

impl Sockets {
    /// Adds a socket. An older one of the same client and id gets nothing more, as in that program.
    pub(crate) fn open(&self, owner: &str, sid: String) -> Socket {
        let (sender, messages) = mpsc::channel(WAITING);
        let mut state = self.0.lock();
        state.0 += 1;
        let number = state.0;
        let reads_metadata = Arc::new(AtomicBool::new(false));
        state.1.retain(|open| open.owner != owner || open.sid != sid);
        let of_client = (owner.to_string(), sid.clone());
        state.1.push(Open { number, owner: of_client.0, sid, reads_metadata: reads_metadata.clone(), sender });
        Socket { number, owner: owner.into(), sid: of_client.1, reads_metadata, messages }
    }

    /// Removes a socket.
    pub(crate) fn close(&self, socket: &Socket) {
        self.0.lock().1.retain(|open| open.number != socket.number);
    }

    /// Whether a client with this id listens.
    pub(crate) fn has(&self, owner: &str, sid: &str) -> bool {
        self.0.lock().1.iter().any(|open| open.owner == owner && open.sid == sid)
    }

    /// Sends a message to the clients of `owner`: to the one with the id `sid`, or to all of them.
    pub(crate) fn send(&self, owner: &str, sid: Option<&str>, message: &Message) {
        self.0.lock().1.retain(|open| {
            let is_meant = open.owner == owner && sid.is_none_or(|sid| open.sid == sid);
            !is_meant || open.sender.try_send(message.clone()).is_ok()
        });
    }

    /// Sends a preview, in the form that the client reads. One that reads slowly does not get it.
    pub(crate) fn send_preview(&self, owner: &str, sid: &str, plain: &Message, with_metadata: &Message) {
        for open in self.0.lock().1.iter().filter(|open| open.owner == owner && open.sid == sid) {
            if open.sender.capacity() > FEW_LEFT {
                let message = if open.reads_metadata.load(Ordering::Relaxed) { with_metadata } else { plain };
                let _ = open.sender.try_send(message.clone()); // the next one comes soon
            }
        }
    }
}

impl Socket {
    /// The client that owns it.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_to_their_client_and_to_no_other() {
        let sockets = Sockets::default();
        let mut ann = sockets.open("ann", "1".into());
        let mut other = sockets.open("ann", "2".into());
        let mut bob = sockets.open("bob", "1".into());
        let text = |text: &str| Message::Text(text.into());
        sockets.send("ann", Some("1"), &text("a"));
        sockets.send("ann", None, &text("b"));
        let count = |socket: &mut Socket| std::iter::from_fn(|| socket.messages.try_recv().ok()).count();
        assert_eq!([count(&mut ann), count(&mut other), count(&mut bob)], [2, 1, 0]);
        // A newer socket takes the place of an older one.
        let _newer = sockets.open("ann", "1".into());
        assert!(ann.messages.is_closed() || ann.messages.try_recv().is_err());
        sockets.close(&ann);
        assert!(sockets.has("ann", "1"));
        // Who reads nothing is cut, and gets no previews before that.
        for _ in 0..WAITING {
            sockets.send_preview("bob", "1", &text("p"), &text("q"));
        }
        assert_eq!(count(&mut bob), WAITING - FEW_LEFT);
        (0..=WAITING).for_each(|_| sockets.send("bob", None, &text("c")));
        assert!(!sockets.has("bob", "1"));
    }
}
