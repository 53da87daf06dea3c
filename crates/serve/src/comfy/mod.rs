//! Graphs of ComfyUI's nodes as jobs: checked, planned, submitted and followed. The routes are in `http/comfy`.

mod catalog;
mod check;
mod files;
mod follow;
mod image_prompts;
mod image_sizes;
mod lists;
mod nodes;
mod pixels;
mod prompt_jobs;
mod prompts;
mod refusal;
mod sockets;
mod stitch;
mod submit;
mod user_files;

pub(crate) use catalog::{all as all_classes, class};
pub(crate) use files::{FileName, Files, Kind as FileKind};
pub(crate) use lists::{List, Lists};
pub(crate) use prompt_jobs::{JobFilter, PromptJobs};
pub(crate) use prompts::Prompts;
pub(crate) use refusal::Refusal;
pub(crate) use sockets::{Message, Socket, Sockets};
pub(crate) use submit::{Asked, submit};
pub(crate) use user_files::{UserFiles, UserPath, failed as user_files_failed, view as file_view};

use std::path::PathBuf;

use serde_json::{Value, json};

/// The memory of ComfyUI's clients.
pub(crate) struct Comfy {
    pub(crate) files: Files,
    pub(crate) prompts: Prompts,
    pub(crate) sockets: Sockets,
    pub(crate) user_files: UserFiles,
}

impl Comfy {
    /// Empty, with the files of users below a folder, or in one that goes with the server.
    pub(crate) fn new(user_folder: Option<PathBuf>) -> Self {
        let user_files = UserFiles::new(user_folder);
        Self { files: Files::default(), prompts: Prompts::default(), sockets: Sockets::default(), user_files }
    }

    /// The name of an image that a client may load, if it has one of this name.
    pub(crate) fn find(&self, owner: &str, name: &str) -> Option<FileName> {
        FileName::parse(name, FileKind::Input).filter(|name| self.files.has(owner, name))
    }

    /// Ends prompts that wait or run. Returns the ids of those that did.
    pub(crate) fn cancel(&self, owner: &str, ids: &[String]) -> Vec<String> {
        let (waiting, mut running) = (self.prompts.remove(owner, Some(ids)), Vec::new());
        for id in ids {
            if let Some(prompt) = self.prompts.running(owner, Some(id)) {
                prompt.cancel();
                running.push(id.clone());
            }
        }
        self.send_status(owner);
        waiting.into_iter().chain(running).collect()
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
