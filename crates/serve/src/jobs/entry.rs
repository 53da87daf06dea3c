//! One job and its state, which events and answers are made from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kiln_engine::Stage;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::watch;
use utoipa::ToSchema;

use super::short;
use super::views::{EventView, ImageView, JobView, PreviewView, StepView};
use crate::error::{Refused, RefusedKind};
use crate::scheduler::{Control, End};

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// It waits.
    Queued,
    /// It runs.
    Running,
    /// Its images are there.
    Done,
    /// It was canceled.
    Canceled,
    /// It cannot be made.
    Failed,
}

/// A job as it is submitted.
pub(crate) struct NewJob {
    pub(crate) id: String,
    /// Who sent it.
    pub(crate) client: String,
    /// The model's name.
    pub(crate) model: String,
    /// The request as it came.
    pub(crate) request: Map<String, Value>,
    pub(crate) warnings: Vec<String>,
    /// How many images there will be.
    pub(crate) total_images: usize,
    /// How many batches of images.
    pub(crate) batches: usize,
    /// Width and height of the images in pixels.
    pub(crate) size: (usize, usize),
    pub(crate) control: Arc<Control>,
}

/// A job.
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) client: String,
    pub(crate) model: String,
    pub(crate) request: Map<String, Value>,
    pub(crate) total_images: usize,
    pub(crate) batches: usize,
    /// Width and height of the images in pixels.
    pub(crate) size: (usize, usize),
    pub(crate) control: Arc<Control>,
    /// About the bytes of the entry without what changes.
    request_bytes: usize,
    created: (SystemTime, Instant),
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

/// The mutable part of a job.
struct State {
    status: Status,
    position: usize,
    started: Option<(SystemTime, Instant)>,
    finished: Option<(SystemTime, Instant)>,
    stage: Option<Stage>,
    step: usize,
    steps: usize,
    /// By their indices.
    images: BTreeMap<usize, Arc<Image>>,
    /// In the order in which they were done.
    order: Vec<usize>,
    /// Images that are being encoded.
    pending: usize,
    /// The end of the job when no image is pending.
    end: Option<End>,
    warnings: Vec<String>,
    /// By the indices of their images, each with the number of the preview among all of the job. There is one of an image
    /// that is not done, or, where the control keeps them, all.
    previews: BTreeMap<usize, Vec<(usize, Arc<PreviewView>)>>,
    previewed: usize,
    /// Whether every preview stays, and not only the newest.
    keeps_previews: bool,
    /// Counts changes of step and stage.
    moves: usize,
    /// Whether a client comes for the images, and those that it has.
    is_awaited: bool,
    read: BTreeSet<usize>,
}

/// An image file in memory.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) index: usize,
    pub(crate) seed: u64,
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// The file.
    pub(crate) file: Bytes,
    /// Its media type.
    pub(crate) media_type: &'static str,
    /// AUTOMATIC1111's settings.
    pub(crate) parameters: String,
    /// Kiln's settings, JSON.
    pub(crate) settings: String,
}

/// The events that a reader has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    position: Option<usize>,
    moves: usize,
    images: usize,
    warnings: usize,
    previewed: usize,
    done: bool,
}

impl Entry {
    pub(crate) fn new(job: NewJob) -> Arc<Self> {
        let NewJob { id, client, model, request, warnings, total_images, batches, size, control } = job;
        let state = State {
            status: Status::Queued,
            position: 0,
            started: None,
            finished: None,
            stage: None,
            step: 0,
            steps: 0,
            images: BTreeMap::new(),
            order: Vec::new(),
            pending: 0,
            end: None,
            warnings,
            previews: BTreeMap::new(),
            keeps_previews: control.keeps_previews(),
            previewed: 0,
            moves: 0,
            is_awaited: false,
            read: BTreeSet::new(),
        };
        let created = (SystemTime::now(), Instant::now());
        let (changed, _) = watch::channel(());
        let request_bytes = size_of::<Self>() + size_of::<State>() + short::bytes(&request);
        Arc::new(Self {
            request_bytes,
            id,
            client,
            model,
            request,
            total_images,
            size,
            batches,
            control,
            created,
            state: Mutex::new(state),
            changed,
        })
    }

    /// Changes the state, and wakes those who wait.
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.send_replace(());
    }

    pub(super) fn set_position(&self, position: usize) {
        self.change(|state| state.position = position);
    }

    pub(super) fn start(&self) {
        self.change(|state| {
            state.status = Status::Running;
            state.started.get_or_insert((SystemTime::now(), Instant::now()));
        });
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        self.change(|state| {
            state.moves += usize::from(state.stage != Some(stage));
            state.stage = Some(stage);
        });
    }

    pub(super) fn set_step(&self, step: usize, steps: usize) {
        self.change(|state| {
            (state.step, state.steps) = (step, steps);
            state.moves += 1;
        });
    }

    /// Says whether it is the first preview of the job.
    pub(super) fn set_preview(&self, preview: PreviewView) -> bool {
        let mut first = false;
        self.change(|state| {
            state.previewed += 1;
            first = state.previewed == 1;
            let of_image = state.previews.entry(preview.index).or_default();
            if !state.keeps_previews {
                of_image.clear();
            }
            of_image.push((state.previewed, Arc::new(preview)));
        });
        first
    }

    pub(super) fn warn(&self, warning: String) {
        self.change(|state| state.warnings.push(warning));
    }

    /// An image is about to be encoded.
    pub(super) fn expect_image(&self) {
        self.state.lock().pending += 1;
    }

    /// An image was encoded, or was not.
    pub(super) fn set_image(&self, image: Result<Image, String>) {
        self.change(|state| {
            state.pending -= 1;
            match image {
                Ok(image) => {
                    if !state.keeps_previews {
                        state.previews.remove(&image.index);
                    }
                    state.order.push(image.index);
                    state.images.insert(image.index, Arc::new(image));
                }
                Err(message) => state.end = Some(End::Failed { message, is_usage: false }),
            }
            state.settle();
        });
    }

    /// Adds an image that was made of the job's others, and returns its number.
    pub(crate) fn add_image(&self, image: Image) -> usize {
        let mut index = 0;
        self.change(|state| {
            index = state.images.keys().last().map_or(0, |last| last + 1).max(self.total_images);
            state.images.insert(index, Arc::new(Image { index, ..image }));
        });
        index
    }

    /// No more news come.
    pub(super) fn end(&self, end: End) {
        self.change(|state| {
            state.end.get_or_insert(end);
            state.settle();
        });
    }

    /// When the job came, in seconds since 1970.
    pub(crate) fn created(&self) -> u64 {
        self.created.0.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// The time since the job came.
    pub(super) fn age(&self) -> Duration {
        self.created.1.elapsed()
    }

    /// The time since the job was finished.
    pub(super) fn finished_for(&self, now: Instant) -> Option<Duration> {
        self.state.lock().finished.map(|(_, then)| now.saturating_duration_since(then))
    }

    /// About the bytes that it takes in memory, with its request and its images.
    pub(super) fn bytes(&self) -> usize {
        let state = self.state.lock();
        let images = state.images.values();
        let images: usize = images.map(|image| image.file.len() + image.parameters.len() + image.settings.len()).sum();
        let warnings: usize = state.warnings.iter().map(String::len).sum();
        let previews: usize = state.previews.values().flatten().map(|(_, preview)| preview.data.len()).sum();
        self.request_bytes + images + warnings + previews
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.state.lock().finished.is_some()
    }

    /// Whether no image of it has begun, and it is not finished.
    pub(super) fn is_waiting(&self) -> bool {
        self.state.lock().status == Status::Queued
    }

    pub(crate) fn image(&self, index: usize) -> Option<Arc<Image>> {
        let mut state = self.state.lock();
        let image = state.images.get(&index).cloned()?;
        state.read.insert(index);
        Some(image)
    }

    /// A client will come for the images by their numbers.
    pub(crate) fn await_reader(&self) {
        self.state.lock().is_awaited = true;
    }

    /// Whether a client has not come for an image yet.
    pub(super) fn is_unread(&self) -> bool {
        let state = self.state.lock();
        state.is_awaited && state.images.keys().any(|index| !state.read.contains(index))
    }

    /// A sentence for each part of the request that was not done.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.state.lock().warnings.clone()
    }

    /// The last preview of the image with the lowest index that is not done.
    pub(crate) fn preview(&self) -> Option<Arc<PreviewView>> {
        let state = self.state.lock();
        let mut waiting = state.previews.iter().filter(|(index, _)| !state.images.contains_key(*index));
        waiting.next().and_then(|(_, of_image)| of_image.last()).map(|(_, preview)| preview.clone())
    }

    /// Calls of the denoiser that are done, all of them, and an estimate of the time that is left.
    pub(crate) fn progress(&self) -> (usize, usize, Option<Duration>) {
        let state = self.state.lock();
        (state.step, state.steps, state.eta())
    }

    /// Waits for the end. Images of a job that was canceled or failed are not returned.
    ///
    /// # Errors
    /// [`Refused`] where the job failed or was canceled.
    pub(crate) async fn finished(&self) -> Result<Vec<Arc<Image>>, Refused> {
        let mut changed = self.changed.subscribe();
        // The sender lives as long as this entry.
        let _ = changed.wait_for(|()| self.is_finished()).await;
        let state = self.state.lock();
        match (&state.end, state.failure()) {
            (_, Some(refused)) => Err(refused),
            (Some(End::Canceled), _) => Err(Refused::new(RefusedKind::Canceled, "the job was canceled")),
            _ => Ok(state.images.values().cloned().collect()),
        }
    }

    /// The news since `seen`; waits for some. `None` after the last one.
    pub(crate) async fn news(&self, seen: &mut Seen) -> Option<Vec<EventView>> {
        let mut changed = self.changed.subscribe();
        loop {
            if seen.done {
                return None;
            }
            let news = self.since(seen);
            if !news.is_empty() {
                return Some(news);
            }
            changed.changed().await.ok()?;
        }
    }

    fn since(&self, seen: &mut Seen) -> Vec<EventView> {
        let state = self.state.lock();
        let mut news = Vec::new();
        if state.status == Status::Queued && seen.position != Some(state.position) {
            seen.position = Some(state.position);
            news.push(EventView::Queued(state.position));
        }
        news.extend(state.warnings[seen.warnings..].iter().cloned().map(EventView::Warning));
        seen.warnings = state.warnings.len();
        if state.moves != seen.moves {
            seen.moves = state.moves;
            news.push(EventView::Step(state.step_view()));
        }
        let fresh = state.previews.values().flatten().filter(|(number, _)| *number > seen.previewed);
        news.extend(fresh.map(|(_, preview)| EventView::Preview(preview.clone())));
        seen.previewed = state.previewed;
        let order = state.order[seen.images..].iter().filter_map(|index| state.images.get(index));
        news.extend(order.map(|image| EventView::Image(ImageView::of(&self.id, image))));
        seen.images = state.order.len();
        if state.finished.is_some() {
            seen.done = true;
            news.push(EventView::Done(Box::new(self.view_of(&state))));
        }
        news
    }

    /// The job as an answer.
    pub(crate) fn view(&self) -> JobView {
        self.view_of(&self.state.lock())
    }

    fn view_of(&self, state: &MutexGuard<'_, State>) -> JobView {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let StepView { step, steps, progress, eta, .. } = state.step_view();
        JobView {
            id: self.id.clone(),
            status: state.status,
            model: self.model.clone(),
            created: seconds(self.created.0),
            started: state.started.map(|(time, _)| seconds(time)),
            finished: state.finished.map(|(time, _)| seconds(time)),
            position: (state.status == Status::Queued).then_some(state.position),
            progress,
            step,
            steps,
            eta,
            total_images: self.total_images,
            request: self.request.clone(),
            images: state.images.values().map(|image| ImageView::of(&self.id, image)).collect(),
            warnings: state.warnings.clone(),
            error: state.failure().map(Into::into),
        }
    }
}

impl State {
    /// Finishes the job if nothing is pending.
    fn settle(&mut self) {
        if self.pending > 0 || self.finished.is_some() {
            return;
        }
        let Some(end) = &self.end else { return };
        self.status = match end {
            End::Done => Status::Done,
            End::Canceled => Status::Canceled,
            End::Failed { .. } | End::Expired(_) => Status::Failed,
        };
        if !self.keeps_previews {
            self.previews.clear();
        }
        self.finished = Some((SystemTime::now(), Instant::now()));
    }

    /// Why the job failed, if it did.
    fn failure(&self) -> Option<Refused> {
        match &self.end {
            Some(End::Failed { message, is_usage }) => {
                let kind = if *is_usage { RefusedKind::Invalid } else { RefusedKind::Internal };
                Some(Refused::new(kind, message.clone()))
            }
            Some(End::Expired(limit)) => {
                let message = format!("the job was not done within {} s, its `timeout`", limit.as_secs_f64());
                Some(Refused::new(RefusedKind::Expired, message).at("timeout"))
            }
            Some(End::Done | End::Canceled) | None => None,
        }
    }

    /// The part of the work that is done.
    fn progress(&self) -> f64 {
        match (self.status, self.steps) {
            (Status::Done, _) => 1.0,
            (_, 0) => 0.0,
            (_, steps) => self.step as f64 / steps as f64,
        }
    }

    /// The remaining time at the speed of the steps so far.
    fn eta(&self) -> Option<Duration> {
        let (_, started) = self.started.filter(|_| self.finished.is_none() && self.step > 0)?;
        let left = self.steps.saturating_sub(self.step) as f64 / self.step as f64;
        Some(started.elapsed().mul_f64(left))
    }

    fn step_view(&self) -> StepView {
        let eta = self.eta().map(|eta| eta.as_secs_f64());
        let stage = self.stage.map_or("queued", Stage::id);
        StepView { step: self.step, steps: self.steps, progress: self.progress(), eta, stage }
    }
}
