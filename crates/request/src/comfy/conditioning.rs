//! Texts with what nodes add to them: guidance, control images, zeros, and several texts at once.

use kiln_media::NodeAt;

use super::Named;
use super::graph_image::GraphImage;
use super::model::Chain;
use super::placed_text::{Place, PlacedText};
use super::problem::{Problem, Result, named};
use super::reader::{MAX_CHAIN, Reader};
use crate::control::ControlUse;
use crate::settings::formats::stem;
use crate::size_conditions::{Crop, SizeConditions};

/// The node of a text for SDXL's two encoders, with sizes.
const TEXT_WITH_SIZES: &str = "CLIPTextEncodeSDXL";
/// The nodes of a text for several text encoders, and their inputs for one each.
const TEXTS: [(&str, &[&str]); 3] = [
    (TEXT_WITH_SIZES, &["text_g", "text_l"]),
    ("CLIPTextEncodeFlux", &["clip_l", "t5xxl"]),
    ("CLIPTextEncodeSD3", &["clip_l", "clip_g", "t5xxl"]),
];
/// The least number of T5's tokens (`comfy/text_encoders/{flux,sd3_clip}.py`).
pub(super) const FLUX_LENGTH: usize = 256;
pub(super) const SD3_LENGTH: usize = 77;
/// The most texts of one prompt.
const MAX_TEXTS: usize = 32;

/// The texts behind an input of a sampler.
pub(super) struct Conditioning<'a> {
    /// The texts whose predictions are averaged; one, unless a node combines several.
    pub(super) texts: Vec<PlacedText<'a>>,
    /// The node of the first text.
    pub(super) node: NodeAt<'a>,
    /// The chain of nodes to the text encoders.
    pub(super) clip: Chain<'a>,
    /// The guidance scale that the denoiser takes as an input, and its node.
    pub(super) guidance: Option<(f64, &'a str)>,
    /// The node that replaces the encoded text by zeros.
    pub(super) zeroed_by: Option<NodeAt<'a>>,
    /// The least number of T5's tokens, if the nodes say for which family they are.
    pub(super) length: Option<usize>,
    /// The sizes of the text's node.
    pub(super) sizes: Option<SizeConditions>,
    /// Control networks from the sampler to the text, with the node of each.
    pub(super) controls: Vec<(NodeAt<'a>, bool)>,
    /// The node that adds a masked image for an inpainting model.
    pub(super) inpaint: Option<NodeAt<'a>>,
    /// The nodes that add reference images, from the sampler to the text.
    pub(super) references: Vec<NodeAt<'a>>,
}

impl<'a> Conditioning<'a> {
    /// The ids of its control networks' nodes.
    pub(super) fn control_ids(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.controls.iter().map(|((id, _), _)| *id)
    }

    /// The ids of its reference images' nodes.
    pub(super) fn reference_ids(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.references.iter().map(|(id, _)| *id)
    }
}

impl<'a> Reader<'a> {
    /// The texts of a sampler's input.
    pub(super) fn conditioning(&self, from: NodeAt<'a>, name: &str) -> Result<Conditioning<'a>> {
        self.conditioning_at(self.slot(from, name)?, 0)
    }

    /// The texts behind a node's output, `depth` nodes with several texts behind the sampler.
    ///
    /// # Errors
    /// [`Problem`] for nodes that a request cannot say.
    pub(super) fn conditioning_at(
        &self,
        (mut at, mut slot): (NodeAt<'a>, u64),
        depth: usize,
    ) -> Result<Conditioning<'a>> {
        if depth >= MAX_TEXTS {
            return Err(Problem::of_node(at, format!("node {} combines more than {MAX_TEXTS} texts", named(at))));
        }
        let (mut place, mut blend, mut share) = (Place::default(), Vec::new(), 1.0);
        let (mut guidance, mut zeroed_by, mut length) = (None, None, None);
        let (mut controls, mut inpaint, mut references) = (Vec::new(), None, Vec::new());
        for _ in 0..MAX_CHAIN {
            let sides = if slot == 0 { "positive" } else { "negative" };
            let next = match at.1.class_type.as_str() {
                "FluxGuidance" => {
                    // The last node counts.
                    guidance = guidance.or(Some((self.number(at, "guidance")?, at.0)));
                    length = Some(FLUX_LENGTH);
                    "conditioning"
                }
                "ConditioningZeroOut" => {
                    zeroed_by = zeroed_by.or(Some(at));
                    "conditioning"
                }
                "ControlNetApply" if self.has_images => {
                    controls.push((at, true));
                    "conditioning"
                }
                "ControlNetApplyAdvanced" if self.has_images => {
                    controls.push((at, false));
                    sides
                }
                "InpaintModelConditioning" if self.has_images => {
                    inpaint = inpaint.or(Some(at));
                    sides
                }
                "ReferenceLatent" if self.has_images => {
                    // Without latents the node changes nothing.
                    references.extend(at.1.inputs.contains_key("latent").then_some(at));
                    "conditioning"
                }
                "ConditioningAverage" => {
                    let (text, kept) = self.average(at, depth)?;
                    blend.push((text, share * (1.0 - kept)));
                    share *= kept;
                    "conditioning_to"
                }
                "ConditioningCombine" => {
                    let all = self.combined(at, depth)?;
                    let clashes = |one: bool, other: bool| one && other;
                    if clashes(guidance.is_some(), all.guidance.is_some())
                        || clashes(zeroed_by.is_some(), all.zeroed_by.is_some())
                        || clashes(!controls.is_empty(), !all.controls.is_empty())
                        || clashes(!references.is_empty(), !all.references.is_empty())
                    {
                        return Err(Problem::not_understood(at));
                    }
                    controls.extend(all.controls.iter().copied());
                    references.extend(all.references.iter().copied());
                    let texts = all.texts.into_iter().map(|text| text.within(&place, &blend, share)).collect();
                    return Ok(Conditioning {
                        texts,
                        guidance: guidance.or(all.guidance),
                        zeroed_by: zeroed_by.or(all.zeroed_by),
                        length: length.or(all.length),
                        inpaint: inpaint.or(all.inpaint),
                        controls,
                        references,
                        ..all
                    });
                }
                _ => match self.place(at)? {
                    Some(inner) => {
                        place = place.over(inner);
                        "conditioning"
                    }
                    None => break,
                },
            };
            (at, slot) = self.slot(at, next)?;
        }
        let class = at.1.class_type.as_str();
        let clip = |at| self.chain(at, "clip", "clip");
        let placed = |text| vec![PlacedText::whole(text).within(&place, &blend, share)];
        if class == "CLIPTextEncode" || self.is_edit(at) {
            let (texts, clip) = (placed(self.name(at, Self::words_input(at))?), clip(at)?);
            let sizes = None;
            return Ok(Conditioning {
                texts,
                node: at,
                clip,
                guidance,
                zeroed_by,
                length,
                sizes,
                controls,
                inpaint,
                references,
            });
        }
        let known = TEXTS.iter().find(|(known, _)| *known == class);
        let (_, names) = known.ok_or_else(|| Problem::not_understood(at))?;
        let texts = names.iter().map(|name| self.name(at, name)).collect::<Result<Vec<_>>>()?;
        if let Some(i) = texts.windows(2).position(|pair| pair[0] != pair[1]) {
            let pair = [i, i + 1].map(|i| names.get(i).copied().unwrap_or_default()).join(" and ");
            let message = format!("{pair} of node {} ({class}) differ, and Kiln has one prompt", at.0);
            return Err(Problem::of_input(at, names.get(i + 1).copied().unwrap_or_default(), message));
        }
        let is_unpadded = at.1.inputs.get("empty_padding").and_then(|how| how.as_str()) == Some("none");
        if class == "CLIPTextEncodeSD3" && is_unpadded && texts.first().is_some_and(|text| text.is_empty()) {
            let message =
                format!("the text of node {} is empty and not padded; Kiln pads it, as `empty_prompt` does", named(at));
            return Err(Problem::of_input(at, "empty_padding", message));
        }
        if class == "CLIPTextEncodeFlux" {
            guidance = guidance.or(Some((self.number(at, "guidance")?, at.0)));
        }
        length = match class {
            "CLIPTextEncodeFlux" => Some(FLUX_LENGTH),
            "CLIPTextEncodeSD3" => Some(SD3_LENGTH),
            _ => length,
        };
        let sizes = self.sizes(at)?;
        let texts = placed(texts.first().copied().unwrap_or_default());
        let clip = clip(at)?;
        Ok(Conditioning { texts, node: at, clip, guidance, zeroed_by, length, sizes, controls, inpaint, references })
    }

    /// Several texts, whose predictions ComfyUI averages. They differ in nothing else.
    fn combined(&self, at: NodeAt<'a>, depth: usize) -> Result<Conditioning<'a>> {
        let part = |name| self.conditioning_at(self.slot(at, name)?, depth + 1);
        let (mut one, other) = (part("conditioning_1")?, part("conditioning_2")?);
        let is_plain = one.zeroed_by.is_none() && other.zeroed_by.is_none() && other.inpaint.is_none();
        let is_alike = one.guidance.map(|(scale, _)| scale) == other.guidance.map(|(scale, _)| scale)
            && one.length == other.length
            && one.sizes == other.sizes
            && one.clip == other.clip
            && one.control_ids().eq(other.control_ids())
            && one.reference_ids().eq(other.reference_ids())
            && one.inpaint.is_none();
        if !is_plain || !is_alike {
            let message = format!("the texts of node {} differ in more than their words", named(at));
            return Err(Problem::of_node(at, message));
        }
        one.texts.extend(other.texts);
        if one.texts.len() > MAX_TEXTS {
            return Err(Problem::of_node(at, format!("node {} combines more than {MAX_TEXTS} texts", named(at))));
        }
        Ok(one)
    }

    /// The sizes of a text's node, if it has any.
    fn sizes(&self, at: NodeAt<'a>) -> Result<Option<SizeConditions>> {
        if at.1.class_type != TEXT_WITH_SIZES {
            return Ok(None);
        }
        let number = |name: &str| self.count(at, name);
        Ok(Some(SizeConditions {
            original: (number("width")?, number("height")?),
            crop: Crop { left: number("crop_w")?, top: number("crop_h")? },
            target: (number("target_width")?, number("target_height")?),
        }))
    }

    /// The control networks of a sampler, each with its image and its node. Those of both prompts are the same.
    pub(super) fn controls(
        &self,
        sampler: NodeAt<'a>,
        positive: &Conditioning<'a>,
        negative: Option<&Conditioning<'a>>,
    ) -> Result<Vec<(ControlUse, GraphImage, &'a str)>> {
        let of_negative = negative.map(|negative| &negative.controls[..]).unwrap_or_default();
        let of_both = |at: &NodeAt<'a>| of_negative.iter().any(|(other, _)| other.0 == at.0);
        let known = |at: &NodeAt<'a>| positive.controls.iter().any(|(other, _)| other.0 == at.0);
        let alone = positive.controls.iter().find(|(at, both)| negative.is_some() && !*both && !of_both(at));
        let alone = alone.or_else(|| of_negative.iter().find(|(at, both)| *both || !known(at)));
        if let Some((at, _)) = alone {
            let message = format!("node {} guides one prompt of node {} and not the other", named(*at), named(sampler));
            return Err(Problem::of_node(*at, message));
        }
        let mut controls = Vec::new();
        for (at, _) in positive.controls.iter().rev() {
            let at = *at;
            let weight = self.number(at, "strength")?;
            if weight == 0.0 {
                continue;
            }
            let (start, end) = (self.number_or(at, "start_percent", 0.0)?, self.number_or(at, "end_percent", 1.0)?);
            let loader = self.link(at, "control_net")?;
            if loader.1.class_type != "ControlNetLoader" {
                return Err(Problem::not_understood(loader));
            }
            let net = stem(self.name(loader, "control_net_name")?);
            controls.push((
                ControlUse { weight, start, end, ..ControlUse::new(net) },
                self.graph_image(at, "image")?,
                at.0,
            ));
        }
        Ok(controls)
    }

    /// The reference images of a sampler in their order, each with its node. Those of both prompts are the same.
    pub(super) fn references(
        &self,
        (sampler, vae): (NodeAt<'a>, Option<&Named>),
        checkpoint: &str,
        positive: &Conditioning<'a>,
        negative: Option<&Conditioning<'a>>,
    ) -> Result<Vec<(GraphImage, &'a str)>> {
        if let Some(negative) = negative
            && !negative.reference_ids().eq(positive.reference_ids())
        {
            let all = positive.references.iter().chain(&negative.references);
            let is_shared = |id: &str| {
                positive.reference_ids().chain(negative.reference_ids()).filter(|other| *other == id).count() == 2
            };
            let alone = all.copied().find(|(id, _)| !is_shared(id)).unwrap_or(sampler);
            let message = format!(
                "node {} is a reference of one prompt of node {} and not of the other",
                named(alone),
                named(sampler)
            );
            return Err(Problem::of_node(alone, message));
        }
        let one = |at: &NodeAt<'a>| {
            let encoder = self.link(*at, "latent")?;
            if encoder.1.class_type != "VAEEncode" {
                return Err(Problem::not_understood(encoder));
            }
            let own = self.vae(self.link(encoder, "vae")?, checkpoint)?;
            if own.as_ref().map(|file| &file.name) != vae.map(|file| &file.name) {
                return Err(Problem::of_node(encoder, "the image is encoded and decoded by different VAEs"));
            }
            Ok((self.graph_image(encoder, "pixels")?, at.0))
        };
        positive.references.iter().rev().map(one).collect()
    }
}
