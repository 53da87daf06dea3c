//! Counters and histograms, in the text format of Prometheus.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kiln_engine::{Engine, Engines, HostPool, process_bytes};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::memory_watch::{Pressure, Reading};
use crate::scheduler::{End, Load};
use crate::traces::SpanCounts;

/// All that the server counts.
pub struct Metrics {
    registry: Registry,
    waiting: Gauge,
    queue: Gauge<f64, AtomicU64>,
    running: Gauge,
    images_running: Gauge,
    batch: Histogram,
    step: Histogram,
    job: Histogram,
    first_preview: Histogram,
    /// Images that were decoded.
    pub images: Counter,
    jobs: Family<Outcome, Counter>,
    /// How often memory was out, and less ran at once or in a smaller mode.
    pub out_of_memory: Counter,
    texts: Family<Texts, Gauge>,
    memory: Family<Memory, Gauge>,
    available: Family<Memory, Gauge>,
    needed: Family<Memory, Gauge>,
    low: Gauge,
    requests: Family<Request, Counter>,
    request: Histogram,
    /// Spans of traces.
    pub(crate) spans: SpanCounts,
}

/// The counters of one device's engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineNumbers {
    /// Texts that were encoded, known, and from a store that servers share.
    texts: [usize; 3],
    /// Bytes in use on the GPU, if they run on one.
    gpu_memory: Option<u64>,
}

impl EngineNumbers {
    /// The counters of all `engines` that are loaded; `None` if none is.
    pub(crate) fn of(engines: &Engines) -> Option<Self> {
        let of_engine = |engine: &Engine| {
            let timings = engine.timings();
            let texts = [timings.texts_encoded, timings.texts_known, timings.texts_shared];
            Self { texts, gpu_memory: engine.gpu_memory() }
        };
        engines.iter().map(of_engine).reduce(|a, b| Self {
            texts: std::array::from_fn(|i| a.texts[i] + b.texts[i]),
            gpu_memory: a.gpu_memory.zip(b.gpu_memory).map(|(a, b)| a + b),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Texts {
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Memory {
    of: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: &'static str,
    route: String,
    status: u16,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("kiln");
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 20));
        let metrics = Self {
            waiting: Gauge::default(),
            queue: Gauge::default(),
            running: Gauge::default(),
            images_running: Gauge::default(),
            batch: Histogram::new(exponential_buckets(1.0, 2.0, 8)),
            step: seconds(),
            job: seconds(),
            first_preview: seconds(),
            images: Counter::default(),
            jobs: Family::default(),
            out_of_memory: Counter::default(),
            texts: Family::default(),
            memory: Family::default(),
            available: Family::default(),
            needed: Family::default(),
            low: Gauge::default(),
            requests: Family::default(),
            request: seconds(),
            spans: SpanCounts::default(),
            registry: Registry::default(),
        };
        registry.register("queue_jobs", "Jobs that wait", metrics.waiting.clone());
        let help = "Estimated time to the end of all jobs that wait or run; 0 before the first step";
        registry.register_with_unit("queue", help, Unit::Seconds, metrics.queue.clone());
        registry.register("running_jobs", "Jobs that have started and are not done", metrics.running.clone());
        registry.register("running_images", "Images in the running batch", metrics.images_running.clone());
        registry.register("step_images", "Images that took part in a step", metrics.batch.clone());
        registry.register_with_unit("step", "Time of a step", Unit::Seconds, metrics.step.clone());
        registry.register_with_unit("job", "Time from a job's arrival to its end", Unit::Seconds, metrics.job.clone());
        let help = "Time from a job's arrival to its first preview";
        registry.register_with_unit("first_preview", help, Unit::Seconds, metrics.first_preview.clone());
        registry.register("images", "Images that were made", metrics.images.clone());
        registry.register("jobs", "Jobs that ended, by how", metrics.jobs.clone());
        registry.register("out_of_memory", "Runs that were tried again in less memory", metrics.out_of_memory.clone());
        registry.register("texts", "Texts by where their encoding came from", metrics.texts.clone());
        registry.register_with_unit("memory", "Memory in use", Unit::Bytes, metrics.memory.clone());
        let help = "Memory that is available for images";
        registry.register_with_unit("memory_available", help, Unit::Bytes, metrics.available.clone());
        let help = "Memory that the next images will allocate";
        registry.register_with_unit("memory_needed", help, Unit::Bytes, metrics.needed.clone());
        let help = "Whether memory is too short for the next images: 1 or 0";
        registry.register("memory_low", help, metrics.low.clone());
        registry.register("requests", "Answered requests", metrics.requests.clone());
        registry.register_with_unit("request", "Time of a request", Unit::Seconds, metrics.request.clone());
        registry.register("trace_spans_sent", "Spans that the collector of traces has", metrics.spans.sent.clone());
        let help = "Spans that had no room or that the collector did not take";
        registry.register("trace_spans_dropped", help, metrics.spans.dropped.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// Records the load of the scheduler.
    pub(crate) fn load(&self, load: Load) {
        self.queue.set(load.seconds);
        for (gauge, value) in
            [(&self.waiting, load.waiting), (&self.running, load.running), (&self.images_running, load.images)]
        {
            gauge.set(whole(value as u64));
        }
    }

    /// A step of so many images.
    pub(crate) fn step(&self, images: usize, time: Duration) {
        self.batch.observe(images as f64);
        self.step.observe(time.as_secs_f64());
    }

    /// A task ended.
    pub(crate) fn task_ended(&self, end: &End) {
        let outcome = match end {
            End::Done => "done",
            End::Canceled => "canceled",
            End::Failed { .. } => "failed",
            End::Expired(_) => "expired",
        };
        self.jobs.get_or_create(&Outcome { outcome }).inc();
    }

    /// The engines' memory and their caches of texts.
    pub(crate) fn engines(&self, all: impl Iterator<Item = EngineNumbers>) {
        let add = |sum: EngineNumbers, one: EngineNumbers| EngineNumbers {
            texts: [0, 1, 2].map(|i| sum.texts[i] + one.texts[i]),
            gpu_memory: sum.gpu_memory.into_iter().chain(one.gpu_memory).reduce(|a, b| a + b),
        };
        let sum = all.fold(EngineNumbers::default(), add);
        for (source, count) in ["encoder", "cache", "store"].into_iter().zip(sum.texts) {
            self.texts.get_or_create(&Texts { source }).set(whole(count as u64));
        }
        if let Some(bytes) = sum.gpu_memory {
            self.memory.get_or_create(&Memory { of: "gpu" }).set(whole(bytes));
        }
    }

    /// The memory for the next images, of each kind that of the device with the most left.
    pub(crate) fn pressure(&self, pressure: &Pressure) {
        self.low.set(i64::from(pressure.is_low));
        for Reading { of, available, needed } in pressure.readings.iter().rev() {
            self.available.get_or_create(&Memory { of }).set(whole(*available));
            self.needed.get_or_create(&Memory { of }).set(whole(*needed));
        }
    }

    /// A job ended so long after it came.
    pub(crate) fn job_ended(&self, after: Duration) {
        self.job.observe(after.as_secs_f64());
    }

    /// A job had its first preview so long after it came.
    pub(crate) fn first_preview(&self, after: Duration) {
        self.first_preview.observe(after.as_secs_f64());
    }

    /// A request was answered.
    pub(crate) fn request(&self, method: &'static str, route: &str, status: u16, time: Duration) {
        self.requests.get_or_create(&Request { method, route: route.into(), status }).inc();
        self.request.observe(time.as_secs_f64());
    }

    /// All metrics as text.
    pub(crate) fn text(&self) -> String {
        for (of, bytes) in [("process", process_bytes()), ("host_pool", Some(HostPool::statistics().reserved as u64))] {
            if let Some(bytes) = bytes {
                self.memory.get_or_create(&Memory { of }).set(whole(bytes));
            }
        }
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(error) => {
                tracing::error!("metrics: {error}");
                String::new()
            }
        }
    }
}

fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_in_the_format_of_prometheus() {
        let metrics = Metrics::default();
        metrics.step(4, Duration::from_millis(3));
        metrics.task_ended(&End::Canceled);
        metrics.request("GET", "/v1/jobs/{id}", 404, Duration::ZERO);
        let text = metrics.text();
        for line in [
            "kiln_step_images_bucket{le=\"4.0\"} 1",
            "kiln_step_seconds_count 1",
            "kiln_jobs_total{outcome=\"canceled\"} 1",
            "kiln_requests_total{method=\"GET\",route=\"/v1/jobs/{id}\",status=\"404\"} 1",
            "kiln_queue_jobs 0",
            "kiln_queue_seconds 0.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
