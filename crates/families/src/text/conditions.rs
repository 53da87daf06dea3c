//! How the results of CLIP's and T5's text encoders become the tensors of a denoiser.

use candle_core::{DType, Device, Tensor};
use kiln_network::text::{CONTEXT, Fill, POOLED, Result, TextTensors};

/// The tensors of a family's denoiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conditions {
    /// The tokens of one of CLIP's chunks, whose rows come before T5's; 0 if the denoiser does not take CLIP's rows.
    pub(super) chunk: usize,
    /// Channels of an absent CLIP encoder, in which both the rows and the pooled vector have zeros at the beginning.
    pub(super) before: usize,
    /// Channels of a row. CLIP's rows, which have fewer, end with zeros.
    pub(super) context: usize,
    /// Channels of the pooled vector. A shorter one ends with zeros.
    pub(super) pooled: usize,
}

impl Conditions {
    /// The tensors of a text with `chunks` chunks for CLIP and `length` tokens for T5. Without a network there are zeros in
    /// the place of its result. The tensors are on the device of `t5` `(1, length, d)`, or else of CLIP's results.
    pub(super) fn join(
        &self,
        clip: Option<&TextTensors>,
        t5: Option<Tensor>,
        [chunks, length]: [usize; 2],
    ) -> Result<TextTensors> {
        let of_clip = |name| clip.and_then(|clip| clip.get(name));
        let (dtype, device) = match t5.as_ref().or(of_clip(CONTEXT)) {
            Some(like) => (like.dtype(), like.device().clone()),
            None => (DType::F32, Device::Cpu),
        };
        let zeros = |rows: &[usize]| Tensor::zeros(rows, dtype, &device);
        // `x` `(.., width)` between zeros, `(.., before + width + zeros)`, which has `total` channels.
        let between = |x: &Tensor, total: usize| -> Result<Tensor> {
            let x = x.to_dtype(dtype)?.to_device(&device)?;
            let (rows, width) = (&x.dims()[..x.rank() - 1], x.dim(x.rank() - 1)?);
            let columns = |width: usize| zeros(&[rows, &[width]].concat());
            let (first, last) = (columns(self.before)?, columns(total.saturating_sub(self.before + width))?);
            let parts: Vec<&Tensor> = [&first, &x, &last].into_iter().filter(|part| part.elem_count() > 0).collect();
            Ok(Tensor::cat(&parts, x.rank() - 1)?)
        };
        let pooled = match of_clip(POOLED) {
            Some(pooled) => between(pooled, self.pooled)?,
            None => zeros(&[1, self.pooled])?,
        };
        let mut rows = match t5 {
            Some(rows) => rows,
            None => zeros(&[1, length, self.context])?,
        };
        if self.chunk > 0 {
            let first = match of_clip(CONTEXT) {
                Some(context) => between(context, self.context)?,
                None => zeros(&[1, chunks * self.chunk, self.context])?,
            };
            rows = Tensor::cat(&[&first, &rows], 1)?;
        }
        Ok(TextTensors::default().with(CONTEXT, rows).with(POOLED, pooled))
    }

    /// A text as long as its row: CLIP's chunks of the empty text `empty` are between its own and T5's rows.
    pub(super) fn fill(&self, text: &TextTensors, fill: &Fill, empty: Option<&TextTensors>) -> Result<TextTensors> {
        let (Some(own), Some(empty)) = (text.get(CONTEXT), empty.and_then(|empty| empty.get(CONTEXT))) else {
            return Ok(text.clone());
        };
        let missing = fill.total.saturating_sub(own.dim(1)?) / self.chunk.max(1);
        let of_t5 = empty.dim(1)?.saturating_sub(self.chunk);
        let of_clip = own.dim(1)?.saturating_sub(of_t5);
        let (first, chunk, last) =
            (own.narrow(1, 0, of_clip)?, empty.narrow(1, 0, self.chunk)?, own.narrow(1, of_clip, of_t5)?);
        let mut parts = vec![&first];
        parts.extend(vec![&chunk; missing]);
        parts.push(&last);
        Ok(text.clone().with(CONTEXT, Tensor::cat(&parts, 1)?))
    }
}
