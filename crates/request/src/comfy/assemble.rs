//! From a sampler with its nodes to a request.

use kiln_media::{NodeAt, short};

use super::conditioning::Conditioning;
use super::graph_image::MaskImage;
use super::latent::{Latent, Masking};
use super::placed_text::PlacedText;
use super::problem::{Problem, Result, named};
use super::reader::Reader;
use super::sampling::Sampling;
use super::text::spans;
use super::{Origin, Run, Stages};
use crate::input::Rule;
use crate::options::Request;
use crate::reference::ReferenceSize;
use crate::regions::RegionUse;
use crate::settings::formats::{Taken, as_in_comfyui, dialect};
use crate::size_conditions::SizeConditions;

impl<'a> Reader<'a> {
    /// The run of a sampler whose latents `decoder` decodes.
    pub(super) fn run(&self, sampler: NodeAt<'a>, decoder: NodeAt<'a>) -> Result<Run> {
        let last = self.sampling(sampler)?;
        let vae = self.vae(self.link(decoder, "vae")?, last.model.checkpoint)?;
        match self.latent(sampler, "latent_image")? {
            Latent::Empty { at, size, batch } => {
                if last.strength != 1.0 {
                    return Err(self.begins_in_between(&last));
                }
                if let Some(at) = last.positive.inpaint {
                    return Err(Problem::not_understood(at));
                }
                let mut run = self.of_sampling(&last, Some(size), decoder)?;
                run.batch = (batch, at.0.into());
                add(&mut run.origins, [("width", at.0, "width"), ("height", at.0, "height")]);
                add(&mut run.origins, [("batch_size", at.0, "batch_size")]);
                Ok(Run { vae, ..run })
            }
            Latent::Image { start, vae: of_start } => {
                // The conditioning and the latents of an inpainting model come from one node.
                let of_model = start.mask.as_ref().is_some_and(|mask| mask.how == Masking::Model);
                let of_text = last.positive.inpaint;
                if of_text.map(|(id, _)| id) != of_model.then_some(start.node.as_str()) {
                    return Err(Problem::not_understood(of_text.unwrap_or(self.node(&start.node)?)));
                }
                if self.vae(of_start, last.model.checkpoint)?.map(|file| file.name)
                    != vae.as_ref().map(|file| file.name.clone())
                {
                    return Err(Problem::of_node(of_start, "the image is encoded and decoded by different VAEs"));
                }
                let mut run = self.of_sampling(&last, None, decoder)?;
                run.request.rule = Some(Rule::Comfy);
                run.request.strength = Some(last.strength);
                run.request.paste_back = start.mask.is_some().then_some(false);
                run.stages.start = Some(start.node.clone());
                for field in ["init", "width", "height"] {
                    add(&mut run.origins, [(field, start.graph_image.file.node.as_str(), "image")]);
                }
                if let Some(mask) = &start.mask {
                    add(&mut run.origins, [("mask", mask.mask.file.node.as_str(), mask.mask.file.input)]);
                }
                Ok(Run { vae, start: Some(start), ..run })
            }
            Latent::Enlarged { at, sampler, by } => {
                let run = self.second_pass(&last, at, sampler, &by, decoder)?;
                Ok(Run { vae, ..run })
            }
        }
    }

    /// The problem of a sampler that does not begin with all of its noise and has no image.
    fn begins_in_between(&self, sampling: &Sampling<'a>) -> Problem {
        let place = sampling.places.iter().rev().find(|(field, _)| *field == "strength").map(|(_, place)| *place);
        let (id, input) = place.unwrap_or((sampling.node.0, "denoise"));
        let at = self.node(id).unwrap_or(sampling.node);
        let found = at.1.inputs.get(input).map_or_else(|| sampling.strength.to_string(), short);
        let message = format!("{input} of node {} is {found}, so the run started from an image", named(at));
        Problem::of_input(at, input, message)
    }

    /// The run of a sampler apart from what it begins with. `size` is that of empty latents.
    pub(super) fn of_sampling(
        &self,
        sampling: &Sampling<'a>,
        size: Option<(usize, usize)>,
        decoder: NodeAt<'a>,
    ) -> Result<Run> {
        let Sampling { node, model, positive, negative, .. } = sampling;
        if !self.has_images && !["KSampler", "KSamplerAdvanced"].contains(&node.1.class_type.as_str()) {
            return Err(Problem::not_understood(*node));
        }
        let guides = sampling.cfg != 1.0;
        let zeroed = negative.as_ref().and_then(|negative| negative.zeroed_by);
        if let Some(at) = positive.zeroed_by.or(zeroed.filter(|_| guides)) {
            return Err(Problem::not_understood(at));
        }
        let clip = &positive.clip;
        let is_whole = clip.checkpoint == model.checkpoint || self.is_of_texts(clip.checkpoint);
        if negative.as_ref().is_some_and(|negative| negative.clip != *clip) || !is_whole {
            let message = format!("the prompts and the sampler {} do not have one model with the same LoRAs", node.0);
            return Err(Problem::of_node(*node, message));
        }
        let loras = self.loras(model, clip)?;
        let guiding = negative.as_ref().filter(|_| guides);
        let controls = self.controls(*node, positive, guiding)?;
        let vae = self.vae(self.link(decoder, "vae")?, model.checkpoint)?;
        let references = self.references((*node, vae.as_ref()), model.checkpoint, positive, guiding)?;
        let image_prompts = self.image_prompts(model)?;
        let seen = self.seen_images((*node, vae.as_ref()), model.checkpoint, positive, guiding)?;
        sampling.check_levels(size)?;
        // ComfyUI also encodes empty texts.
        let negative_text = negative.as_ref().filter(|negative| negative.zeroed_by.is_none());
        let placed = regions(positive);
        let mut request = Request {
            prompt: self.prompt(positive, guides)?,
            negative_prompt: negative_text.map(|negative| self.negative(negative)).transpose()?,
            steps: Some(sampling.steps),
            seed: Some(sampling.seed),
            cfg_scale: Some(sampling.cfg),
            guidance: positive.guidance.map(|(scale, _)| scale),
            shift: self.shift(&model.nodes)?,
            max_length: positive.length.or_else(|| self.length_of_loader(clip.checkpoint)),
            width: size.map(|(width, _)| width),
            height: size.map(|(_, height)| height),
            clip_skip: self.clip_skip(clip)?,
            loras: loras.iter().map(|(lora, _)| lora.clone()).collect(),
            controls: controls.iter().map(|(control, ..)| control.clone()).collect(),
            regions: placed.iter().map(|(region, _)| region.clone()).collect(),
            // ComfyUI leaves reference images in their own size, but those that the text encoder sees.
            reference_size: (!references.is_empty()).then_some(ReferenceSize::Own),
            ..as_in_comfyui()
        };
        sampling.options.write(&mut request);
        set_sizes(&mut request, positive, negative.as_ref(), size)?;
        let mut taken = Taken { request, ..Taken::default() };
        taken.sampler_of_comfyui(["sampler_name", "scheduler"], Some(sampling.sampler), Some(sampling.scheduler));
        let texts = [Some(positive), negative.as_ref()].into_iter().flatten();
        let mut stages = Stages {
            load: model.checkpoint.into(),
            texts: texts.map(|text| text.node.0.to_string()).collect(),
            start: None,
            samplers: vec![node.0.into()],
            decode: decoder.0.into(),
        };
        stages.texts.dedup();
        let (of_model, mut origins) = (self.model_name(model.checkpoint)?, Vec::new());
        add(&mut origins, sampling.places.iter().map(|(field, (node, input))| (*field, *node, *input)));
        let words = Self::words_input;
        add(&mut origins, [("prompt", positive.node.0, words(positive.node))]);
        add(&mut origins, [("regions", positive.node.0, words(positive.node))]);
        // The last one counts.
        let places = positive.texts.iter().filter_map(|text| text.place.node());
        add(&mut origins, places.map(|node| ("regions", node, "strength")));
        add(&mut origins, [("model", model.checkpoint, of_model.input)]);
        add(&mut origins, negative.iter().map(|text| ("negative_prompt", text.node.0, words(text.node))));
        add(&mut origins, positive.guidance.map(|(_, node)| ("guidance", node, "guidance")));
        let is_of = |id: &&&str, begin: &str| self.node(id).is_ok_and(|(_, node)| node.class_type.starts_with(begin));
        let shifting = model.nodes.iter().filter(|id| is_of(id, "ModelSampling"));
        add(&mut origins, shifting.map(|node| ("shift", *node, "shift")));
        let layers = clip.nodes.iter().filter(|id| is_of(id, "CLIPSetLastLayer"));
        add(&mut origins, layers.map(|node| ("clip_skip", *node, "stop_at_clip_layer")));
        add(&mut origins, loras.iter().map(|(_, node)| ("loras", *node, "lora_name")));
        add(&mut origins, controls.iter().map(|(_, _, node)| ("controls", *node, "control_net")));
        add(&mut origins, references.iter().map(|(_, node)| ("references", *node, "latent")));
        add(&mut origins, image_prompts.iter().map(|prompt| ("ip_adapters", prompt.node.as_str(), "ipadapter")));
        add(&mut origins, seen.iter().map(|(_, node)| ("references", *node, words(positive.node))));
        Ok(Run {
            request: taken.request,
            model: of_model,
            texts: self.text_names(clip.checkpoint)?,
            vae: None,
            start: None,
            controls: controls.into_iter().map(|(_, graph_image, _)| graph_image).collect(),
            references: references.into_iter().chain(seen).map(|(graph_image, _)| graph_image).collect(),
            image_prompts,
            masks: placed.iter().enumerate().filter_map(|(i, (_, mask))| Some((i, (*mask)?.clone()))).collect(),
            batch: (1, node.0.into()),
            unknown: taken.unknown,
            warnings: taken.warnings,
            origins,
            stages,
        })
    }

    /// The prompt of one text, or of several, whose places and weights are the request's regions.
    pub(super) fn prompt(&self, text: &Conditioning<'a>, guides: bool) -> Result<String> {
        let parts: Vec<String> = text.texts.iter().map(|text| dialect::written(&spans(text.text))).collect();
        let is_one = matches!(&text.texts[..], [one] if one.place.node().is_none());
        if !guides && !is_one {
            let message = format!(
                "node {} is one of several prompts, or a prompt for a part of the image, which need a cfg other than 1",
                named(text.node)
            );
            return Err(Problem::of_node(text.node, message));
        }
        Ok(parts.join(" AND "))
    }

    /// The negative prompt, which is one text.
    pub(super) fn negative(&self, text: &Conditioning<'a>) -> Result<String> {
        match &text.texts[..] {
            [one] if one.is_plain() => Ok(dialect::written(&spans(one.text))),
            [_] => {
                let message = format!(
                    "node {} is a negative prompt with an area, a mask or another text, and Kiln has these for prompts alone",
                    named(text.node)
                );
                Err(Problem::of_node(text.node, message))
            }
            _ => {
                let message = format!("node {} is one of several negative prompts, and Kiln has one", named(text.node));
                Err(Problem::of_node(text.node, message))
            }
        }
    }
}

/// The regions of texts without their masks, and the masks. One text for the whole image needs none.
fn regions<'t>(text: &'t Conditioning<'_>) -> Vec<(RegionUse, Option<&'t MaskImage>)> {
    match &text.texts[..] {
        [one] if one.is_plain() => Vec::new(),
        all => all.iter().map(PlacedText::region).collect(),
    }
}

/// Sets the sizes that texts of SDXL have.
fn set_sizes(
    request: &mut Request,
    positive: &Conditioning<'_>,
    negative: Option<&Conditioning<'_>>,
    size: Option<(usize, usize)>,
) -> Result<()> {
    let sizes = [positive.sizes, negative.and_then(|negative| negative.sizes)];
    if sizes.iter().all(Option::is_none) {
        return Ok(());
    }
    // A text without sizes has those of the image.
    let of_image = || {
        let missing = || {
            let message = format!("node {} has no sizes, and the other prompt has them", named(positive.node));
            Problem::of_node(positive.node, message)
        };
        size.map(SizeConditions::of_image).ok_or_else(missing)
    };
    let filled = |sizes: Option<SizeConditions>| sizes.map_or_else(of_image, Ok);
    let (of, negative) = (filled(sizes[0])?, filled(sizes[1])?);
    (request.original_size, request.crop, request.target_size) = (Some(of.original), Some(of.crop), Some(of.target));
    request.negative_original_size = Some(negative.original);
    (request.negative_crop, request.negative_target_size) = (Some(negative.crop), Some(negative.target));
    Ok(())
}

/// Adds places of fields.
pub(super) fn add<'a>(
    origins: &mut Vec<Origin>,
    fields: impl IntoIterator<Item = (&'static str, &'a str, &'static str)>,
) {
    origins.extend(fields.into_iter().map(|(field, node, input)| Origin { field, node: node.into(), input }));
}
