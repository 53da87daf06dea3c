//! A sampler over the enlarged latents of another one: hires fix.

use kiln_media::NodeAt;

use super::Run;
use super::assemble::add;
use super::latent::{Enlarging, Latent};
use super::problem::{Problem, Result, named};
use super::reader::Reader;
use super::sampling::Sampling;
use crate::input::Rule;
use crate::settings::formats::Taken;

impl<'a> Reader<'a> {
    /// The run of both samplers: `last` makes the second pass over what `enlarger` makes of the latents of `sampler`.
    pub(super) fn second_pass(
        &self,
        last: &Sampling<'a>,
        enlarger: NodeAt<'a>,
        sampler: NodeAt<'a>,
        by: &Enlarging,
        decoder: NodeAt<'a>,
    ) -> Result<Run> {
        let first = self.sampling(sampler)?;
        let Latent::Empty { at, size, batch } = self.latent(sampler, "latent_image")? else {
            return Err(Problem::not_understood(enlarger));
        };
        let differs = |what: &str| {
            let message = format!("nodes {} and {} differ in {what}", named(sampler), named(last.node));
            Problem::of_node(last.node, message)
        };
        if first.strength != 1.0 {
            return Err(Problem::not_understood(enlarger));
        }
        if first.seed != last.seed {
            return Err(differs("their seeds, and the passes of one run have one"));
        }
        if first.model != last.model || first.positive.clip != last.positive.clip {
            return Err(differs("their models"));
        }
        let scale = |sampling: &Sampling<'a>| sampling.positive.guidance.map(|(scale, _)| scale);
        if !first.positive.control_ids().eq(last.positive.control_ids()) || scale(&first) != scale(last) {
            return Err(differs("what guides them"));
        }
        if first.options != last.options {
            return Err(differs("options of their samplers"));
        }
        let (wide, tall) = by.size.of(size);
        if wide * size.1 != tall * size.0 {
            let message = format!(
                "node {} enlarges {}x{} to {wide}x{tall}, which has another shape",
                named(enlarger),
                size.0,
                size.1
            );
            return Err(Problem::of_node(enlarger, message));
        }
        let mut run = self.of_sampling(&first, Some(size), decoder)?;
        let second = self.of_sampling(last, Some((wide, tall)), decoder)?;
        if run.request.regions != second.request.regions || run.masks != second.masks {
            return Err(differs("areas, masks or blends of their texts"));
        }
        let request = &mut run.request;
        request.rule = Some(Rule::Comfy);
        request.hires_size = Some((wide, tall));
        request.hires_upscaler = Some(by.filter.clone());
        request.hires_steps = Some(last.steps);
        request.hires_strength = Some(last.strength);
        request.hires_cfg_scale = Some(last.cfg);
        let mut names = Taken::default();
        names.sampler_of_comfyui(["sampler_name", "scheduler"], Some(last.sampler), Some(last.scheduler));
        request.hires_sampler = names.request.sampler;
        request.hires_scheduler = Some(names.request.scheduler);
        if names.request.unipc_variant.is_some() && names.request.unipc_variant != request.unipc_variant {
            return Err(differs("their samplers, of which one is UniPC"));
        }
        let texts = [
            (&mut request.hires_prompt, Some(request.prompt.clone()), Some(second.request.prompt)),
            (&mut request.hires_negative_prompt, request.negative_prompt.clone(), second.request.negative_prompt),
        ];
        for (field, before, then) in texts {
            if before == then {
                continue;
            }
            // An empty text of the second pass would be that of the first one.
            match then.filter(|text| !text.is_empty()) {
                Some(text) => *field = Some(text),
                None => return Err(differs("their texts, of which the second one is empty")),
            }
        }
        run.unknown = run.unknown.or(names.unknown);
        run.warnings.extend(names.warnings);
        run.warnings.dedup();
        run.batch = (batch, at.0.into());
        run.stages.samplers.push(last.node.0.into());
        add(
            &mut run.origins,
            [("width", at.0, "width"), ("height", at.0, "height"), ("batch_size", at.0, "batch_size")],
        );
        let places = last.places.iter().map(|(field, (node, input))| (hires_name(field), *node, *input));
        add(&mut run.origins, places);
        for field in ["hires_size", "hires_scale", "hires_upscaler"] {
            add(&mut run.origins, [(field, enlarger.0, "upscale_method")]);
        }
        Ok(run)
    }
}

/// The second pass's name of a field.
fn hires_name(field: &'static str) -> &'static str {
    match field {
        "steps" => "hires_steps",
        "strength" => "hires_strength",
        "cfg_scale" => "hires_cfg_scale",
        "sampler" => "hires_sampler",
        "scheduler" => "hires_scheduler",
        other => other,
    }
}
