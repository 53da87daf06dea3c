//! From the scheduler's news to the state of a job.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kiln_engine::GeneratedImage;
use kiln_files::{FileRules, PlannedFile};
use kiln_media::{Rgb8Image, StillFormat, encode};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::entry::{Entry, Image};
use super::views::PreviewView;
use crate::budget::Taken;
use crate::image_format::ImageFormat;
use crate::metrics::Metrics;
use crate::scheduler::{End, Listener, News};
use crate::traces::JobTrace;

/// The most pixels of a preview in PNG.
const MOST_PNG: usize = 160 * 160;
/// The quality of a preview in JPEG.
const PREVIEW_QUALITY: u8 = 85;

/// Writes the news of a task into its job. Images are compressed on threads of their own.
pub(crate) struct JobListener {
    pub(crate) entry: Arc<Entry>,
    pub(crate) format: ImageFormat,
    /// The folder into which images are written, too.
    pub(crate) output: Option<PathBuf>,
    /// Files of the request that are read while it runs; they go with it.
    pub(crate) files: Option<TempDir>,
    pub(crate) runtime: Handle,
    pub(crate) metrics: Arc<Metrics>,
    /// Its spans, if traces are kept.
    pub(crate) trace: Option<JobTrace>,
    /// Its part of the memory of all jobs, which it gives back when it ends.
    pub(crate) _memory: Taken,
}

impl Listener for JobListener {
    fn tell(&mut self, news: News) {
        if let Some(trace) = &mut self.trace {
            note(trace, &news);
        }
        match news {
            News::Position(position) => self.entry.set_position(position),
            News::Started => self.entry.start(),
            News::Stage(stage) => self.entry.set_stage(stage),
            News::Loaded => {}
            News::Step { done, total } => self.entry.set_step(done, total),
            News::Preview { index, step, image } => match preview(index, step, &image) {
                Ok(preview) => {
                    if self.entry.set_preview(preview) {
                        self.metrics.first_preview(self.entry.age());
                    }
                }
                Err(error) => tracing::warn!("a preview: {error}"),
            },
            News::Image(image) => self.encode(*image),
            News::Warning(warning) => self.entry.warn(warning),
            News::End(end) => {
                drop(self.files.take());
                self.metrics.job_ended(self.entry.age());
                self.entry.end(end);
            }
        }
    }
}

impl JobListener {
    fn encode(&self, image: GeneratedImage) {
        self.entry.expect_image();
        let (entry, format, output) = (self.entry.clone(), self.format, self.output.clone());
        let (span, start) = (self.trace.as_ref().map(JobTrace::job), SystemTime::now());
        self.runtime.spawn_blocking(move || {
            let file = format.encode(&image).map_err(|error| format!("image {}: {error}", image.index + 1));
            if let (Some(folder), Ok(file)) = (&output, &file)
                && let Err(error) = write(folder, &format!("{}-{}.{}", entry.id, image.index, format.ending()), file)
            {
                tracing::error!("{error}");
                entry.warn(format!("image {} could not be written to the folder of the server", image.index + 1));
            }
            if let Some(span) = span {
                span.add("write", start);
            }
            let GeneratedImage { index, seed, width, height, parameters, settings, .. } = image;
            entry.set_image(file.map(|file| {
                let (file, media_type) = (file.into(), format.media_type());
                Image { index, seed, width, height, file, media_type, parameters, settings }
            }));
        });
    }
}

/// Notes what becomes of a task in its spans.
fn note(trace: &mut JobTrace, news: &News) {
    match news {
        News::Started => trace.start(),
        News::Stage(stage) => trace.begin(stage.id()),
        News::Loaded => trace.loaded(),
        News::Step { done, total } => trace.steps(*done, *total),
        News::End(end) => trace.end(end),
        News::Position(_) | News::Preview { .. } | News::Image(_) | News::Warning(_) => {}
    }
}

/// Writes a file that is there whole or not at all.
fn write(folder: &Path, name: &str, file: &[u8]) -> kiln_files::Result<()> {
    let rules = FileRules { field: "output", what: "the image", extensions: &["png", "jpg", "webp"], overwrite: false };
    PlannedFile::named(&folder.join(name), rules)?.write(|to| to.write_all(file))
}

/// A task is dropped without its end only if the scheduler's thread failed.
impl Drop for JobListener {
    fn drop(&mut self) {
        let message = "the run ended unexpectedly; the server's log says more".into();
        self.entry.end(End::Failed { message, is_usage: false });
    }
}

/// A preview as a file: small ones in PNG, which loses nothing, larger ones in JPEG, which takes a tenth of the bytes.
fn preview(index: usize, step: usize, image: &Rgb8Image) -> kiln_media::Result<PreviewView> {
    let (width, height) = image.size();
    let (format, media_type) = match width * height <= MOST_PNG {
        true => (StillFormat::Png, "image/png"),
        false => (StillFormat::Jpeg(PREVIEW_QUALITY), "image/jpeg"),
    };
    Ok(PreviewView { index, step, width, height, media_type, data: STANDARD.encode(encode(image, format)?) })
}
