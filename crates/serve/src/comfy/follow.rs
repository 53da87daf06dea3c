//! Follows the jobs of a prompt: messages to its client, and the images when they are there.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use kiln_engine::{UpscalerChoice, upscaled_texts};
use kiln_media::{AlphaRule, Rgb8Image, decode, write_png};
use kiln_request::comfy::{ImageFilter, Pixels, Stages};
use serde_json::{Map, Value, json};

use super::files::{FileName, Kind};
use super::pixels::{Reader, network_size};
use super::prompts::{OutputOf, Prompt};
use super::sockets::Message;
use crate::app::App;
use crate::error::{Refused, RefusedKind};
use crate::http::enlarge_by_network;
use crate::jobs::{Entry, EventView, Image, JobView, PreviewView, Seen, StepView};

/// Kinds of binary messages and of images in them (protocol.py and `send_image` of server.py).
const PREVIEW: u32 = 1;
const PREVIEW_WITH_METADATA: u32 = 4;
const JPEG: u32 = 1;
const PNG: u32 = 2;

/// Follows a prompt to its end.
pub(super) async fn follow(app: Arc<App>, prompt: Arc<Prompt>, entries: Vec<Arc<Entry>>) {
    let mut reporter = Reporter { app, prompt, node: String::new(), reached: 0, sent: 0 };
    let result = reporter.all(&entries).await;
    // The history has the prompt before its client hears of the end.
    reporter.end(result);
    // Jobs of a prompt that has failed are of no use.
    for entry in entries.iter().filter(|entry| !entry.is_finished()) {
        entry.control.cancel();
    }
}

/// Why a prompt has ended early.
enum Stop {
    Canceled,
    Failed(Refused),
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        if refused.kind == RefusedKind::Canceled { Self::Canceled } else { Self::Failed(refused) }
    }
}

/// Sends a client messages about its prompt.
struct Reporter {
    app: Arc<App>,
    prompt: Arc<Prompt>,
    /// The node that runs.
    node: String,
    /// How many nodes of the run were named, and the last step that was sent.
    reached: usize,
    sent: usize,
}

/// The nodes of a run in the order of its stages.
fn order_of(stages: &Stages) -> Vec<String> {
    let texts = stages.texts.iter().chain(&stages.start).chain(&stages.samplers).chain([&stages.decode]);
    [&stages.load].into_iter().chain(texts).cloned().collect()
}

impl Reporter {
    async fn all(&mut self, entries: &[Arc<Entry>]) -> Result<(), Stop> {
        let prompt = self.prompt.clone();
        for (i, (entry, run)) in entries.iter().zip(&prompt.runs).enumerate() {
            let count = self.run(entry, &run.stages).await?;
            self.prompt.add_warnings(entry.warnings());
            for output in prompt.outputs.iter().filter(|output| output.run == i) {
                self.save(entry, count, output).await?;
            }
        }
        Ok(())
    }

    /// Follows a job to its end. Returns the number of its images.
    async fn run(&mut self, entry: &Arc<Entry>, stages: &Stages) -> Result<usize, Stop> {
        let mut seen = Seen::default();
        (self.reached, self.sent) = (0, 0);
        while let Some(news) = entry.news(&mut seen).await {
            for news in news {
                match news {
                    EventView::Step(step) if step.stage != "queued" => self.step(&step, stages),
                    EventView::Preview(preview) => self.preview(&preview),
                    EventView::Done(job) => self.done(&job, stages),
                    _ => {}
                }
            }
        }
        match entry.finished().await {
            Ok(images) if images.is_empty() => Err(Stop::Canceled),
            Ok(images) => Ok(images.len()),
            Err(refused) => Err(refused.into()),
        }
    }

    /// A job may end so soon that no step of it was seen.
    fn done(&mut self, job: &JobView, stages: &Stages) {
        if job.started.is_none() {
            return;
        }
        self.begin();
        if !job.images.is_empty() {
            let order = order_of(stages);
            self.reach(&order, order.len());
            self.progress((job.step, job.steps), stages);
        }
    }

    fn begin(&mut self) {
        if self.prompt.start() {
            let id = self.prompt.id.clone();
            self.send_noted("execution_start", json!({ "prompt_id": id }));
            self.send_noted("execution_cached", json!({ "nodes": [], "prompt_id": id }));
            self.app.comfy.send_status(&self.prompt.owner);
        }
    }

    fn step(&mut self, step: &StepView, stages: &Stages) {
        self.begin();
        let order = order_of(stages);
        let denoised = stages.texts.len() + 1 + usize::from(stages.start.is_some());
        let last = match step.stage {
            "load" => 0,
            "encode" => stages.texts.len(),
            "encode-image" => denoised - 1,
            // The steps of both passes are counted together, the second from its half on.
            "denoise" => {
                denoised + (step.step * stages.samplers.len() / step.steps.max(1)).min(stages.samplers.len() - 1)
            }
            "decode" => order.len() - 1,
            _ => return,
        };
        self.reach(&order, last);
        if ["denoise", "decode"].contains(&step.stage) {
            self.progress((step.step, step.steps), stages);
        }
    }

    /// Names the nodes up to number `last` that were not named: stages may end before anybody looks.
    fn reach(&mut self, order: &[String], last: usize) {
        while self.reached <= last
            && let Some(node) = order.get(self.reached)
        {
            self.reached += 1;
            self.executing(node);
        }
    }

    fn progress(&mut self, (step, steps): (usize, usize), stages: &Stages) {
        if step == 0 || self.sent == step {
            return;
        }
        self.sent = step;
        let last = stages.samplers.len().saturating_sub(1);
        let number = (step.saturating_sub(1) * stages.samplers.len() / steps.max(1)).min(last);
        let (id, node) = (self.prompt.id.clone(), stages.samplers.get(number).cloned().unwrap_or_default());
        self.send("progress", json!({ "value": step, "max": steps, "prompt_id": id, "node": node }));
        let state = json!({
            "value": step, "max": steps, "state": "running", "node_id": node, "prompt_id": id, "display_node_id": node,
            "parent_node_id": null, "real_node_id": node,
        });
        self.send("progress_state", json!({ "prompt_id": id, "nodes": Map::from_iter([(node, state)]) }));
    }

    fn executing(&mut self, node: &str) {
        self.node = node.into();
        let data = json!({ "node": node, "display_node": node, "prompt_id": self.prompt.id });
        self.send("executing", data);
    }

    fn preview(&self, preview: &PreviewView) {
        let Some(sid) = &self.prompt.sid else { return };
        if !self.app.comfy.sockets.has(&self.prompt.owner, sid) {
            return;
        }
        let Ok(file) = STANDARD.decode(&preview.data) else { return };
        let metadata = json!({
            "node_id": self.node, "prompt_id": self.prompt.id, "display_node_id": self.node, "parent_node_id": null,
            "real_node_id": self.node, "image_type": preview.media_type,
        });
        let metadata = metadata.to_string();
        let format = if preview.media_type == "image/jpeg" { JPEG } else { PNG };
        let plain = [&PREVIEW.to_be_bytes()[..], &format.to_be_bytes(), &file].concat();
        let length = u32::try_from(metadata.len()).unwrap_or_default();
        let with =
            [&PREVIEW_WITH_METADATA.to_be_bytes()[..], &length.to_be_bytes(), metadata.as_bytes(), &file].concat();
        let [plain, with] = [plain, with].map(|bytes| Message::Binary(Bytes::from(bytes)));
        self.app.comfy.sockets.send_preview(&self.prompt.owner, sid, &plain, &with);
    }

    /// Saves the images of a job for a node.
    async fn save(&mut self, entry: &Arc<Entry>, count: usize, output: &OutputOf) -> Result<(), Stop> {
        let mut indices = Vec::with_capacity(count);
        for number in 0..count {
            indices.push(self.changed(entry, number, output).await?);
        }
        self.executing(&output.node);
        let (kind, prefix) = match &output.prefix {
            Some(prefix) => (Kind::Output, prefix.as_str()),
            None => (Kind::Temp, "ComfyUI_temp"),
        };
        let ending = crate::image_format::ImageFormat::Png.ending();
        let files = &self.app.comfy.files;
        let image = |index| {
            let FileName { subfolder, name, .. } = files.name(&self.prompt.owner, kind, prefix, (entry, index), ending);
            json!({ "filename": name, "subfolder": subfolder, "type": kind.id() })
        };
        let images = json!({ "images": indices.into_iter().map(image).collect::<Vec<_>>() });
        self.prompt.set_output(&output.node, images.clone());
        let (node, id) = (&output.node, &self.prompt.id);
        self.send("executed", json!({ "node": node, "display_node": node, "output": images, "prompt_id": id }));
        Ok(())
    }

    /// The number of the job's image `number` after the changes of its pixels. A changed image is one more of the job.
    async fn changed(&mut self, entry: &Arc<Entry>, number: usize, output: &OutputOf) -> Result<usize, Stop> {
        let gone = || Stop::Failed(Refused::new(RefusedKind::Internal, "the image is not kept any more"));
        if output.changes.is_empty() {
            return Ok(number);
        }
        let first = entry.image(number).ok_or_else(gone)?;
        let (app, file) = (self.app.clone(), first.file.clone());
        let open = move || {
            let decoded = decode(&file, "an image", &app.options.limits.input_images());
            Ok(decoded.map_err(Refused::unread)?.into_rgb(AlphaRule::Drop))
        };
        let mut image = self.app.intake.run_images(open).await?;
        let (before, mut last) = (image.width(), String::new());
        for change in &output.changes {
            if number == 0 {
                self.executing(&change.node);
            }
            (image, last) = self.change(image, &change.how).await?;
        }
        let (width, height) = image.size();
        let file = first.file.clone();
        let encoded = move || {
            let texts = upscaled_texts(&file, image.width() as f64 / before.max(1) as f64, &last);
            let texts: Vec<(&str, &str)> = texts.iter().map(|(key, text)| (&**key, &**text)).collect();
            let mut file = Vec::new();
            let written = write_png(&mut file, &image, &texts);
            written.map_err(|error| Refused::new(RefusedKind::Internal, error.to_string()))?;
            Ok(Bytes::from(file))
        };
        let file = self.app.intake.run_images(encoded).await?;
        Ok(entry.add_image(Image { width, height, file, ..(*first).clone() }))
    }

    /// An image after a change, and the name of what changed it.
    async fn change(&self, image: Rgb8Image, how: &Pixels) -> Result<(Rgb8Image, String), Refused> {
        let size = image.size();
        match how {
            Pixels::Network(name) => {
                let (app, named) = (self.app.clone(), name.clone());
                let open = move || network_size(&app, &named, size);
                let (choice, target): (UpscalerChoice, _) = self.app.intake.run(0, open).await?;
                Ok((enlarge_by_network(&self.app, choice, image, target).await?, name.name.clone()))
            }
            how => {
                let (app, how, owner) = (self.app.clone(), how.clone(), self.prompt.owner.clone());
                let name = if how.filter() == ImageFilter::Lanczos { "lanczos" } else { "nearest" };
                let change = move || Reader { app: &app, owner: &owner }.changed(image, &how);
                Ok((self.app.intake.run_images(change).await?, name.into()))
            }
        }
    }

    fn end(&mut self, result: Result<(), Stop>) {
        let (prompt, id) = (self.prompt.clone(), self.prompt.id.clone());
        let of_node = || {
            let class = prompt.class(&self.node);
            json!({ "prompt_id": id, "node_id": self.node, "node_type": class, "executed": prompt.executed() })
        };
        let (event, data) = match &result {
            Ok(()) => ("execution_success", json!({ "prompt_id": id })),
            Err(Stop::Canceled) => ("execution_interrupted", of_node()),
            Err(Stop::Failed(refused)) => {
                let mut data = of_node();
                data["exception_message"] = refused.message.clone().into();
                data["exception_type"] = refused.kind.status().1.into();
                data["traceback"] = json!([]);
                data["current_inputs"] = json!({});
                data["current_outputs"] = json!([]);
                ("execution_error", data)
            }
        };
        let data = prompt.note(event, data);
        prompt.end(result.is_ok());
        // A prompt that was taken out of the queue is not heard of.
        if !prompt.is_removed() {
            self.send(event, data);
            self.send("executing", json!({ "node": null, "prompt_id": id }));
        }
        self.app.comfy.send_status(&prompt.owner);
    }

    fn send_noted(&self, event: &str, data: Value) {
        let data = self.prompt.note(event, data);
        self.send(event, data);
    }

    fn send(&self, event: &str, data: Value) {
        if let Some(sid) = &self.prompt.sid {
            self.app.comfy.sockets.send(&self.prompt.owner, Some(sid), &Message::event(event, &data));
        }
    }
}
