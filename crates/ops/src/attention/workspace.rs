//! Memory of an attention besides operands and result.

use candle_core::DType;

use super::{Attention, GroupedAttention, reference};
use crate::cpu::product::{Kernel, packed_len};
use crate::workspace::{Target, Workspace};

/// Memory of [`crate::attention`] besides operands and result, for `q` `(b, s, c)` and `t` keys. On the CPU these are
/// the packed keys and values of all heads. A GPU needs none, except in f32 and for head sizes without a kernel.
pub fn attention_workspace(
    target: Target,
    dtype: DType,
    [b, s, c]: [usize; 3],
    t: usize,
    config: Attention,
) -> Workspace {
    let (heads, size) = (config.num_heads, dtype.size_in_bytes());
    let head_dim = c / heads.max(1);
    Workspace::call(match target {
        Target::Cpu { .. } => {
            let size = Kernel::of(dtype).operand_bytes();
            b * heads * (packed_len(head_dim, t) + packed_len(t, head_dim)) * size
        }
        Target::Gpu if dtype != DType::F32 && head_dim.is_multiple_of(8) && head_dim <= 512 => 0,
        Target::Gpu => {
            // Copies of queries, keys and values; the scores of a block twice, and the results before they are
            // concatenated.
            let block = reference::queries_at_a_time(b * heads * t, s);
            (b * (2 * s + 2 * t) * c) * size + 2 * b * heads * block * t * size_of::<f32>()
        }
    })
}

/// Memory of [`crate::grouped_attention`] besides operands and result, unless it is [`crate::attention`]. GPUs have a kernel
/// for heads of up to 128 channels; elsewhere keys and values are repeated for every head of queries.
pub(super) fn grouped(
    target: Target,
    dtype: DType,
    [b, s, c]: [usize; 3],
    t: usize,
    config: GroupedAttention,
) -> Workspace {
    let head_dim = c / config.num_heads.max(1);
    if target.is_gpu() && has_grouped_kernel(dtype, head_dim) {
        return Workspace::default();
    }
    let heads = |num_heads| Attention { num_heads, causal: config.causal };
    if !target.is_gpu() {
        let channels = config.num_kv_heads * head_dim;
        return attention_workspace(target, dtype, [b, s, channels], t, heads(config.num_kv_heads));
    }
    let Workspace { call, kept } = attention_workspace(target, DType::F32, [b, s, c], t, heads(config.num_heads));
    Workspace { call: call + 2 * b * t * c * dtype.size_in_bytes(), kept }
}

/// Whether GPUs have a kernel for groups, biases and lengths.
pub(super) fn has_grouped_kernel(dtype: DType, head_dim: usize) -> bool {
    dtype != DType::F32 && head_dim.is_multiple_of(8) && head_dim <= 128
}
