//! What does not suit a model that was distilled to run in few steps.

use kiln_models::{Distillation, ModelFolder};

use crate::job::Job;

impl Job {
    /// What was asked for and does not suit the model or a LoRA, which by its name was distilled to run in few steps: a sentence
    /// each. The images are made all the same, since a name is no proof.
    pub fn advice(&self, model: &ModelFolder) -> Vec<String> {
        let of_model = model.distillation().map(|(kind, steps)| (model.name(), kind, steps));
        let loras = self.loras.iter().filter(|lora| lora.unet != 0.0).filter_map(|lora| {
            let name = lora.name();
            Distillation::in_name(&name).map(|(kind, steps)| (name, kind, steps))
        });
        let mut advice = Vec::new();
        for (name, kind, made_for) in of_model.into_iter().chain(loras) {
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
