//! Kinds of values with their ranges and names: those that several options have, and those whose names other crates have.

use kiln_models::limits::{MAX_SIDE, MAX_STEPS};
use kiln_prompt::{ChunkCut, Emphasis};
use kiln_scheduler::{Convention, InitialNoise, SamplerKind, SigmaRange, SigmaSchedule, UniPcScale, limits};

use super::row::OptionKind::{self, Choice, Name, Number, Side, Whole};

/// The most images of one call.
pub const MAX_IMAGES: usize = 100_000;

/// Steps of a pass.
pub(super) const STEPS: OptionKind = Whole { min: 1, max: MAX_STEPS };
/// Images, or batches of them.
pub(super) const IMAGES: OptionKind = Whole { min: 1, max: MAX_IMAGES };
/// Pixels of a result's side.
pub(super) const SIDE: OptionKind = Side { max: MAX_SIDE };
/// Tokens to a comma, within a chunk of 75.
pub(super) const BACKTRACK: OptionKind = Whole { min: 0, max: 75 };
/// Tokens of a T5 text encoder; diffusers takes as many at most.
pub(super) const LENGTH: OptionKind = Whole { min: 1, max: 512 };
/// A fraction.
pub(super) const PART: OptionKind = Number { min: 0.0, max: 1.0 };
/// A strength of guidance.
pub(super) const STRENGTH: OptionKind = Number { min: 0.0, max: 1000.0 };
/// A score of an image as SDXL was trained with.
pub(super) const SCORE: OptionKind = Number { min: 0.0, max: 10.0 };
/// An exponent or a factor of soft inpainting.
pub(super) const SOFTNESS: OptionKind = Number { min: 0.0, max: 8.0 };
/// A noise level of a schedule.
pub(super) const NOISE_LEVEL: OptionKind = between(limits::SIGMA);
/// An amount of added noise, or a noise level at which it is added.
pub(super) const CHURN: OptionKind = between(limits::CHURN);
/// The fraction of noise that a sampler replaces.
pub(super) const ETA: OptionKind = between(limits::ETA);
/// A power of a schedule.
pub(super) const RHO: OptionKind = between(limits::RHO);
/// A scale of a sampler's noise.
pub(super) const S_NOISE: OptionKind = between(limits::S_NOISE);
/// A sampler.
pub(super) const SAMPLER: OptionKind = Name(|| SamplerKind::ALL.into_iter().map(SamplerKind::id).collect());
/// A spacing of noise levels.
pub(super) const SCHEDULE: OptionKind = Name(|| SigmaSchedule::ALL.into_iter().map(SigmaSchedule::id).collect());
/// A program whose rules apply.
pub(super) const CONVENTION: OptionKind = Choice(|| ids(Convention::CHOICES));
/// A range of noise levels.
pub(super) const SIGMA_RANGE: OptionKind = Choice(|| ids(SigmaRange::CHOICES));
/// A scale of the first latents.
pub(super) const FIRST_LATENTS: OptionKind = Choice(|| ids(InitialNoise::CHOICES));
/// The function B(h) of UniPC.
pub(super) const UNIPC: OptionKind = Choice(|| ids(UniPcScale::CHOICES));
/// Rules for weights in a prompt.
pub(super) const EMPHASIS: OptionKind = Choice(|| Emphasis::ALL.into_iter().map(Emphasis::id).collect());

/// Rules for cutting long texts.
pub(super) const CHUNK_CUT: OptionKind = Choice(|| ChunkCut::ALL.into_iter().map(ChunkCut::id).collect());

const fn between((min, max): (f64, f64)) -> OptionKind {
    Number { min, max }
}

/// The names of `choices`.
fn ids<T>(choices: &[(T, &'static str)]) -> Vec<&'static str> {
    choices.iter().map(|(_, id)| *id).collect()
}
