//! The spans of a job.

use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{Span as _, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use super::{Traces, current};
use crate::scheduler::End;

/// The span of a job, which ends when the last part of the job drops it.
pub(crate) struct JobSpan {
    tracer: SdkTracer,
    context: Context,
}

/// The parts of a job, one after the other: `queue`, and the stages of the engine by their names.
pub(crate) struct JobTrace {
    job: Arc<JobSpan>,
    part: Option<Span>,
    has_started: bool,
}

impl Traces {
    /// The span of a job that the current request makes.
    pub(crate) fn job(&self) -> JobSpan {
        let parent = current();
        let span = self.tracer.span_builder("job").start_with_context(&self.tracer, &parent);
        JobSpan { tracer: self.tracer.clone(), context: parent.with_span(span) }
    }
}

impl JobSpan {
    /// Says which job it is.
    pub(crate) fn describe(&self, id: &str, model: &str, images: usize) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("kiln.job.id", id.to_string()));
        span.set_attribute(KeyValue::new("kiln.model", model.to_string()));
        span.set_attribute(KeyValue::new("kiln.images", images as i64));
    }

    /// Adds a part that has been done since `start`.
    pub(crate) fn add(&self, name: &'static str, start: SystemTime) {
        let builder = self.tracer.span_builder(name).with_start_time(start);
        builder.start_with_context(&self.tracer, &self.context).end();
    }
}

impl Drop for JobSpan {
    fn drop(&mut self) {
        self.context.span().end();
    }
}

impl JobTrace {
    /// The parts of a job that begins to wait.
    pub(crate) fn new(job: Arc<JobSpan>) -> Self {
        let mut trace = Self { job, part: None, has_started: false };
        trace.begin("queue");
        trace
    }

    /// The span of the job.
    pub(crate) fn job(&self) -> Arc<JobSpan> {
        self.job.clone()
    }

    /// A part begins, and the one before ends.
    pub(crate) fn begin(&mut self, name: &'static str) {
        self.stop();
        let job = &self.job;
        self.part = Some(job.tracer.span_builder(name).start_with_context(&job.tracer, &job.context));
    }

    /// The job waits no longer.
    pub(crate) fn start(&mut self) {
        self.has_started = true;
        self.stop();
    }

    /// The model is loaded: a job that has not started waits again.
    pub(crate) fn loaded(&mut self) {
        self.stop();
        if !self.has_started {
            self.begin("queue");
        }
    }

    /// Notes calls of the denoiser: those that are done, and all.
    pub(crate) fn steps(&mut self, done: usize, total: usize) {
        if let Some(part) = &mut self.part {
            part.set_attribute(KeyValue::new("kiln.steps.done", done as i64));
            part.set_attribute(KeyValue::new("kiln.steps.total", total as i64));
        }
    }

    /// The job ends.
    pub(crate) fn end(&mut self, end: &End) {
        self.stop();
        let span = self.job.context.span();
        match end {
            End::Done => {}
            End::Canceled => span.set_attribute(KeyValue::new("kiln.canceled", true)),
            End::Expired(_) => span.set_status(Status::error("its time was over")),
            End::Failed { message, .. } => span.set_status(Status::error(message.clone())),
        }
    }

    fn stop(&mut self) {
        if let Some(mut part) = self.part.take() {
            part.end();
        }
    }
}
