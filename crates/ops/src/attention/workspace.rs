//! Memory of an attention besides operands and result.

use candle_core::DType;

use super::{Attention, reference};
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
