//! The types of matrices that stay as their files store them, in plans.

use std::collections::BTreeSet;

use kiln_models::ModelFolder;
use kiln_network::Denoiser;
use kiln_network::text::TextStage;
use kiln_weights::{Segment, Segments};

use super::Planner;

impl Planner {
    /// Plans with matrices that stay as the files of `model`, the model of this planner, and of its refiners store them, if `keeps`.
    pub fn with_stored_types(mut self, model: &ModelFolder, keeps: bool) -> Self {
        if keeps {
            keep_stored(model, self.text.as_ref(), &*self.unet);
        }
        self.keeps_stored = keeps;
        self.known.forget();
        self
    }

    /// Plans with the types of matrices that the segments of an open model have: of its denoiser, and of its text encoders. LoRAs
    /// change them. Returns whether these are others than before.
    pub(crate) fn keep_as<'a>(
        &self,
        number: usize,
        denoiser: &[Segment],
        texts: impl IntoIterator<Item = &'a [Segment]>,
    ) -> bool {
        let (text, unet) = match number.checked_sub(1) {
            None => (&self.text, &self.unet),
            Some(i) => match self.others.get(i) {
                Some(other) => (&other.text, &other.unet),
                None => return false,
            },
        };
        let mut is_other = unet.segments().keep_as(denoiser);
        for (network, segments) in text.networks().iter().zip(texts) {
            is_other |= network.segments.keep_as(segments);
        }
        if is_other {
            self.known.forget();
        }
        is_other
    }

    /// The types in which matrices stay as they are stored, in words.
    pub(crate) fn stored_types(&self) -> Vec<String> {
        let texts = self.text.networks();
        let segments = texts.iter().map(|network| network.segments).chain([self.unet.segments()]);
        let types: BTreeSet<String> = segments.flat_map(Segments::kept_types).map(|kind| kind.to_string()).collect();
        types.into_iter().collect()
    }
}

/// Keeps the matrices of a model's networks as its files store them. A file that cannot be read keeps none: opening the model says
/// why.
pub(super) fn keep_stored(model: &ModelFolder, text: &dyn TextStage, denoiser: &dyn Denoiser) {
    if let Ok(source) = model.files().denoiser_weights() {
        denoiser.segments().keep_stored(&source, |_| false);
    }
    for (i, network) in text.networks().into_iter().enumerate() {
        if let Ok(source) = model.files().text_encoder(i) {
            network.segments.keep_stored(&source, |_| false);
        }
    }
}
