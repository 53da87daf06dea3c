//! Attention in candle's primitives, for some queries at a time, so that the memory of the scores is bounded.

use candle_core::{DType, Device, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::{Attention, Call, GroupedAttention, Mask, Shapes};
use crate::error::Result;

/// The most elements of the scores in memory: 256 MiB in f32.
const MAX_SCORES: usize = 1 << 26;

/// `seen` `(b, t)` is 1 for keys that are attended to and 0 for masked ones.
pub(super) fn forward(
    operands: [&Tensor; 3],
    seen: Option<&Tensor>,
    config: Attention,
    shapes: Shapes,
) -> Result<Tensor> {
    let scale = 1.0 / (shapes.head_dim as f64).sqrt();
    scaled(operands, [seen, None], scale, config, shapes)
}

/// [`crate::grouped_attention`]: keys and values are repeated for every head of queries.
pub(super) fn grouped(call: &Call<'_>, config: GroupedAttention) -> Result<Tensor> {
    let Call { q, k, v, mask: Mask { bias, lengths }, form, shapes } = *call;
    let Shapes { b, t, c, head_dim, .. } = shapes;
    let repeat = |x: &Tensor| -> Result<Tensor> {
        let x = x.reshape((b, t, config.num_kv_heads, 1, head_dim))?;
        Ok(x.broadcast_as((b, t, config.num_kv_heads, form.group, head_dim))?.reshape((b, t, c))?)
    };
    let seen = match lengths {
        Some(lengths) => {
            let keys = Tensor::arange(0f32, t as f32, lengths.device())?.reshape((1, t))?;
            let lengths = lengths.clamp(1.0, t as f64)?.reshape((b, 1))?;
            Some(keys.broadcast_lt(&lengths)?.to_dtype(DType::F32)?)
        }
        None => None,
    };
    let scale = config.scale.unwrap_or(1.0 / (head_dim as f64).sqrt());
    scaled([q, &repeat(k)?, &repeat(v)?], [seen.as_ref(), bias], scale, form.heads(), shapes)
}

fn scaled(
    [q, k, v]: [&Tensor; 3],
    [seen, bias]: [Option<&Tensor>; 2],
    scale: f64,
    config: Attention,
    shapes: Shapes,
) -> Result<Tensor> {
    let Shapes { b, s, t, c, head_dim } = shapes;
    let num_heads = config.num_heads;
    let heads = |x: &Tensor, tokens| x.reshape((b, tokens, num_heads, head_dim))?.transpose(1, 2)?.contiguous();
    // (b, num_heads, tokens, head_dim)
    let q = (heads(q, s)? * scale)?;
    let k = heads(k, t)?.transpose(2, 3)?;
    let v = heads(v, t)?;
    let block = queries_at_a_time(b * num_heads * t, s);
    let hidden = seen.map(|seen| seen.log()?.reshape((b, 1, 1, t))).transpose()?; // 0, or minus infinity
    let mut blocks = Vec::new();
    for start in (0..s).step_by(block) {
        let rows = block.min(s - start);
        let mut scores = q.narrow(2, start, rows)?.contiguous()?.matmul(&k)?.to_dtype(DType::F32)?;
        if let Some(bias) = bias {
            scores = scores.broadcast_add(&bias.narrow(2, start, rows)?.to_dtype(DType::F32)?)?;
        }
        if config.causal {
            scores = scores.broadcast_add(&causal_mask(start, rows, t, q.device())?)?;
        }
        if let Some(hidden) = &hidden {
            scores = scores.broadcast_add(hidden)?;
        }
        blocks.push(softmax_last_dim(&scores)?.to_dtype(v.dtype())?.matmul(&v)?);
    }
    Ok(Tensor::cat(&blocks, 2)?.transpose(1, 2)?.reshape((b, s, c))?)
}

/// Queries of each head whose scores are in memory at a time. `scores` counts those of one query of every head, `s` the
/// queries.
pub(super) fn queries_at_a_time(scores: usize, s: usize) -> usize {
    (MAX_SCORES / scores.max(1)).clamp(1, s.max(1))
}

/// `(rows, t)`: 0 where query `start + row` attends, minus infinity where it is masked.
fn causal_mask(start: usize, rows: usize, t: usize, device: &Device) -> Result<Tensor> {
    let mask: Vec<f32> = (start..start + rows)
        .flat_map(|query| (0..t).map(move |key| if key <= query { 0.0 } else { f32::NEG_INFINITY }))
        .collect();
    Ok(Tensor::from_vec(mask, (rows, t), device)?)
}
