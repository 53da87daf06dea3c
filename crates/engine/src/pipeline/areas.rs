//! Parts of a prompt with places: weights at each latent, and parts that are computed for a rectangle of latents alone.
//!
//! ComfyUI (`calc_cond_batch` of comfy/samplers.py) averages the predictions of all parts by their strengths at each latent. For
//! each rectangle of a part it has the negative prompt once more, with the strengths of the first part that has this rectangle
//! (`create_cond_with_same_area_if_none`), so that both sides of guidance see the same latents.

use candle_core::{Device, Tensor};
use kiln_network::slots::EXTRA_CHANNELS;
use kiln_network::{Denoiser, Inputs};
use kiln_request::{LatentArea, Region, RegionMap, RegionUse};

use crate::error::{Error, Result};
use crate::pipeline::network_parts::number_of_alone;
use crate::pipeline::step::GuidedStep;

/// The smallest sum of strengths that they are divided by.
const LEAST: f32 = 1e-37;

/// The rectangles of latents for which the parts of images are computed.
pub(crate) struct Areas {
    all: Vec<Area>,
    /// Images.
    n: usize,
    /// The number of the group that has them, which runs by itself.
    pub(crate) number: u64,
}

/// One rectangle, with the numbers of the parts that are computed for it.
struct Area {
    place: LatentArea,
    parts: Vec<usize>,
    /// The share of each row in its average: `n` unconditional rows, then `n` of each part, `(rows, 1, height, width)` in f32.
    shares: Tensor,
}

/// The maps of `parts` parts. A part without a region acts on the whole image.
fn maps(regions: &[Region], parts: usize, (size, f): ((usize, usize), usize)) -> Vec<RegionMap> {
    let whole = Region::new(RegionUse::default());
    let map = |number: usize| regions.get(number).unwrap_or(&whole).map(size, f);
    // A rectangle outside of the image is refused with the request.
    (0..parts)
        .map(|number| map(number).unwrap_or(RegionMap { area: None, strengths: vec![0.0; size.0 * size.1] }))
        .collect()
}

/// The share of each part of `n` images in the average at each latent, `(k n, h, w)`: `weights` `(k n)` times the maps, divided
/// by their sums. No region has a rectangle.
pub(crate) fn normalized(
    regions: &[Region],
    weights: &[f32],
    n: usize,
    latents @ (size, _): ((usize, usize), usize),
) -> Vec<f32> {
    let maps = maps(regions, weights.len() / n.max(1), latents);
    let cells = size.0 * size.1;
    let mut shares: Vec<f32> = Vec::with_capacity(weights.len() * cells);
    for (row, weight) in weights.iter().enumerate() {
        let strengths = maps.get(row / n.max(1)).map_or(&[][..], |map| &map.strengths);
        shares.extend(strengths.iter().map(|strength| strength * weight));
    }
    for cell in 0..cells {
        for image in 0..n {
            let of_image = || (image * cells + cell..shares.len()).step_by(n * cells);
            let sum = of_image().filter_map(|place| shares.get(place)).sum::<f32>().max(LEAST);
            for place in of_image() {
                shares[place] /= sum;
            }
        }
    }
    shares
}

impl Areas {
    /// The rectangles of parts with `regions` and `weights` `(k n)`, of `n` images.
    pub(crate) fn new(
        (regions, weights): (&[Region], &[f32]),
        n: usize,
        latents @ (size, _): ((usize, usize), usize),
        device: &Device,
    ) -> Result<Self> {
        let (k, whole) = (weights.len() / n.max(1), LatentArea::whole(size));
        let maps = maps(regions, k, latents);
        let mut all: Vec<(LatentArea, Vec<usize>)> = vec![(whole, Vec::new())];
        for (number, map) in maps.iter().enumerate() {
            let place = map.area.unwrap_or(whole);
            match all.iter_mut().find(|(known, _)| *known == place) {
                Some((_, parts)) => parts.push(number),
                None => all.push((place, vec![number])),
            }
        }
        // The strengths of an image's unconditional and conditional rows in a rectangle.
        let strengths = |(place, parts): &(LatentArea, Vec<usize>), image: usize| {
            let of = |number: usize| {
                let weight = weights.get(number * n + image).copied().unwrap_or_default();
                maps.get(number).map_or(Vec::new(), |map| map.strengths.iter().map(|value| value * weight).collect())
            };
            let unconditional = match (*place == whole, parts.first()) {
                (false, Some(first)) => of(*first),
                _ => vec![1.0; place.height * place.width],
            };
            (unconditional, parts.iter().map(|number| of(*number)).collect::<Vec<Vec<f32>>>())
        };
        let mut sums = vec![[vec![0.0; size.0 * size.1], vec![0.0; size.0 * size.1]]; n];
        for area in &all {
            for (image, [unconditional, conditional]) in sums.iter_mut().enumerate() {
                let (of_none, of_parts) = strengths(area, image);
                area.0.add(unconditional, size.1, &of_none);
                of_parts.iter().for_each(|part| area.0.add(conditional, size.1, part));
            }
        }
        let area = |area: (LatentArea, Vec<usize>)| {
            let rows: Vec<_> = (0..n).map(|image| strengths(&area, image)).collect();
            let (place, parts) = area;
            let mut shares = Vec::new();
            for row in 0..=parts.len() {
                for ((of_none, of_parts), sums) in rows.iter().zip(&sums) {
                    let (strengths, sums) = match row.checked_sub(1).and_then(|part| of_parts.get(part)) {
                        Some(part) => (part, &sums[1]),
                        None => (of_none, &sums[0]),
                    };
                    let sums = within(sums, size.1, place);
                    shares.extend(strengths.iter().zip(sums).map(|(strength, sum)| strength / sum.max(LEAST)));
                }
            }
            let shape = ((1 + parts.len()) * n, 1, place.height, place.width);
            Ok(Area { place, parts, shares: Tensor::from_vec(shares, shape, device)? })
        };
        Ok(Self { all: all.into_iter().map(area).collect::<Result<_>>()?, n, number: number_of_alone() })
    }
}

/// The values of a map with rows of `width` in a rectangle, row by row.
fn within(map: &[f32], width: usize, place: LatentArea) -> impl Iterator<Item = f32> + '_ {
    let rows = map.chunks_exact(width.max(1)).skip(place.top).take(place.height);
    rows.flat_map(move |row| row.iter().copied().skip(place.left).take(place.width))
}

/// The calls of the denoiser for each rectangle.
pub(crate) struct AreaSteps {
    calls: Vec<AreaStep>,
    n: usize,
}

/// The call for one rectangle.
struct AreaStep {
    step: GuidedStep,
    place: LatentArea,
    parts: usize,
    shares: Tensor,
}

impl AreaSteps {
    /// The calls for `areas`. `inputs` are those of all rows, without what depends on the size of the latents, and `whole` is their
    /// step. `prepared_by` makes inputs once for all evaluations.
    ///
    /// # Errors
    /// Errors of the tensors and of the denoiser.
    pub(crate) fn new(
        areas: &Areas,
        inputs: &Inputs,
        whole: &GuidedStep,
        denoiser: &dyn Denoiser,
        prepared_by: Option<&dyn Denoiser>,
    ) -> Result<Self> {
        let n = areas.n;
        let call = |area: &Area| {
            let LatentArea { top, left, height, width } = area.place;
            let rows = std::iter::once(0).chain(area.parts.iter().map(|part| (1 + part) * n));
            let rows = rows.map(|first| Ok(inputs.rows(first..first + n)?)).collect::<Result<Vec<_>>>()?;
            let rows = Inputs::combine(&rows.iter().collect::<Vec<_>>(), |rows| -> Result<Tensor> {
                Ok(Tensor::cat(rows, 0)?)
            })?;
            let rows = rows.map(|slot, tensor| -> Result<Tensor> {
                match slot.name == EXTRA_CHANNELS.name {
                    true => Ok(cut(tensor, area.place)?),
                    false => Ok(tensor.clone()),
                }
            })?;
            let rows = denoiser.for_size(rows, [height, width])?;
            let step = GuidedStep::new(&rows, None, whole.dtype)?;
            let step = match prepared_by {
                Some(denoiser) => step.prepared(denoiser)?,
                None => step,
            };
            let (parts, shares) = (area.parts.len(), area.shares.clone());
            Ok(AreaStep { step, place: LatentArea { top, left, height, width }, parts, shares })
        };
        Ok(Self { calls: areas.all.iter().map(call).collect::<Result<_>>()?, n })
    }

    /// The result of `whole` for scaled latents `x` `(n, c, h, w)` at `timesteps` ([`GuidedStep::run`]), with the averages of the
    /// predictions for all rectangles.
    ///
    /// # Errors
    /// Errors of the denoiser and of the tensors.
    pub(crate) fn run(
        &self,
        whole: &GuidedStep,
        denoiser: &dyn Denoiser,
        x: &Tensor,
        timesteps: &[f64],
    ) -> Result<Tensor> {
        let (n, c, h, w) = x.dims4()?;
        if n != self.n {
            return Err(Error::value("regions", format!("{n} images"), format!("{} images", self.n)));
        }
        let zeros = Tensor::zeros((n, c, h, w), candle_core::DType::F32, x.device())?;
        let (mut unconditional, mut conditional) = (zeros.clone(), zeros);
        for AreaStep { step, place, parts, shares } in &self.calls {
            let found = step.run(denoiser, None, &cut(x, *place)?, timesteps, None)?;
            let found = placed(&found.broadcast_mul(shares)?, *place, (h, w))?;
            unconditional = (unconditional + found.narrow(0, 0, n)?)?;
            for part in 1..=*parts {
                conditional = (conditional + found.narrow(0, part * n, n)?)?;
            }
        }
        whole.joined(Tensor::cat(&[unconditional, conditional], 0)?, n)
    }
}

/// The rectangle of latents `(n, c, h, w)`.
fn cut(latents: &Tensor, LatentArea { top, left, height, width }: LatentArea) -> candle_core::Result<Tensor> {
    latents.narrow(2, top, height)?.narrow(3, left, width)?.contiguous()
}

/// A rectangle in latents of `(h, w)` with zeros around it.
fn placed(
    latents: &Tensor,
    LatentArea { top, left, height, width }: LatentArea,
    (h, w): (usize, usize),
) -> candle_core::Result<Tensor> {
    latents.pad_with_zeros(2, top, h - top - height)?.pad_with_zeros(3, left, w - left - width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(text: &str) -> Region {
        Region::new(text.parse().unwrap())
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Two images, a part of strength 3 for the right half of 1x8 latents and one of strength 1 for all of them.
    #[test]
    fn shares_are_strengths_divided_by_their_sums() {
        let regions = [region("whole"), region("pixels=32x8+32+0,strength=3")];
        let areas = Areas::new((&regions, &[1.0, 1.0, 1.0, 0.0]), 2, ((1, 8), 8), &Device::Cpu).unwrap();
        let [whole, right] = &areas.all[..] else { panic!("two rectangles") };
        assert_eq!((whole.parts.as_slice(), right.parts.as_slice()), (&[0][..], &[1][..]));
        assert_eq!(right.place, LatentArea { top: 0, left: 4, height: 1, width: 4 });
        // One of four latents fades: by 1 / 1.
        let found = values(&whole.shares);
        assert_eq!((&found[..8], &found[8..16]), (&[1.0, 1.0, 1.0, 1.0, 0.25, 0.25, 0.25, 0.25][..], &[1.0; 8][..]));
        assert_eq!(found[16..24], found[..8], "the part of the first image");
        let found = values(&right.shares);
        assert_eq!((&found[..4], &found[4..8], &found[8..12]), (&[0.75; 4][..], &[0.0; 4][..], &[0.75; 4][..]));
    }

    #[test]
    fn maps_are_normalized_for_each_image() {
        let regions = [region("whole"), region("strength=3")];
        let found = normalized(&regions, &[1.0, 1.0, 1.0, 0.0], 2, ((1, 2), 8));
        assert_eq!(found, [0.25, 0.25, 1.0, 1.0, 0.75, 0.75, 0.0, 0.0]);
    }
}
