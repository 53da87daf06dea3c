//! The steps by which the schedules of prompts are read.

use kiln_scheduler::Convention;

use crate::job::Job;

/// How the steps of prompts' schedules (`[a:b:3]`, `[a|b]`) follow from the calls of the denoiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptSteps {
    /// Steps of the sampler. The calls are spread evenly over them, so that a sampler which calls the denoiser more than once a
    /// step changes prompts between steps.
    Sampler(usize),
    /// AUTOMATIC1111's steps: each call is one, counted from 0 in every pass. Their number is the one over which shares such
    /// as 0.5 are taken: twice the sampler's steps for samplers with two calls a step, although the last step makes one call
    /// (`total_steps` of `modules/sd_samplers_common.py` and `setup_conds` of `modules/processing.py`, v1.10).
    Calls(usize),
}

impl PromptSteps {
    /// The number of steps by which times are read.
    pub fn count(self) -> usize {
        match self {
            Self::Sampler(count) | Self::Calls(count) => count,
        }
    }

    /// The step of call `call` of `calls`, both counted from 0 without the steps that an input image skips.
    pub fn of_call(self, call: usize, calls: usize) -> usize {
        match self {
            Self::Sampler(count) => call * count / calls.max(1),
            Self::Calls(_) => call,
        }
    }
}

impl Job {
    /// The steps of its prompts' schedules, by its convention.
    pub fn prompt_steps(&self) -> PromptSteps {
        match self.sampling.convention {
            Convention::Automatic1111 if self.sampler.evaluates_twice() => PromptSteps::Calls(2 * self.steps),
            Convention::Automatic1111 => PromptSteps::Calls(self.steps),
            _ => PromptSteps::Sampler(self.steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_models::ModelFolder;
    use kiln_scheduler::SamplerKind;

    use crate::Request;

    #[test]
    fn calls_belong_to_steps() {
        let steps =
            |calls, steps| (0..calls).map(|call| PromptSteps::Sampler(steps).of_call(call, calls)).collect::<Vec<_>>();
        assert_eq!(steps(4, 4), [0, 1, 2, 3]);
        assert_eq!(steps(7, 4), [0, 0, 1, 1, 2, 2, 3]); // Heun: the last step is Euler's
        assert_eq!(steps(5, 4), [0, 0, 1, 2, 3]); // PLMS: the first step is taken twice
        for n in 1..60 {
            let heun = steps(2 * n - 1, n);
            assert!(heun.iter().enumerate().all(|(call, &step)| step == call / 2), "{heun:?}");
        }
    }

    /// The texts of the calls of a prompt by a sampler with 6 steps.
    fn texts(prompt: &str, sampler: SamplerKind, convention: Convention, calls: usize) -> String {
        let model = ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
        let (steps, sampler) = (Some(6), Some(sampler.into()));
        let request = Request { prompt: prompt.into(), steps, sampler, convention, ..Request::default() };
        let job = request.resolve(&model).unwrap();
        let (prompts, steps) = (job.prompts(0), job.prompt_steps());
        let schedule = &prompts.parts[0].schedule;
        let text = |call| &*schedule.ranges()[schedule.index_at(steps.of_call(call, calls))].text;
        (0..calls).map(text).collect()
    }

    #[test]
    fn automatic1111_counts_calls_of_the_denoiser() {
        let of = |prompt: &str| texts(prompt, SamplerKind::Heun, Convention::Automatic1111, 11);
        assert_eq!(of("[a:b:0.5]"), "aaaaaaabbbb"); // up to call 6 of 12
        assert_eq!(of("[a:b:3]"), "aaaabbbbbbb");
        assert_eq!(of("[a:b:9]"), "aaaaaaaaaab");
        assert_eq!(of("[a|b]"), "aabababababa"[..11]);
        let of = |prompt: &str| texts(prompt, SamplerKind::Heun, Convention::Diffusers, 11);
        assert_eq!(of("[a:b:0.5]"), "aaaaaaaabbb"); // up to step 3 of 6
        assert_eq!(of("[a:b:9]"), "aaaaaaaaaaa");
        let of = |convention| texts("[a:b:3]", SamplerKind::Euler, convention, 6);
        assert_eq!(of(Convention::Automatic1111), of(Convention::Diffusers));
    }
}
