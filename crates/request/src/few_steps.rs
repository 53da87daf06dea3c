//! Advice to a job's user: what has no effect, what does not suit a model that was distilled to run in few steps, and guidance that is
//! weaker than none.

use kiln_models::{Distillation, ModelFolder};
use kiln_scheduler::{Convention, SamplerKind};

use crate::job::Job;
use crate::lora::LoraUse;
use crate::options::Request;

/// A model or a LoRA that was distilled: its name, how, and the number of steps that it was made for.
type Distilled = (String, Distillation, Option<usize>);

/// Of a model and LoRAs those that were distilled, by their names.
fn distilled<'a>(model: &ModelFolder, loras: &'a [LoraUse]) -> impl Iterator<Item = Distilled> + use<'a> {
    let of_model = model.distillation().map(|(kind, steps)| (model.name(), kind, steps));
    let of_loras = loras.iter().filter(|lora| lora.unet != 0.0).filter_map(|lora| {
        let name = lora.name();
        Distillation::in_name(&name).map(|(kind, steps)| (name, kind, steps))
    });
    of_model.into_iter().chain(of_loras)
}

impl Request {
    /// The strength of the guidance that a model takes for one that was asked for. A network that was distilled to run without
    /// guidance gets 1, none, where less was asked for: its authors' examples have diffusers' `guidance_scale=0`, and all
    /// values up to 1 mean none there. CFG++ and other programs' rules have a meaning for less.
    pub(crate) fn strength_for(&self, strength: f64, model: &ModelFolder, loras: &[LoraUse], by: SamplerKind) -> f64 {
        let has_meaning = strength >= 1.0
            || model.has_guidance_inside()
            || by.needs_unconditional()
            || self.convention != Convention::Diffusers;
        if has_meaning || distilled(model, loras).next().is_none() { strength } else { 1.0 }
    }
}

impl Job {
    /// A sentence for each part of the request that has no effect, or does not suit the model or a LoRA that by its name was distilled
    /// to run in few steps, and for a guidance below 1. The images are made all the same.
    pub fn advice(&self, model: &ModelFolder) -> Vec<String> {
        let mut advice: Vec<String> = self.notes.0.iter().cloned().chain(self.weak_guidance()).collect();
        for (name, kind, made_for) in distilled(model, &self.loras) {
            let steps = self.steps;
            match made_for {
                Some(expected) if steps != expected => {
                    advice.push(format!("`steps` is {steps}: {name} was made for {expected}, by its name ({kind})"));
                }
                None if steps > kind.most_steps() => {
                    let most = kind.most_steps();
                    advice.push(format!("`steps` is {steps}: {name} was distilled ({kind}) for at most {most}"));
                }
                _ => {}
            }
            let strongest = match &self.cfg_schedule {
                Some(strengths) => strengths.iter().copied().fold(0.0, f64::max),
                None => self.cfg_scale,
            };
            if let Some(most) = kind.most_guidance().filter(|&most| !self.guidance_inside && strongest > most) {
                advice.push(format!(
                    "`cfg_scale` is {strongest}: {name} was distilled ({kind}) for at most {most}; with 1 a step takes half the time"
                ));
            }
        }
        advice
    }

    /// A warning about a guidance scale below 1 if it is probably a mistake.
    fn weak_guidance(&self) -> Option<String> {
        if !self.is_guided() || self.sampler.needs_unconditional() {
            return None;
        }
        let (name, weakest) = match &self.cfg_schedule {
            Some(strengths) => ("cfg_schedule", strengths.iter().copied().fold(f64::INFINITY, f64::min)),
            None => ("cfg_scale", self.cfg_scale),
        };
        let effect = if weakest == 0.0 { "ignores the prompt" } else { "weakens the prompt" };
        (weakest < 1.0).then(|| {
            format!(
                "`{name}` is {weakest}, which {effect}: 1 is no guidance, as diffusers' `guidance_scale` from 0 to 1"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Request;

    /// A model's folder under another name.
    fn named(folder: &tempfile::TempDir, name: &str) -> ModelFolder {
        let path = folder.path().join(name);
        copy(&kiln_testkit::fixtures("models/sd1"), &path);
        ModelFolder::open(&path).unwrap()
    }

    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                copy(&entry.path(), &to);
            } else {
                std::fs::copy(entry.path(), to).unwrap();
            }
        }
    }

    /// A distilled model knows no guidance below 1; others, CFG++ and other programs' rules do.
    #[test]
    fn guidance_below_one_is_none_or_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (turbo, plain) = (named(&folder, "sd-turbo"), named(&folder, "sd1"));
        let job = |model: &ModelFolder, scale, change: &dyn Fn(&mut Request)| {
            let mut request =
                Request { prompt: "a fox".into(), cfg_scale: Some(scale), steps: Some(2), ..Request::default() };
            change(&mut request);
            request.resolve(model).unwrap()
        };
        let euler = |request: &mut Request| request.sampler = Some(SamplerKind::Euler.into());
        for scale in [0.0, 0.5, 1.0] {
            let job = job(&turbo, scale, &euler);
            assert_eq!((job.cfg_scale, job.is_guided(), job.advice(&turbo)), (1.0, false, Vec::new()));
        }
        let by_lora = job(&plain, 0.0, &|request| request.prompt = "a fox <lora:lcm-lora-sdv1-5:1>".into());
        assert_eq!((by_lora.cfg_scale, by_lora.advice(&plain)), (1.0, Vec::new()));
        let cfg_pp = job(&turbo, 0.5, &|request| request.sampler = Some(SamplerKind::EulerCfgPp.into()));
        assert_eq!((cfg_pp.cfg_scale, cfg_pp.advice(&turbo)), (0.5, Vec::new()));
        let comfy = job(&turbo, 0.5, &|request| {
            euler(request);
            request.convention = Convention::ComfyUi;
        });
        assert_eq!((comfy.cfg_scale, comfy.is_guided()), (0.5, true));
        let ignored = job(&plain, 0.0, &euler);
        assert_eq!((ignored.cfg_scale, ignored.is_guided()), (0.0, true));
        let advice =
            "`cfg_scale` is 0, which ignores the prompt: 1 is no guidance, as diffusers' `guidance_scale` from 0 to 1";
        assert_eq!(ignored.advice(&plain), [advice]);
        assert!(job(&plain, 0.5, &euler).advice(&plain)[0].contains("is 0.5, which weakens the prompt"));
        let second = job(&turbo, 0.0, &|request| {
            (request.hires_scale, request.hires_cfg_scale) = (Some(1.5), Some(0.0));
            euler(request);
        });
        assert_eq!(second.second_pass().unwrap().job.cfg_scale, 1.0);
    }

    #[test]
    fn what_does_not_suit_few_steps_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let advice = |model: &ModelFolder, steps, scale, prompt: &str| {
            let (steps, cfg_scale) = (Some(steps), Some(scale));
            let request = Request { prompt: prompt.into(), steps, cfg_scale, ..Request::default() };
            request.resolve(model).unwrap().advice(model)
        };
        let turbo = named(&folder, "sd-turbo");
        assert_eq!(advice(&turbo, 1, 1.0, "a fox"), Vec::<String>::new());
        let both = advice(&turbo, 20, 7.0, "a fox");
        assert_eq!(both[0], "`steps` is 20: sd-turbo was distilled (Turbo) for at most 4");
        assert!(both[1].starts_with("`cfg_scale` is 7: sd-turbo was distilled (Turbo) for at most 2"), "{both:?}");
        let lightning = named(&folder, "sd_lightning_4step");
        assert_eq!(advice(&lightning, 4, 1.0, "a fox"), Vec::<String>::new());
        assert_eq!(
            advice(&lightning, 2, 1.0, "a fox"),
            ["`steps` is 2: sd_lightning_4step was made for 4, by its name (Lightning)"]
        );
        let plain = named(&folder, "sd1");
        assert_eq!(advice(&plain, 20, 7.0, "a fox"), Vec::<String>::new());
        let by_lora = advice(&plain, 20, 1.5, "a fox <lora:lcm-lora-sdv1-5:1>");
        assert_eq!(by_lora, ["`steps` is 20: lcm-lora-sdv1-5 was distilled (LCM) for at most 8"]);
        assert_eq!(advice(&plain, 20, 7.0, "a fox <lora:lcm-lora-sdv1-5:0>"), Vec::<String>::new());
    }
}
