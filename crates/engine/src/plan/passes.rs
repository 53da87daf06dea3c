//! Passes of a run: a second one makes the first one's images again in a larger size.

use kiln_request::{Job, SecondPass};
use kiln_upscale::NetworkConfig;

use super::{Pass, TextWork, Workload};
use crate::pipeline::event::Stage;

/// The upscaler between the two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enlargement {
    /// Latents are interpolated.
    Latents,
    /// Images are decoded, enlarged by a filter and encoded.
    Pixels,
    /// Images are decoded, enlarged by a network and encoded.
    Network(NetworkConfig),
}

/// The work of the second pass, as far as memory depends on it. The other values are those of the first pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecondPassWork {
    /// Width of the images in pixels.
    pub width: usize,
    /// Height of the images in pixels.
    pub height: usize,
    /// Width and height of the first pass's images in pixels.
    pub first: (usize, usize),
    /// Width and height in pixels to which images are enlarged before they are cut.
    pub enlarged: (usize, usize),
    /// Steps of the sampler.
    pub steps: usize,
    /// The texts.
    pub text: TextWork,
    /// The upscaler of the first pass's results.
    pub enlargement: Enlargement,
}

impl SecondPassWork {
    /// That of a job with the shortest prompts.
    pub(crate) fn of(first: &Job, pass: &SecondPass) -> Self {
        Self {
            first: (first.width, first.height),
            width: pass.job.width,
            height: pass.job.height,
            enlarged: pass.enlarged,
            steps: pass.job.steps,
            text: TextWork::short(pass.job.is_guided()),
            enlargement: match pass.network {
                Some(network) => Enlargement::Network(network),
                None if pass.takes_pixels() => Enlargement::Pixels,
                None => Enlargement::Latents,
            },
        }
    }

    /// The work that has room for both.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            width: self.width.max(other.width),
            height: self.height.max(other.height),
            first: (self.first.0.max(other.first.0), self.first.1.max(other.first.1)),
            enlarged: (self.enlarged.0.max(other.enlarged.0), self.enlarged.1.max(other.enlarged.1)),
            steps: self.steps.max(other.steps),
            text: self.text.with(other.text),
            enlargement: match (self.enlargement, other.enlargement) {
                (Enlargement::Latents, other) => other,
                (Enlargement::Pixels, Enlargement::Network(network)) => Enlargement::Network(network),
                (one, _) => one,
            },
        }
    }
}

impl Workload {
    /// The passes in their order: the work of each as of a run alone, and its stages.
    pub(super) fn passes(&self) -> Vec<(Pass, Self, Vec<Stage>)> {
        let alone = Self { second: None, ..*self };
        let image = |work: &Self| work.encodes_image.then_some(Stage::EncodeImage);
        let of = |before: Option<Stage>, work: Self, after: Option<Stage>| {
            let image = image(&work);
            let refine = (work.refiner_steps > 0).then_some(Stage::Refine);
            let prompt = work.has_image_prompts.then_some(Stage::ImagePrompt);
            let stages = before.into_iter().chain([Stage::Encode]).chain(image).chain(prompt);
            let stages = stages.chain([Stage::Denoise]).chain(refine).chain(after);
            (work, stages.collect::<Vec<_>>())
        };
        let Some(second) = self.second else {
            let (work, stages) = of(None, alone, Some(Stage::Decode));
            return vec![(Pass::First, work, stages)];
        };
        let takes_pixels = second.enlargement != Enlargement::Latents;
        let (first, stages) = of(None, alone, takes_pixels.then_some(Stage::Decode));
        let again = self.of_second(second);
        let (again, again_stages) = of(Some(Stage::Upscale), again, Some(Stage::Decode));
        vec![(Pass::First, first, stages), (Pass::Second, again, again_stages)]
    }

    /// The second pass as a run alone.
    fn of_second(&self, second: SecondPassWork) -> Self {
        let SecondPassWork { width, height, steps, text, enlargement, .. } = second;
        Self {
            width,
            height,
            steps,
            text,
            // Before they are cut, images are as large as they were enlarged.
            encodes_image: self.encodes_image || enlargement != Enlargement::Latents,
            second: None,
            ..*self
        }
    }

    /// The work of one pass.
    pub(crate) fn of_pass(&self, pass: Pass) -> Self {
        match (pass, self.second) {
            (Pass::Second, Some(second)) => self.of_second(second),
            _ => Self { second: None, ..*self },
        }
    }

    /// The images in words: "2 of 512x512", "2 of 512x512, then 1024x1024".
    pub(crate) fn described(&self) -> String {
        let then = self.second.map(|second| format!(", then {}x{}", second.width, second.height));
        format!("{} of {}x{}{}", self.batch_size, self.width, self.height, then.unwrap_or_default())
    }

    /// The height of the highest image of any pass.
    pub(crate) fn max_height(&self) -> usize {
        let second = self.second.map_or(0, |second| second.height.max(second.enlarged.1));
        self.height.max(second).max(self.references.height)
    }
}
