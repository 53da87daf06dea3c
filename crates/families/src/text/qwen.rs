//! A language model of Qwen as the only text encoder: the text stage of Z-Image, FLUX.2 klein, Qwen-Image and Qwen-Image-Edit. Words have
//! no weights, as in other programs.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_network::text::{
    CONTEXT, Error, Fill, LENGTH, PromptImage, PromptText, Result, Runs, TextNetwork, TextStage, TextTensors, Tokens,
    Words,
};
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_prompt::{Emphasis, TextOptions};
use kiln_qwen::{ChatTemplate, Ids, ImagePatches, QwenEncoder, Text, TextImage, Tokenizer, seen_size};
use kiln_weights::Network;

use crate::qwen_edit::Edit;

/// Texts that share a pass through the encoder, whose weights may be read once for all of them.
const PORTION: usize = 16;
/// The tokens of a text if a request does not say how many.
const MAX_LENGTH: usize = 512;
/// The rows of a text are a multiple of this number, so that few sizes occur. Z-Image fills up to it anyway.
pub(super) const MULTIPLE: usize = 32;

/// The tokens of Qwen-Image's template before a prompt, whose rows are not taken. The number is that of diffusers for every tokenizer.
const DESCRIBING: usize = 34;
/// The tokens of Qwen-Image-Edit's template before a prompt, whose rows are not taken.
const EDITING: usize = 64;

/// The language model of a model.
pub struct QwenPart {
    /// The network.
    pub encoder: QwenEncoder,
    /// Its tokenizer; `None` for plans and measurements, which encode no text of a prompt.
    pub tokenizer: Option<Tokenizer>,
    /// Its name for LoRAs.
    pub network: Option<Network>,
}

/// How a family takes the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// The ids of the text's tokens, and their number.
    Own,
    /// A fixed number, those of padding included.
    Padded,
}

/// The text stage.
pub struct QwenText {
    part: QwenPart,
    template: ChatTemplate,
    rows: Rows,
    /// The number of first tokens whose rows are not taken.
    dropped: usize,
    /// How images come before a prompt, if the language model sees images.
    edit: Option<Edit>,
}

impl QwenText {
    /// The stage of Z-Image (diffusers, `ZImagePipeline._encode_prompt`): the rows of the text's tokens.
    pub fn z_image(part: QwenPart) -> Self {
        Self { part, template: ChatTemplate::Thinking, rows: Rows::Own, dropped: 0, edit: None }
    }

    /// The stage of FLUX.2 klein (diffusers, `Flux2KleinPipeline._get_qwen3_prompt_embeds`): as many rows as the text may have at
    /// most, those of padding included.
    pub fn klein(part: QwenPart) -> Self {
        Self { part, template: ChatTemplate::NotThinking, rows: Rows::Padded, dropped: 0, edit: None }
    }

    /// The stage of Qwen-Image (diffusers, `QwenImagePipeline._get_qwen_prompt_embeds`): the rows of the text's tokens without those of
    /// the template before it. An empty text is a space, the negative prompt of the model's authors.
    pub fn qwen_image(part: QwenPart) -> Self {
        Self { part, template: ChatTemplate::Describing, rows: Rows::Own, dropped: DESCRIBING, edit: None }
    }

    /// The stage of Qwen-Image-Edit (diffusers, `_get_qwen_prompt_embeds` of `QwenImageEditPipeline` and `QwenImageEditPlusPipeline`):
    /// like that of Qwen-Image with another template, and with the tokens of images before the prompt.
    pub fn qwen_image_edit(part: QwenPart, edit: Edit) -> Self {
        Self { part, template: ChatTemplate::Editing, rows: Rows::Own, dropped: EDITING, edit: Some(edit) }
    }

    /// The rows of a text with `length` tokens of at most `most`.
    fn rows_of(&self, length: usize, most: usize) -> usize {
        match self.rows {
            Rows::Own => length.next_multiple_of(MULTIPLE),
            Rows::Padded => most,
        }
    }

    /// The tokens of a text with these ids, which take `rows` rows. `pad` is the id of padding.
    fn framed(&self, mut ids: Vec<u32>, rows: usize, pad: u32) -> Text {
        let length = ids.len();
        if self.rows == Rows::Padded {
            ids.resize(rows.max(length), pad);
        }
        Text { length, ..Text::whole(ids) }
    }

    /// The number of tokens of each image of a text.
    fn tokens_of(&self, text: &PromptText) -> Vec<usize> {
        let Some(vision) = self.part.encoder.vision() else { return Vec::new() };
        let side = vision.token_side();
        let tokens = |image: &PromptImage| {
            let (width, height) = seen_size(image.size(), side);
            (width / side) * (height / side)
        };
        text.images.iter().map(tokens).collect()
    }

    /// Texts with the images of `sources`, from which they are, and the patches of all images. An image that several texts have is there
    /// once.
    fn with_images(
        &self,
        texts: &[Text],
        sources: &[(PromptText, Arc<Tokens>)],
    ) -> Result<(Vec<Text>, Vec<ImagePatches>)> {
        let Some(vision) = self.part.encoder.vision() else { return Ok((texts.to_vec(), Vec::new())) };
        let (mut known, mut all): (Vec<&PromptImage>, Vec<Text>) = (Vec::new(), texts.to_vec());
        for (text, (source, _)) in all.iter_mut().zip(sources) {
            for place in &mut text.images {
                let Some(image) = source.images.get(place.image) else { continue };
                place.image = known.iter().position(|other| *other == image).unwrap_or_else(|| {
                    known.push(image);
                    known.len() - 1
                });
            }
        }
        let missing = || failed("an image of a text is not kept");
        let patches = |image: &PromptImage| Ok(ImagePatches::new(image.image().ok_or_else(missing)?, vision)?);
        Ok((all, known.into_iter().map(patches).collect::<Result<_>>()?))
    }

    /// The tensors of a text from its hidden states `(1, s, d)`.
    fn tensors(&self, states: Tensor, length: usize) -> Result<TextTensors> {
        if self.rows == Rows::Padded {
            return Ok(TextTensors::default().with(CONTEXT, states));
        }
        let length = length.saturating_sub(self.dropped);
        let states = states.narrow(1, self.dropped, length)?.contiguous()?;
        let rows = length.next_multiple_of(MULTIPLE);
        let number = Tensor::new(&[length as f32], &Device::Cpu)?.to_device(states.device())?;
        Ok(TextTensors::default().with(CONTEXT, with_zeros(&states, rows)?).with(LENGTH, number))
    }
}

/// `ids` with as many tokens of each image as it has, instead of the one that stands for it, and the places of the images.
fn with_image_tokens(ids: Vec<u32>, counts: &[usize], token: Option<u32>) -> Result<(Vec<u32>, Vec<TextImage>)> {
    let (mut all, mut images) = (Vec::with_capacity(ids.len() + counts.iter().sum::<usize>()), Vec::new());
    for id in ids {
        match counts.get(images.len()).filter(|_| Some(id) == token) {
            Some(&count) => {
                images.push(TextImage { start: all.len(), image: images.len() });
                all.extend(std::iter::repeat_n(id, count));
            }
            None => all.push(id),
        }
    }
    if images.len() < counts.len() {
        return Err(failed("the tokenizer has no token `<|image_pad|>`, which stands for an image"));
    }
    Ok((all, images))
}

/// `x` `(1, s, d)` with zeros behind, `(1, rows, d)`.
pub(super) fn with_zeros(x: &Tensor, rows: usize) -> Result<Tensor> {
    let (_, s, d) = x.dims3()?;
    if s >= rows {
        return Ok(x.clone());
    }
    let zeros = Tensor::zeros((1, rows - s, d), x.dtype(), x.device())?;
    Ok(Tensor::cat(&[x, &zeros], 1)?)
}

fn failed(problem: &str) -> Error {
    kiln_qwen::Error::Tokenize(problem.into()).into()
}

impl TextStage for QwenText {
    fn networks(&self) -> Vec<TextNetwork<'_>> {
        vec![TextNetwork { segments: self.part.encoder.segments(), network: self.part.network }]
    }

    fn ignores(&self) -> &'static [&'static str] {
        &["clip_skip", "chunk_cut", "comma_backtrack"]
    }

    fn effective(&self, options: TextOptions) -> TextOptions {
        let max_length = Some(options.max_length.unwrap_or(MAX_LENGTH).max(1));
        TextOptions { emphasis: Emphasis::None, max_length, ..TextOptions::default() }
    }

    fn tokenize(&self, text: &PromptText, _words: &dyn Words) -> Result<Tokens> {
        let tokenizer = self.part.tokenizer.as_ref();
        let tokenizer = tokenizer.ok_or_else(|| failed("the text encoder was opened without its tokenizer"))?;
        let most = text.options.max_length.unwrap_or(MAX_LENGTH).max(1);
        let own = if self.dropped > 0 && text.text.is_empty() { " " } else { &text.text };
        let frame = self.edit.map(|edit| edit.frame(text.images.len())).unwrap_or_default();
        let Ids { ids, used, room, cut } = tokenizer.encode_behind(&frame, own, self.template, most + self.dropped)?;
        let (ids, images) = with_image_tokens(ids, &self.tokens_of(text), tokenizer.image_token())?;
        let length = ids.len().checked_sub(self.dropped).filter(|&length| length > 0);
        let length = length.ok_or_else(|| failed("the tokenizer has too few tokens for the template of Qwen-Image"))?;
        let rows = self.rows_of(length, most);
        let own = Text { images, ..self.framed(ids, rows, tokenizer.pad()) };
        Ok(Tokens::new(rows, own).with_room(used, room).with_cut(cut))
    }

    fn sample(&self, number: usize) -> Tokens {
        let (rows, vocab_size) = (self.least(), self.part.encoder.config().vocab_size.max(1));
        let ids = (0..rows + self.dropped).map(|i| ((i + number) % vocab_size) as u32).collect();
        Tokens::new(rows, self.framed(ids, rows, 0))
    }

    fn least(&self) -> usize {
        self.rows_of(1, MAX_LENGTH)
    }

    fn fit(&self, rows: &[usize], _padded: bool) -> Result<usize> {
        // Rows behind a text are masked, so that they change nothing.
        Ok(rows.iter().copied().max().unwrap_or(self.least()))
    }

    fn needs_empty(&self, _length: usize, _fill: &Fill) -> bool {
        false
    }

    fn fill(&self, text: &TextTensors, fill: &Fill, _empty: Option<&TextTensors>) -> Result<TextTensors> {
        match text.get(CONTEXT) {
            Some(context) if self.rows == Rows::Own => Ok(text.clone().with(CONTEXT, with_zeros(context, fill.total)?)),
            _ => Ok(text.clone()),
        }
    }

    fn encode(&self, texts: &[(PromptText, Arc<Tokens>)], on: &mut dyn Runs) -> Result<Vec<TextTensors>> {
        let own = |(_, tokens): &(PromptText, Arc<Tokens>)| {
            let text = tokens.own::<Text>().cloned();
            text.ok_or_else(|| failed("its tokens are those of another text stage"))
        };
        let all = texts.iter().map(own).collect::<Result<Vec<Text>>>()?;
        let device = on.enter(0)?;
        let mut encoded = Vec::with_capacity(all.len());
        for (i, portion) in all.chunks(PORTION).enumerate() {
            on.proceed(i * PORTION, all.len())?;
            let (portion, images) = self.with_images(portion, &texts[i * PORTION..])?;
            let mut result = None;
            on.run(0, &mut || result = Some(self.part.encoder.encode_with(&portion, &images, &device)));
            for (states, text) in result.ok_or(Error::Stopped)??.into_iter().zip(&portion) {
                encoded.push(self.tensors(states, text.length)?);
            }
        }
        on.leave(0);
        Ok(encoded)
    }

    fn shapes(&self, length: usize) -> Vec<(&'static str, Vec<usize>)> {
        let context = (CONTEXT, vec![1, length, self.part.encoder.channels()]);
        match self.rows {
            Rows::Own => vec![context, (LENGTH, vec![1])],
            Rows::Padded => vec![context],
        }
    }

    fn dry_run(&self, device: &MetaDevice, dtype: DType, length: usize, texts: usize) -> Result<Vec<MetaTensor>> {
        for first in (0..texts).step_by(PORTION) {
            let text = Text::whole(vec![0; length.max(1) + self.dropped]);
            let all = vec![text; PORTION.min(texts - first)];
            self.part.encoder.forward::<MetaTensor>(&all, &[], device).map_err(Error::from)?;
        }
        Ok(self.meta_tensors(device, dtype, length, texts))
    }

    fn dry_run_with_images(
        &self,
        device: &MetaDevice,
        dtype: DType,
        (length, texts): (usize, usize),
        (images, size): (usize, (usize, usize)),
    ) -> Result<Vec<MetaTensor>> {
        let Some(vision) = self.part.encoder.vision().filter(|_| images > 0) else {
            return self.dry_run(device, dtype, length, texts);
        };
        let patches = vec![ImagePatches::blank(size, vision)?; images];
        let tokens = patches.first().map_or(0, ImagePatches::tokens);
        // The patches are in the host's memory.
        let values = patches.iter().map(ImagePatches::numbers).sum();
        let _values = (!device.target().is_gpu()).then(|| device.tensor(&[1, values], DType::F32));
        let places = (0..images).map(|image| TextImage { start: self.dropped + image * tokens, image }).collect();
        let ids = vec![0; self.dropped + length.max(images * tokens + 1)];
        let text = Text { images: places, ..Text::whole(ids) };
        let all = vec![text; texts.clamp(1, PORTION)];
        self.part.encoder.forward::<MetaTensor>(&all, &patches, device).map_err(Error::from)?;
        Ok(self.meta_tensors(device, dtype, length, texts))
    }
}

impl QwenText {
    /// The tensors of `texts` texts of a dry run.
    fn meta_tensors(&self, device: &MetaDevice, dtype: DType, length: usize, texts: usize) -> Vec<MetaTensor> {
        let tensor = |(name, shape): (&'static str, Vec<usize>)| {
            device.tensor(&shape, if name == LENGTH { DType::F32 } else { dtype })
        };
        (0..texts).flat_map(|_| self.shapes(length)).map(tensor).collect()
    }
}
