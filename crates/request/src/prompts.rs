//! Parsed prompts and the schedule of a job, computed once.

use std::sync::{Arc, OnceLock};

use kiln_prompt::{PromptSchedule, Subprompt, expand, subprompts, take_tags};
use kiln_scheduler::Schedule;

use crate::init::Init;
use crate::job::Job;
use crate::refiner::DenoiserSpan;

/// The prompts of one image: choices are made, tags are taken out, parts and schedules are read.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedPrompt {
    /// The prompt as it was typed, with its choices made.
    pub prompt: String,
    /// The negative prompt in the same way, if there is one.
    pub negative_prompt: Option<String>,
    /// The parts that `AND` separates. There is always one.
    pub parts: Vec<PromptPart>,
    /// The texts of the negative prompt; those of an empty one if it is not set.
    pub negative: PromptSchedule,
}

/// One of the parts that `AND` separates.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptPart {
    /// Its texts.
    pub schedule: PromptSchedule,
    /// How strongly it conditions the image; 1 unless the prompt says so.
    pub weight: f64,
}

impl ParsedPrompt {
    /// Reads the prompts of image `index`. The negative prompt draws its choices from a sequence of its own, so that a
    /// choice added to one prompt changes nothing in the other.
    fn new(job: &Job, index: usize) -> Self {
        const NEGATIVE: u64 = 1 << 63;
        let (seed, lists) = (job.seed_of(index), |name: &str| job.wildcards.get(name));
        let made =
            |text: &String, literal: bool, seed: u64| if literal { text.clone() } else { expand(text, seed, &lists) };
        let literal = job.literal_negative_prompt;
        let negative_prompt = job.negative_prompt.as_ref().map(|text| made(text, literal, seed ^ NEGATIVE));
        let prompt = made(&job.prompt, job.literal_prompt, seed);
        let steps = job.prompt_steps().count();
        let schedule = |text: &str| match job.init {
            Init::FirstPass { steps: Some(first), .. } => PromptSchedule::of_second_pass(text, first, steps),
            _ => PromptSchedule::new(text, steps),
        };
        let part = |Subprompt { text, weight }| PromptPart { schedule: schedule(&text), weight };
        Self {
            parts: subprompts(&take_tags(&prompt).0).into_iter().map(part).collect(),
            negative: schedule(negative_prompt.as_deref().unwrap_or_default()),
            prompt,
            negative_prompt,
        }
    }
}

/// Cached values of a job. They follow from its other fields, and are computed on demand.
#[derive(Debug, Clone, Default)]
pub struct Parsed {
    schedule: OnceLock<Arc<Schedule>>,
    spans: OnceLock<Arc<[DenoiserSpan]>>,
    /// Of each image, or one for all where no image has choices of its own.
    prompts: OnceLock<Vec<OnceLock<Arc<ParsedPrompt>>>>,
}

/// Nothing that tells two jobs apart.
impl PartialEq for Parsed {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Parsed {
    /// The schedule, which `make` gives the first time.
    pub fn schedule<E>(&self, make: impl FnOnce() -> Result<Schedule, E>) -> Result<Arc<Schedule>, E> {
        match self.schedule.get() {
            Some(schedule) => Ok(schedule.clone()),
            None => {
                let made = Arc::new(make()?);
                Ok(self.schedule.get_or_init(|| made).clone())
            }
        }
    }

    /// The spans of the run, which `make` gives the first time.
    pub(crate) fn spans<E>(
        &self,
        make: impl FnOnce() -> Result<Vec<DenoiserSpan>, E>,
    ) -> Result<Arc<[DenoiserSpan]>, E> {
        match self.spans.get() {
            Some(spans) => Ok(spans.clone()),
            None => {
                let made = make()?.into();
                Ok(self.spans.get_or_init(|| made).clone())
            }
        }
    }

    /// Takes spans, with the schedule of the first, instead of its own.
    pub(crate) fn set_spans(&mut self, spans: Arc<[DenoiserSpan]>) {
        self.schedule =
            spans.first().and_then(|first| first.schedule.clone()).map_or_else(OnceLock::new, OnceLock::from);
        self.spans = OnceLock::from(spans);
    }

    /// The prompts of image `index` of `job`, whose own this is.
    pub fn prompts(&self, job: &Job, index: usize) -> Arc<ParsedPrompt> {
        let images = self.prompts.get_or_init(|| {
            let different = if job.has_choices() { job.images() } else { 1 };
            (0..different).map(|_| OnceLock::new()).collect()
        });
        let place = if job.has_choices() { images.get(index) } else { images.first() };
        let parse = || Arc::new(ParsedPrompt::new(job, index));
        place.map_or_else(parse, |place| place.get_or_init(parse).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_models::ModelFolder;

    use crate::Request;

    #[test]
    fn a_job_reads_its_prompts_and_its_schedule_once() {
        let model = ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
        let job = |prompt: &str| {
            let request = Request { prompt: prompt.into(), batch_size: Some(9), seed: Some(1), ..Request::default() };
            request.resolve(&model).unwrap()
        };
        let plain = job("a pear AND a [fig:plum:3] :0.5");
        assert!(Arc::ptr_eq(&plain.prompts(0), &plain.prompts(8)), "one for all images");
        assert_eq!(plain.prompts(0).parts.iter().map(|part| part.weight).collect::<Vec<_>>(), [1.0, 0.5]);
        assert_eq!(plain.prompts(0).parts[1].schedule.ranges().len(), 2);
        assert!(Arc::ptr_eq(&plain.schedule(&model).unwrap(), &plain.schedule(&model).unwrap()));
        let choices = job("a {pear|fig|plum|apple}");
        assert!(Arc::ptr_eq(&choices.prompts(3), &choices.prompts(3)));
        assert!((1..9).any(|index| choices.prompts(index).prompt != choices.prompts(0).prompt));
    }
}
