//! Prompts as ComfyUI's jobs: one list of those that wait, run and are done.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::prompts::{Phase, Prompt, Prompts};
use crate::error::Refused;

/// The states of a job.
const STATES: [&str; 5] = ["pending", "in_progress", "completed", "failed", "cancelled"];
/// The kind of output that can be shown: nodes save no other one here.
const IMAGES: &str = "images";

/// Which jobs are listed.
pub(crate) struct JobFilter {
    /// `None` is for all.
    states: Option<Vec<String>>,
    workflow: Option<String>,
    /// By the time that it took; else by the time at which it came.
    by_duration: bool,
}

/// A part of the jobs.
pub(crate) struct PromptJobs {
    pub(crate) jobs: Vec<Value>,
    /// How many there are in all.
    pub(crate) total: usize,
}

impl JobFilter {
    /// Reads the parameters of a list: states with commas between them, the id of a workflow, and an order.
    ///
    /// # Errors
    /// [`Refused`] for a state or an order that is none.
    pub(crate) fn read(states: Option<&str>, workflow: Option<String>, sort_by: Option<&str>) -> Result<Self, Refused> {
        let states = states.filter(|states| !states.is_empty()).map(|states| states.split(',').map(str::trim));
        let states: Option<Vec<String>> = states.map(|states| states.map(str::to_lowercase).collect());
        if let Some(wrong) = states.iter().flatten().find(|state| !STATES.contains(&state.as_str())) {
            return Err(Refused::value("status", wrong, format!("some of {}", STATES.join(", "))));
        }
        let by_duration = match sort_by {
            None | Some("created_at") => false,
            Some("execution_duration") => true,
            Some(other) => return Err(Refused::value("sort_by", other, "created_at or execution_duration")),
        };
        Ok(Self { states, workflow, by_duration })
    }

    fn takes(&self, prompt: &Prompt) -> bool {
        let is_of_workflow = self.workflow.is_none() || self.workflow == prompt.about.workflow;
        is_of_workflow && self.states.as_ref().is_none_or(|states| states.iter().any(|state| state == prompt.state()))
    }
}

impl Prompts {
    /// The prompts of a client that wait, run and are done.
    fn of_client(&self, owner: &str) -> impl Iterator<Item = Arc<Prompt>> {
        [Phase::Pending, Phase::Running, Phase::Done].into_iter().flat_map(move |phase| self.of(owner, phase))
    }

    /// At most `limit` of a client's jobs, from number `offset` on.
    pub(crate) fn jobs(
        &self,
        owner: &str,
        filter: &JobFilter,
        ascending: bool,
        (offset, limit): (usize, Option<usize>),
    ) -> PromptJobs {
        let mut all: Vec<_> = self.of_client(owner).filter(|prompt| filter.takes(prompt)).collect();
        all.sort_by_key(|prompt| {
            let [start, end] = prompt.times();
            let taken = end.zip(start).map_or(0, |(end, start)| end.saturating_sub(start));
            (if filter.by_duration { taken } else { prompt.about.created }, prompt.about.number.unsigned_abs())
        });
        if !ascending {
            all.reverse();
        }
        let some = all.iter().skip(offset).take(limit.unwrap_or(usize::MAX));
        PromptJobs { jobs: some.map(|prompt| prompt.job().into()).collect(), total: all.len() }
    }

    /// One of a client's jobs, with its graph and its images.
    pub(crate) fn job(&self, owner: &str, id: &str) -> Option<Value> {
        let prompt = self.of_client(owner).find(|prompt| prompt.id == id)?;
        let mut job = prompt.job();
        let mut view = prompt.view();
        let tuple = view["prompt"].take();
        job.insert("outputs".into(), view["outputs"].take());
        job.insert("execution_status".into(), view["status"].take());
        job.insert("workflow".into(), json!({ "prompt": tuple[2], "extra_data": tuple[3] }));
        Some(job.into())
    }
}

impl Prompt {
    /// Its state as a job.
    fn state(&self) -> &'static str {
        match self.phase() {
            Phase::Pending => "pending",
            Phase::Running => "in_progress",
            Phase::Gone => "cancelled",
            Phase::Done if self.has_succeeded() => "completed",
            Phase::Done if self.noted("execution_interrupted").is_some() => "cancelled",
            Phase::Done => "failed",
        }
    }

    /// When it began, and when it ended.
    fn times(&self) -> [Option<u64>; 2] {
        let time = |event| self.noted(event)?["timestamp"].as_u64();
        let ends = ["execution_success", "execution_error", "execution_interrupted"];
        [time("execution_start"), ends.into_iter().find_map(time)]
    }

    /// Without its graph and its images. What is not known is left out.
    fn job(&self) -> Map<String, Value> {
        let [start, end] = self.times();
        let outputs = self.outputs();
        let images = |(node, output): (&String, &Value)| -> Vec<Value> {
            let of_node = output[IMAGES].as_array().into_iter().flatten().cloned();
            let named = of_node.map(|mut image| {
                (image["nodeId"], image["mediaType"]) = (node.clone().into(), IMAGES.into());
                image
            });
            named.collect()
        };
        let images: Vec<Value> = outputs.iter().flat_map(images).collect();
        let preview = images.iter().find(|image| image["type"] == "output").or(images.first());
        let all = [
            ("id", self.id.as_str().into()),
            ("status", self.state().into()),
            ("priority", self.about.number.into()),
            ("create_time", self.about.created.into()),
            ("execution_start_time", start.into()),
            ("execution_end_time", end.into()),
            ("execution_error", self.noted("execution_error").into()),
            ("outputs_count", images.len().into()),
            ("preview_output", preview.cloned().into()),
            ("workflow_id", self.about.workflow.clone().into()),
        ];
        all.into_iter()
            .filter(|(_, value): &(_, Value)| !value.is_null())
            .map(|(name, value)| (name.into(), value))
            .collect()
    }
}
