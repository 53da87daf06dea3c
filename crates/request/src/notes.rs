//! Notes about a request, of which no image shows anything: tags that Kiln does not have, lists that are not there, options that need another one.

use kiln_models::{ExtraChannels, ModelFolder};
use kiln_prompt::take_tags;
use kiln_scheduler::SamplerKind;

use crate::input::{InpaintArea, Rule};
use crate::job::Job;
use crate::lora::left_out_of_tags;
use crate::options::{ImageOptions, OPTIONS, OptionSet, Request};
use crate::wildcards::names_of;

/// Sentences about a job for its user. The images are made all the same.
#[derive(Debug, Clone, Default)]
pub struct Notes(pub(crate) Vec<String>);

/// Notes do not make two jobs different.
impl PartialEq for Notes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Options of guidance, which need some.
const OF_GUIDANCE: [&str; 10] = [
    "negative_prompt",
    "guidance_rescale",
    "guidance_start",
    "guidance_end",
    "apg_eta",
    "mimic_scale",
    "dynamic_thresholding",
    "slg_scale",
    "cfg_zero_star",
    "cfg_norm",
];
/// Options of the noise that churn adds.
const OF_CHURN: [&str; 3] = ["s_tmin", "s_tmax", "s_noise"];

impl Request {
    /// Sentences about what has no effect in `job`, which the request was resolved to.
    pub(crate) fn notes(&self, job: &Job, model: &ModelFolder) -> Notes {
        let mut notes = self.notes_of_prompts(job);
        for row in OPTIONS.iter().filter(|row| !row.value(self).is_default()) {
            if let Some(reason) = self.without_effect(row.name, job, model) {
                notes.push(format!("`{}` has no effect: {reason}", row.name));
            }
        }
        Notes(notes)
    }

    /// The reason why an option that is set changes nothing; `None` if it does, or may. Others that need an option are refused
    /// without it: they have no meaning then.
    fn without_effect(&self, name: &str, job: &Job, model: &ModelFolder) -> Option<&'static str> {
        let image = ImageOptions::of(self);
        let has_refiner = self.refiner.is_some();
        match name {
            "inpaint_padding" if image.inpaint_area == InpaintArea::Whole => Some("`inpaint_area` is whole"),
            "mask_weight" if !job.extra_channels.has_mask() => Some("the model takes no mask"),
            "rule" if self.init.is_none() && !has_refiner && !self.is_hires() => {
                Some("there is no `init`, no `refiner` and no second pass")
            }
            "reference_size" if self.references.is_empty() => Some("there are no `references`"),
            "reference_size" if job.extra_channels == ExtraChannels::Control => {
                Some("the model takes a control image in the size of the results")
            }
            "refiner_switch_by" if !has_refiner => Some("there is no `refiner`"),
            "refiner_switch_by" if image.rule != Rule::Automatic1111 => Some("`rule` is not a1111"),
            "aesthetic_score" | "negative_aesthetic_score" if !has_refiner && !model.is_refiner() => {
                Some("there is no `refiner`")
            }
            "ensd" if self.init.is_none() && !self.is_hires() && !draws_noise(job) => {
                Some("the sampler draws no noise after the first")
            }
            "subseed" if job.seeds.subseed_strength == 0.0 => Some("`subseed_strength` is 0"),
            // Requests of a model of few steps often have one.
            "negative_prompt" if self.negative_prompt.as_ref().is_some_and(String::is_empty) => None,
            "cfg_scale" | "cfg_schedule"
                if job.passes().all(|pass| pass.lacks_negative_prompt() && !pass.is_guided())
                    && self.asks_for_guidance() =>
            {
                Some("there is no `negative_prompt`, without which this model has no guidance but `guidance`")
            }
            _ if OF_GUIDANCE.contains(&name) && job.passes().all(|pass| !pass.is_guided()) => {
                Some("there is no guidance (`cfg_scale` 1)")
            }
            _ if OF_CHURN.contains(&name) && job.sampler.has_churn() && job.sampling.s_churn.unwrap_or(0.0) == 0.0 => {
                Some("`s_churn` is 0")
            }
            _ => None,
        }
    }

    /// Whether it asks for classifier-free guidance.
    fn asks_for_guidance(&self) -> bool {
        self.cfg_scale.is_some_and(|scale| scale != 1.0) || self.cfg_schedule.is_some()
    }

    /// Sentences about tags that are left out, and lists that stay text.
    fn notes_of_prompts(&self, job: &Job) -> Vec<String> {
        let prompts = [Some(&self.prompt), self.hires_prompt.as_ref()];
        let negatives = [&self.negative_prompt, &self.hires_negative_prompt].map(Option::as_ref);
        let mut notes: Vec<String> = prompts.into_iter().flatten().flat_map(|text| left_out_of_tags(text)).collect();
        for tag in negatives.into_iter().flatten().flat_map(|text| take_tags(text).1) {
            notes.push(format!("{tag} stays text: tags of the negative prompt have no meaning"));
        }
        notes.extend(job.wildcards.left_out_tags());
        let read =
            |texts: [Option<&String>; 2], is_literal: bool| texts.map(|text| text.filter(|_| !is_literal).cloned());
        let texts = read(prompts, self.literal_prompt).into_iter().chain(read(negatives, self.literal_negative_prompt));
        for text in texts.flatten() {
            for name in names_of(&text).filter(|name| job.wildcards.get(name).is_none()) {
                let reason = match &self.wildcards_dir {
                    Some(folder) => format!("no {name}.txt in {}", folder.display()),
                    None => "there is no folder of lists, `wildcards_dir`".into(),
                };
                notes.push(format!("__{name}__ stays text: {reason}"));
            }
        }
        notes
    }
}

/// Whether a sampler draws noise after the first.
fn draws_noise(job: &Job) -> bool {
    let is_more_than_0 = |value: Option<f64>| value.is_some_and(|value| value > 0.0);
    is_more_than_0(job.sampling.eta.or(job.sampler.default_eta()))
        || is_more_than_0(job.sampling.s_churn)
        || matches!(job.sampler, SamplerKind::Ddpm | SamplerKind::Lcm | SamplerKind::ErSde | SamplerKind::Restart)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(request: Request) -> Vec<String> {
        let model = ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
        request.resolve(&model).unwrap().advice(&model)
    }

    fn of(prompt: &str) -> Vec<String> {
        notes(Request { prompt: prompt.into(), ..Request::default() })
    }

    #[test]
    fn tags_that_kiln_does_not_have_are_named() {
        assert_eq!(of("a <lora:ink:0.8> cat <3, <lyco:b>"), Vec::<String>::new());
        assert_eq!(
            of("a cat <hypernet:x:1><lora:ink:1:dyn=4><style:b>"),
            [
                "<hypernet:x:1> is left out of the prompt: Kiln has no hypernetworks",
                "`dyn=4` of <lora:ink:1:dyn=4> is left out: a tag has a name, one or two strengths, te= and unet=",
                "<style:b> is left out of the prompt: tags are <lora:name:0.8>",
            ]
        );
        let negative = Request { negative_prompt: Some("<lora:ink:1>".into()), ..Request::default() };
        assert_eq!(notes(negative), ["<lora:ink:1> stays text: tags of the negative prompt have no meaning"]);
    }

    #[test]
    fn lists_that_are_not_there_are_named() {
        assert_eq!(of("a __colour__ cat"), ["__colour__ stays text: there is no folder of lists, `wildcards_dir`"]);
        for text in ["snake__case", "____", "a __ b", "def __init"] {
            assert_eq!(of(text), Vec::<String>::new(), "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("animal.txt"), "cat\n<lora:ink:1> dog\n").unwrap();
        let request = |prompt: &str| Request {
            prompt: prompt.into(),
            wildcards_dir: Some(folder.path().to_path_buf()),
            ..Request::default()
        };
        let found = notes(request("a __colour__ __animal__"));
        let missing = format!("__colour__ stays text: no colour.txt in {}", folder.path().display());
        assert_eq!(
            found,
            ["<lora:ink:1> of the list animal is left out: tags are read in the prompt itself", &missing]
        );
        let literal = Request { literal_prompt: true, ..request("a __colour__") };
        assert_eq!(notes(literal), Vec::<String>::new());
    }

    #[test]
    fn options_that_need_another_one_are_named() {
        let new = Request::default;
        for (request, found) in [
            (Request { subseed: Some(1), ..new() }, "`subseed` has no effect: `subseed_strength` is 0"),
            (
                Request { rule: Some(Rule::Comfy), ..new() },
                "`rule` has no effect: there is no `init`, no `refiner` and no second pass",
            ),
            (
                Request { cfg_scale: Some(1.0), negative_prompt: Some("b".into()), ..new() },
                "`negative_prompt` has no effect: there is no guidance (`cfg_scale` 1)",
            ),
            (
                Request { s_tmin: Some(1.0), sampler: Some(SamplerKind::Euler.into()), ..new() },
                "`s_tmin` has no effect: `s_churn` is 0",
            ),
            (
                Request { ensd: Some(31337), sampler: Some(SamplerKind::Euler.into()), ..new() },
                "`ensd` has no effect: the sampler draws no noise after the first",
            ),
        ] {
            assert_eq!(notes(request), [found]);
        }
        for sampler in [SamplerKind::EulerA, SamplerKind::Lcm, SamplerKind::Dpmpp2mSde] {
            assert!(
                notes(Request { ensd: Some(31337), sampler: Some(sampler.into()), ..new() }).is_empty(),
                "{sampler}"
            );
        }
        let drawn = Request { ensd: Some(1), eta: Some(0.5), sampler: Some(SamplerKind::Ddim.into()), ..new() };
        assert!(notes(drawn).is_empty());
    }
}
