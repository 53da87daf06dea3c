//! Graphs of ComfyUI's nodes as jobs: checked, planned, submitted and followed. The routes are in `http/comfy`.

mod catalog;
mod check;
mod files;
mod follow;
mod lists;
mod nodes;
mod pixels;
mod prompts;
mod refusal;
mod sockets;
mod submit;

pub(crate) use catalog::{all as all_classes, class};
pub(crate) use files::{FileName, Files, Kind as FileKind};
pub(crate) use lists::{List, Lists};
pub(crate) use prompts::Prompts;
pub(crate) use refusal::Refusal;
pub(crate) use sockets::{Message, Socket, Sockets};
pub(crate) use submit::{Asked, submit};

use serde_json::{Value, json};

/// The memory of ComfyUI's clients.
#[derive(Default)]
pub(crate) struct Comfy {
    pub(crate) files: Files,
    pub(crate) prompts: Prompts,
    pub(crate) sockets: Sockets,
}

impl Comfy {
    /// The name of an image that a client may load, if it has one of this name.
    pub(crate) fn find(&self, owner: &str, name: &str) -> Option<FileName> {
        FileName::parse(name, FileKind::Input).filter(|name| self.files.has(owner, name))
    }

    /// The length of a client's queue, as clients read it.
    pub(crate) fn status(&self, owner: &str) -> Value {
        json!({ "exec_info": { "queue_remaining": self.prompts.remaining(owner) } })
    }

    /// Sends the length of its queue to a client's sockets.
    pub(crate) fn send_status(&self, owner: &str) {
        let message = Message::event("status", &json!({ "status": self.status(owner) }));
        self.sockets.send(owner, None, &message);
    }
}
