//! Texts of a graph with their places in the image, and texts that are blended into them.

use kiln_media::NodeAt;

use super::graph_image::MaskImage;
use super::problem::{Problem, Result, named};
use super::reader::Reader;
use crate::regions::{BlendText, RegionUse};
use crate::settings::formats::dialect;

use super::text::spans;

/// A text with what the nodes between it and the sampler say about it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlacedText<'a> {
    pub(super) text: &'a str,
    /// Its place.
    pub(super) place: Place<'a>,
    /// The texts that are blended into it, with their weights.
    pub(super) blend: Vec<(&'a str, f64)>,
}

/// The place of a text and its strength, as far as nodes say them. Of several nodes the one next to the sampler counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Place<'a> {
    area: Option<Area>,
    strength: Option<f64>,
    mask: Option<(MaskImage, f64)>,
    /// Whether the rectangle is that around the mask.
    bounds: Option<bool>,
    /// The node next to the sampler.
    node: Option<&'a str>,
}

/// A rectangle: left, top, width, height.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Area {
    Pixels([usize; 4]),
    Share([f64; 4]),
}

impl<'a> Place<'a> {
    /// The node that says it, if one does.
    pub(super) fn node(&self) -> Option<&'a str> {
        self.node
    }

    /// Whether the text acts on a part of the image alone.
    fn is_part(&self) -> bool {
        self.area.is_some() || self.mask.is_some()
    }

    /// The place with what `inner`, of nodes nearer to the text, says besides.
    pub(super) fn over(self, inner: Self) -> Self {
        Self {
            area: self.area.or(inner.area),
            strength: self.strength.or(inner.strength),
            mask: self.mask.or(inner.mask),
            bounds: self.bounds.or(inner.bounds),
            node: self.node.or(inner.node),
        }
    }
}

impl<'a> PlacedText<'a> {
    /// A text for the whole image.
    pub(super) fn whole(text: &'a str) -> Self {
        Self { text, place: Place::default(), blend: Vec::new() }
    }

    /// The text with the place and the blends of nodes nearer to the sampler; `share` is the weight that those leave it.
    pub(super) fn within(self, place: &Place<'a>, blend: &[(&'a str, f64)], share: f64) -> Self {
        let own = self.blend.into_iter().map(|(text, weight)| (text, weight * share));
        let blend = blend.iter().copied().chain(own).collect();
        Self { place: place.clone().over(self.place), blend, ..self }
    }

    /// Whether it is a text for the whole image, without others.
    pub(super) fn is_plain(&self) -> bool {
        !self.place.is_part() && self.blend.is_empty()
    }

    /// Its region without a mask, and the mask.
    pub(super) fn region(&self) -> (RegionUse, Option<&MaskImage>) {
        let Place { area, strength, mask, bounds, .. } = &self.place;
        let bounds = mask.is_some() && *bounds == Some(true);
        // The rectangle around a mask takes the place of another one.
        let area = area.filter(|_| !bounds);
        let pixels = area.and_then(|area| if let Area::Pixels(pixels) = area { Some(pixels) } else { None });
        let share = area.and_then(|area| if let Area::Share(share) = area { Some(share) } else { None });
        let blend =
            self.blend.iter().map(|(text, weight)| BlendText { text: dialect::written(&spans(text)), weight: *weight });
        let strength = strength.unwrap_or(1.0) * mask.as_ref().map_or(1.0, |(_, strength)| *strength);
        let region = RegionUse { pixels, share, mask: None, bounds, strength, blend: blend.collect() };
        (region, mask.as_ref().map(|(mask, _)| mask))
    }
}

impl<'a> Reader<'a> {
    /// The place that a node says for all texts behind it; `None` for nodes that say none.
    pub(super) fn place(&self, at: NodeAt<'a>) -> Result<Option<Place<'a>>> {
        let node = Some(at.0);
        let place = match at.1.class_type.as_str() {
            "ConditioningSetArea" => {
                let number = |name| self.count(at, name);
                let area = [number("x")?, number("y")?, number("width")?, number("height")?];
                let (area, strength) = (Some(Area::Pixels(area)), Some(self.number(at, "strength")?));
                Place { area, strength, bounds: Some(false), node, ..Place::default() }
            }
            "ConditioningSetAreaPercentage" => {
                let number = |name| self.number(at, name);
                let area = [number("x")?, number("y")?, number("width")?, number("height")?];
                let (area, strength) = (Some(Area::Share(area)), Some(self.number(at, "strength")?));
                Place { area, strength, bounds: Some(false), node, ..Place::default() }
            }
            "ConditioningSetAreaStrength" => {
                Place { strength: Some(self.number(at, "strength")?), node, ..Place::default() }
            }
            "ConditioningSetMask" if self.has_images => {
                let bounds = match self.name(at, "set_cond_area")? {
                    "default" => false,
                    "mask bounds" => true,
                    _ => {
                        let found = self.value(at, "set_cond_area")?;
                        return Err(Self::wrong(at, "set_cond_area", found, "default or mask bounds"));
                    }
                };
                let mask = Some((self.mask(at, "mask")?, self.number(at, "strength")?));
                Place { mask, bounds: Some(bounds), node, ..Place::default() }
            }
            _ => return Ok(None),
        };
        Ok(Some(place))
    }

    /// The text that `ConditioningAverage` blends into those behind it, and the weight that these keep. Of several texts it takes the
    /// first one.
    pub(super) fn average(&self, at: NodeAt<'a>, depth: usize) -> Result<(&'a str, f64)> {
        let from = self.conditioning_at(self.slot(at, "conditioning_from")?, depth + 1)?;
        if let Some(zeroed) = from.zeroed_by {
            return Err(Problem::not_understood(zeroed));
        }
        let Some(first) = from.texts.first().filter(|text| text.blend.is_empty()) else {
            let message = format!("conditioning_from of node {} is a blend of texts, expected one text", named(at));
            return Err(Problem::of_input(at, "conditioning_from", message));
        };
        let to = self.slot(at, "conditioning_to")?;
        let clip = self.conditioning_at(to, depth + 1)?.clip;
        if from.clip != clip {
            let message = format!("the texts of node {} do not have one model with the same LoRAs", named(at));
            return Err(Problem::of_node(at, message));
        }
        Ok((first.text, self.number(at, "conditioning_to_strength")?))
    }
}
