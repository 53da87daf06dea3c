//! The interface of a model's text encoders.

use std::sync::Arc;

use candle_core::DType;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_prompt::TextOptions;
use kiln_weights::{Network, Segments};

use super::device::TextDevice;
use super::error::Result;
use super::tensors::TextTensors;
use super::tokens::{PromptText, Tokens};
use super::words::Words;

/// One network of a stage.
#[derive(Clone, Copy)]
pub struct TextNetwork<'a> {
    /// Its segments.
    pub segments: &'a Segments,
    /// Its name for LoRAs and embeddings; `None` if they do not change it.
    pub network: Option<Network>,
}

/// How a text becomes as long as its row of the batch. All lengths are in context tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fill {
    /// The longest text of the row's schedule.
    pub own: usize,
    /// The longest of the parts of the prompt (`AND`) that the row belongs to.
    pub parts: usize,
    /// All rows of the batch.
    pub total: usize,
    /// Whether the prompt and the negative prompt are padded to one length (the option `pad_conds`).
    pub padded: bool,
}

/// The weights and threads on which a stage runs.
pub trait Runs {
    /// Brings the weights of network `network` into memory. Returns the device that has them.
    ///
    /// # Errors
    /// [`super::Error::Stopped`] if that failed.
    fn enter(&mut self, network: usize) -> Result<TextDevice>;

    /// Called before text number `text` of `texts` runs through a network, and between the portions of a long one.
    ///
    /// # Errors
    /// [`super::Error::Stopped`] if the run is to stop.
    fn proceed(&mut self, text: usize, texts: usize) -> Result<()>;

    /// Does `work` of network `network` once, on the threads for it.
    fn run(&mut self, network: usize, work: &mut (dyn FnMut() + Send));

    /// How many rows each call of a network has: a call of fewer texts is filled up, so that a text has the same bits on a GPU whatever
    /// shares its call. `None` encodes text by text.
    fn rows_of_call(&self) -> Option<usize> {
        None
    }

    /// Called after the last text of network `network`: its weights may leave memory.
    fn leave(&mut self, network: usize);
}

/// The text encoders of a model with their tokenizers, of any number and kind.
pub trait TextStage: Send + Sync {
    /// The networks in the order in which they run. [`Runs`] numbers them in this order.
    fn networks(&self) -> Vec<TextNetwork<'_>>;

    /// The options of [`TextOptions::NAMES`] that do nothing in this stage, so that requests with them are refused.
    fn ignores(&self) -> &'static [&'static str];

    /// The options as they act here: defaults resolved, and those without effect at their default. Options that encode a text
    /// alike are equal.
    fn effective(&self, options: TextOptions) -> TextOptions;

    /// Cuts a text into tokens. It reads no weights but the vectors of `words`.
    ///
    /// # Errors
    /// Errors of the tokenizers and of files with words.
    fn tokenize(&self, text: &PromptText, words: &dyn Words) -> Result<Tokens>;

    /// Tokens of a text of the [`Self::least`] length for measurements, without a tokenizer. Texts with another number have
    /// other tokens.
    fn sample(&self, number: usize) -> Tokens;

    /// The context tokens of the shortest text.
    fn least(&self) -> usize;

    /// The length of every row of a batch whose rows have these lengths, in context tokens. `padded` is [`Fill::padded`].
    ///
    /// # Errors
    /// [`super::Error::Option`] if rows of these lengths cannot share a batch.
    fn fit(&self, rows: &[usize], padded: bool) -> Result<usize>;

    /// Whether [`Self::fill`] needs the tensors of the empty text for a text of `length` tokens.
    fn needs_empty(&self, length: usize, fill: &Fill) -> bool;

    /// The tensors of a text as long as its row. `empty` has those of the empty text if [`Self::needs_empty`].
    ///
    /// # Errors
    /// [`super::Error::Nn`] if the device has no memory.
    fn fill(&self, text: &TextTensors, fill: &Fill, empty: Option<&TextTensors>) -> Result<TextTensors>;

    /// Encodes texts on `on`, network by network, in portions between which the run may stop. The tensors are on the device of
    /// the last network, or in host memory if that is a GPU by Vulkan, Metal or DirectX 12.
    ///
    /// # Errors
    /// [`super::Error::Stopped`] if `on` stopped the run, and errors of the networks.
    fn encode(&self, texts: &[(PromptText, Arc<Tokens>)], on: &mut dyn Runs) -> Result<Vec<TextTensors>>;

    /// The names and shapes of the tensors of a text with `length` context tokens, in the order of [`Self::encode`].
    fn shapes(&self, length: usize) -> Vec<(&'static str, Vec<usize>)>;

    /// Encodes `texts` texts of `length` context tokens on shapes, with weights of `dtype`. Returns the networks' outputs, which
    /// are in memory at the same time.
    ///
    /// # Errors
    /// Errors of the networks for impossible sizes.
    fn dry_run(&self, device: &MetaDevice, dtype: DType, length: usize, texts: usize) -> Result<Vec<MetaTensor>>;

    /// Like [`Self::dry_run`] for texts that all have `images` images of `size`, width and height, in them. A stage whose encoders see no
    /// images leaves them out.
    ///
    /// # Errors
    /// See [`Self::dry_run`].
    fn dry_run_with_images(
        &self,
        device: &MetaDevice,
        dtype: DType,
        (length, texts): (usize, usize),
        (_images, _size): (usize, (usize, usize)),
    ) -> Result<Vec<MetaTensor>> {
        self.dry_run(device, dtype, length, texts)
    }
}
